// Causal softmax attention of one head over rows of small numbers: a block of scores at a time, none of them kept.
//
// Shapes: T queries and as many keys, E the width of a head; query i sees the keys up to i. A vector holds one number each of
// W neighbouring queries (forward) or keys (backward), so that no width is too narrow to fill it and neither maximum nor
// sum runs across its lanes. Compile without -ffast-math: infinities and NaN must be seen.
#pragma once

#include "numbers.h"

namespace {

constexpr int C = 2 * W;      // columns of a block
constexpr int KEYS = 128;     // forward: keys whose scores are held at a time
constexpr int QUERIES = 32;   // backward: queries whose scores are held at a time

inline int whole(int64_t n, int unit) { return int((n + unit - 1) / unit * unit); }

inline vec lanes() {
    vec x{};
    for (int i = 0; i < W; i++) x[i] = float(i);
    return x;
}

// log2(x) for normal x > 0: the exponent and a line to begin with, then Newton's method.
inline vec log2(vec x) {
    vec y = __builtin_convertvector((ivec)x, vec) * 0x1p-23f - 127.0f;
    for (int i = 0; i < 3; i++) y += (x * exp2(-y) - 1.0f) * LOG2_E;
    return y;
}

// Up to C rows of units, `step` apart -> out[e][c], zero beyond the last row.
template <class Unit>
void turned_units(const Unit* rows, int64_t step, int count, int units, Unit* out) {
    if (count < C) std::fill(out, out + units * C, Unit(0));
    int r = 0;
    for (; r + 4 <= count; r += 4) {
        int e = 0;
        for (; e + 4 <= units; e += 4) {
            four x[4];
#pragma GCC unroll 4
            for (int i = 0; i < 4; i++) x[i] = *reinterpret_cast<const loose_four*>(rows + (r + i) * step + e);
            turn_square(x);
#pragma GCC unroll 4
            for (int i = 0; i < 4; i++) *reinterpret_cast<loose_four*>(out + (e + i) * C + r) = x[i];
        }
        for (; e < units; e++)
            for (int i = r; i < r + 4; i++) out[e * C + i] = rows[i * step + e];
    }
    for (; r < count; r++)
        for (int e = 0; e < units; e++) out[e * C + r] = rows[r * step + e];
}

// Rows of small numbers -> units of two neighbouring rows, [rows / PER][E].
template <class Number>
void across_units(const typename Number::Small* rows, int64_t step, int count, int E, typename Number::Unit* out) {
    constexpr int PER = Number::PER;
    for (int r = 0; r < count; r += PER, out += E) {
        const auto *even = rows + r * step, *odd = r + PER <= count ? even + (PER - 1) * step : nullptr;
        if (odd)
            for (int e = 0; e < E; e++) out[e] = Number::pair(even[e], odd[e]);
        else
            for (int e = 0; e < E; e++) out[e] = Number::pair(even[e], 0);
    }
}

template <class Number>
struct Heads {
    typedef typename Number::Small Small;
    typedef typename Number::Unit Unit;
    static constexpr int PER = Number::PER;

    int T, E;
    int64_t step;  // small numbers between rows of queries, keys and values
    float scale;   // log2 e times that of the scores

    const Unit* units(const Small* x) const { return reinterpret_cast<const Unit*>(x); }

    // ---------------------------------------------------------------------------------------------------- forward

    int64_t forward_room() const { return int64_t(whole(T, PER) / PER + whole(E, PER) / PER) * E + 2 * KEYS * C + E * C + C * E; }

    // Queries q, keys k and values v of one head -> out (T, E), `out_step` apart, and lse: log2 sum_j 2^(score_j log2 e).
    [[gnu::noinline]] void forward(const Small* q, const Small* k, const Small* v, Small* out, int64_t out_step, float* lse,
                 float* scratch) const {
        Unit* values = reinterpret_cast<Unit*>(scratch);
        Unit* turned = values + int64_t(whole(T, PER) / PER) * E;
        float *s = reinterpret_cast<float*>(turned + E / PER * C), *sum = s + KEYS * C;
        Unit* p = reinterpret_cast<Unit*>(sum + E * C);
        across_units<Number>(v, step, T, E, values);
        for (int i0 = 0; i0 < T; i0 += C) {
            int count = std::min(C, T - i0), end = std::min(T, i0 + C);
            turned_units(units(q + i0 * step), step / PER, count, E / PER, turned);
            std::fill(sum, sum + E * C, 0.0f);
            vec top[2] = {all(-INF), all(-INF)}, total[2] = {};
            for (int j0 = 0; j0 < end; j0 += KEYS) {
                int keys = std::min(KEYS, end - j0);
                product<Number>(units(k + j0 * step), step / PER, 1, keys, turned, E / PER, C, {s, C});
                weigh(s, p, keys, i0 - j0, top, total, j0 ? sum : nullptr);
                Result<Number> to{sum, C};
                if (j0) to.base = sum, to.base_row = C;
                product<Number>(values + int64_t(j0 / PER) * E, 1, E, E, p, (keys + PER - 1) / PER, C, to);
            }
            for (int n = 0; n < 2; n++) {
                vec inverse = 1.0f / total[n];
                for (int e = 0; e < E; e++) store(sum + e * C + n * W, load(sum + e * C + n * W) * inverse);
            }
            float sums[C];
            for (int n = 0; n < 2; n++) store(sums + n * W, top[n] * scale + log2(total[n]));
            std::copy(sums, sums + count, lse + i0);
            for (int c = 0; c < count; c++) {
                Small* row = out + (i0 + c) * out_step;
                for (int e = 0; e < E; e++) row[e] = Number::small(sum[e * C + c]);
            }
        }
    }

