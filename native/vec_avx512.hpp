// The small vector type of the kernel for AVX-512 (F, BW, DQ, VL): 16 lanes, 32 registers.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace steadysum::STEADYSUM_ISA {

inline constexpr int kLanes = 16;
inline constexpr int kPanelColumns = 14;   // 14 x 2 accumulators + 2 rows + 1 broadcast of 32 registers
inline constexpr int kNarrowColumns = 28;  // 28 x 1 accumulators + 1 row + 1 broadcast

struct Vec {
    __m512 v;
};
struct Mask {
    __mmask16 v;
};

inline Vec zero() { return {_mm512_setzero_ps()}; }
inline Vec set1(float x) { return {_mm512_set1_ps(x)}; }
inline Vec load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline void store(float* p, Vec a) { _mm512_storeu_ps(p, a.v); }
inline Vec operator+(Vec a, Vec b) { return {_mm512_add_ps(a.v, b.v)}; }
inline Vec operator-(Vec a, Vec b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline Vec operator*(Vec a, Vec b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline Vec operator/(Vec a, Vec b) { return {_mm512_div_ps(a.v, b.v)}; }
inline Vec fma(Vec a, Vec b, Vec c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
// The larger of both; either operand when they compare equal or unordered.
inline Vec loose_max(Vec a, Vec b) { return {_mm512_max_ps(a.v, b.v)}; }

inline Mask operator<(Vec a, Vec b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ)}; }
inline Mask operator==(Vec a, Vec b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_EQ_OQ)}; }
inline Mask unordered(Vec a, Vec b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_UNORD_Q)}; }
inline Mask operator|(Mask a, Mask b) { return {static_cast<__mmask16>(a.v | b.v)}; }
inline Vec select(Mask m, Vec yes, Vec no) { return {_mm512_mask_blend_ps(m.v, no.v, yes.v)}; }
inline unsigned bits(Mask m) { return m.v; }
inline Vec bit_and(Vec a, Vec b) { return {_mm512_and_ps(a.v, b.v)}; }
inline Vec bit_or(Vec a, Vec b) { return {_mm512_or_ps(a.v, b.v)}; }
template <int Count>
inline Vec shift_left(Vec a) {
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(a.v), Count))};
}
inline Vec set1_bits(std::uint32_t bits) { return {_mm512_castsi512_ps(_mm512_set1_epi32(static_cast<int>(bits)))}; }

inline Vec load_bf16(const std::uint16_t* p) {
    const __m256i h = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16))};
}
inline Vec load_f16(const std::uint16_t* p) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
inline float widen_bf16(std::uint16_t h) {
    return _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(static_cast<int>(static_cast<std::uint32_t>(h) << 16))));
}
inline float widen_f16(std::uint16_t h) { return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(h))); }

// Transposes 16 vectors in place: pairs, quads, then 128-bit lanes.
inline void transpose(Vec (&r)[kLanes]) {
    __m512 t[16];
    for (int i = 0; i < 8; ++i) {
        t[2 * i] = _mm512_unpacklo_ps(r[2 * i].v, r[2 * i + 1].v);
        t[2 * i + 1] = _mm512_unpackhi_ps(r[2 * i].v, r[2 * i + 1].v);
    }
    // u[4 i + j] holds, in 128-bit lane l, column 4 l + j of rows 4 i .. 4 i + 3.
    __m512 u[16];
    for (int i = 0; i < 4; ++i) {
        u[4 * i] = _mm512_shuffle_ps(t[4 * i], t[4 * i + 2], 0x44);
        u[4 * i + 1] = _mm512_shuffle_ps(t[4 * i], t[4 * i + 2], 0xEE);
        u[4 * i + 2] = _mm512_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0x44);
        u[4 * i + 3] = _mm512_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0xEE);
    }
    for (int j = 0; j < 4; ++j) {
        const __m512 low01 = _mm512_shuffle_f32x4(u[j], u[4 + j], 0x44);   // lanes 0, 1 of row quads 0 and 1
        const __m512 high01 = _mm512_shuffle_f32x4(u[j], u[4 + j], 0xEE);  // lanes 2, 3
        const __m512 low23 = _mm512_shuffle_f32x4(u[8 + j], u[12 + j], 0x44);
        const __m512 high23 = _mm512_shuffle_f32x4(u[8 + j], u[12 + j], 0xEE);
        r[j].v = _mm512_shuffle_f32x4(low01, low23, 0x88);        // lane 0 of every quad: column j
        r[4 + j].v = _mm512_shuffle_f32x4(low01, low23, 0xDD);    // lane 1: column 4 + j
        r[8 + j].v = _mm512_shuffle_f32x4(high01, high23, 0x88);  // lane 2
        r[12 + j].v = _mm512_shuffle_f32x4(high01, high23, 0xDD);
    }
}

// out[i] lane c := source[c][offset + i].
inline void load_transposed(const float* const (&source)[kLanes], std::int64_t offset, Vec (&out)[kLanes]) {
    for (int c = 0; c < kLanes; ++c) out[c] = load(source[c] + offset);
    transpose(out);
}

}  // namespace steadysum::STEADYSUM_ISA
