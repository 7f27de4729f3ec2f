// The small vector type of the kernel, without any instruction set: 8 lanes as compiler vectors, fused multiply-add
// lane by lane through the C library. Slow, and right everywhere.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#ifndef STEADYSUM_PORTABLE_LANES
#define STEADYSUM_PORTABLE_LANES 8  // a test build takes 16, to walk the AVX-512 blocking on any machine
#endif

namespace steadysum::STEADYSUM_ISA {

inline constexpr int kLanes = STEADYSUM_PORTABLE_LANES;
inline constexpr int kPanelColumns = STEADYSUM_PORTABLE_LANES == 16 ? 14 : 6;    // of a register block two vectors high
inline constexpr int kNarrowColumns = STEADYSUM_PORTABLE_LANES == 16 ? 28 : 12;  // of a register block one vector high

typedef float Floats __attribute__((vector_size(4 * kLanes)));
typedef std::int32_t Ints __attribute__((vector_size(4 * kLanes)));

struct Vec {
    Floats v;
};
struct Mask {
    Ints v;
};

inline Vec zero() { return {Floats{}}; }
inline Vec set1(float x) {
    Vec r;
    for (int i = 0; i < kLanes; ++i) r.v[i] = x;  // not {} + x, which makes +0 of -0
    return r;
}
inline Vec load(const float* p) {
    Vec r;
    std::memcpy(&r.v, p, sizeof r.v);
    return r;
}
inline void store(float* p, Vec a) { std::memcpy(p, &a.v, sizeof a.v); }
inline Vec operator+(Vec a, Vec b) { return {a.v + b.v}; }
inline Vec operator-(Vec a, Vec b) { return {a.v - b.v}; }
inline Vec operator*(Vec a, Vec b) { return {a.v * b.v}; }
inline Vec operator/(Vec a, Vec b) { return {a.v / b.v}; }
inline Vec fma(Vec a, Vec b, Vec c) {
    Vec r;
    for (int i = 0; i < kLanes; ++i) r.v[i] = std::fma(a.v[i], b.v[i], c.v[i]);
    return r;
}
// The larger of both; either operand when they compare equal or unordered.
inline Vec loose_max(Vec a, Vec b) { return {a.v > b.v ? a.v : b.v}; }

inline Mask operator<(Vec a, Vec b) { return {a.v < b.v}; }
inline Mask operator==(Vec a, Vec b) { return {a.v == b.v}; }
inline Mask unordered(Vec a, Vec b) { return {(a.v != a.v) | (b.v != b.v)}; }
inline Mask operator|(Mask a, Mask b) { return {a.v | b.v}; }
inline Vec select(Mask m, Vec yes, Vec no) { return {m.v ? yes.v : no.v}; }
inline unsigned bits(Mask m) {
    unsigned r = 0;
    for (int i = 0; i < kLanes; ++i) r |= (m.v[i] != 0 ? 1U : 0U) << i;
    return r;
}
inline Vec bit_and(Vec a, Vec b) { return {(Floats)((Ints)a.v & (Ints)b.v)}; }
inline Vec bit_or(Vec a, Vec b) { return {(Floats)((Ints)a.v | (Ints)b.v)}; }
template <int Count>
inline Vec shift_left(Vec a) {
    typedef std::uint32_t Unsigned __attribute__((vector_size(4 * kLanes)));
    return {(Floats)((Unsigned)a.v << Count)};
}
inline Vec set1_bits(std::uint32_t bits) {
    float x;
    std::memcpy(&x, &bits, sizeof x);
    return set1(x);
}

inline float widen_bf16(std::uint16_t h) {
    const std::uint32_t u = static_cast<std::uint32_t>(h) << 16;
    float f;
    std::memcpy(&f, &u, sizeof f);
    return f;
}
inline float widen_f16(std::uint16_t h) {
    const std::uint32_t sign = static_cast<std::uint32_t>(h & 0x8000U) << 16;
    const std::uint32_t exponent = (h >> 10) & 0x1FU;
    std::uint32_t mantissa = h & 0x3FFU;
    std::uint32_t u;
    if (exponent == 0x1FU) {  // infinity, NaN
        u = sign | 0x7F800000U | (mantissa << 13);
    } else if (exponent != 0) {
        u = sign | ((exponent + 112U) << 23) | (mantissa << 13);
    } else if (mantissa == 0) {
        u = sign;
    } else {  // subnormal: shift up to a leading one
        std::uint32_t e = 113;
        while ((mantissa & 0x400U) == 0) {
            mantissa <<= 1;
            --e;
        }
        u = sign | (e << 23) | ((mantissa & 0x3FFU) << 13);
    }
    float f;
    std::memcpy(&f, &u, sizeof f);
    return f;
}
inline Vec load_bf16(const std::uint16_t* p) {
    Vec r;
    for (int i = 0; i < kLanes; ++i) r.v[i] = widen_bf16(p[i]);
    return r;
}
inline Vec load_f16(const std::uint16_t* p) {
    Vec r;
    for (int i = 0; i < kLanes; ++i) r.v[i] = widen_f16(p[i]);
    return r;
}

// Transposes kLanes vectors in place.
inline void transpose(Vec (&r)[kLanes]) {
    for (int i = 0; i < kLanes; ++i)
        for (int j = 0; j < i; ++j) {
            const float t = r[i].v[j];
            r[i].v[j] = r[j].v[i];
            r[j].v[i] = t;
        }
}

// out[i] lane c := source[c][offset + i].
inline void load_transposed(const float* const (&source)[kLanes], std::int64_t offset, Vec (&out)[kLanes]) {
    for (int c = 0; c < kLanes; ++c) out[c] = load(source[c] + offset);
    transpose(out);
}

}  // namespace steadysum::STEADYSUM_ISA
