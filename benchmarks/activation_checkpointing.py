"""A training step with and without activation checkpointing: python benchmarks/activation_checkpointing.py [PRESET OVERRIDES]

Both in turn in one process, medians over the rounds. Memory is the forecast of `partwise inspect PRESET memory`, with torch's
operations; the time is that of the backends of this machine.
"""

import statistics

from measuring import alternate, benchmark_parser, ratios, spread, write_result

from partwise.inspection.cost import format_bytes
from partwise.inspection.memory import step_memory
from partwise.train.config import run_config
from partwise.train.loop import Run

SIZES = ("gpt2", "context_length=256", "train.batch_size=4", "data=shakespeare")


def main() -> None:
    parser = benchmark_parser(__doc__, rounds=7)
    parser.add_argument("words", nargs="*", default=list(SIZES))
    options = parser.parse_args()
    runs = {
        setting: Run(run_config(*options.words, f"train.activation_checkpointing={setting}"))
        for setting in ("false", "true")
    }
    steps = {setting: run.update for setting, run in runs.items()}
    alternate(steps, 1)
    seconds = alternate(steps, options.rounds)
    for setting, run in runs.items():
        memory = step_memory(run.config, run.runtime.precision)
        print(
            f"activation_checkpointing={setting}: {statistics.median(seconds[setting]):.3f} s a step; activations "
            f"{format_bytes(memory.activations)}, peak {format_bytes(memory.peak)}"
        )
    print(spread(ratios(seconds["true"], seconds["false"]), "times as long"))
    if options.json:
        write_result(options.json, seconds)


if __name__ == "__main__":
    main()
