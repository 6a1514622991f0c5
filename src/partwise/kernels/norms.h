// Norms of rows, forward and backward: LayerNorm, or without centring RMSNorm.
#pragma once

#include "vectors.h"

namespace {

struct Norm {
    int D;
    bool centred;
    float eps;
    const float *weight, *bias;

    // out = (x - mean) factor weight + bias, as `put(column, numbers)` takes it
    template <class Put>
    void forward(const float* x, float* statistics, const Put& put) const {
        vec sums[4] = {}, squares[4] = {};
        float mean = 0;
        if (centred) {
            for (int c = 0, n = 0; c < D; c += W, n = (n + 1) & 3) sums[n] += load(x + c);
            mean = sum_of((sums[0] + sums[1]) + (sums[2] + sums[3])) / D;
        }
        for (int c = 0, n = 0; c < D; c += W, n = (n + 1) & 3) {
            __builtin_prefetch(x + AHEAD * D + c);
            vec y = load(x + c) - mean;
            squares[n] += y * y;
        }
        float factor = 1.0f / std::sqrt(sum_of((squares[0] + squares[1]) + (squares[2] + squares[3])) / D + eps);
        statistics[0] = mean, statistics[1] = factor;
        for (int c = 0; c < D; c += W) {
            vec y = (load(x + c) - mean) * factor;
            if (weight) y *= load(weight + c);
            if (bias) y += load(bias + c);
            put(c, y);
        }
    }

    // Of R neighbouring rows: to = base + the gradient of x, from that of the output, which `put` takes once more, row and
    // column first; and to those of weight and bias.
    template <int R, class Put>
    void backward(const float* x, const float* statistics, int64_t apart, const float* grad, const float* base, float* to,
                  float* dweight, float* dbias, const Put& put) const {
        vec plain[R] = {}, along[R] = {};
        for (int c = 0; c < D; c += W) {
            vec scale = load(dweight + c), shift = load(dbias + c), given = weight ? load(weight + c) : all(1.0f);
#pragma GCC unroll 2
            for (int i = 0; i < R; i++) {
                int64_t at = int64_t(i) * D + c;
                __builtin_prefetch(x + at + AHEAD * D), __builtin_prefetch(base + at + AHEAD * D);
                vec g = load(grad + at), y = (load(x + at) - statistics[i * apart]) * statistics[i * apart + 1], z = y * given;
                scale += g * y, shift += g;
                if (bias) z += load(bias + c);
                put(i, c, z);
                g *= given;
                plain[i] += g, along[i] += g * y;
            }
            store(dweight + c, scale), store(dbias + c, shift);
        }
        for (int i = 0; i < R; i++, x += D, grad += D, base += D, to += D, statistics += apart) {
            float mean = statistics[0], factor = statistics[1];
            float shift = centred ? sum_of(plain[i]) / D : 0, turn = sum_of(along[i]) / D;
            for (int c = 0; c < D; c += W) {
                vec g = load(grad + c), y = (load(x + c) - mean) * factor;
                if (weight) g *= load(weight + c);
                store(to + c, load(base + c) + (g - shift - y * turn) * factor);
            }
        }
    }
};

}  // namespace
