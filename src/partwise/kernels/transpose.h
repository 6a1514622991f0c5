// Transposition of 32-bit elements, floats or pairs of bfloat16 numbers, in 4 x 4 tiles, and to and from tiles of TILE columns.
#pragma once

#include "simd.h"

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace {

// Four rows of four elements, in place.
ALWAYS_INLINE void transpose_4x4(vec4 (&x)[4]) {
    vec4 a = SHUFFLE(x[0], x[1], 0, 4, 1, 5), b = SHUFFLE(x[0], x[1], 2, 6, 3, 7);
    vec4 c = SHUFFLE(x[2], x[3], 0, 4, 1, 5), d = SHUFFLE(x[2], x[3], 2, 6, 3, 7);
    x[0] = SHUFFLE(a, c, 0, 1, 4, 5), x[1] = SHUFFLE(a, c, 2, 3, 6, 7);
    x[2] = SHUFFLE(b, d, 0, 1, 4, 5), x[3] = SHUFFLE(b, d, 2, 3, 6, 7);
}

// Operation applied to each element while transposing.
struct Copy {  // bit for bit: a pair of bfloat16 numbers may be any float, even a signaling NaN
    vec4 operator()(vec4 x) const { return x; }
    void operator()(const float* from, float* to) const { std::memcpy(to, from, sizeof *to); }
};
struct Scale {
    float factor;
    vec4 operator()(vec4 x) const { return x * factor; }
    void operator()(const float* from, float* to) const { *to = factor * *from; }
};

// out[c][r] = element(x[r][c]); `x_stride` and `out_stride` elements lie between rows.
template <class Element>
void transpose(const float* x, int64_t x_stride, int rows, int columns, float* out, int64_t out_stride,
               const Element& element) {
    int r = 0;
    for (; r + 4 <= rows; r += 4) {
        int c = 0;
        for (; c + 4 <= columns; c += 4) {
            vec4 tile[4];
#pragma GCC unroll 4
            for (int i = 0; i < 4; i++) tile[i] = element(load4(x + (r + i) * x_stride + c));
            transpose_4x4(tile);
#pragma GCC unroll 4
            for (int i = 0; i < 4; i++) store4(out + (c + i) * out_stride + r, tile[i]);
        }
        for (; c < columns; c++)
            for (int i = r; i < r + 4; i++) element(x + i * x_stride + c, out + c * out_stride + i);
    }
    for (; r < rows; r++)
        for (int c = 0; c < columns; c++) element(x + r * x_stride + c, out + c * out_stride + r);
}

constexpr int TILE = 2 * W;  // columns of a tile: two vectors

#if defined(__AVX512F__) && defined(__AVX512VL__) && defined(__AVX512DQ__)
constexpr int VECTOR_ROWS = W;  // rows stored as whole vectors: a vector load of several narrower stores would stall

// Four vectors -> in each quarter, four rows of that quarter's columns.
ALWAYS_INLINE void transpose_quarters(vec a, vec b, vec c, vec d, __m512d (&out)[4]) {
    auto low = [](vec x, vec y) { return (__m512d)_mm512_unpacklo_ps((__m512)x, (__m512)y); };
    auto high = [](vec x, vec y) { return (__m512d)_mm512_unpackhi_ps((__m512)x, (__m512)y); };
    out[0] = _mm512_unpacklo_pd(low(a, b), low(c, d)), out[1] = _mm512_unpackhi_pd(low(a, b), low(c, d));
    out[2] = _mm512_unpacklo_pd(high(a, b), high(c, d)), out[3] = _mm512_unpackhi_pd(high(a, b), high(c, d));
}

// tile[c][r] = x[r][c] of W rows, eight columns at a time.
ALWAYS_INLINE void transpose_vectors_to_tile(const float* x, int64_t x_stride, int columns, float* tile, int64_t tile_stride = TILE) {
    for (int c = 0; c < columns; c += 8) {
        int count = std::min(8, columns - c);
        __mmask8 mask = __mmask8((1 << count) - 1);
        auto two_rows = [&](int r) {  // rows r and r + 4
            __m256 low = _mm256_maskz_loadu_ps(mask, x + r * x_stride + c);
            __m256 high = _mm256_maskz_loadu_ps(mask, x + (r + 4) * x_stride + c);
            return (vec)_mm512_insertf32x8(_mm512_castps256_ps512(low), high, 1);
        };
        __m512d first[4], second[4];
        transpose_quarters(two_rows(0), two_rows(1), two_rows(2), two_rows(3), first);
        transpose_quarters(two_rows(8), two_rows(9), two_rows(10), two_rows(11), second);
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {
            if (i < count) store(tile + (c + i) * tile_stride, (vec)_mm512_shuffle_f64x2(first[i], second[i], 0x88));
            if (i + 4 < count) store(tile + (c + i + 4) * tile_stride, (vec)_mm512_shuffle_f64x2(first[i], second[i], 0xdd));
        }
    }
}

// x[r][c] = tile[c][r] of W rows and four columns.
ALWAYS_INLINE void transpose_vectors_from_tile(const float* tile, float* x, int64_t x_stride) {
    __m512d quarters[4];
    transpose_quarters(load(tile), load(tile + TILE), load(tile + 2 * TILE), load(tile + 3 * TILE), quarters);
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        __m512 rows = (__m512)quarters[i];
        _mm_storeu_ps(x + i * x_stride, _mm512_castps512_ps128(rows));
        _mm_storeu_ps(x + (i + 4) * x_stride, _mm512_extractf32x4_ps(rows, 1));
        _mm_storeu_ps(x + (i + 8) * x_stride, _mm512_extractf32x4_ps(rows, 2));
        _mm_storeu_ps(x + (i + 12) * x_stride, _mm512_extractf32x4_ps(rows, 3));
    }
}
#else
constexpr int VECTOR_ROWS = 0;
ALWAYS_INLINE void transpose_vectors_to_tile(const float*, int64_t, int, float*, int64_t = TILE) {}
ALWAYS_INLINE void transpose_vectors_from_tile(const float*, float*, int64_t) {}
#endif

