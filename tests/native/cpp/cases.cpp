#include "cases.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "scalar_bits.hpp"

namespace cases {

using steadysum::DType;

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::uint32_t bits_of(float x) {
    std::uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    return bits;
}

}  // namespace

// --- Elements ---
std::int64_t bytes_per_element(DType dtype) { return dtype == DType::f32 ? 4 : 2; }

int below(std::mt19937& random, int limit) { return static_cast<int>(random() % static_cast<unsigned>(limit)); }

float draw_float(Values values, std::mt19937& random) {
    // The sum of four uniform numbers is normal enough.
    float x = 0.0F;
    for (int i = 0; i < 4; ++i) x += static_cast<float>(below(random, 1 << 20)) / static_cast<float>(1 << 20) - 0.5F;
    switch (values) {
        case Values::usual: return x;
        case Values::tiny: return x * 0x1p-66F;  // products near 2^-132
        case Values::equal: return 0.375F;
        case Values::wild: break;
    }
    switch (below(random, 300)) {
        case 0: return -0.0F;
        case 1: return 0.0F;
        case 2: return x * 1e30F;
        case 3: return x * 1e-40F;
        default: return x;
    }
}

namespace {

std::uint16_t draw_half(Values values, std::mt19937& random) {
    const auto sign = static_cast<unsigned>(below(random, 2)) << 15;
    const auto mantissa = static_cast<unsigned>(below(random, 1024));
    unsigned exponent = 8 + static_cast<unsigned>(below(random, 8));
    if (values == Values::equal) return 0x3600;  // 0.375
    if (values == Values::tiny || (values == Values::wild && below(random, 100) == 0)) exponent = 0;
    return static_cast<std::uint16_t>(sign | exponent << 10 | mantissa);
}

void store(void* to, DType dtype, Values values, std::mt19937& random) {
    if (dtype == DType::f32) {
        const float x = draw_float(values, random);
        std::memcpy(to, &x, sizeof x);
        return;
    }
    const std::uint16_t h = dtype == DType::f16 ? draw_half(values, random)
                                                : static_cast<std::uint16_t>(bits_of(draw_float(values, random)) >> 16);
    std::memcpy(to, &h, sizeof h);
}

// Infinities and NaN enter where they make logits of all kinds: an infinite bias masks or saturates one column, and an
// infinite input makes one row of +-inf and NaN.
void store_infinity(void* to, DType dtype, bool negative) {
    const std::uint32_t sign = negative ? 0x80000000U : 0U;
    if (dtype == DType::f32) {
        const std::uint32_t bits = sign | 0x7F800000U;
        std::memcpy(to, &bits, sizeof bits);
    } else {
        const auto bits = static_cast<std::uint16_t>(sign >> 16 | (dtype == DType::bf16 ? 0x7F80U : 0x7C00U));
        std::memcpy(to, &bits, sizeof bits);
    }
}

const char* name(DType dtype) { return dtype == DType::f32 ? "f32" : dtype == DType::bf16 ? "bf16" : "f16"; }

}  // namespace

// --- Comparison ---
bool same(float found, float expected, bool nan_bits_promised) {
    if (bits_of(found) == bits_of(expected)) return true;
    return !nan_bits_promised && std::isnan(found) && std::isnan(expected);
}

std::string compare(const char* what, const std::vector<float>& found, const std::vector<float>& expected,
                    bool nan_bits_promised) {
    for (std::size_t i = 0; i < found.size(); ++i)
        if (!same(found[i], expected[i], nan_bits_promised)) {
            char text[160];
            std::snprintf(text, sizeof text, "%s[%zu] is %a (%08x), defined is %a (%08x)", what, i, found[i],
                          bits_of(found[i]), expected[i], bits_of(expected[i]));
            return text;
        }
    return "";
}

// --- Cases ---
std::string describe(const Case& c) {
    char text[280];
    std::snprintf(text, sizeof text,
                  "N=%lld H=%lld V=%lld valid=%lld %s layouts=%d,%d values=%d bias=%lld%s scale=%g softcap=%g "
                  "temperature=%d target=%d weighted=%d ties=%d logits=%d beyond=%lld,%lld seed=%u",
                  static_cast<long long>(c.rows), static_cast<long long>(c.depth), static_cast<long long>(c.vocabulary),
                  static_cast<long long>(c.valid), name(c.dtype), static_cast<int>(c.input), static_cast<int>(c.weight),
                  static_cast<int>(c.values), static_cast<long long>(c.bias_stride), c.bias_in_f32 ? "f32" : "",
                  c.scale, c.softcap, static_cast<int>(c.temperature), c.wants_target, c.wants_weighted, c.wants_ties,
                  c.wants_logits, static_cast<long long>(c.before), static_cast<long long>(c.after), c.seed);
    return text;
}

