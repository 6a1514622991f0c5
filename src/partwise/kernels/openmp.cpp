// GOMP_parallel for an OpenMP runtime that lacks it: LLVM's and Intel's on Windows, by their own interface.

#include <cstdint>

namespace {

struct Location {  // of the construct in the source, for the runtime's messages
    int32_t reserved_1 = 0, flags = 2, reserved_2 = 0, reserved_3 = 0;
    const char* source = ";unknown;unknown;0;0;;";
} location;

typedef void (*Body)(void*);
typedef void (*Microtask)(int32_t*, int32_t*, ...);

void (*fork_call)(Location*, int32_t, Microtask, ...);
void (*push_num_threads)(Location*, int32_t, int32_t);
int32_t (*global_thread_num)(Location*);

void call(int32_t*, int32_t*, Body body, void* data) { body(data); }

}  // namespace

// The addresses of __kmpc_fork_call, __kmpc_push_num_threads and __kmpc_global_thread_num.
extern "C" void set_runtime(void* fork, void* push, void* thread) {
    fork_call = reinterpret_cast<decltype(fork_call)>(fork);
    push_num_threads = reinterpret_cast<decltype(push_num_threads)>(push);
    global_thread_num = reinterpret_cast<decltype(global_thread_num)>(thread);
}

// Runs body(data) on each of `threads` threads.
extern "C" void parallel(Body body, void* data, unsigned threads, unsigned) {
    push_num_threads(&location, global_thread_num(&location), int32_t(threads));
    fork_call(&location, 2, reinterpret_cast<Microtask>(call), reinterpret_cast<void*>(body), data);
}