// out[c][r] = x[r][c] of words.
template <class Word>
void transpose_words(const Word* x_words, int64_t x_stride, int rows, int columns, Word* out_words, int64_t out_stride) {
    static_assert(sizeof(Word) == sizeof(float), "words of 32 bits");
    const float* x = reinterpret_cast<const float*>(x_words);
    float* out = reinterpret_cast<float*>(out_words);
    int r = 0;
    for (; VECTOR_ROWS && r + VECTOR_ROWS <= rows; r += VECTOR_ROWS)
        transpose_vectors_to_tile(x + r * x_stride, x_stride, columns, out + r, out_stride);
    transpose(x + r * x_stride, x_stride, rows - r, columns, out + r, out_stride, Copy());
}

// Up to TILE rows of words, `x_stride` apart -> tile[c][r], zero beyond the last row.
template <class Word>
void transpose_to_tile(const Word* x, int64_t x_stride, int rows, int columns, Word* tile) {
    if (rows < TILE) std::fill(tile, tile + columns * TILE, Word(0));
    transpose_words(x, x_stride, rows, columns, tile, TILE);
}

// x[r][c] = tile[c][r]: the inverse, into `rows` rows.
template <class Word>
void transpose_from_tile(const float* tile, int rows, int columns, Word* x_words, int64_t x_stride) {
    static_assert(sizeof(Word) == sizeof(float), "words of 32 bits");
    float* x = reinterpret_cast<float*>(x_words);
    int r = 0;
    for (; VECTOR_ROWS && columns >= 4 && r + VECTOR_ROWS <= rows; r += VECTOR_ROWS)
        for (int c = 0; c < columns; c += 4) {
            int from = std::min(c, columns - 4);  // the last group ends at the last column: some are written twice
            transpose_vectors_from_tile(tile + from * TILE + r, x + r * x_stride + from, x_stride);
        }
    transpose(tile + r, TILE, columns, rows - r, x + r * x_stride, x_stride, Copy());
}

}  // namespace
