"""Run the kernels' tests with other builds: python tests/kernel_builds.py [NAME ...], for `make test-sanitized`.

Each build is compiled with sanitizers, by another compiler, or for a CPU with fewer instructions. No kernel test may fail or
be skipped for want of a kernel. `aarch64` runs tests/kernels/recorded.cpp and products.cpp in an emulator instead.
"""

import os
import platform
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from partwise.kernels.build import FLAGS as SHARED

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "build" / "test-kernels"
SANITIZERS = "-O1 -g1 -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=undefined"
BUILDS = {
    "sanitized": f"g++ {SANITIZERS}",
    "clang": "clang++",
    "generic": "g++ -march=x86-64",
    "clang-generic": "clang++ -march=x86-64",
    "without-avx512": "g++ -mno-avx512f",
    "without-amx": "g++ -mno-amx-tile -mno-amx-bf16",
}
WHEEL = ROOT / "build" / "wheels" / "linux-x86_64"
WHEELS = ("avx2", "avx512", "avx512_bf16", "amx")
"""The variants of the wheel for this platform, by `make wheels`; `wheel-avx2` runs the tests with one."""
FLAGS = [flag for flag in SHARED if flag not in ("-shared", "-fPIC")]
TESTS = ["tests/kernels", "tests/compute/backends/test_decoding.py", "tests/train/test_cross_entropy.py"]
EXCLUDED = [
    "tests/kernels/test_malloc.py",
    "tests/kernels/test_build.py",
    "tests/kernels/test_prebuilt.py",
]  # of the allocator, and of the compiler itself
COMPILES = "test_smaller_cpus_compute_the_same"  # kernels of its own
RECORDED = {
    "attention": ("attention", "ATTENTION", 1e-5),
    "mlp": ("mlp", "MLP_F32", 1e-5),
    "cross_entropy": ("cross_entropy", "CROSS_ENTROPY BF16", 2**-8),
    "bf16": ("bf16", "ATTENTION_BF16 BF16", 2**-7),
    "dropout": ("dropout", "DROPOUT", 1e-6),
    "block": ("block", "BLOCKS=0", 1e-5),
    "block in bfloat16": ("block", "BLOCKS=1", 2**-6),
    "decoding": ("decoding", "DECODING", 0.0),
}
"""Calls of recorded.cpp: the kernel, its definitions, and the largest relative difference of rounding."""
COMPILE = (
    "import sys; from pathlib import Path; from partwise.kernels import build; build.TIMEOUT = 900\n"
    "for path in sorted(Path(build.__file__).parent.glob('*.cpp')): build.load(path.stem, Path(sys.argv[1]))"
)


def check(name: str) -> str:
    """Compile all kernels, run their tests and return one line; raises CalledProcessError."""
    compiler = BUILDS[name].split()[0]
    if not shutil.which(compiler):
        return f"not run: install {compiler}"
    environment = {
        **os.environ,
        "CXX": BUILDS[name],
        "PYTHONPATH": os.pathsep.join(str(ROOT / name) for name in ("src", "tests", "examples")),
    }
    if "address" in BUILDS[name]:
        library = subprocess.run([compiler, "-print-file-name=libasan.so"], capture_output=True, text=True, check=True)
        environment |= {
            "LD_PRELOAD": library.stdout.strip(),
            "ASAN_OPTIONS": "detect_leaks=0",  # Python keeps memory until it ends
            "UBSAN_OPTIONS": "print_stacktrace=1",
        }
    started = time.perf_counter()
    subprocess.run([sys.executable, "-P", "-c", COMPILE, str(FOLDER)], env=environment, check=True)
    # sanitizers and other work on the machine slow tests down
    command = [sys.executable, "-m", "pytest", "-n", "auto", "-o", "timeout=1800", "-rs", *TESTS]
    command += [f"--ignore={name}" for name in EXCLUDED]
    done = subprocess.run(
        command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    print(done.stdout, flush=True)
    found = re.findall(r".*(?:runtime error:|ERROR: AddressSanitizer|no C\+\+ compiler).*", done.stdout)
    if done.returncode or found:
        raise subprocess.CalledProcessError(done.returncode, command, "\n".join(found))
    return f"{done.stdout.strip().splitlines()[-1].strip('= ')}, with compilation {time.perf_counter() - started:.0f} s"


def check_wheel(variant: str) -> str:
    """Run the kernels' tests with a variant of the wheel and return one line; raises CalledProcessError."""
    if not (WHEEL / "kernels.json").exists():
        return "not run: make wheels PLATFORM=linux-x86_64"
    source = ROOT / "build" / "wheel-src"
    shutil.rmtree(source, ignore_errors=True)
    shutil.copytree(ROOT / "src", source)
    shutil.copytree(WHEEL, source / "partwise" / "kernels" / "built")
    paths = os.pathsep.join(map(str, (source, ROOT / "tests", ROOT / "examples")))
    environment = {**os.environ, "PARTWISE_KERNELS": variant, "PYTHONPATH": paths, "CXX": "/nonexistent"}
    asked = "from partwise.kernels import prebuilt; print(*(each.name for each in prebuilt.wheel().usable()))"
    found = subprocess.run([sys.executable, "-c", asked], env=environment, capture_output=True, text=True, check=True)
    if variant not in found.stdout.split():
        return f"not run: this CPU runs {found.stdout.strip()}"
    command = [sys.executable, "-m", "pytest", "-n", "auto", "-rs", *TESTS, *(f"--ignore={name}" for name in EXCLUDED)]
    command += ["--deselect", f"tests/kernels/test_block.py::{COMPILES}"]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True)
    print(done.stdout, flush=True)
    if done.returncode or "is unavailable" in done.stdout + done.stderr:
        raise subprocess.CalledProcessError(done.returncode, command, done.stdout[-500:])
    return done.stdout.strip().splitlines()[-1].strip("= ")


