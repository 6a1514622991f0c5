// Causal softmax attention of one head over rows of small numbers: a block of scores at a time, none of them kept.
//
// Shapes: T queries and as many keys, E the width of a head; query i sees the keys up to i. A vector holds one number each of
// W neighbouring queries (forward) or keys (backward), so that no width is too narrow to fill it and neither maximum nor
// sum runs across its lanes. Compile without -ffast-math: infinities and NaN must be seen.
#pragma once

#include "turning.h"

namespace {

constexpr int KEYS = 128;     // forward: keys whose scores are held at a time
constexpr int QUERIES = 64;   // backward: queries whose weights are held at a time

inline int whole(int64_t n, int unit) { return int((n + unit - 1) / unit * unit); }

// Rows of small numbers -> units of neighbouring rows, `out_row` from row to row; the last is paired with zeros where it is
// alone.
template <class Number>
void across_rows(const typename Number::Small* rows, int64_t step, int count, int columns, typename Number::Unit* out,
                 int64_t out_row) {
    constexpr int PER = Number::PER;
    for (int r = 0; r < count; r += PER, out += out_row) {
        const auto *even = rows + r * step, *odd = r + PER <= count ? even + (PER - 1) * step : nullptr;
        int c = 0;
        for (; odd && c + W <= columns; c += W) {
            __builtin_prefetch(even + c + AHEAD * step), __builtin_prefetch(odd + c + AHEAD * step);
            store(reinterpret_cast<float*>(out) + c, Number::pair(even + c, odd + c));
        }
        for (; c < columns; c++) out[c] = Number::pair(even[c], odd ? odd[c] : typename Number::Small(0));
    }
}

// One key head and the query heads that share it.
template <class Number>
struct Heads {
    typedef typename Number::Small Small;
    typedef typename Number::Unit Unit;
    static constexpr int PER = Number::PER;

    int T, E;
    int64_t q_step, k_step, v_step;  // small numbers between rows of queries, keys and values
    float natural;  // the scores' scale
    float scale = natural * LOG2_E;

    const Unit* units(const Small* x) const { return reinterpret_cast<const Unit*>(x); }
    int64_t units_of(int64_t rows) const { return (rows + PER - 1) / PER; }

    // ---------------------------------------------------------------------------------------------------- forward

    int64_t forward_room() const { return 2 * E * C + 2 * KEYS * C; }

    // Queries q, keys k and values of one head, the latter as units of neighbouring rows, `values_row` to a row -> out (T, E),
    // `out_step` apart, and lse: log2 sum_j 2^(score_j log2 e).
    void forward(const Small* q, const Small* k, const Unit* values, int64_t values_row, Small* out, int64_t out_step,
                 float* lse, float* scratch) const {
        Unit* turned = reinterpret_cast<Unit*>(scratch);
        float *s = scratch + E * C, *sum = s + KEYS * C;
        Unit* p = reinterpret_cast<Unit*>(sum + E * C);
        for (int i0 = 0; i0 < T; i0 += C) {
            int count = std::min(C, T - i0), end = std::min(T, i0 + C);
            turned_units(units(q + i0 * q_step), q_step / PER, count, E / PER, turned);
            vec top[2] = {all(-INF), all(-INF)}, total[2] = {};
            for (int j0 = 0; j0 < end; j0 += KEYS) {
                int keys = std::min(KEYS, end - j0);
                vec most[2] = {top[0], top[1]};
                score(units(k + j0 * k_step), keys, turned, i0 - j0, s, most);
                weigh(s, p, keys, most, top, total, j0 ? sum : nullptr);
                Result<Number> to{sum, C};
                if (j0) to.base = sum, to.base_row = C;
                product<Number>(values + units_of(j0) * values_row, 1, values_row, E, p, int(units_of(keys)), C, to);
            }
            for (int n = 0; n < 2; n++) {
                vec inverse = 1.0f / total[n];
                float* column = sum + n * W;
                for (int e = 0; e < E; e += PER) {
                    vec even = load(column + e * C) * inverse, odd = PER > 1 ? load(column + (e + 1) * C) * inverse : vec{};
                    store(column + e / PER * C, Number::pair(even, odd));
                }
            }
            turned_back(sum, count, E / PER, reinterpret_cast<Unit*>(out + i0 * out_step), out_step / PER);
            float sums[C];
            for (int n = 0; n < 2; n++) store(sums + n * W, top[n] * scale + log2(total[n]));
            std::copy(sums, sums + count, lse + i0);
        }
    }

