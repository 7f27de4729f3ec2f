// Loading and storing fewer elements than a vector has lanes.
#pragma once

#include <cstdint>

namespace steadysum::STEADYSUM_ISA {

// The first `count` lanes from memory, the others 0.
inline Vec load_some(const float* from, std::int64_t count) {
    float lanes[kLanes] = {};
    for (std::int64_t i = 0; i < count; ++i) lanes[i] = from[i];
    return load(lanes);
}

inline void store_some(float* to, Vec value, std::int64_t count) {
    float lanes[kLanes];
    store(lanes, value);
    for (std::int64_t i = 0; i < count; ++i) to[i] = lanes[i];
}

}  // namespace steadysum::STEADYSUM_ISA
