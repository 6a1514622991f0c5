// Products of matrices whose narrow side fits into the cache, one tile of registers at a time.
#pragma once

#include "vectors.h"

namespace {

// out[r][c] = sum_k a[r row + k step] b[k][c] of R rows and N vectors, added to what is there where ADD. `b_row` and
// `out_row` numbers lie between rows.
template <int R, int N, bool ADD>
inline void tile(const float* a, int64_t row, int64_t step, const float* b, int64_t b_row, int count, float* out,
                 int64_t out_row) {
    vec sum[R][N];
#pragma GCC unroll 16
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
        for (int n = 0; n < N; n++) sum[r][n] = ADD ? load(out + r * out_row + n * W) : vec{};
    for (int k = 0; k < count; k++, a += step, b += b_row) {
        vec x[N];
#pragma GCC unroll 8
        for (int n = 0; n < N; n++) x[n] = load(b + n * W);
#pragma GCC unroll 16
        for (int r = 0; r < R; r++)
#pragma GCC unroll 8
            for (int n = 0; n < N; n++) sum[r][n] += a[r * row] * x[n];
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
        for (int n = 0; n < N; n++) store(out + r * out_row + n * W, sum[r][n]);
}

// All rows of N vectors, as many at a time as the registers hold.
template <int N, bool ADD>
void panel(const float* a, int64_t row, int64_t step, const float* b, int64_t b_row, int rows, int count, float* out,
           int64_t out_row) {
    constexpr int R = REGISTERS == 32 ? (N == 6 ? 4 : N == 4 ? 6 : 12) : (N == 2 ? 6 : 8);
    int r = 0;
    for (; r + R <= rows; r += R)
        tile<R, N, ADD>(a + r * row, row, step, b, b_row, count, out + r * out_row, out_row);
    for (; r < rows; r++) tile<1, N, ADD>(a + r * row, row, step, b, b_row, count, out + r * out_row, out_row);
}

// out[r][c] (+)= sum_k a[r row + k step] b[k][c] for `columns` c, a multiple of W.
template <bool ADD>
void product(const float* a, int64_t row, int64_t step, const float* b, int64_t b_row, int rows, int count,
             int columns, float* out, int64_t out_row) {
    int c = 0, end = columns;
    if constexpr (REGISTERS == 32) {
        if (end % (4 * W) != 0)
            for (; c + 6 * W <= end; c += 6 * W) panel<6, ADD>(a, row, step, b + c, b_row, rows, count, out + c, out_row);
        for (; c + 4 * W <= end; c += 4 * W) panel<4, ADD>(a, row, step, b + c, b_row, rows, count, out + c, out_row);
    }
    for (; c + 2 * W <= end; c += 2 * W) panel<2, ADD>(a, row, step, b + c, b_row, rows, count, out + c, out_row);
    for (; c < end; c += W) panel<1, ADD>(a, row, step, b + c, b_row, rows, count, out + c, out_row);
}

// The same with a bias (or null) to begin each row with.
inline void affine(const float* a, int64_t row, const float* b, const float* bias, int rows, int count, int columns,
                   float* out, int64_t out_row) {
    if (!bias) return product<false>(a, row, 1, b, columns, rows, count, columns, out, out_row);
    for (int r = 0; r < rows; r++) std::copy(bias, bias + columns, out + r * out_row);
    product<true>(a, row, 1, b, columns, rows, count, columns, out, out_row);
}

// sums[c] += sum_r x[r][c]
inline void add_rows(const float* x, int rows, int columns, float* sums) {
    for (int r = 0; r < rows; r++, x += columns)
        for (int c = 0; c < columns; c += W) store(sums + c, load(sums + c) + load(x + c));
}

}  // namespace
