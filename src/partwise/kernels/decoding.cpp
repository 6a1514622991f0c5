// A few tokens through all layers of a decoder in one call: from the input of the first block to the logits, with the keys and
// values of earlier tokens cached. The weights are read once for all rows. They are float32 or bfloat16, and the activations they
// multiply are rounded to the same; sums, and everything between the matmuls, are float32.
//
// Shapes: B rows of T tokens each, M = B T, at positions past ... past + T - 1; D model width, H query heads, K key heads, E head
// dimension. Every stage is split among the threads and ends with a barrier.
//
// A matrix (outputs, inputs) is stored in groups of N W outputs: (outputs / (N W), inputs, N, W) in float32, and in bfloat16 with
// two adjacent inputs together, (outputs / (N W), inputs / 2, N, W, 2), so that a vector holds both of them for W outputs. Keys
// are stored in blocks of W positions, (B, K, positions / W, E, W), values position by position, (B, K, positions, E rounded up
// to whole vectors).

#include <thread>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "activations.h"
#include "dtypes.h"
#include "parallel.h"
#include "rotary.h"
#include "transpose.h"

namespace {

constexpr int N = 2;                               // vectors per group of outputs
constexpr int TILE_ROWS = REGISTERS == 32 ? 12 : 4;  // rows whose sums fit the registers along with a group of weights
constexpr int QUERIES = 4, VECTORS = 4;            // attention tile: query heads, and vectors of a head

typedef int32_t unaligned_ivec __attribute__((vector_size(4 * W), aligned(4), may_alias));

// The operands of a matmul: weights, and the activations of a row, for two inputs at a time.
struct Float32Operands {
    typedef float Weight, Input;
    static constexpr int INPUTS_PER_PAIR = 2;
    static constexpr bool ROUNDED = false;
};
struct BFloat16Operands {
    typedef uint16_t Weight;
#if defined(__AVX512BF16__) && defined(__AVX512BW__)
    typedef BFloat16::Word Input;  // both inputs in one word, for the CPU's bfloat16 instruction
    static constexpr int INPUTS_PER_PAIR = 1;
#else
    typedef float Input;
    static constexpr int INPUTS_PER_PAIR = 2;
#endif
    static constexpr bool ROUNDED = true;
};

alignas(64) const float ZEROS[N * W] = {};

enum NormKind { NO_NORM, RMS_NORM, LAYER_NORM };
enum EpilogueKind { STORE, ADD, HIDDEN_UNITS };  // store sums, accumulate into the output, or apply the activation

// ------------------------------------------------------------ structures of decoding_weights.py, 8 bytes per field

struct Norm {
    int64_t kind;
    const float *weight, *bias;  // or null
    double eps;
};

struct Matrix {
    const void* weights;
    const float* bias;        // padded to whole groups, or null
    int64_t inputs, outputs;  // padded to whole pairs and whole groups
};

struct Layer {
    Norm attention_norm, ffn_norm, q_norm, k_norm;
    Matrix qkv, out, up, down;
    int64_t n_heads, n_kv_heads, head_dim;
    int64_t q_norm_width, k_norm_width;  // elements of all queries or keys that are normalized together
    int64_t window;                      // positions a query attends to, itself included
    int64_t activation, gated;
    double scale, softcap;  // softcap 0: none
    const float* sinks;     // or null
    const float* mu;        // token shift: attention reads n_t mu + n_{t-1} (1 - mu), n = attention_norm(x); null: none
};

struct Model {
    int64_t n_layers, d_model, bf16, max_inputs;  // max_inputs: the most inputs of any matrix
    int64_t rotary_pairs, interleaved;
    const float *cosines, *sines;  // (positions, pairs)
    Norm final_norm;
    Matrix head;
    const Layer* layers;
};

struct Step {
    const Model& model;
    int64_t B, T, past, needs_logits;  // needs_logits: compute the logits of the last token of every row
    const float* input;
    float *const *keys, *const *values;  // one pointer per layer
    float* const* previous;              // per layer with token shift, the last cached n of every row, (B, D)
    int64_t blocks;                      // capacity of keys and values, in blocks of W positions
    float* logits;
    int threads;
};

// Workspace sizes in floats: activations between stages (per row), and scratch (per thread).
struct Buffers {
    int64_t stream, qkv, attended, hidden, thread;
    Buffers(const Model& model, int64_t M, int64_t blocks) {
        stream = round_up(model.d_model, N * W), qkv = attended = hidden = 0;
        int64_t widest_head = 0;
        for (int64_t l = 0; l < model.n_layers; l++) {
            const Layer& layer = model.layers[l];
            qkv = std::max(qkv, layer.qkv.outputs);
            attended = std::max(attended, round_up(layer.n_heads * layer.head_dim, N * W));
            hidden = std::max(hidden, layer.up.outputs);
            widest_head = std::max(widest_head, round_up(layer.head_dim, W));
        }
        thread = (M + 2 * TILE_ROWS) * round_up(model.max_inputs, W) + W + QUERIES * (2 * widest_head + blocks * W);
        thread = round_up(thread, 1024);
    }
    int64_t size(int64_t M, int threads) const { return M * (stream + qkv + attended + hidden) + thread * threads; }
};

struct Barrier {
    alignas(64) std::atomic<int> arrived{0};
    alignas(64) std::atomic<unsigned> generation{0};
    void wait(int threads) {
        if (threads == 1) return;
        unsigned now = generation.load(std::memory_order_relaxed);
        if (arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == threads) {
            arrived.store(0, std::memory_order_relaxed);
            generation.store(now + 1, std::memory_order_release);
            return;
        }
        // yield: the thread we wait for may have been preempted, and spinning would keep it off the core
        for (int spins = 0; generation.load(std::memory_order_acquire) == now; spins++)
            if (spins > 4000) std::this_thread::yield();
    }
};

struct Thread {
    int number, count;
    float* workspace;
    Barrier& barrier;
    int64_t from(int64_t n) const { return n * number / count; }
    int64_t to(int64_t n) const { return n * (number + 1) / count; }
    void wait() const { barrier.wait(count); }
};

// --------------------------------------------------------------------------------------------------- norms and inputs

inline float sequential_sum(vec x) {
    float sum = 0;
    for (int i = 0; i < W; i++) sum += x[i];
    return sum;
}

// The sum of value.vector(i), W elements from i on, and value.scalar(i).
template <class Value>
inline float sum_over(int64_t count, const Value& value) {
    vec sum{};
    int64_t i = 0;
    for (; i + W <= count; i += W) sum += value.vector(i);
    float rest = sequential_sum(sum);
    for (; i < count; i++) rest += value.scalar(i);
    return rest;
}

struct Elements {
    const float* x;
    vec vector(int64_t i) const { return load(x + i); }
    float scalar(int64_t i) const { return x[i]; }
};

struct Squares {
    const float* x;
    float mean;
    vec vector(int64_t i) const { return (load(x + i) - mean) * (load(x + i) - mean); }
    float scalar(int64_t i) const { return (x[i] - mean) * (x[i] - mean); }
};

void normalize(const Norm& norm, const float* x, int64_t count, float* out) {
    if (norm.kind == NO_NORM) {
        std::copy(x, x + count, out);
        return;
    }
    float mean = norm.kind == LAYER_NORM ? sum_over(count, Elements{x}) / count : 0.0f;
    float factor = 1.0f / std::sqrt(sum_over(count, Squares{x, mean}) / count + float(norm.eps));
    for (int64_t i = 0; i < count; i++) out[i] = (x[i] - mean) * factor;
    if (norm.weight)
        for (int64_t i = 0; i < count; i++) out[i] *= norm.weight[i];
    if (norm.bias)
        for (int64_t i = 0; i < count; i++) out[i] += norm.bias[i];
}

struct RowTiles {  // M rows in equal tiles of up to TILE_ROWS
    int64_t M, count;
    explicit RowTiles(int64_t M) : M(M), count((M + TILE_ROWS - 1) / TILE_ROWS) {}
    int64_t from(int64_t i) const { return M * i / count; }
    int rows(int64_t i) const { return int(from(i + 1) - from(i)); }
};

// Rows of `inputs` floats -> matmul operands, (inputs, rows) or (inputs / 2, rows); `workspace` has as many floats.
template <class Operands>
void pack_tile(float* x, int rows, int64_t inputs, float* workspace, typename Operands::Input* to) {
    if constexpr (Operands::ROUNDED && Operands::INPUTS_PER_PAIR == 2) {
        BFloat16::Element rounded[W];
        for (int64_t i = 0; i < rows * inputs; i += W) {
            BFloat16::store_rounded(rounded, load(x + i));
            store(x + i, BFloat16::load_float(rounded));
        }
    }
    if constexpr (Operands::INPUTS_PER_PAIR == 2) {
        if (rows == 1)
            std::copy(x, x + inputs, to);
        else
            transpose(x, inputs, rows, int(inputs), to, rows, Copy());
    } else if (rows == 1) {
        for (int64_t i = 0; i < inputs; i += W) BFloat16::store_rounded(reinterpret_cast<BFloat16::Element*>(to) + i, load(x + i));
    } else {
        static_assert(TILE_ROWS <= W || Operands::INPUTS_PER_PAIR == 2, "the next store overwrites what exceeds a line of rows");
        transpose(x, inputs, rows, int(inputs), workspace, rows, Copy());
        for (int64_t i = 0; i < inputs; i += 2, workspace += 2 * rows, to += rows)
            store(reinterpret_cast<float*>(to), BFloat16::pack(load(workspace), load(workspace + rows)));
    }
}

// Rows in the layout that `gemm` reads: tile by tile, rows innermost, zeros after the `count` inputs. write(m, to, scratch) writes
// the inputs of row m; `scratch` has room for as many.
template <class Operands, class Write>
const typename Operands::Input* pack_inputs(RowTiles tiles, int64_t count, int64_t inputs, float* workspace, const Write& write) {
    float *tile = workspace + tiles.M * inputs + W, *rest = tile + TILE_ROWS * inputs;
    auto* packed = reinterpret_cast<typename Operands::Input*>(workspace);
    for (int64_t i = 0; i < tiles.count; i++) {
        int rows = tiles.rows(i);
        for (int r = 0; r < rows; r++) {
            write(tiles.from(i) + r, tile + r * inputs, rest);
            std::fill(tile + r * inputs + count, tile + (r + 1) * inputs, 0.0f);
        }
        pack_tile<Operands>(tile, rows, inputs, rest, packed + tiles.from(i) * inputs / 2 * Operands::INPUTS_PER_PAIR);
    }
    return packed;
}

// ----------------------------------------------------------------------------------------------------------- matmuls

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
    vec even[N], odd[N];
    load_registers(w, even), load_registers(w + N * W, odd);
    add<R>(even, x, sum);
    add<R>(odd, x + R, sum);
}

