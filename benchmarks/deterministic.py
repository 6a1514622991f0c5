"""A training step with and without train.deterministic: python benchmarks/deterministic.py [PRESET OVERRIDES]

Both in turn in one process, on all cores, blocks of steps, medians over the rounds.
"""

import statistics
from collections.abc import Callable

from measuring import alternate, benchmark_parser, ratios, spread, write_result

from partwise.train.config import run_config
from partwise.train.loop import Run

BLOCK = 4
"""Timed steps after each change of the threads, and after one that is not timed."""


def step_of(run: Run) -> Callable[..., None]:
    def step(count: int = 1) -> None:
        run.runtime.set_threads()
        for _ in range(count):
            run.update()

    return step


def main() -> None:
    parser = benchmark_parser(__doc__, rounds=15)
    parser.add_argument("words", nargs="*", default=["fast", "data=shakespeare"])
    options = parser.parse_args()
    settings = ("false", "true")
    runs = {setting: Run(run_config(*options.words, f"train.deterministic={setting}")) for setting in settings}
    steps = {setting: step_of(run) for setting, run in runs.items()}
    seconds = alternate(steps, options.rounds, dict.fromkeys(settings, BLOCK))
    for setting in settings:
        print(f"deterministic={setting}: {1000 * statistics.median(seconds[setting]):.1f} ms a step")
    print(spread(ratios(seconds["true"], seconds["false"]), "times as long"))
    if options.json:
        write_result(options.json, seconds)


if __name__ == "__main__":
    main()
