// The kernel's test program, without Python: concurrent callers on std::thread, every variant, ragged and strided
// operands, a fork, and a caller's own floating-point mode, each against the scalar definition, bit for bit. Meant to
// run under the address, undefined-behaviour and thread sanitizers (`make native-test`); built without one it is a
// quick test. The tests of the gradients, which it runs as well, are in gradient_tests.hpp. Not here: accuracy
// (function_errors.cpp), Python bindings (tests/kernels).
//
//     native_test [part of a test's name]
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>
#include <random>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "cases.hpp"
#include "checks.hpp"
#include "dispatch.hpp"
#include "gradient_tests.hpp"
#include "log.hpp"
#include "run.hpp"
#include "scalar_bits.hpp"
#include "variants.hpp"

// The kernel's scratch memory starts out as NaN: what is read before it is written shows in a result.
void* operator new(std::size_t bytes, std::align_val_t alignment) {
    const auto unit = static_cast<std::size_t>(alignment);
    void* memory = std::aligned_alloc(unit, (bytes + unit - 1) / unit * unit);
    if (memory == nullptr) throw std::bad_alloc();
    std::memset(memory, 0xFF, bytes);
    return memory;
}
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }

namespace {

using cases::Case;
using cases::Example;
using cases::Layout;
using cases::Outputs;
using cases::Temperature;
using cases::Values;
using checks::expect;
using steadysum::DType;
using steadysum::TileKernel;

// Runs an example on the variant that is chosen at the time.
void check(const Example& example, int threads, const std::string& where) {
    Outputs out(example.c);
    steadysum::run({example.problem(out)}, threads);
    const std::string difference = example.difference(out);
    expect(difference.empty(),
           where + ", " + std::to_string(threads) + " threads, " + cases::describe(example.c) + ": " + difference);
}

// The same, verified: no bit differs, and nothing is found wrong.
void check_verified(const Example& example, int threads, const std::string& where) {
    Outputs out(example.c);
    const steadysum::Problem problem = example.problem(out);
    const auto tiles = static_cast<std::size_t>(problem.grid().tiles());
    const auto depth = static_cast<std::size_t>(problem.depth());
    const auto blocks = static_cast<std::size_t>(steadysum::Grid::ceil_div(problem.depth(), steadysum::kBlock));
    std::vector<float> columns(steadysum::kChecksums * tiles * depth);
    std::vector<float> energies(steadysum::kChecksums * tiles * blocks);
    std::vector<float> scales(tiles);
    const steadysum::WeightChecksums weight{columns.data(), energies.data(), scales.data()};
    steadysum::take_weight_checksums(problem, weight, threads);
    steadysum::CheckLog log;
    steadysum::run_verified({problem}, {{&weight, &log, 7, nullptr}}, threads);
    const std::string difference = example.difference(out);
    const bool fine = !log.stale.load() && log.bad_count() == 0 && difference.empty();
    expect(fine, where + ", verified, " + std::to_string(threads) + " threads, " + cases::describe(example.c) + ": " +
                     std::to_string(log.bad_count()) + " bad, " + difference);
}

// Large enough to be shared out over threads, whatever the variant.
Case large(unsigned seed) {
    Case c = cases::draw(seed);
    c.rows = 33 + static_cast<std::int64_t>(seed % 40);
    c.depth = 65 + static_cast<std::int64_t>(seed % 90);
    c.vocabulary = 600 + static_cast<std::int64_t>(seed % 500);
    c.valid = seed % 2 == 0 ? c.vocabulary : c.vocabulary - 100;
    return c;
}

void drawn_problems_have_the_published_bits() {
    for (unsigned seed = 0; seed < 300; ++seed) {
        const Example example(cases::draw(seed));
        for (const TileKernel* variant : variants()) {
            steadysum::use_kernel(*variant);
            check(example, 1 + static_cast<int>(seed % 8), variant->isa);
            check_verified(example, 1 + static_cast<int>(seed % 8), variant->isa);
        }
    }
}

void thread_counts_do_not_change_bits() {
    for (unsigned seed = 0; seed < 6; ++seed) {
        const Example example(large(seed));
        for (const TileKernel* variant : variants()) {
            steadysum::use_kernel(*variant);
            for (const int threads : {1, 2, 3, 8}) check(example, threads, variant->isa);
            check_verified(example, 3, variant->isa);
        }
    }
}

// Every layout with every dtype and few or many rows, which are two different products.
void every_layout_has_the_published_bits() {
    for (int layout = 0; layout < cases::kLayouts; ++layout)
        for (int dtype = 0; dtype < 3; ++dtype)
            for (const std::int64_t rows : {2, 35}) {
                Case c{.rows = rows, .depth = 150, .vocabulary = 45, .valid = 45};
                c.dtype = static_cast<DType>(dtype);
                c.input = static_cast<Layout>(layout);
                c.weight = static_cast<Layout>((layout + dtype) % cases::kLayouts);
                c.seed = static_cast<unsigned>(layout * 3 + dtype);
                const Example example(c);
                for (const TileKernel* variant : variants()) {
                    steadysum::use_kernel(*variant);
                    check(example, 2, variant->isa);
                    check_verified(example, 2, variant->isa);
                }
            }
}

void empty_dimensions_are_fine() {
    for (const TileKernel* variant : variants()) {
        steadysum::use_kernel(*variant);
        steadysum::run({}, 3);
        for (const std::int64_t rows : {0, 1, 5, 40})
            for (const std::int64_t depth : {0, 9}) {
                Case c{.rows = rows, .depth = depth, .vocabulary = 700, .valid = 600, .bias_stride = 1};
                c.wants_target = c.wants_weighted = c.wants_logits = true;
                check(Example(c), 3, variant->isa);
            }
    }
}

// More rows than one task, a chunk, or a wave holds.
void large_problems_are_cut_without_a_trace() {
    const Example many_rows({.rows = 1100, .depth = 20, .vocabulary = 150, .valid = 150});
    const Example deep(
        {.rows = 300, .depth = 25000, .vocabulary = 3, .valid = 3, .seed = 1});  // chunks of 256 rows at most
    for (const TileKernel* variant : variants()) {
        steadysum::use_kernel(*variant);
        check(many_rows, 1, variant->isa);
        check(many_rows, 3, variant->isa);
    }
    steadysum::choose_kernel(steadysum::runnable_kernels().front()->isa);
    check(deep, 3, "chunks");
    Outputs first(deep.c);
    Outputs middle(many_rows.c);
    Outputs last(deep.c);
    steadysum::run({deep.problem(first), many_rows.problem(middle), deep.problem(last)}, 2);
    expect(deep.difference(first).empty() && many_rows.difference(middle).empty() && deep.difference(last).empty(),
           "several waves: a result differs");
}

void problems_of_one_call_do_not_touch_each_other() {
    std::vector<Example> examples;
    for (unsigned seed = 400; seed < 416; ++seed)
        examples.emplace_back(seed % 4 == 0 ? large(seed) : cases::draw(seed));
    for (const TileKernel* variant : variants()) {
        steadysum::use_kernel(*variant);
        std::vector<Outputs> outputs;
        std::vector<steadysum::Problem> problems;
        for (const Example& e : examples) outputs.emplace_back(e.c);
        for (std::size_t i = 0; i < examples.size(); ++i) problems.push_back(examples[i].problem(outputs[i]));
        steadysum::run(problems, 4);
        for (std::size_t i = 0; i < examples.size(); ++i) {
            const std::string difference = examples[i].difference(outputs[i]);
            expect(difference.empty(),
                   std::string(variant->isa) + ", problem " + std::to_string(i) + ": " + difference);
        }
    }
}

void concurrent_callers_get_the_published_bits() {
    constexpr int kCallers = 6;
    std::vector<Example> examples;
    for (unsigned seed = 500; seed < 500 + kCallers; ++seed) examples.emplace_back(large(seed));
    for (const TileKernel* variant : variants()) {
        steadysum::use_kernel(*variant);
        std::vector<std::thread> callers;
        for (int caller = 0; caller < kCallers; ++caller)
            callers.emplace_back([&, caller] {
                for (int round = 0; round < 12; ++round)
                    check(examples[static_cast<std::size_t>((caller + round) % kCallers)], 1 + (caller + round) % 8,
                          std::string(variant->isa) + ", caller " + std::to_string(caller));
            });
        for (std::thread& t : callers) t.join();
    }
}

// Runs `body` in a child of fork; its failures become the exit code. A child that hangs is killed by its own alarm.
template <typename Body>
void in_child(const char* what, Body&& body) {
    std::fflush(nullptr);
    const pid_t child = ::fork();
    if (child == 0) {
        ::alarm(60);
        checks::failures = 0;
        body();
        std::fflush(stderr);
        ::_exit(checks::failures == 0 ? 0 : 3);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    expect(WIFEXITED(status) && WEXITSTATUS(status) == 0,
           std::string(what) + ": wait status " + std::to_string(status) + (WIFSIGNALED(status) ? " (a signal)" : ""));
}

void a_child_of_fork_has_threads_of_its_own() {
    steadysum::choose_kernel(steadysum::runnable_kernels().front()->isa);
    const Example example(large(600));
    check(example, 4, "before the fork");
    for (int round = 0; round < 3; ++round)
        in_child("child", [&] {
            check(example, 1, "child");
            check(example, 4, "child");
            in_child("grandchild", [&] { check(example, 3, "grandchild"); });
            check(example, 4, "child");
        });
    check(example, 4, "after the fork");
}

void a_fork_while_other_threads_run_is_survived() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    // With GCC 12 the address sanitizer's allocator may be locked in the child for ever (by the other thread, at the
    // fork), and the thread sanitizer takes a new thread of the child for the parent's ("dup thread with used id").
    std::printf("  left out: this sanitizer doesn't support a fork beside running threads\n");
    return;
#endif
    steadysum::choose_kernel(steadysum::runnable_kernels().front()->isa);
    const Example example(large(601));
    std::atomic<bool> stop{false};
    std::thread busy([&] {
        while (!stop.load()) check(example, 3, "beside forks");
    });
    for (int round = 0; round < 8; ++round) in_child("child", [&] { check(example, 3, "child"); });
    stop.store(true);
    busy.join();
}

// A caller who flushes subnormals and rounds upwards gets the same bits, and keeps that mode.
void the_callers_floating_point_mode_neither_enters_nor_changes() {
#if defined(__x86_64__)
    constexpr unsigned kFlushToZero = 0x8000;
    constexpr unsigned kDenormalsAreZero = 0x0040;
    constexpr unsigned kRoundUp = 0x4000;
    const unsigned usual = _mm_getcsr();
    const unsigned unusual = usual | kFlushToZero | kDenormalsAreZero | kRoundUp;
    std::vector<Example> examples;
    for (unsigned seed = 700; seed < 704; ++seed) {
        Case c = large(seed);
        c.values = seed % 2 == 0 ? Values::tiny : Values::usual;
        c.dtype = static_cast<DType>(seed % 3);
        examples.emplace_back(c);
    }
    for (const TileKernel* variant : variants()) {
        steadysum::use_kernel(*variant);
        for (const Example& example : examples)
            for (const int threads : {1, 12}) {  // 12: more than any test before, so that workers start under this mode
                Outputs out(example.c);
                const std::vector<steadysum::Problem> problems{example.problem(out)};
                _mm_setcsr(unusual);
                steadysum::run(problems, threads);
                const unsigned after = _mm_getcsr();
                _mm_setcsr(usual);
                const std::string difference = example.difference(out);
                expect(difference.empty(), std::string(variant->isa) + ": " + difference);
                expect(after == unusual, std::string(variant->isa) + ": the caller's mode isn't restored");
            }
    }
#else
    std::printf("  left out: the floating-point mode is set for x86-64 only\n");
#endif
}

// Floats of all magnitudes, specials included.
std::vector<float> numbers(std::size_t size, unsigned seed) {
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    const float special[] = {0.0F,          -0.0F,   1.0F,   -1.0F,           kInfinity, -kInfinity,
                             std::nanf(""), 0.625F,  -87.3F, -0x1.5d3336p+6F, 0x1p-149F, -0x1p-130F,
                             -103.0F,       -0.346F, 3e38F,  -3e38F};
    std::mt19937 random(seed);
    std::vector<float> x(size);
    for (float& v : x) {
        if (random() % 4 == 0) {
            v = special[random() % std::size(special)];
        } else {
            const auto bits = static_cast<std::uint32_t>(random());
            std::memcpy(&v, &bits, sizeof v);
            if (random() % 2 == 0) v = std::ldexp(static_cast<float>(random() % 20001) - 10000.0F, -7);
        }
    }
    return x;
}

bool same(float a, float b) { return std::memcmp(&a, &b, sizeof a) == 0 || (std::isnan(a) && std::isnan(b)); }

void functions_over_arrays_have_the_published_bits() {
    for (const TileKernel* variant : variants())
        for (const std::size_t size : {0, 1, 7, 8, 9, 15, 16, 17, 4001}) {
            const std::vector<float> x = numbers(size, 1);
            std::vector<float> negative = x;  // exp is used for x <= 0 only
            for (float& v : negative) v = v > 0.0F ? -v : v;
            std::vector<float> e(size);
            std::vector<float> t(size);
            variant->exp(negative.data(), e.data(), static_cast<std::int64_t>(size));
            variant->tanh(x.data(), t.data(), static_cast<std::int64_t>(size));
            for (std::size_t i = 0; i < size; ++i) {
                expect(same(e[i], scalar::exp(negative[i])),
                       std::string(variant->isa) + ": exp of " + std::to_string(x[i]));
                expect(same(t[i], scalar::tanh(x[i])), std::string(variant->isa) + ": tanh of " + std::to_string(x[i]));
                expect(same(steadysum::log(x[i]), scalar::log(x[i])), "log of " + std::to_string(x[i]));
            }
        }
}

void merging_partials_has_the_published_bits() {
    for (const TileKernel* variant : variants())
        for (const std::size_t size : {0, 1, 7, 16, 33, 2000}) {
            const std::vector<float> ma = numbers(size, 2);
            std::vector<float> mb = numbers(size, 3);
            for (std::size_t i = 0; i < size; i += 3) mb[i] = ma[i] - 1.5F;  // near enough that neither side vanishes
            const std::vector<float> sa = numbers(size, 4);
            const std::vector<float> sb = numbers(size, 5);
            const std::vector<float> wa = numbers(size, 6);
            const std::vector<float> wb = numbers(size, 7);
            for (const bool weighted : {false, true}) {
                std::vector<float> m(size);
                std::vector<float> s(size);
                std::vector<float> w(weighted ? size : 0);
                const auto pointer = [&](auto& v) { return weighted ? v.data() : nullptr; };
                variant->merge({ma.data(), sa.data(), pointer(wa)}, {mb.data(), sb.data(), pointer(wb)},
                               {m.data(), s.data(), pointer(w)}, static_cast<std::int64_t>(size));
                for (std::size_t i = 0; i < size; ++i) {
                    const scalar::Partial r = scalar::merge({ma[i], sa[i], wa[i]}, {mb[i], sb[i], wb[i]});
                    expect(same(m[i], r.max) && same(s[i], r.sum) && (!weighted || same(w[i], r.weighted)),
                           std::string(variant->isa) + ": merge of partial " + std::to_string(i));
                }
            }
        }
}

void softmax_has_the_published_bits() {
    for (const auto& [rows, columns] : {std::pair<std::int64_t, std::int64_t>{3, 13}, {70, 1000}, {2, 70001}})
        for (const TileKernel* variant : variants()) {
            steadysum::use_kernel(*variant);
            Case c{.rows = rows, .depth = 3, .vocabulary = columns, .valid = columns - 1, .wants_logits = true};
            const Outputs expected = Example(c).expected();
            for (const int threads : {1, 3}) {
                std::vector<float> p = expected.logits;
                steadysum::run_softmax(p.data(), rows, columns, expected.max.data(), expected.sum_exp.data(), threads);
                bool all = true;
                for (std::size_t i = 0; i < p.size(); ++i) {
                    const std::size_t row = i / static_cast<std::size_t>(columns);
                    all =
                        all && same(p[i], scalar::exp(expected.logits[i] - expected.max[row]) / expected.sum_exp[row]);
                }
                expect(all, std::string(variant->isa) + ": softmax");
            }
        }
}

void an_unknown_variant_is_refused_by_name() {
    try {
        steadysum::choose_kernel("sse");
        expect(false, "choose_kernel accepts \"sse\"");
    } catch (const std::invalid_argument& error) {
        const std::string_view text = error.what();
        expect(text.find("\"sse\"") != text.npos && text.find("portable") != text.npos, error.what());
    }
}

using namespace gradient_tests;

struct Test {
    const char* name;
    void (*run)();
};
#define TEST(name) \
    Test { #name, name }
constexpr Test kTests[] = {
    TEST(an_unknown_variant_is_refused_by_name),
    TEST(functions_over_arrays_have_the_published_bits),
    TEST(merging_partials_has_the_published_bits),
    TEST(drawn_problems_have_the_published_bits),
    TEST(every_layout_has_the_published_bits),
    TEST(empty_dimensions_are_fine),
    TEST(thread_counts_do_not_change_bits),
    TEST(problems_of_one_call_do_not_touch_each_other),
    TEST(large_problems_are_cut_without_a_trace),
    TEST(softmax_has_the_published_bits),
    TEST(concurrent_callers_get_the_published_bits),
    TEST(a_child_of_fork_has_threads_of_its_own),
    TEST(a_fork_while_other_threads_run_is_survived),
    TEST(the_callers_floating_point_mode_neither_enters_nor_changes),
    TEST(drawn_gradients_have_the_published_bits),
    TEST(every_choice_of_coefficients_has_the_published_bits),
    TEST(every_layout_has_the_published_gradients),
    TEST(thread_counts_do_not_change_gradients),
    TEST(wide_vocabularies_have_the_published_gradients),
    TEST(concurrent_callers_get_the_published_gradients),
    TEST(the_callers_floating_point_mode_does_not_enter_gradients),
};
#undef TEST

}  // namespace

// The thread sanitizer's default is to end a child of a multi-threaded fork that starts threads; ours must.
extern "C" __attribute__((visibility("default"))) const char* __tsan_default_options() { return "die_after_fork=0"; }

int main(int argc, char** argv) {
    const std::string_view wanted = argc > 1 ? argv[1] : "";
    for (const TileKernel* variant : variants())
        std::printf("variant: %s%s\n", variant->isa, runs_here(variant) ? "" : " (for tests alone)");
    for (const Test& test : kTests) {
        if (std::string_view(test.name).find(wanted) == std::string_view::npos) continue;
        const int before = checks::failures;
        const auto start = std::chrono::steady_clock::now();
        test.run();
        const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
        std::printf("%s %s (%.1f s)\n", checks::failures == before ? "ok    " : "FAILED", test.name, took.count());
        std::fflush(stdout);
    }
    if (checks::failures != 0) std::printf("%d failures\n", checks::failures.load());
    return checks::failures == 0 ? 0 : 1;
}
