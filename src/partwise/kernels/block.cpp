// A whole pre-norm block of a decoder, forward and backward: norm, projections, rotary positions, causal attention, perceptron
// and both residual sums, for some rows of the batch at a time, so that what lies between them stays in the cache.
//
// Shapes: B rows of T places, D width, H query heads and K key heads of width E, Q = (H + 2 K) E, A = H E, F hidden units,
// U = F, or 2 F where gated (first the gates, then what they let through).
//     mid = x + out attention(turn(qkv norm(x)))    y = mid + down act(up norm(mid))
// D, A, F and Q are multiples of 16, E is even. Backward a thread takes the same rows of the batch on every call, and what
// threads give to a weight's gradient is added in their order: equal numbers for equal numbers of threads.

#include <vector>

#include "activations.h"
#include "heads.h"

namespace {

// As the caller lays them out; a pointer to what is not there is null.
struct Sizes {
    int64_t B, T, D, H, K, E, F, gated, act, centred, pairs, interleaved;  // centred: LayerNorm; pairs: rotary ones
    double eps_1, eps_2, scale;

    int64_t M() const { return B * T; }
    int Q() const { return int((H + 2 * K) * E); }
    int A() const { return int(H * E); }
    int U() const { return int(gated ? 2 * F : F); }
};

struct Weights {
    const float *norm_1, *norm_1_bias, *qkv, *qkv_bias, *out, *out_bias, *norm_2, *norm_2_bias, *up, *up_bias, *down,
        *down_bias, *cosines, *sines;  // the last two (places, pairs)
};

constexpr int SMALLEST = 96;  // rows that a thread takes at a time, at least, if it has as many

inline float sum_of(vec x) {
    float sum = 0;
    for (int i = 0; i < W; i++) sum += x[i];
    return sum;
}

// What the backward pass wants of the forward one, in one piece of memory.
template <class Number>
struct Kept {
    typedef typename Number::Small Small;
    float *mid, *lse, *statistics;  // (M, D), (B, H, T), (M, 4): mean and factor of both norms
    Small *qkv, *attended, *pre;    // (M, Q), (M, A), (M, U)

    Kept(const Sizes& s, char* memory) {
        mid = reinterpret_cast<float*>(memory);
        qkv = reinterpret_cast<Small*>(mid + s.M() * s.D);
        attended = qkv + s.M() * s.Q(), pre = attended + s.M() * s.A();
        statistics = reinterpret_cast<float*>(pre + s.M() * s.U()), lse = statistics + 4 * s.M();
    }
    static int64_t bytes(const Sizes& s) {
        return s.M() * (4 * (s.D + s.H + 4) + int64_t(sizeof(Small)) * (s.Q() + s.A() + s.U()));
    }
};

struct Norm {
    int D;
    bool centred;
    float eps;
    const float *weight, *bias;

    // out = (x - mean) factor weight + bias, as `put(column, numbers)` takes it
    template <class Put>
    [[gnu::noinline]] void forward(const float* x, float* statistics, const Put& put) const {
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
        again(x, statistics, put);
    }

    template <class Put>
    void again(const float* x, const float* statistics, const Put& put) const {
        float mean = statistics[0], factor = statistics[1];
        for (int c = 0; c < D; c += W) {
            vec y = (load(x + c) - mean) * factor;
            if (weight) y *= load(weight + c);
            if (bias) y += load(bias + c);
            put(c, y);
        }
    }

