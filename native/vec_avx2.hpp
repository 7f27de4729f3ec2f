// The small vector type of the kernel for AVX2 + FMA + F16C: 8 lanes, 16 registers.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace steadysum::STEADYSUM_ISA {

inline constexpr int kLanes = 8;
inline constexpr int kPanelColumns = 6;    // 6 x 2 accumulators + 2 rows + 1 broadcast of 16 registers
inline constexpr int kNarrowColumns = 12;  // 12 x 1 accumulators + 1 row + 1 broadcast

struct Vec {
    __m256 v;
};
struct Mask {
    __m256 v;
};

inline Vec zero() { return {_mm256_setzero_ps()}; }
inline Vec set1(float x) { return {_mm256_set1_ps(x)}; }
inline Vec load(const float* p) { return {_mm256_loadu_ps(p)}; }
inline void store(float* p, Vec a) { _mm256_storeu_ps(p, a.v); }
inline Vec operator+(Vec a, Vec b) { return {_mm256_add_ps(a.v, b.v)}; }
inline Vec operator-(Vec a, Vec b) { return {_mm256_sub_ps(a.v, b.v)}; }
inline Vec operator*(Vec a, Vec b) { return {_mm256_mul_ps(a.v, b.v)}; }
inline Vec operator/(Vec a, Vec b) { return {_mm256_div_ps(a.v, b.v)}; }
inline Vec fma(Vec a, Vec b, Vec c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
// The larger of both; either operand when they compare equal or unordered.
inline Vec loose_max(Vec a, Vec b) { return {_mm256_max_ps(a.v, b.v)}; }

inline Mask operator<(Vec a, Vec b) { return {_mm256_cmp_ps(a.v, b.v, _CMP_LT_OQ)}; }
inline Mask operator==(Vec a, Vec b) { return {_mm256_cmp_ps(a.v, b.v, _CMP_EQ_OQ)}; }
inline Mask unordered(Vec a, Vec b) { return {_mm256_cmp_ps(a.v, b.v, _CMP_UNORD_Q)}; }
inline Mask operator|(Mask a, Mask b) { return {_mm256_or_ps(a.v, b.v)}; }
inline Vec select(Mask m, Vec yes, Vec no) { return {_mm256_blendv_ps(no.v, yes.v, m.v)}; }
inline unsigned bits(Mask m) { return static_cast<unsigned>(_mm256_movemask_ps(m.v)); }
inline Vec bit_and(Vec a, Vec b) { return {_mm256_and_ps(a.v, b.v)}; }
inline Vec bit_or(Vec a, Vec b) { return {_mm256_or_ps(a.v, b.v)}; }
template <int Count>
inline Vec shift_left(Vec a) {
    return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(a.v), Count))};
}
inline Vec set1_bits(std::uint32_t bits) { return {_mm256_castsi256_ps(_mm256_set1_epi32(static_cast<int>(bits)))}; }

inline Vec load_bf16(const std::uint16_t* p) {
    const __m128i h = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16))};
}
inline Vec load_f16(const std::uint16_t* p) {
    return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
inline float widen_bf16(std::uint16_t h) {
    return _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(static_cast<int>(static_cast<std::uint32_t>(h) << 16))));
}
inline float widen_f16(std::uint16_t h) { return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(h))); }

// Transposes the four 4 x 4 blocks of out[0..3], one per 128-bit half.
inline void transpose_quarters(__m256 a, __m256 b, __m256 c, __m256 d, Vec* out) {
    const __m256 ab_low = _mm256_unpacklo_ps(a, b);
    const __m256 ab_high = _mm256_unpackhi_ps(a, b);
    const __m256 cd_low = _mm256_unpacklo_ps(c, d);
    const __m256 cd_high = _mm256_unpackhi_ps(c, d);
    out[0].v = _mm256_shuffle_ps(ab_low, cd_low, 0x44);
    out[1].v = _mm256_shuffle_ps(ab_low, cd_low, 0xEE);
    out[2].v = _mm256_shuffle_ps(ab_high, cd_high, 0x44);
    out[3].v = _mm256_shuffle_ps(ab_high, cd_high, 0xEE);
}

// Transposes 8 vectors in place.
inline void transpose(Vec (&r)[kLanes]) {
    __m256 low[4];
    __m256 high[4];
    for (int i = 0; i < 4; ++i) {
        low[i] = _mm256_permute2f128_ps(r[i].v, r[i + 4].v, 0x20);
        high[i] = _mm256_permute2f128_ps(r[i].v, r[i + 4].v, 0x31);
    }
    transpose_quarters(low[0], low[1], low[2], low[3], r);
    transpose_quarters(high[0], high[1], high[2], high[3], r + 4);
}

// out[i] lane c := source[c][offset + i]. Halves are joined by the loads, which is cheaper than by permutes.
inline void load_transposed(const float* const (&source)[kLanes], std::int64_t offset, Vec (&out)[kLanes]) {
    for (int quarter = 0; quarter < 2; ++quarter) {
        __m256 r[4];
        for (int i = 0; i < 4; ++i)
            r[i] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(source[i] + offset + 4 * quarter)),
                                        _mm_loadu_ps(source[i + 4] + offset + 4 * quarter), 1);
        transpose_quarters(r[0], r[1], r[2], r[3], out + 4 * quarter);
    }
}

}  // namespace steadysum::STEADYSUM_ISA
