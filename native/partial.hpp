// A partial on vectors of rows, and the monoid's operation on it (docs/bits.md, "Fold").
#pragma once

#include <limits>

#include "problem.hpp"

namespace steadysum::STEADYSUM_ISA {

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

inline Vec canonical_nan() { return set1(std::numeric_limits<float>::quiet_NaN()); }

struct Partial {
    Vec max;
    Vec sum;
    Vec carried;  // what Carry says
};

// The larger of both with -0 < +0; the one canonical NaN when either is NaN.
inline Vec total_max(Vec a, Vec b) {
    const Vec larger = select(a == b, bit_and(a, b), loose_max(a, b));
    return select(unordered(a, b), canonical_nan(), larger);
}

// exp(m - M), taken as 1 where m equals M: this settles both infinities.
inline Vec rescaling(Vec m, Vec M) { return select(m == M, set1(1.0F), exp(m - M)); }

// The weighted sum of one side, moved from its own max to M.
inline Vec moved(const Partial& p, Vec M, Vec factor) {
    return select(p.max == M, p.carried, factor * fma(p.sum, p.max - M, p.carried));
}

template <Carry C>
inline Partial merge(const Partial& a, const Partial& b) {
    Partial r;
    r.max = total_max(a.max, b.max);
    const Vec fa = rescaling(a.max, r.max);
    const Vec fb = rescaling(b.max, r.max);
    r.sum = fma(b.sum, fb, a.sum * fa);
    r.sum = select(unordered(r.sum, r.sum), canonical_nan(), r.sum);
    if constexpr (C == Carry::weighted) {
        // A factor of zero removes a side altogether: 0 * -inf must not make a NaN.
        const Vec wa = select(fa == zero(), zero(), moved(a, r.max, fa));
        const Vec wb = select(fb == zero(), zero(), moved(b, r.max, fb));
        r.carried = wa + wb;
        r.carried = select(unordered(r.carried, r.carried), canonical_nan(), r.carried);
    } else if constexpr (C == Carry::ties) {
        r.carried = select(a.max == r.max, a.carried, zero()) + select(b.max == r.max, b.carried, zero());
        r.carried = select(unordered(r.max, r.max), canonical_nan(), r.carried);
    } else {
        r.carried = zero();
    }
    return r;
}

}  // namespace steadysum::STEADYSUM_ISA
