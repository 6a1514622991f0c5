// The functions of a library in place of those that recorded.cpp is compiled with, and threads that are counted.
#pragma once

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <set>

namespace {

int threads = 1;
Parallel parallel = nullptr;

}  // namespace

#if defined(LOADED)
#if defined(_WIN32)
extern "C" void* __stdcall LoadLibraryA(const char*);
extern "C" void* __stdcall GetProcAddress(void*, const char*);
#else
#include <dlfcn.h>
#endif

namespace {

[[noreturn]] void fail(const char* what, const char* name) {
    std::fprintf(stderr, "%s %s\n", what, name);
    std::exit(1);
}

void* open_library(const char* path) {
#if defined(_WIN32)
    void* library = LoadLibraryA(path);
#else
    void* library = dlopen(path, RTLD_NOW);
    if (!library) std::fprintf(stderr, "%s\n", dlerror());
#endif
    if (!library) fail("cannot load", path);
    return library;
}

void* find(void* library, const char* name, bool optional = false) {
#if defined(_WIN32)
    void* symbol = GetProcAddress(library, name);
#else
    void* symbol = dlsym(library, name);
#endif
    if (!symbol && !optional) fail("cannot find", name);
    return symbol;
}

void* kernel;
Parallel runtime_parallel;
size_t most_threads;

// The threads of a call, each known by the address of a variable of its own.
struct Counted {
    void (*body)(void*);
    void* data;
    std::set<const void*> seen{};
    std::atomic_flag busy = ATOMIC_FLAG_INIT;
};

void count_threads(void (*body)(void*), void* data, unsigned count, unsigned flags) {
    Counted counted{body, data};
    auto run = [](void* data) {
        static thread_local char mine;
        Counted& counted = *static_cast<Counted*>(data);
        while (counted.busy.test_and_set()) {
        }
        counted.seen.insert(&mine);
        counted.busy.clear();
        counted.body(counted.data);
    };
    runtime_parallel(run, &counted, count, flags);
    most_threads = std::max(most_threads, counted.seen.size());
}

// program LIBRARY RUNTIME [ADAPTER]
void load_libraries(int count, char** words) {
    kernel = open_library(words[1]);
    void* runtime = open_library(words[2]);
    void* found = find(runtime, "GOMP_parallel", true);
    if (!found) {
        if (count < 4) fail("no ADAPTER, and GOMP_parallel is missing in", words[2]);
        void* adapter = open_library(words[3]);
        typedef void (*SetRuntime)(void*, void*, void*);
        reinterpret_cast<SetRuntime>(find(adapter, "set_runtime"))(
            find(runtime, "__kmpc_fork_call"), find(runtime, "__kmpc_push_num_threads"), find(runtime, "__kmpc_global_thread_num"));
        found = find(adapter, "parallel");
    }
    runtime_parallel = reinterpret_cast<Parallel>(found);
    parallel = count_threads;
    threads = 4;
}

}  // namespace

#define FROM_LIBRARY(name) (reinterpret_cast<decltype(&::name)>(find(kernel, #name)))
#define attention_forward FROM_LIBRARY(attention_forward)
#define attention_backward FROM_LIBRARY(attention_backward)
#define attention_decode FROM_LIBRARY(attention_decode)
#define mlp_forward FROM_LIBRARY(mlp_forward)
#define mlp_backward FROM_LIBRARY(mlp_backward)
#define cross_entropy_forward FROM_LIBRARY(cross_entropy_forward)
#define cross_entropy_backward FROM_LIBRARY(cross_entropy_backward)
#define bf16_attention_forward FROM_LIBRARY(bf16_attention_forward)
#define bf16_attention_backward FROM_LIBRARY(bf16_attention_backward)
#define dropout FROM_LIBRARY(dropout)
#define block_buffer_sizes FROM_LIBRARY(block_buffer_sizes)
#define blocks_forward FROM_LIBRARY(blocks_forward)
#define blocks_backward FROM_LIBRARY(blocks_backward)
#define decoding_vector_width FROM_LIBRARY(decoding_vector_width)
#define decoding_group_width FROM_LIBRARY(decoding_group_width)
#endif
