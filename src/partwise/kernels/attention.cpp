// Causal softmax attention in float32, forward and backward: one block of scores at a time, none of them kept.
//
// Shapes as everywhere: B batch, T queries, S keys, H query heads, K key heads, E width of queries and keys, V of values.
// The triangle is aligned at its end: query i sees the keys up to S - T + i. Queries, keys, values and their gradients
// may lie anywhere, as long as one head's numbers stand side by side.
//
// A vector holds one number each of W neighbouring queries (forward) or keys (backward), so that no width is too narrow
// to fill it and neither maximum nor sum runs across its lanes. Everything is made of three products of a small block:
//     scores   out[r][c]  = sum_e a[r][e] b[e][c]         a broadcast, b turned beforehand
//     gather   out[e][c] += sum_r a[r][e] x[r][c]         a broadcast, out turned
//     spread   out[r][e] += sum_c x[r][c] b[c][e]         x broadcast
// A thread takes whole key heads (forward also parts of their queries), so that every sum has one fixed order: the
// numbers do not depend on how many threads there are. Compile without -ffast-math: infinities and NaN must be seen.

#include "step.h"

namespace {

constexpr int C = 2 * W;                          // columns of a block: two vectors
constexpr int ROWS = REGISTERS == 32 ? 8 : 4;     // rows of a product held in registers
constexpr int WIDTHS = REGISTERS == 32 ? 12 : 4;  // the same, of a turned result
constexpr int KEYS = 128;                         // forward: keys whose scores are held at a time
constexpr int QUERIES = 32;                       // backward: queries whose scores are held at a time

// sum_e a[r][e] b[e][c] of R rows and N vectors.
template <int R, int N>
inline void scores(const float* a, int64_t step, const float* b, int E, vec (&out)[R][N]) {
#pragma GCC unroll 16
    for (int r = 0; r < R; r++)
#pragma GCC unroll 2
        for (int n = 0; n < N; n++) out[r][n] = vec{};
    auto width = [&](int e) __attribute__((always_inline)) {
        vec x[N];
#pragma GCC unroll 2
        for (int n = 0; n < N; n++) x[n] = load(b + e * C + n * W);
#pragma GCC unroll 16
        for (int r = 0; r < R; r++)
#pragma GCC unroll 2
            for (int n = 0; n < N; n++) out[r][n] += a[r * step + e] * x[n];
    };
    for (; E >= 4; E -= 4, a += 4, b += 4 * C)  // rows have more addresses than the processor registers for them
        width(0), width(1), width(2), width(3);
    for (int e = 0; e < E; e++) width(e);
}

// out[e][c] = out[e][c] decay[c] + sum_r a[r][e] x[r][c] for X widths e and `count` rows.
template <int X, int N>
inline void gather_tile(const float* a, int64_t step, const float* x, int count, const vec* decay, float* out) {
    vec sum[X][N];
#pragma GCC unroll 16
    for (int e = 0; e < X; e++)
#pragma GCC unroll 2
        for (int n = 0; n < N; n++) {
            sum[e][n] = load(out + e * C + n * W);
            if (decay) sum[e][n] *= decay[n];
        }
    for (int r = 0; r < count; r++, a += step, x += C) {
        vec row[N];
#pragma GCC unroll 2
        for (int n = 0; n < N; n++) row[n] = load(x + n * W);
#pragma GCC unroll 16
        for (int e = 0; e < X; e++)
#pragma GCC unroll 2
            for (int n = 0; n < N; n++) sum[e][n] += a[e] * row[n];
    }
#pragma GCC unroll 16
    for (int e = 0; e < X; e++)
#pragma GCC unroll 2
        for (int n = 0; n < N; n++) store(out + e * C + n * W, sum[e][n]);
}

template <int N>
void gather(const float* a, int64_t step, const float* x, int count, int E, const vec* decay, float* out) {
    int e = 0;
    for (; e + WIDTHS <= E; e += WIDTHS) gather_tile<WIDTHS, N>(a + e, step, x, count, decay, out + e * C);
    if constexpr (WIDTHS > 8)
        for (; e + 8 <= E; e += 8) gather_tile<8, N>(a + e, step, x, count, decay, out + e * C);
    for (; e + 4 <= E; e += 4) gather_tile<4, N>(a + e, step, x, count, decay, out + e * C);
    for (; e < E; e++) gather_tile<1, N>(a + e, step, x, count, decay, out + e * C);
}

// out[r][e] += sum_c x[r][c] b[c][e] for R rows and N vectors of widths; `wide` numbers lie between rows of b and out.
template <int R, int N>
inline void spread_tile(const float* x, const float* b, int count, int wide, float* out) {
    vec sum[R][N];
#pragma GCC unroll 16
    for (int r = 0; r < R; r++)
#pragma GCC unroll 2
        for (int n = 0; n < N; n++) sum[r][n] = load(out + r * wide + n * W);
    for (int c = 0; c < count; c++, b += wide) {
        vec row[N];
#pragma GCC unroll 2
        for (int n = 0; n < N; n++) row[n] = load(b + n * W);
#pragma GCC unroll 16
        for (int r = 0; r < R; r++)
#pragma GCC unroll 2
            for (int n = 0; n < N; n++) sum[r][n] += x[r * C + c] * row[n];
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; r++)
#pragma GCC unroll 2
        for (int n = 0; n < N; n++) store(out + r * wide + n * W, sum[r][n]);
}

template <int R>
void spread_rows(const float* x, const float* b, int count, int wide, float* out) {
    int e = 0;
    for (; e + C <= wide; e += C) spread_tile<R, 2>(x, b + e, count, wide, out + e);
    for (; e < wide; e += W) spread_tile<R, 1>(x, b + e, count, wide, out + e);
}

void spread(const float* x, const float* b, int rows, int count, int wide, float* out) {
    int r = 0;
    for (; r + ROWS <= rows; r += ROWS) spread_rows<ROWS>(x + r * C, b, count, wide, out + r * wide);
    for (; r < rows; r++) spread_rows<1>(x + r * C, b, count, wide, out + r * wide);
}

// Up to C rows, turned into a block, zero beyond the last row.
void turn_block(const float* rows, int64_t step, int count, int E, float factor, float* out) {
    if (count < C) std::fill(out, out + E * C, 0.0f);
    turn(rows, step, count, E, factor, out, C);
}

inline void copy(const float* x, int E, float factor, float* out) {
    for (; E >= 4; E -= 4, x += 4, out += 4)
        *reinterpret_cast<loose_four*>(out) = factor * *reinterpret_cast<const loose_four*>(x);
    for (int e = 0; e < E; e++) out[e] = factor * x[e];
}

struct Strides {
    int64_t b, t, h;
    int64_t at(int64_t batch, int64_t head) const { return batch * b + head * h; }
};

// As the caller lays them out: int64 numbers, strides counted in floats.
struct Shape {
    int64_t B, T, S, H, K, E, V;
    Strides q, k, v, out, dq, dk, dv;
};

int up(int64_t n, int to) { return int((n + to - 1) / to * to); }

// ---------------------------------------------------------------------------------------------------------- forward

struct Forward {
    const float *q, *k, *v;  // one head's first rows
    int64_t q_step, k_step, v_step;
    int E, V;
    float *turned, *p, *sum;  // [E][C] queries, [KEYS][C] scores, [V][C] outputs
    vec top[2], total[2];     // the largest score and the sum of 2^(score - top) so far

