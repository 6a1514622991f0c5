// Consecutive pre-norm decoder blocks, forward and backward: norm, projections, rotary positions, causal attention, MLP and both
// residual sums, for a few rows of the batch at a time, so that intermediate results stay in the cache. Each thread processes its
// rows through all blocks without synchronizing with the others.
//
// Shapes: L blocks, B rows of T positions, D model width, H query heads, K key heads, E head dimension, Q = (H + 2 K) E, A = H E,
// F hidden units, U = F, or 2 F if gated (gates first, then values).
//     mid = x + out attention(rotate(qk_norm(qkv shift(norm(x)))))    y = mid + down act(up norm(mid))
// with dropout of the attention weights, the hidden units and both terms that are added.
// D, A, F and Q are multiples of 16, E is even. The weight gradients of parts of the batch are added in order: results are
// bitwise equal for equal numbers of parts.

#include "decode_attention.h"
#include "flash_attention.h"
#include "mlp.h"
#include "norms.h"
#include "rotary.h"

namespace {

// block.py builds it.
struct Sizes {
    int64_t B, T, D, H, K, E, F, gated, activation, centered, rotary_pairs, interleaved;  // centered: LayerNorm, else RMSNorm
    int64_t token_shift;                 // whether the attention's input is n_t mu + n_{t-1} (1 - mu), n = norm(x)
    int64_t q_norm_width, k_norm_width;  // elements per group of QK-norm: a head, or all heads; 0 without it
    double eps_1, eps_2, q_eps, k_eps, scale;

    int64_t M() const { return B * T; }
    int Q() const { return int((H + 2 * K) * E); }
    int A() const { return int(H * E); }
    int U() const { return int(gated ? 2 * F : F); }
    bool qk_norm() const { return q_norm_width || k_norm_width; }
    int64_t qk_width() const { return round_up((H + K) * E, 16); }  // of saved queries and keys, in whole vectors
};

// Tensors that a block does not have are null.
struct Weights {
    const float *norm_1, *norm_1_bias, *qkv, *qkv_bias, *out, *out_bias, *norm_2, *norm_2_bias, *up, *up_bias, *down,
        *down_bias, *q_norm, *k_norm, *mu, *cosines, *sines;  // the last two (positions, pairs)
};

// Where a block has dropout: its attention weights, what its branches add, its hidden units, the output of its MLP.
enum Site { ATTENTION, ATTENTION_BRANCH, FFN_BRANCH, HIDDEN, FFN_OUTPUT, SITES };

// Keys and values of every block, (B, K, limit, E) each; null without a cache.
struct KVCaches {
    float *const *keys, *const *values;
    int64_t limit;
};

constexpr int CHUNK_ROWS = 96, WIDE_CHUNK_ROWS = 512;  // minimum positions of a chunk, if a thread has as many

// The tensors that forward saves for backward, in one allocation.
template <class Dtype>
struct Saved {
    typedef typename Dtype::Element Element;
    float *mid, *lse, *statistics;   // (M, D), (B, H, T), (M, 4): mean and factor of both norms
    Element *qkv, *attended, *pre;   // (M, Q), (M, A), (M, U)
    Element* qk;                     // (M, qk_width): queries and keys before their norms, if there are any

    Saved(const Sizes& s, char* memory) {
        mid = reinterpret_cast<float*>(memory);
        qkv = reinterpret_cast<Element*>(mid + s.M() * s.D);
        attended = qkv + s.M() * s.Q(), pre = attended + s.M() * s.A(), qk = pre + s.M() * s.U();
        statistics = reinterpret_cast<float*>(qk + s.M() * qk_width(s)), lse = statistics + 4 * s.M();
    }
    static int64_t bytes(const Sizes& s) {
        return s.M() * (4 * (s.D + s.H + 4) + int64_t(sizeof(Element)) * (s.Q() + s.A() + s.U() + qk_width(s)));
    }
    static int64_t qk_width(const Sizes& s) { return s.qk_norm() ? s.qk_width() : 0; }
};

template <class Dtype>
struct Block {
    typedef typename Dtype::Element Element;
    typedef typename Dtype::Word Word;
    static constexpr int PER_WORD = Dtype::PER_WORD;
    static constexpr int MAX_D = 2048;

    const Sizes& s;
    const Weights& w;
    const Dropout* dropouts;  // of each site; null if none of the call's blocks has any
    Saved<Dtype> saved;
    int D, Q, A, F, U, rows;  // rows per matmul
    Norm norms[2];
    GroupNorm q_norm, k_norm;
    FlashAttention<Dtype> flash;
    HiddenUnits<Dtype> hidden;
    Word *qkv, *out, *up, *down;  // packed weights

