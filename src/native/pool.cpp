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

// Tasks 0 .. count - 1, cut into one stretch a thread. A thread starts with the same stretch in every pass, whose rows its own
// cache still holds, and then helps with the others'.
class Errand {
  public:
    Errand(int threads, int count, void (*task)(void*, int), void* context)
        : threads_(threads < most_stretches ? threads : most_stretches), count_(count), task_(task), context_(context) {
        for (int t = 0; t < threads_; ++t) stretches_[t].next.store(first(t), std::memory_order_relaxed);
    }

    void drain() {
        static std::atomic<int> seats{0};
        thread_local const int seat = seats.fetch_add(1, std::memory_order_relaxed);
        for (int t = 0; t < threads_; ++t) {
            const int stretch = (seat + t) % threads_, end = first(stretch + 1);
            for (int i; (i = stretches_[stretch].next.fetch_add(1, std::memory_order_relaxed)) < end;) task_(context_, i);
        }
    }

  private:
    static constexpr int most_stretches = 64;
    struct alignas(64) Stretch {
        std::atomic<int> next;
    };

    int first(int stretch) const { return static_cast<int>(std::int64_t{count_} * stretch / threads_); }

    int threads_, count_;
    void (*task_)(void*, int);
    void* context_;
    Stretch stretches_[most_stretches];
};

class Pool {
  public:
    // False when another caller is using the pool.
    bool run(int threads, int count, Errand& errand) {
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
            errand_ = &errand;
            seats_ = helpers;
            round_.fetch_add(1, std::memory_order_release);
        }
        wake_.notify_all();
        errand.drain();
        {
            // Who has not joined by now need not come any more.
            std::lock_guard<std::mutex> lock(state_);
            seats_ = 0;
        }
        while (joined_.load(std::memory_order_acquire) != 0) pause();
        return true;
    }

  private:
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
            errand_->drain();
            joined_.fetch_sub(1, std::memory_order_release);
        }
    }

    std::mutex busy_, state_;
    std::condition_variable wake_;
    int workers_ = 0;
    Errand* errand_ = nullptr;
    int seats_ = 0;
    std::atomic<int> joined_{0};
    std::atomic<std::uint64_t> round_{0};
};

std::atomic<Pool*> current{nullptr};

// The team of threads that another library of this process keeps warm, where one was lent.
std::atomic<Fork*> lent{nullptr};

// Threads do not survive a fork. The child starts a pool of its own when it needs one, and leaves the lent team alone.
void forget_threads_after_fork() {
#if defined(__unix__) || defined(__APPLE__)
    static std::once_flag once;
    std::call_once(once, [] {
        pthread_atfork(nullptr, nullptr, [] {
            current.store(nullptr);
            lent.store(nullptr);
        });
    });
#endif
}

Pool& pool() {
    Pool* here = current.load(std::memory_order_acquire);
    if (here) return *here;
    // Never destroyed: its threads sleep until the process ends.
    Pool* fresh = new Pool;
    if (!current.compare_exchange_strong(here, fresh)) {
        delete fresh;
        return *here;
    }
    forget_threads_after_fork();
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

void borrow_team(Fork* fork) {
    forget_threads_after_fork();
    lent.store(fork);
}

std::int64_t threaded_rows() { return lent.load(std::memory_order_relaxed) ? 1 << 15 : 1 << 17; }

void run_tasks(int threads, int count, void (*task)(void*, int), void* context) {
    if (threads > 1 && count > 1) {
        Errand errand(threads, count, task, context);
        if (Fork* fork = lent.load(std::memory_order_relaxed)) {
            fork([](void* self) { static_cast<Errand*>(self)->drain(); }, &errand, static_cast<unsigned>(threads), 0);
            return;
        }
        if (pool().run(threads, count, errand)) return;
    }
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
