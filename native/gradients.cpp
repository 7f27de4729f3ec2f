#include "gradients.hpp"

#include <algorithm>
#include <cstring>
#include <functional>
#include <vector>

#include "dispatch.hpp"
#include "pool.hpp"

namespace steadysum {
namespace {

// Below this many multiply-adds waking a thread costs more than it saves.
constexpr std::int64_t kSerialWork = 1 << 20;
// Rows of a tile that share one packing of a weight block. More amortise it better; a segment has few tiles, so fewer
// let the threads end together.
constexpr std::int64_t kTaskRows = 256;
// Hidden columns of a task of the input's gradient: its packed block of weight stays in the second-level cache.
constexpr std::int64_t kHiddenColumns = 132;
constexpr std::int64_t kLevels = 5;  // of the fold's tree over 16 leaves, its root included

std::int64_t round_up(std::int64_t a, std::int64_t b) { return Grid::ceil_div(a, b) * b; }

int useful_threads(const Problem& p, int threads) {
    return p.rows() * p.depth() * p.vocabulary() < kSerialWork ? 1 : threads;
}

struct Rows {
    std::int64_t begin;
    std::int64_t end;
};
std::vector<Rows> cut(std::int64_t begin, std::int64_t end, std::int64_t size) {
    std::vector<Rows> parts;
    for (std::int64_t i = begin; i < end; i += size) parts.push_back({i, std::min(i + size, end)});
    return parts;
}

// A chunk, its grid, and where its tiles lie in the kept memory.
struct Kept {
    const Problem& problem;
    const TileKernel& kernel;
    Grid grid;
    Chunk chunk;

    explicit Kept(const Problem& p)
        : problem(p),
          kernel(current_kernel()),
          grid(p.vocabulary()),
          chunk{&p, 0, p.rows(), round_up(p.rows(), kernel.panel_rows), nullptr, nullptr, nullptr, nullptr} {}