    Block(const Sizes& s, const Weights& w, const Dropout* dropouts, char* saved_memory, Word* packed)
        : s(s), w(w), dropouts(dropouts), saved(s, saved_memory), D(int(s.D)), Q(s.Q()), A(s.A()), F(int(s.F)), U(s.U()), rows(D > 256 ? 96 : 64),
          norms{{D, bool(s.centered), float(s.eps_1), w.norm_1, w.norm_1_bias},
                {D, bool(s.centered), float(s.eps_2), w.norm_2, w.norm_2_bias}},
          q_norm{s.H * s.E, s.q_norm_width, float(s.q_eps), w.q_norm}, k_norm{s.K * s.E, s.k_norm_width, float(s.k_eps), w.k_norm},
          flash{int(s.T), int(s.E), Q, Q, Q, float(s.scale)}, hidden(F, bool(s.gated), int(s.activation)) {
        qkv = packed, out = qkv + int64_t(Q) * D / PER_WORD, up = out + int64_t(A) * D / PER_WORD;
        down = up + int64_t(U) * D / PER_WORD;
    }

    static int64_t packed_words(const Sizes& s) { return (s.D * (s.Q() + s.A() + s.U() + s.F)) / PER_WORD; }

    const Word* words(const Element* x) const { return reinterpret_cast<const Word*>(x); }

    void pack_weights(WeightPacking<Dtype>& packing) const {
        packing.add(w.qkv, qkv, Q, D);
        packing.add(w.out, out, D, A);
        packing.add(w.up, up, U, D);
        packing.add(w.down, down, D, F);
    }

    // Rows of the batch per chunk.
    int64_t chunk() const { return std::max<int64_t>(1, (D > 256 ? WIDE_CHUNK_ROWS : CHUNK_ROWS) / s.T); }

    // Queries and keys of one position, in place; direction = -1 for their gradients.
    void rotate_heads(float* row, int64_t position, float direction) const {
        const float *cosines = w.cosines + position * s.rotary_pairs, *sines = w.sines + position * s.rotary_pairs;
        for (int64_t h = 0; h < s.H + s.K; h++, row += s.E) rotate(row, s.rotary_pairs, s.interleaved, cosines, sines, direction);
    }

    // Norms queries and keys of one position, in place.
    void norm_heads(float* row) const {
        q_norm.forward(row);
        k_norm.forward(row + s.H * s.E);
    }

    // Copies the keys and values of one position from its row of queries, keys and values to the cache.
    template <class From>
    void write_cache(const From* row, int64_t b, int64_t position, float* keys, float* values, int64_t limit) const {
        const From *key = row + s.H * s.E, *value = key + s.K * s.E;
        for (int64_t g = 0; g < s.K; g++, key += s.E, value += s.E) {
            int64_t at = ((b * s.K + g) * limit + position) * s.E;
            for (int64_t e = 0; e < s.E; e++) keys[at + e] = to_float(key[e]), values[at + e] = to_float(value[e]);
        }
    }
    static float to_float(float x) { return x; }
    static float to_float(uint16_t x) { return BFloat16::to_float(x); }

    void norm_rows(int which, const float* x, int count, float* statistics, int statistics_stride, Element* normed) const {
        for (int r = 0; r < count; r++)
            norms[which].forward(x + int64_t(r) * D, statistics + r * statistics_stride,
                                 [&](int c, vec z) { Dtype::store_rounded(normed + r * D + c, z); });
    }

    const Dropout* dropout(Site site) const { return dropouts && dropouts[site] ? dropouts + site : nullptr; }

    // Dropout of rows of `width` numbers from position m on, in place.
    template <class Number>
    void drop_rows(Site site, int64_t m, int64_t count, int width, typename Number::Element* x) const {
        const Dropout* dropout = this->dropout(site);
        for (int64_t r = 0; dropout && r < count; r++, m++, x += width)
            dropout->for_each_vector(m % s.T, m / s.T, width, [&](int c, vec factors) {
                Number::store_rounded(x + c, Number::load_float(x + c) * factors);
            });
    }

    // A branch's output from position m on, after its dropout, plus x.
    void add_branch(bool ffn, const float* x, int64_t m, int count, float* branch) const {
        if (ffn) drop_rows<Float32>(FFN_OUTPUT, m, count, D, branch);
        drop_rows<Float32>(ffn ? FFN_BRANCH : ATTENTION_BRANCH, m, count, D, branch);
        for (int c = 0; c < count * D; c += W) store(branch + c, load(x + c) + load(branch + c));
    }
    bool drops_branch(bool ffn) const { return ffn ? dropout(FFN_OUTPUT) || dropout(FFN_BRANCH) : bool(dropout(ATTENTION_BRANCH)); }

    // The gradient of a branch's output, given that of its sum with x: in `memory` if there is dropout.
    const float* branch_grad(bool ffn, const float* grad, int64_t m, int64_t count, float* memory) const {
        if (!drops_branch(ffn)) return grad;
        std::copy(grad, grad + count * D, memory);
        drop_rows<Float32>(ffn ? FFN_BRANCH : ATTENTION_BRANCH, m, count, D, memory);
        if (ffn) drop_rows<Float32>(FFN_OUTPUT, m, count, D, memory);
        return memory;
    }

