#include "gradients.hpp"

#include <algorithm>
#include <cstring>
#include <functional>
#include <vector>

#include "checked_run.hpp"
#include "dispatch.hpp"
#include "pool.hpp"

namespace steadysum {
namespace {

// Rows of a tile that share one packing of a weight block. More amortise it better; a segment has few tiles, so fewer
// let the threads end together.
constexpr std::int64_t kTaskRows = 256;
// Hidden columns of a task of the input's gradient: its packed block of weight stays in the second-level cache.
constexpr std::int64_t kHiddenColumns = 132;
constexpr std::int64_t kLevels = 5;  // of the fold's tree over 16 leaves, its root included

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
          grid(p.grid()),
          chunk{&p, 0, p.rows(), round_up(p.rows(), kernel.panel_rows), nullptr, nullptr, nullptr, nullptr} {}

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
        pack_rows(kept.kernel, kept.chunk, r.begin, r.end, packed);
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

// The task of a tile's rows, the first tile of those kept starting at vocabulary column `first_column`.
TileTask task_of(const Kept& kept, std::int64_t tile, const Rows& rows, std::int64_t first_column, float* logits,
                 float* weight_block) {
    const TileSpan span = kept.grid.tile(tile);
    const std::int64_t columns = span.end - span.begin;
    float* at = logits + (span.begin - first_column) * kept.chunk.padded_rows + rows.begin * columns;
    return {&kept.chunk, tile, span, rows.begin, rows.end, at, columns, weight_block};
}

// The logits of tiles [begin, end), the first of which starts at vocabulary column `first_column`.
void compute_tiles(const Kept& kept, std::int64_t begin, std::int64_t end, std::int64_t first_column, float* logits,
                   float* scratch, std::int64_t scratch_floats, int threads) {
    const std::int64_t rows = threads == 1 ? kept.chunk.padded_rows : round_up(kTaskRows, kept.kernel.panel_rows);
    const std::vector<TilePart> parts = cut_tiles(kept, begin, end, rows);
    share(threads, static_cast<std::int64_t>(parts.size()), [&](std::int64_t i, int participant) {
        const TilePart& p = parts[static_cast<std::size_t>(i)];
        const TileTask task =
            task_of(kept, p.tile, p.rows, first_column, logits, scratch + scratch_floats * participant);
        if (kept.chunk.checks != nullptr)
            kept.kernel.compute_checked_tile(task);
        else
            kept.kernel.compute_tile(task);
    });
}

// The fold of the segments' parts of the gradient of input: nodes of its tree that wait for their right sibling.
class NodeFold {
   public:
    NodeFold(const Kept& kept, int threads) : kept_(kept), threads_(threads) {}

    [[nodiscard]] static std::int64_t floats(const Kept& kept) {
        return kLevels * kept.chunk.padded_rows * kept.problem.depth();
    }
    void use(float* memory) {
        for (std::int64_t i = kLevels - 1; i >= 0; --i) free_.push_back(memory + node_floats() * i);
    }
    // Memory for the next leaf.
    float* take() {
        float* node = free_.back();
        free_.pop_back();
        return node;
    }
    // Leaves come in ascending order of their segments.
    void add(std::int64_t segment, float* node) {
        std::int64_t level = 0;
        for (; (segment >> level & 1) != 0; ++level) {
            merge(waiting_[level], node);
            waiting_[level] = nullptr;
        }
        waiting_[level] = node;
    }
    // The sum of all; what is left has no right sibling.
    float* root() {
        float* root = nullptr;
        for (float* node : waiting_) {
            if (node == nullptr) continue;
            if (root != nullptr) merge(node, root);
            if (root == nullptr) root = node;
        }
        return root;
    }

   private:
    [[nodiscard]] std::int64_t node_floats() const { return kept_.chunk.padded_rows * kept_.problem.depth(); }
    void merge(float* earlier, float* later) {
        const std::int64_t panel_floats = kept_.kernel.panel_rows * kept_.problem.depth();
        share(threads_, kept_.chunk.padded_rows / kept_.kernel.panel_rows, [&](std::int64_t panel, int) {
            kept_.kernel.add_sums(earlier + panel * panel_floats, later + panel * panel_floats, panel_floats);
        });
        free_.push_back(earlier);
    }

