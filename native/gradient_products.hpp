// The two products of the backward, from the gradients of the logits as they lie in memory: with weight to the gradient
// of input, with input to those of weight and bias (docs/bits.md, "Gradients"). Every element is one chain of fused
// multiply-adds per block of its reduction index.
#pragma once

#include "hidden_panels.hpp"
#include "logit_gradient.hpp"
#include "product.hpp"
#include "sparse_products.hpp"

namespace steadysum::STEADYSUM_ISA {

// ---- The gradient of input: lanes over rows, as in the forward; the reduction index is the vocabulary column.
// --------

// Of one segment, for the hidden columns [hidden_begin, hidden_end) and rows [row_begin, row_end) of a chunk.
inline void input_product(const InputProductTask& task) {
    const Chunk& chunk = *task.chunk;
    const Matrix& w = chunk.problem->weight;
    const Matrix transposed{w.data, w.dtype, w.columns, w.rows, w.column_stride, w.row_stride};
    const std::int64_t hidden = w.columns;
    const std::int64_t width = task.hidden_end - task.hidden_begin;
    bool first = true;
    for (std::int64_t tile = task.grid->first_tile(task.segment); tile < task.grid->end_tile(task.segment); ++tile) {
        const TileSpan span = task.grid->tile(tile);
        const std::int64_t span_columns = span.end - span.begin;
        const std::int64_t columns = chunk.problem->unmasked(span);
        const std::int64_t before = (span.begin - task.segment_begin) * chunk.padded_rows;
        for (std::int64_t k = 0; k < columns; k += kBlock) {
            const std::int64_t depth = Grid::least(kBlock, columns - k);
            pack_weight(transposed, task.hidden_begin, width, span.begin + k, depth, task.weight_block);
            for (std::int64_t row = task.row_begin; row < task.row_end; row += kPanelRows) {
                const float* panel = task.gradient + before + row * span_columns + k * kPanelRows;
                float* sums = task.sums + row * hidden + task.hidden_begin * kPanelRows;
                if (chunk.rows - row <= kLanes) {
                    panel_product<1>(panel, task.weight_block, width, depth, first, sums);
                } else {
                    panel_product<2>(panel, task.weight_block, width, depth, first, sums,
                                     row + kPanelRows < task.row_end ? panel + kPanelRows * span_columns : nullptr);
                }
            }
            first = false;
        }
    }
    if (first)  // a segment of masked columns
        for (std::int64_t row = task.row_begin; row < task.row_end; row += kPanelRows)
            for (std::int64_t i = 0; i < width * kPanelRows; i += kLanes)
                store(task.sums + row * hidden + task.hidden_begin * kPanelRows + i, zero());
    if (armed(Trap::input_gradient_in_16_bits))
        for (std::int64_t row = task.row_begin; row < task.row_end; row += kPanelRows)
            through_bf16(task.sums + row * hidden + task.hidden_begin * kPanelRows, width * kPanelRows);
}

// sums := earlier + sums, two nodes of the fold's tree, for panels [row_begin, row_end) of a chunk.
inline void add_sums(const float* earlier, float* sums, std::int64_t size) {
    for (std::int64_t i = 0; i < size; i += kLanes) store(sums + i, load(earlier + i) + load(sums + i));
}

// The finished sums of one panel's rows, [hidden][row], into rows of the caller's matrix.
inline void unpack_rows(const float* sums, std::int64_t hidden, std::int64_t rows, float* out) {
    std::int64_t h = 0;
    for (; h + kLanes <= hidden; h += kLanes)
        for (std::int64_t group = 0; group < rows; group += kLanes) {
            Vec block[kLanes];
            for (std::int64_t i = 0; i < kLanes; ++i) block[i] = load(sums + (h + i) * kPanelRows + group);
            transpose(block);
            for (std::int64_t r = 0; r < kLanes && group + r < rows; ++r)
                store(out + (group + r) * hidden + h, block[r]);
        }
    for (; h < hidden; ++h)
        for (std::int64_t r = 0; r < rows; ++r) out[r * hidden + h] = sums[h * kPanelRows + r];
}

// ---- The gradient of weight: lanes over hidden columns; the reduction index is the row.
// ------------------------------

// One block of rows: adds panel^T gradient to sums[column][kPanelRows], at one panel of hidden columns.
// gradient: [panel of rows][column][row of the panel], panels `panel_stride` apart.
template <int Columns>
inline void weight_block_product(const float* panel, const float* gradient, std::int64_t panel_stride,
                                 std::int64_t rows, float* block_sums, bool first) {
    Vec sums[Columns][2];
    for (int c = 0; c < Columns; ++c) sums[c][0] = sums[c][1] = zero();
    const float* const next_columns = gradient + Columns * kPanelRows;
    for (std::int64_t begin = 0; begin < rows; begin += kPanelRows) {
        const std::int64_t here = Grid::least(kPanelRows, rows - begin);
        // A panel's gradients are used once and lie apart from the next one's: no hardware prefetcher follows.
        const float* const next = begin + kPanelRows < rows ? gradient + panel_stride : next_columns;
        for (int c = 0; c < Columns; ++c)
            for (int line = 0; line < kPanelRows; line += 16) __builtin_prefetch(next + c * kPanelRows + line);
        for (std::int64_t r = 0; r < here; ++r) {
            const Vec low = load(panel + (begin + r) * kPanelRows);
            const Vec high = load(panel + (begin + r) * kPanelRows + kLanes);
#pragma GCC unroll 32
            for (int c = 0; c < Columns; ++c) {
                const Vec g = set1(gradient[c * kPanelRows + r]);
                sums[c][0] = fma(low, g, sums[c][0]);
                sums[c][1] = fma(high, g, sums[c][1]);
            }
        }
        gradient += panel_stride;
    }
    for (int c = 0; c < Columns; ++c)
        for (int v = 0; v < 2; ++v) {
            float* to = block_sums + c * kPanelRows + v * kLanes;
            store(to, first ? sums[c][v] : load(to) + sums[c][v]);
        }
}

using WeightBlockProduct = void (*)(const float*, const float*, std::int64_t, std::int64_t, float*, bool);

template <int... Widths>
inline WeightBlockProduct pick_weight_product(int columns, std::integer_sequence<int, Widths...>) {
    static constexpr WeightBlockProduct table[] = {weight_block_product<Widths + 1>...};
    return table[columns - 1];
}

// Panels of hidden columns whose sums are brought together at a time: whole stretches of the result's rows, and 32 KiB.
inline constexpr std::int64_t kHiddenPanels = 64 / kPanelRows;

// Some hidden columns of the rows of weight's gradient, to or from sums[panel][column][kPanelRows].
template <bool In>
inline void exchange(float* const* rows_of_weight, std::int64_t columns, std::int64_t h, std::int64_t width,
                     float* sums) {
    for (std::int64_t c = 0; c < columns; ++c)
        for (std::int64_t begin = 0; begin < width; begin += kPanelRows) {
            float* row = rows_of_weight[c] + h + begin;
            float* sum = sums + begin * columns + c * kPanelRows;
            const std::int64_t present = Grid::least(kPanelRows, width - begin);
            if (present == kPanelRows)
                for (std::int64_t i = 0; i < kPanelRows; i += kLanes)
                    In ? store(sum + i, load(row + i)) : store(row + i, load(sum + i));
            else
                for (std::int64_t i = 0; i < present; ++i) (In ? sum[i] : row[i]) = In ? row[i] : sum[i];
        }
}

// The sum of a column of gradients over one block of rows: 16 accumulators, row mod 16, and the pairwise tree.
inline float sum_rows(const float* gradient, std::int64_t panel_stride, std::int64_t rows) {
    static_assert(kAccumulators % kLanes == 0);
    constexpr std::int64_t kVectors = kAccumulators / kLanes;
    Vec sums[kVectors];
    for (Vec& s : sums) s = zero();
    for (std::int64_t row = 0; row < rows; row += kLanes) {  // rows past the end hold zeros
        Vec& s = sums[row / kLanes % kVectors];
        s = s + load(gradient + row / kPanelRows * panel_stride + row % kPanelRows);
    }
    float lanes[kAccumulators];
    for (std::int64_t v = 0; v < kVectors; ++v) store(lanes + v * kLanes, sums[v]);
    for (std::int64_t n = kAccumulators / 2; n >= 1; n /= 2)
        for (std::int64_t i = 0; i < n; ++i) lanes[i] = lanes[2 * i] + lanes[2 * i + 1];
    return lanes[0];
}

// All columns take part. A few hidden columns at a time and all blocks of rows, with their sums in a buffer: rows of
// the result a power of two apart would evict each other from the first cache.
inline void dense_weight_product(const WeightProductTask& task, float* const* rows_of_weight) {
    using Widths = std::make_integer_sequence<int, kPanelColumns>;
    const Chunk& chunk = *task.chunk;
    const std::int64_t hidden = chunk.problem->depth();
    const std::int64_t columns = task.column_end - task.column_begin;
    const std::int64_t panel_stride = task.panel_columns * kPanelRows;
    alignas(64) float sums[kHiddenPanels * kPanelRows * kWeightColumns];
    for (std::int64_t h = 0; h < hidden; h += kHiddenPanels * kPanelRows) {
        const std::int64_t width = Grid::least(kHiddenPanels * kPanelRows, hidden - h);
        if (!task.first) exchange<true>(rows_of_weight, columns, h, width, sums);
        for (std::int64_t begin = 0; begin < width; begin += kPanelRows)
            for (std::int64_t block = 0; block < chunk.rows; block += kBlock) {
                const std::int64_t rows = Grid::least(kBlock, chunk.rows - block);
                const float* panel = task.hidden_panels + block * padded_hidden(hidden) + (h + begin) * rows;
                const float* gradient = task.gradient + block * task.panel_columns + task.column_begin * kPanelRows;
                for (std::int64_t c = 0; c < columns;) {
                    const int strip = strip_width<2>(columns - c);
                    pick_weight_product(strip, Widths{})(panel, gradient + c * kPanelRows, panel_stride, rows,
                                                         sums + begin * columns + c * kPanelRows,
                                                         task.first && block == 0);
                    c += strip;
                }
            }
        exchange<false>(rows_of_weight, columns, h, width, sums);
    }
}

inline void bias_sums(const WeightProductTask& task) {
    for (std::int64_t block = 0; block < task.chunk->rows; block += kBlock)
        for (std::int64_t c = task.column_begin; c < task.column_end; ++c) {
            const float s = sum_rows(task.gradient + block * task.panel_columns + c * kPanelRows,
                                     task.panel_columns * kPanelRows, Grid::least(kBlock, task.chunk->rows - block));
            float& to = task.bias[task.span.begin + c];
            to = task.first && block == 0 ? s : to + s;
        }
}

// Some columns of a tile: their rows of the weight's gradient and their elements of the bias's, over a chunk's rows.
inline void weight_product(const WeightProductTask& task) {
    if (task.bias != nullptr) bias_sums(task);
    if (task.weight == nullptr) return;
    const std::int64_t hidden = task.chunk->problem->depth();
    const std::int64_t columns = task.column_end - task.column_begin;
    float* rows_of_weight[kWeightColumns];
    for (std::int64_t c = 0; c < columns; ++c)
        rows_of_weight[c] = task.weight + (task.span.begin + task.column_begin + c) * hidden;
    if (task.sparse)
        sparse_weight_product(task, rows_of_weight);
    else
        dense_weight_product(task, rows_of_weight);
    if (armed(Trap::weight_gradient_in_16_bits))
        for (std::int64_t c = 0; c < columns; ++c) through_bf16(rows_of_weight[c], hidden);
}

}  // namespace steadysum::STEADYSUM_ISA
