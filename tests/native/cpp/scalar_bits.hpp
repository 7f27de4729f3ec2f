// The published bits (docs/bits.md) as a plain loop, one float at a time, written from that page alone. It shares with
// the kernel the descriptions of a problem (problem.hpp), of what gradients read and of their coefficients, and nothing
// else.
#pragma once

#include <cstdint>
#include <vector>

#include "gradients.hpp"
#include "problem.hpp"

namespace scalar {

float exp(float x);
float tanh(float x);
float log(float x);

// The one element of an operand, widened.
float element(const steadysum::Matrix& m, std::int64_t row, std::int64_t column);
float element(const steadysum::Vector& v, std::int64_t i);

struct Partial {
    float max;
    float sum;
    float weighted;
};
Partial merge(const Partial& a, const Partial& b);

// A row's logits; masked columns are -inf.
std::vector<float> logits(const steadysum::Problem& problem, std::int64_t row);
// A row's statistics, from its logits.
Partial statistics(const steadysum::Problem& problem, const std::vector<float>& logits);

// "Gradients". `row` is one of the problem; operands and coefficients are those of all its rows.
struct RowSums {
    float ties;
    float column_sum;
    float dense_total;  // this and the next ones: 0 without a dense matrix
    float dense_sum;
    float dense_exp;
};
RowSums row_sums(const steadysum::Problem& problem, const steadysum::RowOperands& operands, std::int64_t row,
                 const std::vector<float>& logits, float max);

// The gradient of a row's unmasked logits.
std::vector<float> logit_gradient(const steadysum::Problem& problem, const steadysum::RowOperands& operands,
                                  const steadysum::RowTerms& terms, std::int64_t row, const std::vector<float>& logits,
                                  float max);

// The three gradients, from that of every row's logits; those of weight and bias hold the unmasked columns alone.
struct Gradients {
    std::vector<float> input;   // [N, H]
    std::vector<float> weight;  // [valid, H]
    std::vector<float> bias;    // [valid]
};
Gradients gradients(const steadysum::Problem& problem, const std::vector<std::vector<float>>& logit_gradients);

}  // namespace scalar
