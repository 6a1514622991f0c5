// Attention of one query over the rows of keys and values that it sees, in float32. A vector holds neighbouring numbers of one
// key or value, as there are too few queries to fill one.
#pragma once

#include "vectors.h"

namespace {

inline float dot(const float* x, const float* y, int E) {
    four sum{};
    for (; E >= 4; E -= 4, x += 4, y += 4)
        sum += *reinterpret_cast<const loose_four*>(x) * *reinterpret_cast<const loose_four*>(y);
    float rest = 0;
    for (int e = 0; e < E; e++) rest += x[e] * y[e];
    return (sum[0] + sum[1]) + (sum[2] + sum[3]) + rest;
}

inline void store_four(float* p, four x) { *reinterpret_cast<loose_four*>(p) = x; }

// The products of x with four rows, `step` numbers apart.
inline four dots(const float* x, const float* rows, int64_t step, int E) {
    four sum[4] = {};
    int e = 0;
    for (; e + 4 <= E; e += 4)
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++)
            sum[i] += *reinterpret_cast<const loose_four*>(x + e) *
                      *reinterpret_cast<const loose_four*>(rows + i * step + e);
    turn_square(sum);
    four result = (sum[0] + sum[1]) + (sum[2] + sum[3]);
    for (; e < E; e++)
        for (int i = 0; i < 4; i++) result[i] += x[e] * rows[i * step + e];
    return result;
}

// sum_j p[j] rows[j] of one vector's width, in four sums that do not wait for each other.
template <class Vector, class Loose>
inline Vector weighted(const float* p, const float* rows, int64_t step, int count) {
    Vector sum[4] = {};
    int j = 0;
    for (; j + 4 <= count; j += 4)
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) sum[i] += p[j + i] * *reinterpret_cast<const Loose*>(rows + (j + i) * step);
    for (; j < count; j++) sum[0] += p[j] * *reinterpret_cast<const Loose*>(rows + j * step);
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

// softmax(query keys^T) values -> result (V), which may be where the query is; `scale` takes scores to powers of 2, p has room
// for `count` numbers in whole vectors.
inline void attend(const float* query, const float* keys, int64_t k_step, const float* values, int64_t v_step, int count, int E,
                   int V, float scale, float* p, float* result) {
    int j = 0, filled = (count + W - 1) / W * W;
    for (; j + 4 <= count; j += 4) store_four(p + j, dots(query, keys + j * k_step, k_step, E) * scale);
    for (; j < count; j++) p[j] = dot(query, keys + j * k_step, E) * scale;
    for (; j < filled; j++) p[j] = -INF;
    vec highest = all(-INF), total{};
    for (j = 0; j < count; j += W) highest = larger(highest, load(p + j));
    float most = highest_of(highest);
    for (j = 0; j < count; j += W) {
        vec x = exp2(load(p + j) - most);
        total += x;
        store(p + j, x);
    }
    float sum = sum_of(total);
    int e = 0;
    for (; e + W <= V; e += W) store(result + e, weighted<vec, loose>(p, values + e, v_step, count) / sum);
    for (; e + 4 <= V; e += 4) store_four(result + e, weighted<four, loose_four>(p, values + e, v_step, count) / sum);
    for (; e < V; e++) {
        float x = 0;
        for (j = 0; j < count; j++) x += p[j] * values[j * v_step + e];
        result[e] = x / sum;
    }
}

}  // namespace
