#include "pool.hpp"

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

#if defined(__linux__)
#include <sys/mman.h>
#endif
#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#endif

namespace everypair {
namespace {

inline void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

class Pool {
  public:
    // False when another caller is using the pool.
    bool run(int threads, int count, void (*task)(void*, int), void* context) {
        std::unique_lock<std::mutex> mine(busy_, std::try_to_lock);
        if (!mine.owns_lock()) return false;
        const int helpers = (threads < count ? threads : count) - 1;
        try {
            for (; workers_ < helpers; ++workers_) std::thread(&Pool::work, this, workers_).detach();
        } catch (const std::system_error&) {
            // No more threads to be had: those that are here do the work.
        }
        {
            std::lock_guard<std::mutex> lock(state_);
            task_ = task;
            context_ = context;
            count_ = count;
            seats_ = helpers;
            next_.store(0, std::memory_order_relaxed);
            round_.fetch_add(1, std::memory_order_release);
        }
        wake_.notify_all();
        drain();
        {
            // Who has not joined by now need not come any more.
            std::lock_guard<std::mutex> lock(state_);
            seats_ = 0;
        }
        while (joined_.load(std::memory_order_acquire) != 0) pause();
        return true;
    }

  private:
    void drain() {
        for (int i; (i = next_.fetch_add(1, std::memory_order_relaxed)) < count_;) task_(context_, i);
    }

    void work(int me) {
        std::uint64_t seen = 0;
        for (;;) {
            // A call has several passes in quick succession: look for the next one a moment before sleeping.
            for (int spin = 0; spin < 2000 && round_.load(std::memory_order_acquire) == seen; ++spin) pause();
            {
                std::unique_lock<std::mutex> lock(state_);
                wake_.wait(lock, [&] { return round_.load(std::memory_order_relaxed) != seen; });
                seen = round_.load(std::memory_order_relaxed);
                if (me >= seats_) continue;
                joined_.fetch_add(1, std::memory_order_relaxed);
            }
            drain();
            joined_.fetch_sub(1, std::memory_order_release);
        }
    }

    std::mutex busy_, state_;
    std::condition_variable wake_;
    int workers_ = 0;
    void (*task_)(void*, int) = nullptr;
    void* context_ = nullptr;
    int count_ = 0;
    int seats_ = 0;
    std::atomic<int> next_{0};
    std::atomic<int> joined_{0};
    std::atomic<std::uint64_t> round_{0};
};

std::atomic<Pool*> current{nullptr};

Pool& pool() {
    Pool* here = current.load(std::memory_order_acquire);
    if (here) return *here;
    // Never destroyed: its threads sleep until the process ends.
    Pool* fresh = new Pool;
    if (!current.compare_exchange_strong(here, fresh)) {
        delete fresh;
        return *here;
    }
#if defined(__unix__) || defined(__APPLE__)
    // The threads do not survive a fork; the child starts a pool of its own when it needs one.
    static std::once_flag once;
    std::call_once(once, [] { pthread_atfork(nullptr, nullptr, [] { current.store(nullptr); }); });
#endif
    return *fresh;
}

struct Block {
    std::byte* data = nullptr;
    std::size_t size = 0;
};

constexpr std::size_t kept_bytes = std::size_t{32} << 20;
constexpr std::size_t huge_page = std::size_t{2} << 20;

Block allocate(std::size_t size) {
    const std::size_t alignment = size >= huge_page ? huge_page : 64;
    Block block{static_cast<std::byte*>(::operator new(size, std::align_val_t(alignment))), size};
#if defined(__linux__)
    if (size >= huge_page) madvise(block.data, size, MADV_HUGEPAGE);
#endif
    return block;
}

void release(Block& block) {
    const std::size_t alignment = block.size >= huge_page ? huge_page : 64;
    ::operator delete(block.data, std::align_val_t(alignment));
    block = {};
}

// The first block is kept between calls; what does not fit goes to extra blocks, and the next call starts with one that fits.
struct Arena {
    Block kept;
    std::size_t used = 0;   // of the kept block
    std::size_t spilt = 0;  // in extra blocks
    std::size_t peak = 0;
    std::vector<Block> extra;

    ~Arena() { release(kept); }
};

thread_local Arena arena;

}  // namespace

void run_tasks(int threads, int count, void (*task)(void*, int), void* context) {
    if (threads > 1 && count > 1 && pool().run(threads, count, task, context)) return;
    for (int i = 0; i < count; ++i) task(context, i);
}

Scratch::Scratch() : used_(arena.used), extra_(arena.extra.size()) {}

Scratch::~Scratch() {
    arena.used = used_;
    while (arena.extra.size() > extra_) {
        arena.spilt -= arena.extra.back().size;
        release(arena.extra.back());
        arena.extra.pop_back();
    }
    if (used_ != 0 || extra_ != 0) return;
    if (arena.kept.size > kept_bytes) release(arena.kept);
    if (arena.peak > arena.kept.size && arena.peak <= kept_bytes) {
        release(arena.kept);
        arena.kept = allocate(arena.peak);
    }
    arena.peak = 0;
}

void* Scratch::bytes(std::size_t size) {
    size = (size + 127) & ~std::size_t{63};
    std::byte* here;
    if (arena.used + size <= arena.kept.size) {
        here = arena.kept.data + arena.used;
        arena.used += size;
    } else {
        arena.extra.push_back(allocate(size));
        arena.spilt += size;
        here = arena.extra.back().data;
    }
    if (arena.used + arena.spilt > arena.peak) arena.peak = arena.used + arena.spilt;
    return here;
}

}  // namespace everypair
