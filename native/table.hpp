// The functions of one instruction set as the table that the rest of the kernel calls. Included last by each variant.
#pragma once

#include "checked_tile.hpp"
#include "elementwise.hpp"
#include "gradient_products.hpp"
#include "logit_gradient.hpp"
#include "tile.hpp"
#include "tile_kernel.hpp"

namespace steadysum::STEADYSUM_ISA {

constexpr TileKernel make_table(const char* isa) {
    return {
        isa,
        kPanelRows,
        kBlockColumnsMost * kBlockStride,
        pack_input,
        compute_tile,
        fold,
        weight_checksums,
        measure_input,
        expect,
        compute_checked_tile,
        first_damaged_row,
        first_damaged_partial,
        form,
        sum,
        fold_sums,
        pack_hidden,
        padded_hidden,
        input_product,
        sparse_input_product,
        weight_product,
        add_sums,
        unpack_rows,
        merge_arrays,
        exp_array,
        tanh_array,
        softmax,
    };
}

}  // namespace steadysum::STEADYSUM_ISA
