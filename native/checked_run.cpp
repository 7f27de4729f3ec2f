#include "checked_run.hpp"

#include <algorithm>
#include <atomic>
#include <vector>

#include "pool.hpp"
#include "strikes.hpp"

namespace steadysum {
namespace {

constexpr std::int64_t kMeasureRows = 64;
constexpr int kAttempts = 3;

// Of a chunk's packed input, that isn't what the caller's matrix has; padded_rows: there is none.
std::int64_t first_damaged_row(const TileKernel& kernel, const Chunk& chunk, int threads) {
    std::atomic<std::int64_t> first{chunk.padded_rows};
    const std::int64_t rows = round_up(kMeasureRows, kernel.panel_rows);
    share(threads, Grid::ceil_div(chunk.padded_rows, rows), [&](std::int64_t i, int) {
        const std::int64_t end = std::min((i + 1) * rows, chunk.padded_rows);
        const std::int64_t found = kernel.first_damaged_row(chunk, i * rows, end);
        if (found == end) return;
        std::int64_t least = first.load();
        while (found < least && !first.compare_exchange_weak(least, found)) {
        }
    });
    return first.load();
}

}  // namespace

void pack_rows(const TileKernel& kernel, const Chunk& chunk, std::int64_t begin, std::int64_t end, float* packed) {
    kernel.pack_input(*chunk.problem, chunk.row_begin, chunk.rows, begin, end, packed);
    if (chunk.checks == nullptr) return;
    std::vector<float> row(static_cast<std::size_t>(chunk.problem->depth()));
    kernel.measure_input(chunk, begin * kernel.panel_rows, std::min(end * kernel.panel_rows, chunk.padded_rows),
                         row.data());
}

void expect_checksums(const TileKernel& kernel, const Chunk& chunk, std::int64_t tiles, float* scratch,
                      std::int64_t scratch_floats, int threads) {
    const std::int64_t rows = round_up(kExpectRows, kernel.panel_rows);
    share(threads, Grid::ceil_div(chunk.padded_rows, rows), [&](std::int64_t i, int participant) {
        float* logits = scratch + scratch_floats * participant;
        const std::int64_t begin = i * rows;
        const std::int64_t end = std::min(begin + rows, chunk.padded_rows);
        kernel.expect({&chunk, 0, {0, 0, 0}, begin, end, logits, kTileColumns, logits + (end - begin) * kTileColumns},
                      tiles);
    });
}

void compute_until_intact(const TileKernel& kernel, const std::vector<const Chunk*>& chunks, int threads,
                          const std::function<void()>& compute) {
    CheckLog& log = *chunks.front()->checks->verification->log;
    for (int attempt = 0; attempt < kAttempts; ++attempt) {
        compute();
        if (log.hopeless()) return;
        bool intact = true;
        for (const Chunk* chunk : chunks) {
            const std::int64_t row = first_damaged_row(kernel, *chunk, threads);
            if (row == chunk->padded_rows || unhealed()) continue;
            intact = false;
            if (attempt == kAttempts - 1) log.add({Stage::input, chunk->problem, chunk->row_begin + row, 0});
        }
        if (intact && attempt > 0) log.healed[static_cast<int>(Stage::input)].fetch_add(1);
        if (intact) return;
    }
}

void heal_partials(const TileKernel& kernel, const Chunk& chunk, const Grid& grid, std::int64_t begin, std::int64_t end,
                   const Again& again) {
    if (unhealed()) return;
    CheckLog& log = *chunk.checks->verification->log;
    const std::int64_t panels = Grid::ceil_div(end - begin, kernel.panel_rows);
    for (std::int64_t tile = 0; tile < grid.tiles(); ++tile) {
        std::int64_t row = kernel.first_damaged_partial(chunk, tile, begin, end);
        if (row == end) continue;
        for (std::int64_t attempt = 0; attempt < panels + kAttempts && row != end && !log.hopeless(); ++attempt) {
            again(tile, row);
            row = kernel.first_damaged_partial(chunk, tile, begin, end);
        }
        if (log.hopeless()) return;
        if (row != end)
            log.add({Stage::partial, chunk.problem, chunk.row_begin + row, tile});
        else
            log.healed[static_cast<int>(Stage::partial)].fetch_add(1);
    }
}

}  // namespace steadysum
