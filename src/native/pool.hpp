// Threads and scratch memory that live from call to call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace everypair {

// Runs task(context, i) for i = 0 .. count - 1, each once, on at most `threads` threads, and returns when all are done.
// When another caller holds the pool, the tasks run on this thread alone: what a task computes may depend on i,
// never on who runs it, so the bits are the same.
void run_tasks(int threads, int count, void (*task)(void*, int), void* context);

template <class F>
void parallel(int threads, int count, F&& body) {
    using Body = std::remove_reference_t<F>;
    run_tasks(threads, count, [](void* context, int i) { (*static_cast<Body*>(context))(i); }, &body);
}

// Starts body(context) on that many threads at once and waits for them: the calling convention of GOMP_parallel.
using Fork = void(void (*body)(void*), void* context, unsigned threads, unsigned flags);

// From now on tasks run on the threads behind this function (none: on threads of our own). Where another library keeps a team
// spinning between its calls, as OpenMP does, threads of our own would wait for a core behind it.
void borrow_team(Fork* fork);

// Smaller batches are not worth waking threads for.
std::int64_t threaded_rows();

// A stack of scratch arrays, given back together. The memory stays with the thread for its next call.
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
    void* bytes(std::size_t size);  // 64-byte aligned, not zeroed
    std::size_t used_, extra_;      // how full the thread's memory was before
};

}  // namespace everypair
