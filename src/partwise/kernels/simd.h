// SIMD vectors as wide as the CPU's, their reductions, and the exponential and logarithm to base 2.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

namespace {

// For the arithmetic of inner loops: a call would spill their registers.
#define ALWAYS_INLINE inline __attribute__((always_inline))

// W floats per vector, and how many vector registers the CPU has.
#if defined(__AVX512F__)
constexpr int W = 16, REGISTERS = 32;
#elif defined(__AVX__)
constexpr int W = 8, REGISTERS = 16;
#elif defined(__aarch64__)
constexpr int W = 4, REGISTERS = 32;
#else
constexpr int W = 4, REGISTERS = 16;
#endif
constexpr bool NEON = W == 4 && REGISTERS == 32;  // matmuls take eight rows by two vectors at once

typedef float vec __attribute__((vector_size(4 * W)));
typedef int32_t ivec __attribute__((vector_size(4 * W)));
typedef float unaligned_vec __attribute__((vector_size(4 * W), aligned(4), may_alias));

typedef float vec4 __attribute__((vector_size(16)));
typedef float unaligned_vec4 __attribute__((vector_size(16), aligned(4), may_alias));

#if defined(__clang__)
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
typedef int32_t ivec4 __attribute__((vector_size(16)));
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, ivec4{__VA_ARGS__})
#endif

ALWAYS_INLINE vec load(const float* p) { return *reinterpret_cast<const unaligned_vec*>(p); }

// N adjacent vectors, in registers. GCC tunes code for AMD's CPUs with AVX2 such that each product would read its vector from
// memory again, and loads would halve the rate of a matmul. In a loop instead of a recursion it would also store each vector.
#if defined(__AVX__) && !defined(__AVX512F__)
template <int N, int n = 0>
ALWAYS_INLINE void load_registers(const float* p, vec (&x)[N]) {
    x[n] = load(p + n * W);
    asm("" : "+x"(x[n]));
    if constexpr (n + 1 < N) load_registers<N, n + 1>(p, x);
}
#else
template <int N>
ALWAYS_INLINE void load_registers(const float* p, vec (&x)[N]) {
#pragma GCC unroll 8
    for (int n = 0; n < N; n++) x[n] = load(p + n * W);
}
#endif

ALWAYS_INLINE void store(float* p, vec x) { *reinterpret_cast<unaligned_vec*>(p) = x; }
ALWAYS_INLINE vec4 load4(const float* p) { return *reinterpret_cast<const unaligned_vec4*>(p); }
ALWAYS_INLINE void store4(float* p, vec4 x) { *reinterpret_cast<unaligned_vec4*>(p) = x; }
ALWAYS_INLINE vec broadcast(float x) { return vec{} + x; }
ALWAYS_INLINE vec maximum(vec a, vec b) { return a < b ? b : a; }

// Prefetch distance in rows: about the latency of the last-level cache.
constexpr int PREFETCH_ROWS = 8;

// Four partial sums, because a chain of scalar additions would wait for each result.
inline float horizontal_sum(vec x) {
    float lanes[W];
    store(lanes, x);
    vec4 sum{};
    for (int i = 0; i < W; i += 4) sum += load4(lanes + i);
    return (sum[0] + sum[2]) + (sum[1] + sum[3]);
}

inline float horizontal_max(vec x) {
    float highest = x[0];
    for (int i = 1; i < W; i++) highest = std::max(highest, x[i]);
    return highest;
}

inline vec lane_indices() {
    vec x{};
    for (int i = 0; i < W; i++) x[i] = float(i);
    return x;
}

constexpr float LOG2_E = 1.44269504088896340736f;
constexpr float INF = std::numeric_limits<float>::infinity();

// 2^x for x <= 127, to one unit in the last place, or 1.2 where products and sums are not fused; 0 below 2^-126, NaN for NaN.
ALWAYS_INLINE vec exp2(vec x) {
    const float magic = 0x1.8p23f + 127;  // adding it rounds x to n and leaves n + 127 in the low bits
    vec t = x + magic;
    vec r = x - (t - magic);  // in [-0.5, 0.5]
    vec p = broadcast(1.5353362e-4f);
    p = p * r + 1.3398874e-3f;
    p = p * r + 9.6184373e-3f;
    p = p * r + 5.5503324e-2f;
    p = p * r + 2.4022648e-1f;
    p = p * r + 6.9314718e-1f;
    p = p * r + 1.0f;
    return x < -126.0f ? vec{} : p * (vec)((ivec)t << 23);
}

// log2(x) for normal x > 0: a linear estimate from the bits, then three Newton iterations.
inline vec log2(vec x) {
    vec y = __builtin_convertvector((ivec)x, vec) * 0x1p-23f - 127.0f;
    for (int i = 0; i < 3; i++) y += (x * exp2(-y) - 1.0f) * LOG2_E;
    return y;
}

// sums[c] += sum_r x[r][c]
inline void add_column_sums(const float* x, int rows, int columns, float* sums) {
    for (int c = 0; c < columns; c += W) {
        vec sum = load(sums + c);
        for (int r = 0; r < rows; r++) sum += load(x + int64_t(r) * columns + c);
        store(sums + c, sum);
    }
}

inline int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

}  // namespace
