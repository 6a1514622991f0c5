"""Call the kernels of the wheels for other systems: python tests/wheels/calls.py BUILDER, for `make test-wheels`.

BUILDER is a Python with ziglang. The programs of tests/kernels/recorded.cpp load each library of a wheel, for Windows in wine
and for aarch64 in qemu, on the threads of an OpenMP runtime; what they print is compared with a native build's.
"""

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from kernel_builds import FLAGS, RECORDED, ROOT, compile_recorded, difference
from wine import WINE, environment, require_wine

FOLDER = ROOT / "build" / "calls"
RUNTIME = "intel-openmp==2026.2.0"
"""Has the library of the name that torch's wheel for Windows has, with the same interface."""
CROSS = Path("/usr/aarch64-linux-gnu/lib")


@dataclass(frozen=True)
class System:
    """A system that is emulated: how its programs are compiled and started, and its OpenMP runtime."""

    suffix: str
    target: list[str]
    emulator: list[str]
    runtime: list[str]
    variants: list[str]
    environment: dict[str, str] = field(default_factory=dict)


def windows() -> System:
    require_wine(oldest=8)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--platform", "win_amd64"]
    subprocess.run([*command, "--only-binary", ":all:", "--dest", str(FOLDER), RUNTIME], check=True)
    library = FOLDER / "libiomp5md.dll"
    with zipfile.ZipFile(next(FOLDER.glob("intel_openmp-*.whl"))) as archive:
        name = next(name for name in archive.namelist() if name.endswith("/libiomp5md.dll"))
        library.write_bytes(archive.read(name))
    adapter = ROOT / "build" / "wheels" / "windows-x86_64" / "openmp.dll"
    listed = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    needs = {"avx2": " avx2", "avx512": " avx512vl", "avx512_bf16": " avx512_bf16"}
    variants = [name for name, flag in needs.items() if flag in listed]
    runtime, variables = [str(library), str(adapter)], environment(FOLDER / "wine")
    return System(".dll", ["x86_64-windows-gnu"], [WINE], runtime, variants, variables)


def aarch64() -> System:
    emulator = shutil.which("qemu-aarch64") or shutil.which("qemu-aarch64-static")
    if emulator is None or not (CROSS / "libgomp.so.1").exists():
        sys.exit("error: an emulator or its libraries are missing: apt-get install qemu-user g++-aarch64-linux-gnu")
    command = [emulator, "-cpu", "max", "-L", str(CROSS.parent)]
    return System(".so", ["aarch64-linux-gnu.2.28"], command, [str(CROSS / "libgomp.so.1")], ["neon", "neon_bf16"])


SYSTEMS = {"windows-x86_64": windows, "linux-aarch64": aarch64}


def checks(name: str, system: System, builder: str) -> Iterator[str]:
    """Raises CalledProcessError."""
    compiler = [builder, "-m", "ziglang", "c++", "-target", *system.target, "-std=c++17", "-O1", "-DLOADED"]
    for call, (kernel, _, bound) in RECORDED.items():
        stem = f"{FOLDER / call.replace(' ', '-')}"
        native, program = Path(f"{stem}-native"), Path(f"{stem}-{name}.exe")
        compile_recorded(call, ["g++", "-march=native", *FLAGS], native)
        compile_recorded(call, compiler, program)
        expected = subprocess.run([native], capture_output=True, text=True, check=True).stdout
        for variant in system.variants:
            library = ROOT / "build" / "wheels" / name / variant / f"{kernel}{system.suffix}"
            done = subprocess.run(
                [*system.emulator, str(program), str(library), *system.runtime],
                env={**os.environ, **system.environment},
                capture_output=True,
                text=True,
                check=False,
            )
            what = f"{name} {variant} {call}"
            threads = done.stderr.strip().rpartition("threads: ")[2]
            if done.returncode or (kernel != "decoding" and threads != "4 of 4"):
                raise subprocess.CalledProcessError(done.returncode, what, f"{what}: {done.stderr[-500:]}")
            yield f"{what}: differs by {difference(what, expected, done.stdout, bound):.1e}, threads {threads}"


def main(builder: str, *names: str) -> int:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in names or SYSTEMS:
        try:
            for line in checks(name, SYSTEMS[name](), builder):
                print(line, flush=True)
        except subprocess.CalledProcessError as error:
            print(f"FAILED: {error.output or error}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
