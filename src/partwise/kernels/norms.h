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

    // to = base + the gradient of x, from that of the output, which `put` takes once more; and to those of weight and bias.
    template <class Put>
    void backward(const float* x, const float* statistics, const float* grad, const float* base, float* to, float* dweight,
                  float* dbias, const Put& put) const {
        float mean = statistics[0], factor = statistics[1];
        vec plain[2] = {}, along[2] = {};
        for (int c = 0, n = 0; c < D; c += W, n ^= 1) {
            vec g = load(grad + c), y = (load(x + c) - mean) * factor, z = y;
            store(dweight + c, load(dweight + c) + g * y);
            store(dbias + c, load(dbias + c) + g);
            if (weight) g *= load(weight + c), z *= load(weight + c);
            if (bias) z += load(bias + c);
            put(c, z);
            plain[n] += g, along[n] += g * y;
        }
        float shift = centred ? sum_of(plain[0] + plain[1]) / D : 0, turn = sum_of(along[0] + along[1]) / D;
        for (int c = 0; c < D; c += W) {
            vec g = load(grad + c), y = (load(x + c) - mean) * factor;
            if (weight) g *= load(weight + c);
            store(to + c, load(base + c) + (g - shift - y * turn) * factor);
        }
    }
};

}  // namespace
