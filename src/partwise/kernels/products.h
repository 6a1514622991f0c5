// The inner loop of matmuls: sums of products of a few rows by a few vectors, which stay in registers.
#pragma once

#include "dtypes.h"

namespace {

#if defined(__aarch64__)
// NEON: each function adds the products that fill its vectors and returns how many of the K it added. A row's words are adjacent
// in memory (a_k is 1), or a column's are (a_row is 1).

// A product takes one element of a vector, so that one instruction loads four numbers of a row or column.
template <int R, int N>
ALWAYS_INLINE int add_vector_products(Float32, const float* a, int64_t a_row, int64_t a_k, const float* b, int64_t b_row, int K,
                                      vec (&sum)[R][N]) {
    int k = 0;
    if (a_k == 1) {
        for (; k + W <= K; k += W, a += W) {
            vec rows[R];
#pragma GCC unroll 8
            for (int r = 0; r < R; r++) rows[r] = load(a + r * a_row);
#pragma GCC unroll 4
            for (int i = 0; i < W; i++, b += b_row)
#pragma GCC unroll 2
                for (int n = 0; n < N; n++) {
                    vec x = load(b + n * W);
#pragma GCC unroll 8
                    for (int r = 0; r < R; r++) sum[r][n] += rows[r][i] * x;
                }
        }
    } else if (R % W == 0 && a_row == 1) {
        for (; k < K; k++, a += a_k, b += b_row) {
            vec x[N];
            load_registers(b, x);
#pragma GCC unroll 2
            for (int r = 0; r < R; r += W) {
                vec column = load(a + r);
#pragma GCC unroll 4
                for (int i = 0; i < W; i++)
#pragma GCC unroll 2
                    for (int n = 0; n < N; n++) sum[r + i][n] += column[i] * x[n];
            }
        }
    }
    return k;
}

#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
// Two vectors of words -> their words alternating.
ALWAYS_INLINE void interleave(const uint32_t* first, const uint32_t* second, vec* out) {
    vec x = load(reinterpret_cast<const float*>(first)), y = load(reinterpret_cast<const float*>(second));
    out[0] = SHUFFLE(x, y, 0, 4, 1, 5), out[1] = SHUFFLE(x, y, 2, 6, 3, 7);
}

// BFMMLA adds the products of two rows of two words by two columns, with the same results as two BFDOT.
template <int R, int N>
ALWAYS_INLINE int add_vector_products(BFloat16, const uint32_t* a, int64_t a_row, int64_t a_k, const uint32_t* b, int64_t b_row,
                                      int K, vec (&sum)[R][N]) {
    if constexpr (R % W != 0) return 0;
    vec square[(R + 1) / 2][2 * N];  // sums of two rows and two columns
#pragma GCC unroll 4
    for (int r = 0; r < R / 2; r++)
#pragma GCC unroll 2
        for (int n = 0; n < N; n++) {
            square[r][2 * n] = SHUFFLE(sum[2 * r][n], sum[2 * r + 1][n], 0, 1, 4, 5);
            square[r][2 * n + 1] = SHUFFLE(sum[2 * r][n], sum[2 * r + 1][n], 2, 3, 6, 7);
        }
    auto add = [&](const vec* rows) __attribute__((always_inline)) {
        vec columns[2 * N];
#pragma GCC unroll 2
        for (int n = 0; n < N; n++) interleave(b + n * W, b + b_row + n * W, columns + 2 * n);
#pragma GCC unroll 4
        for (int r = 0; r < R / 2; r++)
#pragma GCC unroll 4
            for (int n = 0; n < 2 * N; n++)
                square[r][n] = (vec)vbfmmlaq_f32((float32x4_t)square[r][n], vreinterpretq_bf16_f32((float32x4_t)rows[r]),
                                                 vreinterpretq_bf16_f32((float32x4_t)columns[n]));
    };
    int k = 0;
    vec rows[(R + 1) / 2];
    if (a_k == 1) {
        for (; k + 2 <= K; k += 2, a += 2, b += 2 * b_row) {
#pragma GCC unroll 4
            for (int r = 0; r < R / 2; r++)
                rows[r] = (vec)vcombine_u32(vld1_u32(a + 2 * r * a_row), vld1_u32(a + (2 * r + 1) * a_row));
            add(rows);
        }
    } else if (a_row == 1) {
        for (; k + 2 <= K; k += 2, a += 2 * a_k, b += 2 * b_row) {
#pragma GCC unroll 2
            for (int r = 0; r < R; r += W) interleave(a + r, a + a_k + r, rows + r / 2);
            add(rows);
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < R / 2; r++)
#pragma GCC unroll 2
        for (int n = 0; n < N; n++) {
            sum[2 * r][n] = SHUFFLE(square[r][2 * n], square[r][2 * n + 1], 0, 1, 4, 5);
            sum[2 * r + 1][n] = SHUFFLE(square[r][2 * n], square[r][2 * n + 1], 2, 3, 6, 7);
        }
    return k;
}
#else
template <int R, int N>
ALWAYS_INLINE int add_vector_products(BFloat16, const uint32_t*, int64_t, int64_t, const uint32_t*, int64_t, int, vec (&)[R][N]) {
    return 0;
}
#endif
#endif

// sum[r][n] += sum_k a[r a_row + k a_k] b[k b_row + n W] of R rows and N vectors; a sum adds its products in the order of k.
template <class Dtype, int R, int N>
ALWAYS_INLINE void add_products(const typename Dtype::Word* a, int64_t a_row, int64_t a_k, const typename Dtype::Word* b,
                                int64_t b_row, int K, vec (&sum)[R][N]) {
    int k = 0;
#if defined(__aarch64__)
    k = add_vector_products(Dtype(), a, a_row, a_k, b, b_row, K, sum);
    a += k * a_k, b += k * b_row;
#endif
    for (; k < K; k++, a += a_k, b += b_row) {
        vec x[N];
        load_registers(reinterpret_cast<const float*>(b), x);
#pragma GCC unroll 16
        for (int r = 0; r < R; r++)
#pragma GCC unroll 8
            for (int n = 0; n < N; n++) sum[r][n] = Dtype::multiply_add(sum[r][n], a[r * a_row], x[n]);
    }
}

}  // namespace
