// The floating-point control word: kernel threads compute under the default one (round to nearest, no flush to zero),
// since flush-to-zero changes logits; the caller's word is restored afterwards.
#pragma once

#include <cfenv>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace steadysum {

class DefaultFloatEnvironment {
   public:
#if defined(__x86_64__)
    DefaultFloatEnvironment() : saved_(_mm_getcsr()) { _mm_setcsr(0x1F80U); }  // the value at processor reset
    ~DefaultFloatEnvironment() { _mm_setcsr(saved_); }
#else
    DefaultFloatEnvironment() {
        std::fegetenv(&saved_);
        std::fesetenv(FE_DFL_ENV);
    }
    ~DefaultFloatEnvironment() { std::fesetenv(&saved_); }
#endif
    DefaultFloatEnvironment(const DefaultFloatEnvironment&) = delete;
    DefaultFloatEnvironment& operator=(const DefaultFloatEnvironment&) = delete;

   private:
#if defined(__x86_64__)
    unsigned saved_;
#else
    std::fenv_t saved_;
#endif
};

namespace detail {
template <typename F>
[[gnu::noinline]] void call_out_of_line(F& f) {
    f();
}
}  // namespace detail

// Runs f under the default control word. Out of line, since a compiler may move arithmetic across the change of the
// word.
template <typename F>
void in_default_environment(F&& f) {
    const DefaultFloatEnvironment environment;
    detail::call_out_of_line(f);
}

}  // namespace steadysum
