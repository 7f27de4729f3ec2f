// Drawn problems (cases.hpp) with what gradients need beside them: coefficients, class weights, a dense matrix, chunks
// of rows. Their published gradients and sums come from the scalar definition. Not here: which cases run, on which
// variants (gradient_tests.hpp).
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "cases.hpp"
#include "gradients.hpp"
#include "scalar_bits.hpp"

namespace cases {

struct GradientCase {
    Case forward;
    std::string letters{};  // coefficients, as docs/bits.md calls them; K and C come with A only
    bool column_weight = false;
    bool dense = false;  // C and D need it
    Layout dense_layout = Layout::contiguous;
    steadysum::DType dense_dtype = steadysum::DType::f32;
    bool known = false;             // the statistics are; else logits are kept until they are found
    std::int64_t chunk_rows = 128;  // a multiple of 128
    bool wants_input = true;
    bool wants_weight = true;
    bool wants_bias = true;

    [[nodiscard]] bool has(char letter) const { return letters.find(letter) != std::string::npos; }
};

inline std::string describe(const GradientCase& g) {
    return describe(g.forward) + " coefficients=" + g.letters + " column_weight=" + std::to_string(g.column_weight) +
           " dense=" + std::to_string(g.dense) + " layout=" + std::to_string(static_cast<int>(g.dense_layout)) +
           " dtype=" + std::to_string(static_cast<int>(g.dense_dtype)) + " known=" + std::to_string(g.known) +
           " chunk_rows=" + std::to_string(g.chunk_rows) + " wants=" + std::to_string(g.wants_input) +
           std::to_string(g.wants_weight) + std::to_string(g.wants_bias);
}

// What surrounds a given problem.
inline GradientCase around(const Case& forward) {
    std::mt19937 random(forward.seed + 10000);
    const auto chance = [&] { return below(random, 2) == 0; };
    GradientCase g{.forward = forward};
    g.letters = std::array{"", "A", "A", "AK", "AC", "AKC"}[static_cast<std::size_t>(below(random, 6))];
    for (const char letter : {'U', 'D', 'T', 'B'})
        if (chance()) g.letters += letter;
    if (below(random, 4) == 0) g.letters += 'L';
    if (g.has('B')) g.forward.wants_target = true;
    g.forward.wants_logits = false;  // none leave the kernel where gradients are formed
    g.column_weight = chance();
    g.dense = g.has('C') || g.has('D') || chance();
    g.dense_layout = static_cast<Layout>(below(random, kLayouts));
    g.dense_dtype = static_cast<steadysum::DType>(below(random, 3));
    g.known = chance();
    g.chunk_rows = std::int64_t{128} * (1 + below(random, 3));
    const int wanted = below(random, 14);  // half of the time all three
    g.wants_input = wanted >= 7 || (wanted + 1) % 2 == 1;
    g.wants_weight = wanted >= 7 || (wanted + 1) / 2 % 2 == 1;
    g.wants_bias = wanted >= 7 || (wanted + 1) / 4 % 2 == 1;
    return g;
}

inline GradientCase draw_gradient(unsigned seed) {
    Case c = draw(seed);
    if (seed % 3 == 0) {  // across blocks of rows
        std::mt19937 random(seed + 20000);
        c.rows =
            std::array{127, 128, 129, 143, 144, 200, 255, 256, 257, 300}[static_cast<std::size_t>(below(random, 10))];
        c.depth = std::min<std::int64_t>(c.depth, 20);
        c.vocabulary = std::min<std::int64_t>(c.vocabulary, 300);
        c.valid = std::min(c.valid, c.vocabulary);
    }
    return around(c);
}

// A gradient case's operands in memory, and what the definition says about them.
class GradientExample {
   public:
    explicit GradientExample(const GradientCase& described)
        : g(described), example_(described.forward), known_max_(example_.expected().max) {
        const Case& c = g.forward;
        std::mt19937 random(c.seed + 30000);
        if (g.column_weight)
            for (std::int64_t j = 0; j < c.vocabulary; ++j)
                column_weight_.push_back(below(random, 4) == 0 ? 0.0F : draw_float(Values::usual, random));
        if (g.dense)
            dense_ =
                lay_out(dense_buffer_, {c.rows, c.vocabulary}, g.dense_layout, g.dense_dtype, Values::usual, random);
        for (std::size_t k = 0; k < kLetters.size(); ++k)
            for (std::int64_t i = 0; g.has(kLetters[k]) && i < c.rows; ++i) {
                const float x = draw_float(c.values == Values::wild ? Values::wild : Values::usual, random);
                coefficients_[k].push_back(kLetters[k] == 'L' ? std::fabs(x) / 4.0F : x);
            }

        Outputs unused(c);
        const steadysum::Problem p = example_.problem(unused);
        std::vector<std::vector<float>> G;
        for (std::int64_t row = 0; row < c.rows; ++row) {
            const float max = known_max_[static_cast<std::size_t>(row)];
            const std::vector<float> z = scalar::logits(p, row);
            const scalar::RowSums sums = scalar::row_sums(p, operands(dense_), row, z, max);
            const float values[] = {sums.column_sum, sums.dense_total, sums.dense_sum, sums.dense_exp};
            for (std::size_t k = 0; k < std::size(values); ++k) expected_sums_[k].push_back(values[k]);
            G.push_back(scalar::logit_gradient(p, operands(dense_), terms(0), row, z, max));
            for (const float x : G.back()) finite_ = finite_ && std::isfinite(x);
        }
        for (const steadysum::Matrix* m : {&p.input, &p.weight})
            for (std::int64_t row = 0; row < m->rows; ++row)
                for (std::int64_t column = 0; column < m->columns; ++column)
                    finite_ = finite_ && std::isfinite(scalar::element(*m, row, column));
        expected_ = scalar::gradients(p, G);
        // Masked columns of the results are left as they are.
        expected_.weight.resize(static_cast<std::size_t>(c.vocabulary * c.depth), kPoison);
        expected_.bias.resize(static_cast<std::size_t>(c.vocabulary), kPoison);
    }