    // norm_rows(0, ...) of consecutive positions from m on, each mixed with the one before; `lines` are two rows, the last normed
    // ones, by the parity of their position.
    void shifted_rows(const float* x, int64_t m, int count, float* statistics, float* lines, Element* shifted) const {
        for (int r = 0; r < count; r++, m++, x += D, statistics += 4, shifted += D) {
            float *line = lines + (m & 1) * D, *previous = lines + (~m & 1) * D;
            if (m % s.T == 0) std::fill(previous, previous + D, 0.0f);
            norms[0].forward(x, statistics, [&](int c, vec z) {
                store(line + c, z);
                Dtype::store_rounded(shifted + c, mix(z, load(previous + c), load(w.mu + c)));
            });
        }
    }
    static ALWAYS_INLINE vec mix(vec current, vec previous, vec mu) { return current * mu + previous * (1.0f - mu); }

    // ---------------------------------------------------------------------------------------------------- forward

    int64_t forward_workspace() const {
        return int64_t(rows) * (D + std::max(Q, U) + F) + 2 * D + s.T * s.K * s.E + 2 * W + flash.forward_workspace();
    }

    void forward(const float* x, float* y, float* keys, float* values, int64_t limit, int64_t b0, int64_t b1,
                 float* workspace) const {
        Element* normed = reinterpret_cast<Element*>(workspace);
        float *wide = workspace + int64_t(rows) * D, *hidden_space = wide + int64_t(rows) * std::max(Q, U);
        float* lines = hidden_space + int64_t(rows) * F;
        Word* value_words = reinterpret_cast<Word*>(lines + 2 * D);
        float* flash_space = reinterpret_cast<float*>(value_words) + round_up(s.T * s.K * s.E, W) + W;
        Element* h = reinterpret_cast<Element*>(hidden_space);
        int64_t T = s.T, from = b0 * T, to = b1 * T;
        for (int64_t m = from; m < to; m += rows) {
            int count = int(std::min<int64_t>(rows, to - m));
            if (s.token_shift)
                shifted_rows(x + m * D, m, count, saved.statistics + 4 * m, lines, normed);
            else
                norm_rows(0, x + m * D, count, saved.statistics + 4 * m, 4, normed);
            if (!s.rotary_pairs && !s.qk_norm()) {
                gemm<Dtype>(words(normed), D / PER_WORD, 1, count, qkv, D / PER_WORD, Q,
                            {nullptr, 0, w.qkv_bias, nullptr, 0, saved.qkv + m * Q, Q});
                continue;
            }
            gemm<Dtype>(words(normed), D / PER_WORD, 1, count, qkv, D / PER_WORD, Q, {wide, Q, w.qkv_bias});
            for (int r = 0; r < count; r++) {
                float* row = wide + int64_t(r) * Q;
                if (s.qk_norm()) {
                    int width = int(s.qk_width());
                    for (int c = 0; c < width; c += W) Dtype::store_rounded(saved.qk + (m + r) * width + c, load(row + c));
                    norm_heads(row);
                }
                if (s.rotary_pairs) rotate_heads(row, (m + r) % T, 1.0f);
                for (int c = 0; c < Q; c += W) Dtype::store_rounded(saved.qkv + (m + r) * Q + c, load(row + c));
            }
        }
        for (int64_t m = from; keys && m < to; m++) write_cache(saved.qkv + m * Q, m / T, m % T, keys, values, limit);
        for (int64_t b = b0; b < b1; b++) {
            const Element* q = saved.qkv + b * T * Q;
            int width = int(s.K * s.E);
            pack_adjacent_rows<Dtype>(q + (s.H + s.K) * s.E, Q, int(T), width, value_words, width);
            for (int64_t head = 0; head < s.H; head++) {
                int64_t g = head / (s.H / s.K);
                Element* attended = saved.attended + b * T * A + head * s.E;
                const Dropout* dropout = this->dropout(ATTENTION);
                HeadDropout of_head = dropout ? HeadDropout{*dropout, head, b} : HeadDropout{};
                flash.forward(q + head * s.E, q + (s.H + g) * s.E, value_words + g * s.E, width, attended, A,
                              saved.lse + (b * s.H + head) * T, flash_space, dropout ? &of_head : nullptr);
            }
        }
        for (int64_t m = from; m < to; m += rows) {
            int count = int(std::min<int64_t>(rows, to - m));
            float* mid = saved.mid + m * D;
            gemm<Dtype>(words(saved.attended + m * A), A / PER_WORD, 1, count, out, A / PER_WORD, D,
                        {mid, D, w.out_bias, drops_branch(false) ? nullptr : x + m * D, D});
            if (drops_branch(false)) add_branch(false, x + m * D, m, count, mid);
            norm_rows(1, mid, count, saved.statistics + 4 * m + 2, 4, normed);
            mlp_rows(normed, m, count, mid, wide, saved.pre + m * U, h, y + m * D);
        }
    }

