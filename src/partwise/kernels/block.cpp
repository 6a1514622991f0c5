// Pre-norm blocks of a decoder, one behind the other, forward and backward: norm, projections, rotary positions, causal
// attention, perceptron and both residual sums, for some rows of the batch at a time, so that what lies between them stays in
// the cache. A thread takes the same rows through all blocks, and never waits for another on the way.
//
// Shapes: L blocks, B rows of T places, D width, H query heads and K key heads of width E, Q = (H + 2 K) E, A = H E, F units,
// U = F, or 2 F where gated (first the gates, then what they let through).
//     mid = x + out attention(turn(qkv norm(x)))    y = mid + down act(up norm(mid))
// D, A, F and Q are multiples of 16, E is even. What threads give to a weight's gradient is added in their order: equal numbers
// for equal numbers of threads.

#include "heads.h"
#include "norms.h"
#include "perceptron.h"
#include "step.h"

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

// Keys and values of all places so far, (B, K, limit, E) each of every block; null where nothing is remembered.
struct Remembered {
    float *const *keys, *const *values;
    int64_t limit;
};

constexpr int FEWEST = 96, FEWEST_WIDE = 512;  // rows that a thread takes at a time, at least, if it has as many

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
    Hidden<Number> hidden;
    Unit *qkv, *out, *up, *down;  // the weights in panels

    Block(const Sizes& s, const Weights& w, char* memory, Unit* packed)
        : s(s), w(w), kept(s, memory), D(int(s.D)), Q(s.Q()), A(s.A()), F(int(s.F)), U(s.U()), rows(D > 256 ? 96 : 64),
          norms{{D, bool(s.centred), float(s.eps_1), w.norm_1, w.norm_1_bias},
                {D, bool(s.centred), float(s.eps_2), w.norm_2, w.norm_2_bias}},
          heads{int(s.T), int(s.E), Q, Q, Q, float(s.scale)}, hidden(F, bool(s.gated), int(s.act)) {
        qkv = packed, out = qkv + int64_t(Q) * D / PER, up = out + int64_t(A) * D / PER, down = up + int64_t(U) * D / PER;
    }

    static int64_t packed(const Sizes& s) { return (s.D * (s.Q() + s.A() + s.U() + s.F)) / PER; }

    const Unit* units(const Small* x) const { return reinterpret_cast<const Unit*>(x); }

    void pack(Packing<Number>& packing) const {
        packing.add(w.qkv, qkv, Q, D);
        packing.add(w.out, out, D, A);
        packing.add(w.up, up, U, D);
        packing.add(w.down, down, D, F);
    }

    // Rows of the batch that are taken at a time.
    int64_t chunk() const { return std::max<int64_t>(1, (D > 256 ? FEWEST_WIDE : FEWEST) / s.T); }

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

    // The key and the value of each head, of a row's queries, keys and values, to where they stay.
    template <class From>
    void remember(const From* row, int64_t b, int64_t place, float* keys, float* values, int64_t limit) const {
        const From *key = row + s.H * s.E, *value = key + s.K * s.E;
        for (int64_t g = 0; g < s.K; g++, key += s.E, value += s.E) {
            int64_t at = ((b * s.K + g) * limit + place) * s.E;
            for (int64_t e = 0; e < s.E; e++) keys[at + e] = wide(key[e]), values[at + e] = wide(value[e]);
        }
    }
    static float wide(float x) { return x; }
    static float wide(uint16_t x) { return Half::wide(x); }

    // ---------------------------------------------------------------------------------------------------- forward

    int64_t forward_room() const {
        return int64_t(rows) * (D + std::max(Q, U) + F) + s.T * s.K * s.E + 2 * W + heads.forward_room();
    }

    void forward(const float* x, float* y, float* keys, float* values, int64_t limit, int64_t b0, int64_t b1,
                 float* scratch) const {
        Small* normed = reinterpret_cast<Small*>(scratch);
        float *wide = scratch + int64_t(rows) * D, *hidden_room = wide + int64_t(rows) * std::max(Q, U);
        Unit* values_across = reinterpret_cast<Unit*>(hidden_room + int64_t(rows) * F);
        float* attention = reinterpret_cast<float*>(values_across) + whole(s.T * s.K * s.E, W) + W;
        Small* active = reinterpret_cast<Small*>(hidden_room);
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
        for (int64_t m = from; keys && m < to; m++) remember(kept.qkv + m * Q, m / T, m % T, keys, values, limit);
        for (int64_t b = b0; b < b1; b++) {
            const Small* q = kept.qkv + b * T * Q;
            int width = int(s.K * s.E);
            across_rows<Number>(q + (s.H + s.K) * s.E, Q, int(T), width, values_across, width);
            for (int64_t h = 0; h < s.H; h++) {
                int64_t g = h / (s.H / s.K);
                Small* attended = kept.attended + b * T * A + h * s.E;
                heads.forward(q + h * s.E, q + (s.H + g) * s.E, values_across + g * s.E, width, attended, A,
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
            hidden.forward(wide, count, kept.pre + m * U, active);
            product<Number>(units(active), F / PER, 1, count, down, F / PER, D, {y + m * D, D, w.down_bias, mid, D});
        }
    }

    // ----------------------------------------------------------------------------------------------- few tokens more

    int64_t following_room(int64_t limit) const {
        return int64_t(rows) * (2 * D + std::max(Q, U) + A + U + F) + whole(limit, W);
    }

    // T tokens a row behind `past` others, whose keys and values, (B, K, limit, E) each, theirs join. x may be y.
    void following(const float* x, float* y, float* keys, float* values, int64_t limit, int64_t past, int64_t b0, int64_t b1,
                   float* scratch) const {
        float *mid = scratch, *wide = mid + int64_t(rows) * D, *p = wide + int64_t(rows) * std::max(Q, U);
        Small *normed = reinterpret_cast<Small*>(p + whole(limit, W)), *attended = normed + int64_t(rows) * D;
        Small *pre = attended + int64_t(rows) * A, *active = pre + int64_t(rows) * U;
        float statistics[2];
        auto norm = [&](int which, const float* from, int count) {
            for (int r = 0; r < count; r++)
                norms[which].forward(from + int64_t(r) * D, statistics,
                                     [&](int c, vec z) { Number::narrow(normed + r * D + c, z); });
        };
        for (int64_t m = b0 * s.T; m < b1 * s.T; m += rows) {
            int count = int(std::min<int64_t>(rows, b1 * s.T - m));
            norm(0, x + m * D, count);
            product<Number>(units(normed), D / PER, 1, count, qkv, D / PER, Q, {wide, Q, w.qkv_bias});
            for (int r = 0; r < count; r++) {
                int64_t b = (m + r) / s.T, place = past + (m + r) % s.T, of_group = limit * s.E;
                float* row = wide + int64_t(r) * Q;
                const float *key = keys + b * s.K * of_group, *value = values + b * s.K * of_group;
                if (s.pairs) turn_heads(row, place, 1.0f);
                remember(row, b, place, keys, values, limit);
                for (int64_t h = 0; h < s.H; h++) {
                    int64_t group = h / (s.H / s.K) * of_group;
                    if (h % (s.H / s.K) == 0)  // those of the next but one: too short for the processor to foresee
                        for (int64_t i = group + 2 * of_group, end = i + (place + 1) * s.E; i < end; i += 16)
                            __builtin_prefetch(key + i), __builtin_prefetch(value + i);
                    attend(row + h * s.E, key + group, s.E, value + group, s.E, int(place) + 1, int(s.E), int(s.E),
                           heads.scale, p, row + h * s.E);
                }
                narrow_rows<Number>(row, 1, A, attended + int64_t(r) * A);
            }
            product<Number>(units(attended), A / PER, 1, count, out, A / PER, D, {mid, D, w.out_bias, x + m * D, D});
            norm(1, mid, count);
            product<Number>(units(normed), D / PER, 1, count, up, D / PER, U, {wide, U, w.up_bias});
            hidden.forward(wide, count, pre, active);
            product<Number>(units(active), F / PER, 1, count, down, F / PER, D, {y + m * D, D, w.down_bias, mid, D});
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

    void backward(const float* x, const float* grad, float* dx, int64_t b0, int64_t b1, const Gradients& to,
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
            narrow_rows<Number>(g, count, D, small);
            product<Number>(units(small), D / PER, 1, count, down, D / PER, F, {wide, F});
            hidden.backward(wide, kept.pre + (from + m) * U, int(m), count, count_of, hidden_across, change_across, small,
                            to.up_bias);
            product<Number>(units(small), U / PER, 1, count, up, U / PER, D, {narrow, D});
            back_through_norm(1, mid, from + m, int(m), count, count_of, narrow, g, dx + (from + m) * D, normed_across,
                              to.norm_2, to.norm_2_bias);
        }
        add_product<Number>(grad_across, D, hidden_across, F, count_of, to.down);
        add_product<Number>(change_across, U, normed_across, D, count_of, to.up);

        // what attention gave, and attention
        across<Number>(dx + from * D, D, int(n), D, count_of, grad_across);
        add_columns(dx + from * D, int(n), D, to.out_bias);
        for (int64_t m = 0; m < n; m += rows) {
            int count = int(std::min<int64_t>(rows, n - m));
            narrow_rows<Number>(dx + (from + m) * D, count, D, small);
            product<Number>(units(small), D / PER, 1, count, out, D / PER, A,
                            {nullptr, 0, nullptr, nullptr, 0, dattended + m * A, A});
        }
        small_across<Number>(kept.attended + from * A, int(n), A, count_of, hidden_across);
        add_product<Number>(grad_across, D, hidden_across, A, count_of, to.out);
        for (int64_t b = b0; b < b1; b++) {
            int64_t group = s.H / s.K, place = (b - b0) * T, width = (s.H + s.K) * s.E;
            const Small *q = kept.qkv + b * T * Q, *k = q + s.H * s.E, *v = k + s.K * s.E;
            float *dq = dqkv + place * Q, *dk = dq + s.H * s.E, *dv = dk + s.K * s.E;
            across_rows<Number>(q, Q, int(T), int(width), qk_across, width);
            across_rows<Number>(dattended + place * A, A, int(T), A, dattended_across, A);
            for (int64_t g = 0; g < s.K; g++) {
                int64_t first = g * group * s.E, key = g * s.E;
                const Small* attended = kept.attended + b * T * A + first;
                typename Heads<Number>::Queries queries{q + first, s.E, attended, dattended + place * A + first,
                                                        A, A, qk_across + first, dattended_across + first,
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
            narrow_rows<Number>(dqkv + m * Q, count, Q, small);
            product<Number>(units(small), Q / PER, 1, count, qkv, Q / PER, D, {narrow, D});
            back_through_norm(0, x + (from + m) * D, from + m, int(m), count, count_of, narrow, dx + (from + m) * D,
                              dx + (from + m) * D, normed_across, to.norm_1, to.norm_1_bias);
        }
        add_product<Number>(change_across, Q, normed_across, D, count_of, to.qkv);
    }

    // to = base + the gradient of a norm's input, from that of its output; and that output again, as units of rows.
    void back_through_norm(int which, const float* x, int64_t m, int first, int count, int units_of, const float* grad,
                           const float* base, float* to, Unit* normed_across, float* dweight, float* dbias) const {
        const Norm& norm = norms[which];
        float again[2][D_MOST];
        auto put = [&](int i, int c, vec z) { store(again[i] + c, z); };
        for (int r = 0; r < count; r += PER) {
            int64_t row = int64_t(r) * D;
            const float* statistics = kept.statistics + 4 * (m + r) + 2 * which;
            if (r + PER <= count) {
                norm.template backward<PER>(x + row, statistics, 4, grad + row, base + row, to + row, dweight, dbias, put);
            } else {
                norm.template backward<1>(x + row, statistics, 4, grad + row, base + row, to + row, dweight, dbias, put);
                std::fill(again[1], again[1] + D, 0.0f);
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

// All blocks, their weights in panels: forward in panels of their rows, backward of their columns.
template <class Number>
std::vector<Block<Number>> packed_blocks(const Sizes& s, const Weights* w, int64_t L, bool forward, char* memory,
                                         int64_t memory_apart, void* room, int threads, Parallel parallel) {
    std::vector<Block<Number>> blocks;
    blocks.reserve(L);
    Packing<Number> packing{forward};
    auto* panels = static_cast<typename Number::Unit*>(room);
    for (int64_t l = 0; l < L; l++) {
        blocks.emplace_back(s, w[l], memory + l * memory_apart, panels + l * Block<Number>::packed(s));
        blocks.back().pack(packing);
    }
    packing.run(threads, parallel);
    return blocks;
}

// `task(from, to)` for the rows of the batch that are a thread's, some at a time.
template <class Task>
void in_chunks(const Sizes& s, int64_t thread, int64_t threads, int64_t at_once, const Task& task) {
    int64_t end = s.B * (thread + 1) / threads;
    for (int64_t b = s.B * thread / threads; b < end; b += at_once) task(b, std::min(end, b + at_once));
}

template <class Number>
void run_forward(const Sizes& s, const Weights* w, int64_t L, bool keep, const float* x, float* y, float* between,
                 char* memory, const Remembered& r, void* room, int threads, Parallel parallel) {
    auto blocks = packed_blocks<Number>(s, w, L, true, memory, keep ? Kept<Number>::bytes(s) : 0, room, threads, parallel);
    int64_t size = s.M() * s.D;
    share(threads, blocks[0].forward_room(), threads, parallel, [&](int64_t i, float* scratch) {
        const float* from = x;
        for (int64_t l = 0; l < L; l++) {
            float* to = keep && l + 1 < L ? between + l * size : y;
            float *keys = r.keys ? r.keys[l] : nullptr, *values = r.keys ? r.values[l] : nullptr;
            in_chunks(s, i, threads, blocks[l].chunk(), [&](int64_t b0, int64_t b1) {
                blocks[l].forward(from, to, keys, values, r.limit, b0, b1, scratch);
            });
            from = to;
        }
    });
}

template <class Number>
void run_following(const Sizes& s, const Weights* w, int64_t L, const float* x, float* y, const Remembered& r, int64_t past,
                   void* room, int threads, Parallel parallel) {
    auto blocks = packed_blocks<Number>(s, w, L, true, static_cast<char*>(room), 0, room, threads, parallel);  // keeps nothing
    share(threads, blocks[0].following_room(r.limit), threads, parallel, [&](int64_t i, float* scratch) {
        for (int64_t l = 0; l < L; l++)
            blocks[l].following(l ? y : x, y, r.keys[l], r.values[l], r.limit, past, s.B * i / threads, s.B * (i + 1) / threads,
                                scratch);
    });
}

template <class Number>
void run_backward(const Sizes& s, const Weights* w, int64_t L, const float* x, const float* between, const float* grad,
                  char* memory, void* room, float* dx, float* const* sums, float* others, int threads, Parallel parallel) {
    typedef typename Block<Number>::Gradients Gradients;
    auto blocks = packed_blocks<Number>(s, w, L, false, memory, Kept<Number>::bytes(s), room, threads, parallel);
    int64_t size = Gradients::size(s);
    share(threads, blocks[0].backward_room(), threads, parallel, [&](int64_t i, float* scratch) {
        for (int64_t l = L - 1; l >= 0; l--) {
            Gradients to;
            if (i)
                to = Gradients::in(s, others + ((i - 1) * L + l) * size);
            else
                std::copy(sums + l * Gradients::COUNT, sums + (l + 1) * Gradients::COUNT, &to.norm_1);
            for (int k = 0; k < Gradients::COUNT; k++) {
                float* numbers = (&to.norm_1)[k];
                std::fill(numbers, numbers + Gradients::numbers(s, k), 0.0f);
            }
            const float *given = l ? between + (l - 1) * s.M() * s.D : x, *above = l + 1 < L ? dx : grad;
            in_chunks(s, i, threads, blocks[l].chunk(),
                      [&](int64_t b0, int64_t b1) { blocks[l].backward(given, above, dx, b0, b1, to, scratch); });
        }
    });
    if (threads < 2) return;
    share(L * Gradients::COUNT, 0, threads, parallel, [&](int64_t i, float*) {
        int64_t l = i / Gradients::COUNT;
        int k = int(i % Gradients::COUNT);
        if (!(&w[l].norm_1)[k]) return;  // what is not there has a gradient that nobody reads
        const float* from = others + l * size;
        for (int j = 0; j < k; j++) from += Gradients::numbers(s, j);
        for (int64_t part = 1; part < threads; part++, from += L * size)
            for (int64_t n = 0; n < Gradients::numbers(s, k); n++) sums[i][n] += from[n];
    });
}

}  // namespace

extern "C" {

// Of one block: bytes of what the forward pass keeps, numbers of all gradients, bytes of the packed weights.
void block_room(const Sizes* s, int half, int64_t* room) {
    room[0] = half ? Kept<Half>::bytes(*s) : Kept<Single>::bytes(*s);
    room[1] = Block<Single>::Gradients::size(*s);
    room[2] = Block<Single>::packed(*s) * (half ? 2 : 4);
}

int block_widest() { return Block<Single>::D_MOST; }

// x (M, D) -> y (M, D). With `keep`, `between` (L - 1, M, D) and `memory`, of every block, hold what the backward pass wants;
// without, memory is that of one block and of no use afterwards. Where keys are given, they and values are filled from place 0.
void blocks_forward(const Sizes* s, const Weights* w, int64_t L, int half, int keep, const float* x, float* y, float* between,
                    char* memory, float* const* keys, float* const* values, int64_t limit, void* packed, int threads,
                    Parallel parallel) {
    Remembered r{keys, values, limit};
    if (half)
        run_forward<Half>(*s, w, L, keep, x, y, between, memory, r, packed, threads, parallel);
    else
        run_forward<Single>(*s, w, L, keep, x, y, between, memory, r, packed, threads, parallel);
}

// T tokens a row, x (M, D) -> y (M, D), behind `past` others; of every block keys and values, which grow by T.
void blocks_following(const Sizes* s, const Weights* w, int64_t L, int half, const float* x, float* y, float* const* keys,
                      float* const* values, int64_t limit, int64_t past, void* packed, int threads, Parallel parallel) {
    Remembered r{keys, values, limit};
    if (half)
        run_following<Half>(*s, w, L, x, y, r, past, packed, threads, parallel);
    else
        run_following<Single>(*s, w, L, x, y, r, past, packed, threads, parallel);
}

// The gradient of x in dx, and those of the weights, norms and biases being there always, where `sums` says; `others` has
// room for as many numbers again for every thread but the first.
void blocks_backward(const Sizes* s, const Weights* w, int64_t L, int half, const float* x, const float* between,
                     const float* grad, char* memory, void* packed, float* dx, float* const* sums, float* others, int threads,
                     Parallel parallel) {
    if (half)
        run_backward<Half>(*s, w, L, x, between, grad, memory, packed, dx, sums, others, threads, parallel);
    else
        run_backward<Single>(*s, w, L, x, between, grad, memory, packed, dx, sums, others, threads, parallel);
}
}