    const Kept& kept_;
    int threads_;
    float* waiting_[kLevels] = {};
    std::vector<float*> free_;
};

// Work of a segment, to be called with a participant's scratch memory.
using Task = std::function<void(float*)>;

void add_input_tasks(const Kept& kept, std::int64_t segment, const float* gradient, float* sums, bool sparse,
                     int threads, std::vector<Task>& tasks) {
    const std::int64_t padded = kept.chunk.padded_rows;
    const std::int64_t begin = kept.grid.segment_begin(segment);
    const std::int64_t hidden = kept.problem.depth();
    const InputProductTask whole{&kept.chunk, &kept.grid, segment, begin,   gradient, 0,
                                 padded,      0,          hidden,  nullptr, sums};
    // Rows share one packing of weight, so they are cut only to give every thread some.
    std::int64_t rows = threads <= 4 ? padded : kBlock;
    if (sparse) rows = std::max(kBlock, Grid::ceil_div(padded, threads));
    rows = round_up(rows, kept.kernel.panel_rows);
    for (const Rows& h : cut(0, hidden, sparse ? hidden : kHiddenColumns))
        for (const Rows& r : cut(0, padded, rows))
            tasks.emplace_back([&kept, whole, h, r, sparse](float* scratch) {
                InputProductTask task = whole;
                task.row_begin = r.begin;
                task.row_end = r.end;
                task.hidden_begin = h.begin;
                task.hidden_end = h.end;
                task.weight_block = scratch;
                if (sparse)
                    kept.kernel.sparse_input_product(task);
                else
                    kept.kernel.input_product(task);
            });
}

void add_weight_tasks(const Kept& kept, std::int64_t segment, const float* gradient, const float* hidden_panels,
                      const GradientResults& results, bool sparse, std::vector<Task>& tasks) {
    const std::int64_t begin = kept.grid.segment_begin(segment);
    for (std::int64_t t = kept.grid.first_tile(segment); t < kept.grid.end_tile(segment); ++t) {
        const TileSpan span = kept.grid.tile(t);
        const std::int64_t columns = kept.problem.unmasked(span);
        const WeightProductTask whole{&kept.chunk,
                                      span,
                                      0,
                                      0,
                                      gradient + (span.begin - begin) * kept.chunk.padded_rows,
                                      span.end - span.begin,
                                      hidden_panels,
                                      results.weight,
                                      results.bias,
                                      results.first,
                                      sparse};
        for (const Rows& c : cut(0, columns, kWeightColumns))
            tasks.emplace_back([&kept, whole, c](float*) {
                WeightProductTask task = whole;
                task.column_begin = c.begin;
                task.column_end = c.end;
                kept.kernel.weight_product(task);
            });
    }
}

void form(const Kept& kept, std::int64_t segment, float* logits, const RowOperands& operands, const RowTerms& terms,
          float* scratch, std::int64_t scratch_floats, int threads) {
    constexpr std::int64_t kFormRows = 128;
    const std::vector<TilePart> parts =
        cut_tiles(kept, kept.grid.first_tile(segment), kept.grid.end_tile(segment), kFormRows);
    share(threads, static_cast<std::int64_t>(parts.size()), [&](std::int64_t i, int participant) {
        const TilePart& p = parts[static_cast<std::size_t>(i)];
        float* dense_panel = scratch + scratch_floats * participant;
        kept.kernel.form(
            {kept.tile(p.tile, p.rows, logits, kept.grid.segment_begin(segment), operands, dense_panel), &terms});
    });
}

}  // namespace

void GradientWork::keep_logits(const Problem& problem, int threads, const Verification* verification) {
    if (problem.rows() == 0) return;
    threads = useful_threads(problem, threads);
    Kept kept(problem);
    Chunk& chunk = kept.chunk;
    const std::int64_t tiles = kept.grid.tiles();
    const std::int64_t field = tiles * chunk.padded_rows;
    const std::int64_t block_floats = round_up(kept.kernel.weight_block_floats, 16);
    const std::int64_t expect_floats = round_up(kExpectRows, kept.kernel.panel_rows) * kTileColumns;
    const std::int64_t scratch_floats = block_floats + (verification != nullptr ? expect_floats : 0);
    float* packed = packed_.reserve(chunk.padded_rows * problem.depth());
    float* logits = logits_.reserve(chunk.padded_rows * problem.vocabulary());
    float* scratch = scratch_.reserve(scratch_floats * threads);
    chunk.panels = packed;
    chunk.max = partials_.reserve(field * 3);
    chunk.sum = chunk.max + field;
    chunk.carried = problem.carry() != Carry::none ? chunk.sum + field : nullptr;
    ChunkChecks checks;
    if (verification != nullptr) {
        float* memory = checks_.reserve(check_floats(tiles, chunk.padded_rows, problem.depth()));
        checks = lay_out_checks(*verification, tiles, chunk.padded_rows, problem.depth(), memory);
        chunk.checks = &checks;
    }
    const auto compute = [&] {
        pack(kept, packed, threads);
        if (verification != nullptr) expect_checksums(kept.kernel, chunk, tiles, scratch, scratch_floats, threads);
        compute_tiles(kept, 0, tiles, 0, logits, scratch, scratch_floats, threads);
    };
    if (verification != nullptr)
        compute_until_intact(kept.kernel, {&chunk}, threads, compute);
    else
        compute();
    if (verification != nullptr && verification->log->hopeless()) return;
    const std::vector<Rows> folds = cut(0, chunk.rows, kTaskRows);
    share(threads, static_cast<std::int64_t>(folds.size()), [&](std::int64_t i, int participant) {
        const Rows& r = folds[static_cast<std::size_t>(i)];
        if (verification != nullptr)
            heal_partials(kept.kernel, chunk, kept.grid, r.begin, r.end, [&](std::int64_t tile, std::int64_t row) {
                const std::int64_t panel = row / kept.kernel.panel_rows * kept.kernel.panel_rows;
                float* block = scratch + scratch_floats * participant;
                kept.kernel.compute_checked_tile(
                    task_of(kept, tile, {panel, panel + kept.kernel.panel_rows}, 0, logits, block));
            });
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
    const TileKernel& kernel = kept.kernel;
    const std::int64_t hidden = problem.depth();
    const bool wants_input = results.input != nullptr && hidden > 0;
    const bool sparse = terms.keep_above != nullptr && terms.column == nullptr;

    // A participant's scratch: a block of weight, or a panel of the dense matrix.
    const std::int64_t sparse_floats = sparse ? kBlock * kernel.padded_hidden(hidden) : 0;
    const std::int64_t dense_floats = operands.dense != nullptr ? kTileColumns * kernel.panel_rows : 0;
    const std::int64_t scratch_floats =
        round_up(std::max({kernel.weight_block_floats, sparse_floats, dense_floats}), 16);
    float* scratch = scratch_.reserve(scratch_floats * threads);
    float* logits = logits_.reserve(chunk.padded_rows * (was_kept ? problem.vocabulary() : kept.grid.widest_segment()));
    if (!was_kept) {
        float* packed = packed_.reserve(chunk.padded_rows * hidden);
        pack(kept, packed, threads);
        chunk.panels = packed;
    }
    float* hidden_panels = nullptr;
    if (results.weight != nullptr) {
        hidden_panels = hidden_panels_.reserve(chunk.rows * kernel.padded_hidden(hidden));
        const std::vector<Rows> blocks = cut(0, chunk.rows, kBlock);
        share(threads, static_cast<std::int64_t>(blocks.size()), [&](std::int64_t i, int) {
            const Rows& r = blocks[static_cast<std::size_t>(i)];
            kernel.pack_hidden(problem.input, r.begin, r.end - r.begin,
                               hidden_panels + r.begin * kernel.padded_hidden(hidden));
        });
    }
    NodeFold nodes(kept, threads);
    if (wants_input) nodes.use(sums_.reserve(NodeFold::floats(kept)));

    for (std::int64_t segment = 0; segment < kept.grid.segments(); ++segment) {
        const std::int64_t begin = kept.grid.segment_begin(segment);
        float* here = was_kept ? logits + begin * chunk.padded_rows : logits;
        if (!was_kept)
            compute_tiles(kept, kept.grid.first_tile(segment), kept.grid.end_tile(segment), begin, here, scratch,
                          scratch_floats, threads);
        form(kept, segment, here, operands, terms, scratch, scratch_floats, threads);
        std::vector<Task> tasks;  // large ones first, so that the threads end together
        float* node = wants_input ? nodes.take() : nullptr;
        if (wants_input) add_input_tasks(kept, segment, here, node, sparse, threads, tasks);
        if (results.weight != nullptr || results.bias != nullptr)
            add_weight_tasks(kept, segment, here, hidden_panels, results, sparse, tasks);
        share(threads, static_cast<std::int64_t>(tasks.size()), [&](std::int64_t i, int participant) {
            tasks[static_cast<std::size_t>(i)](scratch + scratch_floats * participant);
        });
        if (wants_input) nodes.add(segment, node);
    }

    if (!wants_input) return;
    const float* root = nodes.root();
    if (sparse) {
        std::memcpy(results.input, root, static_cast<std::size_t>(chunk.rows * hidden) * sizeof(float));
        return;
    }
    share(threads, chunk.padded_rows / kernel.panel_rows, [&](std::int64_t panel, int) {
        const std::int64_t row = panel * kernel.panel_rows;
        kernel.unpack_rows(root + row * hidden, hidden, std::min(kernel.panel_rows, chunk.rows - row),
                           results.input + row * hidden);
    });
}

}  // namespace steadysum