    // From scores the weights, as units of neighbouring keys; `first` is the last key that the first query sees. What was
    // summed before, if anything, is taken down to the new maximum.
    [[gnu::noinline]] void weigh(float* s, Unit* p, int keys, int first, vec (&top)[2], vec (&total)[2], float* sum) const {
        for (int n = 0; n < 2; n++) {
            vec most = top[n], part{}, lane = lanes() + float(n * W);
            for (int j = std::max(0, first + 1 + n * W); j < keys; j++)
                store(s + j * C + n * W, lane < float(j - first) ? all(-INF) : load(s + j * C + n * W));
            for (int j = 0; j < keys; j++) most = larger(most, load(s + j * C + n * W));
            vec bound = most * scale;
            auto weight = [&](int j) { return exp2(load(s + j * C + n * W) * scale - bound); };
            float* to = reinterpret_cast<float*>(p) + n * W;
            for (int j = 0; j < keys; j += PER, to += C) {
                vec even = weight(j), odd = PER > 1 && j + 1 < keys ? weight(j + 1) : vec{};
                part += even + odd;
                store(to, Number::pair(even, odd));
            }
            vec decay = exp2(top[n] * scale - bound);
            total[n] = total[n] * decay + part;
            top[n] = most;
            if (sum)
                for (int e = 0; e < E; e++) store(sum + e * C + n * W, load(sum + e * C + n * W) * decay);
        }
    }

    // --------------------------------------------------------------------------------------------------- backward

    int wide() const { return whole(E, W); }
    int64_t backward_room() const {
        return int64_t(whole(T, PER) / PER) * E * 2 + 2 * E * C + C * wide() + 2 * E * C + 5 * QUERIES * C +
               int64_t(T) * wide() + whole(T, W);
    }

    struct Query {  // one query head: its queries, what it gave, the gradient of that, lse, and where the queries' goes
        const Small *q, *out, *grad;
        int64_t out_step;
        const float* lse;
        float* dq;
    };