    // to += the gradient of x, from that of the output; and to those of weight and bias.
    [[gnu::noinline]] void backward(const float* x, const float* statistics, const float* grad, float* to, float* dweight,
                  float* dbias) const {
        float mean = statistics[0], factor = statistics[1];
        vec plain[2] = {}, along[2] = {};
        for (int c = 0, n = 0; c < D; c += W, n ^= 1) {
            vec g = load(grad + c), y = (load(x + c) - mean) * factor;
            store(dweight + c, load(dweight + c) + g * y);
            store(dbias + c, load(dbias + c) + g);
            if (weight) g *= load(weight + c);
            plain[n] += g, along[n] += g * y;
        }
        float shift = centred ? sum_of(plain[0] + plain[1]) / D : 0, turn = sum_of(along[0] + along[1]) / D;
        for (int c = 0; c < D; c += W) {
            vec g = load(grad + c), y = (load(x + c) - mean) * factor;
            if (weight) g *= load(weight + c);
            store(to + c, load(to + c) + (g - shift - y * turn) * factor);
        }
    }
};

// All of a block but its memory.
template <class Number>
struct Block {
    typedef typename Number::Small Small;
    typedef typename Number::Unit Unit;
    static constexpr int PER = Number::PER;

    const Sizes& s;
    const Weights& w;
    Kept<Number> kept;
    int D, Q, A, F, U, rows;  // rows that pass through the products at a time
    Norm norms[2];
    Heads<Number> heads;
    Unit *qkv, *out, *up, *down;  // the weights in panels
    std::vector<std::pair<int, int>> panels;  // start and width of the panel of each W columns of U

    Block(const Sizes& s, const Weights& w, char* memory, Unit* packed)
        : s(s), w(w), kept(s, memory), D(int(s.D)), Q(s.Q()), A(s.A()), F(int(s.F)), U(s.U()), rows(D > 256 ? 96 : 48),
          norms{{D, bool(s.centred), float(s.eps_1), w.norm_1, w.norm_1_bias},
                {D, bool(s.centred), float(s.eps_2), w.norm_2, w.norm_2_bias}},
          heads{int(s.T), int(s.E), Q, float(s.scale)} {
        qkv = packed, out = qkv + int64_t(Q) * D / PER, up = out + int64_t(A) * D / PER, down = up + int64_t(U) * D / PER;
        for (int c = 0, width; c < U; c += width) {
            width = panel_width(U - c);
            panels.insert(panels.end(), width / W, std::pair(c, width));
        }
    }

    static int64_t packed(const Sizes& s) { return (s.D * (s.Q() + s.A() + s.U() + s.F)) / PER; }

    const Unit* units(const Small* x) const { return reinterpret_cast<const Unit*>(x); }

    struct Task {  // one panel of a weight (rows, columns), from row or column c on
        const float* from;
        Unit* to;
        int rows, columns, c, width;
    };

    // Weights into panels, forward in panels of their rows, backward of their columns.
    [[gnu::noinline]] void pack(bool forward, int threads, Parallel parallel) const {
        std::vector<Task> tasks;
        const float* weights[] = {w.qkv, w.out, w.up, w.down};
        Unit* places[] = {qkv, out, up, down};
        int heights[] = {Q, D, U, D}, widths[] = {D, A, D, F};
        for (int i = 0; i < 4; i++) {
            int columns = forward ? heights[i] : widths[i];
            for (int c = 0, width; c < columns; c += width) {
                width = panel_width(columns - c);
                tasks.push_back({weights[i], places[i], heights[i], widths[i], c, width});
            }
        }
        share(int64_t(tasks.size()), 0, threads, parallel, [&](int64_t i, float*) {
            Task task = tasks[i];
            int count = (forward ? task.columns : task.rows) / PER;
            Unit* panel = task.to + int64_t(task.c) * count;
            if (forward)
                turned_panel<Number>(task.from + int64_t(task.c) * task.columns, task.columns, task.width, task.columns, panel);
            else
                across<Number>(task.from + task.c, task.columns, task.rows, task.width, count, panel);
        });
    }

    // Rows of the batch that are taken at a time.
    int64_t chunk() const { return std::max<int64_t>(1, SMALLEST / s.T); }

    // Queries and keys turned by their positions, in place; backward by the opposite angles.
    void turn_heads(float* row, int64_t place, float direction) const {
        const float *cosine = w.cosines + place * s.pairs, *sine = w.sines + place * s.pairs;
        int pairs = int(s.pairs), apart = s.interleaved ? 1 : pairs, step = s.interleaved ? 2 : 1;
        for (int64_t h = 0; h < s.H + s.K; h++, row += s.E)
            for (int i = 0; i < pairs; i++) {
                float &a = row[i * step], &b = row[i * step + apart], x = a, y = b, turn = direction * sine[i];
                a = x * cosine[i] - y * turn;
                b = y * cosine[i] + x * turn;
            }
    }

