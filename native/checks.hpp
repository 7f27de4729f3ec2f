// The plain data of verified runs (verify="checksum"): what is known of a weight beforehand, what a chunk of rows keeps
// to be checked against, and the log of what was found. docs/verify.md says what each check sees.
// Nothing here depends on an instruction set.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <vector>

#include "grid.hpp"
#include "problem.hpp"

namespace steadysum {

inline constexpr std::int64_t kChecksums = 2;  // of a tile: signs, and signs times the column's place (checksum.hpp)

// What is known of a weight [V, H], its grid and its unmasked columns, whatever the input. blocks = ceil(H / kBlock).
struct WeightChecksums {
    float* columns = nullptr;        // [kChecksums * tiles][H]: the tile's columns, summed with a checksum's weights
    float* energies = nullptr;       // [kChecksums * tiles][blocks]: squares that rounding errors are measured by
    float* inverse_scale = nullptr;  // [tiles], powers of two: energies are of weight * inverse_scale. 0: not finite
};

// Where something was wrong.
enum class Stage : std::uint8_t { input, product, statistics, partial };
inline constexpr int kStages = 4;

struct BadRow {
    Stage stage;
    const Problem* problem;
    std::int64_t row;
    std::int64_t tile;
};

// What a run found; written by all of its threads.
class CheckLog {
   public:
    std::atomic<std::int64_t> checks{0};             // of one row in one tile
    std::atomic<std::int64_t> healed[kStages] = {};  // tiles, or for Stage::input chunks, that were right the next time
    std::atomic<std::int64_t> cleared{0};            // rows in tiles whose checksum was off, and each logit right
    std::atomic<bool> stale{false};                  // the weight has changed since its checksums were taken

    void add(const BadRow& bad) {
        const std::lock_guard<std::mutex> lock(mutex_);
        ++count_;
        if (bad_.size() < kListed) bad_.push_back(bad);
        hopeless_.store(true);
    }
    [[nodiscard]] const std::vector<BadRow>& bad() const { return bad_; }
    [[nodiscard]] std::int64_t bad_count() const { return count_; }
    // Whether going on is of no use: the call will raise, or begin again.
    [[nodiscard]] bool hopeless() const { return stale.load() || hopeless_.load(); }

   private:
    static constexpr std::size_t kListed = 64;
    std::mutex mutex_;
    std::vector<BadRow> bad_;
    std::int64_t count_ = 0;
    std::atomic<bool> hopeless_{false};
};

// A request to verify one problem.
struct Verification {
    const WeightChecksums* weight = nullptr;
    CheckLog* log = nullptr;
    std::uint32_t epoch = 0;  // of the call: digests of an earlier call's partials don't pass, and samples differ
    float* ratios = nullptr;  // [tiles][N] or nullptr: square of the larger residual over that of its threshold
};

// What a chunk's results are checked against. Panels' worth of rows, as the partials.
struct ChunkChecks {
    const Verification* verification = nullptr;
    float* expected = nullptr;                // [kChecksums * tiles][padded_rows]: packed input times checksum columns
    float* energies = nullptr;                // [blocks][padded_rows], of input * inverse_scale
    float* inverse_scale = nullptr;           // [padded_rows], powers of two; 0: an element isn't finite
    std::uint32_t* input_digest = nullptr;    // [padded_rows], of the source of the packed input
    std::uint32_t* partial_digest = nullptr;  // [tiles][padded_rows]
};

constexpr std::int64_t checksum_scratch_doubles(std::int64_t hidden) { return 5 * hidden; }

// Floats (or words as large) that the checks of a chunk take.
constexpr std::int64_t check_floats(std::int64_t tiles, std::int64_t padded_rows, std::int64_t depth) {
    return padded_rows * ((kChecksums + 1) * tiles + Grid::ceil_div(depth, kBlock) + 2);
}

inline ChunkChecks lay_out_checks(const Verification& verification, std::int64_t tiles, std::int64_t padded_rows,
                                  std::int64_t depth, float* memory) {
    ChunkChecks checks;
    checks.verification = &verification;
    checks.expected = memory;
    checks.energies = checks.expected + kChecksums * tiles * padded_rows;
    checks.inverse_scale = checks.energies + Grid::ceil_div(depth, kBlock) * padded_rows;
    checks.input_digest = reinterpret_cast<std::uint32_t*>(checks.inverse_scale + padded_rows);
    checks.partial_digest = checks.input_digest + padded_rows;
    return checks;
}

}  // namespace steadysum
