// Calls of a kernel's functions on numbers that are the same on every machine; prints every result. The kernel's source is
// KERNEL, so that its shapes are known here. Compare the output of two builds: they may differ by rounding only.
#include KERNEL

#include <array>
#include <cmath>
#include <cstdio>
#include <initializer_list>
#include <vector>

namespace {

uint32_t state = 12345;

// Uniform in [-1, 1).
float next() {
    state = state * 1664525u + 1013904223u;
    return float(int32_t(state)) * 0x1p-31f;
}

std::vector<float> numbers(int64_t n, float scale = 1) {
    std::vector<float> x(n);
    for (float& value : x) value = scale * next();
    return x;
}

void print(const char* name, const std::vector<float>& x) {
    std::printf("%s", name);
    for (float value : x) std::printf(" %.9g", double(value));
    std::printf("\n");
}

#ifdef BF16
std::vector<uint16_t> rounded(int64_t n, float scale = 1) {
    std::vector<uint16_t> x(n);
    for (uint16_t& value : x) value = BFloat16::from_float(scale * next());
    return x;
}

void print(const char* name, const std::vector<uint16_t>& x) {
    std::vector<float> wide;
    for (uint16_t value : x) wide.push_back(BFloat16::to_float(value));
    print(name, wide);
}
#endif

}  // namespace

#if defined(ATTENTION)
int main() {
    for (auto [T, S, H, K, E, V] : std::initializer_list<std::array<int64_t, 6>>{
             {1, 1, 1, 1, 1, 1}, {7, 7, 2, 1, 5, 3}, {33, 40, 4, 2, 12, 12}, {70, 70, 2, 2, 20, 24}, {131, 131, 1, 1, 33, 7}}) {
        Strides q{T * H * E, H * E, E}, k{S * K * E, K * E, E}, v{S * K * V, K * V, V}, out{T * H * V, H * V, V};
        Shape shape{2, T, S, H, K, E, V, q, k, v, out, q, k, v};
        auto x = numbers(2 * T * H * E), y = numbers(2 * S * K * E), z = numbers(2 * S * K * V), g = numbers(2 * T * H * V);
        std::vector<float> result(g.size()), lse(2 * H * T), dx(x.size()), dy(y.size()), dz(z.size()), decoded(g.size());
        float scale = 1 / std::sqrt(float(E));
        attention_forward(&shape, x.data(), y.data(), z.data(), result.data(), lse.data(), scale, 1, nullptr);
        attention_backward(&shape, x.data(), y.data(), z.data(), result.data(), lse.data(), g.data(), &out, dx.data(), dy.data(),
                           dz.data(), scale, 1, nullptr);
        attention_decode(&shape, x.data(), y.data(), z.data(), decoded.data(), scale, 1, 1, nullptr);
        print("out", result), print("lse", lse), print("dq", dx), print("dk", dy), print("dv", dz), print("decoded", decoded);
    }
}
#elif defined(MLP_F32)
int main() {
    for (int activation = 0; activation < 4; activation++)
        for (auto [M, D, F, gated] : std::initializer_list<std::array<int, 4>>{{1, 16, 32, 0}, {37, 48, 64, 1}, {97, 32, 16, 0}}) {
            int U = gated ? 2 * F : F;
            int64_t size = int64_t(U) * D + U + int64_t(D) * F + D;
            auto x = numbers(M * D), up = numbers(U * D, 0.3f), bias = numbers(U), down = numbers(D * F, 0.3f), b = numbers(D);
            auto grad = numbers(M * D);
            std::vector<float> space(U * D + D * F), pre(M * U), y(M * D), dx(M * D), grads(size);
            mlp_forward(M, D, F, gated, activation, x.data(), up.data(), bias.data(), down.data(), b.data(), space.data(),
                        pre.data(), y.data(), 1, nullptr);
            mlp_backward(M, D, F, gated, activation, x.data(), pre.data(), grad.data(), up.data(), down.data(), dx.data(),
                         grads.data(), nullptr, 1, 1, nullptr);
            print("y", y), print("dx", dx), print("weights", grads);
        }
}
#elif defined(CROSS_ENTROPY)
int main() {
    for (int64_t V : {1, 2, 3, 17, 65, 300}) {
        const int64_t N = 9;
        Sizes sizes{N, V, V, -100, 0.1};
        auto logits = rounded(N * V, 4);
        std::vector<int64_t> targets(N);
        for (int64_t n = 0; n < N; n++) targets[n] = n % 4 == 3 ? -100 : (n * 7) % V;
        std::vector<float> lse(2 * N), losses(N);
        std::vector<uint16_t> grads(N * V);
        double total;
        if (cross_entropy_forward(&sizes, logits.data(), targets.data(), lse.data(), losses.data(), &total, 1, nullptr) != -1)
            return 1;
        cross_entropy_backward(&sizes, logits.data(), targets.data(), lse.data(), 0.5f, grads.data(), 1, nullptr);
        print("losses", losses), print("grads", grads);
    }
}
#elif defined(ATTENTION_BF16)
int main() {
    for (auto [T, H, K, E] : std::initializer_list<std::array<int64_t, 4>>{{1, 1, 1, 2}, {7, 2, 1, 6}, {65, 4, 2, 12}, {131, 2, 2, 34}}) {
        Strides q{T * H * E, H * E, E}, k{T * K * E, K * E, E};
        Shape shape{2, T, H, K, E, q, k, k};
        auto x = rounded(2 * T * H * E), y = rounded(2 * T * K * E), z = rounded(2 * T * K * E), g = rounded(2 * T * H * E);
        std::vector<uint16_t> out(g.size()), dx(x.size()), dy(y.size()), dz(z.size());
        std::vector<float> lse(2 * H * T);
        float scale = 1 / std::sqrt(float(E));
        bf16_attention_forward(&shape, x.data(), y.data(), z.data(), out.data(), lse.data(), scale, 1, nullptr);
        bf16_attention_backward(&shape, x.data(), y.data(), z.data(), out.data(), lse.data(), g.data(), dx.data(), dy.data(),
                                dz.data(), scale, 1, nullptr);
        print("out", out), print("lse", lse), print("dq", dx), print("dk", dy), print("dv", dz);
    }
}
#endif
