// Cross-entropy of bfloat16 logits, forward and backward; rows are widened to float32 in registers only.
//
// Shapes: N rows of V logits, N targets; rows whose target is `ignore_index` are skipped.
//     loss = log sum_v exp(x_v) - (1 - s) x_target - s mean_v x_v,     s = label_smoothing

#include "dtypes.h"
#include "parallel.h"

namespace {

struct Sizes {
    int64_t N, V, row_stride, ignore_index;
    double label_smoothing;
};

// task(v, x) for W logits of a row at a time; those beyond its end are `padding`.
template <class Task>
inline void for_each_vector(const uint16_t* row, int64_t V, uint16_t padding, const Task& task) {
    int64_t full = V / W * W;
    for (int64_t v = 0; v < full; v += W) task(v, BFloat16::load_float(row + v));
    if (full == V) return;
    uint16_t rest[W];
    std::fill(rest, rest + W, padding);
    std::copy(row + full, row + V, rest);
    task(full, BFloat16::load_float(rest));
}

constexpr uint16_t MINUS_INFINITY = 0xff80;

// A row's maximum, and log2 sum_v exp(x_v - maximum): two numbers, because their sum would lose the digits of the second in
// float32. NaN for a row with a NaN or whose maximum is infinite.
void log_sum_exp(const uint16_t* row, int64_t V, float* lse) {
    vec highest = broadcast(-INF), sum{};
    for_each_vector(row, V, MINUS_INFINITY, [&](int64_t, vec x) { highest = maximum(highest, x); });
    float max = horizontal_max(highest);
    for_each_vector(row, V, MINUS_INFINITY, [&](int64_t, vec x) { sum += exp2((x - max) * LOG2_E); });
    lse[0] = max, lse[1] = std::log2(horizontal_sum(sum));
}

float mean(const uint16_t* row, int64_t V) {
    vec sum{};
    for_each_vector(row, V, 0, [&](int64_t, vec x) { sum += x; });
    return horizontal_sum(sum) / float(V);
}

}  // namespace

extern "C" {

// `log_sum_exp` (N, 2) and loss of every row, and the sum of the losses in `total`. Returns the first row with an invalid
// target, or -1.
int64_t cross_entropy_forward(const Sizes* s, const uint16_t* logits, const int64_t* targets, float* lse, float* losses,
                              double* total, int threads, Parallel parallel) {
    for (int64_t n = 0; n < s->N; n++)
        if (targets[n] != s->ignore_index && (targets[n] < 0 || targets[n] >= s->V)) return n;
    float smoothing = float(s->label_smoothing);
    parallel_for(s->N, 0, threads, parallel, [&](int64_t n, float*) {
        const uint16_t* row = logits + n * s->row_stride;
        losses[n] = 0;
        if (targets[n] == s->ignore_index) return;
        float* row_lse = lse + 2 * n;
        log_sum_exp(row, s->V, row_lse);
        losses[n] = row_lse[1] / LOG2_E + (1 - smoothing) * (row_lse[0] - BFloat16::to_float(row[targets[n]]));
        if (smoothing) losses[n] += smoothing * (row_lse[0] - mean(row, s->V));
    });
    *total = 0;
    for (int64_t n = 0; n < s->N; n++) *total += losses[n];
    return -1;
}

// grads (N, V): `factor` times the gradient of the summed loss.
void cross_entropy_backward(const Sizes* s, const uint16_t* logits, const int64_t* targets, const float* lse, float factor,
                            uint16_t* grads, int threads, Parallel parallel) {
    float uniform = float(s->label_smoothing / double(s->V)) * factor, at_target = float(1 - s->label_smoothing) * factor;
    parallel_for(s->N, 0, threads, parallel, [&](int64_t n, float*) {
        uint16_t* out = grads + n * s->V;
        if (targets[n] == s->ignore_index) return std::fill(out, out + s->V, uint16_t(0));
        const uint16_t* row = logits + n * s->row_stride;
        float max = lse[2 * n], log2_sum = lse[2 * n + 1];
        auto gradient = [&](vec x) { return exp2((x - max) * LOG2_E - log2_sum) * factor - uniform; };
        for_each_vector(row, s->V, MINUS_INFINITY, [&](int64_t v, vec x) {
            if (v + W <= s->V) return BFloat16::store_rounded(out + v, gradient(x));
            uint16_t rest[W];
            BFloat16::store_rounded(rest, gradient(x));
            std::copy(rest, rest + s->V - v, out + v);
        });
        vec target = broadcast(BFloat16::to_float(row[targets[n]]));
        out[targets[n]] = BFloat16::from_float(gradient(target)[0] - at_target);
    });
}
}
