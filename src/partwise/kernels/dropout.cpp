// Dropout of a tensor: x keep / (1 - p). The gradient is the same function of the output's gradient.

#include "parallel.h"
#include "philox.h"

namespace {

// dropout.py builds it. A layer is applied to `rows` of `heads` of `positions` of `elements`.
struct Sizes {
    int64_t rows, heads, positions, elements;
    Dropout dropout;
};

struct Double {
    typedef double Element;
    static double drop(double x, bool keep, double rate) { return x * double(keep) / rate; }
};
struct Single {
    typedef float Element;
    static float drop(float x, bool keep, double rate) { return x * float(keep) / float(rate); }
};
struct Half {
    typedef uint16_t Element;
    static uint16_t drop(uint16_t x, bool keep, double rate) {
        return BFloat16::from_float(Single::drop(BFloat16::to_float(x), keep, rate));
    }
};

template <class Number>
void run(const Sizes& s, const void* input, void* output, int threads, Parallel parallel) {
    typedef typename Number::Element Element;
    const double rate = 1 - s.dropout.p;
    const uint32_t threshold = s.dropout.threshold();
    parallel_for(s.rows * s.heads * s.positions, 0, threads, parallel, [&](int64_t line, float*) {
        int64_t position = line % s.positions, head = line / s.positions % s.heads, row = line / s.positions / s.heads;
        const Element* x = static_cast<const Element*>(input) + line * s.elements;
        Element* y = static_cast<Element*>(output) + line * s.elements;
        for (int64_t e = 0; e < s.elements; e += 4 * W) {
            uint32_t words[4 * W];
            s.dropout.words(e, position, head, row, words);
            auto drop = [&](int i) { y[e + i] = Number::drop(x[e + i], words[i] >= threshold, rate); };
            if (e + 4 * W <= s.elements)
                for (int i = 0; i < 4 * W; i++) drop(i);
            else
                for (int i = 0; e + i < s.elements; i++) drop(i);
        }
    });
}

}  // namespace

extern "C" {

// x -> y, which are contiguous; `bytes` per element: 8, 4, or 2 for bfloat16.
void dropout(const Sizes* s, int bytes, const void* x, void* y, int threads, Parallel parallel) {
    (bytes == 8 ? run<Double> : bytes == 4 ? run<Single> : run<Half>)(*s, x, y, threads, parallel);
}
}
