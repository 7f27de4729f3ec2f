// The avx2 variant of the tile kernel: the vector type, and the templates made of it.
#define STEADYSUM_ISA isa_avx2
#include "vec_avx2.hpp"

#include "elementwise.hpp"
#include "tile.hpp"

namespace steadysum {

extern const TileKernel kernel_avx2;
const TileKernel kernel_avx2 = {
    "avx2",
    STEADYSUM_ISA::kPanelRows,
    STEADYSUM_ISA::kBlockColumnsMost * STEADYSUM_ISA::kBlockStride,
    STEADYSUM_ISA::pack_input,
    STEADYSUM_ISA::compute_tile,
    STEADYSUM_ISA::fold,
    STEADYSUM_ISA::merge_arrays,
    STEADYSUM_ISA::exp_array,
    STEADYSUM_ISA::tanh_array,
    STEADYSUM_ISA::softmax,
};

}  // namespace steadysum
