// Rows of a head turned into columns and back: C rows side by side, each number (or pair of small ones) in a row of its own.
#pragma once

#include "numbers.h"

namespace {

constexpr int C = 2 * W;  // columns of a block

#if defined(__AVX512F__) && defined(__AVX512VL__) && defined(__AVX512DQ__)
constexpr int TOGETHER = W;  // rows that are turned in whole vectors; pieces of one would be read before they are in the cache

// Four vectors, as four rows of each of their quarters' columns.
inline void turn_quarters(vec a, vec b, vec c, vec d, __m512d (&out)[4]) {
    __m512d low = (__m512d)_mm512_unpacklo_ps((__m512)a, (__m512)b), high = (__m512d)_mm512_unpackhi_ps((__m512)a, (__m512)b);
    __m512d next = (__m512d)_mm512_unpacklo_ps((__m512)c, (__m512)d), last = (__m512d)_mm512_unpackhi_ps((__m512)c, (__m512)d);
    out[0] = _mm512_unpacklo_pd(low, next), out[1] = _mm512_unpackhi_pd(low, next);
    out[2] = _mm512_unpacklo_pd(high, last), out[3] = _mm512_unpackhi_pd(high, last);
}

// out[e][r] = rows[r][e] of W rows, up to eight units at a time
inline void turn_together(const float* rows, int64_t step, int units, float* out) {
    for (int e = 0; e < units; e += 8) {
        int here = std::min(8, units - e);
        __mmask8 there = __mmask8((1 << here) - 1);
        auto both = [&](int r) {  // rows r and r + 4
            __m256 low = _mm256_maskz_loadu_ps(there, rows + r * step + e);
            __m256 high = _mm256_maskz_loadu_ps(there, rows + (r + 4) * step + e);
            return (vec)_mm512_insertf32x8(_mm512_castps256_ps512(low), high, 1);
        };
        __m512d first[4], second[4];
        turn_quarters(both(0), both(1), both(2), both(3), first);
        turn_quarters(both(8), both(9), both(10), both(11), second);
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {
            if (i < here) store(out + (e + i) * C, (vec)_mm512_shuffle_f64x2(first[i], second[i], 0x88));
            if (i + 4 < here) store(out + (e + i + 4) * C, (vec)_mm512_shuffle_f64x2(first[i], second[i], 0xdd));
        }
    }
}

// rows[r][e] = columns[e][r] of W rows and four units
inline void turn_back_together(const float* columns, float* rows, int64_t step) {
    __m512d quarters[4];
    turn_quarters(load(columns), load(columns + C), load(columns + 2 * C), load(columns + 3 * C), quarters);
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        __m512 x = (__m512)quarters[i];
        _mm_storeu_ps(rows + i * step, _mm512_castps512_ps128(x));
        _mm_storeu_ps(rows + (i + 4) * step, _mm512_extractf32x4_ps(x, 1));
        _mm_storeu_ps(rows + (i + 8) * step, _mm512_extractf32x4_ps(x, 2));
        _mm_storeu_ps(rows + (i + 12) * step, _mm512_extractf32x4_ps(x, 3));
    }
}
#else
constexpr int TOGETHER = 0;
inline void turn_together(const float*, int64_t, int, float*) {}
inline void turn_back_together(const float*, float*, int64_t) {}
#endif

// Up to C rows of units, `step` apart -> out[e][c], zero beyond the last row.
template <class Unit>
void turned_units(const Unit* units_of_rows, int64_t step, int count, int units, Unit* to) {
    const float* rows = reinterpret_cast<const float*>(units_of_rows);
    float* out = reinterpret_cast<float*>(to);
    if (count < C) std::fill(to, to + units * C, Unit(0));
    int r = 0;
    for (; TOGETHER && r + TOGETHER <= count; r += TOGETHER) turn_together(rows + r * step, step, units, out + r);
    for (; r + 4 <= count; r += 4) {
        int e = 0;
        for (; e + 4 <= units; e += 4) {
            four x[4];
#pragma GCC unroll 4
            for (int i = 0; i < 4; i++) x[i] = *reinterpret_cast<const loose_four*>(rows + (r + i) * step + e);
            turn_square(x);
#pragma GCC unroll 4
            for (int i = 0; i < 4; i++) *reinterpret_cast<loose_four*>(out + (e + i) * C + r) = x[i];
        }
        for (; e < units; e++)
            for (int i = r; i < r + 4; i++) to[e * C + i] = units_of_rows[i * step + e];
    }
    for (; r < count; r++)
        for (int e = 0; e < units; e++) to[e * C + r] = units_of_rows[r * step + e];
}

// Units in columns [units][C], turned into `count` rows, `step` apart: the way back.
template <class Unit>
void turned_back(const float* columns, int count, int units, Unit* units_of_rows, int64_t step) {
    float* rows = reinterpret_cast<float*>(units_of_rows);
    auto put = [](Unit* to, float x) { std::memcpy(to, &x, sizeof x); };
    int r = 0;
    for (; TOGETHER && units >= 4 && r + TOGETHER <= count; r += TOGETHER)
        for (int e = 0; e < units; e += 4) {
            int from = std::min(e, units - 4);  // the last four are whole: some of them are written twice
            turn_back_together(columns + from * C + r, rows + r * step + from, step);
        }
    for (; r + 4 <= count; r += 4) {
        int e = 0;
        for (; e + 4 <= units; e += 4) {
            four x[4];
#pragma GCC unroll 4
            for (int i = 0; i < 4; i++) x[i] = *reinterpret_cast<const loose_four*>(columns + (e + i) * C + r);
            turn_square(x);
#pragma GCC unroll 4
            for (int i = 0; i < 4; i++) *reinterpret_cast<loose_four*>(rows + (r + i) * step + e) = x[i];
        }
        for (; e < units; e++)
            for (int i = r; i < r + 4; i++) put(units_of_rows + i * step + e, columns[e * C + i]);
    }
    for (; r < count; r++)
        for (int e = 0; e < units; e++) put(units_of_rows + r * step + e, columns[e * C + r]);
}

}  // namespace
