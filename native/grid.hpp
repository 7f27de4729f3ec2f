// How a vocabulary, or a shard of one, is cut into segments and tiles (docs/bits.md, "The grid"). Fixed by V and the
// shard's place alone: who computes a tile, and when, is none of this file's business.
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

// Where a shard begins in its vocabulary; a whole vocabulary is a shard that begins at 0 and has all columns.
struct Shard {
    std::int64_t start;
    std::int64_t vocabulary;
};

class Grid {
   public:
    Grid(std::int64_t columns, Shard shard)
        : columns_(columns),
          segment_columns_(shard.vocabulary >= kSegments * kTileColumns ? ceil_div(shard.vocabulary, kSegments)
                                                                        : kTileColumns),
          tiles_per_segment_(ceil_div(segment_columns_, kTileColumns)),
          first_columns_(least(columns, segment_columns_ - shard.start % segment_columns_)),
          first_tiles_(ceil_div(first_columns_, kTileColumns)) {}

    // Segments and columns are counted from the shard's own first one.
    [[nodiscard]] std::int64_t segments() const { return 1 + ceil_div(columns_ - first_columns_, segment_columns_); }
    [[nodiscard]] std::int64_t segment_begin(std::int64_t segment) const {
        return segment == 0 ? 0 : first_columns_ + (segment - 1) * segment_columns_;
    }
    [[nodiscard]] std::int64_t segment_end(std::int64_t segment) const {
        return least(segment_begin(segment + 1), columns_);
    }
    [[nodiscard]] std::int64_t widest_segment() const { return least(segment_columns_, columns_); }

    // Tiles are numbered segment by segment; the first and the last segment may hold fewer than the others.
    [[nodiscard]] std::int64_t first_tile(std::int64_t segment) const {
        return segment == 0 ? 0 : first_tiles_ + (segment - 1) * tiles_per_segment_;
    }
    [[nodiscard]] std::int64_t end_tile(std::int64_t segment) const {
        return first_tile(segment) + ceil_div(segment_end(segment) - segment_begin(segment), kTileColumns);
    }
    [[nodiscard]] std::int64_t tiles() const { return end_tile(segments() - 1); }

    [[nodiscard]] TileSpan tile(std::int64_t index) const {
        const std::int64_t segment = index < first_tiles_ ? 0 : 1 + (index - first_tiles_) / tiles_per_segment_;
        const std::int64_t begin = segment_begin(segment) + (index - first_tile(segment)) * kTileColumns;
        return {segment, begin, least(begin + kTileColumns, segment_end(segment))};
    }

    static constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
        return a / b + (a % b != 0 ? 1 : 0);  // not (a + b - 1) / b, which overflows near the end of the range
    }
    static constexpr std::int64_t least(std::int64_t a, std::int64_t b) { return a < b ? a : b; }

   private:
    std::int64_t columns_;
    std::int64_t segment_columns_;
    std::int64_t tiles_per_segment_;
    std::int64_t first_columns_;  // of the first segment
    std::int64_t first_tiles_;
};

}  // namespace steadysum