    // ---------------------------------------------------------------------------------------------------- forward

    int64_t forward_room() const {
        return int64_t(rows) * (D + std::max(Q, U) + F) + s.T * s.K * s.E + 2 * W + heads.forward_room();
    }

    [[gnu::noinline]] void forward(const float* x, float* y, int64_t b0, int64_t b1, float* scratch) const {
        Small* normed = reinterpret_cast<Small*>(scratch);
        float *wide = scratch + int64_t(rows) * D, *hidden_room = wide + int64_t(rows) * std::max(Q, U);
        Unit* values = reinterpret_cast<Unit*>(hidden_room + int64_t(rows) * F);
        float* attention = reinterpret_cast<float*>(values) + whole(s.T * s.K * s.E, W) + W;
        Small* hidden = reinterpret_cast<Small*>(hidden_room);
        int64_t T = s.T, from = b0 * T, to = b1 * T;
        for (int64_t m = from; m < to; m += rows) {
            int count = int(std::min<int64_t>(rows, to - m));
            for (int r = 0; r < count; r++)
                norms[0].forward(x + (m + r) * D, kept.statistics + 4 * (m + r),
                                 [&](int c, vec z) { Number::narrow(normed + r * D + c, z); });
            if (!s.pairs) {
                product<Number>(units(normed), D / PER, 1, count, qkv, D / PER, Q,
                                {nullptr, 0, w.qkv_bias, nullptr, 0, kept.qkv + m * Q, Q});
                continue;
            }
            product<Number>(units(normed), D / PER, 1, count, qkv, D / PER, Q, {wide, Q, w.qkv_bias});
            for (int r = 0; r < count; r++) {
                turn_heads(wide + int64_t(r) * Q, (m + r) % T, 1.0f);
                for (int c = 0; c < Q; c += W) Number::narrow(kept.qkv + (m + r) * Q + c, load(wide + int64_t(r) * Q + c));
            }
        }
        for (int64_t b = b0; b < b1; b++) {
            const Small* q = kept.qkv + b * T * Q;
            int width = int(s.K * s.E);
            across_rows<Number>(q + (s.H + s.K) * s.E, Q, int(T), width, values);
            for (int64_t h = 0; h < s.H; h++) {
                int64_t g = h / (s.H / s.K);
                heads.forward(q + h * s.E, q + (s.H + g) * s.E, values + g * s.E, width, kept.attended + b * T * A + h * s.E, A,
                              kept.lse + (b * s.H + h) * T, attention);
            }
        }
        for (int64_t m = from; m < to; m += rows) {
            int count = int(std::min<int64_t>(rows, to - m));
            float* mid = kept.mid + m * D;
            product<Number>(units(kept.attended + m * A), A / PER, 1, count, out, A / PER, D,
                            {mid, D, w.out_bias, x + m * D, D});
            for (int r = 0; r < count; r++)
                norms[1].forward(mid + r * D, kept.statistics + 4 * (m + r) + 2,
                                 [&](int c, vec z) { Number::narrow(normed + r * D + c, z); });
            product<Number>(units(normed), D / PER, 1, count, up, D / PER, U, {wide, U, w.up_bias});
            choose(int(s.act), [&](auto act) { activate_rows<act.value>(wide, count, kept.pre + m * U, hidden); });
            product<Number>(units(hidden), F / PER, 1, count, down, F / PER, D, {y + m * D, D, w.down_bias, mid, D});
        }
    }

