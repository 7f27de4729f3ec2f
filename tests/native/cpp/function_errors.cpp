// The accuracy that docs/bits.md states for exp, tanh and log, measured over every float where it can be lost, and the
// equality of every variant's bits there. Fails above 1 ulp for exp and log, 2 ulp for tanh. Takes a minute or two:
// part of `make soak`.
//
// An ulp is the distance of two neighbouring floats at the true value, which is taken from the C library in double
// precision: its error there is some 10^-9 of such an ulp.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "checks.hpp"
#include "dispatch.hpp"
#include "fpenv.hpp"
#include "log.hpp"

namespace {

using steadysum::TileKernel;

constexpr std::uint32_t kBatch = 4096;  // floats at a time

std::uint32_t bits_of(float x) {
    std::uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    return bits;
}
float from_bits(std::uint32_t bits) {
    float x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
}

double error_in_ulp(double exact, float found) {
    int exponent = 0;
    std::frexp(exact, &exponent);
    return std::fabs(found - exact) / std::ldexp(1.0, std::max(exponent - 24, -149));
}

struct Worst {
    double ulp = 0.0;
    float at = 0.0F;
};

// What is measured: f over an array, its exact value, and the floats from `first` to `last`, whose magnitudes only
// grow.
struct Measurement {
    const char* name;
    void (*compute)(const TileKernel& variant, const float* x, float* y);  // kBatch of them
    double (*exact)(double x);
    float first;
    float last;
    std::uint32_t stride;  // 1: every float
    double allowed_ulp;
    bool in_variants;  // false: scalar, the same code for all
};

// The share of one of `workers`: every workers-th batch.
Worst measure(const Measurement& m, const std::vector<const TileKernel*>& variants, std::uint32_t worker,
              std::uint32_t workers) {
    const steadysum::DefaultFloatEnvironment environment;
    std::vector<float> x(kBatch);
    std::vector<float> y(kBatch);
    std::vector<float> other(kBatch);
    Worst worst;
    const std::uint64_t end = bits_of(m.last);
    const std::uint64_t batch = std::uint64_t{kBatch} * m.stride;
    for (std::uint64_t at = bits_of(m.first) + worker * batch; at <= end; at += workers * batch) {
        for (std::uint32_t i = 0; i < kBatch; ++i)
            x[i] = from_bits(static_cast<std::uint32_t>(std::min(at + std::uint64_t{i} * m.stride, end)));
        m.compute(*variants[0], x.data(), y.data());
        for (std::size_t v = 1; v < variants.size() && m.in_variants; ++v) {
            m.compute(*variants[v], x.data(), other.data());
            checks::expect(std::memcmp(y.data(), other.data(), kBatch * sizeof(float)) == 0,
                           std::string(m.name) + ": " + variants[v]->isa + " differs from " + variants[0]->isa +
                               " near " + std::to_string(x[0]));
        }
        for (std::uint32_t i = 0; i < kBatch; ++i) {
            const double ulp = error_in_ulp(m.exact(x[i]), y[i]);
            if (!(ulp <= worst.ulp)) worst = {ulp, x[i]};
        }
    }
    return worst;
}

void compute_exp(const TileKernel& variant, const float* x, float* y) { variant.exp(x, y, kBatch); }
void compute_tanh(const TileKernel& variant, const float* x, float* y) { variant.tanh(x, y, kBatch); }
void compute_log(const TileKernel&, const float* x, float* y) {
    for (std::uint32_t i = 0; i < kBatch; ++i) y[i] = steadysum::log(x[i]);
}

constexpr Measurement kMeasurements[] = {
    // Nearer to zero exp(x) rounds to 1 or its neighbour: x alone is the error. Below -87.3 it is defined as 0.
    {"exp", compute_exp, std::exp, -0x1p-26F, -0x1.5d3334p+6F, 1, 1.0, true},
    // Nearer to zero tanh(x) is x to 2^-25; from 10 on it is 1. A sample of both, and of the negative side.
    {"tanh", compute_tanh, std::tanh, 0x1p-12F, 10.0F, 1, 2.0, true},
    {"tanh, sampled", compute_tanh, std::tanh, 0x1p-126F, 100.0F, 101, 2.0, true},
    {"tanh, sampled", compute_tanh, std::tanh, -0x1p-126F, -100.0F, 101, 2.0, true},
    // sum_exp lies in [1, V]; a sample of all others, subnormals included.
    {"log", compute_log, std::log, 1.0F, 0x1p22F, 1, 1.0, false},
    {"log, sampled", compute_log, std::log, 0x1p-149F, 0x1.fffffep127F, 101, 1.0, false},
};

}  // namespace

int main() {
    const std::vector<const TileKernel*> variants = steadysum::runnable_kernels();
    const std::uint32_t workers = std::max(1U, std::thread::hardware_concurrency());
    for (const Measurement& m : kMeasurements) {
        std::vector<Worst> found(workers);
        std::vector<std::thread> threads;
        for (std::uint32_t i = 0; i < workers; ++i)
            threads.emplace_back([&, i] { found[i] = measure(m, variants, i, workers); });
        for (std::thread& t : threads) t.join();
        const Worst worst =
            *std::max_element(found.begin(), found.end(), [](const Worst& a, const Worst& b) { return a.ulp < b.ulp; });
        std::printf("%-14s from %a to %a: at most %.4f ulp, at %a (allowed: %g)\n", m.name, m.first, m.last, worst.ulp,
                    worst.at, m.allowed_ulp);
        std::fflush(stdout);
        checks::expect(worst.ulp <= m.allowed_ulp,
                       std::string(m.name) + ": error of " + std::to_string(worst.ulp) + " ulp");
    }
    if (checks::failures != 0) std::printf("%d failures\n", checks::failures.load());
    return checks::failures == 0 ? 0 : 1;
}
