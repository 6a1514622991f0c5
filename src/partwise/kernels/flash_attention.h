// Causal softmax attention of one key head, forward and backward, over float32 or bfloat16 elements: scores are computed tile
// by tile with an online softmax and never stored; Dao et al. 2022.
//
// Shapes: T queries and T keys of head_dim E; query i attends to keys 0 ... i. The lanes of a vector are W consecutive queries
// (forward) or keys (backward), so vectors are full at any E, and no maximum or sum runs across lanes. Do not compile with
// -ffast-math: infinities and NaN must propagate.
//
// Dropout zeroes softmax weights after their sum: the log-sum-exp and every delta are those without dropout.
#pragma once

#include "packed_gemm.h"
#include "philox.h"

namespace {

constexpr int KEYS = 128;     // forward: keys per tile of scores
constexpr int QUERIES = 64;   // backward: queries per tile

// Rows of elements, `x_stride` apart -> words of two adjacent rows (bfloat16), `out_stride` apart; an odd last row is paired
// with zeros.
template <class Dtype>
void pack_adjacent_rows(const typename Dtype::Element* x, int64_t x_stride, int rows, int columns, typename Dtype::Word* out,
                        int64_t out_stride) {
    constexpr int PER_WORD = Dtype::PER_WORD;
    for (int r = 0; r < rows; r += PER_WORD, out += out_stride) {
        const auto *even = x + r * x_stride, *odd = r + PER_WORD <= rows ? even + (PER_WORD - 1) * x_stride : nullptr;
        int c = 0;
        for (; odd && c + W <= columns; c += W) {
            __builtin_prefetch(even + c + PREFETCH_ROWS * x_stride), __builtin_prefetch(odd + c + PREFETCH_ROWS * x_stride);
            store(reinterpret_cast<float*>(out) + c, Dtype::pack(even + c, odd + c));
        }
        for (; c < columns; c++) out[c] = Dtype::pack(even[c], odd ? odd[c] : typename Dtype::Element(0));
    }
}

// One key head and the group of query heads that share it.
template <class Dtype>
struct FlashAttention {
    typedef typename Dtype::Element Element;
    typedef typename Dtype::Word Word;
    static constexpr int PER_WORD = Dtype::PER_WORD;

    int T, E;
    int64_t q_stride, k_stride, v_stride;  // elements between rows
    float scale;
    float scale_log2 = scale * LOG2_E;  // takes scores to exponents of 2

    const Word* words(const Element* x) const { return reinterpret_cast<const Word*>(x); }
    int64_t word_rows(int64_t rows) const { return (rows + PER_WORD - 1) / PER_WORD; }

    // Whether tile registers compute scores: their sums pass through memory, but take a sixth of the time.
    bool tiled_scores() const { return use_tiles<Dtype>() && E / PER_WORD % REGISTER_WORDS == 0; }

    // The columns of words of adjacent rows as the rows of a product's first operand, `row` and `k` words apart. Tile registers
    // load only rows: for them, transpose_columns writes the columns to memory.
    struct Columns {
        const Word* words;
        int64_t row, k;
    };
    Columns columns(const Word* x, int64_t x_stride, const Word* transposed) const {
        return use_tiles<Dtype>() ? Columns{transposed, columns_stride(), 1} : Columns{x, 1, x_stride};
    }
    void transpose_columns(const Word* x, int64_t x_stride, Word* transposed) const {
        if (use_tiles<Dtype>()) transpose_words(x, x_stride, int(word_rows(T)), E, transposed, columns_stride());
    }
    int64_t columns_size() const { return use_tiles<Dtype>() ? E * columns_stride() : 0; }
    int64_t columns_stride() const { return round_up(word_rows(T), W) + W; }  // not a power of two, as rows compete for the cache

    // ---------------------------------------------------------------------------------------------------- forward

    int64_t forward_workspace() const { return 2 * E * TILE + 2 * KEYS * TILE + columns_size(); }

