// The tile registers of CPUs with AMX, which multiply 16 rows of 16 bfloat16 words by as many at once.
//
// Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1, chapter 18.
#pragma once

#include "dtypes.h"

#if defined(__linux__) && defined(__AVX512BF16__) && defined(__AVX512BW__) && defined(__AVX512VL__) && \
    defined(__AVX512DQ__) && (defined(__AMX_BF16__) || defined(__AMXBF16__))
#define HAS_TILES 1
#include <sys/syscall.h>
#include <unistd.h>
#else
#define HAS_TILES 0
#endif

namespace {

constexpr int REGISTER_ROWS = 16, REGISTER_WORDS = 16;  // a register: rows of 16 words of an operand, or of 16 sums
constexpr int SUMS = 2 * REGISTER_ROWS;                 // rows and columns of the sums of two by two registers

#if HAS_TILES
// Linux lets a process use the registers once it has asked (arch/x86/include/uapi/asm/prctl.h).
inline bool may_use_tiles() {
    constexpr int ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18;
    static const bool allowed = syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
    return allowed;
}

// The compiler does not know that tile instructions read and write memory.
ALWAYS_INLINE void memory_barrier() { asm volatile("" ::: "memory"); }

// The rows of an operand that this thread's registers are configured for; 0 if they are not.
inline int& configured_rows() {
    static thread_local int rows = 0;
    return rows;
}

// Registers 0 to 3: two by two of sums; 4 and 5: rows of the first operand, up to SUMS; 6 and 7: columns of the second.
// They stay configured until the end of a TileScope, because that takes longer than a small product.
inline void configure_tiles(int operand_rows) {
    if (configured_rows() == operand_rows) return;
    configured_rows() = operand_rows;
    struct alignas(64) {
        uint8_t palette = 1, start_row = 0, reserved[14] = {};
        uint16_t row_bytes[16] = {};
        uint8_t rows[16] = {};
    } config;
    const int upper = std::min(operand_rows, REGISTER_ROWS), lower = std::max(1, operand_rows - REGISTER_ROWS);
    const int rows[8] = {upper, upper, lower, lower, upper, lower, REGISTER_ROWS, REGISTER_ROWS};
    for (int i = 0; i < 8; i++) config.row_bytes[i] = 4 * REGISTER_WORDS, config.rows[i] = uint8_t(rows[i]);
    memory_barrier();
    _tile_loadconfig(&config);
}

// Releases the registers at its end: other code configures them for itself, and a thread without them is switched faster.
struct TileScope {
    ~TileScope() {
        if (configured_rows()) _tile_release();
        configured_rows() = 0;
    }
};

// out[r][c] = initial[r][c] + sum_k a[r a_row + k] b[k b_row + c] of one or two registers of rows and of columns; k < K, a
// multiple of 16. `initial` may be null, for zeros.
template <bool TWO_ROWS, bool TWO_COLUMNS>
inline void multiply_tiles(const uint32_t* a, int64_t a_row, const uint32_t* b, int64_t b_row, int K, const float* initial,
                           int64_t initial_row, float* out, int64_t out_row) {
    const uint32_t* lower = a + REGISTER_ROWS * a_row;
    const int64_t a_bytes = 4 * a_row, b_bytes = 4 * b_row, initial_bytes = 4 * initial_row, out_bytes = 4 * out_row;
    memory_barrier();
    if (initial) {
        _tile_loadd(0, initial, initial_bytes);
        if constexpr (TWO_COLUMNS) _tile_loadd(1, initial + REGISTER_WORDS, initial_bytes);
        if constexpr (TWO_ROWS) _tile_loadd(2, initial + REGISTER_ROWS * initial_row, initial_bytes);
        if constexpr (TWO_ROWS && TWO_COLUMNS)
            _tile_loadd(3, initial + REGISTER_ROWS * initial_row + REGISTER_WORDS, initial_bytes);
    } else {
        _tile_zero(0);
        if constexpr (TWO_COLUMNS) _tile_zero(1);
        if constexpr (TWO_ROWS) _tile_zero(2);
        if constexpr (TWO_ROWS && TWO_COLUMNS) _tile_zero(3);
    }
    for (int k = 0; k < K; k += REGISTER_WORDS) {
        const uint32_t* columns = b + k * b_row;
        _tile_loadd(6, columns, b_bytes);
        _tile_loadd(4, a + k, a_bytes);
        _tile_dpbf16ps(0, 4, 6);
        if constexpr (TWO_COLUMNS) {
            _tile_loadd(7, columns + REGISTER_WORDS, b_bytes);
            _tile_dpbf16ps(1, 4, 7);
        }
        if constexpr (TWO_ROWS) {
            _tile_loadd(5, lower + k, a_bytes);
            _tile_dpbf16ps(2, 5, 6);
            if constexpr (TWO_COLUMNS) _tile_dpbf16ps(3, 5, 7);
        }
    }
    _tile_stored(0, out, out_bytes);
    if constexpr (TWO_COLUMNS) _tile_stored(1, out + REGISTER_WORDS, out_bytes);
    if constexpr (TWO_ROWS) _tile_stored(2, out + REGISTER_ROWS * out_row, out_bytes);
    if constexpr (TWO_ROWS && TWO_COLUMNS) _tile_stored(3, out + REGISTER_ROWS * out_row + REGISTER_WORDS, out_bytes);
    memory_barrier();
}
#else
struct TileScope {
    ~TileScope() {}  // not trivial, so that no compiler calls a scope unused
};
#endif

}  // namespace
