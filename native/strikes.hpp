// Faults for campaigns: a build with traps lets a test strike one value at one moment of a verified run. In the normal
// build `strike` is empty and compiled out.
#pragma once

#include <cstdint>

#ifdef STEADYSUM_TRAPS
#include <atomic>
#include <bit>
#endif

namespace steadysum {

// Where a strike can fall: which values lie in memory, or in registers, at that moment.
enum class Target : int { none, input, weight, logit, late_logit, exp, sum, max, partial };

#ifdef STEADYSUM_TRAPS

// What a strike does: value := value + add * |scale of its surroundings|, or flips a bit of it.
struct Strike {
    Target target = Target::none;
    std::int64_t after = 0;  // passes of `target` that are left alone
    std::int64_t index = 0;  // of the value, modulo how many there are
    int bit = -1;            // to flip; -1: none
    float add = 0.0F;
    bool persistent = false;  // strikes at every later pass, too
    bool unhealed = false;    // checks find nothing: to see what the fault alone does
    std::atomic<std::int64_t> passes{0};
    std::atomic<std::int64_t> struck{0};
};
inline Strike the_strike;

// A pass of a target: `count` values, `stride` apart.
inline void strike(Target target, float* values, std::int64_t count, std::int64_t stride = 1) {
    Strike& s = the_strike;
    if (s.target != target || count == 0) return;
    const std::int64_t pass = s.passes.fetch_add(1);
    if (pass < s.after || (pass > s.after && !s.persistent)) return;
    float& value = values[s.index % count * stride];
    if (s.bit >= 0) value = std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) ^ (1U << s.bit));
    value += s.add;
    s.struck.fetch_add(1);
}

inline bool unhealed() { return the_strike.unhealed; }

#else
constexpr bool unhealed() { return false; }
constexpr void strike(Target, float*, std::int64_t, std::int64_t = 1) {}
#endif

}  // namespace steadysum