    // q and k of one head, and v as words of adjacent rows, `v_words_stride` apart -> out (T, E), `out_stride` apart, and
    // lse = log2 sum_j 2^(score_j log2 e).
    void forward(const Element* q, const Element* k, const Word* v, int64_t v_words_stride, Element* out, int64_t out_stride,
                 float* lse, float* workspace, const HeadDropout* dropout = nullptr) const {
        const float scale_kept = dropout ? dropout->dropout.scale() : 1.0f;
        Word* q_t = reinterpret_cast<Word*>(workspace);
        float *scores = workspace + E * TILE, *out_t = scores + KEYS * TILE;
        Word* weights = reinterpret_cast<Word*>(out_t + E * TILE);
        Word* values_t = weights + KEYS * TILE;
        transpose_columns(v, v_words_stride, values_t);
        const Columns values = columns(v, v_words_stride, values_t);
        for (int i0 = 0; i0 < T; i0 += TILE) {
            int queries = std::min(TILE, T - i0), end = std::min(T, i0 + TILE);
            transpose_to_tile(words(q + i0 * q_stride), q_stride / PER_WORD, queries, E / PER_WORD, q_t);
            vec max[2] = {broadcast(-INF), broadcast(-INF)}, total[2] = {};
            for (int j0 = 0; j0 < end; j0 += KEYS) {
                int keys = std::min(KEYS, end - j0);
                vec new_max[2] = {max[0], max[1]};
                compute_scores(words(k + j0 * k_stride), keys, q_t, i0 - j0, scores, new_max);
                if (dropout)
                    online_softmax<true>(scores, weights, keys, new_max, max, total, j0 ? out_t : nullptr, dropout, i0, j0);
                else
                    online_softmax<false>(scores, weights, keys, new_max, max, total, j0 ? out_t : nullptr);
                Epilogue<Dtype> to{out_t, TILE};
                if (j0) to.residual = out_t, to.residual_stride = TILE;
                gemm<Dtype>(values.words + word_rows(j0) * values.k, values.row, values.k, E, weights, int(word_rows(keys)), TILE,
                            to);
            }
            for (int n = 0; n < 2; n++) {
                vec inverse = scale_kept / total[n];
                float* column = out_t + n * W;
                for (int e = 0; e < E; e += PER_WORD) {
                    vec even = load(column + e * TILE) * inverse;
                    vec odd = PER_WORD > 1 ? load(column + (e + 1) * TILE) * inverse : vec{};
                    store(column + e / PER_WORD * TILE, Dtype::pack(even, odd));
                }
            }
            transpose_from_tile(out_t, queries, E / PER_WORD, reinterpret_cast<Word*>(out + i0 * out_stride),
                                out_stride / PER_WORD);
            float tile_lse[TILE];
            for (int n = 0; n < 2; n++) store(tile_lse + n * W, max[n] * scale_log2 + log2(total[n]));
            std::copy(tile_lse, tile_lse + queries, lse + i0);
        }
    }

    // Scores (keys, TILE) of keys by queries in columns, and each query's maximum. `diagonal` is the last key that the first
    // query attends to.
    void compute_scores(const Word* k, int keys, const Word* q_t, int diagonal, float* scores, vec (&max)[2]) const {
        constexpr int R = NEON ? 8 : REGISTERS == 32 ? 12 : 4;
        if (tiled_scores()) gemm<Dtype>(k, k_stride / PER_WORD, 1, keys, q_t, E / PER_WORD, TILE, {scores, TILE});
        int j = 0, unmasked = std::clamp(diagonal + 1, 0, keys);  // keys that all queries attend to
        for (; j + R <= unmasked; j += R) score_keys<false, R>(k, j, q_t, diagonal, scores, max);
        for (; j + 4 <= unmasked; j += 4) score_keys<false, 4>(k, j, q_t, diagonal, scores, max);
        for (; j + R <= keys; j += R) score_keys<true, R>(k, j, q_t, diagonal, scores, max);
        for (; j + 4 <= keys; j += 4) score_keys<true, 4>(k, j, q_t, diagonal, scores, max);
        for (; j < keys; j++) score_keys<true, 1>(k, j, q_t, diagonal, scores, max);
    }

