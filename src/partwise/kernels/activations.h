// The activations of perceptrons, each with its slope.
#pragma once

#include "vectors.h"

namespace {

enum Act { RELU, RELU2, GELU, GELU_TANH, SILU, SIGMOID, IDENTITY };

inline vec sigmoid(vec x) {
    vec t = x * -LOG2_E;
    return 1.0f / (1.0f + exp2(t > 126.0f ? all(126.0f) : t));
}

// The value and the slope of an activation.
template <Act A>
inline void activate(vec x, vec& y, vec& slope) {
    if constexpr (A == RELU) {
        y = x < 0.0f ? vec{} : x;
        slope = x > 0.0f ? all(1.0f) : vec{};
    } else if constexpr (A == RELU2) {
        vec positive = x < 0.0f ? vec{} : x;
        y = positive * positive;
        slope = 2.0f * positive;
    } else if constexpr (A == GELU) {
        // 1 - Phi(t) = phi-like e^(-t^2 / 2) times a polynomial in 1 / (1 + 0.26 t): off by less than 5e-8
        vec t = x < 0.0f ? -x : x, s = 1.0f / (1.0f + 0.26f * t);
        vec p = all(-7.232150028e-02f);
        p = p * s + 2.261120512e-01f;
        p = p * s - 1.013984402e-01f;
        p = p * s + 1.619500408e-01f;
        p = p * s + 7.539825641e-02f;
        p = p * s + 1.067009606e-01f;
        p = p * s + 1.035585927e-01f;
        vec e = exp2(x * x * (-0.5f * LOG2_E)), tail = p * s * e;
        vec phi = x < 0.0f ? tail : 1.0f - tail;
        y = x * phi;
        slope = phi + x * e * 0.398942280401f;
    } else if constexpr (A == GELU_TANH) {
        const float c = 2 * 0.797884560803f;
        vec square = x * x, s = sigmoid(c * (x + 0.044715f * square * x));
        y = x * s;
        slope = s + y * (1.0f - s) * c * (1.0f + 3 * 0.044715f * square);
    } else if constexpr (A == SILU) {
        vec s = sigmoid(x);
        y = x * s;
        slope = s + y * (1.0f - s);
    } else if constexpr (A == SIGMOID) {
        y = sigmoid(x);
        slope = y * (1.0f - y);
    } else {
        y = x;
        slope = all(1.0f);
    }
}

template <class Work>
void choose(int act, const Work& work) {
    switch (act) {
        case RELU: return work(std::integral_constant<Act, RELU>());
        case RELU2: return work(std::integral_constant<Act, RELU2>());
        case GELU: return work(std::integral_constant<Act, GELU>());
        case GELU_TANH: return work(std::integral_constant<Act, GELU_TANH>());
        case SILU: return work(std::integral_constant<Act, SILU>());
        case SIGMOID: return work(std::integral_constant<Act, SIGMOID>());
        default: return work(std::integral_constant<Act, IDENTITY>());
    }
}

}  // namespace