Case draw(unsigned seed) {
    std::mt19937 random(seed);
    const auto pick = [&](std::initializer_list<int> from) {
        return std::int64_t{from.begin()[below(random, static_cast<int>(from.size()))]};
    };
    Case c;
    c.seed = seed;
    // Sizes beside every edge: a vector, a panel, a register block, a line, a chain of 128, a tile, 16 segments.
    c.rows = pick({1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 47, 64, 65, 100});
    c.depth = pick({0, 1, 2, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 127, 128, 129, 200, 256, 257, 300});
    c.vocabulary = pick({1, 2, 5, 6, 7, 12, 13, 14, 27, 28, 29, 126, 140, 141, 300, 511, 512, 513, 700, 1024, 1100});
    if (below(random, 10) == 0) {
        c.vocabulary = pick({8191, 8192, 8200, 9001});
        c.rows = pick({1, 3, 9, 33});
        c.depth = pick({0, 1, 17});
    }
    const auto vocabulary = static_cast<int>(c.vocabulary);
    c.valid = below(random, 2) == 0 ? c.vocabulary : 1 + below(random, vocabulary);
    c.dtype = static_cast<DType>(below(random, 3));
    if (below(random, 2) == 0) c.input = static_cast<Layout>(below(random, kLayouts));
    if (below(random, 2) == 0) c.weight = static_cast<Layout>(below(random, kLayouts));
    if (below(random, 2) == 0) c.values = static_cast<Values>(below(random, kValues));
    c.bias_stride = pick({0, 1, 1, 3, -1});
    c.bias_in_f32 = below(random, 2) == 0;
    c.scale = below(random, 3) == 0 ? -0.3F : 1.0F;
    c.softcap = below(random, 3) == 0 ? 1.7F : 0.0F;
    c.temperature = static_cast<Temperature>(below(random, 3));
    c.wants_target = below(random, 2) == 0;
    c.wants_weighted = below(random, 2) == 0;
    c.wants_logits = below(random, 2) == 0;
    c.wants_ties = !c.wants_weighted && below(random, 2) == 0;
    if (below(random, 3) == 0) {
        c.before = pick({0, 1, 100, 511, 512, 513, 1024, 4000, 9000});
        c.after = pick({0, 1, 511, 512, 3000, 8192});
        if (below(random, 8) == 0) c.after = std::numeric_limits<std::int64_t>::max() - c.before - c.vocabulary;
    }
    return c;
}

steadysum::Matrix lay_out(Buffer& buffer, Shape shape, Layout layout, DType dtype, Values values,
                          std::mt19937& random) {
    const auto [rows, columns] = shape;
    std::int64_t row_stride = columns;
    std::int64_t column_stride = 1;
    std::int64_t before = 0;  // elements in front of the first one
    switch (layout) {
        case Layout::contiguous: break;
        case Layout::transposed: row_stride = 1, column_stride = rows; break;
        case Layout::padded: row_stride = columns + 3, before = 1; break;
        case Layout::sparse: row_stride = 2 * columns, column_stride = 2; break;
        case Layout::reversed_rows: row_stride = -columns; break;
        case Layout::reversed_columns: column_stride = -1; break;
        case Layout::repeated_rows: row_stride = 0; break;
        case Layout::repeated_elements: row_stride = 1, column_stride = 0; break;
    }
    if (rows == 0 || columns == 0)  // as torch passes it: no memory at all, and strides of at least 1
        return {nullptr, dtype, rows, columns, std::max<std::int64_t>(std::abs(row_stride), 1), 1};
    const std::int64_t row_span = (rows - 1) * row_stride;
    const std::int64_t column_span = (columns - 1) * column_stride;
    const std::int64_t first = before + std::max<std::int64_t>(-row_span, 0) + std::max<std::int64_t>(-column_span, 0);
    const std::int64_t elements = before + std::abs(row_span) + std::abs(column_span) + 1;
    const auto width = bytes_per_element(dtype);
    buffer.bytes = std::make_unique_for_overwrite<std::byte[]>(static_cast<std::size_t>(elements * width));
    for (std::int64_t i = 0; i < elements; ++i) store(buffer.bytes.get() + i * width, dtype, values, random);
    buffer.first = buffer.bytes.get() + first * width;
    return {buffer.first, dtype, rows, columns, row_stride, column_stride};
}

Outputs::Outputs(const Case& c) {
    const auto rows = static_cast<std::size_t>(c.rows);
    max.assign(rows, kPoison);
    sum_exp.assign(rows, kPoison);
    if (c.wants_weighted) weighted_sum.assign(rows, kPoison);
    if (c.wants_ties) ties.assign(rows, kPoison);
    if (c.wants_target) target_logit.assign(rows, kPoison);
    if (c.wants_logits) logits.assign(rows * static_cast<std::size_t>(c.vocabulary), kPoison);
}

