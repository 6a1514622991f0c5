// What a product multiplies: float32 numbers, or bfloat16 ones in pairs, whose two products one instruction adds to a sum.
#pragma once

#include <vector>

#include "vectors.h"

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace {

typedef uint32_t uvec __attribute__((vector_size(4 * W)));
typedef uint16_t halves __attribute__((vector_size(2 * W)));
typedef uint16_t loose_halves __attribute__((vector_size(2 * W), aligned(2), may_alias));

struct Single {
    typedef float Small;           // a number as it lies in memory
    typedef float Unit;            // what a product takes at a time
    static constexpr int PER = 1;  // numbers of a unit

    static vec widen(const Small* p) { return load(p); }
    static void narrow(Small* p, vec x) { store(p, x); }
    static Small small(float x) { return x; }
    static vec add(vec sum, Unit a, vec b) { return sum + a * b; }
    static vec dot(vec sum, vec a, vec b) { return sum + a * b; }
    static vec power(vec x) { return exp2(x); }
    static vec pair(vec even, vec) { return even; }
    static vec pair(const Small* even, const Small*) { return load(even); }
    static Unit pair(Small even, Small) { return even; }
};

struct Half {
    typedef uint16_t Small;
    typedef uint32_t Unit;
    static constexpr int PER = 2;

    static vec widen(const Small* p) { return (vec)(bits(p) << 16); }
    static float wide(Small x) {
        uint32_t upper = uint32_t(x) << 16;
        float y;
        std::memcpy(&y, &upper, 4);
        return y;
    }
    static Small small(float x) {  // to the nearest, ties to even
        uint32_t y;
        std::memcpy(&y, &x, 4);
        return x != x ? 0x7fc0 : Small((y + 0x7fff + (y >> 16 & 1)) >> 16);
    }
    static Unit pair(Small even, Small odd) { return even | uint32_t(odd) << 16; }
    static vec pair(const Small* even, const Small* odd) { return (vec)(bits(even) | bits(odd) << 16); }

#if defined(__AVX512BF16__) && defined(__AVX512BW__)
    static void narrow(Small* p, vec x) {
        *reinterpret_cast<loose_halves*>(p) = (halves)_mm512_cvtneps_pbh((__m512)x);
    }
    static vec add(vec sum, Unit a, vec b) {
        return (vec)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_set1_epi32(int(a)), (__m512bh)b);
    }
    static vec dot(vec sum, vec a, vec b) { return (vec)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b); }
    static vec pair(vec even, vec odd) {
        const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                                               21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
        return (vec)_mm512_permutexvar_epi16(order, (__m512i)_mm512_cvtne2ps_pbh((__m512)odd, (__m512)even));
    }
#else
    static void narrow(Small* p, vec x) {
        *reinterpret_cast<loose_halves*>(p) = __builtin_convertvector(rounded(x) >> 16, halves);
    }
    static vec add(vec sum, Unit a, vec b) {
        return sum + wide(Small(a)) * (vec)((uvec)b << 16) + wide(Small(a >> 16)) * (vec)((uvec)b & 0xffff0000u);
    }
    static vec dot(vec sum, vec a, vec b) {
        return sum + (vec)((uvec)a << 16) * (vec)((uvec)b << 16) + (vec)((uvec)a & 0xffff0000u) * (vec)((uvec)b & 0xffff0000u);
    }
    static vec pair(vec even, vec odd) { return (vec)(rounded(even) >> 16 | (rounded(odd) & 0xffff0000u)); }