template <int R>
inline void add_pair(const uint16_t* w, const BFloat16::Word* x, vec (&sum)[R][N]) {
    const float* pairs = reinterpret_cast<const float*>(w);
    const vec weights[N] = {load(pairs), load(pairs + W)};
#pragma GCC unroll 12
    for (int r = 0; r < R; r++)
#pragma GCC unroll 2
        for (int n = 0; n < N; n++) sum[r][n] = BFloat16::multiply_add(sum[r][n], x[r], weights[n]);
}

template <int R>
inline void add_pair(const uint16_t* w, const float* x, vec (&sum)[R][N]) {
    const unaligned_ivec* pairs = reinterpret_cast<const unaligned_ivec*>(w);
    const int32_t upper = int32_t(0xffff0000);
    const ivec low = pairs[0] << 16, next_low = pairs[1] << 16, high = pairs[0] & upper, next_high = pairs[1] & upper;
    add<R>({(vec)low, (vec)next_low}, x, sum);
    add<R>({(vec)high, (vec)next_high}, x + R, sum);
}

struct Epilogue {  // destination of the sums, and the operation applied to them
    EpilogueKind kind;
    float* out;
    int64_t stride;
    int64_t activation, gated;

    // Sums (rows, N, W) of a group.
    void write(const float* sums, int rows, int64_t row, int64_t group) const {
        float* to = out + row * stride + group * (kind == HIDDEN_UNITS && gated ? W : N * W);
        if (kind == HIDDEN_UNITS)
            return dispatch(int(activation), gated, [&](auto act, auto is_gated) {
                write_hidden_units<act.value, is_gated.value>(sums, rows, to);
            });
        for (int r = 0; r < rows; r++, to += stride, sums += N * W)
            for (int i = 0; i < N * W; i += W) store(to + i, kind == ADD ? load(to + i) + load(sums + i) : load(sums + i));
    }

