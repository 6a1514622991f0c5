// Which of the instruction sets that a wheel's kernels are compiled for this CPU has. Compiled for every CPU of its kind.

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__APPLE__)
#include <sys/sysctl.h>
#elif defined(__linux__)
#include <sys/auxv.h>
#endif

// 0: none; 1: AVX2 and FMA; 2: AVX-512 F, BW, CD, DQ and VL; 3: also bfloat16 products; 4: also tile registers. An instruction set
// counts if the operating system saves its registers. Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1,
// chapters 13 to 15 and 18. On arm64, 1, or 2 with bfloat16 products.
extern "C" int instruction_level() {
#if defined(__x86_64__)
    unsigned a, b, c, d;
    auto has = [](unsigned bits, unsigned wanted) { return (bits & wanted) == wanted; };
    if (!__get_cpuid(1, &a, &b, &c, &d) || !has(c, 1u << 27 | 1u << 28 | 1u << 12 | 1u << 29)) return 0;  // OSXSAVE AVX FMA F16C
    unsigned saved, upper;
    asm volatile("xgetbv" : "=a"(saved), "=d"(upper) : "c"(0));
    if (!has(saved, 0x6) || !__get_cpuid_count(7, 0, &a, &b, &c, &d) || !has(b, 1u << 5 | 1u << 3 | 1u << 8)) return 0;  // AVX2 BMI
    if (!has(saved, 0xe6) || !has(b, 1u << 16 | 1u << 17 | 1u << 28 | 1u << 30 | 1u << 31)) return 1;
    const bool tiles = has(saved, 0x60000) && has(d, 1u << 22 | 1u << 24);  // AMX-BF16 AMX-TILE
    if (!__get_cpuid_count(7, 1, &a, &b, &c, &d) || !has(a, 1u << 5)) return 2;
    return tiles ? 4 : 3;
#elif defined(__APPLE__)
    int found = 0;
    size_t size = sizeof found;
    return sysctlbyname("hw.optional.arm.FEAT_BF16", &found, &size, nullptr, 0) == 0 && found ? 2 : 1;
#elif defined(__linux__)
    return getauxval(AT_HWCAP2) >> 14 & 1 ? 2 : 1;  // HWCAP2_BF16, arch/arm64/include/uapi/asm/hwcap.h
#else
    return 1;
#endif
}
