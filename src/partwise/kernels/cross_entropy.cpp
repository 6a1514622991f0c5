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

constexpr uint16_t NOTHING = 0xff80;  // minus infinity, of which the exponential is 0

// A row's largest logit and, behind it, the logarithm to base 2 of the sum of all exponentials of what lies between it and them:
// apart, as in float32 the one would swallow the other. NaN where a logit is NaN, or infinite above all others.
void normalise(const uint16_t* row, int64_t V, float* found) {
    vec highest = all(-INF), sum{};
    along(row, V, NOTHING, [&](int64_t, vec x) { highest = larger(highest, x); });
    float most = highest_of(highest);
    along(row, V, NOTHING, [&](int64_t, vec x) { sum += exp2((x - most) * LOG2_E); });
    found[0] = most, found[1] = std::log2(sum_of(sum));
}

float mean(const uint16_t* row, int64_t V) {
    vec sum{};
    along(row, V, 0, [&](int64_t, vec x) { sum += x; });
    return sum_of(sum) / float(V);
}

}  // namespace

extern "C" {

// Of every row that counts what `normalise` finds, (N, 2), and the loss; in `total` the sum of the losses. The first row whose
// target is none, or -1.
int64_t cross_entropy_forward(const Sizes* s, const uint16_t* logits, const int64_t* targets, float* found, float* losses,
                              double* total, int threads, Parallel parallel) {
    for (int64_t n = 0; n < s->N; n++)
        if (targets[n] != s->ignored && (targets[n] < 0 || targets[n] >= s->V)) return n;
    float smoothing = float(s->smoothing);
    share(s->N, 0, threads, parallel, [&](int64_t n, float*) {
        const uint16_t* row = logits + n * s->apart;
        losses[n] = 0;
        if (targets[n] == s->ignored) return;
        float* here = found + 2 * n;
        normalise(row, s->V, here);
        losses[n] = here[1] / LOG2_E + (1 - smoothing) * (here[0] - Half::wide(row[targets[n]]));
        if (smoothing) losses[n] += smoothing * (here[0] - mean(row, s->V));
    });
    *total = 0;
    for (int64_t n = 0; n < s->N; n++) *total += losses[n];
    return -1;
}

// grads (N, V): `factor` times the gradient of the summed loss.
void cross_entropy_backward(const Sizes* s, const uint16_t* logits, const int64_t* targets, const float* found, float factor,
                            uint16_t* grads, int threads, Parallel parallel) {
    float everywhere = float(s->smoothing / double(s->V)) * factor, there = float(1 - s->smoothing) * factor;
    share(s->N, 0, threads, parallel, [&](int64_t n, float*) {
        uint16_t* to = grads + n * s->V;
        if (targets[n] == s->ignored) return std::fill(to, to + s->V, uint16_t(0));
        const uint16_t* row = logits + n * s->apart;
        float most = found[2 * n], others = found[2 * n + 1];
        auto share_of = [&](vec x) { return exp2((x - most) * LOG2_E - others) * factor - everywhere; };
        along(row, s->V, NOTHING, [&](int64_t v, vec x) {
            if (v + W <= s->V) return Half::narrow(to + v, share_of(x));
            uint16_t end[W];
            Half::narrow(end, share_of(x));
            std::copy(end, end + s->V - v, to + v);
        });
        to[targets[n]] = Half::small(share_of(all(Half::wide(row[targets[n]])))[0] - there);
    });
}
}
