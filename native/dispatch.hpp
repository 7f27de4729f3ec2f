// Which variant of the tile kernel runs: the best that this processor has, or the one that was asked for.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "tile_kernel.hpp"

namespace steadysum {

// Variants that are compiled in and that this processor can run, best first.
[[nodiscard]] std::vector<const TileKernel*> runnable_kernels();
[[nodiscard]] const TileKernel& current_kernel();
// Throws std::invalid_argument when no runnable variant has this name.
void choose_kernel(const std::string& isa);
// Any table, also one that isn't compiled into the kernel: the test binary has a variant of its own. Kept by address.
void use_kernel(const TileKernel& kernel);
[[nodiscard]] std::vector<std::pair<std::string, bool>> cpu_features();

}  // namespace steadysum
