#include "pool.hpp"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <utility>
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

// Tasks 0 .. count - 1, cut into one chunk per thread. In every pass a thread starts with the same chunk,
// whose rows are still in its cache, and then takes tasks from the other chunks.
class Job {
  public:
    Job(int threads, int count, void (*task)(void*, int), void* context)
        : threads_(std::min(threads, max_chunks)), count_(count), task_(task), context_(context) {
        for (int t = 0; t < threads_; ++t) chunks_[t].next.store(first(t), std::memory_order_relaxed);
    }

    // Runs tasks on this thread until none is left.
    void run() {
        static std::atomic<int> thread_count{0};
        thread_local const int thread_number = thread_count.fetch_add(1, std::memory_order_relaxed);
        for (int t = 0; t < threads_; ++t) {
            const int chunk = (thread_number + t) % threads_, end = first(chunk + 1);
            for (int i; (i = chunks_[chunk].next.fetch_add(1, std::memory_order_relaxed)) < end;)
                task_(context_, i);
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
    bool run(int helpers, Job& job) {
        const std::unique_lock owner(busy_, std::try_to_lock);
        if (!owner) return false;
        try {
            for (; workers_ < helpers; ++workers_) std::thread(&Pool::work, this, workers_).detach();
        } catch (const std::system_error&) {
            // The system starts no more threads: the existing ones do the work.
        }
        job_ = &job;
        open_ = helpers;
        ++round_;
        round_.notify_all();
        job.run();
        // Workers that have not joined yet are no longer needed.
        open_ = 0;
        while (joined_ != 0) pause();
        return true;
    }

  private:
    void work(int worker) {
        for (std::uint32_t seen = 0;;) {
            // The passes of a call follow each other quickly, so wait actively for a moment before sleeping.
            for (int turn = 0; turn < 2000 && round_ == seen; ++turn) pause();
            round_.wait(seen);
            seen = round_;
            // A worker joins before it looks whether the job is open, and `run` closes the job before it
            // looks who has joined.
            ++joined_;
            if (worker < open_) job_->run();
            --joined_;
        }
    }

    std::mutex busy_;
    int workers_ = 0;
    Job* job_ = nullptr;
    std::atomic<int> open_{0};  // workers below this number may join the job
    std::atomic<int> joined_{0};
    std::atomic<std::uint32_t> round_{0};
};

Pool pool;  // its threads sleep until the process ends

// The function that starts the team of threads of another library, if one was set.
std::atomic<Fork*> borrowed{nullptr};

#if defined(__unix__) || defined(__APPLE__)
// Threads do not survive a fork. The child process starts with a new pool, and does not use the borrowed
// team.
[[maybe_unused]] const int at_fork = pthread_atfork(nullptr, nullptr, [] {
    new (&pool) Pool;
    borrowed = nullptr;
});
#endif

struct Block {
    explicit Block(std::size_t bytes = 0)
        : data(bytes ? static_cast<std::byte*>(allocate(bytes)) : nullptr), size(bytes) {}
    std::unique_ptr<std::byte, Free> data;
    std::size_t size;
};

// The first block is kept between calls. Arrays that do not fit go to extra blocks, and the next call starts
// with a block that is large enough.
struct Arena {
    Block kept;
    std::vector<Block> extra;
    std::size_t used = 0;   // bytes used of the kept block
    std::size_t taken = 0;  // bytes of all arrays
    std::size_t peak = 0;
};

thread_local Arena arena;

}  // namespace

void* allocate(std::size_t size) {
#if defined(EVERYPAIR_SANITIZE)
    void* exact = nullptr;
    if (posix_memalign(&exact, 64, size)) throw std::bad_alloc();
    return exact;
#endif
    constexpr std::size_t huge_page = std::size_t{2} << 20;
    const std::size_t alignment = size >= huge_page ? huge_page : 64;
    size = (size + alignment - 1) / alignment * alignment;
    void* memory = std::aligned_alloc(alignment, size);
    if (!memory) throw std::bad_alloc();
#if defined(__linux__)
    if (size >= huge_page) madvise(memory, size, MADV_HUGEPAGE);
#endif
    return memory;
}

void borrow_team(Fork* fork) { borrowed = fork; }

std::int64_t threaded_rows() { return borrowed.load(std::memory_order_relaxed) ? 1 << 15 : 1 << 17; }

void run_tasks(int threads, int count, void (*task)(void*, int), void* context) {
    if (threads > 1 && count > 1) {
        Job job(threads, count, task, context);
        if (Fork* fork = borrowed.load(std::memory_order_relaxed))
            return fork([](void* self) { static_cast<Job*>(self)->run(); }, &job,
                        static_cast<unsigned>(threads), 0);
        if (pool.run(std::min(threads, count) - 1, job)) return;
    }
    for (int i = 0; i < count; ++i) task(context, i);
}

Scratch::Scratch() : used_(arena.used), taken_(arena.taken), extra_(arena.extra.size()) {}

Scratch::~Scratch() {
    arena.used = used_;
    arena.taken = taken_;
    arena.extra.resize(extra_);
    if (taken_ != 0) return;
    constexpr std::size_t most_kept = std::size_t{128} << 20;
    if (arena.peak > arena.kept.size && arena.peak <= most_kept) {
        arena.kept = Block();
        arena.kept = Block(arena.peak);
    }
    arena.peak = 0;
}

void* Scratch::bytes(std::size_t size) {
#if defined(EVERYPAIR_SANITIZE)
    // Each array is a block of its own, so that a sanitizer notices what is read or written beyond it.
    return arena.extra.emplace_back(std::max<std::size_t>(size, 1)).data.get();
#endif
    size = (size + 127) & ~std::size_t{63};
    arena.taken += size;
    arena.peak = std::max(arena.peak, arena.taken);
    if (arena.used + size <= arena.kept.size)
        return arena.kept.data.get() + std::exchange(arena.used, arena.used + size);
    return arena.extra.emplace_back(size).data.get();
}

}  // namespace everypair
