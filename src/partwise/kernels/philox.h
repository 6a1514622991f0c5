// Dropout noise by Philox4x32-10: random words as a function of a counter and a key, without state; Salmon et al. 2011.
#pragma once

#include "dtypes.h"
#include "transpose.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace {

typedef uint64_t uvec64 __attribute__((vector_size(4 * W)));

// The 64-bit products of the even lanes.
ALWAYS_INLINE uvec64 multiply_even(uvec x, uint32_t factor) {
#if defined(__AVX512F__)
    return (uvec64)_mm512_mul_epu32((__m512i)x, _mm512_set1_epi32(int(factor)));
#elif defined(__AVX2__)
    return (uvec64)_mm256_mul_epu32((__m256i)x, _mm256_set1_epi32(int(factor)));
#else
    return ((uvec64)x & 0xffffffffu) * factor;
#endif
}

ALWAYS_INLINE uvec multiply_high(uvec x, uint32_t factor) {
    uvec64 even = multiply_even(x, factor), odd = multiply_even((uvec)((uvec64)x >> 32), factor);
    return (uvec)(even >> 32 | (odd & 0xffffffff00000000u));
}

// Each lane's counter -> its four random words, in place.
ALWAYS_INLINE void philox(uvec (&x)[4], uint64_t key) {
    uint32_t key_0 = uint32_t(key), key_1 = uint32_t(key >> 32);
#pragma GCC unroll 10
    for (int round = 0; round < 10; round++, key_0 += 0x9e3779b9u, key_1 += 0xbb67ae85u) {
        uvec high_0 = multiply_high(x[0], 0xd2511f53u), high_2 = multiply_high(x[2], 0xcd9e8d57u);
        uvec low_0 = x[0] * 0xd2511f53u, low_2 = x[2] * 0xcd9e8d57u;
        x[0] = high_2 ^ x[1] ^ key_0, x[1] = low_2;
        x[2] = high_0 ^ x[3] ^ key_1, x[3] = low_0;
    }
}

inline uvec lane_numbers() {
    uvec x{};
    for (int i = 0; i < W; i++) x[i] = uint32_t(i);
    return x;
}

ALWAYS_INLINE uvec load_words(const uint32_t* p) { return (uvec)load(reinterpret_cast<const float*>(p)); }

// The words of W counters: four per lane, lane after lane.
ALWAYS_INLINE void store_words(const uvec (&x)[4], uint32_t* out) {
    float memory[4][W];
    for (int k = 0; k < 4; k++) store(memory[k], (vec)x[k]);
    for (int lane = 0; lane < W; lane += 4) {
        vec4 tile[4] = {load4(memory[0] + lane), load4(memory[1] + lane), load4(memory[2] + lane), load4(memory[3] + lane)};
        transpose_4x4(tile);
        for (int i = 0; i < 4; i++) store4(reinterpret_cast<float*>(out) + 4 * (lane + i), tile[i]);
    }
}

// The dropout of one layer in one call. Noise is a function of the indices of an element, so it depends neither on how a batch
// is split nor on padding: the counter is (element / 4, position, head, row). dropout.py builds it.
struct Dropout {
    double p;
    uint64_t key;
    int64_t first_row;  // index of the first row in the batch of the step

    explicit operator bool() const { return p > 0; }
    uint32_t threshold() const { return uint32_t(p * 0x1p32); }  // elements with a smaller word are zeroed
    float scale() const { return float(1 / (1 - p)); }           // of the elements that are kept

    // The words of 4 W elements from `element` on, a multiple of 4.
    __attribute__((noinline)) void words(int64_t element, int64_t position, int64_t head, int64_t row, uint32_t* out) const {
        uvec x[4] = {lane_numbers() + uint32_t(element / 4), uvec{} + uint32_t(position), uvec{} + uint32_t(head),
                     uvec{} + uint32_t(first_row + row)};
        philox(x, key);
        store_words(x, out);
    }

    // 1 / (1 - p) for each element that is kept, else 0.
    static ALWAYS_INLINE vec factors(uvec words, uint32_t threshold, float scale) {
        return words >= threshold ? broadcast(scale) : vec{};
    }

    // task(c, factors) for each W of `elements` elements, a multiple of W.
    template <class Task>
    void for_each_vector(int64_t position, int64_t row, int elements, const Task& task) const {
        for (int start = 0; start < elements; start += 4 * W) {
            uint32_t memory[4 * W];
            words(start, position, 0, row, memory);
            for (int c = start; c < std::min(start + 4 * W, elements); c += W)
                task(c, factors(load_words(memory + c - start), threshold(), scale()));
        }
    }
};

// The dropout of the attention weights of one head.
struct HeadDropout {
    Dropout dropout;
    int64_t head, row;

    // Of four keys from `key` on, a multiple of 4, by W queries from `query` on in the lanes.
    void key_words(int64_t key, int64_t query, uvec (&x)[4]) const {
        x[0] = uvec{} + uint32_t(key / 4), x[1] = lane_numbers() + uint32_t(query);
        x[2] = uvec{} + uint32_t(head), x[3] = uvec{} + uint32_t(dropout.first_row + row);
        philox(x, dropout.key);
    }

    // Of `rows` queries from `query` on by TILE keys from `key` on: (rows, TILE), rounded up to an even number of rows.
    void tile_words(int64_t key, int64_t query, int rows, uint32_t* out) const {
        const uvec half = lane_numbers() / uint32_t(W / 2);  // one counter per lane: those of two queries fill a vector
        for (int r = 0; r < rows; r += 2, out += 2 * TILE) {
            uvec x[4] = {lane_numbers() - half * uint32_t(W / 2) + uint32_t(key / 4), half + uint32_t(query + r),
                         uvec{} + uint32_t(head), uvec{} + uint32_t(dropout.first_row + row)};
            philox(x, dropout.key);
            store_words(x, out);
        }
    }
};

}  // namespace