def check_aarch64() -> str:
    """Compile products.cpp and recorded.cpp for this CPU and for aarch64, and compare what the latter prints.

    Raises CalledProcessError.
    """
    cross = "aarch64-linux-gnu-g++ -static"
    compilers = {"native": "g++ -march=native", "aarch64": cross, "aarch64 with bfmmla": f"{cross} -march=armv8.6-a"}
    for program in (cross.split()[0], "qemu-aarch64-static"):
        if not shutil.which(program):
            return "not run: install g++-aarch64-linux-gnu and qemu-user-static"
    folder = ROOT / "build" / "recorded"
    folder.mkdir(parents=True, exist_ok=True)

    def run(binary: Path, machine: str) -> str:
        emulator = [] if machine == "native" else ["qemu-aarch64-static", "-cpu", "max"]
        return subprocess.run([*emulator, str(binary)], capture_output=True, text=True, check=True).stdout

    for machine, compiler in compilers.items():
        binary = folder / f"products-{machine}".replace(" ", "-")
        compile_program("products", [*compiler.split(), *FLAGS], binary)
        run(binary, machine)
    worst: dict[str, float] = {}
    for call, (kernel, _, bound) in RECORDED.items():
        results = {}
        for machine, compiler in compilers.items():
            binary = folder / f"{call}-{machine}".replace(" ", "-")
            compile_recorded(call, [*compiler.split(), *FLAGS], binary)
            results[machine] = run(binary, machine)
        for machine in list(compilers)[1:]:
            worst[f"{call} on {machine}"] = difference(
                f"{kernel} on {machine}", results["native"], results[machine], bound
            )
    return "largest difference, relative to the largest value: " + ", ".join(f"{k} {v:.1e}" for k, v in worst.items())


def compile_recorded(call: str, compiler: list[str], binary: Path) -> None:
    """Compile the program that makes this call; raises CalledProcessError."""
    kernel, defined, _ = RECORDED[call]
    definitions = [f"-D{name}" for name in defined.split()] + [f'-DKERNEL="{kernel}.cpp"']
    compile_program("recorded", [*compiler, *definitions], binary)


def compile_program(name: str, compiler: list[str], binary: Path) -> None:
    """Compile a program of tests/kernels with the headers of the kernels; raises CalledProcessError."""
    source = str(ROOT / "tests" / "kernels" / f"{name}.cpp")
    subprocess.run([*compiler, f"-I{ROOT / 'src/partwise/kernels'}", source, "-o", str(binary)], check=True)


def difference(what: str, native: str, other: str, bound: float) -> float:
    """The largest difference between what two programs printed, relative to the largest value; raises CalledProcessError."""
    errors = [0.0]
    for ours, theirs in zip(native.splitlines(), other.splitlines(), strict=True):
        (name, *a), (other_name, *b) = ours.split(" "), theirs.split(" ")
        expected, found = np.array(a, float), np.array(b, float)
        if name != other_name or len(a) != len(b) or not np.isfinite(expected).all():
            raise subprocess.CalledProcessError(1, what, f"{what}: {name} has other values or not finite ones")
        errors.append(float(np.max(np.abs(found - expected)) / max(1e-30, np.max(np.abs(expected)))))
    if not max(errors) <= bound or len(errors) < 10:
        raise subprocess.CalledProcessError(1, what, f"{what} differs by {max(errors):.1e} (at most {bound:.1e})")
    return max(errors)


def main(names: list[str]) -> int:
    known = [*BUILDS, "aarch64", *(f"wheel-{variant}" for variant in WHEELS)]
    unknown = [name for name in names if name not in known]
    if unknown:
        sys.exit(f"error: no build {unknown[0]!r} (known: {', '.join(known)})")
    if platform.machine() != "x86_64" or sys.platform != "linux":
        sys.exit("error: these builds are for Linux on x86-64")
    lines = []
    for name in names or known:
        try:
            if name.startswith("wheel-"):
                lines.append((name, check_wheel(name.removeprefix("wheel-"))))
            else:
                lines.append((name, check(name) if name in BUILDS else check_aarch64()))
        except subprocess.CalledProcessError as error:
            lines.append((name, f"FAILED: {error.output or 'see above'}"))
    for name, line in lines:
        print(f"{name:16} {line}")
    return any(line.startswith("FAILED") for _, line in lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