    [[nodiscard]] std::int64_t segment_begin(std::int64_t segment) const {
        return grid.tile(grid.first_tile(segment)).begin;
    }
    [[nodiscard]] std::int64_t segment_columns(std::int64_t segment) const {
        return grid.tile(grid.end_tile(segment) - 1).end - segment_begin(segment);
    }
    [[nodiscard]] StoredTile tile(std::int64_t index, Rows rows, float* logits, std::int64_t first_column,
                                  const RowOperands& operands, float* dense_panel) const {
        const TileSpan span = grid.tile(index);
        return {&chunk,
                span,
                rows.begin,
                rows.end,
                logits + (span.begin - first_column) * chunk.padded_rows,
                span.end - span.begin,
                operands.column_weight,
                operands.dense,
                dense_panel};
    }
};

void pack(const Kept& kept, float* packed, int threads) {
    constexpr std::int64_t kPanelsAtATime = 2;
    const std::vector<Rows> parts = cut(0, kept.chunk.padded_rows / kept.kernel.panel_rows, kPanelsAtATime);
    share(threads, static_cast<std::int64_t>(parts.size()), [&](std::int64_t i, int) {
        const Rows& r = parts[static_cast<std::size_t>(i)];
        kept.kernel.pack_input(kept.problem, 0, kept.chunk.rows, r.begin, r.end, packed);
    });
}

struct TilePart {
    std::int64_t tile;
    Rows rows;
};
std::vector<TilePart> cut_tiles(const Kept& kept, std::int64_t begin, std::int64_t end, std::int64_t rows) {
    std::vector<TilePart> parts;
    for (std::int64_t tile = begin; tile < end; ++tile)
        for (const Rows& r : cut(0, kept.chunk.padded_rows, rows)) parts.push_back({tile, r});
    return parts;
}

// The logits of tiles [begin, end), the first of which starts at vocabulary column `first_column`.
void compute_tiles(const Kept& kept, std::int64_t begin, std::int64_t end, std::int64_t first_column, float* logits,
                   float* scratch, std::int64_t scratch_floats, int threads) {
    const std::int64_t rows = threads == 1 ? kept.chunk.padded_rows : round_up(kTaskRows, kept.kernel.panel_rows);
    const std::vector<TilePart> parts = cut_tiles(kept, begin, end, rows);
    share(threads, static_cast<std::int64_t>(parts.size()), [&](std::int64_t i, int participant) {
        const TilePart& p = parts[static_cast<std::size_t>(i)];
        const TileSpan span = kept.grid.tile(p.tile);
        const std::int64_t columns = span.end - span.begin;
        float* at = logits + (span.begin - first_column) * kept.chunk.padded_rows + p.rows.begin * columns;
        kept.kernel.compute_tile(
            {&kept.chunk, p.tile, span, p.rows.begin, p.rows.end, at, columns, scratch + scratch_floats * participant});
    });
}

}  // namespace

void GradientWork::keep_logits(const Problem& problem, int threads) {
    if (problem.rows() == 0) return;
    threads = useful_threads(problem, threads);
    Kept kept(problem);
    Chunk& chunk = kept.chunk;
    const std::int64_t field = kept.grid.tiles() * chunk.padded_rows;
    const std::int64_t scratch_floats = round_up(kept.kernel.weight_block_floats, 16);
    float* packed = packed_.reserve(chunk.padded_rows * problem.depth());
    float* logits = logits_.reserve(chunk.padded_rows * problem.vocabulary());
    float* scratch = scratch_.reserve(scratch_floats * threads);
    chunk.panels = packed;
    chunk.max = partials_.reserve(field * 3);
    chunk.sum = chunk.max + field;
    chunk.carried = problem.carry() != Carry::none ? chunk.sum + field : nullptr;
    pack(kept, packed, threads);
    compute_tiles(kept, 0, kept.grid.tiles(), 0, logits, scratch, scratch_floats, threads);
    const std::vector<Rows> folds = cut(0, chunk.rows, kTaskRows);
    share(threads, static_cast<std::int64_t>(folds.size()), [&](std::int64_t i, int) {
        const Rows& r = folds[static_cast<std::size_t>(i)];
        kept.kernel.fold(chunk, kept.grid, r.begin, r.end);
    });
}

void GradientWork::sum(const Problem& problem, const RowOperands& operands, const RowSums& sums, int threads) {
    if (problem.rows() == 0) return;
    threads = useful_threads(problem, threads);
    const Kept kept(problem);
    const Chunk& chunk = kept.chunk;
    const std::int64_t field = kept.grid.tiles() * chunk.padded_rows;
    const std::int64_t dense_floats = kTileColumns * kept.kernel.panel_rows;
    float* logits = logits_.reserve(chunk.padded_rows * problem.vocabulary());
    float* scratch = scratch_.reserve(dense_floats * threads);
    float* partials = partials_.reserve(field * 4);
    float* const outs[4] = {sums.column_sum, sums.dense_total, sums.dense_sum, sums.dense_exp};
    float* fields[4];
    for (int i = 0; i < 4; ++i) fields[i] = outs[i] != nullptr ? partials + field * i : nullptr;
    const std::vector<TilePart> parts = cut_tiles(kept, 0, kept.grid.tiles(), kTaskRows);
    share(threads, static_cast<std::int64_t>(parts.size()), [&](std::int64_t i, int participant) {
        const TilePart& p = parts[static_cast<std::size_t>(i)];
        const StoredTile stored = kept.tile(p.tile, p.rows, logits, 0, operands, scratch + dense_floats * participant);
        kept.kernel.sum({stored, p.tile, fields[0], fields[1], fields[2], fields[3]});
    });
    share(1, 4, [&](std::int64_t i, int) {
        if (outs[i] != nullptr) kept.kernel.fold_sums(chunk, kept.grid, fields[i], 0, chunk.rows, outs[i]);
    });
}

void GradientWork::kept_gradients(const Problem& problem, const RowOperands& operands, const RowTerms& terms,
                                  const GradientResults& results, int threads) {
    by_segments(problem, true, operands, terms, results, threads);
}

void GradientWork::gradients(const Problem& problem, const RowOperands& operands, const RowTerms& terms,
                             const GradientResults& results, int threads) {
    by_segments(problem, false, operands, terms, results, threads);
}

void GradientWork::by_segments(const Problem& problem, bool was_kept, const RowOperands& operands,
                               const RowTerms& terms, const GradientResults& results, int threads) {
    if (problem.rows() == 0) return;
    threads = useful_threads(problem, threads);
    Kept kept(problem);
    Chunk& chunk = kept.chunk;
    const Grid& grid = kept.grid;
    const TileKernel& kernel = kept.kernel;
    const std::int64_t hidden = problem.depth();
    const std::int64_t panels = chunk.padded_rows / kernel.panel_rows;
    const std::int64_t widest = kept.segment_columns(0);
    const bool filtered = terms.keep_above != nullptr;

    // A participant's scratch: a block of weight; a panel of the dense matrix; gathered columns of a filtered gradient.
    const std::int64_t weight_floats = round_up(kernel.weight_block_floats, 16);
    const std::int64_t dense_floats = operands.dense != nullptr ? kTileColumns * kernel.panel_rows : 0;
    const std::int64_t gathered_floats = filtered ? round_up(kBlock, kernel.panel_rows) * kWeightColumns : 0;
    const std::int64_t scratch_floats = weight_floats + dense_floats + gathered_floats;
    float* scratch = scratch_.reserve(scratch_floats * threads);

    float* logits = logits_.reserve(chunk.padded_rows * (was_kept ? problem.vocabulary() : widest));
    if (!was_kept) {
        float* packed = packed_.reserve(chunk.padded_rows * hidden);
        pack(kept, packed, threads);
        chunk.panels = packed;
    }
    std::uint8_t* active = nullptr;
    if (filtered) active = reinterpret_cast<std::uint8_t*>(active_.reserve(Grid::ceil_div(panels * widest, 4)));
    float* hidden_panels = nullptr;
    if (results.weight != nullptr) {
        hidden_panels = hidden_panels_.reserve(chunk.rows * kernel.padded_hidden(hidden));
        const std::vector<Rows> blocks = cut(0, chunk.rows, kBlock);
        share(threads, static_cast<std::int64_t>(blocks.size()), [&](std::int64_t i, int) {
            const Rows& r = blocks[static_cast<std::size_t>(i)];
            kernel.pack_hidden(problem, r.begin, r.end - r.begin,
                               hidden_panels + r.begin * kernel.padded_hidden(hidden));
        });
    }
    // Nodes of the fold's tree that wait for their right sibling, one per level, and the one at hand.
    const std::int64_t node_floats = chunk.padded_rows * hidden;
    float* nodes = results.input != nullptr ? sums_.reserve(node_floats * kLevels) : nullptr;
    float* node_at[kLevels] = {};
    std::vector<float*> free_nodes;
    for (std::int64_t i = kLevels - 1; nodes != nullptr && i >= 0; --i) free_nodes.push_back(nodes + node_floats * i);
    const auto merge_into = [&](float* earlier, float* later) {
        share(threads, panels, [&](std::int64_t panel, int) {
            const std::int64_t at = panel * kernel.panel_rows * hidden;
            kernel.add_sums(earlier + at, later + at, kernel.panel_rows * hidden);
        });
        free_nodes.push_back(earlier);
    };

    for (std::int64_t segment = 0; segment < grid.segments(); ++segment) {
        const std::int64_t begin = kept.segment_begin(segment);
        float* here = was_kept ? logits + begin * chunk.padded_rows : logits;
        if (!was_kept)
            compute_tiles(kept, grid.first_tile(segment), grid.end_tile(segment), begin, here, scratch, scratch_floats,
                          threads);
        constexpr std::int64_t kFormRows = 128;
        const std::vector<TilePart> forms =
            cut_tiles(kept, grid.first_tile(segment), grid.end_tile(segment), kFormRows);
        share(threads, static_cast<std::int64_t>(forms.size()), [&](std::int64_t i, int participant) {
            const TilePart& p = forms[static_cast<std::size_t>(i)];
            const StoredTile stored = kept.tile(p.tile, p.rows, here, begin, operands,
                                                scratch + scratch_floats * participant + weight_floats);
            kernel.form({stored, &terms, filtered ? active + (stored.span.begin - begin) * panels : nullptr});
        });

        std::vector<std::function<void(float*)>> tasks;
        float* node = nullptr;
        if (results.input != nullptr && hidden > 0) {
            node = free_nodes.back();
            free_nodes.pop_back();
            const std::int64_t rows = threads <= 4 ? chunk.padded_rows : round_up(kBlock, kernel.panel_rows);
            for (const Rows& h : cut(0, hidden, kHiddenColumns))
                for (const Rows& r : cut(0, chunk.padded_rows, rows))
                    tasks.emplace_back([&, h, r](float* memory) {
                        kernel.input_product({&chunk, &grid, segment, begin, here, active, r.begin, r.end, h.begin,
                                              h.end, memory, node});
                    });
        }
        if (results.weight != nullptr || results.bias != nullptr)
            for (std::int64_t t = grid.first_tile(segment); t < grid.end_tile(segment); ++t) {
                const TileSpan span = grid.tile(t);
                const std::int64_t columns = std::min(span.end, problem.valid_columns) - span.begin;
                for (const Rows& c : cut(0, columns, kWeightColumns))
                    tasks.emplace_back([&, span, c](float* memory) {
                        kernel.weight_product({&chunk, span, c.begin, c.end,
                                               here + (span.begin - begin) * chunk.padded_rows, span.end - span.begin,
                                               filtered ? active + (span.begin - begin) * panels : nullptr,
                                               memory + weight_floats + dense_floats, hidden_panels, results.weight,
                                               results.bias, results.first});
                    });
            }
        share(threads, static_cast<std::int64_t>(tasks.size()), [&](std::int64_t i, int participant) {
            tasks[static_cast<std::size_t>(i)](scratch + scratch_floats * participant);
        });
        if (node == nullptr) continue;
        std::int64_t level = 0;
        for (; (segment >> level & 1) != 0; ++level) {
            merge_into(node_at[level], node);
            node_at[level] = nullptr;
        }
        node_at[level] = node;
    }

    if (results.input == nullptr || hidden == 0) return;
    float* root = nullptr;
    for (float* node : node_at) {  // what is left has no right sibling
        if (node == nullptr) continue;
        if (root != nullptr) merge_into(node, root);
        if (root == nullptr) root = node;
    }
    share(threads, panels, [&](std::int64_t panel, int) {
        const std::int64_t row = panel * kernel.panel_rows;
        kernel.unpack_rows(root + row * hidden, hidden, std::min(kernel.panel_rows, chunk.rows - row),
                           results.input + row * hidden);
    });
}

}  // namespace steadysum
