// The AVX-512 variant of the kernel over the emulated intrinsics, under names of its own.
#define isa_avx512 isa_avx512_emulated
#define kernel_avx512 kernel_avx512_emulated
#include "../../../native/tiles_avx512.cpp"
