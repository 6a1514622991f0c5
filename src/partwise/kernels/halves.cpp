// The two parts of a block that are more than a matrix product, each alone, over bfloat16 numbers that are summed in float32:
// for blocks that are not one of those which `block.cpp` knows whole.

#include "heads.h"
#include "perceptron.h"

namespace {

// Attention alone, of tensors that lie anywhere as long as one head's numbers stand side by side.
struct Shape {
    struct Strides {
        int64_t b, t, h;  // small numbers
        int64_t at(int64_t batch, int64_t head) const { return batch * b + head * h; }
    };
    int64_t B, T, H, K, E;
    Strides q, k, v;
};

template <class Number>
struct Attention {
    typedef typename Number::Small Small;
    typedef typename Number::Unit Unit;

    const Shape& s;
    int E = int(s.E), T = int(s.T);
    int64_t group = s.H / s.K, out_step = s.H * s.E;
    Heads<Number> heads;

    Attention(const Shape& s, float scale) : s(s), heads{int(s.T), int(s.E), s.q.t, s.k.t, s.v.t, scale} {}

    void forward(const Small* q, const Small* k, const Small* v, Small* out, float* lse, int threads, Parallel parallel) const {
        int64_t room = whole(int64_t(whole(T, 2)) * E, W);
        share(s.B * s.K, room + heads.forward_room(), threads, parallel, [&](int64_t i, float* scratch) {
            int64_t b = i / s.K, g = i % s.K;
            Unit* values = reinterpret_cast<Unit*>(scratch);
            across_rows<Number>(v + s.v.at(b, g), s.v.t, T, E, values, E);
            for (int64_t h = g * group; h < (g + 1) * group; h++)
                heads.forward(q + s.q.at(b, h), k + s.k.at(b, g), values, E, out + b * T * out_step + h * E, out_step,
                              lse + (b * s.H + h) * T, scratch + room);
        });
    }

    // The gradients are side by side, as `out` and `grad` are.
    void backward(const Small* q, const Small* k, const Small* v, const Small* out, const float* lse, const Small* grad,
                  Small* dq, Small* dk, Small* dv, int threads, Parallel parallel) const {
        int64_t rows = whole(T, 2), wide = (group + 1) * E, to_step = (group + 2) * E;
        int64_t across = whole(rows * wide + W, W), grads = whole(rows * group * E, W), found = whole(T * to_step, W);
        int64_t room = across + grads + found + heads.backward_room(group);
        share(s.B * s.K, room, threads, parallel, [&](int64_t i, float* scratch) {
            int64_t b = i / s.K, g = i % s.K, first = b * T * out_step + g * group * E;
            Unit *qk_across = reinterpret_cast<Unit*>(scratch), *grad_across = qk_across + across;
            float *to = reinterpret_cast<float*>(grad_across + grads), *rest = to + found;
            for (int64_t h = 0; h < group; h++)
                across_rows<Number>(q + s.q.at(b, g * group + h), s.q.t, T, E, qk_across + h * E, wide);
            across_rows<Number>(k + s.k.at(b, g), s.k.t, T, E, qk_across + group * E, wide);
            across_rows<Number>(grad + first, out_step, T, int(group) * E, grad_across, group * E);
            typename Heads<Number>::Queries queries{q + s.q.at(b, g * group), s.q.h, out + first, grad + first, out_step,
                                                    group * E, qk_across, grad_across, lse + (b * s.H + g * group) * T};
            heads.backward(queries, k + s.k.at(b, g), v + s.v.at(b, g), qk_across + group * E, wide, int(group), to,
                           to + group * E, to + (group + 1) * E, to_step, rest);
            for (int t = 0; t < T; t++, to += to_step) {
                narrow_row(to, int(group) * E, dq + first + t * out_step);
                narrow_row(to + group * E, E, dk + ((b * T + t) * s.K + g) * E);
                narrow_row(to + (group + 1) * E, E, dv + ((b * T + t) * s.K + g) * E);
            }
        });
    }

    static void narrow_row(const float* from, int count, Small* to) {
        int e = 0;
        for (; e + W <= count; e += W) Number::narrow(to + e, load(from + e));
        for (; e < count; e++) to[e] = Number::small(from[e]);
    }
};

// A perceptron: x (M, D), pre = x up^T + up_bias (M, U), h = act(pre) or act(gate) value (M, F), y = h down^T + down_bias.
// D and F are multiples of 16.
struct Perceptron {
    typedef Half::Small Small;
    typedef Half::Unit Unit;
    static constexpr int ROWS = 48, CHUNK = 192;  // that pass the products at a time; that give to a gradient at a time

    int64_t M;
    int D, F, U;
    Hidden<Half> hidden;

    Perceptron(int64_t M, int D, int F, int gated, int act)
        : M(M), D(D), F(F), U(gated ? 2 * F : F), hidden(F, bool(gated), act) {}

    Unit* pack(const float* up, const float* down, char* packed, bool forward, int threads, Parallel parallel) const {
        Packing<Half> packing{forward};
        Unit* to = reinterpret_cast<Unit*>(packed);
        packing.add(up, to, U, D);
        packing.add(down, to + int64_t(U) * D / 2, D, F);
        packing.run(threads, parallel);
        return to;
    }

    static const Unit* units(const Small* x) { return reinterpret_cast<const Unit*>(x); }

