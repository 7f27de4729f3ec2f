// Bringing operands into the forms that the product reads: the input as panels of rows, the weight as a compact block.
// 16-bit elements widen here, exactly. Nothing is computed.
#pragma once

#include <cstring>

#include "grid.hpp"
#include "problem.hpp"
#include "traps.hpp"

namespace steadysum::STEADYSUM_ISA {

inline constexpr int kPanelRows = 2 * kLanes;
// Row stride of a weight block in floats: 9 cache lines, an odd number, so that columns don't share cache sets.
inline constexpr std::int64_t kBlockStride = kBlock + 16;

// How elements of a dtype are read. transposed_load brings kTransposed elements of k from kLanes rows at a time:
// out[i] lane r := source[r][k + i].
template <DType D>
struct Element;
template <>
struct Element<DType::f32> {
    using Stored = float;
    static constexpr int kTransposed = kLanes;
    static float widen(float x) { return x; }
    static Vec load_lanes(const float* p) { return load(p); }
    static void transposed_load(const float* const (&source)[kLanes], std::int64_t k, Vec (&out)[kTransposed]) {
        load_transposed(source, k, out);
    }
};
template <>
struct Element<DType::bf16> {
    using Stored = std::uint16_t;
    static constexpr int kTransposed = 2 * kLanes;
    static float widen(std::uint16_t x) { return widen_bf16(x); }
    static Vec load_lanes(const std::uint16_t* p) { return load_bf16(p); }
    // Two neighbours in k travel through the transposition as one 32-bit word, and are widened afterwards.
    static void transposed_load(const std::uint16_t* const (&source)[kLanes], std::int64_t k, Vec (&out)[kTransposed]) {
        const float* words[kLanes];
        for (int r = 0; r < kLanes; ++r) words[r] = reinterpret_cast<const float*>(source[r] + k);
        Vec pairs[kLanes];
        load_transposed(words, 0, pairs);
        const Vec upper_half = set1_bits(0xFFFF0000U);
        for (int i = 0; i < kLanes; ++i) {
            out[2 * i] = shift_left<16>(pairs[i]);
            out[2 * i + 1] = bit_and(pairs[i], upper_half);
        }
    }
};
template <>
struct Element<DType::f16> {
    using Stored = std::uint16_t;
    static constexpr int kTransposed = kLanes;
    static float widen(std::uint16_t x) { return widen_f16(x); }
    static Vec load_lanes(const std::uint16_t* p) { return load_f16(p); }
    static void transposed_load(const std::uint16_t* const (&source)[kLanes], std::int64_t k, Vec (&out)[kTransposed]) {
        for (int r = 0; r < kLanes; ++r) out[r] = load_f16(source[r] + k);
        transpose(out);
    }
};

// One element, widened. Through memcpy: a tensor made of a byte buffer may lie on any address.
template <typename E>
inline float value_at(const typename E::Stored* p) {
    typename E::Stored x;
    std::memcpy(&x, p, sizeof x);
    return E::widen(x);
}

// Calls f with an Element<...> value that fits the dtype.
template <typename F>
inline void with_element(DType dtype, F&& f) {
    switch (dtype) {
        case DType::f32: f(Element<DType::f32>{}); break;
        case DType::bf16: f(Element<DType::bf16>{}); break;
        case DType::f16: f(Element<DType::f16>{}); break;
    }
}

template <typename E>
inline const typename E::Stored* element(const Matrix& m, std::int64_t row, std::int64_t column) {
    std::int64_t offset = row * m.row_stride + column * m.column_stride;
    if (armed(Trap::strides_ignored)) offset = row * m.columns + column;
    if (armed(Trap::offsets_in_32_bits)) offset = static_cast<std::int32_t>(static_cast<std::uint32_t>(offset));
    return static_cast<const typename E::Stored*>(m.data) + offset;
}
inline std::int64_t step(const Matrix& m) { return armed(Trap::strides_ignored) ? 1 : m.column_stride; }

// One panel of input, columns [k_begin, k_begin + depth), as panel[k * kPanelRows + row]; rows past the end are zeros.
template <typename E>
inline void pack_panel(const Matrix& input, std::int64_t row_begin, std::int64_t rows, std::int64_t k_begin,
                       std::int64_t depth, float* panel) {
    for (std::int64_t group = 0; group < kPanelRows; group += kLanes) {
        const std::int64_t present = Grid::least(kLanes, rows - group);
        std::int64_t k = 0;
        if (present == kLanes && step(input) == 1) {
            const typename E::Stored* source[kLanes];
            for (int r = 0; r < kLanes; ++r) source[r] = element<E>(input, row_begin + group + r, k_begin);
            for (; k + E::kTransposed <= depth; k += E::kTransposed) {
                Vec block[E::kTransposed];
                E::transposed_load(source, k, block);
                for (int c = 0; c < E::kTransposed; ++c) store(panel + (k + c) * kPanelRows + group, block[c]);
            }
        }
        for (std::int64_t r = 0; r < kLanes; ++r) {
            if (r < present) {
                const typename E::Stored* source = element<E>(input, row_begin + group + r, k_begin);
                for (std::int64_t i = k; i < depth; ++i)
                    panel[i * kPanelRows + group + r] = value_at<E>(source + i * step(input));
            } else {
                for (std::int64_t i = k; i < depth; ++i) panel[i * kPanelRows + group + r] = 0.0F;
            }
        }
    }
}

// A block of weight: rows [row_begin, row_begin + rows), columns [k_begin, k_begin + depth), as block[row *
// kBlockStride + k].
template <typename E>
inline void pack_weight_block(const Matrix& weight, std::int64_t row_begin, std::int64_t rows, std::int64_t k_begin,
                              std::int64_t depth, float* block) {
    const std::int64_t k_step = step(weight);
    if (k_step == 1) {
        for (std::int64_t r = 0; r < rows; ++r) {
            const typename E::Stored* source = element<E>(weight, row_begin + r, k_begin);
            float* to = block + r * kBlockStride;
            std::int64_t k = 0;
            for (; k + kLanes <= depth; k += kLanes) store(to + k, E::load_lanes(source + k));
            for (; k < depth; ++k) to[k] = value_at<E>(source + k);
        }
        return;
    }
    // A transposed weight is contiguous along its rows: blocks of it are transposed in registers.
    std::int64_t k = 0;
    for (; weight.row_stride == 1 && k + kLanes <= depth; k += kLanes) {
        const typename E::Stored* source[kLanes];
        for (std::int64_t c = 0; c < kLanes; ++c) source[c] = element<E>(weight, row_begin, k_begin + k + c);
        std::int64_t r = 0;
        for (; r + E::kTransposed <= rows; r += E::kTransposed) {
            Vec columns[E::kTransposed];
            E::transposed_load(source, r, columns);
            for (int i = 0; i < E::kTransposed; ++i) store(block + (r + i) * kBlockStride + k, columns[i]);
        }
        for (; r < rows; ++r)
            for (std::int64_t c = 0; c < kLanes; ++c) block[r * kBlockStride + k + c] = value_at<E>(source[c] + r);
    }
    for (; k < depth; ++k)
        for (std::int64_t r = 0; r < rows; ++r)
            block[r * kBlockStride + k] = value_at<E>(element<E>(weight, row_begin + r, k_begin + k));
}

inline void pack_weight(const Matrix& weight, std::int64_t row_begin, std::int64_t rows, std::int64_t k_begin,
                        std::int64_t depth, float* block) {
    with_element(weight.dtype,
                 [&](auto e) { pack_weight_block<decltype(e)>(weight, row_begin, rows, k_begin, depth, block); });
}

inline float read(const Vector& v, std::int64_t i) {
    float value = 0.0F;
    with_element(v.dtype, [&](auto e) {
        using E = decltype(e);
        value = value_at<E>(static_cast<const typename E::Stored*>(v.data) + i * v.stride);
    });
    return value;
}

}  // namespace steadysum::STEADYSUM_ISA
