// The AVX-512 intrinsics that native/vec_avx512.hpp uses, lane by lane, written from the instruction set's
// documentation: so that the AVX-512 variant of the kernel, blocking and shuffles included, runs on processors without
// it. Found in place of the compiler's header by the include path of the test binary alone. It tests the source; the
// instructions it can't.
#pragma once

#include_next <immintrin.h>

#include <cmath>
#include <cstdint>
#include <cstring>

namespace emulated_avx512 {

typedef float Floats __attribute__((vector_size(64)));
typedef std::int32_t Ints __attribute__((vector_size(64)));

struct Words {  // __m512i as 16 words
    std::uint32_t w[16];
};

inline Floats setzero_ps() { return Floats{}; }
inline Floats set1_ps(float x) {
    Floats r;
    for (int i = 0; i < 16; ++i) r[i] = x;
    return r;
}
inline Floats loadu_ps(const void* p) {
    Floats r;
    std::memcpy(&r, p, sizeof r);
    return r;
}
inline void storeu_ps(void* p, Floats a) { std::memcpy(p, &a, sizeof a); }
inline Floats add_ps(Floats a, Floats b) { return a + b; }
inline Floats sub_ps(Floats a, Floats b) { return a - b; }
inline Floats mul_ps(Floats a, Floats b) { return a * b; }
inline Floats div_ps(Floats a, Floats b) { return a / b; }
inline Floats fmadd_ps(Floats a, Floats b, Floats c) {
    Floats r;
    for (int i = 0; i < 16; ++i) r[i] = std::fma(a[i], b[i], c[i]);
    return r;
}
// MAXPS: the second operand when the two compare equal or unordered.
inline Floats max_ps(Floats a, Floats b) {
    Floats r;
    for (int i = 0; i < 16; ++i) r[i] = a[i] > b[i] ? a[i] : b[i];
    return r;
}
inline std::uint16_t cmp_ps_mask(Floats a, Floats b, int predicate) {
    unsigned r = 0;
    for (int i = 0; i < 16; ++i) {
        const bool unordered = std::isnan(a[i]) || std::isnan(b[i]);
        const bool holds = predicate == _CMP_LT_OQ   ? !unordered && a[i] < b[i]
                           : predicate == _CMP_EQ_OQ ? !unordered && a[i] == b[i]
                                                     : unordered;  // _CMP_UNORD_Q
        r |= (holds ? 1U : 0U) << i;
    }
    return static_cast<std::uint16_t>(r);
}
inline Floats mask_blend_ps(std::uint16_t mask, Floats a, Floats b) {
    Floats r;
    for (int i = 0; i < 16; ++i) r[i] = ((mask >> i) & 1U) != 0 ? b[i] : a[i];
    return r;
}
inline Floats and_ps(Floats a, Floats b) { return (Floats)((Ints)a & (Ints)b); }
inline Floats or_ps(Floats a, Floats b) { return (Floats)((Ints)a | (Ints)b); }

inline Words castps_si512(Floats a) {
    Words r;
    std::memcpy(&r, &a, sizeof r);
    return r;
}
inline Floats castsi512_ps(Words a) {
    Floats r;
    std::memcpy(&r, &a, sizeof r);
    return r;
}
inline Words set1_epi32(int x) {
    Words r;
    for (std::uint32_t& w : r.w) w = static_cast<std::uint32_t>(x);
    return r;
}
inline Words slli_epi32(Words a, unsigned count) {
    Words r;
    for (int i = 0; i < 16; ++i) r.w[i] = count > 31 ? 0 : a.w[i] << count;
    return r;
}

struct Halves {  // __m256i as 16 halves
    std::uint16_t h[16];
};
inline Halves loadu_si256(const void* p) {
    Halves r;
    std::memcpy(&r, p, sizeof r);
    return r;
}
inline Words cvtepu16_epi32(Halves a) {
    Words r;
    for (int i = 0; i < 16; ++i) r.w[i] = a.h[i];
    return r;
}
inline Floats cvtph_ps(Halves a) {
    Floats r;
    for (int i = 0; i < 16; ++i) {
        _Float16 h;
        std::memcpy(&h, &a.h[i], sizeof h);
        r[i] = static_cast<float>(h);
    }
    return r;
}

// In each 128-bit lane: a0 b0 a1 b1, and a2 b2 a3 b3.
inline Floats unpacklo_ps(Floats a, Floats b) {
    Floats r;
    for (int i = 0; i < 16; i += 4) {
        r[i] = a[i];
        r[i + 1] = b[i];
        r[i + 2] = a[i + 1];
        r[i + 3] = b[i + 1];
    }
    return r;
}
inline Floats unpackhi_ps(Floats a, Floats b) {
    Floats r;
    for (int i = 0; i < 16; i += 4) {
        r[i] = a[i + 2];
        r[i + 1] = b[i + 2];
        r[i + 2] = a[i + 3];
        r[i + 3] = b[i + 3];
    }
    return r;
}
// In each 128-bit lane: two elements of a, two of b, chosen by two bits of the control each.
// (Not as one expression, (j < 2 ? a : b)[...]: GCC 12 with -fsanitize=shift computes the index for one of the two
// only.)
inline Floats shuffle_ps(Floats a, Floats b, int control) {
    Floats r;
    for (int i = 0; i < 16; i += 4)
        for (int j = 0; j < 4; ++j) {
            const int from = i + ((control >> (2 * j)) & 3);
            r[i + j] = j < 2 ? a[from] : b[from];
        }
    return r;
}
// Two 128-bit lanes of a, two of b, chosen in the same way.
inline Floats shuffle_f32x4(Floats a, Floats b, int control) {
    Floats r;
    for (int j = 0; j < 4; ++j)
        for (int i = 0; i < 4; ++i) {
            const int from = 4 * ((control >> (2 * j)) & 3) + i;
            r[4 * j + i] = j < 2 ? a[from] : b[from];
        }
    return r;
}

}  // namespace emulated_avx512

