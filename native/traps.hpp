// Numerical traps that shipped in other libraries, armed one at a time in a test build, so that each trap's test can be
// seen to fail. In the normal build `armed` is a constant false and every trap is compiled out.
#pragma once

namespace steadysum {

enum class Trap : int {
    none = 0,
    tail_counts_as_zero,         // the ragged tail of the vocabulary enters the sum as exp(0 - m)
    max_starts_at_zero,          // the running max starts at 0, not at -inf
    bias_once_per_block,         // the bias is added once per block of the reduction index
    masked_tile_is_nan,          // exp(-inf - -inf) is not taken as 0
    strides_ignored,             // operands are read as if they were contiguous
    offsets_in_32_bits,          // element offsets are formed in 32-bit arithmetic
    stale_partial,               // the first tile's partial is not written: the slot's old content is folded
    loss_as_difference,          // the log-probability as z - (m + log s)
    logit_gradient_in_16_bits,   // probability minus one is rounded to bf16 before the products of the backward
    weight_gradient_in_16_bits,  // the weight's gradient is accumulated in bf16 over blocks of rows
    input_gradient_in_16_bits,   // the input's gradient is accumulated in bf16 over segments of the vocabulary
};

#ifdef STEADYSUM_TRAPS
inline Trap armed_trap = Trap::none;
inline bool armed(Trap trap) { return armed_trap == trap; }
#else
constexpr bool armed(Trap) { return false; }
#endif

}  // namespace steadysum
