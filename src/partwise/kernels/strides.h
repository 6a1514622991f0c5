// The memory layout of a tensor (B, T, H, E) whose heads are contiguous.
#pragma once

#include <cstdint>

namespace {

struct Strides {
    int64_t b, t, h;  // in elements
    int64_t offset(int64_t batch, int64_t head) const { return batch * b + head * h; }
};

}  // namespace
