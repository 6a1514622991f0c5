// Causal softmax attention in float32, forward and backward: scores are computed tile by tile with an online softmax and never
// stored; Dao et al. 2022.
//
// Shapes: B batch, T queries, S keys, H query heads, K key heads, E head dimension of queries and keys, V of values. The causal
// mask is aligned to the lower right: query i attends to keys 0 ... S - T + i. Queries, keys, values and their gradients may have
// any strides, as long as each head is contiguous.
//
// The lanes of a vector are W consecutive queries (forward) or keys (backward), so vectors are full at any head dimension, and no
// maximum or sum runs across lanes. Everything is built from three small-tile matmuls:
//     score_matmul   out[r][c]  = sum_e a[r][e] b[e][c]     a broadcast, b transposed beforehand
//     add_at_x       out[e][c] += sum_r a[r][e] x[r][c]     a broadcast, out transposed
//     add_x_b        out[r][e] += sum_c x[r][c] b[c][e]     x broadcast
// A thread takes whole key heads (forward, also blocks of their queries), so that every sum has a fixed order: results do not
// depend on the number of threads. Do not compile with -ffast-math: infinities and NaN must propagate.

#include "decode_attention.h"
#include "parallel.h"
#include "products.h"
#include "strides.h"

namespace {

constexpr int ROWS = REGISTERS == 32 ? 8 : 4;                // rows of a matmul tile held in registers
constexpr int WIDTHS = NEON ? 8 : REGISTERS == 32 ? 12 : 4;  // rows of a transposed tile held in registers
constexpr int KEYS = 128;                                    // forward: keys per tile of scores
constexpr int QUERIES = 32;                                  // backward: queries per tile of scores

// out[r][c] = sum_e a[r][e] b[e][c] of R rows and N vectors.
template <int R, int N>
inline void score_matmul(const float* a, int64_t a_stride, const float* b, int E, vec (&out)[R][N]) {
#pragma GCC unroll 16
    for (int r = 0; r < R; r++)
#pragma GCC unroll 2
        for (int n = 0; n < N; n++) out[r][n] = vec{};
    if constexpr (NEON) return add_products<Float32>(a, a_stride, 1, b, TILE, E, out);
    auto add = [&](int e) __attribute__((always_inline)) {
        vec x[N];
        load_registers(b + e * TILE, x);
#pragma GCC unroll 16
        for (int r = 0; r < R; r++)
#pragma GCC unroll 2
            for (int n = 0; n < N; n++) out[r][n] += a[r * a_stride + e] * x[n];
    };
    for (; E >= 4; E -= 4, a += 4, b += 4 * TILE)  // unrolled: there are more row addresses than general-purpose registers
        add(0), add(1), add(2), add(3);
    for (int e = 0; e < E; e++) add(e);
}

// out[e][c] = out[e][c] decay[c] + sum_r a[r][e] x[r][c] for X values of e and `rows` rows.
template <int X, int N>
inline void add_at_x_tile(const float* a, int64_t a_stride, const float* x, int rows, const vec* decay, float* out) {
    vec sum[X][N];
#pragma GCC unroll 16
    for (int e = 0; e < X; e++)
#pragma GCC unroll 2
        for (int n = 0; n < N; n++) {
            sum[e][n] = load(out + e * TILE + n * W);
            if (decay) sum[e][n] *= decay[n];
        }
    add_products<Float32>(a, 1, a_stride, x, TILE, rows, sum);
#pragma GCC unroll 16
    for (int e = 0; e < X; e++)
#pragma GCC unroll 2
        for (int n = 0; n < N; n++) store(out + e * TILE + n * W, sum[e][n]);
}

template <int N>
void add_at_x(const float* a, int64_t a_stride, const float* x, int rows, int E, const vec* decay, float* out) {
    int e = 0;
    for (; e + WIDTHS <= E; e += WIDTHS) add_at_x_tile<WIDTHS, N>(a + e, a_stride, x, rows, decay, out + e * TILE);
    if constexpr (WIDTHS > 8)
        for (; e + 8 <= E; e += 8) add_at_x_tile<8, N>(a + e, a_stride, x, rows, decay, out + e * TILE);
    for (; e + 4 <= E; e += 4) add_at_x_tile<4, N>(a + e, a_stride, x, rows, decay, out + e * TILE);
    for (; e < E; e++) add_at_x_tile<1, N>(a + e, a_stride, x, rows, decay, out + e * TILE);
}

// out[r][e] += sum_c x[r][c] b[c][e] for R rows and N vectors of e; rows of b and out are `padded_width` apart.
template <int R, int N>
inline void add_x_b_tile(const float* x, const float* b, int count, int padded_width, float* out) {
    vec sum[R][N];
#pragma GCC unroll 16
    for (int r = 0; r < R; r++)
#pragma GCC unroll 2
        for (int n = 0; n < N; n++) sum[r][n] = load(out + r * padded_width + n * W);
    add_products<Float32>(x, TILE, 1, b, padded_width, count, sum);
#pragma GCC unroll 16
    for (int r = 0; r < R; r++)
#pragma GCC unroll 2
        for (int n = 0; n < N; n++) store(out + r * padded_width + n * W, sum[r][n]);
}

template <int R>
void add_x_b_rows(const float* x, const float* b, int count, int padded_width, float* out) {
    int e = 0;
    for (; e + TILE <= padded_width; e += TILE) add_x_b_tile<R, 2>(x, b + e, count, padded_width, out + e);
    for (; e < padded_width; e += W) add_x_b_tile<R, 1>(x, b + e, count, padded_width, out + e);
}

void add_x_b(const float* x, const float* b, int rows, int count, int padded_width, float* out) {
    int r = 0;
    for (; r + ROWS <= rows; r += ROWS) add_x_b_rows<ROWS>(x + r * TILE, b, count, padded_width, out + r * padded_width);
    for (; r < rows; r++) add_x_b_rows<1>(x + r * TILE, b, count, padded_width, out + r * padded_width);
}

// Up to TILE rows, scaled and transposed into a tile, zero beyond the last row.
void scale_to_tile(const float* x, int64_t x_stride, int rows, int columns, float factor, float* tile) {
    if (rows < TILE) std::fill(tile, tile + columns * TILE, 0.0f);
    transpose(x, x_stride, rows, columns, tile, TILE, Scale{factor});
}

inline void scale_copy(const float* x, int E, float factor, float* out) {
    for (; E >= 4; E -= 4, x += 4, out += 4) store4(out, factor * load4(x));
    for (int e = 0; e < E; e++) out[e] = factor * x[e];
}

// `launch` of attention.py builds it: int64 numbers, strides in floats.
struct Shape {
    int64_t B, T, S, H, K, E, V;
    Strides q, k, v, out, dq, dk, dv;
};

// ---------------------------------------------------------------------------------------------------------- forward

struct Forward {
    const float *q, *k, *v;  // the first rows of one head
    int64_t q_stride, k_stride, v_stride;
    int E, V;
    float *q_t, *weights, *out_t;  // [E][TILE] queries, [KEYS][TILE] scores and softmax weights, [V][TILE] outputs
    vec max[2], total[2];          // the largest score and the sum of 2^(score - max) so far

