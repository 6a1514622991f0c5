"""A training step with and without activation checkpointing: python benchmarks/activation_checkpointing.py [PRESET OVERRIDES]

Both in turn in one process, medians over the rounds. Memory is the forecast of `partwise inspect PRESET memory`, with torch's
operations; the time is that of the backends of this machine.
"""

import argparse
import statistics
import time

from partwise.inspection.cost import format_bytes
from partwise.inspection.memory import step_memory
from partwise.train.config import run_config
from partwise.train.loop import Run

SIZES = ("gpt2", "context_length=256", "train.batch_size=4", "data=shakespeare")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("words", nargs="*", default=list(SIZES))
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    runs = {
        setting: Run(run_config(*options.words, f"train.activation_checkpointing={setting}"))
        for setting in ("false", "true")
    }
    for run in runs.values():
        run.update()
    seconds: dict[str, list[float]] = {setting: [] for setting in runs}
    for _ in range(options.rounds):
        for setting, run in runs.items():
            started = time.perf_counter()
            run.update()
            seconds[setting].append(time.perf_counter() - started)
    ratios = sorted(b / a for a, b in zip(seconds["false"], seconds["true"], strict=True))
    for setting, run in runs.items():
        memory = step_memory(run.config, run.runtime.precision)
        print(
            f"activation_checkpointing={setting}: {statistics.median(seconds[setting]):.3f} s a step; activations "
            f"{format_bytes(memory.activations)}, peak {format_bytes(memory.peak)}"
        )
    print(f"{statistics.median(ratios):.2f} times as long ({ratios[0]:.2f} to {ratios[-1]:.2f})")


if __name__ == "__main__":
    main()
