"""The hardware, operating system, processes, memory and cache folder of this machine. Imports no torch."""

import os
import platform
import re
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from partwise import windows
from partwise.config import ConfigError
from partwise.files import is_trusted, user


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
    return root / (f"{name}-{user()}" if shared else name)


def is_alive(pid: int) -> bool:
    """Whether a process of this machine has this number."""
    if pid <= 0:
        return False  # these would name groups of processes
    if sys.platform == "win32":  # where `os.kill` would end it
        return windows.is_alive(pid)
    try:
        os.kill(pid, 0)
    except PermissionError:  # another user's
        return True
    except (ProcessLookupError, OverflowError):
        return False
    return True


def hardware() -> dict[str, str]:
    """Python, system, processor and cores."""
    return {
        "python": ".".join(map(str, sys.version_info[:3])),
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": processor_name(),
        "cores": str(os.cpu_count()),
    }


def processor_name() -> str:
    """The name of the processor as the system tells it, else its kind, such as `x86_64`."""
    if sys.platform == "win32":
        return windows.processor_name() or platform.machine()
    if sys.platform == "darwin":
        return printed(["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"]) or platform.machine()
    with suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        for line in file:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()  # `platform.processor` runs a program, and says no more than this


def instruction_sets() -> list[str]:
    """What the system tells of the processor's instruction sets, else its name, in an order that does not change."""
    if sys.platform == "win32":
        return [processor_name()]
    if sys.platform == "darwin":
        return [processor_name(), *sorted(printed(["/usr/sbin/sysctl", "hw.optional"]).splitlines())]
    names = ("flags", "Features", "model name", "CPU part")
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return [processor_name()]
    return sorted({line for line in lines if line.startswith(names)})


def printed(words: list[str]) -> str:
    """What a program of the system prints; empty if it cannot be run or fails."""
    try:
        done = subprocess.run(words, capture_output=True, encoding="utf-8", errors="replace", timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return "" if done.returncode else done.stdout.strip()


def available_cores() -> int:
    """The cores that this process may use."""
    if sys.platform != "win32" and hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def core_groups(count: int) -> list[list[int]]:
    """The logical CPUs of this process in `count` groups, each of equally many whole cores. Raises ConfigError."""
    if sys.platform == "win32" or not hasattr(os, "sched_setaffinity"):
        raise ConfigError(
            f"{count} workers need cores of their own, and {platform.system()} does not pin processes to cores: leave "
            "--workers out, and runs go one at a time"
        )
    cores: dict[tuple[int, int], list[int]] = {}
    for cpu in sorted(os.sched_getaffinity(0)):
        cores.setdefault(physical_core(cpu), []).append(cpu)
    each = len(cores) // count
    if each == 0:
        raise ConfigError(
            f"{count} workers need cores of their own, and this process has {len(cores)}: give a new search fewer"
        )
    ordered = sorted(cores)
    groups = [ordered[group * each : (group + 1) * each] for group in range(count)]
    return [sorted(cpu for core in group for cpu in cores[core]) for group in groups]


def physical_core(cpu: int) -> tuple[int, int]:
    """The processor and core of a logical CPU: two that share a core are no cores of their own."""
    topology = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology")
    try:
        package, core = (
            int((topology / name).read_text(encoding="utf-8")) for name in ("physical_package_id", "core_id")
        )
    except (OSError, ValueError):  # the system does not tell
        return -1, cpu
    return package, core


def peak_memory() -> int:
    """The largest memory in bytes that this process has had."""
    if sys.platform == "win32":
        return windows.peak_memory()
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


CONTAINER_MEMORY = (
    (Path("/sys/fs/cgroup"), "memory.max", "memory.current", "inactive_file"),
    (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
"""By both versions of cgroups: the folder, the files of the limit and the use, and the statistic of cached files."""


def available_memory() -> int | None:
    """The bytes that new processes can use, by the system and the limits of a container; None if the system does not tell."""
    if sys.platform == "win32":
        return windows.available_memory()
    if sys.platform == "darwin":
        return macos_memory(printed(["/usr/bin/vm_stat"]))
    free: list[int] = []
    with suppress(OSError, ValueError, IndexError):
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
        free += [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    for folder, limit, used, cached in CONTAINER_MEMORY:
        with suppress(OSError, ValueError, KeyError):  # no such container, or no limit ("max")
            most, now, report = ((folder / name).read_text(encoding="utf-8") for name in (limit, used, "memory.stat"))
            statistics = dict(line.split() for line in report.splitlines())
            free.append(int(most) - int(now) + int(statistics[cached]))  # a cache of files is given back
    return max(0, min(free)) if free else None


def macos_memory(statistics: str) -> int | None:
    """The bytes of the free pages and of those that the system gives up on demand, from the text of `vm_stat`."""
    size = re.search(r"page size of (\d+) bytes", statistics)
    pages = [
        int(found[1])
        for kind in ("free", "inactive", "speculative", "purgeable")
        if (found := re.search(rf"^Pages {kind}:\s+(\d+)\.", statistics, re.MULTILINE))
    ]
    return int(size[1]) * sum(pages) if size and pages else None


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
    found = printed(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"])
    return [line.strip() for line in found.splitlines() if line.strip()]
