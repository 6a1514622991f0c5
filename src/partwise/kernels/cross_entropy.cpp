// Cross-entropy of bfloat16 logits, forward and backward, each row taken to float32 in registers alone.
//
// Shapes: N rows of V logits, N targets, of which `ignored` ones are left out.
//     loss = log sum_v exp(x_v) - (1 - s) x_target - s mean_v x_v

#include <cmath>

#include "numbers.h"

namespace {

struct Sizes {
    int64_t N, V, apart, ignored;  // apart: numbers between rows of logits
    double smoothing;
};

// task(place, x) for every W numbers of a row, those behind its end being `beyond`.
template <class Task>
inline void along(const uint16_t* row, int64_t V, uint16_t beyond, const Task& task) {
    int64_t whole = V / W * W;
    for (int64_t v = 0; v < whole; v += W) task(v, Half::widen(row + v));
    if (whole == V) return;
    uint16_t end[W];
    std::fill(end, end + W, beyond);
    std::copy(row + whole, row + V, end);
    task(whole, Half::widen(end));
}

constexpr uint16_t LOWEST = 0xff7f;  // the most negative bfloat16 number, of which the exponential is 0

// The logarithm of the sum of a row's exponentials; NaN where a logit is NaN or infinite above all others.
float log_sum_exp(const uint16_t* row, int64_t V) {
    vec highest = all(-INF), sum{};
    along(row, V, LOWEST, [&](int64_t, vec x) { highest = larger(highest, x); });
    float most = highest[0];
    for (int i = 1; i < W; i++) most = std::max(most, highest[i]);
    along(row, V, LOWEST, [&](int64_t, vec x) { sum += exp2((x - most) * LOG2_E); });
    return most + std::log(sum_of(sum));
}

float mean(const uint16_t* row, int64_t V) {
    vec sum{};
    along(row, V, 0, [&](int64_t, vec x) { sum += x; });
    return sum_of(sum) / float(V);
}

}  // namespace

extern "C" {

// Each row's log-sum-exp, where it counts, and in `total` the summed loss. The first row whose target is none, or -1.
int64_t cross_entropy_forward(const Sizes* s, const uint16_t* logits, const int64_t* targets, float* lse, double* total,
                              int threads, Parallel parallel) {
    for (int64_t n = 0; n < s->N; n++)
        if (targets[n] != s->ignored && (targets[n] < 0 || targets[n] >= s->V)) return n;
    share(s->N, 0, threads, parallel, [&](int64_t n, float*) {
        if (targets[n] != s->ignored) lse[n] = log_sum_exp(logits + n * s->apart, s->V);
    });
    *total = 0;
    for (int64_t n = 0; n < s->N; n++) {
        if (targets[n] == s->ignored) continue;
        const uint16_t* row = logits + n * s->apart;
        *total += lse[n] - (1 - s->smoothing) * Half::wide(row[targets[n]]);
        if (s->smoothing) *total -= s->smoothing * mean(row, s->V);
    }
    return -1;
}

// grads (N, V): `factor` times the gradient of the summed loss.
void cross_entropy_backward(const Sizes* s, const uint16_t* logits, const int64_t* targets, const float* lse, float factor,
                            uint16_t* grads, int threads, Parallel parallel) {
    float everywhere = float(s->smoothing / double(s->V)) * factor, there = float(1 - s->smoothing) * factor;
    share(s->N, 0, threads, parallel, [&](int64_t n, float*) {
        uint16_t* to = grads + n * s->V;
        if (targets[n] == s->ignored) return std::fill(to, to + s->V, uint16_t(0));
        const uint16_t* row = logits + n * s->apart;
        auto share_of = [&](vec x) { return exp2((x - lse[n]) * LOG2_E) * factor - everywhere; };
        along(row, s->V, LOWEST, [&](int64_t v, vec x) {
            if (v + W <= s->V) return Half::narrow(to + v, share_of(x));
            uint16_t end[W];
            Half::narrow(end, share_of(x));
            std::copy(end, end + s->V - v, to + v);
        });
        to[targets[n]] = Half::small(share_of(all(Half::wide(row[targets[n]])))[0] - there);
    });
}
}
