// Row norms, forward and backward: LayerNorm, or RMSNorm if not centered; and RMSNorm of groups of elements.
#pragma once

#include "decode_attention.h"

namespace {

struct Norm {
    int D;
    bool centered;
    float eps;
    const float *weight, *bias;

    // output(column, y) receives W elements at a time of y = (x - mean) factor weight + bias; `statistics` are mean and factor.
    template <class Output>
    void forward(const float* x, float* statistics, const Output& output) const {
        vec sums[4] = {}, squares[4] = {};
        float mean = 0;
        if (centered) {
            for (int c = 0, n = 0; c < D; c += W, n = (n + 1) & 3) sums[n] += load(x + c);
            mean = horizontal_sum((sums[0] + sums[1]) + (sums[2] + sums[3])) / D;
        }
        for (int c = 0, n = 0; c < D; c += W, n = (n + 1) & 3) {
            __builtin_prefetch(x + PREFETCH_ROWS * D + c);
            vec y = load(x + c) - mean;
            squares[n] += y * y;
        }
        float factor = 1.0f / std::sqrt(horizontal_sum((squares[0] + squares[1]) + (squares[2] + squares[3])) / D + eps);
        statistics[0] = mean, statistics[1] = factor;
        for (int c = 0; c < D; c += W) {
            vec y = (load(x + c) - mean) * factor;
            if (weight) y *= load(weight + c);
            if (bias) y += load(bias + c);
            output(c, y);
        }
    }

    // R consecutive rows: dx = residual + the gradient of x, given that of the output; dweight and dbias accumulate.
    // output(row, column, y) receives the output again. `statistics_stride` numbers lie between the statistics of two rows.
    template <int R, class Output>
    void backward(const float* x, const float* statistics, int64_t statistics_stride, const float* grad, const float* residual,
                  float* dx, float* dweight, float* dbias, const Output& output) const {
        vec grad_sums[R] = {}, grad_dots[R] = {};  // of g = grad weight: sum g, and sum g (x - mean) factor
        for (int c = 0; c < D; c += W) {
            vec weight_sum = load(dweight + c), bias_sum = load(dbias + c), scale = weight ? load(weight + c) : broadcast(1.0f);
#pragma GCC unroll 2
            for (int i = 0; i < R; i++) {
                int64_t at = int64_t(i) * D + c;
                __builtin_prefetch(x + at + PREFETCH_ROWS * D), __builtin_prefetch(residual + at + PREFETCH_ROWS * D);
                vec g = load(grad + at);
                vec normalized = (load(x + at) - statistics[i * statistics_stride]) * statistics[i * statistics_stride + 1];
                vec y = normalized * scale;
                weight_sum += g * normalized, bias_sum += g;
                if (bias) y += load(bias + c);
                output(i, c, y);
                g *= scale;
                grad_sums[i] += g, grad_dots[i] += g * normalized;
            }
            store(dweight + c, weight_sum), store(dbias + c, bias_sum);
        }
        for (int i = 0; i < R; i++, x += D, grad += D, residual += D, dx += D, statistics += statistics_stride) {
            float mean = statistics[0], factor = statistics[1];
            float grad_mean = centered ? horizontal_sum(grad_sums[i]) / D : 0, dot_mean = horizontal_sum(grad_dots[i]) / D;
            for (int c = 0; c < D; c += W) {
                vec g = load(grad + c), normalized = (load(x + c) - mean) * factor;
                if (weight) g *= load(weight + c);
                store(dx + c, load(residual + c) + (g - grad_mean - normalized * dot_mean) * factor);
            }
        }
    }
};

// RMSNorm of groups of `width` elements of a row, at any `width`; nothing if it is 0.
struct GroupNorm {
    int64_t size, width;
    float eps;
    const float* weight;  // (width), or null

    float factor(const float* x) const { return 1.0f / std::sqrt(dot(x, x, int(width)) / float(width) + eps); }

    // In place.
    void forward(float* x) const {
        for (const float* end = x + size; width && x < end; x += width) {
            float scale = factor(x);
            for (int64_t e = 0; e < width; e++) x[e] *= scale;
            for (int64_t e = 0; weight && e < width; e++) x[e] *= weight[e];
        }
    }

    // The gradient of the output -> that of x, in place; dweight accumulates.
    void backward(const float* x, float* grad, float* dweight) const {
        for (const float* end = x + size; width && x < end; x += width, grad += width) {
            float scale = factor(x);
            for (int64_t e = 0; e < width; e++) dweight[e] += grad[e] * (x[e] * scale);
            for (int64_t e = 0; weight && e < width; e++) grad[e] *= weight[e];
            float mean = dot(grad, x, int(width)) * scale / float(width);
            for (int64_t e = 0; e < width; e++) grad[e] = (grad[e] - x[e] * scale * mean) * scale;
        }
    }
};

}  // namespace
