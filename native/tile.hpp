// One tile, start to end: pack a block of weight, multiply every panel by it, repeat over the reduction index, then
// take the statistics; and the fold of all tiles' partials.
#pragma once

#include "few_rows.hpp"
#include "pack.hpp"
#include "product.hpp"
#include "some_lanes.hpp"
#include "statistics.hpp"
#include "tile_kernel.hpp"

namespace steadysum::STEADYSUM_ISA {

// Columns of weight packed at a time: 126 x 576 bytes stay in the second-level cache while all panels pass over them.
// A remainder of up to 14 more is taken along.
inline constexpr std::int64_t kBlockColumns = 126;
inline constexpr std::int64_t kBlockColumnsMost = kBlockColumns + 14;

inline void pack_input(const Problem& problem, std::int64_t chunk_begin, std::int64_t chunk_rows,
                       std::int64_t panel_begin, std::int64_t panel_end, float* panels) {
    const std::int64_t padded = Grid::ceil_div(chunk_rows, kPanelRows) * kPanelRows;
    with_element(problem.input.dtype, [&](auto e) {
        if (takes_few_rows(problem.weight, chunk_rows)) {
            pack_few_rows<decltype(e)>(problem.input, chunk_begin, chunk_rows, panels);
            return;
        }
        for (std::int64_t panel = panel_begin; panel < panel_end; ++panel)
            for (std::int64_t k = 0; k < problem.depth(); k += kBlock) {
                const std::int64_t depth = Grid::least(kBlock, problem.depth() - k);
                const std::int64_t row = panel * kPanelRows;
                float* to = panels + panel_offset(padded, kPanelRows, k, depth, panel);
                pack_panel<decltype(e)>(problem.input, chunk_begin + row, Grid::least(kPanelRows, chunk_rows - row), k,
                                        depth, to);
                strike(Target::input, to, depth * kPanelRows);
            }
    });
}

// The columns of a tile, cut into blocks of weight.
template <typename F>
inline void for_blocks(std::int64_t columns, std::int64_t at_a_time, std::int64_t at_most, F&& f) {
    for (std::int64_t c = 0; c < columns;) {
        const std::int64_t left = columns - c;
        const std::int64_t width = left <= at_most ? left : at_a_time;
        f(c, width);
        c += width;
    }
}

inline void multiply_block(const TileTask& task, std::int64_t column, std::int64_t width, std::int64_t k) {
    const Chunk& chunk = *task.chunk;
    const std::int64_t depth = Grid::least(kBlock, chunk.problem->depth() - k);
    pack_weight(chunk.problem->weight, task.span.begin + column, width, k, depth, task.weight_block);
    strike(Target::weight, task.weight_block, width * kBlockStride);
    for (std::int64_t row = task.row_begin; row < task.row_end; row += kPanelRows) {
        const float* panel = chunk.panels + panel_offset(chunk.padded_rows, kPanelRows, k, depth, row / kPanelRows);
        float* logits = task.logits + (row - task.row_begin) * task.panel_columns + column * kPanelRows;
        if (chunk.rows - row <= kLanes)
            panel_product<1>(panel, task.weight_block, width, depth, k == 0, logits);
        else
            panel_product<2>(panel, task.weight_block, width, depth, k == 0, logits);
    }
}

// By panels, as they were packed.
inline void multiply_panels(const TileTask& task, std::int64_t columns) {
    const std::int64_t depth = task.chunk->problem->depth();
    if (task.row_end - task.row_begin <= kPanelRows) {
        // Few rows: weight is used once, so stream it along its own rows.
        for_blocks(columns, kNarrowColumns, kNarrowColumns, [&](std::int64_t column, std::int64_t width) {
            for (std::int64_t k = 0; k == 0 || k < depth; k += kBlock) multiply_block(task, column, width, k);
        });
        return;
    }
    for (std::int64_t k = 0; k == 0 || k < depth; k += kBlock)  // once even for a depth of 0: logits are zeros then
        for_blocks(columns, kBlockColumns, kBlockColumnsMost,
                   [&](std::int64_t column, std::int64_t width) { multiply_block(task, column, width, k); });
}

inline void multiply_few_rows(const TileTask& task, std::int64_t columns) {
    const Chunk& chunk = *task.chunk;
    for (std::int64_t i = 0; i < columns * kPanelRows; ++i) task.logits[i] = 0.0F;  // of the rows that don't exist
    few_rows_product(chunk.problem->weight, chunk.rows, task.span.begin, columns, chunk.panels, task.logits);
}

inline void multiply(const TileTask& task, std::int64_t columns) {
    if (takes_few_rows(task.chunk->problem->weight, task.chunk->rows))
        multiply_few_rows(task, columns);
    else
        multiply_panels(task, columns);
}

// Copies a panel's logits to the caller's rows; columns from `columns` to the tile's end are masked.
inline void write_logits(const TileTask& task, std::int64_t row, std::int64_t columns, const float* logits) {
    const Chunk& chunk = *task.chunk;
    const std::int64_t rows = Grid::least(kPanelRows, chunk.rows - row);
    for (std::int64_t r = 0; r < rows; ++r) {
        float* to = chunk.problem->logits + (chunk.row_begin + row + r) * chunk.problem->vocabulary() + task.span.begin;
        for (std::int64_t c = 0; c < columns; ++c) to[c] = logits[c * kPanelRows + r];
        for (std::int64_t c = columns; c < task.span.end - task.span.begin; ++c) to[c] = -kInfinity;
    }
}

inline void pick_targets(const TileTask& task, std::int64_t row, std::int64_t columns, const float* logits) {
    const Chunk& chunk = *task.chunk;
    const std::int64_t rows = Grid::least(kPanelRows, chunk.rows - row);
    for (std::int64_t r = 0; r < rows; ++r) {
        const std::int64_t column = chunk.problem->target[chunk.row_begin + row + r] - task.span.begin;
        if (column >= 0 && column < columns)
            chunk.problem->target_logit[chunk.row_begin + row + r] = logits[column * kPanelRows + r];
    }
}

inline void store_partial(const TileTask& task, std::int64_t row, const Partial& p) {
    if (armed(Trap::stale_partial) && task.tile == 0) return;
    const Chunk& chunk = *task.chunk;
    const std::int64_t at = task.tile * chunk.padded_rows + row;
    store(chunk.max + at, p.max);
    store(chunk.sum + at, p.sum);
    if (chunk.carried != nullptr) store(chunk.carried + at, p.carried);
}

template <typename Sum>
inline Partial partial(const Problem& problem, const float* logits, std::int64_t columns, std::int64_t present,
                       Sum& checksum) {
    switch (problem.carry()) {
        case Carry::weighted: return tile_partial<Carry::weighted>(logits, columns, present, checksum);
        case Carry::ties: return tile_partial<Carry::ties>(logits, columns, present, checksum);
        default: return tile_partial<Carry::none>(logits, columns, present, checksum);
    }
}

// The epilogue of a task, and the memory that it points into.
struct TaskEpilogue {
    float bias[kTileColumns];
    float temperature[kLanes];
    TileEpilogue of_tile{};

