"""A training step with and without train.deterministic: python benchmarks/deterministic.py [PRESET OVERRIDES]

Both in turn in one process, on all cores, blocks of steps, medians over the rounds.
"""

import argparse
import statistics
import time

from partwise.train.config import run_config
from partwise.train.loop import Run

BLOCK = 5
"""Steps after each change of the threads; the first is not timed."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("words", nargs="*", default=["fast", "data=shakespeare"])
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    settings = ("false", "true")
    runs = {setting: Run(run_config(*options.words, f"train.deterministic={setting}")) for setting in settings}
    seconds: dict[str, list[float]] = {setting: [] for setting in settings}
    for _ in range(options.rounds):
        for setting, run in runs.items():
            run.runtime.set_threads()
            run.update()
            started = time.perf_counter()
            for _ in range(BLOCK - 1):
                run.update()
            seconds[setting].append((time.perf_counter() - started) / (BLOCK - 1))
    ratios = sorted(b / a for a, b in zip(seconds["false"], seconds["true"], strict=True))
    for setting in settings:
        print(f"deterministic={setting}: {1000 * statistics.median(seconds[setting]):.1f} ms a step")
    print(f"{statistics.median(ratios):.2f} times as long ({ratios[0]:.2f} to {ratios[-1]:.2f})")


if __name__ == "__main__":
    main()
