// The avx512 variant of the tile kernel: the vector type, and the templates made of it.
#define STEADYSUM_ISA isa_avx512
#include "vec_avx512.hpp"

#include "table.hpp"

namespace steadysum {

extern const TileKernel kernel_avx512;
constinit const TileKernel kernel_avx512 = STEADYSUM_ISA::make_table("avx512");

}  // namespace steadysum