    template <Act ACT>
    [[gnu::noinline]] void activate_rows(const float* from, int count, Small* pre, Small* hidden) const {
        for (int r = 0; r < count; r++, from += U, pre += U, hidden += F)
            for (int f = 0; f < F; f += W) {
                vec z = load(from + f), h, slope;
                activate<ACT>(z, h, slope);
                Number::narrow(pre + f, z);
                if (s.gated) {
                    vec value = load(from + F + f);
                    Number::narrow(pre + F + f, value);
                    h *= value;
                }
                Number::narrow(hidden + f, h);
            }
    }

    // --------------------------------------------------------------------------------------------------- backward

    // The gradients of one thread: those of the weights in the order of `Weights`, norms and biases being there always.
    struct Gradients {
        static constexpr int COUNT = 12;
        float *norm_1, *norm_1_bias, *qkv, *qkv_bias, *out, *out_bias, *norm_2, *norm_2_bias, *up, *up_bias, *down, *down_bias;

        // One behind the other.
        static Gradients in(const Sizes& s, float* memory) {
            Gradients found;
            float** place = &found.norm_1;
            for (int i = 0; i < COUNT; memory += numbers(s, i++)) place[i] = memory;
            return found;
        }
        static int64_t numbers(const Sizes& s, int which) {
            int64_t numbers[] = {s.D, s.D, s.Q() * s.D, s.Q(), s.D * s.A(), s.D, s.D, s.D, s.U() * s.D, s.U(), s.D * s.F, s.D};
            return numbers[which];
        }
        static int64_t size(const Sizes& s) {
            int64_t sum = 0;
            for (int i = 0; i < COUNT; i++) sum += numbers(s, i);
            return sum;
        }
    };

    int64_t places() const { return std::min<int64_t>(s.B, chunk()) * s.T; }  // of a chunk, at most
    int64_t backward_room() const {
        int64_t n = whole(places(), 2), most = std::max({U, Q, D});
        return n * (Q + 2 * D + std::max(F, A) + most + A) + int64_t(rows) * (2 * most + D) + whole(s.T, 2) * (Q + A) + W +
               heads.backward_room(s.H / s.K);
    }

    // Rows of numbers -> the same as rows of small numbers.
    [[gnu::noinline]] void narrow_rows(const float* x, int count, int columns, Small* to) const {
        for (int64_t i = 0; i < int64_t(count) * columns; i += W) Number::narrow(to + i, load(x + i));
    }

    [[gnu::noinline]] static void add_columns(const float* x, int count, int columns, float* sums) {
        for (int c = 0; c < columns; c += W) {
            vec sum = load(sums + c);
            for (int r = 0; r < count; r++) sum += load(x + int64_t(r) * columns + c);
            store(sums + c, sum);
        }
    }

