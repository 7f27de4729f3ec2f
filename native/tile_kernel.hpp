// What an instruction set offers to the rest of the kernel: a table of functions. Each variant fills one from the same
// templates; dispatch.hpp picks one at run time.
#pragma once

#include <cstdint>

#include "checks.hpp"
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
    // Partials: [tile][padded_rows]. max == nullptr: none are taken.
    float* max;
    float* sum;
    float* carried;                       // nullptr when the problem's partials carry nothing
    const ChunkChecks* checks = nullptr;  // nullptr: nothing is verified
};

// One tile for some rows of a chunk (begin is a multiple of the panel's rows), and the scratch memory to compute it in.
struct TileTask {
    const Chunk* chunk;
    std::int64_t tile;
    TileSpan span;
    std::int64_t row_begin;
    std::int64_t row_end;
    float* logits;               // [panel][panel_columns][panel_rows]
    std::int64_t panel_columns;  // at least the span's width
    float* weight_block;         // weight_block_floats
};

// One tile of a chunk whose logits, or their gradients, are kept: [panel][panel_columns][panel_rows] from row 0 of the
// chunk on; and the rows of it that are at hand.
struct StoredTile {
    const Chunk* chunk;
    TileSpan span;
    std::int64_t row_begin;  // a multiple of the panel's rows
    std::int64_t row_end;
    float* logits;
    std::int64_t panel_columns;
    const float* column_weight;  // [V]; nullptr: ones
    const Matrix* dense;         // [rows of the chunk, V]; nullptr: none
    float* dense_panel;          // scratch: [kTileColumns][panel_rows]
};

// Coefficients of the gradient of the logits, one per row of the chunk; nullptr: the term is left out.
// docs/bits.md, "Gradients", says what they multiply.
struct RowTerms {
    const float* exp = nullptr;
    const float* slope = nullptr;
    const float* center = nullptr;
    const float* column = nullptr;
    const float* dense = nullptr;
    const float* tie = nullptr;
    const float* target = nullptr;
    const float* keep_above = nullptr;
};

struct FormTask {
    StoredTile stored;
    const RowTerms* terms;
};

struct SumTask {
    StoredTile stored;
    std::int64_t tile;
    // Partials: [tile][padded_rows]; nullptr: not wanted.
    float* column_sum;
    float* dense_total;
    float* dense_sum;
    float* dense_exp;
};

// A segment's part of the gradient of input.
struct InputProductTask {
    const Chunk* chunk;
    const Grid* grid;
    std::int64_t segment;
    std::int64_t segment_begin;  // its first vocabulary column
    const float* gradient;       // its tiles, one after the other, each as in StoredTile
    std::int64_t row_begin;
    std::int64_t row_end;
    std::int64_t hidden_begin;
    std::int64_t hidden_end;
    float* weight_block;  // scratch: weight_block_floats; sparse: kBlock rows of weight, padded
    float* sums;          // [panel][hidden][panel_rows]; sparse: [row][hidden]
};

// Vocabulary columns of a task of the weight's gradient, at most: a block of rows of their gradients is 64 KiB.
inline constexpr std::int64_t kWeightColumns = 128;

// Some columns of a tile: a chunk's part of the gradients of weight and bias.
struct WeightProductTask {
    const Chunk* chunk;
    TileSpan span;
    std::int64_t column_begin;  // in the tile
    std::int64_t column_end;
    const float* gradient;  // as in StoredTile
    std::int64_t panel_columns;
    const float* hidden_panels;  // packed by pack_hidden, block of rows after block of rows
    float* weight;               // [V, H] or nullptr
    float* bias;                 // [V] or nullptr
    bool first;                  // of the call's chunks: results are stored, not added
    bool sparse;                 // most gradients of the logits are 0
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
    // Verified runs (checks.hpp). The checksums of one tile of a problem's weight; scratch:
    // checksum_scratch_doubles(H).
    void (*weight_checksums)(const Problem& problem, const TileSpan& span, std::int64_t tile, double* scratch,
                             const WeightChecksums& out);
    // What rows [begin, end) of a chunk are checked by; row: H floats of scratch.
    void (*measure_input)(const Chunk& chunk, std::int64_t begin, std::int64_t end, float* row);
    // The expected checksums of the task's rows, of all tiles; the task's tile and span play no part.
    void (*expect)(const TileTask& task, std::int64_t tiles);
    void (*compute_checked_tile)(const TileTask& task);
    // The first row of [begin, end) whose packed input, or whose partial of a tile, isn't what was put there; or end.
    std::int64_t (*first_damaged_row)(const Chunk& chunk, std::int64_t begin, std::int64_t end);
    std::int64_t (*first_damaged_partial)(const Chunk& chunk, std::int64_t tile, std::int64_t begin, std::int64_t end);
    void (*form)(const FormTask& task);
    void (*sum)(const SumTask& task);
    void (*fold_sums)(const Chunk& chunk, const Grid& grid, const float* partials, std::int64_t row_begin,
                      std::int64_t row_end, float* out);
    void (*pack_hidden)(const Matrix& matrix, std::int64_t row_begin, std::int64_t rows, float* to);
    std::int64_t (*padded_hidden)(std::int64_t hidden);
    void (*input_product)(const InputProductTask& task);
    void (*sparse_input_product)(const InputProductTask& task);
    void (*weight_product)(const WeightProductTask& task);
    void (*add_sums)(const float* earlier, float* sums, std::int64_t size);
    void (*unpack_rows)(const float* sums, std::int64_t hidden, std::int64_t rows, float* out);
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
