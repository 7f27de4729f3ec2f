// Rows of a matrix as panels of hidden columns, for products whose lanes run over those: input for the gradient of
// weight, weight for a sparse gradient of input. 16-bit elements widen here, exactly.
#pragma once

#include "pack.hpp"

namespace steadysum::STEADYSUM_ISA {

inline std::int64_t padded_hidden(std::int64_t hidden) { return Grid::ceil_div(hidden, kPanelRows) * kPanelRows; }

// Some rows of a matrix as panels of hidden columns: [panel][row][kPanelRows], columns past the end zeros.
inline void pack_hidden(const Matrix& matrix, std::int64_t row_begin, std::int64_t rows, float* to) {
    with_element(matrix.dtype, [&](auto e) {
        using E = decltype(e);
        const std::int64_t hidden = matrix.columns;
        for (std::int64_t r = 0; r < rows; ++r) {
            const typename E::Stored* source = element<E>(matrix, row_begin + r, 0);
            const std::int64_t stride = step(matrix);
            for (std::int64_t h = 0; h < hidden; h += kPanelRows) {
                float* panel = to + h * rows + r * kPanelRows;
                const std::int64_t present = Grid::least(kPanelRows, hidden - h);
                if (present == kPanelRows && stride == 1) {
                    for (int v = 0; v < kPanelRows; v += kLanes) store(panel + v, E::load_lanes(source + h + v));
                } else {
                    for (std::int64_t i = 0; i < kPanelRows; ++i)
                        panel[i] = i < present ? value_at<E>(source + (h + i) * stride) : 0.0F;
                }
            }
        }
    });
}

}  // namespace steadysum::STEADYSUM_ISA
