// Gradients of one chunk of rows of a problem: the logits are kept, turned into their gradients in place, and
// multiplied with weight and with input. Nothing here touches a bit of the result: what is computed is docs/bits.md's
// business.
#pragma once

#include <cstdint>

#include "checks.hpp"
#include "problem.hpp"
#include "tile_kernel.hpp"
#include "workspace.hpp"

namespace steadysum {

// What the row sums and the gradient of the logits read beside the logits.
struct RowOperands {
    const float* column_weight = nullptr;  // [V]; nullptr: ones
    const Matrix* dense = nullptr;         // [rows of the chunk, V]
};

// Sums over each row, [rows of the chunk]; nullptr: not wanted.
struct RowSums {
    float* column_sum = nullptr;
    float* dense_total = nullptr;
    float* dense_sum = nullptr;
    float* dense_exp = nullptr;
};

// Results, contiguous; nullptr: not wanted. Masked columns of weight and bias are left as they are.
struct GradientResults {
    float* input = nullptr;   // [rows of the chunk, H]
    float* weight = nullptr;  // [V, H]
    float* bias = nullptr;    // [V]
    bool first = true;        // of the call's chunks: weight and bias are stored, not added to
};

// The memory of a call's chunks. A chunk is a problem of its own, whose rows are those of the chunk; chunks start at
// multiples of kBlock rows of the call.
class GradientWork {
   public:
    // Keeps the chunk's logits, and finds its statistics (the problem's outputs); verified, if that is asked for: with
    // bad rows or stale checksums in the log, results aren't to be used.
    void keep_logits(const Problem& problem, int threads, const Verification* verification = nullptr);
    // Sums over the rows of the kept logits; problem.max is read.
    void sum(const Problem& problem, const RowOperands& operands, const RowSums& sums, int threads);
    // The gradients of the kept logits, which are used up; problem.max is read.
    void kept_gradients(const Problem& problem, const RowOperands& operands, const RowTerms& terms,
                        const GradientResults& results, int threads);
    // The same without kept logits: each segment's are computed when it is its turn.
    void gradients(const Problem& problem, const RowOperands& operands, const RowTerms& terms,
                   const GradientResults& results, int threads);

   private:
    void by_segments(const Problem& problem, bool kept, const RowOperands& operands, const RowTerms& terms,
                     const GradientResults& results, int threads);

    Workspace packed_;
    Workspace logits_;
    Workspace partials_;
    Workspace checks_;
    Workspace hidden_panels_;
    Workspace sums_;
    Workspace scratch_;
};

}  // namespace steadysum
