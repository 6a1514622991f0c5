// A perceptron, plain or gated, forward and backward in float32: some rows at a time through both its matrices, so that
// what lies between them never leaves the cache.
//
// Shapes: M rows, D width, F hidden units, U = F, or 2 F where gated (first the gates, then what they let through).
//     pre = x up^T + up_bias (M, U)     h = act(pre), or act(gate) value (M, F)     y = h down^T + down_bias (M, D)
// D and F are multiples of W. Rows are shared out in as many parts as there are threads, and what the parts give to a
// gradient is added in their order: equal numbers for equal numbers of threads.

#include "activations.h"
#include "products.h"

namespace {

constexpr int ROWS = 48;  // of a block

struct Hidden {  // what lies between the matrices, of some rows
    int rows, F;
    bool gated;

    template <Act A>
    void forward(const float* pre, float* h) const {
        int U = gated ? 2 * F : F;
        for (int r = 0; r < rows; r++, pre += U, h += F)
            for (int f = 0; f < F; f += W) {
                vec y, slope;
                activate<A>(load(pre + f), y, slope);
                store(h + f, gated ? y * load(pre + F + f) : y);
            }
    }

    // From the gradient of h: h again, and the gradient of pre.
    template <Act A>
    void backward(const float* pre, const float* grad, float* h, float* change) const {
        int U = gated ? 2 * F : F;
        for (int r = 0; r < rows; r++, pre += U, change += U, grad += F, h += F)
            for (int f = 0; f < F; f += W) {
                vec y, slope, g = load(grad + f);
                activate<A>(load(pre + f), y, slope);
                if (gated) {
                    vec value = load(pre + F + f);
                    store(change + F + f, g * y);
                    store(h + f, y * value);
                    store(change + f, g * value * slope);
                } else {
                    store(h + f, y);
                    store(change + f, g * slope);
                }
            }
    }
};

struct Part {  // the rows of one of so many parts, in whole blocks
    int64_t from, to;
    Part(int64_t M, int64_t part, int64_t parts) {
        int64_t blocks = (M + ROWS - 1) / ROWS;
        from = std::min(M, blocks * part / parts * ROWS);
        to = std::min(M, blocks * (part + 1) / parts * ROWS);
    }
};

}  // namespace

extern "C" {

int mlp_vector() { return W; }

// x (M, D) -> pre (M, U), which the backward pass wants, and y (M, D). `turned` has room for both matrices.
void mlp_forward(int64_t M, int D, int F, int gated, int act, const float* x, const float* up, const float* up_bias,
                 const float* down, const float* down_bias, float* turned, float* pre, float* y, int threads,
                 Parallel parallel) {
    int U = gated ? 2 * F : F;
    float *up_turned = turned, *down_turned = turned + int64_t(U) * D;
    int pieces = U / W;
    share(pieces + D / W, 0, threads, parallel, [&](int64_t i, float*) {
        if (i < pieces)
            turn(up + i * W * D, D, W, D, 1.0f, up_turned + i * W, U);
        else
            turn(down + (i - pieces) * W * F, F, W, F, 1.0f, down_turned + (i - pieces) * W, D);
    });
    share(threads, int64_t(ROWS) * F, threads, parallel, [&](int64_t i, float* h) {
        Part part(M, i, threads);
        for (int64_t m = part.from; m < part.to; m += ROWS) {
            int rows = int(std::min<int64_t>(ROWS, part.to - m));
            affine(x + m * D, D, up_turned, up_bias, rows, D, U, pre + m * U, U);
            Hidden hidden{rows, F, bool(gated)};
            choose(act, [&](auto a) { hidden.forward<a.value>(pre + m * U, h); });
            affine(h, F, down_turned, down_bias, rows, F, D, y + m * D, D);
        }
    });
}

// The gradients: of x in dx, and those of up, its bias, down and its bias behind one another in `sums`; `others` has room
// for as many numbers again for every part but the first. A bias that is not there has a gradient that nobody reads.
void mlp_backward(int64_t M, int D, int F, int gated, int act, const float* x, const float* pre, const float* grad,
                  const float* up, const float* down, float* dx, float* sums, float* others, int threads,
                  Parallel parallel) {
    int U = gated ? 2 * F : F;
    int64_t size = int64_t(U) * D + U + int64_t(D) * F + D;
    share(threads, int64_t(ROWS) * (2 * F + U), threads, parallel, [&](int64_t i, float* dh) {
        Part part(M, i, threads);
        float *dup = i ? others + (i - 1) * size : sums, *dup_bias = dup + int64_t(U) * D;
        float *ddown = dup_bias + U, *ddown_bias = ddown + int64_t(D) * F;
        std::fill(dup, dup + size, 0.0f);
        float *h = dh + ROWS * F, *change = h + ROWS * F;
        for (int64_t m = part.from; m < part.to; m += ROWS) {
            int rows = int(std::min<int64_t>(ROWS, part.to - m));
            const float *g = grad + m * D, *rows_of_x = x + m * D;
            product<false>(g, D, 1, down, F, rows, D, F, dh, F);
            Hidden hidden{rows, F, bool(gated)};
            choose(act, [&](auto a) { hidden.backward<a.value>(pre + m * U, dh, h, change); });
            product<false>(change, U, 1, up, D, rows, U, D, dx + m * D, D);
            product<true>(change, 1, U, rows_of_x, D, U, rows, D, dup, D);
            product<true>(g, 1, D, h, F, D, rows, F, ddown, F);
            add_rows(change, rows, U, dup_bias);
            add_rows(g, rows, D, ddown_bias);
        }
    });
    if (threads > 1) {
        int64_t pieces = 8 * threads;
        share(pieces, 0, threads, parallel, [&](int64_t i, float*) {
            for (int64_t part = 1; part < threads; part++)
                for (int64_t n = size * i / pieces; n < size * (i + 1) / pieces; n++) sums[n] += others[(part - 1) * size + n];
        });
    }
}
}
