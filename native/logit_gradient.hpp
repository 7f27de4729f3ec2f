// The gradient of a tile's logits, formed in the place of the logits from coefficients per row, and taken back through
// temperature, softcap and scale; and the sums over a row that some losses need first (docs/bits.md, "Gradients").
#pragma once

#include "pack.hpp"
#include "some_lanes.hpp"
#include "statistics.hpp"
#include "tile_kernel.hpp"

namespace steadysum::STEADYSUM_ISA {

// The rows of the dense matrix that belong to one panel, its columns under the tile's, as panel[column][row].
inline void pack_dense(const StoredTile& t, std::int64_t row, std::int64_t columns) {
    if (t.dense == nullptr) return;
    const std::int64_t rows = Grid::least(kPanelRows, t.chunk->rows - row);
    with_element(t.dense->dtype,
                 [&](auto e) { pack_panel<decltype(e)>(*t.dense, row, rows, t.span.begin, columns, t.dense_panel); });
}

// What one vector of rows needs to form its gradients; lanes of rows that don't exist hold zeros.
struct RowLanes {
    Vec exists;
    Vec max;
    Vec exp;
    Vec slope;
    Vec center;
    Vec column;
    Vec dense;
    Vec tie;
    Vec keep_above;
    Vec temperature;
};

inline RowLanes load_rows(const FormTask& task, std::int64_t row, std::int64_t present) {
    const RowTerms& terms = *task.terms;
    const Chunk& chunk = *task.stored.chunk;
    const Epilogue& epilogue = chunk.problem->epilogue;
    const auto lanes = [&](const float* from) { return from != nullptr ? load_some(from + row, present) : zero(); };
    float ones[kLanes];
    for (float& one : ones) one = 1.0F;
    RowLanes r{load_some(ones, present), load_some(chunk.problem->max + chunk.row_begin + row, present),
               lanes(terms.exp),         lanes(terms.slope),
               lanes(terms.center),      lanes(terms.column),
               lanes(terms.dense),       lanes(terms.tie),
               lanes(terms.keep_above),  set1(1.0F)};
    if (epilogue.temperature != nullptr) {
        float temperature[kLanes];
        load_temperature(epilogue, chunk.row_begin + row, present, temperature);
        r.temperature = load(temperature);
    }
    return r;
}

// Everything but the target's term: the gradient of the final logit z.
inline Vec entry(const RowTerms& terms, const RowLanes& r, Vec z, Vec column_weight, Vec q) {
    const Vec d = z - r.max;
    const Vec e = exp(d);
    Vec g = zero();
    if (terms.exp != nullptr) {
        if (terms.slope != nullptr)
            g = select(e == zero(), e * r.exp, e * fma(r.slope, d, r.exp));
        else
            g = e * r.exp;
        if (terms.center != nullptr) g = g * (q - r.center);
        if (terms.keep_above != nullptr) g = select(e < r.keep_above, zero(), g);
    }
    if (terms.column != nullptr) g = fma(r.column, column_weight, g);
    if (terms.dense != nullptr) g = fma(r.dense * column_weight, q, g);
    if (terms.tie != nullptr) g = select(z == r.max, g + r.tie, g);
    return g;
}

// From the gradient of the final logit z to that of the product plus bias.
inline Vec through_epilogue(const Epilogue& epilogue, const RowLanes& r, Vec z, Vec g) {
    if (epilogue.temperature != nullptr) g = g / r.temperature;
    if (epilogue.softcap != 0.0F) {
        const Vec capped = epilogue.temperature != nullptr ? z * r.temperature : z;
        const Vec t = capped / set1(epilogue.softcap);
        g = g * fma(zero() - t, t, set1(1.0F));
    }
    if (epilogue.scale != 1.0F) g = g * set1(epilogue.scale);
    return select(r.exists == zero(), zero(), g);
}

// A vector of rows and the columns of its targets, gathered before the logits are overwritten.
struct Targets {
    std::int64_t column[kLanes];  // -1: not in this tile
    bool any = false;
    float logit[kLanes] = {};
    float weight[kLanes] = {};
    float q[kLanes] = {};
};

inline Targets gather_targets(const FormTask& task, std::int64_t row, std::int64_t present, std::int64_t columns,
                              const float* logits, const float* dense) {
    const StoredTile& t = task.stored;
    Targets targets;
    for (std::int64_t r = 0; r < kLanes; ++r) {
        targets.column[r] = -1;
        if (r >= present || task.terms->target == nullptr) continue;
        const std::int64_t column = t.chunk->problem->target[t.chunk->row_begin + row + r] - t.span.begin;
        if (column < 0 || column >= columns) continue;
        targets.column[r] = column;
        targets.any = true;
        targets.logit[r] = logits[column * kPanelRows + r];
        targets.weight[r] = t.column_weight != nullptr ? t.column_weight[t.span.begin + column] : 1.0F;
        targets.q[r] = dense != nullptr ? dense[column * kPanelRows + r] : 0.0F;
    }
    return targets;
}

// bf16 and back, to nearest even: what the traps do to a value that ought to stay in fp32.
inline float through_bf16(float x) {
    std::uint32_t u;
    std::memcpy(&u, &x, sizeof u);
    u = (u + 0x7FFFU + ((u >> 16) & 1U)) & 0xFFFF0000U;
    std::memcpy(&x, &u, sizeof x);
    return x;
}
inline void through_bf16(float* x, std::int64_t size) {
    for (std::int64_t i = 0; i < size; ++i) x[i] = through_bf16(x[i]);
}

inline void form_rows(const FormTask& task, std::int64_t row, std::int64_t columns, float* logits, const float* dense) {
    const StoredTile& t = task.stored;
    const Epilogue& epilogue = t.chunk->problem->epilogue;
    const std::int64_t present = Grid::least(kLanes, t.chunk->rows - row);
    if (present <= 0) {
        for (std::int64_t c = 0; c < columns; ++c) store(logits + c * kPanelRows, zero());
        return;
    }
    const RowLanes r = load_rows(task, row, present);
    const Targets targets = gather_targets(task, row, present, columns, logits, dense);
    for (std::int64_t c = 0; c < columns; ++c) {
        const Vec z = load(logits + c * kPanelRows);
        const Vec weight = set1(t.column_weight != nullptr ? t.column_weight[t.span.begin + c] : 1.0F);
        const Vec q = dense != nullptr ? load(dense + c * kPanelRows) : zero();
        const Vec g = through_epilogue(epilogue, r, z, entry(*task.terms, r, z, weight, q));
        store(logits + c * kPanelRows, g);
    }
    if (targets.any) {
        const Vec z = load(targets.logit);
        const Vec term = load_some(task.terms->target + row, present);
        const Vec g = entry(*task.terms, r, z, load(targets.weight), load(targets.q)) + term;
        float lanes[kLanes];
        store(lanes, through_epilogue(epilogue, r, z, g));
        for (std::int64_t i = 0; i < present; ++i) {
            if (targets.column[i] >= 0) logits[targets.column[i] * kPanelRows + i] = lanes[i];
        }
    }
    if (armed(Trap::logit_gradient_in_16_bits))
        for (std::int64_t c = 0; c < columns; ++c) through_bf16(logits + c * kPanelRows, kLanes);
}

// Logits become their gradients, in place.
inline void form(const FormTask& task) {
    const StoredTile& t = task.stored;
    const std::int64_t columns = t.chunk->problem->unmasked(t.span);
    for (std::int64_t row = t.row_begin; row < t.row_end; row += kPanelRows) {
        pack_dense(t, row, columns);
        for (std::int64_t lane = 0; lane < kPanelRows; lane += kLanes)
            form_rows(task, row + lane, columns, t.logits + row * t.panel_columns + lane,
                      t.dense != nullptr ? t.dense_panel + lane : nullptr);
    }
}

// term(column) added up by the published order of a tile.
template <typename F>
inline Vec sum_tile(std::int64_t columns, F&& term) {
    Vec sums[kAccumulators];
    for (Vec& s : sums) s = zero();
    for (std::int64_t c = 0; c < columns; ++c) {
        Vec& s = sums[c % kAccumulators];
        s = s + term(c);
    }
    return pairwise(sums);
}

// The sums of a tile's rows, of which the chunk's max is known.
inline void sum(const SumTask& task) {
    const StoredTile& t = task.stored;
    const Chunk& chunk = *t.chunk;
    const std::int64_t columns = t.chunk->problem->unmasked(t.span);
    for (std::int64_t row = t.row_begin; row < t.row_end; row += kPanelRows) {
        pack_dense(t, row, columns);
        for (std::int64_t lane = 0; lane < kPanelRows && row + lane < chunk.rows; lane += kLanes) {
            const float* logits = t.logits + row * t.panel_columns + lane;
            const Vec max = load_some(chunk.problem->max + chunk.row_begin + row + lane,
                                      Grid::least(kLanes, chunk.rows - row - lane));
            const auto distance = [&](std::int64_t c) { return load(logits + c * kPanelRows) - max; };
            const auto weight = [&](std::int64_t c) {
                return set1(t.column_weight != nullptr ? t.column_weight[t.span.begin + c] : 1.0F);
            };
            const auto q = [&](std::int64_t c) { return load(t.dense_panel + c * kPanelRows + lane); };
            const auto put = [&](float* partials, auto&& term) {
                if (partials != nullptr)
                    store(partials + task.tile * chunk.padded_rows + row + lane, sum_tile(columns, term));
            };
            put(task.column_sum, [&](std::int64_t c) { return weight(c) * distance(c); });
            put(task.dense_total, [&](std::int64_t c) { return weight(c) * q(c); });
            put(task.dense_sum, [&](std::int64_t c) { return weight(c) * q(c) * distance(c); });
            put(task.dense_exp, [&](std::int64_t c) { return q(c) * exp(distance(c)); });
        }
    }
}

// One sum's partials added up in the order of the fold.
inline void fold_sums(const Chunk& chunk, const Grid& grid, const float* partials, std::int64_t row_begin,
                      std::int64_t row_end, float* out) {
    for (std::int64_t row = row_begin; row < row_end; row += kLanes) {
        Vec leaves[kSegments];
        std::int64_t count = grid.segments();
        for (std::int64_t segment = 0; segment < count; ++segment) {
            std::int64_t tile = grid.first_tile(segment);
            Vec s = load(partials + tile * chunk.padded_rows + row);
            while (++tile < grid.end_tile(segment)) s = s + load(partials + tile * chunk.padded_rows + row);
            leaves[segment] = s;
        }
        for (; count > 1; count = (count + 1) / 2)
            for (std::int64_t i = 0; i < (count + 1) / 2; ++i)
                leaves[i] = 2 * i + 1 < count ? leaves[2 * i] + leaves[2 * i + 1] : leaves[2 * i];
        store_some(out + row, leaves[0], Grid::least(kLanes, row_end - row));
    }
}

}  // namespace steadysum::STEADYSUM_ISA