    template <Activation ACT, bool GATED>
    void write_hidden_units(const float* sums, int rows, float* to) const {
        for (int r = 0; r < rows; r++, to += stride, sums += N * W)
            for (int i = 0; i < (GATED ? W : N * W); i += W)
                store(to + i, hidden_units<ACT, GATED>(load(sums + i), GATED ? load(sums + W) : vec{}));
    }
};

// A group of outputs for R rows of packed inputs. A row's sums do not depend on the other rows.
template <int R, class Operands>
void micro_kernel(const Matrix& matrix, int64_t group, const typename Operands::Input* x, int64_t row, const Epilogue& epilogue) {
    const auto* w = static_cast<const typename Operands::Weight*>(matrix.weights) + group * matrix.inputs * N * W;
    const float* bias = matrix.bias ? matrix.bias + group * N * W : ZEROS;
    vec sum[R][N];  // in registers: every index is a compile-time constant
#pragma GCC unroll 12
    for (int r = 0; r < R; r++)
#pragma GCC unroll 2
        for (int n = 0; n < N; n++) sum[r][n] = load(bias + n * W);
    for (int64_t k = 0; k < matrix.inputs; k += 2, w += 2 * N * W, x += Operands::INPUTS_PER_PAIR * R) {
        if constexpr (R >= 4) {  // compute-bound, so the hardware prefetcher would fetch the next group too late
            const auto* next = w + matrix.inputs * N * W;
            for (int i = 0; i < 2 * N * W; i += 64 / int(sizeof *w)) __builtin_prefetch(next + i, 0, 2);
        }
        add_pair<R>(w, x, sum);
    }
    float sums[R * N * W];
#pragma GCC unroll 12
    for (int r = 0; r < R; r++)
#pragma GCC unroll 2
        for (int n = 0; n < N; n++) store(sums + (r * N + n) * W, sum[r][n]);
    epilogue.write(sums, R, row, group);
}

