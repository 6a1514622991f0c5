// What the kernels share: vectors as wide as the processor's, the exponential, and work in shares.
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>

namespace {

#if defined(__AVX512F__)
constexpr int W = 16, REGISTERS = 32;
#elif defined(__AVX__)
constexpr int W = 8, REGISTERS = 16;
#elif defined(__aarch64__)
constexpr int W = 4, REGISTERS = 32;
#else
constexpr int W = 4, REGISTERS = 16;
#endif

typedef float vec __attribute__((vector_size(4 * W)));
typedef int32_t ivec __attribute__((vector_size(4 * W)));
typedef float loose __attribute__((vector_size(4 * W), aligned(4), may_alias));

typedef float four __attribute__((vector_size(16)));
typedef float loose_four __attribute__((vector_size(16), aligned(4), may_alias));

#if defined(__clang__)
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
typedef int32_t ifour __attribute__((vector_size(16)));
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, ifour{__VA_ARGS__})
#endif

inline vec load(const float* p) { return *reinterpret_cast<const loose*>(p); }
inline void store(float* p, vec x) { *reinterpret_cast<loose*>(p) = x; }
inline vec all(float x) { return vec{} + x; }
inline vec larger(vec a, vec b) { return a < b ? b : a; }

// How many rows before its use a row is asked for: about as long as it takes to come from the cache that all cores share.
constexpr int AHEAD = 8;

// The sum of a vector's numbers, four at a time: one after the other, each addition would wait for the last.
inline float sum_of(vec x) {
    float numbers[W];
    store(numbers, x);
    four sum{};
    for (int i = 0; i < W; i += 4) sum += *reinterpret_cast<const loose_four*>(numbers + i);
    return (sum[0] + sum[2]) + (sum[1] + sum[3]);
}

inline float highest_of(vec x) {
    float highest = x[0];
    for (int i = 1; i < W; i++) highest = std::max(highest, x[i]);
    return highest;
}

constexpr float LOG2_E = 1.44269504088896340736f;
constexpr float INF = std::numeric_limits<float>::infinity();

// 2^x for x <= 127, to one unit in the last place; 0 below 2^-126, NaN of NaN.
inline vec exp2(vec x) {
    const float magic = 0x1.8p23f + 127;  // adding it rounds x to n and leaves n + 127 in the low bits
    vec t = x + magic;
    vec r = x - (t - magic);  // in [-0.5, 0.5]
    vec p = all(1.5353362e-4f);
    p = p * r + 1.3398874e-3f;
    p = p * r + 9.6184373e-3f;
    p = p * r + 5.5503324e-2f;
    p = p * r + 2.4022648e-1f;
    p = p * r + 6.9314718e-1f;
    p = p * r + 1.0f;
    return x < -126.0f ? vec{} : p * (vec)((ivec)t << 23);
}

// log2(x) for normal x > 0: the exponent and a line to begin with, then Newton's method.
inline vec log2(vec x) {
    vec y = __builtin_convertvector((ivec)x, vec) * 0x1p-23f - 127.0f;
    for (int i = 0; i < 3; i++) y += (x * exp2(-y) - 1.0f) * LOG2_E;
    return y;
}

inline vec lanes() {
    vec x{};
    for (int i = 0; i < W; i++) x[i] = float(i);
    return x;
}

// Four rows of four numbers each, turned in place.
inline void turn_square(four (&x)[4]) {
    four a = SHUFFLE(x[0], x[1], 0, 4, 1, 5), b = SHUFFLE(x[0], x[1], 2, 6, 3, 7);
    four c = SHUFFLE(x[2], x[3], 0, 4, 1, 5), d = SHUFFLE(x[2], x[3], 2, 6, 3, 7);
    x[0] = SHUFFLE(a, c, 0, 1, 4, 5), x[1] = SHUFFLE(a, c, 2, 3, 6, 7);
    x[2] = SHUFFLE(b, d, 0, 1, 4, 5), x[3] = SHUFFLE(b, d, 2, 3, 6, 7);
}

// out[e][r] = factor rows[r][e]; `step` and `out_step` numbers lie between rows.
void turn(const float* rows, int64_t step, int count, int E, float factor, float* out, int64_t out_step) {
    int r = 0;
    for (; r + 4 <= count; r += 4) {
        int e = 0;
        for (; e + 4 <= E; e += 4) {
            four x[4];
#pragma GCC unroll 4
            for (int i = 0; i < 4; i++) x[i] = *reinterpret_cast<const loose_four*>(rows + (r + i) * step + e) * factor;
            turn_square(x);
#pragma GCC unroll 4
            for (int i = 0; i < 4; i++) *reinterpret_cast<loose_four*>(out + (e + i) * out_step + r) = x[i];
        }
        for (; e < E; e++)
            for (int i = r; i < r + 4; i++) out[e * out_step + i] = factor * rows[i * step + e];
    }
    for (; r < count; r++)
        for (int e = 0; e < E; e++) out[e * out_step + r] = factor * rows[r * step + e];
}

typedef void (*Parallel)(void (*)(void*), void*, unsigned, unsigned);  // GOMP_parallel of the OpenMP that torch loaded

// Memory of a thread's own, at least `size` floats, aligned for vectors. It stays for the next call, as what is given back
// comes anew in pages that the system has to clear; only what is large goes.
struct Scratch {
    static constexpr int64_t LARGE = int64_t(1) << 24;
    std::unique_ptr<float[]> memory;
    int64_t room = 0;

    float* of(int64_t size) {
        if (room < size + W) {
            memory.reset();
            memory.reset(new float[room = size + W]);
        }
        uintptr_t address = reinterpret_cast<uintptr_t>(memory.get());
        return reinterpret_cast<float*>((address + 4 * W - 1) / (4 * W) * (4 * W));
    }
    void done() {
        if (room > LARGE) memory.reset(), room = 0;
    }
};

inline Scratch& scratch_here() {
    static thread_local Scratch own;
    return own;
}

// Runs task(i, scratch) for every i below `count`, on up to `threads` threads, each with `size` floats of its own.
// Neighbours go to one thread, as heads side by side share cache lines.
template <class Task>
void share(int64_t count, int64_t size, int threads, Parallel parallel, const Task& task) {
    struct Work {
        std::atomic<int64_t> next;
        int64_t count, grain, size;
        const Task& task;
    } work{{0}, count, std::max<int64_t>(1, count / (8 * threads)), size, task};
    auto run = [](void* data) {
        Work& work = *static_cast<Work*>(data);
        Scratch& own = scratch_here();
        float* scratch = own.of(work.size);
        for (int64_t from; (from = work.next.fetch_add(work.grain)) < work.count;)
            for (int64_t i = from; i < std::min(work.count, from + work.grain); i++) work.task(i, scratch);
        own.done();
    };
    threads = int(std::min<int64_t>(threads, count));
    if (parallel && threads > 1)
        parallel(run, &work, unsigned(threads), 0);
    else
        run(&work);
}

}  // namespace