    // Scores of R keys from j on, masked for the queries whose first attends to keys up to `diagonal`; `column` is that query's.
    template <int R, int N>
    void score_keys(int j, int diagonal, int column, float* scores, vec (&new_max)[N]) {
        vec s[R][N];
        score_matmul<R, N>(k + j * k_stride, k_stride, q_t + column, E, s);
        if (j + R - 1 > diagonal) {
            for (int r = 0; r < R; r++)
                for (int n = 0; n < N; n++)
                    s[r][n] = lane_indices() < float(j + r - diagonal - n * W) ? broadcast(-INF) : s[r][n];
        }
#pragma GCC unroll 16
        for (int r = 0; r < R; r++)
#pragma GCC unroll 2
            for (int n = 0; n < N; n++) {
                new_max[n] = maximum(new_max[n], s[r][n]);
                store(scores + r * TILE + n * W, s[r][n]);
            }
    }

    // One step of the online softmax over the keys [from, to), at most KEYS.
    template <int N>
    void add_keys(int from, int to, int diagonal, int column) {
        vec new_max[N], decay[N], sums[N];
        for (int n = 0; n < N; n++) new_max[n] = max[n + column / W], sums[n] = vec{};
        int j = from;
        for (; j + ROWS <= to; j += ROWS) score_keys<ROWS, N>(j, diagonal, column, weights + (j - from) * TILE, new_max);
        for (; j < to; j++) score_keys<1, N>(j, diagonal, column, weights + (j - from) * TILE, new_max);
        for (int n = 0; n < N; n++) decay[n] = exp2(max[n + column / W] - new_max[n]);
        for (float* row = weights; row < weights + (to - from) * TILE; row += TILE)
            for (int n = 0; n < N; n++) {
                vec x = exp2(load(row + n * W) - new_max[n]);
                sums[n] += x;
                store(row + n * W, x);
            }
        for (int n = 0; n < N; n++) {
            total[n + column / W] = total[n + column / W] * decay[n] + sums[n];
            max[n + column / W] = new_max[n];
        }
        add_at_x<N>(v + from * v_stride, v_stride, weights, to - from, V, decay, out_t + column);
    }

