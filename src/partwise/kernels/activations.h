// Activations of MLPs with their derivatives, and the hidden units made of them, gated or not.
#pragma once

#include <type_traits>

#include "simd.h"

namespace {

enum Activation { RELU, RELU2, GELU, GELU_TANH, SILU, SIGMOID, IDENTITY };

ALWAYS_INLINE vec sigmoid(vec x) {
    vec t = x * -LOG2_E;
    return 1.0f / (1.0f + exp2(t > 126.0f ? broadcast(126.0f) : t));
}

// y = act(x) and its derivative.
template <Activation ACT>
ALWAYS_INLINE void activate(vec x, vec& y, vec& derivative) {
    if constexpr (ACT == RELU) {
        y = x < 0.0f ? vec{} : x;
        derivative = x > 0.0f ? broadcast(1.0f) : vec{};
    } else if constexpr (ACT == RELU2) {
        vec positive = x < 0.0f ? vec{} : x;
        y = positive * positive;
        derivative = 2.0f * positive;
    } else if constexpr (ACT == GELU) {
        // 1 - Phi(t) = e^(-t^2 / 2) times a polynomial in 1 / (1 + 0.26 t): error below 5e-8
        vec t = x < 0.0f ? -x : x, s = 1.0f / (1.0f + 0.26f * t);
        vec p = broadcast(-7.232150028e-02f);
        p = p * s + 2.261120512e-01f;
        p = p * s - 1.013984402e-01f;
        p = p * s + 1.619500408e-01f;
        p = p * s + 7.539825641e-02f;
        p = p * s + 1.067009606e-01f;
        p = p * s + 1.035585927e-01f;
        vec e = exp2(x * x * (-0.5f * LOG2_E)), tail = p * s * e;
        vec phi = x < 0.0f ? tail : 1.0f - tail;
        y = x * phi;
        derivative = phi + x * e * 0.398942280401f;
    } else if constexpr (ACT == GELU_TANH) {
        const float c = 2 * 0.797884560803f;
        vec square = x * x, s = sigmoid(c * (x + 0.044715f * square * x));
        y = x * s;
        derivative = s + y * (1.0f - s) * c * (1.0f + 3 * 0.044715f * square);
    } else if constexpr (ACT == SILU) {
        vec s = sigmoid(x);
        y = x * s;
        derivative = s + y * (1.0f - s);
    } else if constexpr (ACT == SIGMOID) {
        y = sigmoid(x);
        derivative = y * (1.0f - y);
    } else {
        y = x;
        derivative = broadcast(1.0f);
    }
}

// Hidden units: act(z), or if gated act(z) value.
template <Activation ACT, bool GATED>
ALWAYS_INLINE vec hidden_units(vec z, vec value) {
    vec y, derivative;
    activate<ACT>(z, y, derivative);
    return GATED ? y * value : y;
}

// From dh, the gradient of the hidden units h: h again, and the gradients of z and, if gated, of the value.
struct HiddenGradients {
    vec h, dz, dvalue;
};

template <Activation ACT, bool GATED>
ALWAYS_INLINE HiddenGradients hidden_gradients(vec z, vec value, vec dh) {
    vec y, derivative;
    activate<ACT>(z, y, derivative);
    if constexpr (GATED) return {y * value, dh * value * derivative, dh * y};
    return {y, dh * derivative, vec{}};
}

// task(activation, gated) with both as compile-time constants.
template <class Task>
void dispatch(int activation, bool gated, const Task& task) {
    auto with = [&](auto act) { gated ? task(act, std::true_type()) : task(act, std::false_type()); };
    switch (activation) {
        case RELU: return with(std::integral_constant<Activation, RELU>());
        case RELU2: return with(std::integral_constant<Activation, RELU2>());
        case GELU: return with(std::integral_constant<Activation, GELU>());
        case GELU_TANH: return with(std::integral_constant<Activation, GELU_TANH>());
        case SILU: return with(std::integral_constant<Activation, SILU>());
        case SIGMOID: return with(std::integral_constant<Activation, SIGMOID>());
        default: return with(std::integral_constant<Activation, IDENTITY>());
    }
}

}  // namespace