    template <bool MASKED, int R>
    inline void score_keys(const Word* k, int j, const Word* q_t, int diagonal, float* scores, vec (&max)[2]) const {
        const int64_t row = k_stride / PER_WORD;
        scores += j * TILE;
        vec sum[R][2] = {};
        const bool computed = tiled_scores();
        if (!computed) add_products<Dtype>(k + j * row, row, 1, q_t, TILE, E / PER_WORD, sum);
#pragma GCC unroll 2
        for (int n = 0; n < 2; n++) {
            vec query = lane_indices() + float(n * W), highest = max[n];
#pragma GCC unroll 12
            for (int r = 0; r < R; r++) {
                vec x = computed ? load(scores + r * TILE + n * W) : sum[r][n];
                if constexpr (MASKED) x = query < float(j + r - diagonal) ? broadcast(-INF) : x;
                if (MASKED || !computed) store(scores + r * TILE + n * W, x);
                highest = maximum(highest, x);
            }
            max[n] = highest;
        }
    }

    // Scores -> unnormalized softmax weights relative to the new maximum, as words of adjacent keys. Rescales `total` and, if
    // not null, the outputs `out_t` summed so far. With dropout, zeroes weights of queries from i0 and keys from j0 on.
    template <bool DROPOUT>
    void online_softmax(const float* scores, Word* weights, int keys, const vec (&new_max)[2], vec (&max)[2], vec (&total)[2],
                        float* out_t, const HeadDropout* dropout = nullptr, int i0 = 0, int j0 = 0) const {
        for (int n = 0; n < 2; n++) {
            vec bound = new_max[n] * scale_log2, sums[2] = {};
            uvec words[4];
            uint32_t threshold = DROPOUT ? dropout->dropout.threshold() : 0;
            auto weight = [&](int j) { return Dtype::softmax_exp2(load(scores + j * TILE + n * W) * scale_log2 - bound); };
            float* to = reinterpret_cast<float*>(weights) + n * W;
            for (int j = 0; j < keys; j += PER_WORD, to += TILE) {
                vec even = weight(j), odd = PER_WORD > 1 && j + 1 < keys ? weight(j + 1) : vec{};
                sums[0] += even, sums[1] += odd;
                if constexpr (DROPOUT) {
                    if (j % 4 == 0) dropout->key_words(j0 + j, i0 + n * W, words);
                    even = words[j % 4] >= threshold ? even : vec{};
                    odd = PER_WORD > 1 && words[(j + 1) % 4] >= threshold ? odd : vec{};
                }
                store(to, Dtype::pack(even, odd));
            }
            vec decay = exp2(max[n] * scale_log2 - bound);  // accurate, because its error compounds over a long row
            total[n] = total[n] * decay + (sums[0] + sums[1]);
            max[n] = new_max[n];
            if (out_t)
                for (int e = 0; e < E; e++) store(out_t + e * TILE + n * W, load(out_t + e * TILE + n * W) * decay);
        }
    }

    // --------------------------------------------------------------------------------------------------- backward

    int padded_width() const { return int(round_up(E, W)); }
    int64_t backward_workspace(int64_t group) const {
        return 4 * E * TILE + 6 * QUERIES * TILE +
               group * (int64_t(T) * padded_width() + round_up(T, TILE) + 2 * columns_size());
    }

    // The query heads of a group: queries, `head_stride` from head to head; their outputs and output gradients, heads
    // contiguous; queries and gradients as words of adjacent rows; lse, T numbers per head.
    struct QueryGroup {
        const Element* q;
        int64_t head_stride;
        const Element *out, *grad;
        int64_t out_stride, grad_words_stride;
        const Word *q_words, *grad_words;
        const float* lse;
    };