    // What the variant that is chosen at the time makes of it.
    struct Results {
        explicit Results(const GradientCase& g) : statistics(g.forward) {
            const Case& c = g.forward;
            const auto poisoned = [](std::int64_t size) {
                return std::vector<float>(static_cast<std::size_t>(size), kPoison);
            };
            if (g.wants_input) input = poisoned(c.rows * c.depth);
            if (g.wants_weight) weight = poisoned(c.vocabulary * c.depth);
            if (g.wants_bias) bias = poisoned(c.vocabulary);
            for (std::size_t k = 0; k < sums.size() && !g.known; ++k)
                if (k == 0 || g.dense) sums[k] = poisoned(c.rows);
        }
        Outputs statistics;
        std::array<std::vector<float>, 4> sums;  // column_sum, dense_total, dense_sum, dense_exp
        std::vector<float> input;
        std::vector<float> weight;
        std::vector<float> bias;
    };

    [[nodiscard]] Results run(steadysum::GradientWork& work, int threads) const {
        Results out(g);
        for (std::int64_t start = 0; start < g.forward.rows; start += g.chunk_rows) {
            const steadysum::Problem p = chunk(out.statistics, start);
            steadysum::Matrix dense = dense_;
            advance(dense, start, p.rows());
            const steadysum::RowOperands beside = operands(dense);
            const auto from = [&](std::vector<float>& v, std::int64_t width) {
                return v.empty() ? nullptr : v.data() + start * width;
            };
            const steadysum::GradientResults results{from(out.input, g.forward.depth), from(out.weight, 0),
                                                     from(out.bias, 0), start == 0};
            if (g.known) {
                work.gradients(p, beside, terms(start), results, threads);
            } else {
                work.keep_logits(p, threads);
                work.sum(p, beside,
                         {from(out.sums[0], 1), from(out.sums[1], 1), from(out.sums[2], 1), from(out.sums[3], 1)},
                         threads);
                work.kept_gradients(p, beside, terms(start), results, threads);
            }
        }
        return out;
    }