    // y = mid + down act(up normed)
    void mlp_rows(const Element* normed, int64_t m, int count, const float* mid, float* wide, Element* pre, Element* h,
                  float* y) const {
        gemm<Dtype>(words(normed), D / PER_WORD, 1, count, up, D / PER_WORD, U, {wide, U, w.up_bias});
        hidden.forward(wide, count, pre, h);
        drop_rows<Dtype>(HIDDEN, m, count, F, h);
        gemm<Dtype>(words(h), F / PER_WORD, 1, count, down, F / PER_WORD, D,
                    {y, D, w.down_bias, drops_branch(true) ? nullptr : mid, D});
        if (drops_branch(true)) add_branch(true, mid, m, count, y);
    }

    // ----------------------------------------------------------------------------------------------------- decode

    int64_t decode_workspace(int64_t limit) const {
        return int64_t(rows) * (2 * D + std::max(Q, U) + A + U + F) + round_up(limit, W);
    }

    // T tokens per row after `past` cached ones. Appends their keys and values to the cache, (B, K, limit, E) each. x may
    // alias y.
    void decode(const float* x, float* y, float* keys, float* values, int64_t limit, int64_t past, int64_t b0, int64_t b1,
                float* workspace) const {
        float *mid = workspace, *wide = mid + int64_t(rows) * D, *p = wide + int64_t(rows) * std::max(Q, U);
        Element *normed = reinterpret_cast<Element*>(p + round_up(limit, W)), *attended = normed + int64_t(rows) * D;
        Element *pre = attended + int64_t(rows) * A, *h = pre + int64_t(rows) * U;
        float statistics[2];
        for (int64_t m = b0 * s.T; m < b1 * s.T; m += rows) {
            int count = int(std::min<int64_t>(rows, b1 * s.T - m));
            norm_rows(0, x + m * D, count, statistics, 0, normed);
            gemm<Dtype>(words(normed), D / PER_WORD, 1, count, qkv, D / PER_WORD, Q, {wide, Q, w.qkv_bias});
            for (int r = 0; r < count; r++) {
                int64_t b = (m + r) / s.T, position = past + (m + r) % s.T, group_size = limit * s.E;
                float* row = wide + int64_t(r) * Q;
                const float *key = keys + b * s.K * group_size, *value = values + b * s.K * group_size;
                if (s.qk_norm()) norm_heads(row);
                if (s.rotary_pairs) rotate_heads(row, position, 1.0f);
                write_cache(row, b, position, keys, values, limit);
                for (int64_t head = 0; head < s.H; head++) {
                    int64_t group = head / (s.H / s.K) * group_size;
                    if (head % (s.H / s.K) == 0)  // prefetch two key heads ahead: too short for the hardware prefetcher
                        for (int64_t i = group + 2 * group_size, end = i + (position + 1) * s.E; i < end; i += 16)
                            __builtin_prefetch(key + i), __builtin_prefetch(value + i);
                    decode_attention(row + head * s.E, key + group, s.E, value + group, s.E, int(position) + 1, int(s.E),
                                     int(s.E), flash.scale_log2, p, row + head * s.E);
                }
                round_rows<Dtype>(row, 1, A, attended + int64_t(r) * A);
            }
            gemm<Dtype>(words(attended), A / PER_WORD, 1, count, out, A / PER_WORD, D, {mid, D, w.out_bias, x + m * D, D});
            norm_rows(1, mid, count, statistics, 0, normed);
            mlp_rows(normed, m, count, mid, wide, pre, h, y + m * D);
        }
    }

    // --------------------------------------------------------------------------------------------------- backward

    // One thread's weight gradients, in the order of `Weights`; those of absent norm weights and biases included.
    struct Gradients {
        static constexpr int COUNT = 15;
        float *norm_1, *norm_1_bias, *qkv, *qkv_bias, *out, *out_bias, *norm_2, *norm_2_bias, *up, *up_bias, *down, *down_bias,
            *q_norm, *k_norm, *mu;

        static Gradients concatenated(const Sizes& s, float* memory) {
            Gradients gradients;
            float** pointers = &gradients.norm_1;
            for (int i = 0; i < COUNT; memory += elements(s, i++)) pointers[i] = memory;
            return gradients;
        }
        static int64_t elements(const Sizes& s, int which) {
            int64_t elements[] = {s.D,         s.D,   s.Q() * s.D, s.Q(), s.D * s.A(),    s.D,           s.D, s.D,
                                  s.U() * s.D, s.U(), s.D * s.F,   s.D,   s.q_norm_width, s.k_norm_width, s.token_shift ? s.D : 0};
            return elements[which];
        }
        static int64_t elements(const Sizes& s) {
            int64_t sum = 0;
            for (int i = 0; i < COUNT; i++) sum += elements(s, i);
            return sum;
        }
    };

