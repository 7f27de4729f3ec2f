// The portable variant of the tile kernel: the vector type, and the templates made of it.
#define STEADYSUM_ISA isa_portable
#include "vec_portable.hpp"

#include "table.hpp"

namespace steadysum {

extern const TileKernel kernel_portable;
constinit const TileKernel kernel_portable = STEADYSUM_ISA::make_table("portable");

}  // namespace steadysum
