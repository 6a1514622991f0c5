// Calls of a kernel's functions on numbers that are the same on every machine; prints every result. The kernel's source is
// KERNEL, so that its shapes are known here. Compare the output of two builds: they may differ by rounding only.
//   program                                   calls the functions that it is compiled with, on one thread
//   program LIBRARY RUNTIME [ADAPTER]         calls those of LIBRARY, on the threads of an OpenMP runtime; if it lacks
//                                             GOMP_parallel, by ADAPTER, which is openmp.cpp
#include KERNEL
#include "loaded.h"

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
int run() {
    for (auto [T, S, H, K, E, V] : std::initializer_list<std::array<int64_t, 6>>{
             {1, 1, 1, 1, 1, 1}, {7, 7, 2, 1, 5, 3}, {33, 40, 4, 2, 12, 12}, {70, 70, 2, 2, 20, 24}, {131, 131, 1, 1, 33, 7}}) {
        Strides q{T * H * E, H * E, E}, k{S * K * E, K * E, E}, v{S * K * V, K * V, V}, out{T * H * V, H * V, V};
        Shape shape{2, T, S, H, K, E, V, q, k, v, out, q, k, v};
        auto x = numbers(2 * T * H * E), y = numbers(2 * S * K * E), z = numbers(2 * S * K * V), g = numbers(2 * T * H * V);
        std::vector<float> result(g.size()), lse(2 * H * T), dx(x.size()), dy(y.size()), dz(z.size()), decoded(g.size());
        float scale = 1 / std::sqrt(float(E));
        attention_forward(&shape, x.data(), y.data(), z.data(), result.data(), lse.data(), scale, threads, parallel);
        attention_backward(&shape, x.data(), y.data(), z.data(), result.data(), lse.data(), g.data(), &out, dx.data(), dy.data(),
                           dz.data(), scale, threads, parallel);
        attention_decode(&shape, x.data(), y.data(), z.data(), decoded.data(), scale, 1, threads, parallel);
        print("out", result), print("lse", lse), print("dq", dx), print("dk", dy), print("dv", dz), print("decoded", decoded);
    }
    return 0;
}
#elif defined(MLP_F32)
int run() {
    for (int activation = 0; activation < 4; activation++)
        for (auto [M, D, F, gated] : std::initializer_list<std::array<int, 4>>{{1, 16, 32, 0}, {37, 48, 64, 1}, {97, 32, 16, 0}}) {
            int U = gated ? 2 * F : F;
            int64_t size = int64_t(U) * D + U + int64_t(D) * F + D;
            auto x = numbers(M * D), up = numbers(U * D, 0.3f), bias = numbers(U), down = numbers(D * F, 0.3f), b = numbers(D);
            auto grad = numbers(M * D);
            std::vector<float> space(U * D + D * F), pre(M * U), y(M * D), dx(M * D), grads(size);
            mlp_forward(M, D, F, gated, activation, x.data(), up.data(), bias.data(), down.data(), b.data(), space.data(),
                        pre.data(), y.data(), threads, parallel);
            mlp_backward(M, D, F, gated, activation, x.data(), pre.data(), grad.data(), up.data(), down.data(), dx.data(),
                         grads.data(), nullptr, 1, threads, parallel);
            print("y", y), print("dx", dx), print("weights", grads);
        }
    return 0;
}
#elif defined(CROSS_ENTROPY)
int run() {
    for (int64_t V : {1, 2, 3, 17, 65, 300}) {
        const int64_t N = 9;
        Sizes sizes{N, V, V, -100, 0.1};
        auto logits = rounded(N * V, 4);
        std::vector<int64_t> targets(N);
        for (int64_t n = 0; n < N; n++) targets[n] = n % 4 == 3 ? -100 : (n * 7) % V;
        std::vector<float> lse(2 * N), losses(N);
        std::vector<uint16_t> grads(N * V);
        double total;
        if (cross_entropy_forward(&sizes, logits.data(), targets.data(), lse.data(), losses.data(), &total, threads, parallel) != -1)
            return 1;
        cross_entropy_backward(&sizes, logits.data(), targets.data(), lse.data(), 0.5f, grads.data(), threads, parallel);
        print("losses", losses), print("grads", grads);
    }
    return 0;
}
#elif defined(ATTENTION_BF16)
int run() {
    for (auto [T, H, K, E] : std::initializer_list<std::array<int64_t, 4>>{{1, 1, 1, 2}, {7, 2, 1, 6}, {65, 4, 2, 12}, {131, 2, 2, 34}}) {
        Strides q{T * H * E, H * E, E}, k{T * K * E, K * E, E};
        Shape shape{2, T, H, K, E, q, k, k};
        auto x = rounded(2 * T * H * E), y = rounded(2 * T * K * E), z = rounded(2 * T * K * E), g = rounded(2 * T * H * E);
        std::vector<uint16_t> out(g.size()), dx(x.size()), dy(y.size()), dz(z.size());
        std::vector<float> lse(2 * H * T);
        float scale = 1 / std::sqrt(float(E));
        bf16_attention_forward(&shape, x.data(), y.data(), z.data(), out.data(), lse.data(), scale, threads, parallel);
        bf16_attention_backward(&shape, x.data(), y.data(), z.data(), out.data(), lse.data(), g.data(), dx.data(), dy.data(),
                                dz.data(), scale, threads, parallel);
        print("out", out), print("lse", lse), print("dq", dx), print("dk", dy), print("dv", dz);
    }
    return 0;
}
#elif defined(DROPOUT)
int run() {
    for (int64_t elements = 31; elements < 41; elements++) {
        Sizes sizes{2, 3, 5, elements, {0.3, 12345678901234567u, 4}};
        auto x = numbers(2 * 3 * 5 * elements), y = x;
        dropout(&sizes, 4, x.data(), y.data(), threads, parallel);
        print("dropped", y);
    }
    return 0;
}
#elif defined(BLOCKS)
int run() {
    for (int64_t modern : {0, 1}) {
        const int bf16 = BLOCKS, COUNT = Block<Float32>::Gradients::COUNT;
        const int64_t B = 3, T = 19, D = 48, H = 3, K = modern ? 1 : 3, E = 16, F = 64, L = 2;
        Sizes sizes{};
        sizes.B = B, sizes.T = T, sizes.D = D, sizes.H = H, sizes.K = K, sizes.E = E, sizes.F = F;
        sizes.gated = modern, sizes.centered = !modern, sizes.eps_1 = sizes.eps_2 = 1e-5, sizes.scale = 0.25;
        int64_t bytes[3];
        block_buffer_sizes(&sizes, bf16, bytes);
        std::vector<std::vector<float>> values, grads;
        std::vector<Weights> weights(L, Weights{});
        std::vector<float*> to;
        for (int64_t i = 0; i < L * COUNT; i++) {
            int64_t size = Block<Float32>::Gradients::elements(sizes, int(i % COUNT));
            values.push_back(numbers(size, 0.2f)), grads.push_back(std::vector<float>(size));
            if (size) (&weights[i / COUNT].norm_1)[i % COUNT] = values.back().data();
            to.push_back(grads.back().data());
        }
        auto x = numbers(B * T * D), grad = numbers(B * T * D);
        std::vector<float> y(x.size()), dx(x.size()), between((L - 1) * x.size());
        std::vector<float> saved(L * bytes[0] / 4 + 16), packed(L * bytes[2] / 4 + 16);
        char* kept = reinterpret_cast<char*>(saved.data());
        blocks_forward(&sizes, weights.data(), nullptr, L, bf16, 1, x.data(), y.data(), between.data(), kept, nullptr, nullptr, 0,
                       packed.data(), threads, parallel);
        blocks_backward(&sizes, weights.data(), nullptr, L, bf16, x.data(), between.data(), grad.data(), kept, packed.data(),
                        dx.data(), to.data(), nullptr, 1, threads, parallel);
        print("y", y), print("dx", dx);
        for (auto& each : grads)
            if (!each.empty()) print("weight", each);
    }
    return 0;
}
#elif defined(DECODING)
int run() {  // its vectors; the packed weights that it reads are laid out for them
    for (int i = 0; i < 10; i++) print("ratio", {float(decoding_group_width() / decoding_vector_width())});
    return 0;
}
#endif

int main(int count, char** words) {
#if defined(LOADED)
    if (count < 3) fail("usage:", "program LIBRARY RUNTIME [ADAPTER]");
    load_libraries(count, words);
#else
    (void)count, (void)words;
#endif
    int status = run();
#if defined(LOADED)
    std::fprintf(stderr, "threads: %d of %d\n", int(most_threads), threads);
#endif
    return status;
}
