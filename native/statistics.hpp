// From the products of one panel of rows and one tile to its logits, and from those to its partial: max, sum_exp, and
// what else it carries. Lanes are rows; columns are walked in the published order (docs/bits.md, "A tile").
#pragma once

#include "checksum.hpp"
#include "functions.hpp"
#include "grid.hpp"
#include "partial.hpp"
#include "problem.hpp"
#include "strikes.hpp"
#include "traps.hpp"

namespace steadysum::STEADYSUM_ISA {

// The epilogue of one tile, with everything widened and at hand.
struct TileEpilogue {
    const float* bias;  // [columns of the tile] or nullptr
    float scale;
    float softcap;             // 0: none
    const float* temperature;  // nullptr, or lanes of the rows at hand
};

// The temperatures of the lanes at hand; rows past the end divide by 1.
inline void load_temperature(const Epilogue& e, std::int64_t row, std::int64_t present, float (&lanes)[kLanes]) {
    for (std::int64_t r = 0; r < kLanes; ++r)
        lanes[r] = r < present ? e.temperature[e.temperature_per_row ? row + r : 0] : 1.0F;
}

// The logit of a product in the tile's column c.
inline Vec logit_of(const TileEpilogue& e, std::int64_t c, Vec z) {
    const Vec cap = set1(e.softcap);
    if (e.bias != nullptr) z = z + set1(e.bias[c]);
    if (e.scale != 1.0F) z = z * set1(e.scale);
    if (e.softcap != 0.0F) z = cap * tanh(z / cap);
    if (e.temperature != nullptr) z = z / load(e.temperature);
    return z;
}

inline void apply(const TileEpilogue& e, float* logits, std::int64_t columns) {
    for (std::int64_t c = 0; c < columns; ++c) {
        float* at = logits + c * kPanelRows;
        store(at, logit_of(e, c, load(at)));
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
    Vec carried;
};
template <Carry C>
inline Term term(Vec z, Vec max) {
    const Vec d = z - max;
    const Vec e = exp(d);
    if constexpr (C == Carry::weighted) return {e, select(e == zero(), zero(), e * d)};
    if constexpr (C == Carry::ties) return {e, select(z == max, set1(1.0F), zero())};
    return {e, zero()};
}

// `checksum` takes the logits along: here, since this is the last pass that reads them.
template <Carry C, typename Sum>
inline Partial sum_up(const float* logits, std::int64_t columns, Vec max, Sum& checksum) {
    constexpr int kTogether = kGroup;  // accumulators kept in registers at a time
    Vec sums[kAccumulators];
    Vec carried[kAccumulators];
    const std::int64_t whole = columns / kAccumulators * kAccumulators;
    for (int a = 0; a < kAccumulators; a += kTogether) {
        Vec s[kTogether];
        Vec more[kTogether];
        for (int i = 0; i < kTogether; ++i) s[i] = more[i] = zero();
        for (std::int64_t c = a; c < whole; c += kAccumulators) {
            Vec z[kTogether];
            for (int i = 0; i < kTogether; ++i) z[i] = load(logits + (c + i) * kPanelRows);
            checksum.add_group(c, z);
            for (int i = 0; i < kTogether; ++i) {
                const Term t = term<C>(z[i], max);
                s[i] = s[i] + t.exp;
                if constexpr (C != Carry::none) more[i] = more[i] + t.carried;
            }
        }
        for (int i = 0; i < kTogether; ++i) {
            sums[a + i] = s[i];
            carried[a + i] = more[i];
        }
    }
    for (std::int64_t c = whole; c < columns; ++c) {
        const Vec z = load(logits + c * kPanelRows);
        checksum.add(c, z);
        const Term t = term<C>(z, max);
        sums[c - whole] = sums[c - whole] + t.exp;
        if constexpr (C != Carry::none) carried[c - whole] = carried[c - whole] + t.carried;
    }
    strike(Target::exp, reinterpret_cast<float*>(sums), kAccumulators * kLanes);
    return {max, pairwise(sums), C != Carry::none ? pairwise(carried) : zero()};
}

// What the vector code leaves open, for one row: a max of zero (which sign?), infinities and NaN.
template <Carry C>
inline void settle(const float* logits, std::int64_t columns, float& max, float& sum, float& carried) {
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
        max = sum = carried = quiet;
    } else if (largest == -kInfinity) {
        max = -kInfinity;
        sum = 0.0F;
        carried = C == Carry::ties ? static_cast<float>(columns) : 0.0F;
        if (armed(Trap::masked_tile_is_nan)) sum = quiet;
    } else if (largest == kInfinity) {
        max = kInfinity;
        sum = static_cast<float>(infinite);
        carried = C == Carry::ties ? sum : quiet;
    } else {
        max = largest == 0.0F ? (plus_zero ? 0.0F : -0.0F) : largest;
    }
}

// The partial of kLanes rows, of which `present` exist, over the columns of a tile.
template <Carry C, typename Sum>
inline Partial tile_partial(const float* logits, std::int64_t columns, std::int64_t present, Sum& checksum) {
    Vec max = set1(armed(Trap::max_starts_at_zero) ? 0.0F : -kInfinity);
    for (std::int64_t c = 0; c < columns; ++c) max = loose_max(max, load(logits + c * kPanelRows));
    strike(Target::max, reinterpret_cast<float*>(&max), kLanes);
    Partial p = sum_up<C>(logits, columns, max, checksum);
    strike(Target::sum, reinterpret_cast<float*>(&p.sum), kLanes);
    const Mask open = unordered(p.sum, p.sum) | (max == zero()) | (max == set1(kInfinity)) | (max == set1(-kInfinity));
    const unsigned existing = (1U << static_cast<unsigned>(present)) - 1U;
    if (const unsigned lanes = bits(open) & existing; lanes != 0 && !armed(Trap::max_starts_at_zero)) {
        float m[kLanes];
        float s[kLanes];
        float w[kLanes];
        store(m, p.max);
        store(s, p.sum);
        store(w, p.carried);
        for (int r = 0; r < kLanes; ++r)
            if ((lanes >> r) & 1U) settle<C>(logits + r, columns, m[r], s[r], w[r]);
        p = {load(m), load(s), load(w)};
    }
    return p;
}

}  // namespace steadysum::STEADYSUM_ISA