    // Scores of keys by queries in columns, and the highest of each query. `first` is the last key that the first query sees.
    void score(const Unit* k, int keys, const Unit* turned, int first, float* s, vec (&most)[2]) const {
        constexpr int R = REGISTERS == 32 ? 12 : 4;
        int j = 0, free = std::clamp(first + 1, 0, keys);  // keys that all queries see
        for (; j + R <= free; j += R) score_keys<false, R>(k, j, turned, first, s, most);
        for (; j + 4 <= free; j += 4) score_keys<false, 4>(k, j, turned, first, s, most);
        for (; j + R <= keys; j += R) score_keys<true, R>(k, j, turned, first, s, most);
        for (; j + 4 <= keys; j += 4) score_keys<true, 4>(k, j, turned, first, s, most);
        for (; j < keys; j++) score_keys<true, 1>(k, j, turned, first, s, most);
    }

    template <bool MASKED, int R>
    inline void score_keys(const Unit* k, int j, const Unit* turned, int first, float* s, vec (&most)[2]) const {
        const int64_t row = k_step / PER;
        const float* q = reinterpret_cast<const float*>(turned);
        k += j * row, s += j * C;
        vec sum[R][2] = {};
        for (int e = 0; e < E / PER; e++, k++, q += C) {
            const vec query[2] = {load(q), load(q + W)};
#pragma GCC unroll 12
            for (int r = 0; r < R; r++)
#pragma GCC unroll 2
                for (int n = 0; n < 2; n++) sum[r][n] = Number::add(sum[r][n], k[r * row], query[n]);
        }
#pragma GCC unroll 2
        for (int n = 0; n < 2; n++) {
            vec lane = lanes() + float(n * W), highest = most[n];
#pragma GCC unroll 12
            for (int r = 0; r < R; r++) {
                vec x = sum[r][n];
                if constexpr (MASKED) x = lane < float(j + r - first) ? all(-INF) : x;
                store(s + r * C + n * W, x);
                highest = larger(highest, x);
            }
            most[n] = highest;
        }
    }

    // From scores the weights, as units of neighbouring keys; `most` are the highest up to here. What was summed before, if
    // anything, is taken down to them.
    void weigh(const float* s, Unit* p, int keys, const vec (&most)[2], vec (&top)[2], vec (&total)[2], float* sum) const {
        for (int n = 0; n < 2; n++) {
            vec bound = most[n] * scale, part[2] = {};
            auto weight = [&](int j) { return Number::power(load(s + j * C + n * W) * scale - bound); };
            float* to = reinterpret_cast<float*>(p) + n * W;
            for (int j = 0; j < keys; j += PER, to += C) {
                vec even = weight(j), odd = PER > 1 && j + 1 < keys ? weight(j + 1) : vec{};
                part[0] += even, part[1] += odd;
                store(to, Number::pair(even, odd));
            }
            vec decay = exp2(top[n] * scale - bound);  // exact: over a long row it multiplies itself
            total[n] = total[n] * decay + (part[0] + part[1]);
            top[n] = most[n];
            if (sum)
                for (int e = 0; e < E; e++) store(sum + e * C + n * W, load(sum + e * C + n * W) * decay);
        }
    }

    // --------------------------------------------------------------------------------------------------- backward

    int wide() const { return whole(E, W); }
    int64_t backward_room(int64_t group) const {
        return 4 * E * C + 3 * QUERIES * C + group * (int64_t(T) * wide() + whole(T, C));
    }

