"""Build the wheels: kernels compiled ahead for four platforms, and one wheel without. `make wheels [PLATFORM=linux-x86_64]`.

The compiler is zig's, from the package index, which has the headers and libraries of every platform. Equal sources give
equal files: what is compiled is kept below --build by a hash of what it depends on.
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parent
KERNELS = ROOT / "src" / "partwise" / "kernels"
FLAGS = ["-std=c++17", "-O3", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math", "-c"]
LINK = ["-shared", "-s"]
EPOCH = "1577836800"  # the date in the archive: 2020
LARGEST = 10 * 2**20  # bytes of a wheel
EVERY_CPU = ("cpu", "openmp")
"""Libraries that are compiled once, for any CPU."""

AVX = {"avx2": (1, "x86_64_v3"), "avx512": (2, "x86_64_v4"), "avx512_bf16": (3, "x86_64_v4+avx512bf16")}
NEON = {"neon": (1, "generic"), "neon_bf16": (2, "generic+bf16")}
APPLE = {"neon": (1, "apple_m1"), "neon_bf16": (2, "apple_m2")}
AMX = {"amx": (4, "x86_64_v4+avx512bf16+amx_tile+amx_bf16")}


@dataclass(frozen=True)
class Platform:
    """A platform: zig's name of it and of its plainest CPU, the tag of its wheel, and variant -> (level, CPU)."""

    target: str
    cpu: str
    tag: str
    suffix: str
    variants: dict[str, tuple[int, str]]
    flags: list[str] = field(default_factory=list)


PLATFORMS = {
    "linux-x86_64": Platform("x86_64-linux-gnu.2.28", "x86_64", "manylinux_2_28_x86_64", ".so", AVX | AMX, ["-fPIC"]),
    "linux-aarch64": Platform("aarch64-linux-gnu.2.28", "generic", "manylinux_2_28_aarch64", ".so", NEON, ["-fPIC"]),
    "macos-arm64": Platform("aarch64-macos.12.0", "apple_m1", "macosx_12_0_arm64", ".dylib", APPLE),
    "windows-x86_64": Platform("x86_64-windows-gnu", "x86_64", "win_amd64", ".dll", AVX),
    "any": Platform("", "", "any", "", {}),
}


def compile_library(platform: Platform, cpu: str, name: str, build: Path, output: Path) -> str:
    """Compile a library unless `build` has it; the SHA-256 of its content."""
    zig = [sys.executable, "-m", "ziglang", "c++", "-target", platform.target]
    compiling = [*zig, f"-mcpu={cpu}", *FLAGS, *platform.flags]
    linking = [*zig, f"-mcpu={platform.cpu}", *LINK]  # libraries of the language are the same for every CPU
    texts = [path.read_text(encoding="utf-8") for path in (KERNELS / f"{name}.cpp", *sorted(KERNELS.glob("*.h")))]
    key = hashlib.sha256("\0".join([*compiling[1:], *linking[1:], zig_version(), *texts]).encode()).hexdigest()[:16]
    kept = build / "compiled" / f"{name}-{key}{platform.suffix}"
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        print(f"compiling {name}.cpp for {platform.target} {cpu}", flush=True)
        with tempfile.TemporaryDirectory(dir=kept.parent) as folder:
            # a path or a name in the library would be this machine's: files are named from their own folders
            part, library = Path(folder, f"{name}.o"), f"{name}{platform.suffix}"
            subprocess.run([*compiling, f"{name}.cpp", "-o", str(part)], cwd=KERNELS, check=True)
            subprocess.run([*linking, part.name, "-o", library], cwd=folder, check=True)
            if platform.suffix == ".dll":
                clear_date(Path(folder, library))
            Path(folder, library).replace(kept)
    output.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(kept, output)
    return hashlib.sha256(output.read_bytes()).hexdigest()


def clear_date(library: Path) -> None:
    """Write 0 for the second in which it was linked: TimeDateStamp in the header that the PE format describes."""
    content = bytearray(library.read_bytes())
    header = int.from_bytes(content[0x3C:0x40], "little")
    assert content[header : header + 4] == b"PE\0\0"
    content[header + 8 : header + 12] = bytes(4)
    library.write_bytes(content)


def zig_version() -> str:
    from importlib.metadata import version

    return version("ziglang")


def compile_platform(platform: Platform, build: Path, folder: Path) -> None:
    """All libraries of a platform, and the file that lists them, in `folder`."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    names = sorted(path.stem for path in KERNELS.glob("*.cpp") if path.stem not in EVERY_CPU)
    wanted = [("", name, platform.cpu) for name in EVERY_CPU if platform.variants]
    wanted += [(variant, name, cpu) for variant, (_, cpu) in platform.variants.items() for name in names]

    def one(each: tuple[str, str, str]) -> str:
        variant, name, cpu = each
        return compile_library(platform, cpu, name, build, folder / variant / f"{name}{platform.suffix}")

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        hashes = dict(zip([each[:2] for each in wanted], pool.map(one, wanted), strict=True))
    variants = list(describe_variants(platform, names, hashes))
    files = {name: hashes["", name] for name in EVERY_CPU if platform.variants}
    manifest = {"platform": platform.tag, "suffix": platform.suffix, "files": files, "variants": variants}
    (folder / "kernels.json").write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")


def describe_variants(
    platform: Platform, names: list[str], hashes: dict[tuple[str, str], str]
) -> Iterator[dict[str, object]]:
    for variant, (level, _) in platform.variants.items():
        files = {name: hashes[variant, name] for name in names}
        build = hashlib.sha256("".join(files.values()).encode()).hexdigest()[:12]
        yield {"name": variant, "level": level, "build": build, "files": files}


def build_wheel(name: str, build: Path, dist: Path) -> Path:
    folder = build / name
    compile_platform(PLATFORMS[name], build, folder)
    environment = {**os.environ, "PARTWISE_WHEEL": str(folder), "SOURCE_DATE_EPOCH": EPOCH}
    command = [sys.executable, "-m", "build", "--wheel", "--outdir", str(dist), str(ROOT)]
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
    wheel = next(dist.glob(f"*-{PLATFORMS[name].tag}.whl"))
    size = wheel.stat().st_size
    if size > LARGEST:
        raise SystemExit(f"error: {wheel.name} has {size / 2**20:.1f} MiB, more than {LARGEST / 2**20:.0f}")
    print(f"{wheel.relative_to(Path.cwd()) if wheel.is_relative_to(Path.cwd()) else wheel}: {size / 2**20:.1f} MiB")
    return wheel


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("platforms", nargs="*", metavar="PLATFORM", help=f"default: all of {', '.join(PLATFORMS)}")
    parser.add_argument(
        "--build", type=Path, default=ROOT / "build" / "wheels", help="where compiled libraries are kept"
    )
    parser.add_argument("--dist", type=Path, default=ROOT / "dist")
    options = parser.parse_args()
    if unknown := [name for name in options.platforms if name not in PLATFORMS]:
        parser.error(f"unknown platform {unknown[0]}: expected one of {', '.join(PLATFORMS)}")
    for name in options.platforms or PLATFORMS:
        build_wheel(name, options.build.absolute(), options.dist)


if __name__ == "__main__":
    main()
