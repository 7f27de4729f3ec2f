// From the products of one panel of rows and one tile to its logits, and from those to its partial: max, sum_exp, and,
// where wanted, the weighted sum. Lanes are rows; columns are walked in the published order (docs/bits.md, "A tile").
#pragma once

#include "functions.hpp"
#include "grid.hpp"
#include "partial.hpp"
#include "problem.hpp"
#include "traps.hpp"

namespace steadysum::STEADYSUM_ISA {

// The epilogue of one tile, with everything widened and at hand.
struct TileEpilogue {
    const float* bias;  // [columns of the tile] or nullptr
    float scale;
    float softcap;             // 0: none
    const float* temperature;  // nullptr, or lanes of the rows at hand
};

inline void apply(const TileEpilogue& e, float* logits, std::int64_t columns) {
    const Vec scale = set1(e.scale);
    const Vec cap = set1(e.softcap);
    for (std::int64_t c = 0; c < columns; ++c) {
        float* at = logits + c * kPanelRows;
        Vec z = load(at);
        if (e.bias != nullptr) z = z + set1(e.bias[c]);
        if (e.scale != 1.0F) z = z * scale;
        if (e.softcap != 0.0F) z = cap * tanh(z / cap);
        if (e.temperature != nullptr) z = z / load(e.temperature);
        store(at, z);
    }
}

// The 16 accumulators by the fixed pairwise tree: (0+1)(2+3)..., then pairs of those, and so on.
inline Vec pairwise(Vec (&a)[kAccumulators]) {
    for (std::int64_t n = kAccumulators / 2; n >= 1; n /= 2)
        for (std::int64_t i = 0; i < n; ++i) a[i] = a[2 * i] + a[2 * i + 1];
    return a[0];
}

struct Term {
    Vec exp;
    Vec weighted;
};
template <bool Weighted>
inline Term term(const float* logit, Vec max) {
    const Vec d = load(logit) - max;
    const Vec e = exp(d);
    if constexpr (Weighted) return {e, select(e == zero(), zero(), e * d)};
    return {e, zero()};
}

template <bool Weighted>
inline Partial sum_up(const float* logits, std::int64_t columns, Vec max) {
    constexpr int kTogether = 4;  // accumulators kept in registers at a time
    Vec sums[kAccumulators];
    Vec weighted[kAccumulators];
    const std::int64_t whole = columns / kAccumulators * kAccumulators;
    for (int a = 0; a < kAccumulators; a += kTogether) {
        Vec s[kTogether];
        Vec w[kTogether];
        for (int i = 0; i < kTogether; ++i) s[i] = w[i] = zero();
        for (std::int64_t c = a; c < whole; c += kAccumulators)
            for (int i = 0; i < kTogether; ++i) {
                const Term t = term<Weighted>(logits + (c + i) * kPanelRows, max);
                s[i] = s[i] + t.exp;
                if constexpr (Weighted) w[i] = w[i] + t.weighted;
            }
        for (int i = 0; i < kTogether; ++i) {
            sums[a + i] = s[i];
            weighted[a + i] = w[i];
        }
    }
    for (std::int64_t c = whole; c < columns; ++c) {
        const Term t = term<Weighted>(logits + c * kPanelRows, max);
        sums[c - whole] = sums[c - whole] + t.exp;
        if constexpr (Weighted) weighted[c - whole] = weighted[c - whole] + t.weighted;
    }
    return {max, pairwise(sums), Weighted ? pairwise(weighted) : zero()};
}

// What the vector code leaves open, for one row: a max of zero (which sign?), infinities and NaN.
inline void settle(const float* logits, std::int64_t columns, float& max, float& sum, float& weighted) {
    bool nan = false;
    bool plus_zero = false;
    float largest = -kInfinity;
    std::int64_t infinite = 0;
    for (std::int64_t c = 0; c < columns; ++c) {
        const float z = logits[c * kPanelRows];
        if (z != z) nan = true;
        if (z > largest) largest = z;
        if (z == kInfinity) ++infinite;
        if (z == 0.0F && !__builtin_signbit(z)) plus_zero = true;
        if (plus_zero && largest == 0.0F && max == 0.0F && sum == sum) break;  // no NaN, or sum would show it
    }
    const float quiet = __builtin_nanf("");
    if (nan) {
        max = sum = weighted = quiet;
    } else if (largest == -kInfinity) {
        max = -kInfinity;
        sum = weighted = 0.0F;
        if (armed(Trap::masked_tile_is_nan)) sum = quiet;
    } else if (largest == kInfinity) {
        max = kInfinity;
        sum = static_cast<float>(infinite);
        weighted = quiet;
    } else {
        max = largest == 0.0F ? (plus_zero ? 0.0F : -0.0F) : largest;
    }
}

// The partial of kLanes rows, of which `present` exist, over the columns of a tile.
template <bool Weighted>
inline Partial tile_partial(const float* logits, std::int64_t columns, std::int64_t present) {
    Vec max = set1(armed(Trap::max_starts_at_zero) ? 0.0F : -kInfinity);
    for (std::int64_t c = 0; c < columns; ++c) max = loose_max(max, load(logits + c * kPanelRows));
    Partial p = sum_up<Weighted>(logits, columns, max);
    const Mask open = unordered(p.sum, p.sum) | (max == zero()) | (max == set1(kInfinity)) | (max == set1(-kInfinity));
    const unsigned existing = (1U << static_cast<unsigned>(present)) - 1U;
    if (const unsigned lanes = bits(open) & existing; lanes != 0 && !armed(Trap::max_starts_at_zero)) {
        float m[kLanes];
        float s[kLanes];
        float w[kLanes];
        store(m, p.max);
        store(s, p.sum);
        store(w, p.weighted);
        for (int r = 0; r < kLanes; ++r)
            if ((lanes >> r) & 1U) settle(logits + r, columns, m[r], s[r], w[r]);
        p = {load(m), load(s), load(w)};
    }
    return p;
}

}  // namespace steadysum::STEADYSUM_ISA
