// What an instruction set offers to the rest of the kernel: a table of functions. Each variant fills one from the same
// templates; dispatch.hpp picks one at run time.
#pragma once

#include <cstdint>

#include "grid.hpp"
#include "problem.hpp"

namespace steadysum {

// Rows of one problem that are worked on together, and where their packed input and their partials lie.
struct Chunk {
    const Problem* problem;
    std::int64_t row_begin;  // in the problem
    std::int64_t rows;
    std::int64_t padded_rows;  // rows rounded up to whole panels
    const float* panels;       // packed input: blocks of k, in each its panels, in each [k][row of the panel]
    // Partials: [tile][padded_rows].
    float* max;
    float* sum;
    float* weighted;  // nullptr when the problem wants no weighted sum
};

// One tile for some rows of a chunk (begin is a multiple of the panel's rows), and the scratch memory to compute it in.
struct TileTask {
    const Chunk* chunk;
    std::int64_t tile;
    TileSpan span;
    std::int64_t row_begin;
    std::int64_t row_end;
    float* logits;        // [ceil(rows / panel_rows)][kTileColumns][panel_rows]
    float* weight_block;  // weight_block_floats
};

struct ConstPartials {
    const float* max;
    const float* sum;
    const float* weighted;  // nullptr: not carried
};
struct Partials {
    float* max;
    float* sum;
    float* weighted;
};

struct TileKernel {
    const char* isa;
    std::int64_t panel_rows;
    std::int64_t weight_block_floats;
    void (*pack_input)(const Problem& problem, std::int64_t chunk_begin, std::int64_t chunk_rows,
                       std::int64_t panel_begin, std::int64_t panel_end, float* panels);
    void (*compute_tile)(const TileTask& task);
    // Folds the partials of rows [row_begin, row_end) of a chunk into the problem's outputs.
    void (*fold)(const Chunk& chunk, const Grid& grid, std::int64_t row_begin, std::int64_t row_end);
    void (*merge)(ConstPartials a, ConstPartials b, Partials out, std::int64_t size);
    void (*exp)(const float* x, float* out, std::int64_t size);
    void (*tanh)(const float* x, float* out, std::int64_t size);
    // logits[row][column] := exp(logits - max[row]) / sum[row], for rows [row_begin, row_end).
    void (*softmax)(float* logits, std::int64_t columns, const float* max, const float* sum, std::int64_t row_begin,
                    std::int64_t row_end);
};

// Element offset of one panel's block of the reduction index in a chunk's packed input.
inline std::int64_t panel_offset(std::int64_t padded_rows, std::int64_t panel_rows, std::int64_t k_begin,
                                 std::int64_t block_depth, std::int64_t panel) {
    return k_begin * padded_rows + panel * panel_rows * block_depth;
}

}  // namespace steadysum