#endif

    // 2^x, off by less than 8e-5 of it, as it will be rounded to 8 bits; 0 below 2^-127, NaN of NaN.
    static vec power(vec x) {
#if defined(__AVX512F__) && defined(__AVX512BF16__)
        x = (vec)_mm512_max_ps((__m512)all(-127.0f), (__m512)x);
        const float magic = 0x1.8p23f + 127;
        vec t = x + magic, r = x - (t - magic);
        vec p = all(5.517167e-2f);
        p = p * r + 2.4261112e-1f;
        p = p * r + 6.9326099e-1f;
        p = p * r + 9.9992807e-1f;
        return p * (vec)((ivec)t << 23);
#else
        return exp2(x);
#endif
    }

   private:
    static uvec bits(const Small* p) {
#if defined(__AVX512F__)  // in one instruction, where a compiler may take four
        return (uvec)_mm512_cvtepu16_epi32(*reinterpret_cast<const __m256i_u*>(p));
#else
        return __builtin_convertvector(*reinterpret_cast<const loose_halves*>(p), uvec);
#endif
    }
    static uvec rounded(vec x) {
        uvec y = (uvec)x, number = (uvec)(x == x);
        return ((y + 0x7fffu + (y >> 16 & 1u)) & number) | (0x7fc00000u & ~number);
    }
};

// Units lie in panels of neighbouring columns, as wide as a tile of registers: first all rows of the first panel. The panel
// from column c on begins at c times the number of rows.
inline int panel_width(int left) {
    if constexpr (REGISTERS == 32) {
        if (left >= 6 * W && left % (4 * W) != 0) return 6 * W;
        if (left >= 4 * W) return 4 * W;
    }
    return left >= 2 * W ? 2 * W : W;
}

// Where a product goes: out = sums + bias (of a column) + base, each where it is there; and as small numbers too.
template <class Number>
struct Result {
    float* out = nullptr;
    int64_t row = 0;  // numbers between rows
    const float* bias = nullptr;
    const float* base = nullptr;
    int64_t base_row = 0;
    typename Number::Small* small = nullptr;
    int64_t small_row = 0;

    Result from(int r, int c) const {
        return {out ? out + r * row + c : out, row, bias ? bias + c : bias, base ? base + r * base_row + c : base,
                base_row, small ? small + r * small_row + c : small, small_row};
    }
};

// sum_k a[r row + k step] b[k][c] of R rows and a panel of N vectors.
template <class Number, int R, int N>
inline void tile(const typename Number::Unit* a, int64_t row, int64_t step, const typename Number::Unit* b, int64_t b_row,
                 int count, const Result<Number>& to) {
    vec sum[R][N];
#pragma GCC unroll 16
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
        for (int n = 0; n < N; n++) sum[r][n] = vec{};
    for (int k = 0; k < count; k++, a += step, b += b_row) {
        vec x[N];
#pragma GCC unroll 8
        for (int n = 0; n < N; n++) x[n] = load(reinterpret_cast<const float*>(b) + n * W);
#pragma GCC unroll 16
        for (int r = 0; r < R; r++)
#pragma GCC unroll 8
            for (int n = 0; n < N; n++) sum[r][n] = Number::add(sum[r][n], a[r * row], x[n]);
    }
    if (to.bias)
#pragma GCC unroll 8
        for (int n = 0; n < N; n++) {
            vec bias = load(to.bias + n * W);
#pragma GCC unroll 16
            for (int r = 0; r < R; r++) sum[r][n] += bias;
        }
    if (to.base)
#pragma GCC unroll 16
        for (int r = 0; r < R; r++)
#pragma GCC unroll 8
            for (int n = 0; n < N; n++) sum[r][n] += load(to.base + r * to.base_row + n * W);
    if (to.out)
#pragma GCC unroll 16
        for (int r = 0; r < R; r++)
#pragma GCC unroll 8
            for (int n = 0; n < N; n++) store(to.out + r * to.row + n * W, sum[r][n]);
    if (to.small)
#pragma GCC unroll 16
        for (int r = 0; r < R; r++)
#pragma GCC unroll 8
            for (int n = 0; n < N; n++) Number::narrow(to.small + r * to.small_row + n * W, sum[r][n]);
}

