#include "dispatch.hpp"

#include <atomic>
#include <stdexcept>

namespace steadysum {

extern const TileKernel kernel_portable;
#if defined(__x86_64__)
extern const TileKernel kernel_avx2;
extern const TileKernel kernel_avx512;
#endif

namespace {
std::atomic<const TileKernel*> chosen{nullptr};
}

std::vector<std::pair<std::string, bool>> cpu_features() {
#if defined(__x86_64__)
    __builtin_cpu_init();
    return {
        {"avx2", __builtin_cpu_supports("avx2") != 0},         {"fma", __builtin_cpu_supports("fma") != 0},
        {"f16c", __builtin_cpu_supports("f16c") != 0},         {"avx512f", __builtin_cpu_supports("avx512f") != 0},
        {"avx512bw", __builtin_cpu_supports("avx512bw") != 0}, {"avx512dq", __builtin_cpu_supports("avx512dq") != 0},
        {"avx512vl", __builtin_cpu_supports("avx512vl") != 0}};
#else
    return {};
#endif
}

std::vector<const TileKernel*> runnable_kernels() {
    std::vector<const TileKernel*> kernels;
#if defined(__x86_64__)
    bool avx2 = true;
    bool avx512 = true;
    for (const auto& [name, present] : cpu_features()) {
        avx512 = avx512 && present;
        if (!name.starts_with("avx512")) avx2 = avx2 && present;
    }
    if (avx512) kernels.push_back(&kernel_avx512);
    if (avx2) kernels.push_back(&kernel_avx2);
#endif
    kernels.push_back(&kernel_portable);
    return kernels;
}

const TileKernel& current_kernel() {
    const TileKernel* kernel = chosen.load();
    if (kernel == nullptr) {
        kernel = runnable_kernels().front();
        chosen.store(kernel);
    }
    return *kernel;
}

void use_kernel(const TileKernel& kernel) { chosen.store(&kernel); }

void choose_kernel(const std::string& isa) {
    std::string allowed;
    for (const TileKernel* kernel : runnable_kernels()) {
        if (isa == kernel->isa) {
            use_kernel(*kernel);
            return;
        }
        allowed += (allowed.empty() ? "" : ", ") + std::string(kernel->isa);
    }
    throw std::invalid_argument("instruction set \"" + isa + "\" can't run here; this processor runs: " + allowed);
}

}  // namespace steadysum
