// Matmuls of float32 or bfloat16 words with packed operands, and the packing.
//
// A packed operand consists of panels of adjacent columns, as wide as a micro-kernel: all rows of the first panel, then the
// next. The panel of column c starts at c times the number of rows. Word row k of a bfloat16 operand holds rows 2 k and 2 k + 1.
#pragma once

#include <vector>

#include "parallel.h"
#include "products.h"
#include "tiles.h"
#include "transpose.h"

namespace {

inline int panel_width(int columns_left) {
    if constexpr (REGISTERS == 32 && !NEON) {
        if (columns_left >= 6 * W && columns_left % (4 * W) != 0) return 6 * W;
        if (columns_left >= 4 * W) return 4 * W;
    }
    return columns_left >= 2 * W ? 2 * W : W;
}

// Epilogue: out = sums + bias + residual, each if not null, and the same in the operand dtype in `rounded_out`.
template <class Dtype>
struct Epilogue {
    float* out = nullptr;
    int64_t out_stride = 0;
    const float* bias = nullptr;  // per column
    const float* residual = nullptr;
    int64_t residual_stride = 0;
    typename Dtype::Element* rounded_out = nullptr;
    int64_t rounded_stride = 0;

    Epilogue at(int r, int c) const {
        return {out ? out + r * out_stride + c : out, out_stride, bias ? bias + c : bias,
                residual ? residual + r * residual_stride + c : residual, residual_stride,
                rounded_out ? rounded_out + r * rounded_stride + c : rounded_out, rounded_stride};
    }

