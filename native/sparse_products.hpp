// The two products of the backward where a gradient filter has left few gradients of the logits: one row of the result
// at a time, over the entries that aren't 0. The chains are those of gradient_products.hpp without their zeros.
#pragma once

#include <utility>

#include "hidden_panels.hpp"
#include "logit_gradient.hpp"

namespace steadysum::STEADYSUM_ISA {

// The entries of one block of the reduction index that aren't 0, ascending.
struct Entries {
    std::int64_t count = 0;
    std::int32_t index[kBlock];
    float value[kBlock];

    void add(std::int64_t i, float x) {
        index[count] = static_cast<std::int32_t>(i);
        value[count++] = x;
    }
};

// Calls f(lane, value) for the lanes of a vector that aren't 0.
template <typename F>
inline void for_entries(const float* lanes, F&& f) {
    for (unsigned left = ~bits(load(lanes) == zero()) & ((1U << static_cast<unsigned>(kLanes)) - 1U); left != 0;
         left &= left - 1U) {
        const int lane = __builtin_ctz(left);
        f(lane, lanes[lane]);
    }
}

// Adds one block's sum to Panels panels of hidden columns of a row. A panel of the matrix is [row][kPanelRows].
template <int Panels>
inline void sparse_panels(const Entries& entries, const float* panels, std::int64_t panel_stride, float* out,
                          bool first) {
    Vec sums[Panels][2];
    for (auto& s : sums) s[0] = s[1] = zero();
    for (std::int64_t i = 0; i < entries.count; ++i) {
        const Vec value = set1(entries.value[i]);
        const float* row = panels + entries.index[i] * kPanelRows;
#pragma GCC unroll 32
        for (int p = 0; p < Panels; ++p)
            for (int v = 0; v < 2; ++v) sums[p][v] = fma(load(row + p * panel_stride + v * kLanes), value, sums[p][v]);
    }
    for (int p = 0; p < Panels; ++p)
        for (int v = 0; v < 2; ++v) {
            float* to = out + p * kPanelRows + v * kLanes;
            store(to, first ? sums[p][v] : load(to) + sums[p][v]);
        }
}

inline constexpr int kSparsePanels = 6;  // 12 accumulators

// Adds one block's sum to a row of `hidden` elements. panels: the block's `rows` rows of the matrix.
inline void sparse_row(const Entries& entries, const float* panels, std::int64_t rows, std::int64_t hidden, float* out,
                       bool first) {
    if (entries.count == 0 && !first) return;
    const std::int64_t stride = rows * kPanelRows;
    std::int64_t h = 0;
    for (; h + kSparsePanels * kPanelRows <= hidden; h += kSparsePanels * kPanelRows)
        sparse_panels<kSparsePanels>(entries, panels + h * rows, stride, out + h, first);
    for (; h + kPanelRows <= hidden; h += kPanelRows)
        sparse_panels<1>(entries, panels + h * rows, stride, out + h, first);
    if (h == hidden) return;
    float buffer[kPanelRows] = {};
    for (std::int64_t i = 0; !first && h + i < hidden; ++i) buffer[i] = out[h + i];
    sparse_panels<1>(entries, panels + h * rows, stride, buffer, first);
    for (std::int64_t i = 0; h + i < hidden; ++i) out[h + i] = buffer[i];
}

// A segment's part of the gradient of input, as rows: sums is [row][hidden].
inline void sparse_input_product(const InputProductTask& task) {
    const Chunk& chunk = *task.chunk;
    const Matrix& weight = chunk.problem->weight;
    const std::int64_t hidden = weight.columns;
    Entries entries[kPanelRows];
    bool first = true;
    for (std::int64_t tile = task.grid->first_tile(task.segment); tile < task.grid->end_tile(task.segment); ++tile) {
        const TileSpan span = task.grid->tile(tile);
        const std::int64_t span_columns = span.end - span.begin;
        const std::int64_t columns = chunk.problem->unmasked(span);
        const float* gradient = task.gradient + (span.begin - task.segment_begin) * chunk.padded_rows;
        for (std::int64_t k = 0; k < columns; k += kBlock) {
            const std::int64_t depth = Grid::least(kBlock, columns - k);
            pack_hidden(weight, span.begin + k, depth, task.weight_block);
            for (std::int64_t row = task.row_begin; row < task.row_end; row += kPanelRows) {
                const float* panel = gradient + row * span_columns + k * kPanelRows;
                for (Entries& e : entries) e.count = 0;
                for (std::int64_t i = 0; i < depth; ++i)
                    for (std::int64_t group = 0; group < kPanelRows; group += kLanes)
                        for_entries(panel + i * kPanelRows + group,
                                    [&](int lane, float x) { entries[group + lane].add(i, x); });
                for (std::int64_t r = 0; r < kPanelRows && row + r < chunk.rows; ++r)
                    sparse_row(entries[r], task.weight_block, depth, hidden, task.sums + (row + r) * hidden, first);
            }
            first = false;
        }
    }
    if (first)  // a segment of masked columns
        std::memset(task.sums + task.row_begin * hidden, 0,
                    static_cast<std::size_t>((task.row_end - task.row_begin) * hidden) * sizeof(float));
}

// Some columns of a tile: a chunk's part of the gradient of weight.
inline void sparse_weight_product(const WeightProductTask& task, float* const* rows_of_weight) {
    const Chunk& chunk = *task.chunk;
    const std::int64_t hidden = chunk.problem->depth();
    for (std::int64_t block = 0; block < chunk.rows; block += kBlock) {
        const std::int64_t rows = Grid::least(kBlock, chunk.rows - block);
        const float* panels = task.hidden_panels + block * padded_hidden(hidden);
        for (std::int64_t c = task.column_begin; c < task.column_end; ++c) {
            Entries entries;
            for (std::int64_t row = 0; row < rows; row += kLanes)  // rows past the end hold zeros
                for_entries(task.gradient + (block + row) / kPanelRows * kPanelRows * task.panel_columns +
                                c * kPanelRows + row % kPanelRows,
                            [&](int lane, float x) { entries.add(row + lane, x); });
            sparse_row(entries, panels, rows, hidden, rows_of_weight[c - task.column_begin], task.first && block == 0);
        }
    }
}

}  // namespace steadysum::STEADYSUM_ISA
