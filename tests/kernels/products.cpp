// Whether the sums of several rows equal, bit for bit, those of each row alone: on aarch64 these take other instructions. Prints
// the first difference and returns 1.
#include "products.h"

#include <cstdio>
#include <vector>

namespace {

constexpr int MOST = 11, COLUMNS = 2 * W;  // words of a sum; an odd number leaves one that no vector has
int checked = 0;

template <class Dtype>
std::vector<typename Dtype::Word> words(int64_t count, uint32_t state) {
    std::vector<typename Dtype::Word> result(count);
    auto* elements = reinterpret_cast<typename Dtype::Element*>(result.data());
    for (int64_t i = 0; i < count * Dtype::PER_WORD; i++) {
        state = state * 1664525u + 1013904223u;
        elements[i] = Dtype::from_float(float(int32_t(state)) * 0x1p-31f);
    }
    return result;
}

template <class Dtype, int R, int N>
bool same(const char* dtype, int K, bool adjacent_rows) {
    const int64_t a_row = adjacent_rows ? MOST : 1, a_k = adjacent_rows ? 1 : R;
    auto a = words<Dtype>(R * MOST, 1), b = words<Dtype>(MOST * COLUMNS, 2);
    vec together[R][N] = {};
    add_products<Dtype>(a.data(), a_row, a_k, b.data(), COLUMNS, K, together);
    for (int r = 0; r < R; r++) {
        vec alone[1][N] = {};
        // a stride that is not 1 in either direction keeps to one instruction per word
        std::vector<typename Dtype::Word> spread(2 * MOST);
        for (int k = 0; k < K; k++) spread[2 * k] = a[r * a_row + k * a_k];
        add_products<Dtype>(spread.data(), 2, 2, b.data(), COLUMNS, K, alone);
        checked++;
        for (int c = 0; c < N * W; c++) {
            float x = together[r][c / W][c % W], y = alone[0][c / W][c % W];
            if (x == y) continue;
            std::printf("%s, %d rows, %d vectors, %d words, adjacent %s: row %d, column %d is %.9g, alone %.9g\n", dtype, R, N, K,
                        adjacent_rows ? "rows" : "columns", r, c, double(x), double(y));
            return false;
        }
    }
    return true;
}

template <class Dtype>
bool check(const char* dtype) {
    for (int K = 0; K <= MOST; K++)
        for (bool adjacent_rows : {true, false})
            if (!same<Dtype, 8, 2>(dtype, K, adjacent_rows) || !same<Dtype, 8, 1>(dtype, K, adjacent_rows) ||
                !same<Dtype, 4, 2>(dtype, K, adjacent_rows) || !same<Dtype, 2, 2>(dtype, K, adjacent_rows) ||
                !same<Dtype, 1, 2>(dtype, K, adjacent_rows))
                return false;
    return true;
}

}  // namespace

int main() {
    bool passed = check<Float32>("float32") && check<BFloat16>("bfloat16");
    if (passed) std::printf("%d sums\n", checked);
    return !passed;
}