    // Empty when the results are the published ones, else the first difference.
    [[nodiscard]] std::string difference(const Results& found) const {
        std::string first = g.known ? "" : example_.difference(found.statistics);
        const std::array sums{"column_sum", "dense_total", "dense_sum", "dense_exp"};
        for (std::size_t k = 0; k < sums.size(); ++k)
            if (first.empty()) first = compare(sums[k], found.sums[k], expected_sums_[k], false);
        if (first.empty()) first = compare_gradient("gradient of input", found.input, expected_.input);
        if (first.empty()) first = compare_gradient("gradient of weight", found.weight, expected_.weight);
        if (first.empty()) first = compare_gradient("gradient of bias", found.bias, expected_.bias);
        return first;
    }

    const GradientCase g;

   private:
    static constexpr std::array kLetters{'A', 'K', 'C', 'U', 'D', 'T', 'B', 'L'};  // in the order of RowTerms

    [[nodiscard]] steadysum::RowTerms terms(std::int64_t start) const {
        const auto of = [&](std::size_t k) {
            return coefficients_[k].empty() ? nullptr : coefficients_[k].data() + start;
        };
        return {of(0), of(1), of(2), of(3), of(4), of(5), of(6), of(7)};
    }

    [[nodiscard]] steadysum::RowOperands operands(const steadysum::Matrix& dense) const {
        return {column_weight_.empty() ? nullptr : column_weight_.data(), g.dense ? &dense : nullptr};
    }

    // The matrix's rows from `start` on.
    static void advance(steadysum::Matrix& m, std::int64_t start, std::int64_t rows) {
        if (m.data != nullptr)
            m.data = static_cast<const std::byte*>(m.data) + start * m.row_stride * cases::bytes_per_element(m.dtype);
        m.rows = rows;
    }

    // The chunk that starts at this row, as a problem of its own.
    [[nodiscard]] steadysum::Problem chunk(Outputs& out, std::int64_t start) const {
        steadysum::Problem p = example_.problem(out);
        const auto move = [&](auto*& pointer) {
            if (pointer != nullptr) pointer += start;
        };
        advance(p.input, start, std::min(g.chunk_rows, g.forward.rows - start));
        if (p.epilogue.temperature_per_row) move(p.epilogue.temperature);
        move(p.target);
        if (g.known) {
            p.max = const_cast<float*>(known_max_.data());  // read alone
            p.target_logit = p.weighted_sum = p.ties = nullptr;
        }
        for (float** output : {&p.max, &p.sum_exp, &p.target_logit, &p.weighted_sum, &p.ties}) move(*output);
        return p;
    }

    [[nodiscard]] std::string compare_gradient(const char* what, std::vector<float> found,
                                               const std::vector<float>& expected) const {
        if (found.empty()) return "";  // not wanted
        // With L terms that are 0 may be left out: a zero may have the other sign, and 0 * inf never be formed.
        for (std::size_t i = 0; g.has('L') && i < found.size(); ++i)
            if ((found[i] == 0.0F && expected[i] == 0.0F) || (!finite_ && std::isnan(expected[i])))
                found[i] = expected[i];
        return compare(what, found, expected, false);
    }

    Example example_;
    std::vector<float> known_max_;
    std::vector<float> column_weight_;
    Buffer dense_buffer_;
    steadysum::Matrix dense_;
    std::array<std::vector<float>, kLetters.size()> coefficients_;

    std::array<std::vector<float>, 4> expected_sums_;
    scalar::Gradients expected_;
    bool finite_ = true;  // all that the gradients are made of
};

}  // namespace cases