template <class Operands, int R = TILE_ROWS>
void run_micro_kernel(int rows, const Matrix& matrix, int64_t group, const typename Operands::Input* x, int64_t row,
                      const Epilogue& epilogue) {
    if (rows == R) return micro_kernel<R, Operands>(matrix, group, x, row, epilogue);
    if constexpr (R > 1) run_micro_kernel<Operands, R - 1>(rows, matrix, group, x, row, epilogue);
}

template <class Operands>
void gemm(const Thread& thread, const Matrix& matrix, RowTiles tiles, const typename Operands::Input* x, const Epilogue& epilogue) {
    int64_t groups = matrix.outputs / (N * W), x_stride = matrix.inputs / 2 * Operands::INPUTS_PER_PAIR;
    for (int64_t group = thread.from(groups); group < thread.to(groups); group++)
        for (int64_t i = 0; i < tiles.count; i++)
            run_micro_kernel<Operands>(tiles.rows(i), matrix, group, x + tiles.from(i) * x_stride, tiles.from(i), epilogue);
    thread.wait();
}

// ---------------------------------------------------------------------------------------------------------- attention

inline vec tanh(vec x) {
    vec size = x < 0.0f ? -x : x, z = x * x;
    vec t = size * (-2 * LOG2_E), e = exp2(t < -126.0f ? broadcast(-126.0f) : t);
    vec far = (1.0f - e) / (1.0f + e);
    // near zero that would lose digits: Taylor's x (1 - x^2 / 3 + ...) up to x^11, correctly rounded below 0.3
    vec p = broadcast(-8.8632355e-3f);
    p = p * z + 2.1869488e-2f;
    p = p * z - 5.3968254e-2f;
    p = p * z + 1.3333333e-1f;
    p = p * z - 3.3333333e-1f;
    vec near = size + size * z * p;
    vec y = size < 0.3f ? near : far;
    return x < 0.0f ? -y : y;
}