    int64_t backward_workspace() const {
        int64_t n = round_up(std::min<int64_t>(s.B, chunk()) * s.T, 2), widest = std::max({U, Q, D});
        return n * (Q + 2 * D + std::max(F, A) + widest + A) + int64_t(rows) * (2 * widest + D) + round_up(s.T, 2) * (Q + A) + W +
               s.qk_width() + (s.token_shift ? n * D + D : 0) + (dropouts ? n * D + int64_t(rows) * F : 0) + flash.backward_workspace(s.H / s.K);
    }

    void backward(const float* x, const float* grad, float* dx, int64_t b0, int64_t b1, const Gradients& to,
                  float* workspace) const {
        int64_t T = s.T, from = b0 * T, n = (b1 - b0) * T, even_n = round_up(n, 2);
        int chunk_words = int((n + PER_WORD - 1) / PER_WORD);  // word rows of this chunk
        auto take = [&](int64_t size) {
            float* here = workspace;
            workspace += size;
            return here;
        };
        float* dqkv = take(n * Q);
        Word* grad_packed = reinterpret_cast<Word*>(take(even_n * D));
        Word* normed_packed = reinterpret_cast<Word*>(take(even_n * D));
        Word* hidden_packed = reinterpret_cast<Word*>(take(even_n * std::max(F, A)));
        Word* dpre_packed = reinterpret_cast<Word*>(take(even_n * std::max({U, Q, D})));
        Element* dattended = reinterpret_cast<Element*>(take(n * A));
        float* wide = take(int64_t(rows) * std::max({U, Q, D}));
        Element* rounded = reinterpret_cast<Element*>(take(int64_t(rows) * std::max({U, Q, D})));
        float* dnormed = take(int64_t(rows) * D);
        Word* qk_words = reinterpret_cast<Word*>(take(round_up(T, 2) * Q + W));
        Word* dattended_words = reinterpret_cast<Word*>(take(round_up(T, 2) * A));
        float* qk = take(s.qk_width());
        float* dshifted = take(s.token_shift ? n * D : 0);
        Shift shift{dshifted, take(s.token_shift ? D : 0), to.mu};
        float *dbranch_memory = take(dropouts ? n * D : 0), *factors = take(dropouts ? int64_t(rows) * F : 0);
        float* flash_space = workspace;

        // MLP
        const float* dbranch = branch_grad(true, grad + from * D, from, n, dbranch_memory);
        pack_rows<Dtype>(dbranch, D, int(n), D, grad_packed);
        add_column_sums(dbranch, int(n), D, to.down_bias);
        for (int64_t m = 0; m < n; m += rows) {
            int count = int(std::min<int64_t>(rows, n - m));
            const float *g = grad + (from + m) * D, *mid = saved.mid + (from + m) * D;
            round_rows<Dtype>(dbranch + m * D, count, D, rounded);
            gemm<Dtype>(words(rounded), D / PER_WORD, 1, count, down, D / PER_WORD, F, {wide, F});
            const Element* pre = saved.pre + (from + m) * U;
            if (dropout(HIDDEN)) {
                std::fill(factors, factors + count * F, 1.0f);
                drop_rows<Float32>(HIDDEN, from + m, count, F, factors);
                for (int c = 0; c < count * F; c += W) store(wide + c, load(wide + c) * load(factors + c));
            }
            hidden.backward(wide, pre, int(m), count, chunk_words, hidden_packed, dpre_packed, rounded, to.up_bias);
            if (dropout(HIDDEN)) hidden.scale_packed(factors, int(m), count, chunk_words, hidden_packed);
            gemm<Dtype>(words(rounded), U / PER_WORD, 1, count, up, U / PER_WORD, D, {dnormed, D});
            norm_backward(1, mid, from + m, int(m), count, chunk_words, dnormed, g, dx + (from + m) * D, normed_packed, to.norm_2,
                          to.norm_2_bias, nullptr);
        }
        add_gemm_transposed<Dtype>(grad_packed, D, hidden_packed, F, chunk_words, to.down);
        add_gemm_transposed<Dtype>(dpre_packed, U, normed_packed, D, chunk_words, to.up);

        // output projection and attention
        dbranch = branch_grad(false, dx + from * D, from, n, dbranch_memory);
        pack_rows<Dtype>(dbranch, D, int(n), D, grad_packed);
        add_column_sums(dbranch, int(n), D, to.out_bias);
        for (int64_t m = 0; m < n; m += rows) {
            int count = int(std::min<int64_t>(rows, n - m));
            round_rows<Dtype>(dbranch + m * D, count, D, rounded);
            gemm<Dtype>(words(rounded), D / PER_WORD, 1, count, out, D / PER_WORD, A,
                        {nullptr, 0, nullptr, nullptr, 0, dattended + m * A, A});
        }
        pack_rounded_rows<Dtype>(saved.attended + from * A, int(n), A, hidden_packed);
        add_gemm_transposed<Dtype>(grad_packed, D, hidden_packed, A, chunk_words, to.out);
        for (int64_t b = b0; b < b1; b++) {
            int64_t group = s.H / s.K, first_row = (b - b0) * T, qk_width = (s.H + s.K) * s.E;
            const Element *q = saved.qkv + b * T * Q, *k = q + s.H * s.E, *v = k + s.K * s.E;
            float *dq = dqkv + first_row * Q, *dk = dq + s.H * s.E, *dv = dk + s.K * s.E;
            pack_adjacent_rows<Dtype>(q, Q, int(T), int(qk_width), qk_words, qk_width);
            pack_adjacent_rows<Dtype>(dattended + first_row * A, A, int(T), A, dattended_words, A);
            for (int64_t g = 0; g < s.K; g++) {
                int64_t query = g * group * s.E, key = g * s.E;
                const Element* attended = saved.attended + b * T * A + query;
                typename FlashAttention<Dtype>::QueryGroup queries{
                    q + query, s.E, attended, dattended + first_row * A + query, A, A, qk_words + query, dattended_words + query,
                    saved.lse + (b * s.H + g * group) * T};
                const Dropout* dropout = this->dropout(ATTENTION);
                HeadDropout of_head = dropout ? HeadDropout{*dropout, g * group, b} : HeadDropout{};
                flash.backward(queries, k + key, v + key, qk_words + s.H * s.E + key, qk_width, int(group), dq + query, dk + key,
                               dv + key, Q, flash_space, dropout ? &of_head : nullptr);
            }
        }

        // QKV projection
        for (int64_t m = 0; m < n && (s.rotary_pairs || s.qk_norm()); m++) {
            float* dq = dqkv + m * Q;
            if (s.rotary_pairs) rotate_heads(dq, m % T, -1.0f);
            if (!s.qk_norm()) continue;
            for (int64_t c = 0; c < s.qk_width(); c += W) store(qk + c, Dtype::load_float(saved.qk + (from + m) * s.qk_width() + c));
            q_norm.backward(qk, dq, to.q_norm);
            k_norm.backward(qk + s.H * s.E, dq + s.H * s.E, to.k_norm);
        }
        pack_rows<Dtype>(dqkv, Q, int(n), Q, dpre_packed);
        add_column_sums(dqkv, int(n), Q, to.qkv_bias);
        auto qkv_backward = [&](int64_t m, int count, float* dinput) {
            round_rows<Dtype>(dqkv + m * Q, count, Q, rounded);
            gemm<Dtype>(words(rounded), Q / PER_WORD, 1, count, qkv, Q / PER_WORD, D, {dinput, D});
        };
        // a normed row is also the input of the next position: all gradients of inputs first
        for (int64_t m = 0; s.token_shift && m < n; m += rows)
            qkv_backward(m, int(std::min<int64_t>(rows, n - m)), dshifted + m * D);
        for (int64_t m = 0; m < n; m += rows) {
            int count = int(std::min<int64_t>(rows, n - m));
            shift.grad = dshifted + m * D;
            if (s.token_shift)
                unshift_rows(shift.grad, m, count, dnormed);
            else
                qkv_backward(m, count, dnormed);
            norm_backward(0, x + (from + m) * D, from + m, int(m), count, chunk_words, dnormed, dx + (from + m) * D,
                          dx + (from + m) * D, normed_packed, to.norm_1, to.norm_1_bias, s.token_shift ? &shift : nullptr);
        }
        add_gemm_transposed<Dtype>(dpre_packed, Q, normed_packed, D, chunk_words, to.qkv);
    }

