// Float32 matmuls with register-blocked micro-kernels, for second operands that fit the cache.
#pragma once

#include "products.h"

namespace {

// out[r][c] = sum_k a[r a_row + k a_k] b[k][c] of R rows and N vectors, added to out if ADD; b_row and out_row are strides.
template <int R, int N, bool ADD>
inline void micro_kernel(const float* a, int64_t a_row, int64_t a_k, const float* b, int64_t b_row, int K, float* out,
                         int64_t out_row) {
    vec sum[R][N];
#pragma GCC unroll 16
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
        for (int n = 0; n < N; n++) sum[r][n] = ADD ? load(out + r * out_row + n * W) : vec{};
    add_products<Float32>(a, a_row, a_k, b, b_row, K, sum);
#pragma GCC unroll 16
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
        for (int n = 0; n < N; n++) store(out + r * out_row + n * W, sum[r][n]);
}

// All rows of N vectors, as many at a time as the registers hold.
template <int N, bool ADD>
void gemm_panel(const float* a, int64_t a_row, int64_t a_k, const float* b, int64_t b_row, int rows, int K, float* out,
                int64_t out_row) {
    constexpr int R = NEON ? 8 : REGISTERS == 32 ? (N == 6 ? 4 : N == 4 ? 6 : 12) : (N == 2 ? 6 : 8);
    int r = 0;
    for (; r + R <= rows; r += R)
        micro_kernel<R, N, ADD>(a + r * a_row, a_row, a_k, b, b_row, K, out + r * out_row, out_row);
    for (; r < rows; r++) micro_kernel<1, N, ADD>(a + r * a_row, a_row, a_k, b, b_row, K, out + r * out_row, out_row);
}

// out[r][c] (+)= sum_k a[r a_row + k a_k] b[k][c]; `columns` is a multiple of W.
template <bool ADD>
void gemm(const float* a, int64_t a_row, int64_t a_k, const float* b, int64_t b_row, int rows, int K, int columns, float* out,
          int64_t out_row) {
    int c = 0, end = columns;
    if constexpr (REGISTERS == 32 && !NEON) {
        if (end % (4 * W) != 0)
            for (; c + 6 * W <= end; c += 6 * W) gemm_panel<6, ADD>(a, a_row, a_k, b + c, b_row, rows, K, out + c, out_row);
        for (; c + 4 * W <= end; c += 4 * W) gemm_panel<4, ADD>(a, a_row, a_k, b + c, b_row, rows, K, out + c, out_row);
    }
    for (; c + 2 * W <= end; c += 2 * W) gemm_panel<2, ADD>(a, a_row, a_k, b + c, b_row, rows, K, out + c, out_row);
    for (; c < end; c += W) gemm_panel<1, ADD>(a, a_row, a_k, b + c, b_row, rows, K, out + c, out_row);
}

// out = a b + bias (or null); the sums start at the bias.
inline void linear(const float* a, int64_t a_row, const float* b, const float* bias, int rows, int K, int columns, float* out,
                   int64_t out_row) {
    if (!bias) return gemm<false>(a, a_row, 1, b, columns, rows, K, columns, out, out_row);
    for (int r = 0; r < rows; r++) std::copy(bias, bias + columns, out + r * out_row);
    gemm<true>(a, a_row, 1, b, columns, rows, K, columns, out, out_row);
}

}  // namespace
