// The published elementary functions on vectors (docs/bits.md, "exp", "tanh"): fixed sequences of IEEE operations, so
// that every instruction set gives the same bits. log lives in log.hpp, since it is needed once per row only.
#pragma once

#include <limits>

namespace steadysum::STEADYSUM_ISA {

// exp(x) for x <= 0, at most 1 ulp; +0 below -87.3; NaN for NaN.
// x = n ln 2 + r with |r| <= ln 2 / 2; exp(x) = 2^n (1 + r + r^2 q(r)), q a minimax polynomial of degree 4.
inline Vec exp(Vec x) {
    const Vec magic = set1(12583039.0F);  // 1.5 2^23 + 127: leaves n + 127 in the lowest bits
    const Vec t = fma(x, set1(0x1.715476p+0F), magic);
    const Vec n = t - magic;
    Vec r = fma(n, set1(-0x1.62e4p-1F), x);  // 15 bits of ln 2: n times it is exact
    r = fma(n, set1(-0x1.7f7d1cp-20F), r);
    Vec q = set1(0x1.6a2352p-10F);
    q = fma(q, r, set1(0x1.123a6ap-7F));
    q = fma(q, r, set1(0x1.5558f4p-5F));
    q = fma(q, r, set1(0x1.555490p-3F));
    q = fma(q, r, set1(0x1.fffffcp-2F));
    Vec p = fma(q, r, set1(1.0F));
    p = fma(p, r, set1(1.0F));
    const Vec power = shift_left<23>(t);
    return select(x < set1(-87.3F), zero(), p * power);
}

// tanh(x): x + x^3 q(x^2) for |x| < 0.625, else (1 - t) / (1 + t) with t = exp(-2 |x|) and the sign of x.
inline Vec tanh(Vec x) {
    const Vec sign_bit = set1(-0.0F);
    const Vec sign = bit_and(x, sign_bit);
    const Vec magnitude = select(x < zero(), zero() - x, x);
    const Vec t = exp(magnitude * set1(-2.0F));
    const Vec large = bit_or((set1(1.0F) - t) / (set1(1.0F) + t), sign);
    const Vec square = x * x;
    Vec q = set1(-0x1.733f82p-8F);
    q = fma(q, square, set1(0x1.51c5d6p-6F));
    q = fma(q, square, set1(-0x1.b83a14p-5F));
    q = fma(q, square, set1(0x1.1107acp-3F));
    q = fma(q, square, set1(-0x1.55553ap-2F));
    const Vec small = fma(x * square, q, x);
    return select(magnitude < set1(0.625F), small, large);
}

}  // namespace steadysum::STEADYSUM_ISA
