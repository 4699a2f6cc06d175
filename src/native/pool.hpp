// A thread pool and scratch memory, kept between calls.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <type_traits>

namespace everypair {

// Runs task(context, i) once for each i = 0 .. count - 1, on at most `threads` threads, and returns when all
// are done. While another caller uses the pool, the tasks run on this thread alone. The result of a task may
// depend on i but not on the thread, so results are bitwise the same.
void run_tasks(int threads, int count, void (*task)(void*, int), void* context);

template <class F>
void parallel(int threads, int count, F&& body) {
    using Body = std::remove_reference_t<F>;
    run_tasks(threads, count, [](void* context, int i) { (*static_cast<Body*>(context))(i); }, &body);
}

// Runs body(i) for each i = 0 .. count - 1, in tasks of consecutive numbers if there are many.
template <class F>
void parallel_ranges(int threads, std::int64_t count, F&& body) {
    const std::int64_t tasks = count < 1024 ? count : 1024;
    parallel(threads, static_cast<int>(tasks), [&](int t) {
        for (std::int64_t i = count * t / tasks; i < count * (t + 1) / tasks; ++i) body(i);
    });
}

// Runs body(context) on so many threads at once and waits for them: the signature of GOMP_parallel.
using Fork = void(void (*body)(void*), void* context, unsigned threads, unsigned flags);

// Runs all further tasks on the team of threads that this function starts (null: on the pool's own threads).
// OpenMP keeps its team of threads busy-waiting between calls, so additional threads would have to wait for a
// core.
void borrow_team(Fork* fork);

// Batches with fewer rows run on one thread, because waking threads would take longer than it saves.
std::int64_t threaded_rows();

// Memory aligned to 64 bytes, with huge pages if it is large; to be released by `Free`.
void* allocate(std::size_t size);
struct Free {
    void operator()(void* memory) const { std::free(memory); }
};

// A stack of scratch arrays, released together. The memory stays allocated for the next call of this thread.
class Scratch {
  public:
    Scratch();
    ~Scratch();
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;

    template <class T>
    T* take(std::size_t count) {
        return static_cast<T*>(bytes(count * sizeof(T)));
    }

  private:
    void* bytes(std::size_t size);      // 64-byte aligned, not zeroed
    std::size_t used_, taken_, extra_;  // state of the thread's memory before this object
};

}  // namespace everypair
