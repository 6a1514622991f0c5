// The two parts of a block that are more than a matmul, attention and the MLP, with bfloat16 operands and float32
// accumulation: for blocks that block.cpp does not support as a whole.

#include "flash_attention.h"
#include "mlp.h"
#include "strides.h"

namespace {

struct Shape {
    int64_t B, T, H, K, E;
    Strides q, k, v;
};

// Attention over tensors in any layout with contiguous heads.
template <class Dtype>
struct Attention {
    typedef typename Dtype::Element Element;
    typedef typename Dtype::Word Word;

    const Shape& s;
    int E = int(s.E), T = int(s.T);
    int64_t group = s.H / s.K, out_stride = s.H * s.E;
    FlashAttention<Dtype> flash;

    Attention(const Shape& s, float scale) : s(s), flash{int(s.T), int(s.E), s.q.t, s.k.t, s.v.t, scale} {}

    void forward(const Element* q, const Element* k, const Element* v, Element* out, float* lse, int threads,
                 Parallel parallel) const {
        int64_t values_size = round_up(round_up(T, 2) * E, W);
        parallel_for(s.B * s.K, values_size + flash.forward_workspace(), threads, parallel, [&](int64_t i, float* workspace) {
            int64_t b = i / s.K, g = i % s.K;
            Word* values = reinterpret_cast<Word*>(workspace);
            pack_adjacent_rows<Dtype>(v + s.v.offset(b, g), s.v.t, T, E, values, E);
            for (int64_t h = g * group; h < (g + 1) * group; h++)
                flash.forward(q + s.q.offset(b, h), k + s.k.offset(b, g), values, E, out + b * T * out_stride + h * E, out_stride,
                              lse + (b * s.H + h) * T, workspace + values_size);
        });
    }

    // The gradients are contiguous, like `out` and `grad`.
    void backward(const Element* q, const Element* k, const Element* v, const Element* out, const float* lse, const Element* grad,
                  Element* dq, Element* dk, Element* dv, int threads, Parallel parallel) const {
        int64_t rows = round_up(T, 2), qk_width = (group + 1) * E, dqkv_stride = (group + 2) * E;
        int64_t qk_size = round_up(rows * qk_width + W, W), grad_size = round_up(rows * group * E, W);
        int64_t dqkv_size = round_up(T * dqkv_stride, W);
        int64_t size = qk_size + grad_size + dqkv_size + flash.backward_workspace(group);
        parallel_for(s.B * s.K, size, threads, parallel, [&](int64_t i, float* workspace) {
            int64_t b = i / s.K, g = i % s.K, first = b * T * out_stride + g * group * E;
            Word *qk_words = reinterpret_cast<Word*>(workspace), *grad_words = qk_words + qk_size;
            float *dqkv = reinterpret_cast<float*>(grad_words + grad_size), *rest = dqkv + dqkv_size;
            for (int64_t h = 0; h < group; h++)
                pack_adjacent_rows<Dtype>(q + s.q.offset(b, g * group + h), s.q.t, T, E, qk_words + h * E, qk_width);
            pack_adjacent_rows<Dtype>(k + s.k.offset(b, g), s.k.t, T, E, qk_words + group * E, qk_width);
            pack_adjacent_rows<Dtype>(grad + first, out_stride, T, int(group) * E, grad_words, group * E);
            typename FlashAttention<Dtype>::QueryGroup queries{
                q + s.q.offset(b, g * group), s.q.h, out + first, grad + first, out_stride, group * E, qk_words, grad_words,
                lse + (b * s.H + g * group) * T};
            flash.backward(queries, k + s.k.offset(b, g), v + s.v.offset(b, g), qk_words + group * E, qk_width, int(group), dqkv,
                           dqkv + group * E, dqkv + (group + 1) * E, dqkv_stride, rest);
            for (int t = 0; t < T; t++, dqkv += dqkv_stride) {
                round_row(dqkv, int(group) * E, dq + first + t * out_stride);
                round_row(dqkv + group * E, E, dk + ((b * T + t) * s.K + g) * E);
                round_row(dqkv + (group + 1) * E, E, dv + ((b * T + t) * s.K + g) * E);
            }
        });
    }