    // A block of queries at q, the first of which attends to keys up to `diagonal`.
    void block(int queries, int diagonal, int S, float scale, float* out, int64_t out_stride, float* lse) {
        scale_to_tile(q, q_stride, queries, E, scale * LOG2_E, q_t);
        std::fill(out_t, out_t + V * TILE, 0.0f);
        max[0] = max[1] = broadcast(-INF), total[0] = total[1] = vec{};
        int both = std::min(S, diagonal + W), end = std::min(S, diagonal + TILE);
        for (int j = 0; j < both; j += KEYS) add_keys<2>(j, std::min(j + KEYS, both), diagonal, 0);
        for (int j = both; j < end; j += KEYS) add_keys<1>(j, std::min(j + KEYS, end), diagonal + W, W);
        for (int n = 0; n < 2; n++)
            for (int e = 0; e < V; e++) store(out_t + e * TILE + n * W, load(out_t + e * TILE + n * W) / total[n]);
        transpose(out_t, TILE, V, queries, out, out_stride, Copy());
        float tile_lse[TILE];
        for (int n = 0; n < 2; n++) store(tile_lse + n * W, max[n] + log2(total[n]));
        std::copy(tile_lse, tile_lse + queries, lse);
    }
};

// --------------------------------------------------------------------------------------------------------- backward

struct Backward {
    const float *k, *v;  // the first rows of one key head
    int64_t k_stride, v_stride;
    int T, S, E, V;
    float scale;
    float *k_t, *v_t, *k_rows, *dk_t, *dv_t;  // [E][TILE], [V][TILE], [TILE][padded width], [E][TILE], [V][TILE]
    float *weights, *dscores;                 // [QUERIES][TILE]

    struct QueryHead {  // with its lse and delta, and the sum for dq, [T][padded width]
        const float *q, *grad, *lse, *delta;
        int64_t q_stride, grad_stride;
        float* dq;
    };

    // Softmax weights and score gradients of R queries from i on, the first of which attends to `diagonal`.
    template <int R, int N>
    void softmax_backward(const QueryHead& h, int i, int diagonal, float* weights, float* dscores) {
        vec s[R][N], d[R][N];
        score_matmul<R, N>(h.q + i * h.q_stride, h.q_stride, k_t, E, s);
#pragma GCC unroll 16
        for (int r = 0; r < R; r++)
#pragma GCC unroll 2
            for (int n = 0; n < N; n++) {
                vec x = exp2(s[r][n] - h.lse[i + r]);
                if (diagonal < N * W - 1) x = lane_indices() > float(diagonal + r - n * W) ? vec{} : x;
                store(weights + r * TILE + n * W, x);
            }
        score_matmul<R, N>(h.grad + i * h.grad_stride, h.grad_stride, v_t, V, d);
#pragma GCC unroll 16
        for (int r = 0; r < R; r++)
#pragma GCC unroll 2
            for (int n = 0; n < N; n++)
                store(dscores + r * TILE + n * W, load(weights + r * TILE + n * W) * (d[r][n] - h.delta[i + r]));
    }

