// The phases that verification adds to the run of a chunk, between packing and tiles and between tiles and fold.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "tile_kernel.hpp"

namespace steadysum {

// Packs panels [begin, end) of a chunk's input; where it has checks, its rows are measured while they are in the cache.
void pack_rows(const TileKernel& kernel, const Chunk& chunk, std::int64_t begin, std::int64_t end, float* packed);

// The checksums that a chunk is expected to have, from its packed input.
// scratch: per participant, `scratch_floats` that hold logits of kExpectRows rows and a block of weight.
void expect_checksums(const TileKernel& kernel, const Chunk& chunk, std::int64_t tiles, float* scratch,
                      std::int64_t scratch_floats, int threads);
inline constexpr std::int64_t kExpectRows = 128;

// Has `compute` pack and compute chunks' tiles, again where a chunk's packed input isn't the caller's matrix
// afterwards.
void compute_until_intact(const TileKernel& kernel, const std::vector<const Chunk*>& chunks, int threads,
                          const std::function<void()>& compute);

// Computes a tile's rows again; at least those of the panel that begins at `row`.
using Again = std::function<void(std::int64_t tile, std::int64_t row)>;

// Looks at the partials of rows [begin, end) of all tiles; has damaged ones computed again.
void heal_partials(const TileKernel& kernel, const Chunk& chunk, const Grid& grid, std::int64_t begin, std::int64_t end,
                   const Again& again);

}  // namespace steadysum
