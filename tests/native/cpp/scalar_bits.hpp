// The published bits (docs/bits.md) as a plain loop, one float at a time, written from that page alone. It shares with
// the kernel the description of a problem (problem.hpp) and nothing else.
#pragma once

#include <cstdint>
#include <vector>

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

}  // namespace scalar
