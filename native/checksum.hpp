// Checksums of a tile's columns: how columns are weighted, sums of logits by those weights, the same sums of weight,
// and how far rounding may take the two apart (after Huang & Abraham 1984; the threshold in the manner of V-ABFT).
//
// Column j of a tile has the weight t(j) in the first checksum and t(j) (j - 255.5) / 256 in the second, where t(j) is
// the Thue-Morse sequence, -1 to the number of ones in j. With plain ones the sums of logits that share an offset would
// be so large that their own rounding hides a fault; these signs cancel offsets and ramps over each 16 columns. The
// quotient of both residuals tells the column.
#pragma once

#include <algorithm>
#include <bit>

#include "checks.hpp"
#include "few_rows.hpp"
#include "pack.hpp"
#include "tile_kernel.hpp"

namespace steadysum::STEADYSUM_ISA {

inline constexpr std::int64_t kGroup = 4;  // columns whose signs are + - - +, or the opposite

constexpr float sign_of(std::int64_t j) { return std::popcount(static_cast<std::uint64_t>(j)) % 2 == 0 ? 1.0F : -1.0F; }
constexpr float place_of(std::int64_t j) { return (static_cast<float>(j) - 255.5F) / 256.0F; }  // exact

// The weights of each group's first column, at hand: to form them costs as much as the sums.
struct GroupWeights {
    float sign[kTileColumns / kGroup];
    float placed[kTileColumns / kGroup];
    float step[kTileColumns / kGroup];  // from a column's weight to the next one's, but for its sign
};
constexpr GroupWeights group_weights() {
    GroupWeights w{};
    for (std::int64_t g = 0; g < kTileColumns / kGroup; ++g) {
        w.sign[g] = sign_of(g * kGroup);
        w.placed[g] = sign_of(g * kGroup) * place_of(g * kGroup);
        w.step[g] = sign_of(g * kGroup) / 256.0F;
    }
    return w;
}
inline constexpr GroupWeights kGroupWeights = group_weights();

// Both checksums of some columns' logits, for one vector of rows. Columns come in any order, the same each time where
// sums are to be equal.
struct Checksum {
    Vec plain = zero();
    Vec placed = zero();

