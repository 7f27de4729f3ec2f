// Runs problems: cuts them into chunks of rows and tasks, and has the pool's threads compute those. Nothing here
// touches a bit of the result.
#pragma once

#include <cstdint>
#include <vector>

#include "problem.hpp"

namespace steadysum {

// Computes all problems in one parallel region (in several, one after the other, when their packed inputs exceed the
// memory bound). Throws std::bad_alloc when there is no memory for scratch.
void run(const std::vector<Problem>& problems, int threads);

// logits[row][column] := exp(logits - max[row]) / sum[row].
void run_softmax(float* logits, std::int64_t rows, std::int64_t columns, const float* max, const float* sum,
                 int threads);

}  // namespace steadysum
