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
        choose(act, [&](auto kind) { forward_of<kind.value>(from, count, pre, hidden); });
    }

    // From the gradient of the hidden units: they again, and the gradient of what they were made of, both as units of
    // neighbouring rows in panels of `units_of` rows, the latter as rows too, and its sums. `first` is the row of the first.
    void backward(const float* from, const Small* pre, int first, int count, int units_of, Unit* hidden_across,
                  Unit* change_across, Small* change, float* sums) const {
        choose(act, [&](auto kind) {
            backward_of<kind.value>(from, pre, first, count, units_of, hidden_across, change_across, change, sums);
        });
    }

   private:
    template <Act ACT>
    void forward_of(const float* from, int count, Small* pre, Small* hidden) const {
        for (int r = 0; r < count; r++, from += U, pre += U, hidden += F)
            for (int f = 0; f < F; f += W) {
                vec z = load(from + f), h, slope;
                activate<ACT>(z, h, slope);
                Number::narrow(pre + f, z);
                if (gated) {
                    vec value = load(from + F + f);
                    Number::narrow(pre + F + f, value);
                    h *= value;
                }
                Number::narrow(hidden + f, h);
            }
    }

    template <Act ACT>
    void backward_of(const float* from, const Small* pre, int first, int count, int units_of, Unit* hidden_across,
                     Unit* change_across, Small* change, float* sums) const {
        for (int r = 0; r < count; r += PER) {
            int64_t unit = (first + r) / PER;
            for (int start = 0, width; start < F; start += width) {
                width = panel_width(F - start);
                float* hidden_to = reinterpret_cast<float*>(hidden_across) + int64_t(start) * units_of + unit * width;
                for (int c = start; c < start + width; c += W) {
                    vec h[2] = {}, gate[2] = {}, through[2] = {};
                    auto one = [&](int i) __attribute__((always_inline)) {
                        const Small* row = pre + int64_t(r + i) * U;
                        Small* to = change + int64_t(r + i) * U;
                        vec slope, g = load(from + int64_t(r + i) * F + c);
                        activate<ACT>(Number::widen(row + c), h[i], slope);
                        if (gated) {
                            vec value = Number::widen(row + F + c);
                            through[i] = g * h[i], gate[i] = g * value * slope, h[i] *= value;
                            Number::narrow(to + F + c, through[i]);
                        } else {
                            gate[i] = g * slope;
                        }
                        Number::narrow(to + c, gate[i]);
                    };
                    one(0);
                    if (PER > 1 && r + 1 < count) one(1);
                    store(hidden_to + (c - start), Number::pair(h[0], h[1]));
                    put_across(change_across, units_of, unit, c, Number::pair(gate[0], gate[1]));
                    store(sums + c, load(sums + c) + (gate[0] + gate[1]));
                    if (!gated) continue;
                    put_across(change_across, units_of, unit, F + c, Number::pair(through[0], through[1]));
                    store(sums + F + c, load(sums + F + c) + (through[0] + through[1]));
                }
            }
        }
    }

    // W units of what the hidden units are made of into their place within panels of `count` rows of units.
    void put_across(Unit* to, int count, int64_t unit, int c, vec units) const {
        auto [start, width] = panels[c / W];
        store(reinterpret_cast<float*>(to) + int64_t(start) * count + unit * width + (c - start), units);
    }
};

}  // namespace