// scores[j][s] = sum_e q[j][e] k[s][e] of J queries and B blocks of keys.
template <int J, int B>
inline void score_matmul(const float* q, int64_t q_stride, const float* keys, int64_t E, float* scores, int64_t scores_stride) {
    vec sum[J][B]{};
    for (int64_t e = 0; e < E; e++)
#pragma GCC unroll 4
        for (int b = 0; b < B; b++) {
            vec key = load(keys + (b * E + e) * W);
#pragma GCC unroll 4
            for (int j = 0; j < J; j++) sum[j][b] += q[j * q_stride + e] * key;
        }
    for (int j = 0; j < J; j++)
        for (int b = 0; b < B; b++) store(scores + j * scores_stride + b * W, sum[j][b]);
}

// out[j][e] = sum_s weights[j][s] v[s][e] for J queries and V vectors of e.
template <int J, int V>
inline void weighted_sum(const float* weights, int64_t weights_stride, const float* values, int64_t v_stride, int64_t count,
                         float* out, int64_t out_stride) {
    vec sum[J][V]{};
    for (int64_t s = 0; s < count; s++)
#pragma GCC unroll 4
        for (int v = 0; v < V; v++) {
            vec value = load(values + s * v_stride + v * W);
#pragma GCC unroll 4
            for (int j = 0; j < J; j++) sum[j][v] += weights[j * weights_stride + s] * value;
        }
    for (int j = 0; j < J; j++)
        for (int v = 0; v < V; v++) store(out + j * out_stride + v * W, sum[j][v]);
}

struct TokenAttention {  // attention of one token's queries to the keys of one head
    const Step& step;
    const Layer& layer;
    const float* row;  // the token's queries, keys and values from the projection
    float *keys, *values;
    int64_t position, kv_head;
    float* workspace;

    // A query or key head, normalized and rotated.
    void prepare(const float* from, int64_t head, const Norm& norm, int64_t norm_width, float* out) const {
        const Model& model = step.model;
        int64_t E = layer.head_dim, start = head * E;
        if (norm.kind != NO_NORM) {
            int64_t first = start / norm_width * norm_width;
            float mean = sum_over(norm_width, Squares{from + first, 0.0f}) / norm_width;
            float factor = 1.0f / std::sqrt(mean + float(norm.eps));
            for (int64_t e = 0; e < E; e++)
                out[e] = from[start + e] * factor * (norm.weight ? norm.weight[start - first + e] : 1.0f);
        } else {
            std::copy(from + start, from + start + E, out);
        }
        int64_t at = position * model.rotary_pairs;
        rotate(out, model.rotary_pairs, model.interleaved, model.cosines + at, model.sines + at, 1.0f);
    }

