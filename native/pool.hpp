// The kernel's threads. A job is a function that every participant calls once and that takes its share of the work from
// a common counter, so a job is right with any number of participants, one included.
#pragma once

#include <cstdint>
#include <functional>

namespace steadysum {

// Runs job(participant) on `threads` participants, the calling thread among them, and returns when all have returned.
// While another caller's job runs, the calling thread does the whole job alone. Safe in a child after fork: the child
// starts threads of its own. The job must not throw.
void run_on_pool(int threads, const std::function<void(int)>& job);

// Below this many multiply-adds waking a thread costs more than it saves.
inline constexpr std::int64_t kSerialWork = 1 << 20;

// Calls f(i, participant) for every i in [0, size), shared out over at most `threads` participants, low i first.
void share(int threads, std::int64_t size, const std::function<void(std::int64_t, int)>& f);

}  // namespace steadysum
