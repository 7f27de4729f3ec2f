// Drawn problems with operands in buffers of exactly the needed size, so that the address sanitizer sees any read
// beyond them; their expected outputs from the scalar definition; and the comparison, bit for bit. Not here: gradients
// (gradient_cases.hpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "problem.hpp"

namespace cases {

// How a matrix lies in memory.
enum class Layout {
    contiguous,
    transposed,         // column by column
    padded,             // rows at a stride of columns + 3, from the second element of the buffer on
    sparse,             // every second element of a row
    reversed_rows,      // a negative row stride
    reversed_columns,   // a negative column stride
    repeated_rows,      // a row stride of zero: every row is the same one
    repeated_elements,  // a column stride of zero
};
inline constexpr int kLayouts = 8;

enum class Values {
    usual,  // normal, logits of some units
    wild,   // infinities, NaN, zeros of both signs and huge numbers among them
    tiny,   // subnormal operands and logits
    equal,  // all logits equal
};
inline constexpr int kValues = 4;

enum class Temperature { none, one, per_row };

// A matrix's memory.
struct Buffer {
    std::unique_ptr<std::byte[]> bytes;
    void* first = nullptr;  // element (0, 0)
};
struct Shape {
    std::int64_t rows;
    std::int64_t columns;
};
// Fills the buffer with a drawn matrix.
steadysum::Matrix lay_out(Buffer& buffer, Shape shape, Layout layout, steadysum::DType dtype, Values values,
                          std::mt19937& random);
std::int64_t bytes_per_element(steadysum::DType dtype);

int below(std::mt19937& random, int limit);  // std::uniform_int_distribution differs between libraries
float draw_float(Values values, std::mt19937& random);

// What outputs hold before the call: a number that no result may be.
inline constexpr float kPoison = -0x1.fbdbdap+100F;

// Equal bits, or, where bits of a NaN aren't promised, both NaN.
bool same(float found, float expected, bool nan_bits_promised);
// Empty when all are the same, else the first difference.
std::string compare(const char* what, const std::vector<float>& found, const std::vector<float>& expected,
                    bool nan_bits_promised);

struct Case {
    std::int64_t rows = 1;        // N
    std::int64_t depth = 1;       // H
    std::int64_t vocabulary = 1;  // V
    std::int64_t valid = 1;       // valid_vocab
    steadysum::DType dtype = steadysum::DType::f32;
    Layout input = Layout::contiguous;
    Layout weight = Layout::contiguous;
    Values values = Values::usual;
    std::int64_t bias_stride = 0;  // 0: no bias
    bool bias_in_f32 = true;       // else in the dtype of the operands
    float scale = 1.0F;
    float softcap = 0.0F;
    Temperature temperature = Temperature::none;
    bool wants_target = false;
    bool wants_weighted = false;
    bool wants_ties = false;  // not together with weighted
    bool wants_logits = false;
    std::int64_t before = 0;  // columns of a larger vocabulary before and after those at hand
    std::int64_t after = 0;
    unsigned seed = 0;
};
std::string describe(const Case& c);
Case draw(unsigned seed);

// The caller's outputs, of exactly the needed size.
struct Outputs {
    explicit Outputs(const Case& c);
    std::vector<float> max;
    std::vector<float> sum_exp;
    std::vector<float> weighted_sum;
    std::vector<float> ties;
    std::vector<float> target_logit;
    std::vector<float> logits;
};

// A case's operands in memory, and what the definition says about them.
class Example {
   public:
    explicit Example(const Case& c);
    // The kernel's problem, to be written to `out`.
    [[nodiscard]] steadysum::Problem problem(Outputs& out) const;
    // Empty when `out` holds the published bits, else the first difference.
    [[nodiscard]] std::string difference(const Outputs& out) const;

    const Case c;
    [[nodiscard]] const Outputs& expected() const { return expected_; }

   private:
    void add_infinities(std::mt19937& random);
    void fill_bias(std::mt19937& random);

    Buffer input_buffer_;
    Buffer weight_buffer_;
    Buffer bias_buffer_;
    steadysum::Matrix input_;
    steadysum::Matrix weight_;
    steadysum::Vector bias_;
    std::vector<float> temperature_;
    std::vector<std::int64_t> target_;
    Outputs expected_;
};

}  // namespace cases
