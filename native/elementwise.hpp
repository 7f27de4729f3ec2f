// The published functions over arrays: exp, tanh, merging of partials, softmax from finished statistics.
#pragma once

#include "functions.hpp"
#include "partial.hpp"
#include "some_lanes.hpp"
#include "tile_kernel.hpp"

namespace steadysum::STEADYSUM_ISA {

template <typename F>
inline void map(const float* x, float* out, std::int64_t size, F&& f) {
    std::int64_t i = 0;
    for (; i + kLanes <= size; i += kLanes) store(out + i, f(load(x + i)));
    if (i < size) store_some(out + i, f(load_some(x + i, size - i)), size - i);
}

inline void exp_array(const float* x, float* out, std::int64_t size) {
    map(x, out, size, [](Vec v) { return exp(v); });
}
inline void tanh_array(const float* x, float* out, std::int64_t size) {
    map(x, out, size, [](Vec v) { return tanh(v); });
}

inline Partial load_partials(ConstPartials p, std::int64_t at, std::int64_t count) {
    return {load_some(p.max + at, count), load_some(p.sum + at, count),
            p.weighted != nullptr ? load_some(p.weighted + at, count) : zero()};
}

inline void merge_arrays(ConstPartials a, ConstPartials b, Partials out, std::int64_t size) {
    for (std::int64_t i = 0; i < size; i += kLanes) {
        const std::int64_t count = Grid::least(kLanes, size - i);
        const Partial left = load_partials(a, i, count);
        const Partial right = load_partials(b, i, count);
        const Partial r =
            out.weighted != nullptr ? merge<Carry::weighted>(left, right) : merge<Carry::none>(left, right);
        store_some(out.max + i, r.max, count);
        store_some(out.sum + i, r.sum, count);
        if (out.weighted != nullptr) store_some(out.weighted + i, r.carried, count);
    }
}

inline void softmax(float* logits, std::int64_t columns, const float* max, const float* sum, std::int64_t row_begin,
                    std::int64_t row_end) {
    for (std::int64_t row = row_begin; row < row_end; ++row) {
        const Vec m = set1(max[row]);
        const Vec s = set1(sum[row]);
        float* z = logits + row * columns;
        map(z, z, columns, [&](Vec v) { return exp(v - m) / s; });
    }
}

}  // namespace steadysum::STEADYSUM_ISA