    // The gradients of normed rows, given those of the mixed ones.
    void unshift_rows(const float* grad, int64_t m, int count, float* dnormed) const {
        for (int r = 0; r < count; r++, m++, grad += D, dnormed += D) {
            bool last = (m + 1) % s.T == 0;
            for (int c = 0; c < D; c += W)
                store(dnormed + c, mix(load(grad + c), last ? vec{} : load(grad + D + c), load(w.mu + c)));
        }
    }

    // Gradients of the mixed rows, the normed row before the next one, and where to add the gradient of mu.
    struct Shift {
        const float* grad;
        float *previous, *dmu;
    };

    // A normed row -> the mixed one, in place.
    void shift_row(const Shift& shift, int64_t m, const float* grad, float* row) const {
        if (m % s.T == 0) std::fill(shift.previous, shift.previous + D, 0.0f);
        for (int c = 0; c < D; c += W) {
            vec current = load(row + c), previous = load(shift.previous + c);
            store(shift.dmu + c, load(shift.dmu + c) + load(grad + c) * (current - previous));
            store(row + c, mix(current, previous, load(w.mu + c)));
            store(shift.previous + c, current);
        }
    }

    // dx = residual + the gradient of a norm's input, given that of its output; and the output again, mixed if `shift` is not
    // null, as packed words of rows.
    void norm_backward(int which, const float* x, int64_t m, int first, int count, int chunk_words, const float* grad,
                       const float* residual, float* dx, Word* normed_packed, float* dweight, float* dbias,
                       const Shift* shift) const {
        const Norm& norm = norms[which];
        float normed[2][MAX_D];
        auto output = [&](int i, int c, vec z) { store(normed[i] + c, z); };
        for (int r = 0; r < count; r += PER_WORD) {
            int64_t at = int64_t(r) * D;
            const float* statistics = saved.statistics + 4 * (m + r) + 2 * which;
            if (r + PER_WORD <= count) {
                norm.template backward<PER_WORD>(x + at, statistics, 4, grad + at, residual + at, dx + at, dweight, dbias,
                                                 output);
            } else {
                norm.template backward<1>(x + at, statistics, 4, grad + at, residual + at, dx + at, dweight, dbias, output);
                std::fill(normed[1], normed[1] + D, 0.0f);
            }
            for (int i = 0; shift && i < PER_WORD && r + i < count; i++)
                shift_row(*shift, m + r + i, shift->grad + at + int64_t(i) * D, normed[i]);
            int word = (first + r) / PER_WORD;
            for (int c = 0, width; c < D; c += width) {
                width = panel_width(D - c);
                float* panel = reinterpret_cast<float*>(normed_packed) + int64_t(c) * chunk_words + int64_t(word) * width;
                for (int k = 0; k < width; k += W)
                    store(panel + k, Dtype::pack(load(normed[0] + c + k), load(normed[1] + c + k)));
            }
        }
    }
};

// All blocks with packed weights, W^T for forward, W for backward.
template <class Dtype>
std::vector<Block<Dtype>> pack_blocks(const Sizes& s, const Weights* w, const Dropout* dropouts, int64_t L, bool forward,
                                      char* saved, int64_t saved_stride, void* packed, int threads, Parallel parallel) {
    std::vector<Block<Dtype>> blocks;
    blocks.reserve(L);
    WeightPacking<Dtype> packing{forward};
    auto* words = static_cast<typename Dtype::Word*>(packed);
    for (int64_t l = 0; l < L; l++) {
        const Dropout* of_block = dropouts ? dropouts + l * SITES : nullptr;
        blocks.emplace_back(s, w[l], of_block, saved + l * saved_stride, words + l * Block<Dtype>::packed_words(s));
        blocks.back().pack_weights(packing);
    }
    packing.run(threads, parallel);
    return blocks;
}

// task(from, to) for each chunk of the rows of one part of the batch.
template <class Task>
void for_each_chunk(const Sizes& s, int64_t part, int64_t parts, int64_t chunk, const Task& task) {
    int64_t end = s.B * (part + 1) / parts;
    for (int64_t b = s.B * part / parts; b < end; b += chunk) task(b, std::min(end, b + chunk));
}

template <class Dtype>
void run_forward(const Sizes& s, const Weights* w, const Dropout* dropouts, int64_t L, bool save, const float* x, float* y,
                 float* between, char* saved, const KVCaches& caches, void* packed, int threads, Parallel parallel) {
    int64_t saved_stride = save ? Saved<Dtype>::bytes(s) : 0;
    auto blocks = pack_blocks<Dtype>(s, w, dropouts, L, true, saved, saved_stride, packed, threads, parallel);
    int64_t size = s.M() * s.D;
    parallel_for(threads, blocks[0].forward_workspace(), threads, parallel, [&](int64_t i, float* workspace) {
        const float* from = x;
        for (int64_t l = 0; l < L; l++) {
            float* to = save && l + 1 < L ? between + l * size : y;
            float *keys = caches.keys ? caches.keys[l] : nullptr, *values = caches.keys ? caches.values[l] : nullptr;
            for_each_chunk(s, i, threads, blocks[l].chunk(), [&](int64_t b0, int64_t b1) {
                blocks[l].forward(from, to, keys, values, caches.limit, b0, b1, workspace);
            });
            from = to;
        }
    });
}

template <class Dtype>
void run_decode(const Sizes& s, const Weights* w, int64_t L, const float* x, float* y, const KVCaches& caches, int64_t past,
                void* packed, int threads, Parallel parallel) {
    auto* saved = static_cast<char*>(packed);  // saves nothing
    auto blocks = pack_blocks<Dtype>(s, w, nullptr, L, true, saved, 0, packed, threads, parallel);
    parallel_for(threads, blocks[0].decode_workspace(caches.limit), threads, parallel, [&](int64_t i, float* workspace) {
        for (int64_t l = 0; l < L; l++)
            blocks[l].decode(l ? y : x, y, caches.keys[l], caches.values[l], caches.limit, past, s.B * i / threads,
                             s.B * (i + 1) / threads, workspace);
    });
}

template <class Dtype>
void run_backward(const Sizes& s, const Weights* w, const Dropout* dropouts, int64_t L, const float* x, const float* between,
                  const float* grad, char* saved, void* packed, float* dx, float* const* weight_grads, float* part_grads,
                  int parts, int threads, Parallel parallel) {
    typedef typename Block<Dtype>::Gradients Gradients;
    auto blocks = pack_blocks<Dtype>(s, w, dropouts, L, false, saved, Saved<Dtype>::bytes(s), packed, threads, parallel);
    int64_t size = Gradients::elements(s);
    parallel_for(parts, blocks[0].backward_workspace(), threads, parallel, [&](int64_t i, float* workspace) {
        for (int64_t l = L - 1; l >= 0; l--) {
            Gradients to;
            if (i)
                to = Gradients::concatenated(s, part_grads + ((i - 1) * L + l) * size);
            else
                std::copy(weight_grads + l * Gradients::COUNT, weight_grads + (l + 1) * Gradients::COUNT, &to.norm_1);
            for (int k = 0; k < Gradients::COUNT; k++) {
                float* gradient = (&to.norm_1)[k];
                std::fill(gradient, gradient + Gradients::elements(s, k), 0.0f);
            }
            const float *input = l ? between + (l - 1) * s.M() * s.D : x, *output_grad = l + 1 < L ? dx : grad;
            for_each_chunk(s, i, parts, blocks[l].chunk(), [&](int64_t b0, int64_t b1) {
                blocks[l].backward(input, output_grad, dx, b0, b1, to, workspace);
            });
        }
    });
    if (parts < 2) return;
    parallel_for(L * Gradients::COUNT, 0, threads, parallel, [&](int64_t i, float*) {
        int64_t l = i / Gradients::COUNT;
        int k = int(i % Gradients::COUNT);
        if (!(&w[l].norm_1)[k]) return;  // the caller drops the gradient of an absent weight
        const float* from = part_grads + l * size;
        for (int j = 0; j < k; j++) from += Gradients::elements(s, j);
        for (int64_t part = 1; part < parts; part++, from += L * size)
            for (int64_t n = 0; n < Gradients::elements(s, k); n++) weight_grads[i][n] += from[n];
    });
}

}  // namespace

