// The avx2 variant of the tile kernel: the vector type, and the templates made of it.
#define STEADYSUM_ISA isa_avx2
#include "vec_avx2.hpp"

#include "table.hpp"

namespace steadysum {

extern const TileKernel kernel_avx2;
constinit const TileKernel kernel_avx2 = STEADYSUM_ISA::make_table("avx2");

}  // namespace steadysum
