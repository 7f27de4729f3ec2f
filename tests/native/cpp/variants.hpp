// The kernel's variants that this program runs: those that the processor has, and the AVX-512 variant's source and
// blocking in two forms that run without it.
#pragma once

#include <algorithm>
#include <vector>

#include "dispatch.hpp"

namespace steadysum {
extern const TileKernel kernel_portable16;
#if defined(__x86_64__)
extern const TileKernel kernel_avx512_emulated;
#endif
}  // namespace steadysum

inline std::vector<const steadysum::TileKernel*> variants() {
    std::vector<const steadysum::TileKernel*> all = steadysum::runnable_kernels();
#if defined(__x86_64__)
    if (all.size() > 1) all.push_back(&steadysum::kernel_avx512_emulated);  // uses AVX2's conversions
#endif
    all.push_back(&steadysum::kernel_portable16);
    return all;
}

inline bool runs_here(const steadysum::TileKernel* variant) {
    const std::vector<const steadysum::TileKernel*> runnable = steadysum::runnable_kernels();
    return std::find(runnable.begin(), runnable.end(), variant) != runnable.end();
}