    // Columns [column, column + kGroup), column a multiple of kGroup.
    void add_group(std::int64_t column, const Vec (&z)[kGroup]) {
        const Vec sign = set1(kGroupWeights.sign[column / kGroup]);
        const Vec right = z[3] - z[2];
        const Vec sum = (z[0] - z[1]) + right;
        const Vec steps = fma(right, set1(2.0F), z[3] - z[1]);  // 0 z0 - 1 z1 - 2 z2 + 3 z3
        plain = fma(sum, sign, plain);
        placed = fma(sum, set1(kGroupWeights.placed[column / kGroup]), placed);
        placed = fma(steps, set1(kGroupWeights.step[column / kGroup]), placed);
    }
    void add(std::int64_t column, Vec z) {
        const Vec sign = set1(sign_of(column));
        plain = fma(z, sign, plain);
        placed = fma(z, set1(sign_of(column) * place_of(column)), placed);
    }
};

// For code that takes checksums where they are wanted.
struct NoChecksum {
    void add_group(std::int64_t, const Vec (&)[kGroup]) {}
    void add(std::int64_t, Vec) {}
};

// The order in which columns are summed (statistics.hpp): every 16th group of accumulators' columns, then the rest.
inline Checksum checksum_of(const float* logits, std::int64_t columns) {
    Checksum sum;
    const std::int64_t whole = columns / kAccumulators * kAccumulators;
    for (std::int64_t a = 0; a < kAccumulators; a += kGroup)
        for (std::int64_t c = a; c < whole; c += kAccumulators) {
            const float* at = logits + c * kPanelRows;
            const Vec z[kGroup] = {load(at), load(at + kPanelRows), load(at + 2 * kPanelRows),
                                   load(at + 3 * kPanelRows)};
            sum.add_group(c, z);
        }
    for (std::int64_t c = whole; c < columns; ++c) sum.add(c, load(logits + c * kPanelRows));
    return sum;
}

// ---- What is known beforehand of a weight, and of the input ----

inline std::uint32_t magnitude_bits(float x) { return std::bit_cast<std::uint32_t>(x) & 0x7FFFFFFFU; }

// The power of two by which numbers of this magnitude come into [1, 2); 0 for what isn't finite.
inline float inverse_power(std::uint32_t magnitude) {
    const auto exponent = static_cast<std::int32_t>(magnitude >> 23);
    if (exponent == 0xFF) return 0.0F;
    const std::int32_t inverse = std::min(254 - exponent, 253);  // of the tiniest: the largest power of two there is
    return std::bit_cast<float>(static_cast<std::uint32_t>(std::max(inverse, 1)) << 23);
}

// Row `row` of a matrix, widened.
inline void read_row(const Matrix& m, std::int64_t row, float* to) {
    with_element(m.dtype, [&](auto e) {
        using E = decltype(e);
        const typename E::Stored* source = element<E>(m, row, 0);
        const std::int64_t by = step(m);
        std::int64_t k = 0;
        if (by == 1)
            for (; k + kLanes <= m.columns; k += kLanes) store(to + k, E::load_lanes(source + k));
        for (; k < m.columns; ++k) to[k] = value_at<E>(source + k * by);
    });
}

inline std::uint32_t largest_magnitude(const float* x, std::int64_t size) {
    std::uint32_t most = 0;
    for (std::int64_t k = 0; k < size; ++k) most = std::max(most, magnitude_bits(x[k]));
    return most;
}

// The checksum columns of one tile and what belongs to them. scratch: (kChecksums + 2) * H doubles, then H floats.
inline void weight_checksums(const Problem& problem, const TileSpan& span, std::int64_t tile, double* scratch,
                             const WeightChecksums& out) {
    const Matrix& weight = problem.weight;
    const std::int64_t hidden = weight.columns;
    const std::int64_t blocks = Grid::ceil_div(hidden, kBlock);
    const std::int64_t columns = problem.unmasked(span);
    double* plain = scratch;
    double* placed = scratch + hidden;
    double* squares = scratch + 2 * hidden;
    double* placed_squares = scratch + 3 * hidden;
    auto* row = reinterpret_cast<float*>(scratch + 4 * hidden);
    for (std::int64_t i = 0; i < 4 * hidden; ++i) scratch[i] = 0.0;
    std::uint32_t most = 0;
    for (std::int64_t j = 0; j < columns; ++j) {
        read_row(weight, span.begin + j, row);
        most = std::max(most, largest_magnitude(row, hidden));
        const double sign = sign_of(j);
        const double place = place_of(j);
        for (std::int64_t k = 0; k < hidden; ++k) {
            const double w = row[k];
            plain[k] += sign * w;
            placed[k] += sign * place * w;
            squares[k] += w * w;
            placed_squares[k] += place * place * w * w;
        }
    }
    const float scale = columns > 0 ? inverse_power(most) : 0.0F;
    out.inverse_scale[tile] = scale;
    for (std::int64_t which = 0; which < kChecksums; ++which) {
        const double* sums = which == 0 ? plain : placed;
        const double* energy = which == 0 ? squares : placed_squares;
        float* column = out.columns + (kChecksums * tile + which) * hidden;
        for (std::int64_t k = 0; k < hidden; ++k) column[k] = scale == 0.0F ? 0.0F : static_cast<float>(sums[k]);
        for (std::int64_t b = 0; b < blocks; ++b) {
            double total = 0.0;
            for (std::int64_t k = b * kBlock; k < Grid::least((b + 1) * kBlock, hidden); ++k)
                total += energy[k] + sums[k] * sums[k];  // of the products, and of the expected sum's own
            out.energies[(kChecksums * tile + which) * blocks + b] =
                scale == 0.0F ? 0.0F : static_cast<float>(total * scale * scale);
        }
    }
}

// A row's digest: every element's bits, times an odd number that is its place's own.
inline constexpr std::uint32_t kOdd = 0x9E3779B1U;  // 2^32 / golden ratio, odd
constexpr std::uint32_t digest_factor(std::int64_t k) { return static_cast<std::uint32_t>(2 * k + 1) * kOdd; }

// The digests, scales and energies of rows [begin, end) of a chunk, from the caller's matrix. row: H floats.
inline void measure_input(const Chunk& chunk, std::int64_t begin, std::int64_t end, float* row) {
    const Matrix& input = chunk.problem->input;
    const ChunkChecks& checks = *chunk.checks;
    const std::int64_t hidden = input.columns;
    const std::int64_t blocks = Grid::ceil_div(hidden, kBlock);
    for (std::int64_t r = begin; r < end; ++r) {
        std::uint32_t digest = 0;
        float scale = 0.0F;
        if (r < chunk.rows) {
            read_row(input, chunk.row_begin + r, row);
            for (std::int64_t k = 0; k < hidden; ++k) digest += std::bit_cast<std::uint32_t>(row[k]) * digest_factor(k);
            scale = inverse_power(largest_magnitude(row, hidden));
        }
        checks.input_digest[r] = digest;
        checks.inverse_scale[r] = scale;
        for (std::int64_t b = 0; b < blocks; ++b) {
            constexpr std::int64_t kTogether = 16;  // sums side by side, so that the compiler makes vectors of them
            float sums[kTogether] = {};
            const std::int64_t stop = scale == 0.0F ? 0 : Grid::least((b + 1) * kBlock, hidden);
            std::int64_t k = b * kBlock;
            for (; k + kTogether <= stop; k += kTogether)
                for (std::int64_t i = 0; i < kTogether; ++i) {
                    const float x = row[k + i] * scale;
                    sums[i] += x * x;
                }
            for (; k < stop; ++k) sums[0] += row[k] * scale * (row[k] * scale);
            float total = 0.0F;
            for (const float s : sums) total += s;
            checks.energies[b * chunk.padded_rows + r] = total;
        }
    }
}

// The first row of [begin, end) (multiples of the panel's rows) whose packed elements aren't those of the source; or
// end.
inline std::int64_t first_damaged_row(const Chunk& chunk, std::int64_t begin, std::int64_t end) {
    const std::int64_t hidden = chunk.problem->depth();
    if (takes_few_rows(chunk.problem->weight, chunk.rows)) {
        for (std::int64_t r = begin; r < chunk.rows; ++r) {
            std::uint32_t digest = 0;
            for (std::int64_t k = 0; k < hidden; ++k)
                digest += std::bit_cast<std::uint32_t>(chunk.panels[k * chunk.rows + r]) * digest_factor(k);
            if (digest != chunk.checks->input_digest[r]) return r;
        }
        return end;
    }
    for (std::int64_t row = begin; row < end; row += kPanelRows) {
        std::uint32_t digests[kPanelRows] = {};
        for (std::int64_t k = 0; k < hidden; k += kBlock) {
            const std::int64_t depth = Grid::least(kBlock, hidden - k);
            const float* panel = chunk.panels + panel_offset(chunk.padded_rows, kPanelRows, k, depth, row / kPanelRows);
            for (std::int64_t i = 0; i < depth; ++i) {
                const std::uint32_t factor = digest_factor(k + i);
                for (std::int64_t r = 0; r < kPanelRows; ++r)
                    digests[r] += std::bit_cast<std::uint32_t>(panel[i * kPanelRows + r]) * factor;
            }
        }
        for (std::int64_t r = 0; r < kPanelRows && row + r < chunk.rows; ++r)
            if (digests[r] != chunk.checks->input_digest[row + r]) return row + r;
    }
    return end;
}

// ---- The threshold ----

// Squares of residuals are compared with kSafety^2 times an upper estimate of their variance by rounding. Per logit,
// with u = 2^-24 for a rounding, errors of independent roundings and |partial sums| by Cauchy-Schwarz on blocks (x_b,
// w_b): within a block of L elements L / 3 |x_b|^2 |w_b|^2, of the sums of `blocks` blocks blocks^2 / 3 of the same,
// and of the checksum's own additions 3 blocks; a rounding's variance is u^2 / 3. Operands whose products all have one
// sign come near to it; those of random signs stay far below, since their partial sums grow more slowly.
inline constexpr float kSafety = 6.0F;
inline constexpr float kUnit = 0x1p-24F;

struct Threshold {
    float factor;     // times the energies
    float underflow;  // of one: what is lost below the smallest number, before scales
    std::int64_t blocks;
};
inline Threshold threshold_for(std::int64_t hidden) {
    const std::int64_t blocks = std::max<std::int64_t>(1, Grid::ceil_div(hidden, kBlock));
    const auto n = static_cast<float>(blocks);
    const auto chain = static_cast<float>(Grid::least(hidden, kBlock));
    const float depth = static_cast<float>(std::max<std::int64_t>(1, hidden));
    const float variance = (chain + n * n + 9.0F * n + 108.0F * n / depth) / 9.0F;
    return {kSafety * kSafety * kUnit * kUnit * variance, 0x1p-149F * 32.0F * static_cast<float>(hidden), blocks};
}

// The square of a residual, scaled as the energies, and that of its threshold; for one vector of rows from `row` on.
struct Residual {
    Vec square;
    Vec threshold;
};
inline Residual residual_of(const Chunk& chunk, const Threshold& t, std::int64_t tile, std::int64_t which,
                            std::int64_t row, Vec sum) {
    const ChunkChecks& checks = *chunk.checks;
    const WeightChecksums& weight = *checks.verification->weight;
    const std::int64_t at = kChecksums * tile + which;
    const Vec x_scale = load(checks.inverse_scale + row);
    const Vec w_scale = set1(weight.inverse_scale[tile]);
    Vec energy = zero();
    for (std::int64_t b = 0; b < t.blocks && chunk.problem->depth() > 0; ++b)
        energy =
            fma(load(checks.energies + b * chunk.padded_rows + row), set1(weight.energies[at * t.blocks + b]), energy);
    const Vec underflow = set1(t.underflow) * x_scale * w_scale;
    const Vec off = (sum - load(checks.expected + at * chunk.padded_rows + row)) * x_scale * w_scale;
    return {off * off, fma(energy, set1(t.factor), underflow * underflow)};
}

}  // namespace steadysum::STEADYSUM_ISA