    void write_cache() const {
        int64_t E = layer.head_dim, padded_E = round_up(E, W);
        const float* k = row + layer.n_heads * E;
        const float* v = k + layer.n_kv_heads * E + kv_head * E;
        prepare(k, kv_head, layer.k_norm, layer.k_norm_width, workspace);
        float *key = keys + position / W * E * W + position % W, *value = values + position * padded_E;
        for (int64_t e = 0; e < E; e++) key[e * W] = workspace[e];
        std::copy(v, v + E, value);
        std::fill(value + E, value + padded_E, 0.0f);
    }

    void attend(float* out) const {
        int64_t group = layer.n_heads / layer.n_kv_heads;
        for (int64_t first = 0; first < group; first += QUERIES) {
            int64_t head = kv_head * group + first, count = std::min<int64_t>(QUERIES, group - first);
            float* to = out + head * layer.head_dim;
            switch (count) {
                case 4: attend_heads<4>(head, to); break;
                case 3: attend_heads<3>(head, to); break;
                case 2: attend_heads<2>(head, to); break;
                default: attend_heads<1>(head, to);
            }
        }
    }

    template <int J>
    void attend_heads(int64_t head, float* out) const {
        int64_t E = layer.head_dim, padded_E = round_up(E, W);
        int64_t begin = std::max<int64_t>(0, position + 1 - layer.window), first_block = begin / W, end = position / W + 1;
        int64_t scores_stride = step.blocks * W;
        float *q = workspace, *y = q + QUERIES * padded_E, *scores = y + QUERIES * padded_E;
        for (int j = 0; j < J; j++) prepare(row, head + j, layer.q_norm, layer.q_norm_width, q + j * padded_E);
        int64_t b = first_block;
        for (; b + 2 <= end; b += 2)
            score_matmul<J, 2>(q, padded_E, keys + b * E * W, E, scores + (b - first_block) * W, scores_stride);
        for (; b < end; b++)
            score_matmul<J, 1>(q, padded_E, keys + b * E * W, E, scores + (b - first_block) * W, scores_stride);
        float sums[J];
        for (int j = 0; j < J; j++)
            sums[j] = softmax(scores + j * scores_stride, begin - first_block * W, position + 1 - first_block * W,
                              (end - first_block) * W, head + j);
        const float *weights = scores + (begin - first_block * W), *value = values + begin * padded_E;
        int64_t count = position + 1 - begin, e = 0;
        for (; e + VECTORS * W <= padded_E; e += VECTORS * W)
            weighted_sum<J, VECTORS>(weights, scores_stride, value + e, padded_E, count, y + e, padded_E);
        for (; e < padded_E; e += W) weighted_sum<J, 1>(weights, scores_stride, value + e, padded_E, count, y + e, padded_E);
        for (int j = 0; j < J; j++)
            for (int64_t i = 0; i < E; i++) out[j * E + i] = y[j * padded_E + i] / sums[j];
    }

    // Replaces the scores from `begin` to `end` of `size` by unnormalized softmax weights and returns their sum.
    float softmax(float* scores, int64_t begin, int64_t end, int64_t size, int64_t head) const {
        std::fill(scores, scores + begin, -INF), std::fill(scores + end, scores + size, -INF);
        float scale = float(layer.scale), cap = float(layer.softcap);
        vec highest = broadcast(-INF);
        for (int64_t s = 0; s < size; s += W) {
            vec x = load(scores + s) * scale;
            if (cap != 0.0f) {
                vec uncapped = x;
                x = cap * tanh(x / cap);
                x = uncapped == -INF ? uncapped : x;
            }
            store(scores + s, x);
            highest = maximum(highest, x);
        }
        float max = layer.sinks ? layer.sinks[head] : -INF;
        for (int i = 0; i < W; i++) max = std::max(max, highest[i]);
        vec sum{};
        for (int64_t s = 0; s < size; s += W) {
            vec x = exp2((load(scores + s) - max) * LOG2_E);
            store(scores + s, x);
            sum += x;
        }
        return sequential_sum(sum) + (layer.sinks ? exp2(broadcast((layer.sinks[head] - max) * LOG2_E))[0] : 0.0f);
    }
};

