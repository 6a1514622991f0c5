"""Compile the kernels' C++ once per machine, and load it: no build step, no package, no torch headers."""

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from functools import lru_cache
from pathlib import Path

TIMEOUT = 120  # seconds, for a compiler that takes two
FLAGS = ["-std=c++17", "-O3", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math", "-fPIC", "-shared"]


class BuildError(Exception):
    """Why there is no compiled kernel, in one line."""


@lru_cache
def load(name: str, folder: Path) -> ctypes.CDLL:
    """The compiled `name`.cpp of this package, from `folder` or made now. Raises BuildError.

    The name of the compiled file holds a hash of all that it depends on, the processor included, as a home folder may be
    shared by several machines. It appears there complete or not at all, so that processes may compile at once.
    """
    source = Path(__file__).with_name(f"{name}.cpp")
    texts = [file.read_text(encoding="utf-8") for file in (source, *sorted(source.parent.glob("*.h")))]
    compiler, flags = find_compiler()
    key = "\0".join([*texts, describe(compiler), *flags, *processor()])
    path = folder / f"{name}-{hashlib.sha256(key.encode()).hexdigest()[:16]}.so"
    try:
        if not path.exists():
            compile_to(path, [*compiler, *flags, str(source)])
        return ctypes.CDLL(str(path))
    except OSError as error:
        remedy = "; delete it to have it compiled anew" if path.exists() else ""
        raise BuildError(f"{path}: {' '.join(str(error).split())[:200]}{remedy}") from None


def find_compiler() -> tuple[list[str], list[str]]:
    """The C++ compiler, CXX where it is set, and the flags for it. Raises BuildError."""
    native = "-mcpu=native" if platform.machine().lower() in ("arm64", "aarch64") else "-march=native"
    wished = os.environ.get("CXX", "").split()
    for command in [wished] if wished else [["c++"], ["g++"], ["clang++"]]:
        if shutil.which(command[0]):
            return command, [*FLAGS, native]
    raise BuildError(
        f"no C++ compiler: {wished[0]} of CXX is not there" if wished else "no C++ compiler (c++, g++, clang++)"
    )


def describe(compiler: list[str]) -> str:
    """Where the compiler lies and which version it is. Raises BuildError."""
    return f"{shutil.which(compiler[0])} {run([*compiler, '--version'])}"


def processor() -> list[str]:
    """What `native` means here: instruction sets where the system lists them, and at least a name."""
    names = ("flags", "Features", "model name", "CPU part")
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    return [
        platform.system(),
        platform.machine(),
        platform.processor(),
        *sorted({x for x in lines if x.startswith(names)}),
    ]


def compile_to(path: Path, command: list[str]) -> None:
    """Raises BuildError, and OSError where the folder cannot be written."""
    print(f"compiling {path.stem.partition('-')[0]} for this machine, once (a few seconds)", file=sys.stderr)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".compiling-") as folder:
        made = Path(folder) / path.name
        run([*command, "-o", str(made)])
        if not made.is_file():
            raise BuildError(f"{command[0]} made no library and did not say why")
        made.replace(path)


def run(command: list[str]) -> str:
    """What the command prints. Raises BuildError with the first line that looks like a reason."""
    try:
        # in a session of its own: a signal to our group stops us in our own time, and must not look like a compiler's fault
        result = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=TIMEOUT, start_new_session=True
        )
    except subprocess.TimeoutExpired:
        raise BuildError(f"{command[0]} took more than {TIMEOUT} s") from None
    except OSError as error:
        raise BuildError(f"{command[0]}: {error.strerror}") from None
    if result.returncode:
        lines = [line.strip() for line in result.stderr.splitlines() if line.strip()]
        reason = next((line for line in lines if "error" in line), lines[0] if lines else "no reason given")
        raise BuildError(f"{command[0]} exits with status {result.returncode}: {reason[:200]}")
    return result.stdout
