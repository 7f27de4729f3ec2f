// Scratch memory of a call: one 64-byte aligned buffer per calling thread, kept between calls while it is small, since
// a fresh mapping costs a page fault per 4 KiB, as long as the whole of a small call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>

namespace steadysum {

class Workspace {
   public:
    static constexpr std::size_t kKeptBytes = std::size_t{16} << 20;
    static constexpr std::align_val_t kAlignment{64};

    ~Workspace() { release(); }
    Workspace() = default;
    Workspace(const Workspace&) = delete;
    Workspace& operator=(const Workspace&) = delete;

    // A buffer of at least `floats` floats, uninitialised, valid until the next call. Throws std::bad_alloc.
    float* reserve(std::int64_t floats) {
        const std::size_t bytes = static_cast<std::size_t>(floats) * sizeof(float);
        if (bytes > bytes_) {
            release();
            data_ = static_cast<float*>(::operator new(bytes, kAlignment));
            bytes_ = bytes;
        }
        return data_;
    }
    void trim() {
        if (bytes_ > kKeptBytes) release();
    }

   private:
    void release() {
        if (data_ != nullptr) ::operator delete(data_, kAlignment);
        data_ = nullptr;
        bytes_ = 0;
    }
    float* data_ = nullptr;
    std::size_t bytes_ = 0;
};

}  // namespace steadysum
