// Runs problems: cuts them into chunks of rows and tasks, and has the pool's threads compute those. Nothing here
// touches a bit of the result.
#pragma once

#include <cstdint>
#include <vector>

#include "checks.hpp"
#include "problem.hpp"

namespace steadysum {

// Computes all problems in one parallel region (in several, one after the other, when their packed inputs exceed the
// memory bound). Throws std::bad_alloc when there is no memory for scratch.
void run(const std::vector<Problem>& problems, int threads);
// The same, verified: one request per problem, all with the same log. When that has bad rows, or stale checksums, at
// the end, results aren't to be used.
void run_verified(const std::vector<Problem>& problems, const std::vector<Verification>& verifications, int threads);
// The checksums of problems' weight: of all tiles of its grid.
void take_weight_checksums(const Problem& problem, const WeightChecksums& out, int threads);

// logits[row][column] := exp(logits - max[row]) / sum[row].
void run_softmax(float* logits, std::int64_t rows, std::int64_t columns, const float* max, const float* sum,
                 int threads);

}  // namespace steadysum