void attention(const Thread& thread, const Step& step, int64_t l, const Buffers& buffers, const float* qkv, float* attended) {
    const Layer& layer = step.model.layers[l];
    int64_t E = layer.head_dim, tasks = step.B * step.T * layer.n_kv_heads, capacity = step.blocks * W;
    auto task = [&](int64_t i) {
        int64_t m = i / layer.n_kv_heads, k = i % layer.n_kv_heads, head = m / step.T * layer.n_kv_heads + k;
        return TokenAttention{step, layer, qkv + m * buffers.qkv, step.keys[l] + head * capacity * E,
                              step.values[l] + head * capacity * round_up(E, W), step.past + m % step.T, k, thread.workspace};
    };
    int64_t from = thread.from(tasks), to = thread.to(tasks);
    for (int64_t i = from; i < to; i++) task(i).write_cache();
    if (step.T > 1) thread.wait();  // another thread may write the keys of a token's predecessors
    for (int64_t i = from; i < to; i++) task(i).attend(attended + i / layer.n_kv_heads * buffers.attended);
    thread.wait();
}

// ---------------------------------------------------------------------------------------------------------- the model

// Mixes n_m in `to` with the n of the token before it, which is 0 before the start of a row.
void shift(const Step& step, const Layer& layer, int64_t m, const float* x, int64_t stride, const float* cached, float* scratch,
           float* to) {
    const float *previous = scratch, *mu = layer.mu;
    int64_t D = step.model.d_model;
    if (m % step.T)
        normalize(layer.attention_norm, x + (m - 1) * stride, D, scratch);
    else if (step.past)
        previous = cached + m / step.T * D;
    else
        std::fill(scratch, scratch + D, 0.0f);
    for (int64_t i = 0; i < D; i++) to[i] = to[i] * mu[i] + previous[i] * (1.0f - mu[i]);
}

template <class Operands>
void run_step(const Thread& thread, const Step& step, const Buffers& buffers, float* shared) {
    const Model& model = step.model;
    int64_t M = step.B * step.T, D = model.d_model;
    float *x = shared, *qkv = x + M * buffers.stream, *attended = qkv + M * buffers.qkv, *hidden = attended + M * buffers.attended;
    RowTiles tiles(M);
    auto copied = [](const float* first, int64_t stride, int64_t count) {
        return [=](int64_t m, float* to, float*) { std::copy(first + m * stride, first + m * stride + count, to); };
    };
    auto normalized = [&](const Norm& norm) {
        return [&, &norm = norm](int64_t m, float* to, float*) { normalize(norm, x + m * buffers.stream, D, to); };
    };
    for (int64_t m = thread.from(M); m < thread.to(M); m++) {
        std::copy(step.input + m * D, step.input + (m + 1) * D, x + m * buffers.stream);
        std::fill(x + m * buffers.stream + D, x + (m + 1) * buffers.stream, 0.0f);
    }
    thread.wait();
    for (int64_t l = 0; l < model.n_layers; l++) {
        const Layer& layer = model.layers[l];
        auto shifted = [&](int64_t m, float* to, float* scratch) {
            normalize(layer.attention_norm, x + m * buffers.stream, D, to);
            if (layer.mu) shift(step, layer, m, x, buffers.stream, step.previous[l], scratch, to);
        };
        const auto* in = pack_inputs<Operands>(tiles, D, layer.qkv.inputs, thread.workspace, shifted);
        gemm<Operands>(thread, layer.qkv, tiles, in, Epilogue{STORE, qkv, buffers.qkv, 0, 0});
        // only now: until the matmul's barrier other threads may read the previous inputs
        for (int64_t b = thread.from(step.B); layer.mu && b < thread.to(step.B); b++)
            normalize(layer.attention_norm, x + (b * step.T + step.T - 1) * buffers.stream, D, step.previous[l] + b * D);
        attention(thread, step, l, buffers, qkv, attended);
        int64_t inner = layer.n_heads * layer.head_dim;
        in = pack_inputs<Operands>(tiles, inner, layer.out.inputs, thread.workspace, copied(attended, buffers.attended, inner));
        gemm<Operands>(thread, layer.out, tiles, in, Epilogue{ADD, x, buffers.stream, 0, 0});
        in = pack_inputs<Operands>(tiles, D, layer.up.inputs, thread.workspace, normalized(layer.ffn_norm));
        gemm<Operands>(thread, layer.up, tiles, in, Epilogue{HIDDEN_UNITS, hidden, buffers.hidden, layer.activation, layer.gated});
        in = pack_inputs<Operands>(tiles, layer.down.inputs, layer.down.inputs, thread.workspace,
                                   copied(hidden, buffers.hidden, layer.down.inputs));
        gemm<Operands>(thread, layer.down, tiles, in, Epilogue{ADD, x, buffers.stream, 0, 0});
    }
    if (!step.needs_logits) return;
    RowTiles last(step.B);
    const auto* in = pack_inputs<Operands>(last, D, model.head.inputs, thread.workspace, [&](int64_t b, float* to, float*) {
        normalize(model.final_norm, x + (b * step.T + step.T - 1) * buffers.stream, D, to);
    });
    gemm<Operands>(thread, model.head, last, in, Epilogue{STORE, step.logits, model.head.outputs, 0, 0});
}

}  // namespace

