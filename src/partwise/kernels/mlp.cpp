// A float32 MLP, gated or not, forward and backward: a few rows at a time pass through both matrices, so that the hidden units
// never leave the cache.
//
// Shapes: M rows, D model width, F hidden units, U = F, or 2 F if gated (gates first, then values).
//     pre = x up^T + up_bias (M, U)     h = act(pre), or act(gate) value (M, F)     y = h down^T + down_bias (M, D)
// D and F are multiples of W. The rows are divided into parts and the parts' weight gradients are added in order: results
// are bitwise equal for equal numbers of parts.

#include "activations.h"
#include "gemm.h"
#include "parallel.h"
#include "transpose.h"

namespace {

constexpr int ROWS = 48;  // rows per block

template <Activation ACT, bool GATED>
void hidden_forward(const float* pre, int rows, int F, float* h) {
    for (int r = 0; r < rows; r++, pre += GATED ? 2 * F : F, h += F)
        for (int f = 0; f < F; f += W)
            store(h + f, hidden_units<ACT, GATED>(load(pre + f), GATED ? load(pre + F + f) : vec{}));
}

// From dh: h again, and the gradient of pre.
template <Activation ACT, bool GATED>
void hidden_backward(const float* pre, const float* dh, int rows, int F, float* h, float* dpre) {
    constexpr int PARTS = GATED ? 2 : 1;
    for (int r = 0; r < rows; r++, pre += PARTS * F, dpre += PARTS * F, dh += F, h += F)
        for (int f = 0; f < F; f += W) {
            auto of = hidden_gradients<ACT, GATED>(load(pre + f), GATED ? load(pre + F + f) : vec{}, load(dh + f));
            store(h + f, of.h);
            store(dpre + f, of.dz);
            if constexpr (GATED) store(dpre + F + f, of.dvalue);
        }
}

struct RowRange {  // the rows of one part, in whole blocks
    int64_t from, to;
    RowRange(int64_t M, int64_t part, int64_t parts) {
        int64_t blocks = (M + ROWS - 1) / ROWS;
        from = std::min(M, blocks * part / parts * ROWS);
        to = std::min(M, blocks * (part + 1) / parts * ROWS);
    }
};

}  // namespace

extern "C" {

int mlp_vector_width() { return W; }

// x (M, D) -> pre (M, U), saved for backward, and y (M, D). `transposed_weights` is workspace for both matrices.
void mlp_forward(int64_t M, int D, int F, int gated, int activation, const float* x, const float* up, const float* up_bias,
                 const float* down, const float* down_bias, float* transposed_weights, float* pre, float* y, int threads,
                 Parallel parallel) {
    int U = gated ? 2 * F : F;
    float *up_t = transposed_weights, *down_t = transposed_weights + int64_t(U) * D;
    int up_tasks = U / W;
    parallel_for(up_tasks + D / W, 0, threads, parallel, [&](int64_t i, float*) {
        if (i < up_tasks)
            transpose(up + i * W * D, D, W, D, up_t + i * W, U, Copy());
        else
            transpose(down + (i - up_tasks) * W * F, F, W, F, down_t + (i - up_tasks) * W, D, Copy());
    });
    parallel_for(threads, int64_t(ROWS) * F, threads, parallel, [&](int64_t i, float* h) {
        RowRange range(M, i, threads);
        for (int64_t m = range.from; m < range.to; m += ROWS) {
            int rows = int(std::min<int64_t>(ROWS, range.to - m));
            linear(x + m * D, D, up_t, up_bias, rows, D, U, pre + m * U, U);
            dispatch(activation, gated, [&](auto act, auto is_gated) {
                hidden_forward<act.value, is_gated.value>(pre + m * U, rows, F, h);
            });
            linear(h, F, down_t, down_bias, rows, F, D, y + m * D, D);
        }
    });
}

// dx, and in `weight_grads` the concatenated gradients of up, its bias, down and its bias; `part_grads` is as much workspace
// for every part but the first. An absent bias gets a gradient too, which the caller drops.
void mlp_backward(int64_t M, int D, int F, int gated, int activation, const float* x, const float* pre, const float* grad,
                  const float* up, const float* down, float* dx, float* weight_grads, float* part_grads, int parts, int threads,
                  Parallel parallel) {
    int U = gated ? 2 * F : F;
    int64_t size = int64_t(U) * D + U + int64_t(D) * F + D;
    parallel_for(parts, int64_t(ROWS) * (2 * F + U), threads, parallel, [&](int64_t i, float* dh) {
        RowRange range(M, i, parts);
        float *dup = i ? part_grads + (i - 1) * size : weight_grads, *dup_bias = dup + int64_t(U) * D;
        float *ddown = dup_bias + U, *ddown_bias = ddown + int64_t(D) * F;
        std::fill(dup, dup + size, 0.0f);
        float *h = dh + ROWS * F, *dpre = h + ROWS * F;
        for (int64_t m = range.from; m < range.to; m += ROWS) {
            int rows = int(std::min<int64_t>(ROWS, range.to - m));
            const float *g = grad + m * D, *x_rows = x + m * D;
            gemm<false>(g, D, 1, down, F, rows, D, F, dh, F);
            dispatch(activation, gated, [&](auto act, auto is_gated) {
                hidden_backward<act.value, is_gated.value>(pre + m * U, dh, rows, F, h, dpre);
            });
            gemm<false>(dpre, U, 1, up, D, rows, U, D, dx + m * D, D);
            gemm<true>(dpre, 1, U, x_rows, D, U, rows, D, dup, D);
            gemm<true>(g, 1, D, h, F, D, rows, F, ddown, F);
            add_column_sums(dpre, rows, U, dup_bias);
            add_column_sums(g, rows, D, ddown_bias);
        }
    });
    add_part_gradients(weight_grads, part_grads, size, parts, threads, parallel);
}
}