template <class Number, int N>
void panel(const typename Number::Unit* a, int64_t row, int64_t step, int rows, const typename Number::Unit* b,
           int64_t b_row, int count, const Result<Number>& to) {
    constexpr int R = REGISTERS == 32 ? (N == 6 ? 4 : N == 4 ? 6 : N == 2 ? 12 : 16) : (N == 2 ? 4 : 8), FEW = N > 2 ? 2 : 4;
    int r = 0;
    for (; r + R <= rows; r += R) tile<Number, R, N>(a + r * row, row, step, b, b_row, count, to.from(r, 0));
    if constexpr (R > 8)  // fewer sums than this wait for one another
        for (; r + 8 <= rows; r += 8) tile<Number, 8, N>(a + r * row, row, step, b, b_row, count, to.from(r, 0));
    for (; r + FEW <= rows; r += FEW) tile<Number, FEW, N>(a + r * row, row, step, b, b_row, count, to.from(r, 0));
    for (; r < rows; r++) tile<Number, 1, N>(a + r * row, row, step, b, b_row, count, to.from(r, 0));
}

// sum_k a[r row + k step] b[k][c] for `columns` c, a multiple of W; b in panels, or in whole rows of b_row units.
template <class Number>
void product(const typename Number::Unit* a, int64_t row, int64_t step, int rows, const typename Number::Unit* b,
             int count, int columns, const Result<Number>& to, int64_t b_row = 0) {
    for (int c = 0, width; c < columns; c += width) {
        width = panel_width(columns - c);
        const typename Number::Unit* from = b + (b_row ? c : int64_t(c) * count);
        int64_t apart = b_row ? b_row : width;
        Result<Number> here = to.from(0, c);
        if (width == 6 * W)
            panel<Number, 6>(a, row, step, rows, from, apart, count, here);
        else if (width == 4 * W)
            panel<Number, 4>(a, row, step, rows, from, apart, count, here);
        else if (width == 2 * W)
            panel<Number, 2>(a, row, step, rows, from, apart, count, here);
        else
            panel<Number, 1>(a, row, step, rows, from, apart, count, here);
    }
}

// sum_k a[k][r] b[k][c] for `rows` r and `columns` c, multiples of W; both in panels.
template <class Number>
void product_across(const typename Number::Unit* a, int rows, const typename Number::Unit* b, int count, int columns,
                    const Result<Number>& to) {
    for (int r = 0, width; r < rows; r += width) {
        width = panel_width(rows - r);
        product<Number>(a + int64_t(r) * count, 1, width, width, b, count, columns, to.from(r, 0));
    }
}

// Rows, of which `pair(r, c)` gives W units of the row of units r from column c on, into panels of `count` rows of units;
// `from` is the first row of units to be filled.
template <class Number, class Pair>
inline void into_panels(int from, int to, int count, int columns, typename Number::Unit* out, const Pair& pair) {
    for (int c = 0, width; c < columns; c += width) {
        width = panel_width(columns - c);
        float* panel = reinterpret_cast<float*>(out) + int64_t(c) * count;
        for (int r = from; r < to; r++)
            for (int n = 0; n < width; n += W) store(panel + int64_t(r) * width + n, pair(r, c + n));
    }
}

// x (rows, columns) -> units of neighbouring rows, in panels: what is summed over are the rows.
template <class Number>
void across(const float* x, int64_t row, int rows, int columns, int count, typename Number::Unit* out) {
    constexpr int PER = Number::PER;
    into_panels<Number>(0, (rows + PER - 1) / PER, count, columns, out, [&](int r, int c) {
        const float* even = x + r * PER * row + c;
        for (int i = 0; i < PER; i++) __builtin_prefetch(even + (AHEAD + i) * row);
        return Number::pair(load(even), PER * r + 1 < rows ? load(even + row) : vec{});
    });
}