    TaskEpilogue(const TileTask& task, std::int64_t columns) {
        const Epilogue& epilogue = task.chunk->problem->epilogue;
        if (epilogue.bias.data != nullptr)
            for (std::int64_t c = 0; c < columns; ++c) bias[c] = read(epilogue.bias, task.span.begin + c);
        of_tile = {epilogue.bias.data != nullptr ? bias : nullptr, epilogue.scale, epilogue.softcap,
                   epilogue.temperature != nullptr ? temperature : nullptr};
        if (armed(Trap::bias_once_per_block) && epilogue.bias.data != nullptr) {
            const auto blocks = static_cast<float>(Grid::ceil_div(task.chunk->problem->depth(), kBlock));
            for (std::int64_t c = 0; c < columns; ++c) bias[c] *= blocks;
        }
    }
    TaskEpilogue(const TaskEpilogue&) = delete;
    TaskEpilogue& operator=(const TaskEpilogue&) = delete;
};

inline void compute_tile(const TileTask& task) {
    const Chunk& chunk = *task.chunk;
    const Problem& problem = *chunk.problem;
    const Epilogue& epilogue = problem.epilogue;
    const std::int64_t columns = problem.unmasked(task.span);
    multiply(task, columns);
    TaskEpilogue own(task, columns);
    NoChecksum none;

    for (std::int64_t row = task.row_begin; row < task.row_end; row += kPanelRows) {
        float* logits = task.logits + (row - task.row_begin) * task.panel_columns;
        for (std::int64_t lane = 0; lane < kPanelRows && row + lane < chunk.rows; lane += kLanes) {
            const std::int64_t present = Grid::least(kLanes, chunk.rows - row - lane);
            if (!epilogue.trivial()) {
                if (epilogue.temperature != nullptr)
                    load_temperature(epilogue, chunk.row_begin + row + lane, present, own.temperature);
                apply(own.of_tile, logits + lane, columns);
            }
            std::int64_t summed = columns;
            if (armed(Trap::tail_counts_as_zero)) {
                for (std::int64_t c = columns; c < task.panel_columns; ++c)
                    store(logits + c * kPanelRows + lane, zero());
                summed = task.panel_columns;
            }
            if (chunk.max != nullptr)
                store_partial(task, row + lane, partial(problem, logits + lane, summed, present, none));
        }
        if (problem.target_logit != nullptr) pick_targets(task, row, columns, logits);
        if (problem.logits != nullptr) write_logits(task, row, columns, logits);
    }
}

template <Carry C>
inline Partial load_partial(const Chunk& chunk, std::int64_t tile, std::int64_t row) {
    const std::int64_t at = tile * chunk.padded_rows + row;
    return {load(chunk.max + at), load(chunk.sum + at), C != Carry::none ? load(chunk.carried + at) : zero()};
}

template <Carry C>
inline Partial fold_rows(const Chunk& chunk, const Grid& grid, std::int64_t row) {
    Partial leaves[kSegments];
    bool present[kSegments] = {};
    for (std::int64_t segment = 0; segment < grid.segments(); ++segment) {
        Partial p = load_partial<C>(chunk, grid.first_tile(segment), row);
        for (std::int64_t tile = grid.first_tile(segment) + 1; tile < grid.end_tile(segment); ++tile)
            p = merge<C>(p, load_partial<C>(chunk, tile, row));
        leaves[segment] = p;
        present[segment] = true;
    }
    for (std::int64_t n = kSegments / 2; n >= 1; n /= 2)
        for (std::int64_t i = 0; i < n; ++i) {
            // Leaves are absent from the right only (a shard counts its own), so a pair is whole, or its left half,
            // or nothing.
            if (present[2 * i + 1])
                leaves[i] = merge<C>(leaves[2 * i], leaves[2 * i + 1]);
            else
                leaves[i] = leaves[2 * i];
            present[i] = present[2 * i];
        }
    return leaves[0];
}

inline void fold(const Chunk& chunk, const Grid& grid, std::int64_t row_begin, std::int64_t row_end) {
    const Problem& problem = *chunk.problem;
    for (std::int64_t row = row_begin; row < row_end; row += kLanes) {
        const std::int64_t count = Grid::least(kLanes, row_end - row);
        Partial p;
        switch (problem.carry()) {
            case Carry::weighted: p = fold_rows<Carry::weighted>(chunk, grid, row); break;
            case Carry::ties: p = fold_rows<Carry::ties>(chunk, grid, row); break;
            default: p = fold_rows<Carry::none>(chunk, grid, row); break;
        }
        store_some(problem.max + chunk.row_begin + row, p.max, count);
        store_some(problem.sum_exp + chunk.row_begin + row, p.sum, count);
        if (chunk.carried != nullptr) store_some(problem.carried() + chunk.row_begin + row, p.carried, count);
    }
}

}  // namespace steadysum::STEADYSUM_ISA