    // The queries [from, to) against N vectors of keys from k0 on; offset + i is the last key that query i attends to.
    template <int N>
    void add_queries(const QueryHead& h, int from, int to, int k0, int offset) {
        int padded_width = int(round_up(E, W));
        for (int i0 = from; i0 < to; i0 += QUERIES) {
            int i = i0, count = std::min(QUERIES, to - i0);
            for (; i + ROWS <= i0 + count; i += ROWS)
                softmax_backward<ROWS, N>(h, i, offset + i - k0, weights + (i - i0) * TILE, dscores + (i - i0) * TILE);
            for (; i < i0 + count; i++)
                softmax_backward<1, N>(h, i, offset + i - k0, weights + (i - i0) * TILE, dscores + (i - i0) * TILE);
            add_at_x<N>(h.grad + i0 * h.grad_stride, h.grad_stride, weights, count, V, nullptr, dv_t);
            add_at_x<N>(h.q + i0 * h.q_stride, h.q_stride, dscores, count, E, nullptr, dk_t);
            add_x_b(dscores, k_rows, count, std::min(N * W, S - k0), padded_width, h.dq + int64_t(i0) * padded_width);
        }
    }
};

}  // namespace

extern "C" {

// q (B, T, H, E), k (B, S, K, E), v (B, S, K, V) -> out (B, T, H, V), and lse (B, H, T): log2 sum_j 2^(score_j log2 e).
void attention_forward(const Shape* shape, const float* q, const float* k, const float* v, float* out, float* lse,
                       float scale, int threads, Parallel parallel) {
    const Shape& s = *shape;
    int E = int(s.E), V = int(s.V), T = int(s.T), S = int(s.S), blocks = (T + TILE - 1) / TILE;
    int parts = int(std::min<int64_t>(blocks, 1 + 4 * threads / std::max<int64_t>(1, s.B * s.H)));  // > 1 if heads are few
    parallel_for(s.B * s.H * parts, int64_t(E + KEYS + V) * TILE, threads, parallel, [&](int64_t i, float* workspace) {
        int64_t part = i % parts, h = i / parts % s.H, b = i / parts / s.H, g = h / (s.H / s.K);
        Forward f;
        f.k = k + s.k.offset(b, g), f.v = v + s.v.offset(b, g);
        f.q_stride = s.q.t, f.k_stride = s.k.t, f.v_stride = s.v.t, f.E = E, f.V = V;
        f.q_t = workspace, f.weights = f.q_t + E * TILE, f.out_t = f.weights + KEYS * TILE;
        for (int i0 = int(part) * TILE; i0 < T; i0 += parts * TILE) {
            f.q = q + s.q.offset(b, h) + i0 * s.q.t;
            f.block(std::min(TILE, T - i0), S - T + i0, S, scale, out + s.out.offset(b, h) + i0 * s.out.t, s.out.t,
                    lse + (b * s.H + h) * T + i0);
        }
    });
}

// The gradients of q, k and v, given that of out and the results of the forward pass.
void attention_backward(const Shape* shape, const float* q, const float* k, const float* v, const float* out,
                        const float* lse, const float* grad, const Strides* grad_strides, float* dq, float* dk,
                        float* dv, float scale, int threads, Parallel parallel) {
    const Shape& s = *shape;
    const Strides& gs = *grad_strides;
    int E = int(s.E), V = int(s.V), T = int(s.T), S = int(s.S), padded_width = int(round_up(E, W)), offset = S - T;
    int64_t group = s.H / s.K, head_size = int64_t(T) * padded_width, padded_T = round_up(T, W);
    int64_t size = (2 * E + 2 * V + padded_width + 2 * QUERIES) * TILE + group * (head_size + padded_T);
    parallel_for(s.B * s.K, size, threads, parallel, [&](int64_t i, float* workspace) {
        int64_t b = i / s.K, g = i % s.K;
        Backward w;
        w.k = k + s.k.offset(b, g), w.v = v + s.v.offset(b, g), w.k_stride = s.k.t, w.v_stride = s.v.t;
        w.T = T, w.S = S, w.E = E, w.V = V, w.scale = scale;
        w.k_t = workspace, w.v_t = w.k_t + E * TILE, w.k_rows = w.v_t + V * TILE;
        w.dk_t = w.k_rows + padded_width * TILE, w.dv_t = w.dk_t + E * TILE;
        w.weights = w.dv_t + V * TILE, w.dscores = w.weights + QUERIES * TILE;
        float *dq_sums = w.dscores + QUERIES * TILE, *deltas = dq_sums + group * head_size;
        std::fill(dq_sums, deltas, 0.0f);
        std::fill(w.k_rows, w.dk_t, 0.0f);  // the padding of a row stays zero
        for (int64_t h = 0; h < group; h++)
            for (int t = 0; t < T; t++) {
                const float* x = out + s.out.offset(b, g * group + h) + t * s.out.t;
                const float* y = grad + gs.offset(b, g * group + h) + t * gs.t;
                deltas[h * padded_T + t] = dot(x, y, V);
            }
        for (int k0 = 0; k0 < S; k0 += TILE) {
            int keys = std::min(TILE, S - k0);
            scale_to_tile(w.k + k0 * s.k.t, s.k.t, keys, E, scale * LOG2_E, w.k_t);
            scale_to_tile(w.v + k0 * s.v.t, s.v.t, keys, V, 1.0f, w.v_t);
            for (int c = 0; c < keys; c++) scale_copy(w.k + (k0 + c) * s.k.t, E, 1.0f, w.k_rows + c * padded_width);
            std::fill(w.dk_t, w.dk_t + E * TILE, 0.0f);
            std::fill(w.dv_t, w.dv_t + V * TILE, 0.0f);
            // the first queries to attend to the tile's first vector of keys, and to both
            int one = std::max(0, k0 - offset), two = std::clamp(k0 + W - offset, 0, T);
            for (int64_t h = 0; h < group; h++) {
                int64_t head = g * group + h;
                Backward::QueryHead query{q + s.q.offset(b, head), grad + gs.offset(b, head), lse + (b * s.H + head) * T,
                                          deltas + h * padded_T, s.q.t, gs.t, dq_sums + h * head_size};
                w.add_queries<1>(query, one, two, k0, offset);
                w.add_queries<2>(query, std::max(one, two), T, k0, offset);
            }
            transpose(w.dk_t, TILE, E, keys, dk + s.dk.offset(b, g) + k0 * s.dk.t, s.dk.t, Scale{scale});
            transpose(w.dv_t, TILE, V, keys, dv + s.dv.offset(b, g) + k0 * s.dv.t, s.dv.t, Copy());
        }
        for (int64_t h = 0; h < group; h++)
            for (int t = 0; t < T; t++)
                scale_copy(dq_sums + h * head_size + int64_t(t) * padded_width, E, scale,
                           dq + s.dq.offset(b, g * group + h) + t * s.dq.t);
    });
}

// A few queries over many keys, without gradients: q (B, T, H, E), k (B, S, K, E), v (B, S, K, V) -> out (B, T, H, V).
void attention_decode(const Shape* shape, const float* q, const float* k, const float* v, float* out, float scale,
                      int causal, int threads, Parallel parallel) {
    const Shape& s = *shape;
    int E = int(s.E), V = int(s.V), S = int(s.S);
    int64_t group = s.H / s.K;
    parallel_for(s.B * s.K, round_up(S, W), threads, parallel, [&](int64_t i, float* p) {
        int64_t b = i / s.K, g = i % s.K;
        const float *keys = k + s.k.offset(b, g), *values = v + s.v.offset(b, g);
        for (int64_t row = 0; row < group * s.T; row++) {
            int64_t h = g * group + row / s.T, t = row % s.T;
            const float* query = q + s.q.offset(b, h) + t * s.q.t;
            float* result = out + s.out.offset(b, h) + t * s.out.t;
            int count = causal ? int(S - s.T + t) + 1 : S;
            decode_attention(query, keys, s.k.t, values, s.v.t, count, E, V, scale * LOG2_E, p, result);
        }
    });
}

// For the test of exp2 alone: whether the compiler fuses products with sums, which rounds once instead of twice.
int attention_fuses(float x) {
    volatile float rounded = x * x;
    vec factor = broadcast(x);
    return (factor * factor - rounded)[0] != 0;
}

// 2^x of n numbers.
void attention_exp2(const float* x, float* out, int64_t n) {
    for (int64_t i = 0; i < n; i++) out[i] = exp2(broadcast(x[i]))[0];
}
}
