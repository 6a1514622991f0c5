// The hidden units of an MLP, gated or not, between its two matmuls, for some rows.
#pragma once

#include "activations.h"
#include "packed_gemm.h"

namespace {

// Shapes: F hidden units, U = F, or 2 F if gated (gates first, then values).
template <class Dtype>
struct HiddenUnits {
    typedef typename Dtype::Element Element;
    typedef typename Dtype::Word Word;
    static constexpr int PER_WORD = Dtype::PER_WORD;

    int F, U, activation;
    bool gated;
    std::vector<std::pair<int, int>> panels = {};  // start and width of the panel of each W columns of U

    HiddenUnits(int F, bool gated, int activation) : F(F), U(gated ? 2 * F : F), activation(activation), gated(gated) {
        for (int c = 0, width; c < U; c += width) {
            width = panel_width(U - c);
            panels.insert(panels.end(), width / W, std::pair(c, width));
        }
    }

    // Pre-activations `x` (rows, U) -> the same in the operand dtype, saved for backward, and the hidden units h (rows, F).
    void forward(const float* x, int rows, Element* pre, Element* h) const {
        dispatch(activation, gated, [&](auto act, auto is_gated) {
            forward_rows<act.value, is_gated.value>(x, rows, pre, h);
        });
    }

    // Of `rows` rows of a chunk of `chunk_words` word rows, starting at row `first`: from dh, h again and the gradient of pre,
    // both as packed words of adjacent rows, the latter also as rows `dpre` and summed into `dbias`.
    void backward(const float* dh, const Element* pre, int first, int rows, int chunk_words, Word* h_packed, Word* dpre_packed,
                  Element* dpre, float* dbias) const {
        Backward b{dh, pre, chunk_words, h_packed, dpre_packed, dpre, dbias};
        dispatch(activation, gated, [&](auto act, auto is_gated) {
            int r = 0;
            for (; r + PER_WORD <= rows; r += PER_WORD)
                backward_word<act.value, is_gated.value, PER_WORD>(b, r, (first + r) / PER_WORD);
            if (r < rows) backward_word<act.value, is_gated.value, 1>(b, r, (first + r) / PER_WORD);
        });
    }

    // Multiplies rows of hidden units, as `backward` packs them, by `factors` (rows, F).
    void scale_packed(const float* factors, int first, int rows, int chunk_words, Word* h_packed) const {
        for (int r = 0; r < rows; r += PER_WORD)
            for (int start = 0, width; start < F; start += width) {
                width = panel_width(F - start);
                float* panel = reinterpret_cast<float*>(h_packed + int64_t(start) * chunk_words + (first + r) / PER_WORD * width);
                for (int c = 0; c < width; c += W) {
                    const float *even = factors + r * F + start + c, *odd = r + PER_WORD <= rows ? even + (PER_WORD - 1) * F : even;
                    store(panel + c, Dtype::scale_packed(load(panel + c), load(even), load(odd)));
                }
            }
    }

   private:
    struct Backward {
        const float* dh;
        const Element* pre;
        int chunk_words;
        Word *h_packed, *dpre_packed;
        Element* dpre;
        float* dbias;
    };

    template <Activation ACT, bool GATED>
    void forward_rows(const float* x, int rows, Element* pre, Element* h) const {
        for (int r = 0; r < rows; r++, x += U, pre += U, h += F)
            for (int f = 0; f < F; f += W) {
                vec z = load(x + f), value{};
                if (f % 32 == 0) __builtin_prefetch(pre + PREFETCH_ROWS * U + f, 1);
                Dtype::store_rounded(pre + f, z);
                if constexpr (GATED) {
                    if (f % 32 == 0) __builtin_prefetch(pre + PREFETCH_ROWS * U + F + f, 1);
                    value = load(x + F + f);
                    Dtype::store_rounded(pre + F + f, value);
                }
                Dtype::store_rounded(h + f, hidden_units<ACT, GATED>(z, value));
            }
    }

    // The R rows of word row `word`; R < PER_WORD at the end of a chunk.
    template <Activation ACT, bool GATED, int R>
    void backward_word(const Backward& b, int64_t r, int64_t word) const {
        const int F = this->F, U = this->U;
        const float* dh = b.dh + r * F;
        const Element* pre = b.pre + r * U;
        Element* dpre = b.dpre + r * U;
        for (int start = 0, width; start < F; start += width) {
            width = panel_width(F - start);
            float* h_panel = reinterpret_cast<float*>(b.h_packed) + int64_t(start) * b.chunk_words + word * width - start;
            for (int c = start; c < start + width; c += W) {
                HiddenGradients of[2] = {};
#pragma GCC unroll 2
                for (int i = 0; i < R; i++) {
                    if (c % 32 == 0) __builtin_prefetch(pre + (i + PREFETCH_ROWS) * U + c);
                    vec z = Dtype::load_float(pre + i * U + c), value{};
                    if constexpr (GATED) {
                        if (c % 32 == 0) __builtin_prefetch(pre + (i + PREFETCH_ROWS) * U + F + c);
                        value = Dtype::load_float(pre + i * U + F + c);
                    }
                    of[i] = hidden_gradients<ACT, GATED>(z, value, load(dh + i * F + c));
                    if constexpr (GATED) Dtype::store_rounded(dpre + i * U + F + c, of[i].dvalue);
                    Dtype::store_rounded(dpre + i * U + c, of[i].dz);
                }
                store(h_panel + c, Dtype::pack(of[0].h, of[1].h));
                put(b, word, c, of[0].dz, of[1].dz);
                if constexpr (GATED) put(b, word, F + c, of[0].dvalue, of[1].dvalue);
            }
        }
    }

    // Gradients of the pre-activations of W columns: into their panel, and into the bias.
    ALWAYS_INLINE void put(const Backward& b, int64_t word, int c, vec even, vec odd) const {
        auto [start, width] = panels[c / W];
        float* panel = reinterpret_cast<float*>(b.dpre_packed) + int64_t(start) * b.chunk_words + word * width;
        store(panel + (c - start), Dtype::pack(even, odd));
        store(b.dbias + c, load(b.dbias + c) + (even + odd));
    }
};

}  // namespace