    static void round_row(const float* x, int columns, Element* out) {
        int c = 0;
        for (; c + W <= columns; c += W) Dtype::store_rounded(out + c, load(x + c));
        for (; c < columns; c++) out[c] = Dtype::from_float(x[c]);
    }
};

// x (M, D), pre = x up^T + up_bias (M, U), h = act(pre) or act(gate) value (M, F), y = h down^T + down_bias. D and F are
// multiples of 16.
struct MLP {
    typedef BFloat16::Element Element;
    typedef BFloat16::Word Word;
    static constexpr int ROWS = 48, CHUNK = 192;  // rows per matmul; rows per update of the weight gradients

    int64_t M;
    int D, F, U;
    HiddenUnits<BFloat16> hidden;

    MLP(int64_t M, int D, int F, int gated, int activation)
        : M(M), D(D), F(F), U(gated ? 2 * F : F), hidden(F, bool(gated), activation) {}

    Word* pack_weights(const float* up, const float* down, char* packed, bool transposed, int threads, Parallel parallel) const {
        WeightPacking<BFloat16> packing{transposed};
        Word* out = reinterpret_cast<Word*>(packed);
        packing.add(up, out, U, D);
        packing.add(down, out + int64_t(U) * D / 2, D, F);
        packing.run(threads, parallel);
        return out;
    }

    static const Word* words(const Element* x) { return reinterpret_cast<const Word*>(x); }

    void forward(const float* x, const float* up, const float* up_bias, const float* down, const float* down_bias, char* packed,
                 Element* pre, float* y, int threads, Parallel parallel) const {
        const Word* up_t = pack_weights(up, down, packed, true, threads, parallel);
        const Word* down_t = up_t + int64_t(U) * D / 2;
        parallel_for((M + ROWS - 1) / ROWS, int64_t(ROWS) * (D + U + F), threads, parallel, [&](int64_t i, float* wide) {
            int64_t m = i * ROWS;
            int rows = int(std::min<int64_t>(ROWS, M - m));
            Element *x_rounded = reinterpret_cast<Element*>(wide + int64_t(ROWS) * U), *h = x_rounded + int64_t(ROWS) * D * 2;
            round_rows<BFloat16>(x + m * D, rows, D, x_rounded);
            gemm<BFloat16>(words(x_rounded), D / 2, 1, rows, up_t, D / 2, U, {wide, U, up_bias});
            hidden.forward(wide, rows, pre + m * U, h);
            gemm<BFloat16>(words(h), F / 2, 1, rows, down_t, F / 2, D, {y + m * D, D, down_bias});
        });
    }