    [[gnu::noinline]] void backward(const float* x, const float* grad, float* dx, int64_t b0, int64_t b1, const Gradients& to,
                  float* scratch) const {
        int64_t T = s.T, from = b0 * T, n = (b1 - b0) * T;
        int count_of = int((n + PER - 1) / PER);  // units along the rows of this chunk
        float* dqkv = scratch;
        float* room = dqkv + n * Q;
        auto take = [&](int64_t numbers) {
            float* here = room;
            room += numbers;
            return here;
        };
        int64_t even = whole(n, 2);
        Unit* grad_across = reinterpret_cast<Unit*>(take(even * D));
        Unit* normed_across = reinterpret_cast<Unit*>(take(even * D));
        Unit* hidden_across = reinterpret_cast<Unit*>(take(even * std::max(F, A)));
        Unit* change_across = reinterpret_cast<Unit*>(take(even * std::max({U, Q, D})));
        Small* dattended = reinterpret_cast<Small*>(take(n * A));
        float* wide = take(int64_t(rows) * std::max({U, Q, D}));
        Small* small = reinterpret_cast<Small*>(take(int64_t(rows) * std::max({U, Q, D})));
        float* narrow = take(int64_t(rows) * D);
        Unit* qk_across = reinterpret_cast<Unit*>(take(whole(T, 2) * Q + W));
        Unit* dattended_across = reinterpret_cast<Unit*>(take(whole(T, 2) * A));
        float* attention = room;

        // the perceptron
        across<Number>(grad + from * D, D, int(n), D, count_of, grad_across);
        add_columns(grad + from * D, int(n), D, to.down_bias);
        for (int64_t m = 0; m < n; m += rows) {
            int count = int(std::min<int64_t>(rows, n - m));
            const float *g = grad + (from + m) * D, *mid = kept.mid + (from + m) * D;
            narrow_rows(g, count, D, small);
            product<Number>(units(small), D / PER, 1, count, down, D / PER, F, {wide, F});
            choose(int(s.act), [&](auto act) {
                change_rows<act.value>(wide, kept.pre + (from + m) * U, int(m), count, count_of, hidden_across, change_across,
                                       small, to.up_bias);
            });
            product<Number>(units(small), U / PER, 1, count, up, U / PER, D, {narrow, D});
            back_through_norm(1, mid, from + m, int(m), count, count_of, narrow, g, dx + (from + m) * D, normed_across,
                              to.norm_2, to.norm_2_bias);
        }
        add_product(grad_across, D, hidden_across, F, count_of, to.down);
        add_product(change_across, U, normed_across, D, count_of, to.up);

        // what attention gave, and attention
        across<Number>(dx + from * D, D, int(n), D, count_of, grad_across);
        add_columns(dx + from * D, int(n), D, to.out_bias);
        for (int64_t m = 0; m < n; m += rows) {
            int count = int(std::min<int64_t>(rows, n - m));
            narrow_rows(dx + (from + m) * D, count, D, small);
            product<Number>(units(small), D / PER, 1, count, out, D / PER, A,
                            {nullptr, 0, nullptr, nullptr, 0, dattended + m * A, A});
        }
        small_across(kept.attended + from * A, int(n), A, count_of, hidden_across);
        add_product(grad_across, D, hidden_across, A, count_of, to.out);
        for (int64_t b = b0; b < b1; b++) {
            int64_t group = s.H / s.K, place = (b - b0) * T, width = (s.H + s.K) * s.E;
            const Small *q = kept.qkv + b * T * Q, *k = q + s.H * s.E, *v = k + s.K * s.E;
            float *dq = dqkv + place * Q, *dk = dq + s.H * s.E, *dv = dk + s.K * s.E;
            across_rows<Number>(q, Q, int(T), int(width), qk_across);
            across_rows<Number>(dattended + place * A, A, int(T), A, dattended_across);
            for (int64_t g = 0; g < s.K; g++) {
                int64_t first = g * group * s.E, key = g * s.E;
                typename Heads<Number>::Queries queries{q + first, kept.attended + b * T * A + first, dattended + place * A + first,
                                                        A, qk_across + first, dattended_across + first,
                                                        kept.lse + (b * s.H + g * group) * T};
                heads.backward(queries, k + key, v + key, qk_across + s.H * s.E + key, width, int(group), dq + first, dk + key,
                               dv + key, Q, attention);
            }
        }

        // the projections
        if (s.pairs)
            for (int64_t m = 0; m < n; m++) turn_heads(dqkv + m * Q, m % T, -1.0f);
        across<Number>(dqkv, Q, int(n), Q, count_of, change_across);
        add_columns(dqkv, int(n), Q, to.qkv_bias);
        for (int64_t m = 0; m < n; m += rows) {
            int count = int(std::min<int64_t>(rows, n - m));
            narrow_rows(dqkv + m * Q, count, Q, small);
            product<Number>(units(small), Q / PER, 1, count, qkv, Q / PER, D, {narrow, D});
            back_through_norm(0, x + (from + m) * D, from + m, int(m), count, count_of, narrow, dx + (from + m) * D,
                              dx + (from + m) * D, normed_across, to.norm_1, to.norm_1_bias);
        }
        add_product(change_across, Q, normed_across, D, count_of, to.qkv);
    }

    // out (rows, columns) += sum over places
    [[gnu::noinline]] void add_product(const Unit* a, int rows, const Unit* b, int columns, int count, float* out) const {
        product_across<Number>(a, rows, b, count, columns, {out, columns, nullptr, out, columns});
    }

