#include "scalar_bits.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

namespace scalar {
namespace {

using steadysum::DType;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

float from_bits(std::uint32_t bits) {
    float x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
}
std::uint32_t bits_of(float x) {
    std::uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    return bits;
}
const float kNaN = from_bits(0x7FC00000U);

float widen_bf16(std::uint16_t h) { return from_bits(static_cast<std::uint32_t>(h) << 16); }

float widen_f16(std::uint16_t h) {
    const float sign = (h & 0x8000U) != 0 ? -1.0F : 1.0F;
    const int exponent = (h >> 10) & 0x1F;
    const int mantissa = h & 0x3FF;
    if (exponent == 31) return mantissa != 0 ? kNaN : sign * kInfinity;
    if (exponent == 0) return sign * std::ldexp(static_cast<float>(mantissa), -24);
    return sign * std::ldexp(static_cast<float>(1024 + mantissa), exponent - 25);
}

float widen(const void* data, DType dtype, std::int64_t offset) {
    if (dtype == DType::f32) return static_cast<const float*>(data)[offset];
    const std::uint16_t h = static_cast<const std::uint16_t*>(data)[offset];
    return dtype == DType::bf16 ? widen_bf16(h) : widen_f16(h);
}

// The larger, where -0 < +0; NaN if either is.
float larger(float a, float b) {
    if (std::isnan(a) || std::isnan(b)) return kNaN;
    if (a == b) return std::signbit(a) ? b : a;
    return a > b ? a : b;
}

float pairwise(std::array<float, 16> a) {
    for (std::size_t n = 8; n >= 1; n /= 2)
        for (std::size_t i = 0; i < n; ++i) a[i] = a[2 * i] + a[2 * i + 1];
    return a[0];
}

Partial tile(const float* z, std::int64_t n) {
    float m = -kInfinity;
    std::int64_t infinite = 0;
    for (std::int64_t j = 0; j < n; ++j) {
        m = larger(m, z[j]);
        if (z[j] == kInfinity) ++infinite;
    }
    if (std::isnan(m)) return {kNaN, kNaN, kNaN};
    if (m == -kInfinity) return {-kInfinity, 0.0F, 0.0F};
    if (m == kInfinity) return {kInfinity, static_cast<float>(infinite), kNaN};
    std::array<float, 16> sums{};
    std::array<float, 16> weighted{};
    for (std::int64_t j = 0; j < n; ++j) {
        const auto a = static_cast<std::size_t>(j % 16);
        const float d = z[j] - m;
        const float e = exp(d);
        sums[a] = sums[a] + e;
        weighted[a] = weighted[a] + (e == 0.0F ? 0.0F : e * d);
    }
    return {m, pairwise(sums), pairwise(weighted)};
}

float moved(const Partial& x, float M, float f) {
    if (x.max == M) return x.weighted;
    if (f == 0.0F) return 0.0F;
    return f * std::fma(x.sum, x.max - M, x.weighted);
}

std::vector<float> widened(const steadysum::Matrix& m) {
    std::vector<float> elements;
    for (std::int64_t row = 0; row < m.rows; ++row)
        for (std::int64_t column = 0; column < m.columns; ++column) elements.push_back(element(m, row, column));
    return elements;
}

// --- The grid and the fold ---
struct Columns {
    std::int64_t begin;
    std::int64_t end;
};

// In columns of the problem's own, also where these are a shard of a larger vocabulary.
std::vector<Columns> segments_of(const steadysum::Problem& problem) {
    const std::int64_t here = problem.vocabulary();
    const std::int64_t V = problem.shard.vocabulary == 0 ? here : problem.shard.vocabulary;
    const std::int64_t width = V >= 8192 ? (V - 1) / 16 + 1 : 512;
    std::vector<Columns> segments;
    for (std::int64_t begin = -problem.shard.start; begin < here; begin += width)
        if (begin + width > 0) segments.push_back({std::max<std::int64_t>(begin, 0), std::min(begin + width, here)});
    return segments;
}

// The tree of 16 leaves: absent ones are on the right, so a last node without a neighbour moves up as it is.
template <typename Node, typename Join>
Node tree(std::vector<Node> nodes, Join&& join) {
    while (nodes.size() > 1) {
        std::vector<Node> parents;
        for (std::size_t i = 0; i < nodes.size(); i += 2)
            parents.push_back(i + 1 < nodes.size() ? join(nodes[i], nodes[i + 1]) : nodes[i]);
        nodes = parents;
    }
    return nodes[0];
}

// Joins in the fold's order what of_tile(begin, size) finds for each tile's unmasked columns.
template <typename OfTile, typename Join>
auto over_tiles(const steadysum::Problem& problem, OfTile&& of_tile, Join&& join) {
    using Node = decltype(of_tile(std::int64_t{}, std::int64_t{}));
    std::vector<Node> leaves;
    for (const Columns& segment : segments_of(problem)) {
        Node folded{};
        for (std::int64_t at = segment.begin; at < segment.end; at += 512) {
            const std::int64_t unmasked = std::min({at + 512, segment.end, problem.valid_columns});
            const Node found = of_tile(at, std::max<std::int64_t>(unmasked - at, 0));
            folded = at == segment.begin ? found : join(folded, found);
        }
        leaves.push_back(folded);
    }
    return tree(leaves, join);
}

// The sum over blocks of 128: the first one's, to which the others are added; +0 where there is none.
template <typename OfBlock>
float by_blocks(std::int64_t begin, std::int64_t end, OfBlock&& of_block) {
    float sum = 0.0F;
    for (std::int64_t at = begin; at < end; at += 128) {
        const float value = of_block(at, std::min(at + 128, end));
        sum = at == begin ? value : sum + value;
    }
    return sum;
}

float canonical(float x) { return std::isnan(x) ? kNaN : x; }

}  // namespace

float exp(float x) {
    if (std::isnan(x)) return x;
    if (x < -0x1.5d3334p+6F) return 0.0F;
    const float t = std::fma(x, 0x1.715476p+0F, 12583039.0F);
    const float n = t - 12583039.0F;
    float r = std::fma(n, -0x1.62e4p-1F, x);
    r = std::fma(n, -0x1.7f7d1cp-20F, r);
    float q = 0x1.6a2352p-10F;
    q = std::fma(q, r, 0x1.123a6ap-7F);
    q = std::fma(q, r, 0x1.5558f4p-5F);
    q = std::fma(q, r, 0x1.555490p-3F);
    q = std::fma(q, r, 0x1.fffffcp-2F);
    float p = std::fma(q, r, 1.0F);
    p = std::fma(p, r, 1.0F);
    return p * std::ldexp(1.0F, static_cast<int>(n));
}

float tanh(float x) {
    const float u = std::fabs(x);
    if (std::isnan(x)) return x;
    if (u < 0.625F) {
        const float y = x * x;
        float q = -0x1.733f82p-8F;
        q = std::fma(q, y, 0x1.51c5d6p-6F);
        q = std::fma(q, y, -0x1.b83a14p-5F);
        q = std::fma(q, y, 0x1.1107acp-3F);
        q = std::fma(q, y, -0x1.55553ap-2F);
        return std::fma(x * y, q, x);
    }
    const float e = exp(u * -2.0F);
    return std::copysign((1.0F - e) / (1.0F + e), x);
}

float log(float x) {
    if (x == 0.0F) return -kInfinity;
    if (std::isnan(x) || x < 0.0F) return kNaN;
    if (x == kInfinity) return x;
    int k = 0;
    if (x < std::numeric_limits<float>::min()) {
        x = x * 0x1p25F;
        k = -25;
    }
    const auto above = static_cast<std::int32_t>(bits_of(x)) - 0x3F3504F3;
    k += above >> 23;
    const float m = from_bits((static_cast<std::uint32_t>(above) & 0x007FFFFFU) + 0x3F3504F3U);
    const float f = m - 1.0F;
    const float s = f / (2.0F + f);
    const float z = s * s;
    const float r = z * (0x1.555556p-1F + z * (0x1.999a7ep-2F + z * (0x1.243534p-2F + z * 0x1.e3bd10p-3F)));
    const float h = (0.5F * f) * f;
    const auto n = static_cast<float>(k);
    return n * 0x1.62e4p-1F - ((h - (s * (h + r) + n * 0x1.7f7d1cp-20F)) - f);
}

float element(const steadysum::Matrix& m, std::int64_t row, std::int64_t column) {
    return widen(m.data, m.dtype, row * m.row_stride + column * m.column_stride);
}
float element(const steadysum::Vector& v, std::int64_t i) { return widen(v.data, v.dtype, i * v.stride); }

Partial merge(const Partial& a, const Partial& b) {
    const float M = larger(a.max, b.max);
    const float fa = a.max == M ? 1.0F : exp(a.max - M);
    const float fb = b.max == M ? 1.0F : exp(b.max - M);
    return {M, canonical(std::fma(b.sum, fb, a.sum * fa)), canonical(moved(a, M, fa) + moved(b, M, fb))};
}

std::vector<float> logits(const steadysum::Problem& problem, std::int64_t row) {
    const auto& e = problem.epilogue;
    const std::int64_t H = problem.depth();
    std::vector<float> result(static_cast<std::size_t>(problem.vocabulary()), -kInfinity);
    for (std::int64_t j = 0; j < problem.valid_columns; ++j) {
        float z = 0.0F;
        for (std::int64_t begin = 0; begin < H; begin += 128) {
            float c = 0.0F;
            for (std::int64_t k = begin; k < std::min(begin + 128, H); ++k)
                c = std::fma(element(problem.input, row, k), element(problem.weight, j, k), c);
            z = begin == 0 ? c : z + c;
        }
        if (e.bias.data != nullptr) z = z + element(e.bias, j);
        if (e.scale != 1.0F) z = z * e.scale;
        if (e.softcap != 0.0F) z = e.softcap * tanh(z / e.softcap);
        if (e.temperature != nullptr) z = z / e.temperature[e.temperature_per_row ? row : 0];
        result[static_cast<std::size_t>(j)] = z;
    }
    return result;
}

Partial statistics(const steadysum::Problem& problem, const std::vector<float>& logits) {
    return over_tiles(
        problem, [&](std::int64_t begin, std::int64_t size) { return tile(logits.data() + begin, size); }, merge);
}

RowSums row_sums(const steadysum::Problem& problem, const steadysum::RowOperands& operands, std::int64_t row,
                 const std::vector<float>& logits, float max) {
    const auto of_tile = [&](std::int64_t begin, std::int64_t size) {
        std::array<std::array<float, 16>, 5> sums{};
        for (std::int64_t j = 0; j < size; ++j) {
            const std::int64_t column = begin + j;
            const float z = logits[static_cast<std::size_t>(column)];
            const float d = z - max;
            const float w = operands.column_weight == nullptr ? 1.0F : operands.column_weight[column];
            const float q = operands.dense == nullptr ? 0.0F : element(*operands.dense, row, column);
            const std::array<float, 5> terms{z == max ? 1.0F : 0.0F, w * d, w * q, (w * q) * d, q * exp(d)};
            for (std::size_t sum = 0; sum < terms.size(); ++sum) {
                float& a = sums[sum][static_cast<std::size_t>(j % 16)];
                a = a + terms[sum];
            }
        }
        return RowSums{pairwise(sums[0]), pairwise(sums[1]), pairwise(sums[2]), pairwise(sums[3]), pairwise(sums[4])};
    };
    const auto add = [](const RowSums& a, const RowSums& b) {
        return RowSums{a.ties + b.ties, a.column_sum + b.column_sum, a.dense_total + b.dense_total,
                       a.dense_sum + b.dense_sum, a.dense_exp + b.dense_exp};
    };
    RowSums sums = over_tiles(problem, of_tile, add);
    if (std::isnan(max)) sums.ties = kNaN;  // carried with the partials, all of whose sums are then NaN
    return sums;
}

std::vector<float> logit_gradient(const steadysum::Problem& problem, const steadysum::RowOperands& operands,
                                  const steadysum::RowTerms& terms, std::int64_t row, const std::vector<float>& logits,
                                  float max) {
    const auto& options = problem.epilogue;
    std::vector<float> result;
    for (std::int64_t j = 0; j < problem.valid_columns; ++j) {
        const float z = logits[static_cast<std::size_t>(j)];
        const float w = operands.column_weight == nullptr ? 1.0F : operands.column_weight[j];
        const float q = operands.dense == nullptr ? 0.0F : element(*operands.dense, row, j);
        const float d = z - max;
        const float e = exp(d);
        float g = 0.0F;
        if (terms.exp != nullptr) {
            const float A = terms.exp[row];
            g = terms.slope == nullptr || e == 0.0F ? e * A : e * std::fma(terms.slope[row], d, A);
            if (terms.center != nullptr) g = g * (q - terms.center[row]);
            if (terms.keep_above != nullptr && e < terms.keep_above[row]) g = 0.0F;
        }
        if (terms.column != nullptr) g = std::fma(terms.column[row], w, g);
        if (terms.dense != nullptr) g = std::fma(terms.dense[row] * w, q, g);
        if (terms.tie != nullptr && z == max) g = g + terms.tie[row];
        if (terms.target != nullptr && problem.target[row] == j) g = g + terms.target[row];
        const float* temperature = options.temperature;
        if (temperature != nullptr && options.temperature_per_row) temperature += row;
        if (temperature != nullptr) g = g / *temperature;
        if (options.softcap != 0.0F) {
            const float c = temperature != nullptr ? z * *temperature : z;
            const float u = c / options.softcap;
            g = g * std::fma(-u, u, 1.0F);
        }
        if (options.scale != 1.0F) g = g * options.scale;
        result.push_back(g);
    }
    return result;
}

Gradients gradients(const steadysum::Problem& problem, const std::vector<std::vector<float>>& logit_gradients) {
    const std::int64_t H = problem.depth();
    const auto G = [&](std::int64_t i, std::int64_t j) {
        return logit_gradients[static_cast<std::size_t>(i)][static_cast<std::size_t>(j)];
    };
    const auto add = [](float a, float b) { return a + b; };
    const auto at = [&](const std::vector<float>& elements, std::int64_t row, std::int64_t h) {
        return elements[static_cast<std::size_t>(row * H + h)];
    };
    const std::vector<float> input = widened(problem.input);
    const std::vector<float> weight = widened(problem.weight);
    Gradients result;
    for (std::int64_t i = 0; i < problem.rows(); ++i)
        for (std::int64_t h = 0; h < H; ++h) {
            const auto chain = [&](std::int64_t begin, std::int64_t end) {
                float c = 0.0F;
                for (std::int64_t j = begin; j < end; ++j) c = std::fma(G(i, j), at(weight, j, h), c);
                return c;
            };
            std::vector<float> segments;
            for (const Columns& segment : segments_of(problem))
                segments.push_back(by_blocks(segment.begin, std::min(segment.end, problem.valid_columns), chain));
            result.input.push_back(tree(segments, add));
        }
    for (std::int64_t j = 0; j < problem.valid_columns; ++j) {
        for (std::int64_t h = 0; h < H; ++h)
            result.weight.push_back(by_blocks(0, problem.rows(), [&](std::int64_t begin, std::int64_t end) {
                float c = 0.0F;
                for (std::int64_t i = begin; i < end; ++i) c = std::fma(G(i, j), at(input, i, h), c);
                return c;
            }));
        result.bias.push_back(by_blocks(0, problem.rows(), [&](std::int64_t begin, std::int64_t end) {
            std::array<float, 16> sums{};
            for (std::int64_t i = begin; i < end; ++i) {
                float& a = sums[static_cast<std::size_t>(i % 16)];
                a = a + G(i, j);
            }
            return pairwise(sums);
        }));
    }
    return result;
}

}  // namespace scalar