    // The gradients of `group` query heads, and of the key head that they share; float32 numbers, `to_step` apart.
    template <class Find>
    [[gnu::noinline]] void backward(const Small* k, const Small* v, int group, const Find& find, float* dk, float* dv, int64_t to_step,
                  float natural, float* scratch) const {
        int pairs = whole(T, PER) / PER;
        Unit* queries = reinterpret_cast<Unit*>(scratch);
        Unit *grads = queries + int64_t(pairs) * E, *k_turned = grads + int64_t(pairs) * E, *v_turned = k_turned + E * C;
        Unit* k_across = v_turned + E * C;
        float *dk_turned = reinterpret_cast<float*>(k_across + C * wide()), *dv_turned = dk_turned + E * C;
        float *s = dv_turned + E * C, *d = s + QUERIES * C;
        Unit *p = reinterpret_cast<Unit*>(d + QUERIES * C), *ds = p + QUERIES * C, *ds_rows = ds + QUERIES * C;
        float *dq = reinterpret_cast<float*>(ds_rows + QUERIES * C), *delta = dq + int64_t(T) * wide();
        for (int h = 0; h < group; h++) {
            Query query = find(h);
            across_units<Number>(query.q, step, T, E, queries);
            across_units<Number>(query.grad, query.out_step, T, E, grads);
            for (int t = 0; t < T; t++) {
                float sum = 0;
                const Small *x = query.out + t * query.out_step, *y = query.grad + t * query.out_step;
                for (int e = 0; e < E; e++) sum += Number::wide(x[e]) * Number::wide(y[e]);
                delta[t] = sum;
            }
            std::fill(dq, dq + int64_t(T) * wide(), 0.0f);
            for (int k0 = 0; k0 < T; k0 += C) {
                int count = std::min(C, T - k0);
                turned_units(units(k + k0 * step), step / PER, count, E / PER, k_turned);
                turned_units(units(v + k0 * step), step / PER, count, E / PER, v_turned);
                spread_keys(k + k0 * step, count, k_across);
                for (int i0 = k0; i0 < T; i0 += QUERIES) {
                    int rows = std::min(QUERIES, T - i0), units_of_rows = (rows + PER - 1) / PER;
                    product<Number>(units(query.q + i0 * step), step / PER, 1, rows, k_turned, E / PER, C, {s, C});
                    product<Number>(units(query.grad + i0 * query.out_step), query.out_step / PER, 1, rows, v_turned,
                                    E / PER, C, {d, C});
                    differ(s, d, rows, query.lse + i0, delta + i0, i0 - k0, p, ds, reinterpret_cast<Small*>(ds_rows));
                    bool begun = i0 > k0;
                    add_up(grads + int64_t(i0 / PER) * E, p, units_of_rows, dv_turned, begun);
                    add_up(queries + int64_t(i0 / PER) * E, ds, units_of_rows, dk_turned, begun);
                    float* here = dq + int64_t(i0) * wide();
                    product<Number>(ds_rows, C / PER, 1, rows, k_across, C / PER, wide(),
                                    {here, wide(), nullptr, here, wide()});
                }
                for (int c = 0; c < count; c++) {
                    float *dk_row = dk + (k0 + c) * to_step, *dv_row = dv + (k0 + c) * to_step;
                    for (int e = 0; e < E; e++) {
                        float x = natural * dk_turned[e * C + c], y = dv_turned[e * C + c];
                        dk_row[e] = h ? dk_row[e] + x : x;
                        dv_row[e] = h ? dv_row[e] + y : y;
                    }
                }
            }
            for (int t = 0; t < T; t++)
                for (int e = 0; e < E; e++) query.dq[t * to_step + e] = natural * dq[int64_t(t) * wide() + e];
        }
    }

    // out[e][c] (+)= sum_r rows[r][e] x[r][c] over rows of units
    [[gnu::noinline]] void add_up(const Unit* rows, const Unit* x, int count, float* out, bool begun) const {
        Result<Number> to{out, C};
        if (begun) to.base = out, to.base_row = C;
        product<Number>(rows, 1, E, E, x, count, C, to);
    }

    // Keys of a block -> units of neighbouring keys, widths in panels, zero beyond E and beyond the last key.
    [[gnu::noinline]] void spread_keys(const Small* k, int count, Unit* out) const {
        std::fill(out, out + int64_t(C / PER) * wide(), Unit(0));
        for (int c = 0, width; c < wide(); c += width) {
            width = panel_width(wide() - c);
            for (int r = 0; r < (count + PER - 1) / PER; r++) {
                const Small *even = k + PER * r * step, *odd = PER * r + PER <= count ? even + (PER - 1) * step : nullptr;
                Unit* row = out + int64_t(c) * (C / PER) + int64_t(r) * width;
                for (int e = c; e < std::min(E, c + width); e++) row[e - c] = Number::pair(even[e], odd ? odd[e] : Small(0));
            }
        }
    }

    // Scores and the gradients of weights -> weights and the gradients of scores, as units of neighbouring queries; the
    // latter as rows too. `first` is the last key of the block that the first query sees.
    [[gnu::noinline]] void differ(const float* s, const float* d, int rows, const float* lse, const float* delta, int first, Unit* p, Unit* ds,
                Small* ds_rows) const {
        for (int n = 0; n < 2; n++) {
            vec lane = lanes() + float(n * W);
            auto one = [&](int r, vec& weight, vec& change) {
                vec x = exp2(load(s + r * C + n * W) * scale - lse[r]);
                weight = first + r < C - 1 ? (lane > float(first + r) ? vec{} : x) : x;
                change = weight * (load(d + r * C + n * W) - delta[r]);
                Number::narrow(ds_rows + r * C + n * W, change);
            };
            for (int r = 0; r < rows; r += PER) {
                vec weight[2] = {}, change[2] = {};
                one(r, weight[0], change[0]);
                if (PER > 1 && r + 1 < rows) one(r + 1, weight[1], change[1]);
                store(reinterpret_cast<float*>(p) + r / PER * C + n * W, Number::pair(weight[0], weight[1]));
                store(reinterpret_cast<float*>(ds) + r / PER * C + n * W, Number::pair(change[0], change[1]));
            }
        }
    }
};

}  // namespace