    // The gradients of a group's queries in dq, heads contiguous, and of its key head: float32, rows `to_stride` apart.
    // `k_words` are the keys as words of adjacent rows, with the row stride of the queries; reads up to W - 1 words beyond a row.
    // `dropout` is that of the group's first head, or null.
    void backward(const QueryGroup& h, const Element* k, const Element* v, const Word* k_words, int64_t words_stride, int group,
                  float* dq, float* dk, float* dv, int64_t to_stride, float* workspace,
                  const HeadDropout* dropout = nullptr) const {
        Word *k_t = reinterpret_cast<Word*>(workspace), *v_t = k_t + E * TILE;
        float *dk_t = workspace + 2 * E * TILE, *dv_t = dk_t + E * TILE;
        Word *weights = reinterpret_cast<Word*>(dv_t + E * TILE), *dscores = weights + QUERIES * TILE;
        Element* dscores_rows = reinterpret_cast<Element*>(dscores + QUERIES * TILE);
        int64_t head_size = int64_t(T) * padded_width(), padded_T = round_up(T, TILE);
        uint32_t* noise = reinterpret_cast<uint32_t*>(weights) + 3 * QUERIES * TILE;
        float *scores = reinterpret_cast<float*>(weights) + 4 * QUERIES * TILE, *dq_sums = scores + 2 * QUERIES * TILE;
        float* deltas = dq_sums + group * head_size;
        Word *q_columns = reinterpret_cast<Word*>(deltas + group * padded_T), *grad_columns = q_columns + group * columns_size();
        for (int g = 0; g < group; g++) {
            compute_deltas(h.out + g * E, h.grad + g * E, h.out_stride, k_t, v_t, deltas + g * padded_T);
            transpose_columns(h.q_words + g * E, words_stride, q_columns + g * columns_size());
            transpose_columns(h.grad_words + g * E, h.grad_words_stride, grad_columns + g * columns_size());
        }
        for (int k0 = 0; k0 < T; k0 += TILE) {
            int keys = std::min(TILE, T - k0);
            transpose_to_tile(words(k + k0 * k_stride), k_stride / PER_WORD, keys, E / PER_WORD, k_t);
            transpose_to_tile(words(v + k0 * v_stride), v_stride / PER_WORD, keys, E / PER_WORD, v_t);
            for (int g = 0; g < group; g++)
                for (int i0 = k0; i0 < T; i0 += QUERIES) {
                    int rows = std::min(QUERIES, T - i0), row_words = int(word_rows(rows));
                    const Word* q = words(h.q + i0 * q_stride + g * h.head_stride);
                    const Word* grad = words(h.grad + i0 * h.out_stride + g * E);
                    ScoreTile tile{q, grad, h.out_stride / PER_WORD, k_t, v_t, h.lse + g * T + i0, deltas + g * padded_T + i0,
                                   i0 - k0, weights, dscores, dscores_rows, scores, scores + QUERIES * TILE};
                    if (tiled_scores()) {
                        gemm<Dtype>(q, q_stride / PER_WORD, 1, rows, k_t, E / PER_WORD, TILE, {tile.scores, TILE});
                        gemm<Dtype>(grad, tile.grad_stride, 1, rows, v_t, E / PER_WORD, TILE, {tile.dweights, TILE});
                    }
                    if (dropout) {
                        HeadDropout{dropout->dropout, dropout->head + g, dropout->row}.tile_words(k0, i0, rows, noise);
                        tile.noise = noise, tile.threshold = dropout->dropout.threshold(), tile.kept = dropout->dropout.scale();
                        softmax_backward<true, true>(tile, rows);
                    } else {
                        i0 - k0 < TILE - 1 ? softmax_backward<true>(tile, rows) : softmax_backward<false>(tile, rows);
                    }
                    bool add = g || i0 > k0;
                    gemm_tile(columns(h.grad_words + g * E, h.grad_words_stride, grad_columns + g * columns_size()), i0, weights,
                              row_words, dv_t, add);
                    gemm_tile(columns(h.q_words + g * E, words_stride, q_columns + g * columns_size()), i0, dscores, row_words,
                              dk_t, add);
                    add_to_dq(dscores_rows, rows, k_words + word_rows(k0) * words_stride, words_stride, keys,
                              dq_sums + g * head_size + int64_t(i0) * padded_width(), k0 > 0);
                }
            for (int i = 0; i < E * TILE; i += W) store(dk_t + i, load(dk_t + i) * scale);
            transpose_from_tile(dk_t, keys, E, dk + k0 * to_stride, to_stride);
            transpose_from_tile(dv_t, keys, E, dv + k0 * to_stride, to_stride);
        }
        for (int g = 0; g < group; g++)
            for (int t = 0; t < T; t++) {
                const float* from = dq_sums + g * head_size + int64_t(t) * padded_width();
                float* to = dq + t * to_stride + g * E;
                int e = 0;
                for (; e + 4 <= E; e += 4) store4(to + e, load4(from + e) * scale);
                for (; e < E; e++) to[e] = from[e] * scale;
            }
    }

