"""The hardware, operating system, processes, memory and cache folder of this machine. Imports no torch."""

import ctypes
import os
import platform
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from partwise.config import ConfigError
from partwise.files import is_trusted


def cache_root() -> Path:
    """The folder of prepared data and compiled kernels, which can be recreated: PARTWISE_CACHE, or ~/.cache/partwise.

    Raises ConfigError if there is neither.
    """
    try:
        return Path(os.environ.get("PARTWISE_CACHE") or Path.home() / ".cache" / "partwise")
    except RuntimeError:
        raise ConfigError("no home folder for the cache: set PARTWISE_CACHE to a writable folder") from None


def cache_folder(name: str, root: Path | None = None) -> Path:
    """A folder of the cache, `root` or `cache_root()`: a private subfolder if another user owns the cache.

    What lies in another user's folder could be anything: code, or text that was never the corpus. Raises ConfigError.
    """
    root = root or cache_root()
    try:
        shared = not is_trusted(root.stat().st_uid)
    except OSError:  # it does not exist yet, and will be this user's
        shared = False
    return root / (f"{name}-{os.geteuid()}" if shared else name)


def is_alive(pid: int) -> bool:
    """Whether a process of this machine has this number."""
    if pid <= 0:
        return False  # these would name groups of processes
    try:
        os.kill(pid, 0)
    except PermissionError:  # another user's
        return True
    except (ProcessLookupError, OverflowError):
        return False
    return True


def end_with(parent: int) -> None:
    """On Linux, end this process by SIGTERM when `parent`, which has started it, dies; elsewhere, if it has died already."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a handler would continue and start a program
    if sys.platform == "linux":
        set_parent_death_signal = 1
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGTERM)
    if os.getppid() != parent:  # it died before the request, which the kernel then ignores
        os.kill(os.getpid(), signal.SIGTERM)


def hardware() -> dict[str, str]:
    """Python, system, processor and cores."""
    cpu = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo") as file:
            cpu = next((line.partition(":")[2].strip() for line in file if line.startswith("model name")), cpu)
    except OSError:
        pass
    return {
        "python": ".".join(map(str, sys.version_info[:3])),
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": cpu,
        "cores": str(os.cpu_count()),
    }


CONTAINER_MEMORY = (
    (Path("/sys/fs/cgroup"), "memory.max", "memory.current", "inactive_file"),
    (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
"""By both versions of cgroups: the folder, the files of the limit and the use, and the statistic of cached files."""


def available_memory() -> int | None:
    """The bytes that new processes can use, by the system and the limits of a container; None if the system does not tell."""
    free: list[int] = []
    with suppress(OSError, ValueError, IndexError):
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
        free += [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    for folder, limit, used, cached in CONTAINER_MEMORY:
        with suppress(OSError, ValueError, KeyError):  # no such container, or no limit ("max")
            statistics = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
            in_use = int((folder / used).read_text()) - int(statistics[cached])  # a cache of files is given back
            free.append(int((folder / limit).read_text()) - in_use)
    return max(0, min(free)) if free else None


OUT_OF_MEMORY = (
    "out of memory: lower train.batch_size or train.seq_len, or raise train.grad_accumulation; `partwise inspect PRESET "
    "memory` shows the memory that a training step needs. Checkpoints are intact: run the same command again to resume"
)
ALLOCATORS = ("can't allocate memory", "not enough memory", "bad_alloc")
"""Messages of out-of-memory errors of torch's CPU allocator and of C++."""


def is_out_of_memory(kind: str, message: str) -> bool:
    """Whether an error, by its name and message, says that Python, torch or a C++ kernel had too little memory."""
    allocator = kind == "RuntimeError" and any(text in message for text in ALLOCATORS)
    return allocator or kind.endswith("MemoryError")  # also torch.OutOfMemoryError


def visible_devices() -> list[str]:
    """The NVIDIA GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if listed is None:
        return [str(index) for index in range(len(graphics()))]
    return [name.strip() for name in listed.split(",") if name.strip() and name.strip() != "-1"]


def graphics() -> list[str]:
    """The names of the NVIDIA GPUs, as nvidia-smi reports them."""
    if shutil.which("nvidia-smi") is None:
        return []
    words = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [line.strip() for line in done.stdout.splitlines() if line.strip()] if done.returncode == 0 else []
