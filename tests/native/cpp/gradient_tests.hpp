// The tests of the gradients, which native_test.cpp runs: drawn and chosen cases on every variant, against the scalar
// definition, bit for bit. Not here: what a case is, and what is expected of it (gradient_cases.hpp).
#pragma once

#include <string>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "checks.hpp"
#include "gradient_cases.hpp"
#include "variants.hpp"

namespace gradient_tests {

using cases::Case;
using cases::GradientCase;
using cases::GradientExample;
using cases::Layout;
using checks::expect;
using steadysum::DType;
using steadysum::GradientWork;
using steadysum::TileKernel;

// Runs an example on the variant that is chosen at the time.
inline void check(const GradientExample& example, GradientWork& work, int threads, const std::string& where) {
    const std::string difference = example.difference(example.run(work, threads));
    expect(difference.empty(),
           where + ", " + std::to_string(threads) + " threads, " + cases::describe(example.g) + ": " + difference);
}

// On every variant, in fresh memory.
inline void check_everywhere(const GradientCase& g, int threads) {
    const GradientExample example(g);
    for (const TileKernel* variant : variants()) {
        steadysum::use_kernel(*variant);
        GradientWork work;
        check(example, work, threads, variant->isa);
    }
}

// Large enough to be shared out over threads, in two chunks.
inline GradientCase large_gradient(unsigned seed) {
    Case c = cases::draw(seed);
    c.rows = 129 + static_cast<std::int64_t>(seed % 40);
    c.depth = 33 + static_cast<std::int64_t>(seed % 50);
    c.vocabulary = 530 + static_cast<std::int64_t>(seed % 200);
    c.valid = seed % 2 == 0 ? c.vocabulary : c.vocabulary - 100;
    GradientCase g = cases::around(c);
    g.wants_input = g.wants_weight = g.wants_bias = true;
    g.known = seed % 4 < 2;
    g.chunk_rows = 128;
    return g;
}

inline void drawn_gradients_have_the_published_bits() {
    std::vector<GradientWork> kept(variants().size());  // memory that earlier cases have used
    for (unsigned seed = 0; seed < 300; ++seed) {
        const GradientExample example(cases::draw_gradient(seed));
        for (std::size_t v = 0; v < kept.size(); ++v) {
            const TileKernel* variant = variants()[v];
            steadysum::use_kernel(*variant);
            GradientWork fresh;
            check(example, seed % 2 == 0 ? kept[v] : fresh, 1 + static_cast<int>(seed % 3), variant->isa);
        }
    }
}

inline void every_choice_of_coefficients_has_the_published_bits() {
    unsigned seed = 0;
    for (const char* of_exp : {"", "A", "AK", "AC", "AKC"})
        for (unsigned others = 0; others < 32; ++others) {
            Case c{.rows = 19, .depth = 5, .vocabulary = 600, .valid = 560, .bias_stride = 1, .scale = 0.7F};
            c.softcap = 1.7F;
            c.temperature = cases::Temperature::per_row;
            c.wants_target = c.wants_ties = true;
            c.seed = seed++;
            GradientCase g{.forward = c, .letters = of_exp, .column_weight = seed % 2 == 0, .dense = true};
            for (unsigned k = 0; k < 5; ++k)
                if ((others >> k & 1U) != 0) g.letters += "UDTBL"[k];
            g.known = seed % 3 == 0;
            check_everywhere(g, 2);
        }
}

inline void every_layout_has_the_published_gradients() {
    for (int layout = 0; layout < cases::kLayouts; ++layout)
        for (int dtype = 0; dtype < 3; ++dtype) {
            Case c{.rows = 35, .depth = 150, .vocabulary = 45, .valid = 45, .wants_target = true};
            c.dtype = static_cast<DType>(dtype);
            c.input = static_cast<Layout>(layout);
            c.weight = static_cast<Layout>((layout + dtype) % cases::kLayouts);
            c.seed = static_cast<unsigned>(layout * 3 + dtype);
            GradientCase g{.forward = c, .letters = "ADB", .dense = true, .known = layout % 2 == 0};
            g.dense_layout = static_cast<Layout>((layout + 3) % cases::kLayouts);
            g.dense_dtype = static_cast<DType>((dtype + layout) % 3);
            check_everywhere(g, 2);
        }
}

inline void thread_counts_do_not_change_gradients() {
    for (unsigned seed = 800; seed < 808; ++seed) {
        const GradientExample example(large_gradient(seed));
        for (const TileKernel* variant : variants()) {
            steadysum::use_kernel(*variant);
            GradientWork work;
            for (const int threads : {1, 2, 3, 8}) check(example, work, threads, variant->isa);
        }
    }
}

// Wide segments, of which the last ones may be masked, and several blocks of rows.
inline void wide_vocabularies_have_the_published_gradients() {
    for (const std::int64_t valid : {9001, 8999, 4000, 563, 562, 100}) {
        Case c{.rows = 5, .depth = 19, .vocabulary = 9001, .valid = valid, .wants_target = true};
        c.seed = static_cast<unsigned>(valid);
        check_everywhere({.forward = c, .letters = "AUTB", .known = valid % 2 == 0}, 3);
    }
}

inline void concurrent_callers_get_the_published_gradients() {
    constexpr int kCallers = 4;
    std::vector<GradientExample> examples;
    for (unsigned seed = 900; seed < 900 + kCallers; ++seed) examples.emplace_back(large_gradient(seed));
    for (const TileKernel* variant : variants()) {
        steadysum::use_kernel(*variant);
        std::vector<std::thread> callers;
        for (int caller = 0; caller < kCallers; ++caller)
            callers.emplace_back([&, caller] {
                GradientWork work;
                for (int round = 0; round < 4; ++round)
                    check(examples[static_cast<std::size_t>((caller + round) % kCallers)], work,
                          1 + (caller + round) % 3, std::string(variant->isa) + ", caller " + std::to_string(caller));
            });
        for (std::thread& t : callers) t.join();
    }
}

// A caller who flushes subnormals and rounds upwards gets the same gradients, and keeps that mode.
inline void the_callers_floating_point_mode_does_not_enter_gradients() {
#if defined(__x86_64__)
    const unsigned usual = _mm_getcsr();
    const unsigned unusual = usual | 0x8000U | 0x0040U | 0x4000U;  // flush to zero, subnormals are zero, round up
    std::vector<GradientExample> examples;
    for (unsigned seed = 1000; seed < 1004; ++seed) {
        GradientCase g = large_gradient(seed);
        g.forward.values = seed % 2 == 0 ? cases::Values::tiny : cases::Values::usual;
        examples.emplace_back(g);
    }
    for (const TileKernel* variant : variants()) {
        steadysum::use_kernel(*variant);
        for (const GradientExample& example : examples)
            for (const int threads : {1, 3}) {
                GradientWork work;
                _mm_setcsr(unusual);
                const GradientExample::Results found = example.run(work, threads);
                const unsigned after = _mm_getcsr();
                _mm_setcsr(usual);
                const std::string difference = example.difference(found);
                expect(difference.empty(), std::string(variant->isa) + ": " + difference);
                expect(after == unusual, std::string(variant->isa) + ": the caller's mode isn't restored");
            }
    }
#else
    std::printf("  left out: the floating-point mode is set for x86-64 only\n");
#endif
}

}  // namespace gradient_tests
