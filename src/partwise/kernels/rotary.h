// Rotary positions (RoPE) of one head, in place; Su et al. 2021.
#pragma once

#include "simd.h"

namespace {

// Pairs (a, b) -> (a cos - b sin, b cos + a sin); the elements of a pair are adjacent if interleaved, else `pairs` apart.
// direction = -1 rotates back, as gradients do.
inline void rotate(float* head, int64_t pairs, bool interleaved, const float* cosines, const float* sines, float direction) {
    int64_t distance = interleaved ? 1 : pairs, step = interleaved ? 2 : 1, i = 0;
    for (; !interleaved && i + W <= pairs; i += W) {  // no compiler sees that a head and the tables are apart
        vec x = load(head + i), y = load(head + pairs + i), cosine = load(cosines + i), sine = direction * load(sines + i);
        store(head + i, x * cosine - y * sine);
        store(head + pairs + i, y * cosine + x * sine);
    }
    for (; i < pairs; i++) {
        float &a = head[i * step], &b = head[i * step + distance], x = a, y = b, sine = direction * sines[i];
        a = x * cosines[i] - y * sine;
        b = y * cosines[i] + x * sine;
    }
}

}  // namespace
