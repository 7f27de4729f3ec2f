#include "pool.hpp"

#include <dlfcn.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "fpenv.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace steadysum {
namespace {

void pause() {
#if defined(__x86_64__)
    _mm_pause();
#else
    std::this_thread::yield();
#endif
}

// A worker looks for the next job for some ten microseconds before it sleeps: the phases of one call follow each other
// faster than a sleeping thread wakes.
constexpr int kSpins = 1000;

class Pool {
   public:
    void run(int threads, const std::function<void(int)>& job) {
        const std::unique_lock<std::mutex> sole(caller_, std::try_to_lock);
        if (!sole.owns_lock() || threads <= 1) {
            enter(job, 0);
            return;
        }
        start_workers(threads - 1);
        {
            const std::lock_guard<std::mutex> lock(mutex_);
            job_ = &job;
            participants_ = threads - 1;
            unfinished_.store(threads - 1, std::memory_order_relaxed);
            generation_.fetch_add(1, std::memory_order_release);
        }
        wake_.notify_all();
        enter(job, 0);
        for (int i = 0; i < kSpins && unfinished_.load(std::memory_order_acquire) != 0; ++i) pause();
        if (unfinished_.load(std::memory_order_acquire) != 0) {
            std::unique_lock<std::mutex> lock(mutex_);
            done_.wait(lock, [&] { return unfinished_.load(std::memory_order_acquire) == 0; });
        }
    }

   private:
    static void enter(const std::function<void(int)>& job, int participant) {
        const DefaultFloatEnvironment environment;
        job(participant);
    }

    void start_workers(int count) {
        while (static_cast<int>(workers_.size()) < count) {
            const int index = static_cast<int>(workers_.size());
            const unsigned seen = generation_.load(std::memory_order_relaxed);
            workers_.emplace_back([this, index, seen] { work(index, seen); });
            workers_.back().detach();
        }
    }

    void work(int index, unsigned seen) {
        for (;;) {
            for (int i = 0; i < kSpins && generation_.load(std::memory_order_acquire) == seen; ++i) pause();
            const std::function<void(int)>* job = nullptr;
            {
                std::unique_lock<std::mutex> lock(mutex_);
                wake_.wait(lock, [&] { return generation_.load(std::memory_order_relaxed) != seen; });
                seen = generation_.load(std::memory_order_relaxed);
                if (index >= participants_) continue;
                job = job_;
            }
            enter(*job, index + 1);
            if (unfinished_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
                const std::lock_guard<std::mutex> lock(mutex_);
                done_.notify_one();
            }
        }
    }

    std::mutex caller_;  // held by the caller whose job runs
    std::mutex mutex_;
    std::condition_variable wake_;
    std::condition_variable done_;
    std::vector<std::thread> workers_;  // detached; they end with the process
    const std::function<void(int)>* job_ = nullptr;
    int participants_ = 0;
    std::atomic<int> unfinished_{0};
    std::atomic<unsigned> generation_{0};
};

// Never destroyed: workers may still wait on it while the process exits. A child of fork has no workers, and may have
// inherited locked mutexes, so it gets a new pool.
std::atomic<Pool*> current{nullptr};
std::atomic<bool> forked{false};

void after_fork() {
    current.store(nullptr);
    forked.store(true);
}

// From the moment the library is loaded: torch's threads may have run, and a fork may come, before our first call.
[[maybe_unused]] const int registered = pthread_atfork(nullptr, nullptr, after_fork);

Pool& pool() {
    Pool* p = current.load(std::memory_order_acquire);
    if (p == nullptr) {
        auto* fresh = new Pool;
        if (current.compare_exchange_strong(p, fresh)) return *fresh;
        delete fresh;
    }
    return *p;
}

// torch's CPU operators run on OpenMP threads that keep spinning for some milliseconds after each of them, and would
// take the cores from a pool of ours for the whole of a small call. Where torch has brought an OpenMP runtime into the
// process, its threads are shared. OpenMP does not survive a fork: a child takes the pool above.
using OpenMpParallel = void (*)(void (*)(void*), void*, unsigned, unsigned);

OpenMpParallel open_mp() {
    static const auto parallel = reinterpret_cast<OpenMpParallel>(::dlsym(RTLD_DEFAULT, "GOMP_parallel"));
    return forked.load() ? nullptr : parallel;
}

struct Region {
    const std::function<void(int)>& job;
    std::atomic<int> entered{0};

    static void enter(void* self) {
        auto& region = *static_cast<Region*>(self);
        const DefaultFloatEnvironment environment;
        region.job(region.entered.fetch_add(1));
    }
};

}  // namespace

void run_on_pool(int threads, const std::function<void(int)>& job) {
    if (const OpenMpParallel parallel = threads > 1 ? open_mp() : nullptr; parallel != nullptr) {
        Region region{job};
        parallel(Region::enter, &region, static_cast<unsigned>(threads), 0);
        return;
    }
    pool().run(threads, job);
}

void share(int threads, std::int64_t size, const std::function<void(std::int64_t, int)>& f) {
    std::atomic<std::int64_t> next{0};
    run_on_pool(static_cast<int>(std::min<std::int64_t>(threads, size)), [&](int participant) {
        for (std::int64_t i = next.fetch_add(1); i < size; i = next.fetch_add(1)) f(i, participant);
    });
}

}  // namespace steadysum
