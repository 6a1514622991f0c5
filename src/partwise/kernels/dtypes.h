// Operands of matmuls: float32 numbers, or pairs of bfloat16 numbers whose dot product one instruction accumulates.
#pragma once

#include "simd.h"

#if defined(__AVX512F__)
#include <immintrin.h>
#elif defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
#include <arm_neon.h>
#endif

namespace {

typedef uint32_t uvec __attribute__((vector_size(4 * W)));
typedef uint16_t bf16_vec __attribute__((vector_size(2 * W)));
typedef uint16_t unaligned_bf16_vec __attribute__((vector_size(2 * W), aligned(2), may_alias));

struct Float32 {
    typedef float Element;
    typedef float Word;                 // 32 bits: the unit that a matmul loads
    static constexpr int PER_WORD = 1;  // elements per word

    static ALWAYS_INLINE vec load_float(const Element* p) { return load(p); }
    static ALWAYS_INLINE void store_rounded(Element* p, vec x) { store(p, x); }
    static ALWAYS_INLINE Element from_float(float x) { return x; }
    static ALWAYS_INLINE vec multiply_add(vec sum, Word a, vec b) { return sum + a * b; }
    static ALWAYS_INLINE vec multiply_add(vec sum, vec a, vec b) { return sum + a * b; }
    static ALWAYS_INLINE vec softmax_exp2(vec x) { return exp2(x); }
    static ALWAYS_INLINE vec pack(vec even, vec) { return even; }
    static ALWAYS_INLINE vec scale_packed(vec x, vec even, vec) { return x * even; }
    static ALWAYS_INLINE vec pack(const Element* even, const Element*) { return load(even); }
    static ALWAYS_INLINE Word pack(Element even, Element) { return even; }
};

struct BFloat16 {
    typedef uint16_t Element;
    typedef uint32_t Word;
    static constexpr int PER_WORD = 2;

    static ALWAYS_INLINE vec load_float(const Element* p) { return (vec)(load_bits(p) << 16); }
    static ALWAYS_INLINE float to_float(Element x) {
        uint32_t bits = uint32_t(x) << 16;
        float y;
        std::memcpy(&y, &bits, 4);
        return y;
    }
    static ALWAYS_INLINE Element from_float(float x) {  // to nearest, ties to even
        uint32_t bits;
        std::memcpy(&bits, &x, 4);
        return x != x ? 0x7fc0 : Element((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    }
    static ALWAYS_INLINE Word pack(Element even, Element odd) { return even | uint32_t(odd) << 16; }
    static ALWAYS_INLINE vec pack(const Element* even, const Element* odd) {
        return (vec)(load_bits(even) | load_bits(odd) << 16);
    }

#if defined(__AVX512BF16__) && defined(__AVX512BW__)
    static ALWAYS_INLINE void store_rounded(Element* p, vec x) {
        *reinterpret_cast<unaligned_bf16_vec*>(p) = (bf16_vec)_mm512_cvtneps_pbh((__m512)x);
    }
    static ALWAYS_INLINE vec multiply_add(vec sum, Word a, vec b) {
        return (vec)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_set1_epi32(int(a)), (__m512bh)b);
    }
    static ALWAYS_INLINE vec multiply_add(vec sum, vec a, vec b) {
        return (vec)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
    }
    static ALWAYS_INLINE vec pack(vec even, vec odd) {
        const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                                               21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
        return (vec)_mm512_permutexvar_epi16(order, (__m512i)_mm512_cvtne2ps_pbh((__m512)odd, (__m512)even));
    }
#elif defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
    // BFDOT adds two products and rounds three times, to odd: each time by less than 2^-23 of the value, where rounding to nearest
    // is within 2^-24. Numbers below 2^-126 count as zero. Arm Architecture Reference Manual, BFDotAdd.
    static ALWAYS_INLINE void store_rounded(Element* p, vec x) {
        vst1_u16(p, vreinterpret_u16_bf16(vcvt_bf16_f32((float32x4_t)x)));
    }
    static ALWAYS_INLINE vec multiply_add(vec sum, Word a, vec b) {
        return multiply_add(sum, (vec)vdupq_n_u32(a), b);
    }
    static ALWAYS_INLINE vec multiply_add(vec sum, vec a, vec b) {
        return (vec)vbfdotq_f32((float32x4_t)sum, vreinterpretq_bf16_f32((float32x4_t)a), vreinterpretq_bf16_f32((float32x4_t)b));
    }
    static ALWAYS_INLINE vec pack(vec even, vec odd) {
        return (vec)(rounded_bits(even) >> 16 | (rounded_bits(odd) & 0xffff0000u));
    }
#else
    static ALWAYS_INLINE void store_rounded(Element* p, vec x) {
        *reinterpret_cast<unaligned_bf16_vec*>(p) = __builtin_convertvector(rounded_bits(x) >> 16, bf16_vec);
    }
    static ALWAYS_INLINE vec multiply_add(vec sum, Word a, vec b) {
        return sum + to_float(Element(a)) * (vec)((uvec)b << 16) + to_float(Element(a >> 16)) * (vec)((uvec)b & 0xffff0000u);
    }
    static ALWAYS_INLINE vec multiply_add(vec sum, vec a, vec b) {
        return sum + (vec)((uvec)a << 16) * (vec)((uvec)b << 16) + (vec)((uvec)a & 0xffff0000u) * (vec)((uvec)b & 0xffff0000u);
    }
    static ALWAYS_INLINE vec pack(vec even, vec odd) {
        return (vec)(rounded_bits(even) >> 16 | (rounded_bits(odd) & 0xffff0000u));
    }
#endif

    // The two elements of each word, multiplied.
    static ALWAYS_INLINE vec scale_packed(vec x, vec even, vec odd) {
        return pack((vec)((uvec)x << 16) * even, (vec)((uvec)x & 0xffff0000u) * odd);
    }

    // 2^x for softmax weights, which are rounded to 8 bits: relative error below 8e-5; 0 below 2^-127, NaN for NaN.
    static ALWAYS_INLINE vec softmax_exp2(vec x) {
#if defined(__AVX512F__) && defined(__AVX512BF16__)
        x = (vec)_mm512_max_ps((__m512)broadcast(-127.0f), (__m512)x);
        const float magic = 0x1.8p23f + 127;
        vec t = x + magic, r = x - (t - magic);
        vec p = broadcast(5.517167e-2f);
        p = p * r + 2.4261112e-1f;
        p = p * r + 6.9326099e-1f;
        p = p * r + 9.9992807e-1f;
        return p * (vec)((ivec)t << 23);
#else
        return exp2(x);
#endif
    }

   private:
    static ALWAYS_INLINE uvec load_bits(const Element* p) {
#if defined(__AVX512F__)  // one instruction, where a compiler may emit four
        return (uvec)_mm512_cvtepu16_epi32(*reinterpret_cast<const __m256i_u*>(p));
#else
        return __builtin_convertvector(*reinterpret_cast<const unaligned_bf16_vec*>(p), uvec);
#endif
    }
    static ALWAYS_INLINE uvec rounded_bits(vec x) {  // to nearest, ties to even, in the upper half
        uvec bits = (uvec)x, is_number = (uvec)(x == x);
        return ((bits + 0x7fffu + (bits >> 16 & 1u)) & is_number) | (0x7fc00000u & ~is_number);
    }
};

}  // namespace
