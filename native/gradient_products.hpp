// The two products of the backward, from the gradients of the logits as they lie in memory: with weight to the gradient
// of input, with input to those of weight and bias (docs/bits.md, "Gradients"). Every element is one chain of fused
// multiply-adds per block of its reduction index.
#pragma once

#include "logit_gradient.hpp"
#include "product.hpp"

namespace steadysum::STEADYSUM_ISA {

// ---- The gradient of input: lanes over rows, as in the forward; the reduction index is the vocabulary column.
// --------

// panel_product over the columns of the reduction index that are listed, the others being zero.
template <int Vectors, int Columns, bool First>
inline void listed_block(const float* panel, const float* block, const std::int32_t* list, std::int64_t count,
                         float* sums_out) {
    Vec sums[Columns][Vectors];
    for (int c = 0; c < Columns; ++c)
        for (int v = 0; v < Vectors; ++v) sums[c][v] = zero();
    for (std::int64_t i = 0; i < count; ++i) {
        const std::int64_t k = list[i];
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
            float* to = sums_out + c * kPanelRows + v * kLanes;
            store(to, First ? sums[c][v] : load(to) + sums[c][v]);
        }
}

using ListedBlock = void (*)(const float*, const float*, const std::int32_t*, std::int64_t, float*);

template <bool First, int... Widths>
inline ListedBlock pick_listed(int columns, std::integer_sequence<int, Widths...>) {
    static constexpr ListedBlock table[] = {listed_block<2, Widths + 1, First>...};
    return table[columns - 1];
}

inline void listed_product(const float* panel, const float* block, const std::int32_t* list, std::int64_t count,
                           std::int64_t columns, bool first, float* sums) {
    using Widths = std::make_integer_sequence<int, kPanelColumns>;
    if (count == 0 && !first) return;  // nothing but zeros to add
    for (std::int64_t c = 0; c < columns;) {
        const int width = strip_width<2>(columns - c);
        const ListedBlock f = first ? pick_listed<true>(width, Widths{}) : pick_listed<false>(width, Widths{});
        f(panel, block + c * kBlockStride, list, count, sums + c * kPanelRows);
        c += width;
    }
}

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
        const std::int64_t columns = Grid::least(chunk.problem->valid_columns - span.begin, span_columns);
        const std::int64_t before = (span.begin - task.segment_begin) * chunk.padded_rows;
        for (std::int64_t k = 0; k < columns; k += kBlock) {
            const std::int64_t depth = Grid::least(kBlock, columns - k);
            pack_weight(transposed, task.hidden_begin, width, span.begin + k, depth, task.weight_block);
            for (std::int64_t row = task.row_begin; row < task.row_end; row += kPanelRows) {
                const float* panel = task.gradient + before + row * span_columns + k * kPanelRows;
                float* sums = task.sums + row * hidden + task.hidden_begin * kPanelRows;
                if (task.active != nullptr) {
                    const std::uint8_t* active =
                        task.active + before / kPanelRows + row / kPanelRows * span_columns + k;
                    std::int32_t list[kBlock];
                    std::int64_t count = 0;
                    for (std::int64_t i = 0; i < depth; ++i) {
                        list[count] = static_cast<std::int32_t>(i);
                        count += active[i];
                    }
                    listed_product(panel, task.weight_block, list, count, width, first, sums);
                } else if (chunk.rows - row <= kLanes) {
                    panel_product<1>(panel, task.weight_block, width, depth, first, sums);
                } else {
                    panel_product<2>(panel, task.weight_block, width, depth, first, sums);
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

inline std::int64_t padded_hidden(std::int64_t hidden) { return Grid::ceil_div(hidden, kPanelRows) * kPanelRows; }

// One block of rows of input as panels of hidden columns: [panel][row][kPanelRows], columns past the end zeros.
inline void pack_hidden(const Problem& problem, std::int64_t row_begin, std::int64_t rows, float* to) {
    with_element(problem.input.dtype, [&](auto e) {
        using E = decltype(e);
        const std::int64_t hidden = problem.depth();
        for (std::int64_t r = 0; r < rows; ++r) {
            const typename E::Stored* source = element<E>(problem.input, row_begin + r, 0);
            const std::int64_t stride = step(problem.input);
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

// One block of rows: adds panel^T gradient to a few rows of the weight's gradient, at one panel of hidden columns.
// gradient: [panel of rows][column][row of the panel], panels `panel_stride` apart.
template <int Columns>
inline void weight_block_product(const float* panel, const float* gradient, std::int64_t panel_stride,
                                 std::int64_t rows, float* const* out, std::int64_t hidden, bool first) {
    Vec sums[Columns][2];
    for (int c = 0; c < Columns; ++c) sums[c][0] = sums[c][1] = zero();
    for (int c = 0; c < Columns; ++c) __builtin_prefetch(out[c] + hidden, 1);
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
            float* to = out[c] + hidden + v * kLanes;
            store(to, first ? sums[c][v] : load(to) + sums[c][v]);
        }
}

using WeightBlockProduct = void (*)(const float*, const float*, std::int64_t, std::int64_t, float* const*, std::int64_t,
                                    bool);

template <int... Widths>
inline WeightBlockProduct pick_weight_product(int columns, std::integer_sequence<int, Widths...>) {
    static constexpr WeightBlockProduct table[] = {weight_block_product<Widths + 1>...};
    return table[columns - 1];
}

// The last, ragged panel of hidden columns goes through a buffer of whole panels.
template <typename F>
inline void through_buffer(float* const* out, int columns, std::int64_t hidden, std::int64_t present, bool first,
                           F&& product) {
    float buffer[kPanelColumns][kPanelRows];
    float* rows[kPanelColumns];
    for (int c = 0; c < columns; ++c) {
        rows[c] = buffer[c];
        for (std::int64_t i = 0; i < kPanelRows; ++i) buffer[c][i] = !first && i < present ? out[c][hidden + i] : 0.0F;
    }
    product(rows);
    for (int c = 0; c < columns; ++c)
        for (std::int64_t i = 0; i < present; ++i) out[c][hidden + i] = buffer[c][i];
}

// One block of rows of a task's columns: where their gradients and their rows of the weight's gradient lie.
struct BlockColumns {
    const float* panels;    // the block's packed input
    const float* gradient;  // [panel of rows][column][row of the panel]
    std::int64_t panel_stride;
    std::int64_t rows;
    std::int64_t columns;
    float* const* out;
    bool first;
};

// At the panel of hidden columns that starts at h.
inline void block_columns_product(const BlockColumns& b, std::int64_t h, std::int64_t hidden) {
    using Widths = std::make_integer_sequence<int, kPanelColumns>;
    const float* panel = b.panels + h * b.rows;
    const std::int64_t present = Grid::least(kPanelRows, hidden - h);
    for (std::int64_t c = 0; c < b.columns;) {
        const int width = strip_width<2>(b.columns - c);
        const WeightBlockProduct product = pick_weight_product(width, Widths{});
        const float* from = b.gradient + c * kPanelRows;
        if (present == kPanelRows)
            product(panel, from, b.panel_stride, b.rows, b.out + c, h, b.first);
        else
            through_buffer(b.out + c, width, h, present, b.first, [&](float* const* buffer) {
                product(panel, from, b.panel_stride, b.rows, buffer, 0, b.first);
            });
        c += width;
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

// Copies the active columns of a block of rows together: [panel of rows][column][row of the panel].
inline std::int64_t gather_active(const WeightProductTask& task, std::int64_t block, std::int64_t panels,
                                  float* const* rows_of_weight, float** out) {
    const std::int64_t panel_stride = task.panel_columns * kPanelRows;
    std::int64_t list[kWeightColumns];
    std::int64_t count = 0;
    for (std::int64_t c = task.column_begin; c < task.column_end; ++c) {
        const std::uint8_t* active = task.active + block / kPanelRows * task.panel_columns + c;
        bool any = false;
        for (std::int64_t p = 0; p < panels; ++p) any = any || active[p * task.panel_columns] != 0;
        if (!any) continue;
        out[count] = rows_of_weight[c - task.column_begin];
        list[count++] = c;
    }
    const float* gradient = task.gradient + block * task.panel_columns;
    for (std::int64_t p = 0; p < panels; ++p)
        for (std::int64_t i = 0; i < count; ++i)
            for (std::int64_t lane = 0; lane < kPanelRows; lane += kLanes)
                store(task.gathered + (p * count + i) * kPanelRows + lane,
                      load(gradient + p * panel_stride + list[i] * kPanelRows + lane));
    return count;
}

// The weight's gradient when all columns take part: at each panel of hidden columns all blocks of rows, so that what
// they add to stays in the first cache.
inline void dense_weight_product(const WeightProductTask& task, float* const* rows_of_weight) {
    const Chunk& chunk = *task.chunk;
    const std::int64_t hidden = chunk.problem->depth();
    for (std::int64_t h = 0; h < hidden; h += kPanelRows)
        for (std::int64_t block = 0; block < chunk.rows; block += kBlock)
            block_columns_product({task.hidden_panels + block * padded_hidden(hidden),
                                   task.gradient + block * task.panel_columns + task.column_begin * kPanelRows,
                                   task.panel_columns * kPanelRows, Grid::least(kBlock, chunk.rows - block),
                                   task.column_end - task.column_begin, rows_of_weight, task.first && block == 0},
                                  h, hidden);
}

// The weight's gradient when most columns' gradients are 0 in a block of rows, and are left out there.
inline void filtered_weight_product(const WeightProductTask& task, float* const* rows_of_weight) {
    const Chunk& chunk = *task.chunk;
    const std::int64_t hidden = chunk.problem->depth();
    float* active_rows[kWeightColumns];
    if (task.first)
        for (std::int64_t c = 0; c < task.column_end - task.column_begin; ++c)
            std::memset(rows_of_weight[c], 0, static_cast<std::size_t>(hidden) * sizeof(float));
    for (std::int64_t block = 0; block < chunk.rows; block += kBlock) {
        const std::int64_t rows = Grid::least(kBlock, chunk.rows - block);
        const std::int64_t count =
            gather_active(task, block, Grid::ceil_div(rows, kPanelRows), rows_of_weight, active_rows);
        for (std::int64_t h = 0; h < hidden; h += kPanelRows)
            block_columns_product({task.hidden_panels + block * padded_hidden(hidden), task.gathered,
                                   count * kPanelRows, rows, count, active_rows, false},
                                  h, hidden);
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
    if (task.active != nullptr)
        filtered_weight_product(task, rows_of_weight);
    else
        dense_weight_product(task, rows_of_weight);
    if (armed(Trap::weight_gradient_in_16_bits))
        for (std::int64_t c = 0; c < columns; ++c) through_bf16(rows_of_weight[c], hidden);
}

}  // namespace steadysum::STEADYSUM_ISA
