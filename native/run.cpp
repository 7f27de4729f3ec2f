#include "run.hpp"

#include <algorithm>

#include "checked_run.hpp"
#include "dispatch.hpp"
#include "fpenv.hpp"
#include "pool.hpp"
#include "workspace.hpp"

namespace steadysum {
namespace {

// Memory bounds of one wave: packed input, and partials.
constexpr std::int64_t kPackedFloats = std::int64_t{6} << 20;   // 24 MiB
constexpr std::int64_t kPartialFloats = std::int64_t{4} << 20;  // 16 MiB
constexpr std::int64_t kLeastChunkRows = 64;
// Rows that share one packing of a weight block. More amortise it better, fewer keep a tile's logits in cache.
constexpr std::int64_t kTaskRows = 512;

// A chunk of one problem and its grid.
struct Unit {
    Grid grid;
    Chunk chunk;
    const Verification* verification = nullptr;  // nullptr: not verified
    ChunkChecks checks{};
};

struct Part {  // a task without its scratch memory
    std::int64_t unit;
    std::int64_t tile;
    std::int64_t row_begin;
    std::int64_t row_end;
};

std::int64_t chunk_rows(const Problem& p, std::int64_t tiles, std::int64_t panel_rows, bool verified) {
    const std::int64_t fields = (p.carry() != Carry::none ? 3 : 2) + (verified ? kChecksums + 1 : 0);
    const std::int64_t by_input = kPackedFloats / std::max<std::int64_t>(p.depth(), 1);
    const std::int64_t by_partials = kPartialFloats / (tiles * fields);
    const std::int64_t most = std::max(kLeastChunkRows, std::min(by_input, by_partials));
    const std::int64_t chunks = Grid::ceil_div(p.rows(), most);
    return round_up(Grid::ceil_div(p.rows(), chunks), panel_rows);
}

std::int64_t packed_floats(const Unit& u) { return u.chunk.padded_rows * u.chunk.problem->depth(); }
std::int64_t partial_floats(const Unit& u) {
    return u.grid.tiles() * u.chunk.padded_rows * (u.chunk.problem->carry() != Carry::none ? 3 : 2);
}
std::int64_t check_floats(const Unit& u) {
    if (u.verification == nullptr) return 0;
    return steadysum::check_floats(u.grid.tiles(), u.chunk.padded_rows, u.chunk.problem->depth());
}

// Cuts a wave into parts, large ones first; the last few are quartered so that all threads end together.
std::vector<Part> cut(const std::vector<Unit>& units, int threads, std::int64_t panel_rows) {
    std::int64_t row_tiles = 0;
    for (const Unit& u : units) row_tiles += u.grid.tiles() * u.chunk.padded_rows;
    const std::int64_t wanted = threads == 1 ? 1 : std::int64_t{4} * threads;
    const std::int64_t rows = std::min(kTaskRows, round_up(Grid::ceil_div(row_tiles, wanted), panel_rows));
    std::vector<Part> parts;
    for (std::size_t i = 0; i < units.size(); ++i) {
        const Unit& u = units[i];
        for (std::int64_t tile = 0; tile < u.grid.tiles(); ++tile)
            for (std::int64_t row = 0; row < u.chunk.rows; row += rows)
                parts.push_back({static_cast<std::int64_t>(i), tile, row, std::min(row + rows, u.chunk.padded_rows)});
    }
    const std::int64_t quarter = round_up(Grid::ceil_div(rows, 4), panel_rows);
    if (threads == 1 || quarter >= rows) return parts;
    const std::size_t tail = std::min<std::size_t>(parts.size(), static_cast<std::size_t>(threads) * 2);
    const std::vector<Part> last(parts.end() - static_cast<std::ptrdiff_t>(tail), parts.end());
    parts.resize(parts.size() - tail);
    for (const Part& p : last)
        for (std::int64_t row = p.row_begin; row < p.row_end; row += quarter)
            parts.push_back({p.unit, p.tile, row, std::min(row + quarter, p.row_end)});
    return parts;
}

void run_wave(const TileKernel& kernel, std::vector<Unit>& units, int threads, Workspace& workspace) {
    std::int64_t work = 0;
    for (const Unit& u : units) work += u.chunk.padded_rows * u.chunk.problem->depth() * u.chunk.problem->vocabulary();
    if (work < kSerialWork) threads = 1;

    const std::vector<Part> parts = cut(units, threads, kernel.panel_rows);
    std::int64_t part_rows = 0;
    for (const Part& p : parts) part_rows = std::max(part_rows, p.row_end - p.row_begin);
    const bool verified = units.front().verification != nullptr;
    if (verified) part_rows = std::max(part_rows, round_up(kExpectRows, kernel.panel_rows));
    threads = static_cast<int>(std::min<std::int64_t>(threads, static_cast<std::int64_t>(parts.size())));

    // One reservation: packed inputs, partials, then each participant's scratch.
    const std::int64_t logits_floats = part_rows * kTileColumns;
    const std::int64_t scratch_floats = logits_floats + round_up(kernel.weight_block_floats, 16);
    std::int64_t total = scratch_floats * threads;
    for (const Unit& u : units)
        total += round_up(packed_floats(u), 16) + round_up(partial_floats(u), 16) + round_up(check_floats(u), 16);
    float* memory = workspace.reserve(total);
    float* scratch = memory;
    memory += scratch_floats * threads;
    std::vector<float*> packed(units.size());
    for (std::size_t i = 0; i < units.size(); ++i) {
        Unit& u = units[i];
        packed[i] = memory;
        u.chunk.panels = memory;
        memory += round_up(packed_floats(u), 16);
        const std::int64_t field = u.grid.tiles() * u.chunk.padded_rows;
        u.chunk.max = memory;
        u.chunk.sum = memory + field;
        u.chunk.carried = u.chunk.problem->carry() != Carry::none ? memory + 2 * field : nullptr;
        memory += round_up(partial_floats(u), 16);
        if (!verified) continue;
        u.checks =
            lay_out_checks(*u.verification, u.grid.tiles(), u.chunk.padded_rows, u.chunk.problem->depth(), memory);
        u.chunk.checks = &u.checks;
        memory += round_up(check_floats(u), 16);
    }

    struct Rows {
        std::size_t unit;
        std::int64_t begin;
        std::int64_t end;
    };
    std::vector<Rows> panels;
    std::vector<Rows> folds;
    constexpr std::int64_t kPanelsAtATime = 2;
    constexpr std::int64_t kFoldRows = 256;
    for (std::size_t i = 0; i < units.size(); ++i) {
        const std::int64_t count = units[i].chunk.padded_rows / kernel.panel_rows;
        for (std::int64_t p = 0; p < count; p += kPanelsAtATime)
            panels.push_back({i, p, std::min(p + kPanelsAtATime, count)});
        for (std::int64_t row = 0; row < units[i].chunk.rows; row += kFoldRows)
            folds.push_back({i, row, std::min(row + kFoldRows, units[i].chunk.rows)});
    }

    const auto scratch_of = [&](int participant) { return scratch + scratch_floats * participant; };
    const auto pack = [&] {
        share(threads, static_cast<std::int64_t>(panels.size()), [&](std::int64_t i, int) {
            const Rows& r = panels[static_cast<std::size_t>(i)];
            pack_rows(kernel, units[r.unit].chunk, r.begin, r.end, packed[r.unit]);
        });
    };
    const auto compute = [&](auto&& compute_tile) {
        share(threads, static_cast<std::int64_t>(parts.size()), [&](std::int64_t i, int participant) {
            const Part& p = parts[static_cast<std::size_t>(i)];
            const Unit& u = units[static_cast<std::size_t>(p.unit)];
            float* logits = scratch_of(participant);
            compute_tile(TileTask{&u.chunk, p.tile, u.grid.tile(p.tile), p.row_begin, p.row_end, logits, kTileColumns,
                                  logits + logits_floats});
        });
    };
    const auto fold = [&](auto&& before) {
        share(threads, static_cast<std::int64_t>(folds.size()), [&](std::int64_t i, int participant) {
            const Rows& r = folds[static_cast<std::size_t>(i)];
            before(units[r.unit], r.begin, r.end, participant);
            kernel.fold(units[r.unit].chunk, units[r.unit].grid, r.begin, r.end);
        });
    };
    if (!verified) {
        pack();
        compute(kernel.compute_tile);
        fold([](const Unit&, std::int64_t, std::int64_t, int) {});
        return;
    }

    std::vector<const Chunk*> chunks;
    for (const Unit& u : units) chunks.push_back(&u.chunk);
    compute_until_intact(kernel, chunks, threads, [&] {
        pack();
        for (const Unit& u : units) expect_checksums(kernel, u.chunk, u.grid.tiles(), scratch, scratch_floats, threads);
        compute(kernel.compute_checked_tile);
    });
    if (units.front().verification->log->hopeless()) return;
    fold([&](const Unit& u, std::int64_t begin, std::int64_t end, int participant) {
        heal_partials(kernel, u.chunk, u.grid, begin, end, [&](std::int64_t tile, std::int64_t row) {
            float* logits = scratch_of(participant);
            const std::int64_t panel = row / kernel.panel_rows * kernel.panel_rows;
            kernel.compute_checked_tile({&u.chunk, tile, u.grid.tile(tile), panel, panel + kernel.panel_rows, logits,
                                         kTileColumns, logits + logits_floats});
        });
    });
}

}  // namespace

namespace {

// verifications: one per problem, or empty.
void run_waves(const std::vector<Problem>& problems, const std::vector<Verification>& verifications, int threads) {
    thread_local Workspace workspace;
    const TileKernel& kernel = current_kernel();
    const std::int64_t panel_rows = kernel.panel_rows;
    std::vector<Unit> wave;
    std::int64_t packed = 0;
    std::int64_t partials = 0;
    const auto flush = [&] {
        if (!wave.empty()) run_wave(kernel, wave, threads, workspace);
        wave.clear();
        packed = partials = 0;
    };
    for (std::size_t i = 0; i < problems.size(); ++i) {
        const Problem& p = problems[i];
        const Verification* verification = verifications.empty() ? nullptr : &verifications[i];
        if (p.rows() == 0) continue;
        const Grid grid = p.grid();
        const std::int64_t rows = chunk_rows(p, grid.tiles(), panel_rows, verification != nullptr);
        for (std::int64_t row = 0; row < p.rows(); row += rows) {
            const std::int64_t here = std::min(rows, p.rows() - row);
            const Unit unit{
                grid, {&p, row, here, round_up(here, panel_rows), nullptr, nullptr, nullptr, nullptr}, verification};
            const std::int64_t kept = partial_floats(unit) + check_floats(unit);
            if (packed + packed_floats(unit) > kPackedFloats || partials + kept > kPartialFloats) flush();
            packed += packed_floats(unit);
            partials += kept;
            wave.push_back(unit);
        }
    }
    flush();
    workspace.trim();
}

}  // namespace

void run(const std::vector<Problem>& problems, int threads) { run_waves(problems, {}, threads); }

void run_verified(const std::vector<Problem>& problems, const std::vector<Verification>& verifications, int threads) {
    run_waves(problems, verifications, threads);
}

void take_weight_checksums(const Problem& problem, const WeightChecksums& out, int threads) {
    const TileKernel& kernel = current_kernel();
    const Grid grid = problem.grid();
    if (problem.depth() * problem.vocabulary() < kSerialWork / 16) threads = 1;
    share(threads, grid.tiles(), [&](std::int64_t tile, int) {
        std::vector<double> scratch(static_cast<std::size_t>(checksum_scratch_doubles(problem.depth())));
        kernel.weight_checksums(problem, grid.tile(tile), tile, scratch.data(), out);
    });
}

void run_softmax(float* logits, std::int64_t rows, std::int64_t columns, const float* max, const float* sum,
                 int threads) {
    const TileKernel& kernel = current_kernel();
    if (rows * columns < kSerialWork / 16) threads = 1;
    const std::int64_t together = std::max<std::int64_t>(1, (std::int64_t{1} << 16) / columns);
    share(threads, Grid::ceil_div(rows, together), [&](std::int64_t i, int) {
        kernel.softmax(logits, columns, max, sum, i * together, std::min((i + 1) * together, rows));
    });
}

}  // namespace steadysum