extern "C" {

// Per block: bytes saved for backward, elements of all weight gradients, bytes of the packed weights.
void block_buffer_sizes(const Sizes* s, int bf16, int64_t* sizes) {
    sizes[0] = bf16 ? Saved<BFloat16>::bytes(*s) : Saved<Float32>::bytes(*s);
    sizes[1] = Block<Float32>::Gradients::elements(*s);
    sizes[2] = Block<Float32>::packed_words(*s) * (bf16 ? 2 : 4);
}

int block_max_d_model() { return Block<Float32>::MAX_D; }

// x (M, D) -> y (M, D). If `save`, `between` (L - 1, M, D) and `saved` of every block are kept for backward; if not, `saved` is
// workspace for one block. If keys are not null, fills them and the values from position 0 on. `dropouts` (L, SITES) may be null.
void blocks_forward(const Sizes* s, const Weights* w, const Dropout* dropouts, int64_t L, int bf16, int save, const float* x,
                    float* y, float* between, char* saved, float* const* keys, float* const* values, int64_t limit, void* packed,
                    int threads, Parallel parallel) {
    KVCaches caches{keys, values, limit};
    if (bf16)
        run_forward<BFloat16>(*s, w, dropouts, L, save, x, y, between, saved, caches, packed, threads, parallel);
    else
        run_forward<Float32>(*s, w, dropouts, L, save, x, y, between, saved, caches, packed, threads, parallel);
}

// T tokens per row after `past` others, x (M, D) -> y (M, D); appends their keys and values to those of every block.
void blocks_decode(const Sizes* s, const Weights* w, int64_t L, int bf16, const float* x, float* y, float* const* keys,
                   float* const* values, int64_t limit, int64_t past, void* packed, int threads, Parallel parallel) {
    KVCaches caches{keys, values, limit};
    if (bf16)
        run_decode<BFloat16>(*s, w, L, x, y, caches, past, packed, threads, parallel);
    else
        run_decode<Float32>(*s, w, L, x, y, caches, past, packed, threads, parallel);
}

// dx, and the gradients of the weights, of absent norms and biases too, in `weight_grads`; `part_grads` is as much workspace
// for every part of the batch but the first, among which the threads share their work.
void blocks_backward(const Sizes* s, const Weights* w, const Dropout* dropouts, int64_t L, int bf16, const float* x,
                     const float* between, const float* grad, char* saved, void* packed, float* dx, float* const* weight_grads,
                     float* part_grads, int parts, int threads, Parallel parallel) {
    (bf16 ? run_backward<BFloat16> : run_backward<Float32>)(*s, w, dropouts, L, x, between, grad, saved, packed, dx, weight_grads,
                                                            part_grads, parts, threads, parallel);
}
}
