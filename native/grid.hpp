// How a vocabulary is cut into segments and tiles (docs/bits.md, "The grid"). Fixed by V alone: who computes a tile,
// and when, is none of this file's business.
#pragma once

#include <cstdint>

namespace steadysum {

inline constexpr std::int64_t kTileColumns = 512;
inline constexpr std::int64_t kSegments = 16;      // leaves of the fold's tree
inline constexpr std::int64_t kBlock = 128;        // length of one chain of fused multiply-adds (docs/bits.md says why)
inline constexpr std::int64_t kAccumulators = 16;  // of a tile's sums

// The least multiple of b that isn't below a.
constexpr std::int64_t round_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b * b; }

struct TileSpan {
    std::int64_t segment;
    std::int64_t begin;  // vocabulary column, inclusive
    std::int64_t end;    // exclusive
};

class Grid {
   public:
    explicit Grid(std::int64_t vocabulary)
        : vocabulary_(vocabulary),
          segment_columns_(vocabulary >= kSegments * kTileColumns ? ceil_div(vocabulary, kSegments) : kTileColumns),
          tiles_per_segment_(ceil_div(segment_columns_, kTileColumns)) {}

    [[nodiscard]] std::int64_t segments() const { return ceil_div(vocabulary_, segment_columns_); }

    // Tiles are numbered segment by segment; the last segment may hold fewer.
    [[nodiscard]] std::int64_t first_tile(std::int64_t segment) const { return segment * tiles_per_segment_; }
    [[nodiscard]] std::int64_t end_tile(std::int64_t segment) const {
        const std::int64_t columns = least(segment_columns_, vocabulary_ - segment * segment_columns_);
        return first_tile(segment) + ceil_div(columns, kTileColumns);
    }
    [[nodiscard]] std::int64_t tiles() const { return end_tile(segments() - 1); }

    [[nodiscard]] TileSpan tile(std::int64_t index) const {
        const std::int64_t segment = index / tiles_per_segment_;
        const std::int64_t segment_begin = segment * segment_columns_;
        const std::int64_t segment_end = least(segment_begin + segment_columns_, vocabulary_);
        const std::int64_t begin = segment_begin + (index - first_tile(segment)) * kTileColumns;
        return {segment, begin, least(begin + kTileColumns, segment_end)};
    }

    static constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
    static constexpr std::int64_t least(std::int64_t a, std::int64_t b) { return a < b ? a : b; }

   private:
    std::int64_t vocabulary_;
    std::int64_t segment_columns_;
    std::int64_t tiles_per_segment_;
};

}  // namespace steadysum