    // R keys from j: their scores, masked for the queries from `first` on, whose vectors begin at column `col`.
    template <int R, int N>
    void score(int j, int first, int col, float* p, vec (&most)[N]) {
        vec s[R][N];
        scores<R, N>(k + j * k_step, k_step, turned + col, E, s);
        if (j + R - 1 > first) {
            for (int r = 0; r < R; r++)
                for (int n = 0; n < N; n++) s[r][n] = lanes() < float(j + r - first - n * W) ? all(-INF) : s[r][n];
        }
#pragma GCC unroll 16
        for (int r = 0; r < R; r++)
#pragma GCC unroll 2
            for (int n = 0; n < N; n++) {
                most[n] = larger(most[n], s[r][n]);
                store(p + r * C + n * W, s[r][n]);
            }
    }

    // The keys [from, to), at most KEYS of them; `first` is the last key that the first of these queries sees.
    template <int N>
    void keys(int from, int to, int first, int col) {
        vec most[N], decay[N], part[N];
        for (int n = 0; n < N; n++) most[n] = top[n + col / W], part[n] = vec{};
        int j = from;
        for (; j + ROWS <= to; j += ROWS) score<ROWS, N>(j, first, col, p + (j - from) * C, most);
        for (; j < to; j++) score<1, N>(j, first, col, p + (j - from) * C, most);
        for (int n = 0; n < N; n++) decay[n] = exp2(top[n + col / W] - most[n]);
        for (float* row = p; row < p + (to - from) * C; row += C)
            for (int n = 0; n < N; n++) {
                vec x = exp2(load(row + n * W) - most[n]);
                part[n] += x;
                store(row + n * W, x);
            }
        for (int n = 0; n < N; n++) {
            total[n + col / W] = total[n + col / W] * decay[n] + part[n];
            top[n + col / W] = most[n];
        }
        gather<N>(v + from * v_step, v_step, p, to - from, V, decay, sum + col);
    }

