"""The time from `partwise train` to its first step, beside that of `import torch` alone.

    python benchmarks/starting.py [--preset mingpt] [--data arithmetic] [--rounds 9] [--json FILE]

Both are new processes, in turn, with their files in the system's memory, compiled kernels, and prepared data. The first step
ends when its line is in metrics.jsonl.
"""

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from measuring import benchmark_parser, median_and_range, write_rows

ADDED = 1.0
"""Seconds that a first step may take beyond the import of torch."""


def main() -> None:
    parser = benchmark_parser(__doc__, rounds=9)
    parser.add_argument("--preset", default="mingpt")
    parser.add_argument("--data", default="arithmetic")
    options = parser.parse_args()
    seconds: dict[str, list[float]] = {"torch": [], "partwise": []}
    with tempfile.TemporaryDirectory() as folder:
        for round_ in range(options.rounds + 1):  # the first round warms caches and is not counted
            torch, partwise = import_torch(), first_step(options.preset, options.data, Path(folder), f"round-{round_}")
            if round_:
                seconds["torch"].append(torch)
                seconds["partwise"].append(partwise)
    added = [ours - torch for ours, torch in zip(seconds["partwise"], seconds["torch"], strict=True)]
    torch, ours = (statistics.median(seconds[name]) for name in ("torch", "partwise"))
    print(
        f"import torch: {torch:.2f} s; partwise train {options.preset} to its first step: {ours:.2f} s, "
        f"{statistics.median(added):.2f} more ({min(added):.2f} to {max(added):.2f})"
    )
    row = {
        "goal": "starting",
        "what": f"partwise train {options.preset} to its first step, beyond import torch",
        "ours": statistics.median(added),
        "unit": "s",
        "peers": {"limit": ADDED},
        **median_and_range([ADDED / each for each in added]),
        "target": 1.0,
    }
    write_rows(options.json, [row], seconds=seconds)


def import_torch() -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    return time.perf_counter() - began


def first_step(preset: str, data: str, folder: Path, name: str) -> float:
    """Seconds until a new run has logged its first step; the run is then killed."""
    words = [sys.executable, "-m", "partwise", "train", preset, "--data", data, "--name", name]
    began = time.perf_counter()
    process = subprocess.Popen(words, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    metrics = folder / "runs" / name / "metrics.jsonl"
    try:
        while not (metrics.exists() and metrics.stat().st_size):
            if process.poll() is not None:
                assert process.stderr is not None
                sys.exit(f"{' '.join(words)}: {process.stderr.read().decode(errors='replace')}")
            time.sleep(0.002)
        return time.perf_counter() - began
    finally:
        process.kill()
        process.communicate()


if __name__ == "__main__":
    main()