    // The query heads of a group: their queries, `apart` from head to head; side by side what they gave and the gradient of
    // that; queries and gradient as units of neighbouring rows; lse, T numbers a head.
    struct Queries {
        const Small* q;
        int64_t apart;
        const Small *out, *grad;
        int64_t out_step, grad_row;  // small numbers between rows, units between rows of units
        const Unit *q_across, *grad_across;
        const float* lse;
    };

    // The gradients of a group's queries in dq, side by side, and of the key head that they share: float32 numbers, `to_step`
    // apart. `k_across` are the keys as units of neighbouring rows, as far apart as the queries'; some beyond
    // a row's end are read.
    void backward(const Queries& h, const Small* k, const Small* v, const Unit* k_across, int64_t across_step, int group,
                  float* dq, float* dk, float* dv, int64_t to_step, float* scratch) const {
        Unit *k_turned = reinterpret_cast<Unit*>(scratch), *v_turned = k_turned + E * C;
        float *dk_turned = scratch + 2 * E * C, *dv_turned = dk_turned + E * C;
        Unit *p = reinterpret_cast<Unit*>(dv_turned + E * C), *ds = p + QUERIES * C;
        Small* ds_rows = reinterpret_cast<Small*>(ds + QUERIES * C);
        float *sums = reinterpret_cast<float*>(p) + 3 * QUERIES * C, *deltas = sums + group * int64_t(T) * wide();
        int64_t room = int64_t(T) * wide(), places = whole(T, C);
        for (int g = 0; g < group; g++)
            find_deltas(h.out + g * E, h.grad + g * E, h.out_step, k_turned, v_turned, deltas + g * places);
        for (int k0 = 0; k0 < T; k0 += C) {
            int count = std::min(C, T - k0);
            turned_units(units(k + k0 * k_step), k_step / PER, count, E / PER, k_turned);
            turned_units(units(v + k0 * v_step), v_step / PER, count, E / PER, v_turned);
            for (int g = 0; g < group; g++)
                for (int i0 = k0; i0 < T; i0 += QUERIES) {
                    int rows = std::min(QUERIES, T - i0), pairs = int(units_of(rows));
                    const Unit *q = units(h.q + i0 * q_step + g * h.apart), *grad = units(h.grad + i0 * h.out_step + g * E);
                    Block block{q, grad, h.out_step / PER, k_turned, v_turned, h.lse + g * T + i0, deltas + g * places + i0,
                                i0 - k0, p, ds, ds_rows};
                    i0 - k0 < C - 1 ? differ<true>(block, rows) : differ<false>(block, rows);
                    bool begun = g || i0 > k0;
                    add_up(h.grad_across + units_of(i0) * h.grad_row + g * E, h.grad_row, p, pairs, dv_turned, begun);
                    add_up(h.q_across + units_of(i0) * across_step + g * E, across_step, ds, pairs, dk_turned, begun);
                    float* here = sums + g * room + int64_t(i0) * wide();
                    Result<Number> to{here, wide()};
                    if (k0) to.base = here, to.base_row = wide();
                    product<Number>(reinterpret_cast<const Unit*>(ds_rows), C / PER, 1, rows,
                                    k_across + units_of(k0) * across_step, int(units_of(count)), wide(), to, across_step);
                }
            for (int i = 0; i < E * C; i += W) store(dk_turned + i, load(dk_turned + i) * natural);
            turned_back(dk_turned, count, E, dk + k0 * to_step, to_step);
            turned_back(dv_turned, count, E, dv + k0 * to_step, to_step);
        }
        for (int g = 0; g < group; g++)
            for (int t = 0; t < T; t++) {
                const float* from = sums + g * room + int64_t(t) * wide();
                float* to = dq + t * to_step + g * E;
                int e = 0;
                for (; e + 4 <= E; e += 4)
                    *reinterpret_cast<loose_four*>(to + e) = *reinterpret_cast<const loose_four*>(from + e) * natural;
                for (; e < E; e++) to[e] = from[e] * natural;
            }
    }

