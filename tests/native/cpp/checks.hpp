// The few words the kernel's test programs need: expect something, and say which test it failed in. No framework: these
// programs run under sanitizers, where every extra library is one more thing that isn't instrumented.
#pragma once

#include <atomic>
#include <cstdio>
#include <string>

namespace checks {

inline std::atomic<int> failures{0};

// Safe from several threads at once. The first failures say enough; the rest are counted.
inline void expect(bool holds, const std::string& what) {
    constexpr int kShown = 20;
    if (!holds && failures.fetch_add(1) < kShown) std::fprintf(stderr, "  FAILED: %s\n", what.c_str());
}

}  // namespace checks
