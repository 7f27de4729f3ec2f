// The published natural logarithm (docs/bits.md, "log"), at most 1 ulp: scalar, since it is needed once per row.
#pragma once

#include <cstdint>
#include <cstring>
#include <limits>

namespace steadysum {

// log(x) for x >= 0: -inf at zero, +inf at +inf, NaN for NaN and for negative x. Subnormals are scaled up first.
// x = 2^k m with sqrt(1/2) <= m < sqrt(2); f = m - 1, s = f / (2 + f); log m = f - (f^2/2 - s (f^2/2 + R(s^2))).
inline float log(float x) {
    if (x == 0.0F) return -std::numeric_limits<float>::infinity();
    if (!(x > 0.0F)) return std::numeric_limits<float>::quiet_NaN();
    if (x == std::numeric_limits<float>::infinity()) return x;
    std::int32_t k = 0;
    if (x < 0x1p-126F) {
        x *= 0x1p25F;
        k = -25;
    }
    std::int32_t u;
    std::memcpy(&u, &x, sizeof u);
    const std::int32_t above = u - 0x3F3504F3;  // bits of sqrt(1/2)
    k += above >> 23;
    u = (above & 0x007FFFFF) + 0x3F3504F3;
    float m;
    std::memcpy(&m, &u, sizeof m);
    const float f = m - 1.0F;
    const float s = f / (2.0F + f);
    const float z = s * s;
    const float r = z * (0x1.555556p-1F + z * (0x1.999a7ep-2F + z * (0x1.243534p-2F + z * 0x1.e3bd10p-3F)));
    const float half = 0.5F * f * f;
    const auto n = static_cast<float>(k);
    // ln 2 in two parts; the high one has 15 bits, so that k times it is exact.
    return n * 0x1.62e4p-1F - ((half - (s * (half + r) + n * 0x1.7f7d1cp-20F)) - f);
}

}  // namespace steadysum
