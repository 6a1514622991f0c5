// What lies between the two matrices of a perceptron, plain or gated, of some rows.
#pragma once

#include "activations.h"
#include "numbers.h"

namespace {

// Shapes: F hidden units, U = F, or 2 F where gated: first the gates, then what they let through.
template <class Number>
struct Hidden {
    typedef typename Number::Small Small;
    typedef typename Number::Unit Unit;
    static constexpr int PER = Number::PER;

    int F, U, act;
    bool gated;
    std::vector<std::pair<int, int>> panels = {};  // start and width of the panel of each W columns of U

    Hidden(int F, bool gated, int act) : F(F), U(gated ? 2 * F : F), act(act), gated(gated) {
        for (int c = 0, width; c < U; c += width) {
            width = panel_width(U - c);
            panels.insert(panels.end(), width / W, std::pair(c, width));
        }
    }

    // What the first matrix gave -> the same as small numbers, and the hidden units.
    void forward(const float* from, int count, Small* pre, Small* hidden) const {
        chosen([&](auto kind, auto gates) { forward_of<kind.value, gates.value>(from, count, pre, hidden); });
    }

    // From the gradient of the hidden units: they again, and the gradient of what they were made of, both as units of
    // neighbouring rows in panels of `units_of` rows, the latter as rows too, and its sums. `first` is the row of the first.
    void backward(const float* from, const Small* pre, int first, int count, int units_of, Unit* hidden_across,
                  Unit* change_across, Small* change, float* sums) const {
        Backward to{from, pre, units_of, hidden_across, change_across, change, sums};
        chosen([&](auto kind, auto gates) {
            int r = 0;
            for (; r + PER <= count; r += PER) backward_of<kind.value, gates.value, PER>(to, r, (first + r) / PER);
            if (r < count) backward_of<kind.value, gates.value, 1>(to, r, (first + r) / PER);
        });
    }

   private:
    struct Backward {
        const float* from;
        const Small* pre;
        int units_of;
        Unit *hidden_across, *change_across;
        Small* change;
        float* sums;
    };

    template <class Work>
    void chosen(const Work& work) const {
        choose(act, [&](auto kind) { gated ? work(kind, std::true_type()) : work(kind, std::false_type()); });
    }

    template <Act ACT, bool GATED>
    void forward_of(const float* from, int count, Small* pre, Small* hidden) const {
        for (int r = 0; r < count; r++, from += U, pre += U, hidden += F)
            for (int f = 0; f < F; f += W) {
                vec z = load(from + f), h, slope;
                if (f % 32 == 0) __builtin_prefetch(pre + AHEAD * U + f, 1);
                activate<ACT>(z, h, slope);
                Number::narrow(pre + f, z);
                if constexpr (GATED) {
                    if (f % 32 == 0) __builtin_prefetch(pre + AHEAD * U + F + f, 1);
                    vec value = load(from + F + f);
                    Number::narrow(pre + F + f, value);
                    h *= value;
                }
                Number::narrow(hidden + f, h);
            }
    }

    // Of the rows of one unit, of which R are there.
    template <Act ACT, bool GATED, int R>
    void backward_of(const Backward& b, int64_t r, int64_t unit) const {
        const int F = this->F, U = this->U;
        const float* from = b.from + r * F;
        const Small* pre = b.pre + r * U;
        Small* change = b.change + r * U;
        float* sums = b.sums;
        for (int start = 0, width; start < F; start += width) {
            width = panel_width(F - start);
            float* hidden_to = reinterpret_cast<float*>(b.hidden_across) + int64_t(start) * b.units_of + unit * width - start;
            for (int c = start; c < start + width; c += W) {
                vec h[2] = {}, gate[2] = {}, through[2] = {};
#pragma GCC unroll 2
                for (int i = 0; i < R; i++) {
                    if (c % 32 == 0) __builtin_prefetch(pre + (i + AHEAD) * U + c);
                    vec slope, g = load(from + i * F + c);
                    activate<ACT>(Number::widen(pre + i * U + c), h[i], slope);
                    if constexpr (GATED) {
                        if (c % 32 == 0) __builtin_prefetch(pre + (i + AHEAD) * U + F + c);
                        vec value = Number::widen(pre + i * U + F + c);
                        through[i] = g * h[i], gate[i] = g * value * slope, h[i] *= value;
                        Number::narrow(change + i * U + F + c, through[i]);
                    } else {
                        gate[i] = g * slope;
                    }
                    Number::narrow(change + i * U + c, gate[i]);
                }
                store(hidden_to + c, Number::pair(h[0], h[1]));
                put_across(b, unit, c, Number::pair(gate[0], gate[1]));
                store(sums + c, load(sums + c) + (gate[0] + gate[1]));
                if constexpr (GATED) {
                    put_across(b, unit, F + c, Number::pair(through[0], through[1]));
                    store(sums + F + c, load(sums + F + c) + (through[0] + through[1]));
                }
            }
        }
    }

    // W units of what the hidden units are made of into their place within panels.
    void put_across(const Backward& b, int64_t unit, int c, vec units) const {
        auto [start, width] = panels[c / W];
        store(reinterpret_cast<float*>(b.change_across) + int64_t(start) * b.units_of + unit * width + (c - start), units);
    }
};

}  // namespace