    // dx, and in `weight_grads` the concatenated gradients of up, its bias, down and its bias; `part_grads` is as much
    // workspace for every part but the first.
    void backward(const float* x, const Element* pre, const float* grad, const float* up, const float* down, char* packed,
                  float* dx, float* weight_grads, float* part_grads, int parts, int threads, Parallel parallel) const {
        const Word *up_packed = pack_weights(up, down, packed, false, threads, parallel);
        const Word *down_packed = up_packed + int64_t(U) * D / 2;
        int64_t size = int64_t(U) * D + U + int64_t(D) * F + D;
        int64_t workspace_size = int64_t(CHUNK) * (2 * D + F + U) + int64_t(ROWS) * (F + std::max(U, D));
        parallel_for(parts, workspace_size, threads, parallel, [&](int64_t i, float* workspace) {
            float *dup = i ? part_grads + (i - 1) * size : weight_grads, *dup_bias = dup + int64_t(U) * D;
            float *ddown = dup_bias + U, *ddown_bias = ddown + int64_t(D) * F;
            std::fill(dup, dup + size, 0.0f);
            Word *x_packed = reinterpret_cast<Word*>(workspace), *grad_packed = x_packed + CHUNK * D;
            Word *h_packed = grad_packed + CHUNK * D, *dpre_packed = h_packed + CHUNK * F;
            float* dh = reinterpret_cast<float*>(dpre_packed + CHUNK * U);
            Element* rounded = reinterpret_cast<Element*>(dh + ROWS * F);  // first the gradient of y, then of pre
            int64_t chunks = (M + CHUNK - 1) / CHUNK, end = std::min(M, chunks * (i + 1) / parts * CHUNK);
            for (int64_t from = chunks * i / parts * CHUNK; from < end; from += CHUNK) {
                int n = int(std::min<int64_t>(CHUNK, M - from)), chunk_words = (n + 1) / 2;
                pack_rows<BFloat16>(x + from * D, D, n, D, x_packed);
                pack_rows<BFloat16>(grad + from * D, D, n, D, grad_packed);
                add_column_sums(grad + from * D, n, D, ddown_bias);
                for (int m = 0; m < n; m += ROWS) {
                    int rows = std::min(ROWS, n - m);
                    round_rows<BFloat16>(grad + (from + m) * D, rows, D, rounded);
                    gemm<BFloat16>(words(rounded), D / 2, 1, rows, down_packed, D / 2, F, {dh, F});
                    hidden.backward(dh, pre + (from + m) * U, m, rows, chunk_words, h_packed, dpre_packed, rounded, dup_bias);
                    gemm<BFloat16>(words(rounded), U / 2, 1, rows, up_packed, U / 2, D, {dx + (from + m) * D, D});
                }
                add_gemm_transposed<BFloat16>(grad_packed, D, h_packed, F, chunk_words, ddown);
                add_gemm_transposed<BFloat16>(dpre_packed, U, x_packed, D, chunk_words, dup);
            }
        });
        add_part_gradients(weight_grads, part_grads, size, parts, threads, parallel);
    }
};

}  // namespace

extern "C" {

// bfloat16 q (B, T, H, E), k, v (B, T, K, E) -> out (B, T, H, E), and lse (B, H, T).
void bf16_attention_forward(const Shape* s, const uint16_t* q, const uint16_t* k, const uint16_t* v, uint16_t* out, float* lse,
                            float scale, int threads, Parallel parallel) {
    Attention<BFloat16>(*s, scale).forward(q, k, v, out, lse, threads, parallel);
}

void bf16_attention_backward(const Shape* s, const uint16_t* q, const uint16_t* k, const uint16_t* v, const uint16_t* out,
                             const float* lse, const uint16_t* grad, uint16_t* dq, uint16_t* dk, uint16_t* dv, float scale,
                             int threads, Parallel parallel) {
    Attention<BFloat16>(*s, scale).backward(q, k, v, out, lse, grad, dq, dk, dv, threads, parallel);
}

// x (M, D) -> y (M, D), and pre (M, U), saved for backward; `packed` is workspace for both matrices.
void bf16_mlp_forward(int64_t M, int D, int F, int gated, int activation, const float* x, const float* up, const float* up_bias,
                      const float* down, const float* down_bias, char* packed, uint16_t* pre, float* y, int threads,
                      Parallel parallel) {
    MLP(M, D, F, gated, activation).forward(x, up, up_bias, down, down_bias, packed, pre, y, threads, parallel);
}

void bf16_mlp_backward(int64_t M, int D, int F, int gated, int activation, const float* x, const uint16_t* pre, const float* grad,
                       const float* up, const float* down, char* packed, float* dx, float* weight_grads, float* part_grads,
                       int parts, int threads, Parallel parallel) {
    MLP(M, D, F, gated, activation)
        .backward(x, pre, grad, up, down, packed, dx, weight_grads, part_grads, parts, threads, parallel);
}
}