extern "C" {

int decoding_vector_width() { return W; }
int decoding_group_width() { return N * W; }

// The floats of workspace that `decoding_step` needs.
int64_t decoding_workspace_size(const Model* model, int64_t M, int64_t blocks, int threads) {
    return Buffers(*model, M, blocks).size(M, threads) + 1024;
}

// Requests huge pages: the weights are read from end to end, and every small page would cost an address translation.
void decoding_advise_huge_pages(void* memory, int64_t size) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    madvise(memory, size_t(size), MADV_HUGEPAGE);
#else
    (void)memory, (void)size;
#endif
}

// input (B, T, D) -> logits (B, outputs rounded up to whole groups), and keys and values at positions past ... past + T - 1.
// `thread_number` and `thread_count` are OpenMP's omp_get_thread_num and omp_get_num_threads: it may run fewer threads than
// requested.
void decoding_step(const Model* model, int64_t B, int64_t T, int64_t past, int64_t needs_logits, const float* input,
                   float* const* keys, float* const* values, float* const* previous, int64_t blocks, float* workspace,
                   float* logits, int threads, Parallel parallel, int (*thread_number)(), int (*thread_count)()) {
    struct Work {
        Step step;
        Buffers buffers;
        float* workspace;
        int (*thread_number)();
        int (*thread_count)();
        Barrier barrier;
    };
    uintptr_t address = reinterpret_cast<uintptr_t>(workspace);
    workspace += (64 - address % 64) % 64 / sizeof(float);
    if (!parallel || !thread_number || !thread_count) threads = 1;
    Work work{{*model, B, T, past, needs_logits, input, keys, values, previous, blocks, logits, threads},
              Buffers(*model, B * T, blocks),
              workspace,
              thread_number,
              thread_count,
              {}};
    auto run = [](void* data) {
        Work& work = *static_cast<Work*>(data);
        bool single = work.step.threads == 1;
        int number = single ? 0 : work.thread_number(), count = single ? 1 : work.thread_count();
        float* shared = work.workspace + work.buffers.thread * work.step.threads;
        Thread thread{number, count, work.workspace + work.buffers.thread * number, work.barrier};
        if (work.step.model.bf16)
            run_step<BFloat16Operands>(thread, work.step, work.buffers, shared);
        else
            run_step<Float32Operands>(thread, work.step, work.buffers, shared);
    };
    if (threads > 1)
        parallel(run, &work, unsigned(threads), 0);
    else
        run(&work);
}
}
