// The portable variant once more with 16 lanes, as the AVX-512 variant has: the blocking of that variant (register
// blocks of 14 x 2 and 28 x 1, panels of 32 rows) runs on every machine.
#define STEADYSUM_ISA isa_portable16
#define STEADYSUM_PORTABLE_LANES 16
#include "vec_portable.hpp"

#include "table.hpp"

namespace steadysum {

extern const TileKernel kernel_portable16;
constinit const TileKernel kernel_portable16 = STEADYSUM_ISA::make_table("portable16");

}  // namespace steadysum