// One panel of x (rows, columns) -> units of neighbouring columns, in panels of rows: what is summed over are the columns.
// `rows` are those of the panel, at most 6 W.
template <class Number>
void turned_panel(const float* x, int64_t row, int rows, int columns, typename Number::Unit* out) {
    constexpr int PER = Number::PER, BLOCK = 16;
    typename Number::Unit units[BLOCK][BLOCK];
    for (int k0 = 0; k0 < columns / PER; k0 += BLOCK)
        for (int r0 = 0; r0 < rows; r0 += BLOCK) {
            int units_here = std::min(BLOCK, columns / PER - k0), rows_here = std::min(BLOCK, rows - r0);
            for (int r = 0; r < rows_here; r++) {
                const float* from = x + (r0 + r) * row + k0 * PER;
                auto* small = reinterpret_cast<typename Number::Small*>(units[r]);
                for (int c = 0; c < units_here * PER; c += W) Number::narrow(small + c, load(from + c));
            }
            for (int k = 0; k < units_here; k += 4)
                for (int r = 0; r < rows_here; r += 4) {
                    four square[4];
#pragma GCC unroll 4
                    for (int i = 0; i < 4; i++) square[i] = *reinterpret_cast<const loose_four*>(&units[r + i][k]);
                    turn_square(square);
#pragma GCC unroll 4
                    for (int i = 0; i < 4; i++)
                        *reinterpret_cast<loose_four*>(out + int64_t(k0 + k + i) * rows + r0 + r) = square[i];
                }
        }
}

// Weights on their way into panels: each (rows, columns), of rows where `turned`, or of columns.
template <class Number>
struct Packing {
    struct Task {  // one panel, from row or column c on
        const float* from;
        typename Number::Unit* to;
        int rows, columns, c, width;
    };
    bool turned;
    std::vector<Task> tasks = {};

    void add(const float* from, typename Number::Unit* to, int rows, int columns) {
        int all = turned ? rows : columns;
        for (int c = 0, width; c < all; c += width) {
            width = panel_width(all - c);
            tasks.push_back({from, to, rows, columns, c, width});
        }
    }

    void run(int threads, Parallel parallel) const {
        share(int64_t(tasks.size()), 0, threads, parallel, [&](int64_t i, float*) {
            Task task = tasks[i];
            int count = (turned ? task.columns : task.rows) / Number::PER;
            typename Number::Unit* panel = task.to + int64_t(task.c) * count;
            if (turned)
                turned_panel<Number>(task.from + int64_t(task.c) * task.columns, task.columns, task.width, task.columns, panel);
            else
                across<Number>(task.from + task.c, task.columns, task.rows, task.width, count, panel);
        });
    }
};

// Rows of numbers -> the same as rows of small numbers.
template <class Number>
void narrow_rows(const float* x, int count, int columns, typename Number::Small* to) {
    for (int64_t i = 0; i < int64_t(count) * columns; i += W) Number::narrow(to + i, load(x + i));
}

// Rows of small numbers -> units of neighbouring rows, in panels of `units_of` rows of units.
template <class Number>
void small_across(const typename Number::Small* x, int count, int columns, int units_of, typename Number::Unit* to) {
    constexpr int PER = Number::PER;
    into_panels<Number>(0, (count + PER - 1) / PER, units_of, columns, to, [&](int r, int c) {
        const auto* row = x + int64_t(r) * PER * columns + c;
        for (int i = 0; i < PER; i++) __builtin_prefetch(row + (AHEAD + i) * columns);
        if (PER * r + PER <= count) return Number::pair(row, row + (PER - 1) * columns);
        return Number::pair(Number::widen(row), vec{});
    });
}

// sums[c] += sum_r x[r][c]
inline void add_columns(const float* x, int count, int columns, float* sums) {
    for (int c = 0; c < columns; c += W) {
        vec sum = load(sums + c);
        for (int r = 0; r < count; r++) sum += load(x + int64_t(r) * columns + c);
        store(sums + c, sum);
    }
}

// out (rows, columns) += sum_k a[k][r] b[k][c], both in panels
template <class Number>
void add_product(const typename Number::Unit* a, int rows, const typename Number::Unit* b, int columns, int count, float* out) {
    product_across<Number>(a, rows, b, count, columns, {out, columns, nullptr, out, columns});
}

}  // namespace
