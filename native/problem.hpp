// The plain data that crosses between the parts of the native kernel: operands, options, outputs.
// Nothing here depends on an instruction set, on Python or on threads.
#pragma once

#include <cstddef>
#include <cstdint>

#include "grid.hpp"

namespace steadysum {

// What a partial carries beside max and sum.
enum class Carry : std::uint8_t {
    none,
    weighted,  // sum of exp(z - max) (z - max): entropy needs it
    ties,      // number of logits equal to max: the gradient of max is split among them
};

enum class DType : std::uint8_t { f32, bf16, f16 };

// A strided matrix that belongs to the caller. Strides count elements and may be zero or negative.
struct Matrix {
    const void* data = nullptr;
    DType dtype = DType::f32;
    std::int64_t rows = 0;
    std::int64_t columns = 0;
    std::int64_t row_stride = 0;
    std::int64_t column_stride = 0;
};

// A strided vector that belongs to the caller.
struct Vector {
    const void* data = nullptr;
    DType dtype = DType::f32;
    std::int64_t size = 0;
    std::int64_t stride = 0;
};

// What happens to a product before it is a logit: + bias, * scale, softcap, / temperature, in this order.
struct Epilogue {
    Vector bias;                         // data == nullptr: none
    float scale = 1.0F;                  // 1: none
    float softcap = 0.0F;                // 0: none
    const float* temperature = nullptr;  // nullptr: none
    bool temperature_per_row = false;

    [[nodiscard]] bool trivial() const {
        return bias.data == nullptr && scale == 1.0F && softcap == 0.0F && temperature == nullptr;
    }
};

// One problem: operands, options, and the caller's outputs (each contiguous; the optional ones nullptr when unwanted).
struct Problem {
    Matrix input;   // [N, H]
    Matrix weight;  // [V, H]
    Epilogue epilogue;
    std::int64_t valid_columns = 0;  // columns at and after this one are masked: their logit is -inf
    Shard shard{0, 0};               // vocabulary == 0: weight is the whole vocabulary

    float* max = nullptr;                  // [N]
    float* sum_exp = nullptr;              // [N]
    const std::int64_t* target = nullptr;  // [N], each in [0, valid_columns)
    float* target_logit = nullptr;         // [N]; needs target
    float* weighted_sum = nullptr;         // [N]: sum of exp(z - max) (z - max)
    float* ties = nullptr;                 // [N]: number of logits equal to max; not together with weighted_sum
    float* logits = nullptr;               // [N, V]

    [[nodiscard]] Carry carry() const {
        if (weighted_sum != nullptr) return Carry::weighted;
        return ties != nullptr ? Carry::ties : Carry::none;
    }
    [[nodiscard]] float* carried() const { return weighted_sum != nullptr ? weighted_sum : ties; }
    [[nodiscard]] std::int64_t rows() const { return input.rows; }
    // Columns of a tile that aren't masked: the first ones.
    [[nodiscard]] std::int64_t unmasked(const TileSpan& span) const {
        const std::int64_t columns = Grid::least(valid_columns, span.end) - span.begin;
        return columns < 0 ? 0 : columns;
    }
    [[nodiscard]] std::int64_t depth() const { return input.columns; }
    [[nodiscard]] std::int64_t vocabulary() const { return weight.rows; }
    [[nodiscard]] Grid grid() const { return {vocabulary(), shard.vocabulary == 0 ? Shard{0, vocabulary()} : shard}; }
};

}  // namespace steadysum
