// Some tokens through all layers of a decoder in one call: from what enters the first block to the logits, with the keys
// and values of earlier tokens kept. Weights are read once for all rows. They are float32 or bfloat16, and what they
// multiply is rounded to the same; sums, and everything between the products, are float32.
//
// Shapes: B rows of T tokens each, M = B T, at places past ... past + T - 1 of their rows; D width, H query heads of width
// E over K heads of keys and values. Every stage is shared out among the threads, which wait for each other behind it.
//
// A matrix (out, in) lies in groups of N W outputs: (out / (N W), in, N, W) in float32, and in bfloat16 with two inputs
// side by side, (out / (N W), in / 2, N, W, 2), so that one vector holds both of them for W outputs. Keys lie in blocks of
// W places, (B, K, places / W, E, W), values one place after another, (B, K, places, E in whole vectors).

#include <thread>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "activations.h"
#include "numbers.h"

namespace {

constexpr int N = 2;                             // vectors of a group of outputs
constexpr int TILE = REGISTERS == 32 ? 12 : 4;   // rows whose sums the registers hold beside a group of weights
constexpr int QUERIES = 4, SPANS = 4;            // of a tile of attention: heads, and vectors of a head

typedef int32_t loose_int __attribute__((vector_size(4 * W), aligned(4), may_alias));

// What a product multiplies: weights, and what a row gives for two inputs.
struct Wide {
    typedef float Weight, Given;
    static constexpr int GIVEN = 2;
    static constexpr bool ROUNDED = false;
};
struct Narrow {
    typedef uint16_t Weight;
#if defined(__AVX512BF16__) && defined(__AVX512BW__)
    typedef Half::Unit Given;  // both in one, as the processor multiplies them
    static constexpr int GIVEN = 1;
#else
    typedef float Given;
    static constexpr int GIVEN = 2;
#endif
    static constexpr bool ROUNDED = true;
};

alignas(64) const float ZEROS[N * W] = {};

enum NormKind { NONE, ROOT_MEAN_SQUARE, LAYER };
enum End { KEEP, ADD, UNITS };  // what becomes of sums: they are kept, added to what is there, or make hidden units

// ------------------------------------------------------------------ as kernels/packing.py lays them out, 8 bytes a field

struct Norm {
    int64_t kind;
    const float *weight, *bias;  // or null
    double eps;
};

struct Matrix {
    const void* weights;
    const float* bias;  // as long as whole groups, or null
    int64_t in, out;    // in whole pairs, in whole groups
};

struct Layer {
    Norm before_attention, before_ffn, on_queries, on_keys;
    Matrix qkv, out, up, down;
    int64_t heads, kv_heads, width;
    int64_t norm_queries, norm_keys;  // how many numbers of all queries or keys are normalised together
    int64_t window;                   // how many places a query sees, itself included
    int64_t activation, gated;
    double scale, softcap;  // 0: not capped
    const float* sinks;     // or null
};

struct Model {
    int64_t layers, width, half, max_in;  // half: whether weights are bfloat16; max_in: the largest `in` of a matrix
    int64_t pairs, interleaved;           // of rotary positions
    const float *cosines, *sines;         // (places, pairs)
    Norm last;
    Matrix head;
    const Layer* layer;
};

struct Call {
    const Model& model;
    int64_t B, T, past, wanted;  // wanted: whether the last token of every row gives logits
    const float* input;
    float *const *keys, *const *values;  // of every layer
    int64_t blocks;                      // of W places, that keys and values have room for
    float* logits;
    int threads;
};

inline int64_t whole(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

// What is written between stages, and what a thread has for itself.
struct Room {
    int64_t stream, qkv, heads, units, own;  // numbers of a row, and of a thread
    Room(const Model& model, int64_t M, int64_t blocks) {
        stream = whole(model.width, N * W), qkv = heads = units = 0;
        int64_t widest = 0;
        for (int64_t l = 0; l < model.layers; l++) {
            const Layer& layer = model.layer[l];
            qkv = std::max(qkv, layer.qkv.out);
            heads = std::max(heads, whole(layer.heads * layer.width, N * W));
            units = std::max(units, layer.up.out);
            widest = std::max(widest, whole(layer.width, W));
        }
        own = (M + 2 * TILE) * whole(model.max_in, W) + W + QUERIES * (2 * widest + blocks * W);
        own = whole(own, 1024);
    }
    int64_t size(int64_t M, int threads) const { return M * (stream + qkv + heads + units) + own * threads; }
};

struct Barrier {
    alignas(64) std::atomic<int> arrived{0};
    alignas(64) std::atomic<unsigned> turn{0};
    void wait(int threads) {
        if (threads == 1) return;
        unsigned now = turn.load(std::memory_order_relaxed);
        if (arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == threads) {
            arrived.store(0, std::memory_order_relaxed);
            turn.store(now + 1, std::memory_order_release);
            return;
        }
        // a thread that has lost its core to another program comes back later: spinning on would only keep it away
        for (int spins = 0; turn.load(std::memory_order_acquire) == now; spins++)
            if (spins > 4000) std::this_thread::yield();
    }
};

struct Thread {
    int number, count;
    float* own;
    Barrier& barrier;
    int64_t from(int64_t n) const { return n * number / count; }
    int64_t to(int64_t n) const { return n * (number + 1) / count; }
    void wait() const { barrier.wait(count); }
};

// ------------------------------------------------------------------------------------------------- rows and their norms

inline float total(vec x) {
    float sum = 0;
    for (int i = 0; i < W; i++) sum += x[i];
    return sum;
}

template <class Each>
inline float sum_over(int64_t count, const Each& each) {  // each(i) gives W numbers from i on, each.one(i) one
    vec sum{};
    int64_t i = 0;
    for (; i + W <= count; i += W) sum += each.many(i);
    float rest = total(sum);
    for (; i < count; i++) rest += each.one(i);
    return rest;
}

struct Plain {
    const float* x;
    vec many(int64_t i) const { return load(x + i); }
    float one(int64_t i) const { return x[i]; }
};

struct Squares {
    const float* x;
    float mean;
    vec many(int64_t i) const { return (load(x + i) - mean) * (load(x + i) - mean); }
    float one(int64_t i) const { return (x[i] - mean) * (x[i] - mean); }
};

void normalise(const Norm& norm, const float* x, int64_t count, float* out) {
    if (norm.kind == NONE) {
        std::copy(x, x + count, out);
        return;
    }
    float mean = norm.kind == LAYER ? sum_over(count, Plain{x}) / count : 0.0f;
    float factor = 1.0f / std::sqrt(sum_over(count, Squares{x, mean}) / count + float(norm.eps));
    for (int64_t i = 0; i < count; i++) out[i] = (x[i] - mean) * factor;
    if (norm.weight)
        for (int64_t i = 0; i < count; i++) out[i] *= norm.weight[i];
    if (norm.bias)
        for (int64_t i = 0; i < count; i++) out[i] += norm.bias[i];
}

struct Tiles {  // M rows in equal tiles of up to TILE
    int64_t M, count;
    explicit Tiles(int64_t M) : M(M), count((M + TILE - 1) / TILE) {}
    int64_t from(int64_t i) const { return M * i / count; }
    int rows(int64_t i) const { return int(from(i + 1) - from(i)); }
};

// Rows of `in` numbers -> what they give to a product, (in, rows) or (in / 2, rows); `room` is for as many numbers.
template <class Numbers>
void give(float* lines, int rows, int64_t in, float* room, typename Numbers::Given* to) {
    if constexpr (Numbers::ROUNDED && Numbers::GIVEN == 2) {
        typename Half::Small small[W];
        for (int64_t i = 0; i < rows * in; i += W) {
            Half::narrow(small, load(lines + i));
            store(lines + i, Half::widen(small));
        }
    }
    if constexpr (Numbers::GIVEN == 2) {
        if (rows == 1)
            std::copy(lines, lines + in, to);
        else
            turn(lines, in, rows, int(in), 1.0f, to, rows);
    } else if (rows == 1) {
        for (int64_t i = 0; i < in; i += W) Half::narrow(reinterpret_cast<Half::Small*>(to) + i, load(lines + i));
    } else {
        static_assert(TILE <= W || Numbers::GIVEN == 2, "what is written beyond a line of rows is overwritten by the next");
        turn(lines, in, rows, int(in), 1.0f, room, rows);
        for (int64_t i = 0; i < in; i += 2, room += 2 * rows, to += rows)
            store(reinterpret_cast<float*>(to), Half::pair(load(room), load(room + rows)));
    }
}

// The rows as `product` reads them: each tile with its rows innermost, zeros behind the `count` inputs. row(m) is a row's
// first number, after its norm.
template <class Numbers, class Row>
const typename Numbers::Given* lay_out(Tiles tiles, int64_t count, int64_t in, const Norm& norm, float* own, const Row& row) {
    float *lines = own + tiles.M * in + W, *room = lines + TILE * in;
    auto* given = reinterpret_cast<typename Numbers::Given*>(own);
    for (int64_t i = 0; i < tiles.count; i++) {
        int rows = tiles.rows(i);
        for (int r = 0; r < rows; r++) {
            normalise(norm, row(tiles.from(i) + r), count, lines + r * in);
            std::fill(lines + r * in + count, lines + (r + 1) * in, 0.0f);
        }
        give<Numbers>(lines, rows, in, room, given + tiles.from(i) * in / 2 * Numbers::GIVEN);
    }
    return given;
}

// ---------------------------------------------------------------------------------------------------------- products

// sum[r][n] += x[r] weights[n]
template <int R>
inline void add(const vec (&weights)[N], const float* x, vec (&sum)[R][N]) {
#pragma GCC unroll 12
    for (int r = 0; r < R; r++)
#pragma GCC unroll 2
        for (int n = 0; n < N; n++) sum[r][n] += x[r] * weights[n];
}

// Two inputs of a group of weights, and of R rows.
template <int R>
inline void add_pair(const float* w, const float* x, vec (&sum)[R][N]) {
    add<R>({load(w), load(w + W)}, x, sum);
    add<R>({load(w + 2 * W), load(w + 3 * W)}, x + R, sum);
}

template <int R>
inline void add_pair(const uint16_t* w, const Half::Unit* x, vec (&sum)[R][N]) {
    const float* pairs = reinterpret_cast<const float*>(w);
    const vec weights[N] = {load(pairs), load(pairs + W)};
#pragma GCC unroll 12
    for (int r = 0; r < R; r++)
#pragma GCC unroll 2
        for (int n = 0; n < N; n++) sum[r][n] = Half::add(sum[r][n], x[r], weights[n]);
}

template <int R>
inline void add_pair(const uint16_t* w, const float* x, vec (&sum)[R][N]) {
    const loose_int* pairs = reinterpret_cast<const loose_int*>(w);
    const int32_t upper = int32_t(0xffff0000);
    const ivec low = pairs[0] << 16, next_low = pairs[1] << 16, high = pairs[0] & upper, next_high = pairs[1] & upper;
    add<R>({(vec)low, (vec)next_low}, x, sum);
    add<R>({(vec)high, (vec)next_high}, x + R, sum);
}

struct Target {  // where sums go, and what becomes of them
    End end;
    float* out;
    int64_t stride;
    int64_t activation, gated;

    // sums (rows, N, W) of a group.
    void take(const float* sums, int rows, int64_t row, int64_t group) const {
        float* to = out + row * stride + group * (end == UNITS && gated ? W : N * W);
        if (end == UNITS) return choose(int(activation), [&](auto a) { take_units<a.value>(sums, rows, to); });
        for (int r = 0; r < rows; r++, to += stride, sums += N * W)
            for (int i = 0; i < N * W; i += W) store(to + i, end == ADD ? load(to + i) + load(sums + i) : load(sums + i));
    }

    template <Act A>
    void take_units(const float* sums, int rows, float* to) const {
        for (int r = 0; r < rows; r++, to += stride, sums += N * W)
            for (int i = 0; i < (gated ? W : N * W); i += W) {
                vec y, slope;
                activate<A>(load(sums + i), y, slope);
                store(to + i, gated ? y * load(sums + W) : y);
            }
    }
};

// One group of outputs for R rows, as they were given. A row's sums do not depend on what stands beside it.
template <int R, class Numbers>
void tile(const Matrix& matrix, int64_t group, const typename Numbers::Given* x, int64_t row, const Target& target) {
    const auto* w = static_cast<const typename Numbers::Weight*>(matrix.weights) + group * matrix.in * N * W;
    const float* bias = matrix.bias ? matrix.bias + group * N * W : ZEROS;
    vec sum[R][N];  // in registers, as every index into it is known to the compiler
#pragma GCC unroll 12
    for (int r = 0; r < R; r++)
#pragma GCC unroll 2
        for (int n = 0; n < N; n++) sum[r][n] = load(bias + n * W);
    for (int64_t k = 0; k < matrix.in; k += 2, w += 2 * N * W, x += Numbers::GIVEN * R) {
        if constexpr (R >= 4) {  // so much is done with these that the processor would ask late for the next group
            const auto* next = w + matrix.in * N * W;
            for (int i = 0; i < 2 * N * W; i += 64 / int(sizeof *w)) __builtin_prefetch(next + i, 0, 2);
        }
        add_pair<R>(w, x, sum);
    }
    float sums[R * N * W];
#pragma GCC unroll 12
    for (int r = 0; r < R; r++)
#pragma GCC unroll 2
        for (int n = 0; n < N; n++) store(sums + (r * N + n) * W, sum[r][n]);
    target.take(sums, R, row, group);
}

template <class Numbers, int R = TILE>
void any_tile(int rows, const Matrix& matrix, int64_t group, const typename Numbers::Given* x, int64_t row,
              const Target& target) {
    if (rows == R) return tile<R, Numbers>(matrix, group, x, row, target);
    if constexpr (R > 1) any_tile<Numbers, R - 1>(rows, matrix, group, x, row, target);
}

template <class Numbers>
void product(const Thread& thread, const Matrix& matrix, Tiles tiles, const typename Numbers::Given* x,
             const Target& target) {
    int64_t groups = matrix.out / (N * W), given = matrix.in / 2 * Numbers::GIVEN;
    for (int64_t group = thread.from(groups); group < thread.to(groups); group++)
        for (int64_t i = 0; i < tiles.count; i++)
            any_tile<Numbers>(tiles.rows(i), matrix, group, x + tiles.from(i) * given, tiles.from(i), target);
    thread.wait();
}

// ---------------------------------------------------------------------------------------------------------- attention

inline vec tanh(vec x) {
    vec size = x < 0.0f ? -x : x, z = x * x;
    vec t = size * (-2 * LOG2_E), e = exp2(t < -126.0f ? all(-126.0f) : t);
    vec far = (1.0f - e) / (1.0f + e);
    // near zero that would lose digits: x (1 - x^2 / 3 + ...), Taylor's to x^11, exact to a rounding below 0.3
    vec p = all(-8.8632355e-3f);
    p = p * z + 2.1869488e-2f;
    p = p * z - 5.3968254e-2f;
    p = p * z + 1.3333333e-1f;
    p = p * z - 3.3333333e-1f;
    vec near = size + size * z * p;
    vec y = size < 0.3f ? near : far;
    return x < 0.0f ? -y : y;
}

// scores[j][s] = sum_e q[j][e] k[s][e] of B blocks of keys
template <int J, int B>
inline void score(const float* q, int64_t q_row, const float* keys, int64_t E, float* scores, int64_t row) {
    vec sum[J][B]{};
    for (int64_t e = 0; e < E; e++)
#pragma GCC unroll 4
        for (int b = 0; b < B; b++) {
            vec key = load(keys + (b * E + e) * W);
#pragma GCC unroll 4
            for (int j = 0; j < J; j++) sum[j][b] += q[j * q_row + e] * key;
        }
    for (int j = 0; j < J; j++)
        for (int b = 0; b < B; b++) store(scores + j * row + b * W, sum[j][b]);
}

// out[j][e] = sum_s weights[j][s] v[s][e] for V vectors of e
template <int J, int V>
inline void weigh(const float* weights, int64_t row, const float* values, int64_t step, int64_t count, float* out,
                  int64_t out_row) {
    vec sum[J][V]{};
    for (int64_t s = 0; s < count; s++)
#pragma GCC unroll 4
        for (int v = 0; v < V; v++) {
            vec value = load(values + s * step + v * W);
#pragma GCC unroll 4
            for (int j = 0; j < J; j++) sum[j][v] += weights[j * row + s] * value;
        }
    for (int j = 0; j < J; j++)
        for (int v = 0; v < V; v++) store(out + j * out_row + v * W, sum[j][v]);
}

struct Attending {  // the queries of one token over the keys of one head
    const Call& call;
    const Layer& layer;
    const float* row;  // queries, keys and values of the token as the projection gave them
    float *keys, *values;
    int64_t place, kv_head;
    float* own;

    // A head's queries or keys, normalised and turned to their place.
    void prepare(const float* from, int64_t head, const Norm& norm, int64_t together, float* out) const {
        const Model& model = call.model;
        int64_t E = layer.width, start = head * E;
        if (norm.kind != NONE) {
            int64_t first = start / together * together;
            float mean = sum_over(together, Squares{from + first, 0.0f}) / together;
            float factor = 1.0f / std::sqrt(mean + float(norm.eps));
            for (int64_t e = 0; e < E; e++)
                out[e] = from[start + e] * factor * (norm.weight ? norm.weight[start - first + e] : 1.0f);
        } else {
            std::copy(from + start, from + start + E, out);
        }
        const float *cosine = model.cosines + place * model.pairs, *sine = model.sines + place * model.pairs;
        int64_t apart = model.interleaved ? 1 : model.pairs, step = model.interleaved ? 2 : 1;
        for (int64_t i = 0; i < model.pairs; i++) {
            float *one = out + i * step, *two = one + apart, first = *one, second = *two;
            *one = first * cosine[i] - second * sine[i];
            *two = second * cosine[i] + first * sine[i];
        }
    }

    void remember() const {
        int64_t E = layer.width, room = whole(E, W);
        const float* k = row + layer.heads * E;
        const float* v = k + layer.kv_heads * E + kv_head * E;
        prepare(k, kv_head, layer.on_keys, layer.norm_keys, own);
        float *key = keys + place / W * E * W + place % W, *value = values + place * room;
        for (int64_t e = 0; e < E; e++) key[e * W] = own[e];
        std::copy(v, v + E, value);
        std::fill(value + E, value + room, 0.0f);
    }

    void attend(float* out) const {
        int64_t group = layer.heads / layer.kv_heads;
        for (int64_t first = 0; first < group; first += QUERIES) {
            int64_t head = kv_head * group + first, count = std::min<int64_t>(QUERIES, group - first);
            float* to = out + head * layer.width;
            switch (count) {
                case 4: attend<4>(head, to); break;
                case 3: attend<3>(head, to); break;
                case 2: attend<2>(head, to); break;
                default: attend<1>(head, to);
            }
        }
    }

    template <int J>
    void attend(int64_t head, float* out) const {
        int64_t E = layer.width, room = whole(E, W);
        int64_t begin = std::max<int64_t>(0, place + 1 - layer.window), block = begin / W, end = place / W + 1;
        int64_t lines = call.blocks * W;
        float *q = own, *y = q + QUERIES * room, *scores = y + QUERIES * room;
        for (int j = 0; j < J; j++) prepare(row, head + j, layer.on_queries, layer.norm_queries, q + j * room);
        int64_t b = block;
        for (; b + 2 <= end; b += 2) score<J, 2>(q, room, keys + b * E * W, E, scores + (b - block) * W, lines);
        for (; b < end; b++) score<J, 1>(q, room, keys + b * E * W, E, scores + (b - block) * W, lines);
        float sums[J];
        for (int j = 0; j < J; j++)
            sums[j] = soften(scores + j * lines, begin - block * W, place + 1 - block * W, (end - block) * W, head + j);
        const float *weights = scores + (begin - block * W), *value = values + begin * room;
        int64_t count = place + 1 - begin, e = 0;
        for (; e + SPANS * W <= room; e += SPANS * W) weigh<J, SPANS>(weights, lines, value + e, room, count, y + e, room);
        for (; e < room; e += W) weigh<J, 1>(weights, lines, value + e, room, count, y + e, room);
        for (int j = 0; j < J; j++)
            for (int64_t i = 0; i < E; i++) out[j * E + i] = y[j * room + i] / sums[j];
    }

    // Scores from `begin` to `end` become weights that add up to what is returned; there are `room` numbers.
    float soften(float* scores, int64_t begin, int64_t end, int64_t room, int64_t head) const {
        std::fill(scores, scores + begin, -INF), std::fill(scores + end, scores + room, -INF);
        float scale = float(layer.scale), cap = float(layer.softcap);
        vec most = all(-INF);
        for (int64_t s = 0; s < room; s += W) {
            vec x = load(scores + s) * scale;
            if (cap != 0.0f) {
                vec hidden = x;
                x = cap * tanh(x / cap);
                x = hidden == -INF ? hidden : x;
            }
            store(scores + s, x);
            most = larger(most, x);
        }
        float top = layer.sinks ? layer.sinks[head] : -INF;
        for (int i = 0; i < W; i++) top = std::max(top, most[i]);
        vec sum{};
        for (int64_t s = 0; s < room; s += W) {
            vec x = exp2((load(scores + s) - top) * LOG2_E);
            store(scores + s, x);
            sum += x;
        }
        return total(sum) + (layer.sinks ? exp2(all((layer.sinks[head] - top) * LOG2_E))[0] : 0.0f);
    }
};

void attention(const Thread& thread, const Call& call, int64_t l, const Room& room, const float* qkv, float* heads) {
    const Layer& layer = call.model.layer[l];
    int64_t E = layer.width, items = call.B * call.T * layer.kv_heads, head = call.blocks * W;
    auto item = [&](int64_t i) {
        int64_t m = i / layer.kv_heads, k = i % layer.kv_heads, line = m / call.T * layer.kv_heads + k;
        return Attending{call, layer, qkv + m * room.qkv, call.keys[l] + line * head * E,
                         call.values[l] + line * head * whole(E, W), call.past + m % call.T, k, thread.own};
    };
    int64_t from = thread.from(items), to = thread.to(items);
    for (int64_t i = from; i < to; i++) item(i).remember();
    if (call.T > 1) thread.wait();  // a token sees those before it, which another thread may have taken
    for (int64_t i = from; i < to; i++) item(i).attend(heads + i / layer.kv_heads * room.heads);
    thread.wait();
}

// ---------------------------------------------------------------------------------------------------------- the model

template <class Numbers>
void through(const Thread& thread, const Call& call, const Room& room, float* shared) {
    const Model& model = call.model;
    int64_t M = call.B * call.T, D = model.width;
    float *x = shared, *qkv = x + M * room.stream, *heads = qkv + M * room.qkv, *units = heads + M * room.heads;
    Tiles tiles(M);
    const Norm none{NONE, nullptr, nullptr, 0.0};
    auto rows = [](const float* first, int64_t stride) {
        return [=](int64_t m) { return first + m * stride; };
    };
    for (int64_t m = thread.from(M); m < thread.to(M); m++) {
        std::copy(call.input + m * D, call.input + (m + 1) * D, x + m * room.stream);
        std::fill(x + m * room.stream + D, x + (m + 1) * room.stream, 0.0f);
    }
    thread.wait();
    for (int64_t l = 0; l < model.layers; l++) {
        const Layer& layer = model.layer[l];
        const auto* in = lay_out<Numbers>(tiles, D, layer.qkv.in, layer.before_attention, thread.own, rows(x, room.stream));
        product<Numbers>(thread, layer.qkv, tiles, in, Target{KEEP, qkv, room.qkv, 0, 0});
        attention(thread, call, l, room, qkv, heads);
        in = lay_out<Numbers>(tiles, layer.heads * layer.width, layer.out.in, none, thread.own, rows(heads, room.heads));
        product<Numbers>(thread, layer.out, tiles, in, Target{ADD, x, room.stream, 0, 0});
        in = lay_out<Numbers>(tiles, D, layer.up.in, layer.before_ffn, thread.own, rows(x, room.stream));
        product<Numbers>(thread, layer.up, tiles, in, Target{UNITS, units, room.units, layer.activation, layer.gated});
        in = lay_out<Numbers>(tiles, layer.down.in, layer.down.in, none, thread.own, rows(units, room.units));
        product<Numbers>(thread, layer.down, tiles, in, Target{ADD, x, room.stream, 0, 0});
    }
    if (!call.wanted) return;
    Tiles last(call.B);
    const auto* in = lay_out<Numbers>(last, D, model.head.in, model.last, thread.own,
                              [&](int64_t b) { return x + (b * call.T + call.T - 1) * room.stream; });
    product<Numbers>(thread, model.head, last, in, Target{KEEP, call.logits, model.head.out, 0, 0});
}

}  // namespace

extern "C" {

int decoding_vector() { return W; }
int decoding_group() { return N * W; }

// How many floats `decoding_run` needs room for.
int64_t decoding_room(const Model* model, int64_t M, int64_t blocks, int threads) {
    return Room(*model, M, blocks).size(M, threads) + 1024;
}

// Asks for large pages: weights are read from end to end, and at every small page the processor would stop to look.
void decoding_large_pages(void* memory, int64_t size) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    madvise(memory, size_t(size), MADV_HUGEPAGE);
#else
    (void)memory, (void)size;
#endif
}

// input (B, T, D) -> logits (B, whole groups), keys and values at places past ... past + T - 1. `number` and `members` are
// OpenMP's omp_get_thread_num and omp_get_num_threads: a team may be smaller than it was asked to be.
void decoding_run(const Model* model, int64_t B, int64_t T, int64_t past, int64_t wanted, const float* input,
                  float* const* keys, float* const* values, int64_t blocks, float* memory, float* logits, int threads,
                  Parallel parallel, int (*number)(), int (*members)()) {
    struct Work {
        Call call;
        Room room;
        float* memory;
        int (*number)();
        int (*members)();
        Barrier barrier;
    };
    uintptr_t address = reinterpret_cast<uintptr_t>(memory);
    memory += (64 - address % 64) % 64 / sizeof(float);
    if (!parallel || !number || !members) threads = 1;
    Work work{{*model, B, T, past, wanted, input, keys, values, blocks, logits, threads},
              Room(*model, B * T, blocks),
              memory,
              number,
              members,
              {}};
    auto run = [](void* data) {
        Work& work = *static_cast<Work*>(data);
        bool alone = work.call.threads == 1;
        int number = alone ? 0 : work.number(), count = alone ? 1 : work.members();
        float* shared = work.memory + work.room.own * work.call.threads;
        Thread thread{number, count, work.memory + work.room.own * number, work.barrier};
        if (work.call.model.half)
            through<Narrow>(thread, work.call, work.room, shared);
        else
            through<Wide>(thread, work.call, work.room, shared);
    };
    if (threads > 1)
        parallel(run, &work, unsigned(threads), 0);
    else
        run(&work);
}
}