Example::Example(const Case& described) : c(described), expected_(described) {
    std::mt19937 random(c.seed);
    input_ = lay_out(input_buffer_, {c.rows, c.depth}, c.input, c.dtype, c.values, random);
    if (c.values == Values::wild) add_infinities(random);
    weight_ = lay_out(weight_buffer_, {c.vocabulary, c.depth}, c.weight, c.dtype, c.values, random);
    fill_bias(random);
    if (c.temperature == Temperature::one) temperature_ = {0.7F};
    if (c.temperature == Temperature::per_row)
        for (std::int64_t i = 0; i < c.rows; ++i) temperature_.push_back(0.5F + 0.125F * static_cast<float>(i % 13));
    for (std::int64_t i = 0; c.wants_target && i < c.rows; ++i)
        target_.push_back(below(random, static_cast<int>(c.valid)));

    Outputs unused(c);
    const steadysum::Problem p = problem(unused);
    for (std::int64_t row = 0; row < c.rows; ++row) {
        const auto i = static_cast<std::size_t>(row);
        const std::vector<float> z = scalar::logits(p, row);
        const scalar::Partial s = scalar::statistics(p, z);
        expected_.max[i] = s.max;
        expected_.sum_exp[i] = s.sum;
        if (c.wants_weighted) expected_.weighted_sum[i] = s.weighted;
        if (c.wants_ties) expected_.ties[i] = scalar::row_sums(p, {}, row, z, s.max).ties;
        if (c.wants_target) expected_.target_logit[i] = z[static_cast<std::size_t>(target_[i])];
        if (c.wants_logits)
            std::copy(z.begin(), z.end(), expected_.logits.begin() + static_cast<std::ptrdiff_t>(i * z.size()));
    }
}

// In one row in eight. (In weight they would be in every row.)
void Example::add_infinities(std::mt19937& random) {
    for (std::int64_t row = 0; row < c.rows && c.depth > 0; ++row)
        if (below(random, 8) == 0) {
            const std::int64_t column = below(random, static_cast<int>(c.depth));
            const std::int64_t at = row * input_.row_stride + column * input_.column_stride;
            store_infinity(static_cast<std::byte*>(input_buffer_.first) + at * bytes_per_element(c.dtype), c.dtype,
                           below(random, 2) == 0);
        }
}

void Example::fill_bias(std::mt19937& random) {
    if (c.bias_stride == 0) return;
    const DType dtype = c.bias_in_f32 ? DType::f32 : c.dtype;
    const auto width = bytes_per_element(dtype);
    const std::int64_t span = (c.vocabulary - 1) * std::abs(c.bias_stride);
    bias_buffer_.bytes = std::make_unique_for_overwrite<std::byte[]>(static_cast<std::size_t>((span + 1) * width));
    for (std::int64_t i = 0; i <= span; ++i) {
        std::byte* to = bias_buffer_.bytes.get() + i * width;
        store(to, dtype, c.values, random);
        // Wild: half the seeds have columns of -inf (here and there, or nearly everywhere), and some a +inf.
        const int rarity = c.seed % 3 == 0 ? 2 : 40;
        if (c.values == Values::wild && c.seed % 2 == 0 && below(random, rarity) == 0)
            store_infinity(to, dtype, c.scale > 0.0F);
        if (c.values == Values::wild && c.seed % 5 == 0 && below(random, 200) == 0)
            store_infinity(to, dtype, c.scale < 0.0F);
    }
    bias_ = {bias_buffer_.bytes.get() + (c.bias_stride < 0 ? span * width : 0), dtype, c.vocabulary, c.bias_stride};
}

steadysum::Problem Example::problem(Outputs& out) const {
    steadysum::Problem p;
    p.input = input_;
    p.weight = weight_;
    p.epilogue.bias = bias_;
    p.epilogue.scale = c.scale;
    p.epilogue.softcap = c.softcap;
    p.epilogue.temperature = temperature_.empty() ? nullptr : temperature_.data();
    p.epilogue.temperature_per_row = c.temperature == Temperature::per_row;
    p.valid_columns = c.valid;
    if (c.before + c.after > 0) p.shard = {c.before, c.before + c.vocabulary + c.after};
    p.max = out.max.data();
    p.sum_exp = out.sum_exp.data();
    if (c.wants_weighted) p.weighted_sum = out.weighted_sum.data();
    if (c.wants_ties) p.ties = out.ties.data();
    if (c.wants_target) {
        p.target = target_.data();
        p.target_logit = out.target_logit.data();
    }
    if (c.wants_logits) p.logits = out.logits.data();
    return p;
}

std::string Example::difference(const Outputs& out) const {
    std::string first;
    const auto look = [&](const char* what, const std::vector<float>& found, const std::vector<float>& expected,
                          bool nan_bits_promised) {
        if (first.empty()) first = compare(what, found, expected, nan_bits_promised);
    };
    look("max", out.max, expected_.max, true);
    look("sum_exp", out.sum_exp, expected_.sum_exp, true);
    look("weighted_sum", out.weighted_sum, expected_.weighted_sum, true);
    look("ties", out.ties, expected_.ties, false);
    look("target_logit", out.target_logit, expected_.target_logit, false);
    look("logits", out.logits, expected_.logits, false);
    return first;
}

}  // namespace cases