    // Of sums in memory that include the residual, `stride` apart; `columns` is a multiple of W.
    void write(const float* sums, int64_t stride, int rows, int columns) const {
        for (int r = 0; r < rows; r++)
            for (int c = 0; c < columns; c += W) {
                vec sum = load(sums + r * stride + c);
                if (bias) sum += load(bias + c);
                if (out) store(out + r * out_stride + c, sum);
                if (rounded_out) Dtype::store_rounded(rounded_out + r * rounded_stride + c, sum);
            }
    }
};

// sum_k a[r a_row + k a_k] b[k][c] of R rows and a panel of N vectors.
template <class Dtype, int R, int N>
inline void micro_kernel(const typename Dtype::Word* a, int64_t a_row, int64_t a_k, const typename Dtype::Word* b, int64_t b_row,
                         int K, const Epilogue<Dtype>& to) {
    vec sum[R][N];
#pragma GCC unroll 16
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
        for (int n = 0; n < N; n++) sum[r][n] = vec{};
    add_products<Dtype>(a, a_row, a_k, b, b_row, K, sum);
    if (to.bias)
#pragma GCC unroll 8
        for (int n = 0; n < N; n++) {
            vec bias = load(to.bias + n * W);
#pragma GCC unroll 16
            for (int r = 0; r < R; r++) sum[r][n] += bias;
        }
    if (to.residual)
#pragma GCC unroll 16
        for (int r = 0; r < R; r++)
#pragma GCC unroll 8
            for (int n = 0; n < N; n++) sum[r][n] += load(to.residual + r * to.residual_stride + n * W);
    if (to.out)
#pragma GCC unroll 16
        for (int r = 0; r < R; r++)
#pragma GCC unroll 8
            for (int n = 0; n < N; n++) store(to.out + r * to.out_stride + n * W, sum[r][n]);
    if (to.rounded_out)
#pragma GCC unroll 16
        for (int r = 0; r < R; r++)
#pragma GCC unroll 8
            for (int n = 0; n < N; n++) Dtype::store_rounded(to.rounded_out + r * to.rounded_stride + n * W, sum[r][n]);
}

template <class Dtype, int N>
void gemm_panel(const typename Dtype::Word* a, int64_t a_row, int64_t a_k, int rows, const typename Dtype::Word* b,
                int64_t b_row, int K, const Epilogue<Dtype>& to) {
    // with 16 registers: 12 sums, enough for two products a cycle that each take five; bfloat16 words need registers of their own
    constexpr int FEW_REGISTERS = N == 2 ? (Dtype::PER_WORD == 1 ? 6 : 4) : 8;
    constexpr int MORE_REGISTERS = NEON ? 8 : N == 6 ? 4 : N == 4 ? 6 : N == 2 ? 12 : 16;
    constexpr int R = REGISTERS == 32 ? MORE_REGISTERS : FEW_REGISTERS, FEW = N > 2 ? 2 : 4;
    int r = 0;
    for (; r + R <= rows; r += R) micro_kernel<Dtype, R, N>(a + r * a_row, a_row, a_k, b, b_row, K, to.at(r, 0));
    if constexpr (R > 8)  // with fewer independent sums, each would wait for its previous addition
        for (; r + 8 <= rows; r += 8) micro_kernel<Dtype, 8, N>(a + r * a_row, a_row, a_k, b, b_row, K, to.at(r, 0));
    for (; r + FEW <= rows; r += FEW) micro_kernel<Dtype, FEW, N>(a + r * a_row, a_row, a_k, b, b_row, K, to.at(r, 0));
    for (; r < rows; r++) micro_kernel<Dtype, 1, N>(a + r * a_row, a_row, a_k, b, b_row, K, to.at(r, 0));
}

// A panel of any width.
template <class Dtype>
void gemm_panel(int width, const typename Dtype::Word* a, int64_t a_row, int64_t a_k, int rows, const typename Dtype::Word* b,
                int64_t b_row, int K, const Epilogue<Dtype>& to) {
    if (width == 6 * W)
        gemm_panel<Dtype, 6>(a, a_row, a_k, rows, b, b_row, K, to);
    else if (width == 4 * W)
        gemm_panel<Dtype, 4>(a, a_row, a_k, rows, b, b_row, K, to);
    else if (width == 2 * W)
        gemm_panel<Dtype, 2>(a, a_row, a_k, rows, b, b_row, K, to);
    else
        gemm_panel<Dtype, 1>(a, a_row, a_k, rows, b, b_row, K, to);
}

#if HAS_TILES
// Rows [first, last), `step` at a time: SUMS, or at most as many as the registers are configured for. The registers add the
// residual, and store their sums where nothing else is added or rounded: passing through memory takes as long as a product.
template <bool TWO_ROWS, class Panels>
void gemm_tiles(const uint32_t* a, int64_t a_row, int first, int last, int step, int K, int columns, const Panels& panels,
                const Epilogue<BFloat16>& to) {
    alignas(64) float sums[SUMS * SUMS];
    const bool direct = !to.bias && !to.rounded_out;
    for (int c = 0, width; c < columns; c += width) {
        width = panel_width(columns - c);
        auto [panel, panel_row] = panels(c, width);
        for (int n = 0; n < width; n += SUMS) {
            int n_columns = std::min(SUMS, width - n);
            for (int r = first; r < last; r += step) {
                const Epilogue<BFloat16> here = to.at(r, c + n);
                if (to.residual) {  // prefetch that of the next sums, in rows too far apart for the hardware prefetcher
                    const float* next = (r + step < last ? to.at(r + step, c + n) : to.at(first, c + n + SUMS)).residual;
                    for (int i = 0; i < step; i++, next += to.residual_stride)
                        __builtin_prefetch(next), __builtin_prefetch(next + W);
                }
                float* out = direct ? here.out : sums;
                const int64_t out_row = direct ? to.out_stride : SUMS;
                (n_columns == SUMS ? multiply_tiles<TWO_ROWS, true> : multiply_tiles<TWO_ROWS, false>)(
                    a + r * a_row, a_row, panel + n, panel_row, K, here.residual, to.residual_stride, out, out_row);
                if (!direct) here.write(sums, SUMS, std::min(step, last - r), n_columns);
            }
        }
    }
}

// sum_k a[r a_row + k] b[k][c]; K is a multiple of REGISTER_WORDS, and panels(c, width) a panel of b and the words between its
// rows. A row's sums do not depend on the number of rows.
template <class Panels>
void gemm_tiles(const uint32_t* a, int64_t a_row, int rows, int K, int columns, const Panels& panels,
                const Epilogue<BFloat16>& to) {
    int whole = rows / SUMS * SUMS, left = rows - whole;
    if (whole) {
        configure_tiles(SUMS);
        gemm_tiles<true>(a, a_row, 0, whole, SUMS, K, columns, panels, to);
    }
    if (left) configure_tiles(left == REGISTER_ROWS ? SUMS : left);
    if (left > REGISTER_ROWS)
        gemm_tiles<true>(a, a_row, whole, rows, SUMS, K, columns, panels, to);
    else if (left)
        gemm_tiles<false>(a, a_row, whole, rows, SUMS, K, columns, panels, to);
}

// add_gemm_transposed over the first words, as many as fill registers; returns their number.
inline int add_gemm_transposed_tiles(const uint32_t* a, int rows, const uint32_t* b, int columns, int K, float* out) {
    constexpr int BLOCK = 256, STRIDE = BLOCK + REGISTER_WORDS;  // not a power of two: rows would compete for the cache
    alignas(64) uint32_t a_rows[6 * W * STRIDE];
    const int whole = K / REGISTER_WORDS * REGISTER_WORDS;
    for (int first = 0; first < whole; first += BLOCK)
        for (int r = 0, width, count = std::min(BLOCK, whole - first); r < rows; r += width) {
            width = panel_width(rows - r);
            const uint32_t* panel = a + int64_t(r) * K + first * width;
            for (int i = 0; i < width; i += REGISTER_ROWS)
                for (int k = 0; k < count; k += REGISTER_WORDS)
                    transpose_vectors_to_tile(reinterpret_cast<const float*>(panel + k * width + i), width, REGISTER_ROWS,
                                              reinterpret_cast<float*>(a_rows + i * STRIDE + k), STRIDE);
            auto panels = [&](int c, int c_width) {
                return std::pair(b + int64_t(c) * K + int64_t(first) * c_width, int64_t(c_width));
            };
            float* to = out + int64_t(r) * columns;
            gemm_tiles(a_rows, STRIDE, width, count, columns, panels, {to, columns, nullptr, to, columns});
        }
    return whole;
}
#endif

// Whether matmuls of these operands use tile registers, where the words of both fill them.
template <class Dtype>
inline bool use_tiles() {
#if HAS_TILES
    return Dtype::PER_WORD == 2 && may_use_tiles();
#else
    return false;
#endif
}

// sum_k a[r a_row + k a_k] b[k][c] over K words; `columns` is a multiple of W. b is packed, or row-major, b_row words apart.
template <class Dtype>
void gemm(const typename Dtype::Word* a, int64_t a_row, int64_t a_k, int rows, const typename Dtype::Word* b, int K, int columns,
          const Epilogue<Dtype>& to, int64_t b_row = 0) {
#if HAS_TILES
    if constexpr (Dtype::PER_WORD == 2)
        if (a_k == 1 && K % REGISTER_WORDS == 0 && may_use_tiles()) {
            auto panels = [&](int c, int width) {
                return b_row ? std::pair(b + c, b_row) : std::pair(b + int64_t(c) * K, int64_t(width));
            };
            return gemm_tiles(a, a_row, rows, K, columns, panels, to);
        }
#endif
    for (int c = 0, width; c < columns; c += width) {
        width = panel_width(columns - c);
        const typename Dtype::Word* panel = b + (b_row ? c : int64_t(c) * K);
        gemm_panel<Dtype>(width, a, a_row, a_k, rows, panel, b_row ? b_row : width, K, to.at(0, c));
    }
}

// out (rows, columns) += sum_k a[k][r] b[k][c], both packed: a weight's gradient. `rows` and `columns` are multiples of W.
template <class Dtype>
void add_gemm_transposed(const typename Dtype::Word* a, int rows, const typename Dtype::Word* b, int columns, int K, float* out) {
    int first = 0;
#if HAS_TILES
    if constexpr (Dtype::PER_WORD == 2)
        if (may_use_tiles()) first = add_gemm_transposed_tiles(a, rows, b, columns, K, out);
#endif
    for (int r = 0, r_width; r < rows && first < K; r += r_width) {
        r_width = panel_width(rows - r);
        float* to = out + int64_t(r) * columns;
        for (int c = 0, width; c < columns; c += width) {
            width = panel_width(columns - c);
            gemm_panel<Dtype>(width, a + int64_t(r) * K + first * r_width, 1, r_width, r_width, b + int64_t(c) * K + first * width,
                              width, K - first, {to + c, columns, nullptr, to + c, columns});
        }
    }
}

// ----------------------------------------------------------------------------------------------------------- packing

// Packs K word rows; words(k, c) gives W words of word row k from column c on.
template <class Dtype, class Words>
inline void pack(int K, int columns, typename Dtype::Word* out, const Words& words) {
    for (int c = 0, width; c < columns; c += width) {
        width = panel_width(columns - c);
        float* panel = reinterpret_cast<float*>(out) + int64_t(c) * K;
        for (int k = 0; k < K; k++)
            for (int n = 0; n < width; n += W) store(panel + int64_t(k) * width + n, words(k, c + n));
    }
}

// x (rows, columns) float32 -> packed words of adjacent rows, for matmuls that sum over rows.
template <class Dtype>
void pack_rows(const float* x, int64_t x_stride, int rows, int columns, typename Dtype::Word* out) {
    constexpr int PER_WORD = Dtype::PER_WORD;
    pack<Dtype>((rows + PER_WORD - 1) / PER_WORD, columns, out, [&](int k, int c) {
        const float* even = x + k * PER_WORD * x_stride + c;
        for (int i = 0; i < PER_WORD; i++) __builtin_prefetch(even + (PREFETCH_ROWS + i) * x_stride);
        return Dtype::pack(load(even), PER_WORD * k + 1 < rows ? load(even + x_stride) : vec{});
    });
}

// x (rows, columns) in the operand dtype -> packed words of adjacent rows.
template <class Dtype>
void pack_rounded_rows(const typename Dtype::Element* x, int rows, int columns, typename Dtype::Word* out) {
    constexpr int PER_WORD = Dtype::PER_WORD;
    pack<Dtype>((rows + PER_WORD - 1) / PER_WORD, columns, out, [&](int k, int c) {
        const auto* even = x + int64_t(k) * PER_WORD * columns + c;
        for (int i = 0; i < PER_WORD; i++) __builtin_prefetch(even + (PREFETCH_ROWS + i) * columns);
        if (PER_WORD * k + PER_WORD <= rows) return Dtype::pack(even, even + (PER_WORD - 1) * columns);
        return Dtype::pack(Dtype::load_float(even), vec{});
    });
}

// One panel of x^T, x (rows, columns) float32: packed words of adjacent columns, for matmuls that sum over columns. `rows` is
// the panel's width, at most 6 W.
template <class Dtype>
void pack_panel_transposed(const float* x, int64_t x_stride, int rows, int columns, typename Dtype::Word* out) {
    constexpr int PER_WORD = Dtype::PER_WORD, BLOCK = 16;
    typename Dtype::Word words[BLOCK][BLOCK];
    for (int k = 0; k < columns / PER_WORD; k += BLOCK)
        for (int r = 0; r < rows; r += BLOCK) {
            int block_words = std::min(BLOCK, columns / PER_WORD - k), block_rows = std::min(BLOCK, rows - r);
            for (int i = 0; i < block_rows; i++) {
                const float* from = x + (r + i) * x_stride + k * PER_WORD;
                auto* rounded = reinterpret_cast<typename Dtype::Element*>(words[i]);
                for (int c = 0; c < block_words * PER_WORD; c += W) Dtype::store_rounded(rounded + c, load(from + c));
            }
            transpose(reinterpret_cast<const float*>(words), BLOCK, block_rows, block_words,
                      reinterpret_cast<float*>(out) + int64_t(k) * rows + r, rows, Copy());
        }
}

// Packs weights (rows, columns), one panel per task: W, or W^T if `transposed`.
template <class Dtype>
struct WeightPacking {
    struct Panel {
        const float* weights;
        typename Dtype::Word* out;
        int rows, columns, start, width;
    };
    bool transposed;
    std::vector<Panel> panels = {};

    void add(const float* weights, typename Dtype::Word* out, int rows, int columns) {
        int all = transposed ? rows : columns;
        for (int start = 0, width; start < all; start += width) {
            width = panel_width(all - start);
            panels.push_back({weights, out, rows, columns, start, width});
        }
    }

    void run(int threads, Parallel parallel) const {
        parallel_for(int64_t(panels.size()), 0, threads, parallel, [&](int64_t i, float*) {
            Panel p = panels[i];
            int K = (transposed ? p.columns : p.rows) / Dtype::PER_WORD;
            typename Dtype::Word* out = p.out + int64_t(p.start) * K;
            if (transposed)
                pack_panel_transposed<Dtype>(p.weights + int64_t(p.start) * p.columns, p.columns, p.width, p.columns, out);
            else
                pack_rows<Dtype>(p.weights + p.start, p.columns, p.rows, p.width, out);
        });
    }
};

// x (rows, columns) float32 -> the same values in the operand dtype, not packed.
template <class Dtype>
void round_rows(const float* x, int rows, int columns, typename Dtype::Element* out) {
    for (int64_t i = 0; i < int64_t(rows) * columns; i += W) Dtype::store_rounded(out + i, load(x + i));
}

}  // namespace