    // `count` queries at q, of which the first sees the keys up to `first`.
    void block(int count, int first, int S, float scale, float* out, int64_t out_step, float* lse) {
        turn_block(q, q_step, count, E, scale * LOG2_E, turned);
        std::fill(sum, sum + V * C, 0.0f);
        top[0] = top[1] = all(-INF), total[0] = total[1] = vec{};
        int both = std::min(S, first + W), end = std::min(S, first + C);
        for (int j = 0; j < both; j += KEYS) keys<2>(j, std::min(j + KEYS, both), first, 0);
        for (int j = both; j < end; j += KEYS) keys<1>(j, std::min(j + KEYS, end), first + W, W);
        for (int n = 0; n < 2; n++)
            for (int e = 0; e < V; e++) store(sum + e * C + n * W, load(sum + e * C + n * W) / total[n]);
        turn(sum, C, V, count, 1.0f, out, out_step);
        float sums[C];
        for (int n = 0; n < 2; n++) store(sums + n * W, top[n] + log2(total[n]));
        std::copy(sums, sums + count, lse);
    }
};

// --------------------------------------------------------------------------------------------------------- backward

struct Backward {
    const float *k, *v;  // one key head's first rows
    int64_t k_step, v_step;
    int T, S, E, V;
    float scale;
    float *k_turned, *v_turned, *k_rows, *dk, *dv;  // [E][C], [V][C], [C][wide], [E][C], [V][C]
    float *p, *ds;                                  // [QUERIES][C]

    struct Query {  // one query head; lse and delta of its queries, and the sum for dq, [T][wide]
        const float *q, *grad, *lse, *delta;
        int64_t q_step, grad_step;
        float* dq;
    };

    template <int R, int N>
    void weigh(const Query& h, int i, int first, float* p, float* ds) {
        vec s[R][N], d[R][N];
        scores<R, N>(h.q + i * h.q_step, h.q_step, k_turned, E, s);
#pragma GCC unroll 16
        for (int r = 0; r < R; r++)
#pragma GCC unroll 2
            for (int n = 0; n < N; n++) {
                vec x = exp2(s[r][n] - h.lse[i + r]);
                if (first < N * W - 1) x = lanes() > float(first + r - n * W) ? vec{} : x;
                store(p + r * C + n * W, x);
            }
        scores<R, N>(h.grad + i * h.grad_step, h.grad_step, v_turned, V, d);
#pragma GCC unroll 16
        for (int r = 0; r < R; r++)
#pragma GCC unroll 2
            for (int n = 0; n < N; n++)
                store(ds + r * C + n * W, load(p + r * C + n * W) * (d[r][n] - h.delta[i + r]));
    }