    // W units of what the hidden units are made of into their place within panels of `count` rows of units.
    void put_across(Unit* to, int count, int64_t unit, int c, vec units) const {
        auto [start, width] = panels[c / W];
        store(reinterpret_cast<float*>(to) + int64_t(start) * count + unit * width + (c - start), units);
    }

    void small_across(const Small* x, int count, int columns, int units_of, Unit* to) const {
        into_panels<Number>(0, (count + PER - 1) / PER, units_of, columns, to, [&](int r, int c) {
            const Small* row = x + int64_t(r) * PER * columns + c;
            if (PER * r + PER <= count) return Number::pair(row, row + (PER - 1) * columns);
            return Number::pair(Number::widen(row), vec{});
        });
    }

    // From the gradient of the hidden units: they again, and the gradient of what they were made of, both as units of
    // neighbouring rows, the latter as rows too. `first` is the chunk's row from which on.
    template <Act ACT>
    [[gnu::noinline]] void change_rows(const float* from, const Small* pre, int first, int count, int units_of, Unit* hidden_across,
                     Unit* change_across, Small* change, float* bias) const {
        for (int r = 0; r < count; r += PER) {
            int64_t unit = (first + r) / PER;
            for (int start = 0, width; start < F; start += width) {
                width = panel_width(F - start);
                float* hidden_to = reinterpret_cast<float*>(hidden_across) + int64_t(start) * units_of + unit * width;
                for (int c = start; c < start + width; c += W) {
                    vec h[2] = {}, gate[2] = {}, through[2] = {};
                    auto one = [&](int i) __attribute__((always_inline)) {
                        const Small* row = pre + int64_t(r + i) * U;
                        Small* to = change + int64_t(r + i) * U;
                        vec slope, g = load(from + int64_t(r + i) * F + c);
                        activate<ACT>(Number::widen(row + c), h[i], slope);
                        if (s.gated) {
                            vec value = Number::widen(row + F + c);
                            through[i] = g * h[i], gate[i] = g * value * slope, h[i] *= value;
                            Number::narrow(to + F + c, through[i]);
                        } else {
                            gate[i] = g * slope;
                        }
                        Number::narrow(to + c, gate[i]);
                    };
                    one(0);
                    if (PER > 1 && r + 1 < count) one(1);
                    store(hidden_to + (c - start), Number::pair(h[0], h[1]));
                    put_across(change_across, units_of, unit, c, Number::pair(gate[0], gate[1]));
                    store(bias + c, load(bias + c) + (gate[0] + gate[1]));
                    if (!s.gated) continue;
                    put_across(change_across, units_of, unit, F + c, Number::pair(through[0], through[1]));
                    store(bias + F + c, load(bias + F + c) + (through[0] + through[1]));
                }
            }
        }
    }

    // to = base + the gradient of a norm's input, from that of its output; and that output again, as units of rows.
    void back_through_norm(int which, const float* x, int64_t m, int first, int count, int units_of, const float* grad,
                           const float* base, float* to, Unit* normed_across, float* dweight, float* dbias) const {
        const Norm& norm = norms[which];
        float again[2][D_MOST];
        for (int r = 0; r < count; r += PER) {
            for (int i = 0; i < PER; i++) {
                if (r + i >= count) {
                    std::fill(again[i], again[i] + D, 0.0f);
                    continue;
                }
                int64_t row = int64_t(r + i) * D;
                const float* statistics = kept.statistics + 4 * (m + r + i) + 2 * which;
                norm.again(x + row, statistics, [&](int c, vec z) { store(again[i] + c, z); });
                if (to != base) std::copy(base + row, base + row + D, to + row);
                norm.backward(x + row, statistics, grad + row, to + row, dweight, dbias);
            }
            int unit = (first + r) / PER;
            for (int c = 0, width; c < D; c += width) {
                width = panel_width(D - c);
                float* panel = reinterpret_cast<float*>(normed_across) + int64_t(c) * units_of + int64_t(unit) * width;
                for (int k = 0; k < width; k += W)
                    store(panel + k, Number::pair(load(again[0] + c + k), load(again[1] + c + k)));
            }
        }
    }

