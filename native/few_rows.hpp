// The product for a handful of rows (decoding). Weight is read once and memory is the bound, so nothing is packed:
// blocks of weight are transposed in registers, lanes run over vocabulary columns, and each logit is the same chain of
// fused multiply-adds as in product.hpp.
#pragma once

#include "pack.hpp"

namespace steadysum::STEADYSUM_ISA {

inline constexpr int kFewRows = 4;  // beyond that product.hpp is faster: it spends one instruction per weight element

// Adds to sums, for one vector of columns, the products of E::kTransposed elements of k.
template <typename E, int Rows>
inline void whole_step(const typename E::Stored* const (&source)[kLanes], std::int64_t k, const float* rows,
                       Vec (&sums)[Rows]) {
    Vec block[E::kTransposed];
    E::transposed_load(source, k, block);
    for (std::int64_t i = 0; i < E::kTransposed; ++i)
        for (int r = 0; r < Rows; ++r) sums[r] = fma(set1(rows[(k + i) * Rows + r]), block[i], sums[r]);
}

// The same for one element of k.
template <typename E, int Rows>
inline void single_step(const typename E::Stored* const (&source)[kLanes], std::int64_t k, const float* rows,
                        Vec (&sums)[Rows]) {
    float lanes[kLanes];
    for (int c = 0; c < kLanes; ++c) lanes[c] = value_at<E>(source[c] + k);
    for (int r = 0; r < Rows; ++r) sums[r] = fma(set1(rows[k * Rows + r]), load(lanes), sums[r]);
}

// Short rows end before the hardware prefetcher has caught up with them; up to this size of a vector's rows together,
// the next ones are fetched while these are used (measured: 16-bit, H = 768, 1.4 times faster; with longer rows it only
// disturbs).
inline constexpr std::int64_t kPrefetchBytes = 32 << 10;

// Logits of Rows rows for one vector of columns from `column` on (of which `present` exist), over all of k.
template <typename E, int Rows>
inline void few_rows_group(const Matrix& weight, std::int64_t column, std::int64_t present, const float* rows,
                           float* logits) {
    using Stored = typename E::Stored;
    constexpr std::int64_t kLine = 64 / static_cast<std::int64_t>(sizeof(Stored));
    const Stored* source[kLanes];
    for (std::int64_t c = 0; c < kLanes; ++c) source[c] = element<E>(weight, column + Grid::least(c, present - 1), 0);
    const std::int64_t ahead = kLanes * weight.row_stride;
    const bool prefetch = ahead > 0 && ahead * static_cast<std::int64_t>(sizeof(Stored)) <= kPrefetchBytes;
    Vec totals[Rows];
    for (int r = 0; r < Rows; ++r) totals[r] = zero();
    for (std::int64_t begin = 0; begin == 0 || begin < weight.columns; begin += kBlock) {
        const std::int64_t end = Grid::least(begin + kBlock, weight.columns);
        Vec sums[Rows];
        for (int r = 0; r < Rows; ++r) sums[r] = zero();
        std::int64_t k = begin;
        // A whole cache line of each column at a time: columns whose distance is a power of two share a cache set, and
        // would evict each other's half-read lines.
        for (; k + kLine <= end; k += kLine) {
            if (prefetch)
                for (int c = 0; c < kLanes; ++c) __builtin_prefetch(source[c] + k + ahead, 0, 2);
            for (std::int64_t i = 0; i < kLine; i += E::kTransposed) whole_step<E, Rows>(source, k + i, rows, sums);
        }
        for (; k < end; ++k) single_step<E, Rows>(source, k, rows, sums);
        for (int r = 0; r < Rows; ++r) totals[r] = begin == 0 ? sums[r] : totals[r] + sums[r];
    }
    for (int r = 0; r < Rows; ++r) {
        float lanes[kLanes];
        store(lanes, totals[r]);
        for (std::int64_t c = 0; c < present; ++c) logits[c * kPanelRows + r] = lanes[c];
    }
}

// Whether the product of so many rows with this weight is done here.
inline bool takes_few_rows(const Matrix& weight, std::int64_t rows) { return rows <= kFewRows && step(weight) == 1; }

// All rows of a small input as packed[k * rows + row]: a panel's 64 bytes per k would crowd weight out of the first
// cache.
template <typename E>
inline void pack_few_rows(const Matrix& input, std::int64_t row_begin, std::int64_t rows, float* packed) {
    for (std::int64_t r = 0; r < rows; ++r) {
        const typename E::Stored* source = element<E>(input, row_begin + r, 0);
        for (std::int64_t k = 0; k < input.columns; ++k) packed[k * rows + r] = value_at<E>(source + k * step(input));
    }
}

// Logits of `rows` rows (the first of a chunk) for `columns` columns from vocabulary column `begin` on.
inline void few_rows_product(const Matrix& weight, std::int64_t rows, std::int64_t begin, std::int64_t columns,
                             const float* packed, float* logits) {
    with_element(weight.dtype, [&](auto e) {
        using E = decltype(e);
        for (std::int64_t c = 0; c < columns; c += kLanes) {
            const std::int64_t present = Grid::least(kLanes, columns - c);
            float* to = logits + c * kPanelRows;
            switch (rows) {
                case 1: few_rows_group<E, 1>(weight, begin + c, present, packed, to); break;
                case 2: few_rows_group<E, 2>(weight, begin + c, present, packed, to); break;
                case 3: few_rows_group<E, 3>(weight, begin + c, present, packed, to); break;
                default: few_rows_group<E, 4>(weight, begin + c, present, packed, to); break;
            }
        }
    });
}

}  // namespace steadysum::STEADYSUM_ISA
