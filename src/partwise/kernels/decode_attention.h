// Float32 attention of a single query over cached keys and values. The lanes of a vector are consecutive elements of one key or
// value, because there are too few queries to fill one.
#pragma once

#include "transpose.h"

namespace {

inline float dot(const float* x, const float* y, int E) {
    vec4 sum{};
    for (; E >= 4; E -= 4, x += 4, y += 4) sum += load4(x) * load4(y);
    float rest = 0;
    for (int e = 0; e < E; e++) rest += x[e] * y[e];
    return (sum[0] + sum[1]) + (sum[2] + sum[3]) + rest;
}

// The dot products of x with four rows.
inline vec4 dot_rows(const float* x, const float* rows, int64_t stride, int E) {
    vec4 sum[4] = {};
    int e = 0;
    for (; e + 4 <= E; e += 4)
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) sum[i] += load4(x + e) * load4(rows + i * stride + e);
    transpose_4x4(sum);
    vec4 result = (sum[0] + sum[1]) + (sum[2] + sum[3]);
    for (; e < E; e++)
        for (int i = 0; i < 4; i++) result[i] += x[e] * rows[i * stride + e];
    return result;
}

ALWAYS_INLINE void load_unaligned(const float* p, vec& x) { x = load(p); }
#if defined(__AVX__)  // elsewhere vec is vec4
ALWAYS_INLINE void load_unaligned(const float* p, vec4& x) { x = load4(p); }
#endif

// sum_j p[j] rows[j], one vector wide, in four independent sums.
template <class Vector>
inline Vector weighted_sum(const float* p, const float* rows, int64_t stride, int count) {
    Vector sum[4] = {}, x;
    int j = 0;
    for (; j + 4 <= count; j += 4)
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) load_unaligned(rows + (j + i) * stride, x), sum[i] += p[j + i] * x;
    for (; j < count; j++) load_unaligned(rows + j * stride, x), sum[0] += p[j] * x;
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

// softmax(query keys^T) values -> out (V), which may alias the query. `scale_log2` takes scores to exponents of 2; p is workspace
// for `count` numbers, rounded up to whole vectors.
inline void decode_attention(const float* query, const float* keys, int64_t k_stride, const float* values, int64_t v_stride,
                             int count, int E, int V, float scale_log2, float* p, float* out) {
    int j = 0, padded = (count + W - 1) / W * W;
    for (; j + 4 <= count; j += 4) store4(p + j, dot_rows(query, keys + j * k_stride, k_stride, E) * scale_log2);
    for (; j < count; j++) p[j] = dot(query, keys + j * k_stride, E) * scale_log2;
    for (; j < padded; j++) p[j] = -INF;
    vec highest = broadcast(-INF), total{};
    for (j = 0; j < count; j += W) highest = maximum(highest, load(p + j));
    float max = horizontal_max(highest);
    for (j = 0; j < count; j += W) {
        vec x = exp2(load(p + j) - max);
        total += x;
        store(p + j, x);
    }
    float sum = horizontal_sum(total);
    int e = 0;
    for (; e + W <= V; e += W) store(out + e, weighted_sum<vec>(p, values + e, v_stride, count) / sum);
    for (; e + 4 <= V; e += 4) store4(out + e, weighted_sum<vec4>(p, values + e, v_stride, count) / sum);
    for (; e < V; e++) {
        float x = 0;
        for (j = 0; j < count; j++) x += p[j] * values[j * v_stride + e];
        out[e] = x / sum;
    }
}

}  // namespace