    void forward(const float* x, const float* up, const float* up_bias, const float* down, const float* down_bias, char* packed,
                 Small* pre, float* y, int threads, Parallel parallel) const {
        const Unit *first = pack(up, down, packed, true, threads, parallel), *second = first + int64_t(U) * D / 2;
        share((M + ROWS - 1) / ROWS, int64_t(ROWS) * (D + U + F), threads, parallel, [&](int64_t i, float* wide) {
            int64_t m = i * ROWS;
            int count = int(std::min<int64_t>(ROWS, M - m));
            Small *rows = reinterpret_cast<Small*>(wide + int64_t(ROWS) * U), *h = rows + int64_t(ROWS) * D * 2;
            narrow_rows<Half>(x + m * D, count, D, rows);
            product<Half>(units(rows), D / 2, 1, count, first, D / 2, U, {wide, U, up_bias});
            hidden.forward(wide, count, pre + m * U, h);
            product<Half>(units(h), F / 2, 1, count, second, F / 2, D, {y + m * D, D, down_bias});
        });
    }

    // The gradients of x and, in `sums`, of up, its bias, down and its bias behind one another; `others` has room for as many
    // numbers again for every thread but the first.
    void backward(const float* x, const Small* pre, const float* grad, const float* up, const float* down, char* packed,
                  float* dx, float* sums, float* others, int threads, Parallel parallel) const {
        const Unit *first = pack(up, down, packed, false, threads, parallel), *second = first + int64_t(U) * D / 2;
        int64_t size = int64_t(U) * D + U + int64_t(D) * F + D;
        int64_t room = int64_t(CHUNK) * (2 * D + F + U) + int64_t(ROWS) * (F + std::max(U, D));
        share(threads, room, threads, parallel, [&](int64_t i, float* scratch) {
            float *dup = i ? others + (i - 1) * size : sums, *dup_bias = dup + int64_t(U) * D;
            float *ddown = dup_bias + U, *ddown_bias = ddown + int64_t(D) * F;
            std::fill(dup, dup + size, 0.0f);
            Unit *x_across = reinterpret_cast<Unit*>(scratch), *grad_across = x_across + CHUNK * D;
            Unit *h_across = grad_across + CHUNK * D, *change_across = h_across + CHUNK * F;
            float* wide = reinterpret_cast<float*>(change_across + CHUNK * U);
            Small* small = reinterpret_cast<Small*>(wide + ROWS * F);
            int64_t chunks = (M + CHUNK - 1) / CHUNK, end = std::min(M, chunks * (i + 1) / threads * CHUNK);
            for (int64_t from = chunks * i / threads * CHUNK; from < end; from += CHUNK) {
                int n = int(std::min<int64_t>(CHUNK, M - from)), units_of = (n + 1) / 2;
                across<Half>(x + from * D, D, n, D, units_of, x_across);
                across<Half>(grad + from * D, D, n, D, units_of, grad_across);
                add_columns(grad + from * D, n, D, ddown_bias);
                for (int m = 0; m < n; m += ROWS) {
                    int count = std::min(ROWS, n - m);
                    narrow_rows<Half>(grad + (from + m) * D, count, D, small);
                    product<Half>(units(small), D / 2, 1, count, second, D / 2, F, {wide, F});
                    hidden.backward(wide, pre + (from + m) * U, m, count, units_of, h_across, change_across, small, dup_bias);
                    product<Half>(units(small), U / 2, 1, count, first, U / 2, D, {dx + (from + m) * D, D});
                }
                add_product<Half>(grad_across, D, h_across, F, units_of, ddown);
                add_product<Half>(change_across, U, x_across, D, units_of, dup);
            }
        });
        int64_t pieces = 8 * threads;
        share(threads > 1 ? pieces : 0, 0, threads, parallel, [&](int64_t i, float*) {
            for (int64_t part = 1; part < threads; part++)
                for (int64_t n = size * i / pieces; n < size * (i + 1) / pieces; n++) sums[n] += others[(part - 1) * size + n];
        });
    }
};

}  // namespace

extern "C" {

// q (B, T, H, E), k, v (B, T, K, E) of bfloat16 numbers -> out (B, T, H, E), and lse (B, H, T).
void half_attention_forward(const Shape* s, const uint16_t* q, const uint16_t* k, const uint16_t* v, uint16_t* out, float* lse,
                            float scale, int threads, Parallel parallel) {
    Attention<Half>(*s, scale).forward(q, k, v, out, lse, threads, parallel);
}

void half_attention_backward(const Shape* s, const uint16_t* q, const uint16_t* k, const uint16_t* v, const uint16_t* out,
                             const float* lse, const uint16_t* grad, uint16_t* dq, uint16_t* dk, uint16_t* dv, float scale,
                             int threads, Parallel parallel) {
    Attention<Half>(*s, scale).backward(q, k, v, out, lse, grad, dq, dk, dv, threads, parallel);
}

// x (M, D) -> y (M, D), and pre (M, U), which the backward pass wants; `packed` has room for both matrices.
void half_mlp_forward(int64_t M, int D, int F, int gated, int act, const float* x, const float* up, const float* up_bias,
                      const float* down, const float* down_bias, char* packed, uint16_t* pre, float* y, int threads,
                      Parallel parallel) {
    Perceptron(M, D, F, gated, act).forward(x, up, up_bias, down, down_bias, packed, pre, y, threads, parallel);
}

void half_mlp_backward(int64_t M, int D, int F, int gated, int act, const float* x, const uint16_t* pre, const float* grad,
                       const float* up, const float* down, char* packed, float* dx, float* sums, float* others, int threads,
                       Parallel parallel) {
    Perceptron(M, D, F, gated, act).backward(x, pre, grad, up, down, packed, dx, sums, others, threads, parallel);
}
}
