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

}  // namespace steadysum