#define __m512 emulated_avx512::Floats
#define __m256i emulated_avx512::Halves
#define __mmask16 std::uint16_t
#define _mm512_setzero_ps emulated_avx512::setzero_ps
#define _mm512_set1_ps emulated_avx512::set1_ps
#define _mm512_loadu_ps emulated_avx512::loadu_ps
#define _mm512_storeu_ps emulated_avx512::storeu_ps
#define _mm512_add_ps emulated_avx512::add_ps
#define _mm512_sub_ps emulated_avx512::sub_ps
#define _mm512_mul_ps emulated_avx512::mul_ps
#define _mm512_div_ps emulated_avx512::div_ps
#define _mm512_fmadd_ps emulated_avx512::fmadd_ps
#define _mm512_max_ps emulated_avx512::max_ps
#undef _mm512_cmp_ps_mask
#define _mm512_cmp_ps_mask emulated_avx512::cmp_ps_mask
#define _mm512_mask_blend_ps emulated_avx512::mask_blend_ps
#define _mm512_and_ps emulated_avx512::and_ps
#define _mm512_or_ps emulated_avx512::or_ps
#define _mm512_castps_si512 emulated_avx512::castps_si512
#define _mm512_castsi512_ps emulated_avx512::castsi512_ps
#define _mm512_set1_epi32 emulated_avx512::set1_epi32
#undef _mm512_slli_epi32
#define _mm512_slli_epi32 emulated_avx512::slli_epi32
#define _mm256_loadu_si256 emulated_avx512::loadu_si256
#define _mm512_cvtepu16_epi32 emulated_avx512::cvtepu16_epi32
#define _mm512_cvtph_ps emulated_avx512::cvtph_ps
#define _mm512_unpacklo_ps emulated_avx512::unpacklo_ps
#define _mm512_unpackhi_ps emulated_avx512::unpackhi_ps
#undef _mm512_shuffle_ps
#define _mm512_shuffle_ps emulated_avx512::shuffle_ps
#undef _mm512_shuffle_f32x4
#define _mm512_shuffle_f32x4 emulated_avx512::shuffle_f32x4
