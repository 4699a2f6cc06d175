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
#elif defined(__aarch64__)
    __asm__ __volatile__("isb");  // "yield" does not wait on most processors
#endif
}

// Tasks 0 .. count - 1, cut into one chunk per thread. In every pass a thread starts with the same chunk, whose rows are still
// in its cache, and then takes tasks from the other chunks.
class Job {
  public:
    Job(int threads, int count, void (*task)(void*, int), void* context)
        : threads_(threads < max_chunks ? threads : max_chunks), count_(count), task_(task), context_(context) {
        for (int t = 0; t < threads_; ++t) chunks_[t].next.store(first(t), std::memory_order_relaxed);
    }

    // Runs tasks on this thread until none is left.
    void run() {
        static std::atomic<int> thread_count{0};
        thread_local const int thread_number = thread_count.fetch_add(1, std::memory_order_relaxed);
        for (int t = 0; t < threads_; ++t) {
            const int chunk = (thread_number + t) % threads_, end = first(chunk + 1);
            for (int i; (i = chunks_[chunk].next.fetch_add(1, std::memory_order_relaxed)) < end;) task_(context_, i);
        }
    }

  private:
    static constexpr int max_chunks = 64;
    struct alignas(64) Chunk {
        std::atomic<int> next;
    };

    int first(int chunk) const { return static_cast<int>(std::int64_t{count_} * chunk / threads_); }

    int threads_, count_;
    void (*task_)(void*, int);
    void* context_;
    Chunk chunks_[max_chunks];
};

class Pool {
  public:
    // Returns false, and runs nothing, while another caller uses the pool.
    bool run(int threads, int count, Job& job) {
        std::unique_lock<std::mutex> owner(busy_, std::try_to_lock);
        if (!owner.owns_lock()) return false;
        const int helpers = (threads < count ? threads : count) - 1;
        try {
            for (; workers_ < helpers; ++workers_) std::thread(&Pool::work, this, workers_).detach();
        } catch (const std::system_error&) {
            // The system starts no more threads: the existing ones do the work.
        }
        {
            std::lock_guard<std::mutex> lock(state_);
            job_ = &job;
            open_ = helpers;
            round_.fetch_add(1, std::memory_order_release);
        }
        wake_.notify_all();
        job.run();
        {
            // Workers that have not joined yet are no longer needed.
            std::lock_guard<std::mutex> lock(state_);
            open_ = 0;
        }
        while (joined_.load(std::memory_order_acquire) != 0) pause();
        return true;
    }

  private:
    void work(int worker) {
        std::uint64_t seen = 0;
        for (;;) {
            // The passes of a call follow each other quickly, so wait actively for a moment before sleeping.
            for (int turn = 0; turn < 2000 && round_.load(std::memory_order_acquire) == seen; ++turn) pause();
            {
                std::unique_lock<std::mutex> lock(state_);
                wake_.wait(lock, [&] { return round_.load(std::memory_order_relaxed) != seen; });
                seen = round_.load(std::memory_order_relaxed);
                if (worker >= open_) continue;
                joined_.fetch_add(1, std::memory_order_relaxed);
            }
            job_->run();
            joined_.fetch_sub(1, std::memory_order_release);
        }
    }

    std::mutex busy_, state_;
    std::condition_variable wake_;
    int workers_ = 0;
    Job* job_ = nullptr;
    int open_ = 0;  // workers below this number may join the job
    std::atomic<int> joined_{0};
    std::atomic<std::uint64_t> round_{0};
};

std::atomic<Pool*> current{nullptr};

// The function that starts the team of threads of another library, if one was set.
std::atomic<Fork*> borrowed{nullptr};

// Threads do not survive a fork. The child process starts a new pool when it needs one, and does not use the borrowed team.
void forget_threads_after_fork() {
#if defined(__unix__) || defined(__APPLE__)
    static std::once_flag once;
    std::call_once(once, [] {
        pthread_atfork(nullptr, nullptr, [] {
            current.store(nullptr);
            borrowed.store(nullptr);
        });
    });
#endif
}

Pool& pool() {
    Pool* here = current.load(std::memory_order_acquire);
    if (here) return *here;
    // The pool is never destroyed: its threads sleep until the process ends.
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

constexpr std::size_t kept_bytes = std::size_t{128} << 20;
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

// The first block is kept between calls. Arrays that do not fit go to extra blocks, and the next call starts with a block that
// is large enough.
struct Arena {
    Block kept;
    std::size_t used = 0;   // bytes used of the kept block
    std::size_t spilt = 0;  // bytes of the extra blocks
    std::size_t peak = 0;
    std::vector<Block> extra;

    ~Arena() { release(kept); }
};

thread_local Arena arena;

}  // namespace

void borrow_team(Fork* fork) {
    forget_threads_after_fork();
    borrowed.store(fork);
}

std::int64_t threaded_rows() { return borrowed.load(std::memory_order_relaxed) ? 1 << 15 : 1 << 17; }

void run_tasks(int threads, int count, void (*task)(void*, int), void* context) {
    if (threads > 1 && count > 1) {
        Job job(threads, count, task, context);
        if (Fork* fork = borrowed.load(std::memory_order_relaxed)) {
            fork([](void* self) { static_cast<Job*>(self)->run(); }, &job, static_cast<unsigned>(threads), 0);
            return;
        }
        if (pool().run(threads, count, job)) return;
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
