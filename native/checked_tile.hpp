// One tile of a verified run: its logits' sums are compared with what the checksums of weight let expect, some of its
// partials are taken twice, and each partial gets a digest. A tile in doubt is computed again; what stays in doubt is
// judged in double precision, element by element, from the caller's operands (docs/verify.md).
#pragma once

#include <bit>
#include <vector>

#include "checksum.hpp"
#include "tile.hpp"

namespace steadysum::STEADYSUM_ISA {

// The expected checksums: packed input times the weight's checksum columns, as if those were vocabulary columns.
inline void expect(const TileTask& task, std::int64_t tiles) {
    const Chunk& chunk = *task.chunk;
    const std::int64_t hidden = chunk.problem->depth();
    const std::int64_t columns = kChecksums * tiles;
    Problem problem;
    problem.input = chunk.problem->input;
    problem.weight = {chunk.checks->verification->weight->columns, DType::f32, columns, hidden, hidden, 1};
    Chunk of_checksums = chunk;
    of_checksums.problem = &problem;
    const bool few = takes_few_rows(chunk.problem->weight, chunk.rows);
    for (std::int64_t begin = 0; begin < columns; begin += kTileColumns) {
        TileTask part = task;
        part.chunk = &of_checksums;
        part.span = {0, begin, Grid::least(begin + kTileColumns, columns)};
        const std::int64_t width = part.span.end - begin;
        if (few)
            multiply_few_rows(part, width);
        else
            multiply_panels(part, width);
        for (std::int64_t row = task.row_begin; row < task.row_end; row += kPanelRows)
            for (std::int64_t c = 0; c < width; ++c)
                for (std::int64_t lane = 0; lane < kPanelRows; lane += kLanes)
                    store(chunk.checks->expected + (begin + c) * chunk.padded_rows + row + lane,
                          load(task.logits + (row - task.row_begin) * task.panel_columns + c * kPanelRows + lane));
    }
}

// ---- Digests of partials ----

// One-to-one in each argument, so that a change of one word always shows.
inline std::uint32_t stir(std::uint32_t digest, std::uint32_t word) {
    digest = (digest ^ word) * 0x85EBCA6BU;  // of MurmurHash3's finalizer
    return digest ^ (digest >> 15);
}

// Of the partial as it lies in memory, its place, the call, and the target's logit where that lies in this tile.
inline std::uint32_t digest_of_partial(const Chunk& chunk, std::int64_t tile, const TileSpan& span, std::int64_t row) {
    const Problem& problem = *chunk.problem;
    const std::int64_t at = tile * chunk.padded_rows + row;
    const std::int64_t in_problem = chunk.row_begin + row;
    std::uint32_t digest = stir(chunk.checks->verification->epoch, static_cast<std::uint32_t>(tile));
    digest = stir(digest, static_cast<std::uint32_t>(in_problem));
    digest = stir(digest, std::bit_cast<std::uint32_t>(chunk.max[at]));
    digest = stir(digest, std::bit_cast<std::uint32_t>(chunk.sum[at]));
    if (chunk.carried != nullptr) digest = stir(digest, std::bit_cast<std::uint32_t>(chunk.carried[at]));
    if (problem.target_logit != nullptr) {
        const std::int64_t target = problem.target[in_problem];
        if (target >= span.begin && target < span.end)
            digest = stir(digest, std::bit_cast<std::uint32_t>(problem.target_logit[in_problem]));
    }
    return digest;
}

inline std::int64_t first_damaged_partial(const Chunk& chunk, std::int64_t tile, std::int64_t begin, std::int64_t end) {
    const TileSpan span = chunk.problem->grid().tile(tile);
    for (std::int64_t row = begin; row < end; ++row)
        if (digest_of_partial(chunk, tile, span, row) != chunk.checks->partial_digest[tile * chunk.padded_rows + row])
            return row;
    return end;
}

// ---- What may be wrong with some rows ----

// Of a vector of rows: a bit each.
struct Doubt {
    unsigned product = 0;
    unsigned statistics = 0;
};

inline unsigned differing(Vec a, Vec b) {
    std::uint32_t x[kLanes];
    std::uint32_t y[kLanes];
    std::memcpy(x, &a, sizeof x);
    std::memcpy(y, &b, sizeof y);
    unsigned rows = 0;
    for (int r = 0; r < kLanes; ++r) rows |= x[r] != y[r] ? 1U << r : 0U;
    return rows;
}

// The rows whose checksum is further off than rounding explains.
inline unsigned rows_off(const TileTask& task, const Threshold& threshold, std::int64_t row, const Checksum& sum) {
    const Chunk& chunk = *task.chunk;
    const Verification& verification = *chunk.checks->verification;
    const float w_scale = verification.weight->inverse_scale[task.tile];
    if (w_scale == 0.0F) return 0;
    const Residual plain = residual_of(chunk, threshold, task.tile, 0, row, sum.plain);
    const Residual placed = residual_of(chunk, threshold, task.tile, 1, row, sum.placed);
    const auto within = [](const Residual& r) { return (r.square < r.threshold) | (r.square == r.threshold); };
    const unsigned fine = bits(within(plain)) & bits(within(placed));
    const unsigned unknown = bits(load(chunk.checks->inverse_scale + row) == zero());
    if (verification.ratios != nullptr) {
        float lanes[kLanes];
        const Vec ratio = loose_max(plain.square / plain.threshold, placed.square / placed.threshold);
        store(lanes, select(plain.threshold == zero(), zero(), ratio));
        float* to = verification.ratios + task.tile * chunk.problem->rows() + chunk.row_begin + row;
        for (std::int64_t r = 0; r < kLanes && row + r < chunk.rows; ++r) to[r] = lanes[r];
    }
    return ~(fine | unknown) & ((1U << static_cast<unsigned>(kLanes - 1) << 1) - 1U);
}

// Rows whose sum can't be one: between 1 (the maximum's own term) and the number of columns, but for rounding.
inline unsigned impossible(const Partial& p, std::int64_t columns) {
    const Mask open = unordered(p.sum, p.sum) | (p.max == set1(kInfinity)) | (p.max == set1(-kInfinity));
    const Mask out = (p.sum < set1(0.999F)) | (set1(static_cast<float>(columns) * 1.001F) < p.sum);
    return bits(out) & ~bits(open);
}

// Whether a vector of rows has its partial taken twice, in this call. All of them have, where the tile is in doubt.
inline constexpr std::uint32_t kSampledOneIn = 32;
inline bool is_sampled(const TileTask& task, std::int64_t row) {
    const std::uint32_t place = stir(static_cast<std::uint32_t>(task.tile), static_cast<std::uint32_t>(row / kLanes));
    return stir(place, task.chunk->checks->verification->epoch) % kSampledOneIn == 0;
}

// Products to logits as in `apply`, and the checksums of both.
inline void apply_checked(const TileEpilogue& e, float* logits, std::int64_t columns, Checksum& of_products,
                          Checksum& of_logits) {
    const std::int64_t whole = columns / kAccumulators * kAccumulators;
    for (std::int64_t a = 0; a < kAccumulators; a += kGroup)
        for (std::int64_t c = a; c < whole; c += kAccumulators) {
            Vec z[kGroup];
            for (std::int64_t i = 0; i < kGroup; ++i) z[i] = load(logits + (c + i) * kPanelRows);
            of_products.add_group(c, z);
            for (std::int64_t i = 0; i < kGroup; ++i) {
                z[i] = logit_of(e, c + i, z[i]);
                store(logits + (c + i) * kPanelRows, z[i]);
            }
            of_logits.add_group(c, z);
        }
    for (std::int64_t c = whole; c < columns; ++c) {
        Vec z = load(logits + c * kPanelRows);
        of_products.add(c, z);
        z = logit_of(e, c, z);
        store(logits + c * kPanelRows, z);
        of_logits.add(c, z);
    }
}

// The last look at a row of products, against double precision and a bound that no rounding exceeds: whether a logit is
// wrong. Operands come from the caller; x, w: H floats of scratch each.
inline bool row_is_wrong(const TileTask& task, std::int64_t row, std::int64_t columns, const float* products, float* x,
                         float* w) {
    const Problem& problem = *task.chunk->problem;
    const std::int64_t hidden = problem.depth();
    const std::int64_t steps = Grid::least(hidden, kBlock) + Grid::ceil_div(hidden, kBlock) + 1;
    const double unit = static_cast<double>(steps) * 0x1p-24 / (1.0 - static_cast<double>(steps) * 0x1p-24);
    read_row(problem.input, task.chunk->row_begin + row, x);
    for (std::int64_t c = 0; c < columns; ++c) {
        read_row(problem.weight, task.span.begin + c, w);
        double exact = 0.0;
        double size = 0.0;
        for (std::int64_t k = 0; k < hidden; ++k) {
            const double term = static_cast<double>(x[k]) * static_cast<double>(w[k]);
            exact += term;
            size += term < 0.0 ? -term : term;
        }
        if (!(size < 3e38)) continue;  // not finite, or too near to the largest number for any bound
        const double off = static_cast<double>(products[c * kPanelRows]) - exact;
        const double bound = unit * size + static_cast<double>(hidden) * 0x1p-149;
        if (!((off < 0.0 ? -off : off) <= bound)) return true;
    }
    return false;
}

inline bool checksums_are_stale(const TileTask& task) {
    const Problem& problem = *task.chunk->problem;
    const WeightChecksums& known = *task.chunk->checks->verification->weight;
    const std::int64_t hidden = problem.depth();
    const std::int64_t blocks = Grid::ceil_div(hidden, kBlock);
    const auto floats = static_cast<std::size_t>(kChecksums * hidden);
    std::vector<float> columns(floats);
    std::vector<float> energies(static_cast<std::size_t>(kChecksums * blocks));
    std::vector<double> scratch(static_cast<std::size_t>(checksum_scratch_doubles(hidden)));
    float scale = 0.0F;
    weight_checksums(problem, task.span, 0, scratch.data(), {columns.data(), energies.data(), &scale});
    return std::memcmp(columns.data(), known.columns + kChecksums * task.tile * hidden, floats * sizeof(float)) != 0;
}

// What may be wrong in one vector of rows.
struct RowsInDoubt {
    std::int64_t row;
    Doubt doubt;
};

// ---- The tile ----

// From products to stored partials; returns the rows in doubt.
inline std::vector<RowsInDoubt> finish(const TileTask& task, std::int64_t columns, TaskEpilogue& own, bool all_twice) {
    const Chunk& chunk = *task.chunk;
    const Problem& problem = *chunk.problem;
    const Epilogue& epilogue = problem.epilogue;
    const Threshold threshold = threshold_for(problem.depth());
    std::vector<RowsInDoubt> doubts;
    for (std::int64_t row = task.row_begin; row < task.row_end; row += kPanelRows) {
        float* logits = task.logits + (row - task.row_begin) * task.panel_columns;
        constexpr std::int64_t kVectors = kPanelRows / kLanes;
        Checksum of_products[kVectors];
        Checksum of_logits[kVectors];
        strike(Target::logit, logits, columns * kPanelRows);
        if (!epilogue.trivial())
            for (std::int64_t v = 0; v < kVectors && row + v * kLanes < chunk.rows; ++v) {
                const std::int64_t present = Grid::least(kLanes, chunk.rows - row - v * kLanes);
                if (epilogue.temperature != nullptr)
                    load_temperature(epilogue, chunk.row_begin + row + v * kLanes, present, own.temperature);
                apply_checked(own.of_tile, logits + v * kLanes, columns, of_products[v], of_logits[v]);
            }
        strike(Target::late_logit, logits, columns * kPanelRows);
        // Before the last pass over the logits: what this takes, that sees.
        if (problem.target_logit != nullptr) pick_targets(task, row, columns, logits);
        if (problem.logits != nullptr) write_logits(task, row, columns, logits);
        for (std::int64_t v = 0; v < kVectors && row + v * kLanes < chunk.rows; ++v) {
            const std::int64_t first = row + v * kLanes;
            const std::int64_t present = Grid::least(kLanes, chunk.rows - first);
            const unsigned existing = (1U << static_cast<unsigned>(present)) - 1U;
            Checksum seen;
            Doubt doubt;
            if (chunk.max != nullptr) {
                const Partial p = partial(problem, logits + v * kLanes, columns, present, seen);
                if (columns > 0) doubt.statistics |= impossible(p, columns);
                if (all_twice || is_sampled(task, first)) {
                    asm volatile("" ::: "memory");  // a compiler knows that the second is the first
                    Checksum again;
                    const Partial q = partial(problem, logits + v * kLanes, columns, present, again);
                    doubt.statistics |=
                        differing(p.max, q.max) | differing(p.sum, q.sum) | differing(p.carried, q.carried);
                }
                store_partial(task, first, p);
                for (std::int64_t r = 0; r < present; ++r)
                    chunk.checks->partial_digest[task.tile * chunk.padded_rows + first + r] =
                        digest_of_partial(chunk, task.tile, task.span, first + r);
                strike(Target::partial, chunk.max + task.tile * chunk.padded_rows + first, present);
                strike(Target::partial, chunk.sum + task.tile * chunk.padded_rows + first, present);
            } else {
                seen = checksum_of(logits + v * kLanes, columns);
            }
            if (!epilogue.trivial())
                doubt.product |=
                    differing(seen.plain, of_logits[v].plain) | differing(seen.placed, of_logits[v].placed);
            if (columns > 0)
                doubt.product |= rows_off(task, threshold, first, epilogue.trivial() ? seen : of_products[v]);
            doubt.product &= existing;
            doubt.statistics &= existing;
            if ((doubt.product | doubt.statistics) != 0) doubts.push_back({first, doubt});
        }
    }
    return doubts;
}

// Products that are in doubt for the second time: each row of which is judged. Marks those that are right.
inline void judge(const TileTask& task, std::int64_t columns, std::vector<std::uint8_t>& right) {
    const Chunk& chunk = *task.chunk;
    CheckLog& log = *chunk.checks->verification->log;
    const Threshold threshold = threshold_for(chunk.problem->depth());
    std::vector<float> scratch(static_cast<std::size_t>(2 * chunk.problem->depth()));
    float* const x = scratch.data();
    for (std::int64_t row = task.row_begin; row < task.row_end && row < chunk.rows; row += kLanes) {
        const std::int64_t lane = (row - task.row_begin) % kPanelRows;
        const float* products = task.logits + (row - task.row_begin - lane) * task.panel_columns + lane;
        unsigned off = rows_off(task, threshold, row, checksum_of(products, columns));
        for (; off != 0; off &= off - 1) {
            const int r = std::countr_zero(off);
            if (row + r >= chunk.rows) continue;
            if (row_is_wrong(task, row + r, columns, products + r, x, x + chunk.problem->depth())) continue;
            right[static_cast<std::size_t>(row + r - task.row_begin)] = 1;
            log.cleared.fetch_add(1);
        }
    }
}

inline void compute_checked_tile(const TileTask& task) {
    const Chunk& chunk = *task.chunk;
    CheckLog& log = *chunk.checks->verification->log;
    const std::int64_t columns = chunk.problem->unmasked(task.span);
    TaskEpilogue own(task, columns);
    if (columns > 0) log.checks.fetch_add(Grid::least(task.row_end, chunk.rows) - task.row_begin);
    std::vector<std::uint8_t> right;  // by row: its products were judged, and are
    Stage stage = Stage::product;     // of the first doubt
    bool product = false;
    constexpr int kAttempts = 3;
    for (int attempt = 0; attempt < kAttempts; ++attempt) {
        if (log.hopeless()) return;
        multiply(task, columns);
        const bool last = attempt == kAttempts - 1;
        if (last && product) {
            // Of damaged input nothing can be said; the run finds it, and packs and computes all of its rows again.
            if (first_damaged_row(chunk, task.row_begin, task.row_end) != task.row_end) return;
            if (checksums_are_stale(task)) {
                log.stale.store(true);
                return;
            }
            right.assign(static_cast<std::size_t>(task.row_end - task.row_begin), 0);
            judge(task, columns, right);
        }
        std::vector<RowsInDoubt> doubts = finish(task, columns, own, attempt > 0);
        if (unhealed()) return;
        bool statistics = false;
        product = false;
        for (RowsInDoubt& d : doubts) {
            for (int r = 0; r < kLanes && !right.empty(); ++r)
                if (d.row + r < task.row_end && right[static_cast<std::size_t>(d.row + r - task.row_begin)] != 0)
                    d.doubt.product &= ~(1U << r);
            product = product || d.doubt.product != 0;
            statistics = statistics || d.doubt.statistics != 0;
        }
        if (!product && !statistics) {
            // Where a row was right all along, its checksum's own rounding was too large: nothing was healed.
            if (attempt > 0 && right.empty()) log.healed[static_cast<int>(stage)].fetch_add(1);
            return;
        }
        if (attempt == 0) stage = product ? Stage::product : Stage::statistics;
        if (!last) continue;
        for (const RowsInDoubt& d : doubts)
            for (int r = 0; r < kLanes; ++r)
                if (((d.doubt.product | d.doubt.statistics) >> r & 1U) != 0)
                    log.add({(d.doubt.product >> r & 1U) != 0 ? Stage::product : Stage::statistics, chunk.problem,
                             chunk.row_begin + d.row + r, task.tile});
    }
}

}  // namespace steadysum::STEADYSUM_ISA