    // delta[t] = sum_e out[t][e] grad[t][e]; two transposed tiles are workspace.
    void compute_deltas(const Element* out, const Element* grad, int64_t out_stride, Word* out_t, Word* grad_t,
                        float* delta) const {
        for (int t = 0; t < T; t += TILE) {
            int rows = std::min(TILE, T - t);
            transpose_to_tile(words(out + t * out_stride), out_stride / PER_WORD, rows, E / PER_WORD, out_t);
            transpose_to_tile(words(grad + t * out_stride), out_stride / PER_WORD, rows, E / PER_WORD, grad_t);
            for (int n = 0; n < TILE; n += W) {
                vec sum{};
                for (int e = 0; e < E / PER_WORD; e++)
                    sum = Dtype::multiply_add(sum, load(reinterpret_cast<float*>(out_t) + e * TILE + n),
                                              load(reinterpret_cast<float*>(grad_t) + e * TILE + n));
                store(delta + t + n, sum);
            }
        }
    }

    // dq[r][e] (+)= sum_c dscores[r][c] k[c][e]. Everything is inlined, so that the loops over the few keys are unrolled.
    __attribute__((flatten)) void add_to_dq(const Element* dscores_rows, int rows, const Word* k_words, int64_t words_stride,
                                            int keys, float* dq, bool add) const {
        Epilogue<Dtype> to{dq, padded_width()};
        if (add) to.residual = dq, to.residual_stride = padded_width();
        gemm<Dtype>(words(dscores_rows), TILE / PER_WORD, 1, rows, k_words, int(word_rows(std::min(TILE, keys))), padded_width(),
                    to, words_stride);
    }

    // out[e][c] (+)= sum_r rows[r][e] x[r][c] over words of the rows from `first` on, given their columns.
    void gemm_tile(const Columns& rows, int first, const Word* x, int count, float* out, bool add) const {
        Epilogue<Dtype> to{out, TILE};
        if (add) to.residual = out, to.residual_stride = TILE;
        gemm<Dtype>(rows.words + word_rows(first) * rows.k, rows.row, rows.k, E, x, count, TILE, to);
    }

    // Queries and output gradients by keys and values in columns -> softmax weights and score gradients, as words of adjacent
    // queries; the latter also as rows. `diagonal` is the last key of the tile that the first query attends to.
    struct ScoreTile {
        const Word *q, *grad;
        int64_t grad_stride;
        const Word *k_t, *v_t;
        const float *lse, *delta;
        int diagonal;
        Word *weights, *dscores;
        Element* dscores_rows;
        float *scores, *dweights;  // (rows, TILE), with tiled scores
        const uint32_t* noise = nullptr;  // (rows, TILE), with dropout
        uint32_t threshold = 0;
        float kept = 1;  // factor of the weights that are kept
    };