    static constexpr int D_MOST = 2048;
};

template <class Number>
void run_forward(const Sizes& s, const Weights& w, const float* x, float* y, char* memory, void* packed, int threads,
                 Parallel parallel) {
    Block<Number> block(s, w, memory, static_cast<typename Number::Unit*>(packed));
    block.pack(true, threads, parallel);
    int64_t at_once = block.chunk();
    share((s.B + at_once - 1) / at_once, block.forward_room(), threads, parallel, [&](int64_t i, float* scratch) {
        block.forward(x, y, i * at_once, std::min(s.B, (i + 1) * at_once), scratch);
    });
}

template <class Number>
void run_backward(const Sizes& s, const Weights& w, const float* x, const float* grad, char* memory, void* packed, float* dx,
                  float* const* sums, float* others, int threads, Parallel parallel) {
    typedef typename Block<Number>::Gradients Gradients;
    Block<Number> block(s, w, memory, static_cast<typename Number::Unit*>(packed));
    block.pack(false, threads, parallel);
    int64_t size = Gradients::size(s);
    share(threads, block.backward_room(), threads, parallel, [&](int64_t i, float* scratch) {
        Gradients to;
        if (i)
            to = Gradients::in(s, others + (i - 1) * size);
        else
            std::copy(sums, sums + Gradients::COUNT, &to.norm_1);
        for (int k = 0; k < Gradients::COUNT; k++) {
            float* numbers = (&to.norm_1)[k];
            std::fill(numbers, numbers + Gradients::numbers(s, k), 0.0f);
        }
        int64_t end = s.B * (i + 1) / threads, at_once = block.chunk();
        for (int64_t b = s.B * i / threads; b < end; b += at_once)
            block.backward(x, grad, dx, b, std::min(end, b + at_once), to, scratch);
    });
    if (threads < 2) return;
    int64_t pieces = 4 * threads;
    share(pieces, 0, threads, parallel, [&](int64_t i, float*) {
        const float* from = others;
        for (int k = 0; k < Gradients::COUNT; k++) {
            int64_t numbers = Gradients::numbers(s, k);
            for (int64_t part = 1; part < threads; part++)
                for (int64_t n = numbers * i / pieces; n < numbers * (i + 1) / pieces; n++) sums[k][n] += from[(part - 1) * size + n];
            from += numbers;
        }
    });
}

}  // namespace

extern "C" {

// Bytes of what the forward pass keeps, numbers of all gradients, bytes of the packed weights; largest D.
void block_room(const Sizes* s, int half, int64_t* room) {
    room[0] = half ? Kept<Half>::bytes(*s) : Kept<Single>::bytes(*s);
    room[1] = Block<Single>::Gradients::size(*s);
    room[2] = Block<Single>::packed(*s) * (half ? 2 : 4);
}

int block_widest() { return Block<Single>::D_MOST; }

// x (M, D) -> y (M, D), and in `memory` what the backward pass wants.
void block_forward(const Sizes* s, const Weights* w, int half, const float* x, float* y, char* memory, void* packed,
                   int threads, Parallel parallel) {
    if (half)
        run_forward<Half>(*s, *w, x, y, memory, packed, threads, parallel);
    else
        run_forward<Single>(*s, *w, x, y, memory, packed, threads, parallel);
}

// The gradient of x in dx, and those of the weights, norms and biases being there always, where `sums` says; `others` has
// room for as many numbers again for every thread but the first.
void block_backward(const Sizes* s, const Weights* w, int half, const float* x, const float* grad, char* memory, void* packed,
                    float* dx, float* const* sums, float* others, int threads, Parallel parallel) {
    if (half)
        run_backward<Half>(*s, *w, x, grad, memory, packed, dx, sums, others, threads, parallel);
    else
        run_backward<Single>(*s, *w, x, grad, memory, packed, dx, sums, others, threads, parallel);
}
}
