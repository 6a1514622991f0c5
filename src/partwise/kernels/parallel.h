// Loops over the threads of torch's OpenMP runtime, and workspace that stays allocated between calls.
#pragma once

#include <atomic>
#include <memory>

#include "tiles.h"

namespace {

typedef void (*Parallel)(void (*)(void*), void*, unsigned, unsigned);  // GOMP_parallel of the OpenMP runtime torch loaded

// A thread's workspace, aligned for vectors. It is kept for the next call, because freed memory comes back as pages that the
// system must clear; only a large one is freed.
struct Workspace {
    static constexpr int64_t LARGE = int64_t(1) << 24;
    std::unique_ptr<float[]> memory;
    int64_t capacity = 0;

    float* reserve(int64_t size) {
        if (capacity < size + W) {
            memory.reset();
            memory.reset(new float[capacity = size + W]);
        }
        uintptr_t address = reinterpret_cast<uintptr_t>(memory.get());
        return reinterpret_cast<float*>((address + 4 * W - 1) / (4 * W) * (4 * W));
    }
    void release_if_large() {
        if (capacity > LARGE) memory.reset(), capacity = 0;
    }
};

inline Workspace& thread_workspace() {
    static thread_local Workspace workspace;
    return workspace;
}

// Runs task(i, workspace) for 0 <= i < count on up to `threads` threads, each with a workspace of `size` floats. Consecutive
// tasks go to the same thread, because neighboring heads share cache lines.
template <class Task>
void parallel_for(int64_t count, int64_t size, int threads, Parallel parallel, const Task& task) {
    struct Loop {
        std::atomic<int64_t> next;
        int64_t count, grain, size;
        const Task& task;
    } loop{{0}, count, std::max<int64_t>(1, count / (8 * threads)), size, task};
    auto run = [](void* data) {
        Loop& loop = *static_cast<Loop*>(data);
        Workspace& workspace = thread_workspace();
        TileScope registers;
        float* memory = workspace.reserve(loop.size);
        for (int64_t from; (from = loop.next.fetch_add(loop.grain)) < loop.count;)
            for (int64_t i = from; i < std::min(loop.count, from + loop.grain); i++) loop.task(i, memory);
        workspace.release_if_large();
    };
    threads = int(std::min<int64_t>(threads, count));
    if (parallel && threads > 1)
        parallel(run, &loop, unsigned(threads), 0);
    else
        run(&loop);
}

// gradients += part_gradients of parts 1, 2, ..., in this order; (parts - 1, size).
inline void add_part_gradients(float* gradients, const float* part_gradients, int64_t size, int64_t parts, int threads,
                               Parallel parallel) {
    if (parts < 2) return;
    int64_t pieces = 8 * threads;
    parallel_for(pieces, 0, threads, parallel, [&](int64_t i, float*) {
        for (int64_t part = 1; part < parts; part++)
            for (int64_t n = size * i / pieces; n < size * (i + 1) / pieces; n++)
                gradients[n] += part_gradients[(part - 1) * size + n];
    });
}

}  // namespace