    template <bool MASKED, bool DROPOUT = false>
    void softmax_backward(const ScoreTile& tile, int rows) const {
        constexpr int R = NEON ? 8 : REGISTERS == 32 ? 4 : 2;
        int r = 0;
        for (; r + R <= rows; r += R) softmax_backward_rows<MASKED, DROPOUT, R>(tile, r);
        for (; r + PER_WORD <= rows; r += PER_WORD) softmax_backward_rows<MASKED, DROPOUT, PER_WORD>(tile, r);
        if (r < rows) softmax_backward_rows<MASKED, DROPOUT, 1>(tile, r);
    }

    // Scores never leave the registers, unless tile registers have computed them.
    template <bool MASKED, bool DROPOUT, int R>
    inline void softmax_backward_rows(const ScoreTile& tile, int r) const {
        vec score[R][2] = {}, dweight[R][2] = {};
        const bool computed = tiled_scores();
#pragma GCC unroll 8
        for (int i = 0; i < R && computed; i++)
#pragma GCC unroll 2
            for (int n = 0; n < 2; n++) {
                score[i][n] = load(tile.scores + (r + i) * TILE + n * W);
                dweight[i][n] = load(tile.dweights + (r + i) * TILE + n * W);
            }
        const Word *q = tile.q + r * (q_stride / PER_WORD), *grad = tile.grad + r * tile.grad_stride;
        if constexpr (NEON) {
            add_products<Dtype>(q, q_stride / PER_WORD, 1, tile.k_t, TILE, E / PER_WORD, score);
            add_products<Dtype>(grad, tile.grad_stride, 1, tile.v_t, TILE, E / PER_WORD, dweight);
        } else {  // both in one loop: of fewer independent sums, each would wait for its previous addition
            const float *k = reinterpret_cast<const float*>(tile.k_t), *v = reinterpret_cast<const float*>(tile.v_t);
            for (int e = 0; e < E / PER_WORD && !computed; e++, k += TILE, v += TILE) {
                vec key[2], value[2];
                load_registers(k, key), load_registers(v, value);
#pragma GCC unroll 4
                for (int i = 0; i < R; i++)
#pragma GCC unroll 2
                    for (int n = 0; n < 2; n++) {
                        score[i][n] = Dtype::multiply_add(score[i][n], q[i * (q_stride / PER_WORD) + e], key[n]);
                        dweight[i][n] = Dtype::multiply_add(dweight[i][n], grad[i * tile.grad_stride + e], value[n]);
                    }
            }
        }
#pragma GCC unroll 2
        for (int n = 0; n < 2; n++) {
            vec key = lane_indices() + float(n * W);
#pragma GCC unroll 8
            for (int i = 0; i < R; i += PER_WORD) {
                vec weight[2] = {}, dscore[2] = {};
                for (int j = 0; j < PER_WORD && i + j < R; j++) {
                    int row = r + i + j;
                    weight[j] = Dtype::softmax_exp2(score[i + j][n] * scale_log2 - tile.lse[row]);
                    if constexpr (MASKED) weight[j] = key > float(tile.diagonal + row) ? vec{} : weight[j];
                    if constexpr (DROPOUT) {
                        vec factor = Dropout::factors(load_words(tile.noise + row * TILE + n * W), tile.threshold, tile.kept);
                        dscore[j] = weight[j] * (dweight[i + j][n] * factor - tile.delta[row]);
                        weight[j] *= factor;
                    } else {
                        dscore[j] = weight[j] * (dweight[i + j][n] - tile.delta[row]);
                    }
                    Dtype::store_rounded(tile.dscores_rows + row * TILE + n * W, dscore[j]);
                }
                int64_t at = (r + i) / PER_WORD * TILE + n * W;
                store(reinterpret_cast<float*>(tile.weights) + at, Dtype::pack(weight[0], weight[1]));
                store(reinterpret_cast<float*>(tile.dscores) + at, Dtype::pack(dscore[0], dscore[1]));
            }
        }
    }
};

}  // namespace