    // The queries [from, to) against N vectors of keys from k0; off + i is the last key that query i sees.
    template <int N>
    void queries(const Query& h, int from, int to, int k0, int off) {
        int wide = up(E, W);
        for (int i0 = from; i0 < to; i0 += QUERIES) {
            int i = i0, count = std::min(QUERIES, to - i0);
            for (; i + ROWS <= i0 + count; i += ROWS)
                weigh<ROWS, N>(h, i, off + i - k0, p + (i - i0) * C, ds + (i - i0) * C);
            for (; i < i0 + count; i++) weigh<1, N>(h, i, off + i - k0, p + (i - i0) * C, ds + (i - i0) * C);
            gather<N>(h.grad + i0 * h.grad_step, h.grad_step, p, count, V, nullptr, dv);
            gather<N>(h.q + i0 * h.q_step, h.q_step, ds, count, E, nullptr, dk);
            spread(ds, k_rows, count, std::min(N * W, S - k0), wide, h.dq + int64_t(i0) * wide);
        }
    }
};

}  // namespace

extern "C" {

// q (B, T, H, E), k (B, S, K, E), v (B, S, K, V) -> out (B, T, H, V), and lse (B, H, T): log2 sum_j 2^(score_j log2 e).
void attention_forward(const Shape* shape, const float* q, const float* k, const float* v, float* out, float* lse,
                       float scale, int threads, Parallel parallel) {
    const Shape& s = *shape;
    int E = int(s.E), V = int(s.V), T = int(s.T), S = int(s.S), blocks = (T + C - 1) / C;
    int parts = int(std::min<int64_t>(blocks, 1 + 4 * threads / std::max<int64_t>(1, s.B * s.H)));  // where heads are few
    share(s.B * s.H * parts, int64_t(E + KEYS + V) * C, threads, parallel, [&](int64_t i, float* scratch) {
        int64_t part = i % parts, h = i / parts % s.H, b = i / parts / s.H, g = h / (s.H / s.K);
        Forward f;
        f.k = k + s.k.at(b, g), f.v = v + s.v.at(b, g);
        f.q_step = s.q.t, f.k_step = s.k.t, f.v_step = s.v.t, f.E = E, f.V = V;
        f.turned = scratch, f.p = f.turned + E * C, f.sum = f.p + KEYS * C;
        for (int i0 = int(part) * C; i0 < T; i0 += parts * C) {
            f.q = q + s.q.at(b, h) + i0 * s.q.t;
            f.block(std::min(C, T - i0), S - T + i0, S, scale, out + s.out.at(b, h) + i0 * s.out.t, s.out.t,
                    lse + (b * s.H + h) * T + i0);
        }
    });
}

// The gradients of q, k and v from that of out, and what the forward pass gave.
void attention_backward(const Shape* shape, const float* q, const float* k, const float* v, const float* out,
                        const float* lse, const float* grad, const Strides* grad_strides, float* dq, float* dk,
                        float* dv, float scale, int threads, Parallel parallel) {
    const Shape& s = *shape;
    const Strides& gs = *grad_strides;
    int E = int(s.E), V = int(s.V), T = int(s.T), S = int(s.S), wide = up(E, W), off = S - T;
    int64_t group = s.H / s.K, room = int64_t(T) * wide;
    int64_t size = (2 * E + 2 * V + wide + 2 * QUERIES) * C + group * (room + up(T, W));
    share(s.B * s.K, size, threads, parallel, [&](int64_t i, float* scratch) {
        int64_t b = i / s.K, g = i % s.K;
        Backward w;
        w.k = k + s.k.at(b, g), w.v = v + s.v.at(b, g), w.k_step = s.k.t, w.v_step = s.v.t;
        w.T = T, w.S = S, w.E = E, w.V = V, w.scale = scale;
        w.k_turned = scratch, w.v_turned = w.k_turned + E * C, w.k_rows = w.v_turned + V * C;
        w.dk = w.k_rows + wide * C, w.dv = w.dk + E * C, w.p = w.dv + V * C, w.ds = w.p + QUERIES * C;
        float *sums = w.ds + QUERIES * C, *deltas = sums + group * room;
        std::fill(sums, deltas, 0.0f);
        std::fill(w.k_rows, w.dk, 0.0f);  // what pads a row stays zero
        for (int64_t h = 0; h < group; h++)
            for (int t = 0; t < T; t++) {
                const float* x = out + s.out.at(b, g * group + h) + t * s.out.t;
                const float* y = grad + gs.at(b, g * group + h) + t * gs.t;
                deltas[h * up(T, W) + t] = dot(x, y, V);
            }
        for (int k0 = 0; k0 < S; k0 += C) {
            int count = std::min(C, S - k0);
            turn_block(w.k + k0 * s.k.t, s.k.t, count, E, scale * LOG2_E, w.k_turned);
            turn_block(w.v + k0 * s.v.t, s.v.t, count, V, 1.0f, w.v_turned);
            for (int c = 0; c < count; c++) copy(w.k + (k0 + c) * s.k.t, E, 1.0f, w.k_rows + c * wide);
            std::fill(w.dk, w.dk + E * C, 0.0f);
            std::fill(w.dv, w.dv + V * C, 0.0f);
            int one = std::max(0, k0 - off), two = std::clamp(k0 + W - off, 0, T);  // the first to see a vector, and both
            for (int64_t h = 0; h < group; h++) {
                int64_t head = g * group + h;
                Backward::Query query{q + s.q.at(b, head), grad + gs.at(b, head), lse + (b * s.H + head) * T,
                                      deltas + h * up(T, W), s.q.t, gs.t, sums + h * room};
                w.queries<1>(query, one, two, k0, off);
                w.queries<2>(query, std::max(one, two), T, k0, off);
            }
            turn(w.dk, C, E, count, scale, dk + s.dk.at(b, g) + k0 * s.dk.t, s.dk.t);
            turn(w.dv, C, V, count, 1.0f, dv + s.dv.at(b, g) + k0 * s.dv.t, s.dv.t);
        }
        for (int64_t h = 0; h < group; h++)
            for (int t = 0; t < T; t++)
                copy(sums + h * room + int64_t(t) * wide, E, scale, dq + s.dq.at(b, g * group + h) + t * s.dq.t);
    });
}

// A few queries over many keys, forward only: q (B, T, H, E), k (B, S, K, E), v (B, S, K, V) -> out (B, T, H, V).
void attention_step(const Shape* shape, const float* q, const float* k, const float* v, float* out, float scale,
                    int causal, int threads, Parallel parallel) {
    const Shape& s = *shape;
    int E = int(s.E), V = int(s.V), S = int(s.S);
    int64_t group = s.H / s.K;
    share(s.B * s.K, up(S, W), threads, parallel, [&](int64_t i, float* p) {
        int64_t b = i / s.K, g = i % s.K;
        const float *keys = k + s.k.at(b, g), *values = v + s.v.at(b, g);
        for (int64_t row = 0; row < group * s.T; row++) {
            int64_t h = g * group + row / s.T, t = row % s.T;
            const float* query = q + s.q.at(b, h) + t * s.q.t;
            float* result = out + s.out.at(b, h) + t * s.out.t;
            int count = causal ? int(S - s.T + t) + 1 : S;
            attend(query, keys, s.k.t, values, s.v.t, count, E, V, scale * LOG2_E, p, result);
        }
    });
}

// The exponential alone, for its test: 2^x of n numbers.
void attention_exp2(const float* x, float* out, int64_t n) {
    for (int64_t i = 0; i < n; i++) out[i] = exp2(all(x[i]))[0];
}
}
