// The product of a panel of rows with a few columns of weight: the register block, and the choice of its width.
// Vector lanes run over rows, so that each logit is one chain of fused multiply-adds and weight is read as it lies.
#pragma once

#include <utility>

#include "pack.hpp"

namespace steadysum::STEADYSUM_ISA {

// Adds one block of the reduction index to logits[column * kPanelRows + row].
// Vectors: how many vectors of rows (1 or 2). Columns: how many columns of weight.
template <int Vectors, int Columns, bool First>
inline void register_block(const float* panel, const float* block, std::int64_t depth, float* logits) {
    Vec sums[Columns][Vectors];
    for (int c = 0; c < Columns; ++c)
        for (int v = 0; v < Vectors; ++v) sums[c][v] = zero();
    for (std::int64_t k = 0; k < depth; ++k) {
        Vec rows[Vectors];
        for (int v = 0; v < Vectors; ++v) rows[v] = load(panel + k * kPanelRows + v * kLanes);
#pragma GCC unroll 32
        for (int c = 0; c < Columns; ++c) {
            const Vec w = set1(block[c * kBlockStride + k]);
            for (int v = 0; v < Vectors; ++v) sums[c][v] = fma(rows[v], w, sums[c][v]);
        }
    }
    for (int c = 0; c < Columns; ++c)
        for (int v = 0; v < Vectors; ++v) {
            float* to = logits + c * kPanelRows + v * kLanes;
            store(to, First ? sums[c][v] : load(to) + sums[c][v]);
        }
}

using RegisterBlock = void (*)(const float*, const float*, std::int64_t, float*);

template <int Vectors, bool First, int... Widths>
inline RegisterBlock pick(int columns, std::integer_sequence<int, Widths...>) {
    static constexpr RegisterBlock table[] = {register_block<Vectors, Widths + 1, First>...};
    return table[columns - 1];
}

// The widest strip of columns to take of those that are left; avoids a last strip too narrow to hide latency.
template <int Vectors>
inline int strip_width(std::int64_t left) {
    constexpr int widest = Vectors == 2 ? kPanelColumns : kNarrowColumns;
    if (left <= widest) return static_cast<int>(left);
    if (left <= widest + widest / 2) return static_cast<int>((left + 1) / 2);
    return widest;
}

// One panel against all columns of a packed block. `next`, if given, is the panel that comes next: fetched meanwhile.
template <int Vectors>
inline void panel_product(const float* panel, const float* block, std::int64_t columns, std::int64_t depth, bool first,
                          float* logits, const float* next = nullptr) {
    constexpr int widest = Vectors == 2 ? kPanelColumns : kNarrowColumns;
    using Widths = std::make_integer_sequence<int, widest>;
    for (std::int64_t c = 0; c < columns;) {
        const int width = strip_width<Vectors>(columns - c);
        const RegisterBlock f = first ? pick<Vectors, true>(width, Widths{}) : pick<Vectors, false>(width, Widths{});
        if (next != nullptr)
            for (std::int64_t k = c * depth / columns; k < (c + width) * depth / columns; ++k)
                for (int line = 0; line < kPanelRows; line += 16) __builtin_prefetch(next + k * kPanelRows + line);
        f(panel, block + c * kBlockStride, depth, logits + c * kPanelRows);
        c += width;
    }
}

}  // namespace steadysum::STEADYSUM_ISA