    // delta[t] = sum_e out[t][e] grad[t][e]
    void find_deltas(const Small* out, const Small* grad, int64_t out_step, Unit* a, Unit* b, float* delta) const {
        for (int t = 0; t < T; t += C) {
            int count = std::min(C, T - t);
            turned_units(units(out + t * out_step), out_step / PER, count, E / PER, a);
            turned_units(units(grad + t * out_step), out_step / PER, count, E / PER, b);
            for (int n = 0; n < C; n += W) {
                vec sum{};
                for (int e = 0; e < E / PER; e++)
                    sum = Number::dot(sum, load(reinterpret_cast<float*>(a) + e * C + n),
                                      load(reinterpret_cast<float*>(b) + e * C + n));
                store(delta + t + n, sum);
            }
        }
    }

    // out[e][c] (+)= sum_r rows[r][e] x[r][c] over rows of units
    void add_up(const Unit* rows, int64_t row, const Unit* x, int count, float* out, bool begun) const {
        Result<Number> to{out, C};
        if (begun) to.base = out, to.base_row = C;
        product<Number>(rows, 1, row, E, x, count, C, to);
    }

    // Queries and gradients of what they gave, by keys and values in columns -> weights and the gradients of scores, as units
    // of neighbouring queries; the latter as rows too. `first` is the last key of the block that the first query sees.
    struct Block {
        const Unit *q, *grad;
        int64_t grad_step;
        const Unit *k_turned, *v_turned;
        const float *lse, *delta;
        int first;
        Unit *p, *ds;
        Small* ds_rows;
    };

    template <bool MASKED>
    void differ(const Block& b, int rows) const {
        constexpr int R = REGISTERS == 32 ? 4 : 2;
        int r = 0;
        for (; r + R <= rows; r += R) differ_rows<MASKED, R>(b, r);
        for (; r + PER <= rows; r += PER) differ_rows<MASKED, PER>(b, r);
        if (r < rows) differ_rows<MASKED, 1>(b, r);
    }

    // Scores never leave the registers.
    template <bool MASKED, int R>
    inline void differ_rows(const Block& b, int r) const {
        vec score[R][2] = {}, along[R][2] = {};
        const Unit *q = b.q + r * (q_step / PER), *grad = b.grad + r * b.grad_step;
        const float *k = reinterpret_cast<const float*>(b.k_turned), *v = reinterpret_cast<const float*>(b.v_turned);
        for (int e = 0; e < E / PER; e++, k += C, v += C) {
            const vec key[2] = {load(k), load(k + W)}, value[2] = {load(v), load(v + W)};
#pragma GCC unroll 4
            for (int i = 0; i < R; i++)
#pragma GCC unroll 2
                for (int n = 0; n < 2; n++) {
                    score[i][n] = Number::add(score[i][n], q[i * (q_step / PER) + e], key[n]);
                    along[i][n] = Number::add(along[i][n], grad[i * b.grad_step + e], value[n]);
                }
        }
#pragma GCC unroll 2
        for (int n = 0; n < 2; n++) {
            vec lane = lanes() + float(n * W);
#pragma GCC unroll 4
            for (int i = 0; i < R; i += PER) {
                vec weight[2] = {}, change[2] = {};
                for (int j = 0; j < PER && i + j < R; j++) {
                    int row = r + i + j;
                    weight[j] = Number::power(score[i + j][n] * scale - b.lse[row]);
                    if constexpr (MASKED) weight[j] = lane > float(b.first + row) ? vec{} : weight[j];
                    change[j] = weight[j] * (along[i + j][n] - b.delta[row]);
                    Number::narrow(b.ds_rows + row * C + n * W, change[j]);
                }
                int64_t at = (r + i) / PER * C + n * W;
                store(reinterpret_cast<float*>(b.p) + at, Number::pair(weight[0], weight[1]));
                store(reinterpret_cast<float*>(b.ds) + at, Number::pair(change[0], change[1]));
            }
        }
    }
};

}  // namespace
