"""Compile each C++ kernel once per machine and load it: no build step, no extension package, no torch headers.

A compiled kernel is code, so a cache is not trusted: a library is loaded only if it has the content that was compiled, and
only if no other user owns it or can write it or its folder.
"""

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from functools import lru_cache
from itertools import dropwhile
from pathlib import Path

from partwise.files import file_sha256, others_can_write, private_folder, rename, sync
from partwise.machine import instruction_sets
from partwise.messages import print_message

TIMEOUT = 900  # seconds; a compilation takes a few, and minutes on a slow or busy machine
FLAGS = ["-std=c++17", "-O3", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math", "-fPIC", "-shared"]


class BuildError(Exception):
    """Why there is no compiled kernel, in one line."""


@lru_cache
def load(name: str, folder: Path) -> ctypes.CDLL:
    """Load the compiled `name`.cpp of this package from `folder`, compiling it if needed. Raises BuildError.

    The file name contains a hash of everything the binary depends on, including the CPU, because machines may share a home
    directory, and a hash of its content. A damaged file is deleted and compiled again. The file is moved into place when
    complete, so several processes may compile at the same time.
    """
    source = Path(__file__).with_name(f"{name}.cpp")
    texts = [file.read_text(encoding="utf-8") for file in (source, *sorted(source.parent.glob("*.h")))]
    compiler, flags = find_compiler()
    version = compiler_version(shutil.which(compiler[0]), *compiler)
    key = "\0".join([*texts, version, *compiler, *flags, *cpu_features()])
    stem = f"{name}-{hashlib.sha256(key.encode()).hexdigest()[:16]}"
    try:
        private_folder(folder)
        path = find_library(folder, stem) or compile_library(folder, stem, [*compiler, *flags, str(source)])
    except OSError as error:
        reason = f"cannot use {folder}: {error.strerror or error}; set PARTWISE_CACHE to a folder of your own"
        raise BuildError(reason) from None
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise BuildError(f"{path}: {' '.join(str(error).split())[:200]}; delete it to recompile") from None


def find_library(folder: Path, stem: str) -> Path | None:
    """The compiled library if its content is unchanged; what cannot be trusted is deleted with a word on stderr."""
    for path in sorted(folder.glob(f"{stem}.*.so")):
        if others_can_write(path):
            fault = "another user could have changed it"
        elif file_sha256(path) != path.name.split(".")[-2]:
            fault = "it is damaged"
        else:
            return path
        print_message(f"{path} is not loaded, since {fault}: compiling again")
        path.unlink()
    return None


def find_compiler() -> tuple[list[str], list[str]]:
    """The C++ compiler, CXX if set, and its flags, for this machine's CPU unless CXX names another; those in CXX win.

    Raises BuildError.
    """
    native = "-mcpu=native" if platform.machine().lower() in ("arm64", "aarch64") else "-march=native"
    requested = os.environ.get("CXX", "").split()
    own = list(dropwhile(lambda word: not word.startswith("-"), requested))
    requested = requested[: len(requested) - len(own)]
    chosen = any(word.startswith(("-march=", "-mcpu=")) for word in own)
    for command in [requested] if requested else [["c++"], ["g++"], ["clang++"]]:
        if shutil.which(command[0]):
            return command, [*FLAGS, *([] if chosen else [native]), *own]
    raise BuildError(
        f"no C++ compiler: CXX={requested[0]} not found" if requested else "no C++ compiler (c++, g++ or clang++) found"
    )


@lru_cache
def compiler_version(path: str | None, *compiler: str) -> str:
    """The compiler's path and version. Raises BuildError."""
    return f"{path} {run([*compiler, '--version'])}"


def cpu_features() -> list[str]:
    """The meaning of `native` on this machine: the instruction sets if the system lists them, else the CPU's name."""
    return [platform.system(), platform.machine(), *instruction_sets()]


def compile_library(folder: Path, stem: str, command: list[str]) -> Path:
    """The new library, synced to disk. Raises BuildError, and OSError if the folder is not writable."""
    with tempfile.TemporaryDirectory(dir=folder, prefix=".compiling-") as temporary:
        # one short write: compilers run in parallel, and the line fits a narrow terminal
        print_message(f"compiling {stem.partition('-')[0]}.cpp (only once)")
        output = Path(temporary) / "library.so"
        run([*command, "-o", str(output)])
        if not output.is_file():
            raise BuildError(f"{command[0]} produced no library and no error message")
        output.chmod(0o700)
        sync(output)
        path = folder / f"{stem}.{file_sha256(output)}.so"
        rename(output, path)
        sync(folder)
    return path


def run(command: list[str]) -> str:
    """The command's standard output. Raises BuildError with the first line of stderr that looks like the reason."""
    try:
        # a new session: Ctrl-C goes to our process group and would otherwise look like a compiler failure
        result = subprocess.run(
            command, capture_output=True, encoding="utf-8", errors="replace", timeout=TIMEOUT, start_new_session=True
        )
    except subprocess.TimeoutExpired:
        raise BuildError(f"{command[0]} took more than {TIMEOUT} s") from None
    except OSError as error:
        raise BuildError(f"{command[0]}: {error.strerror}") from None
    if result.returncode:
        lines = [line.strip() for line in result.stderr.splitlines() if line.strip()]
        reason = next((line for line in lines if "error" in line), lines[0] if lines else "no reason given")
        raise BuildError(f"{command[0]} failed with exit status {result.returncode}: {reason[:200]}")
    return result.stdout
