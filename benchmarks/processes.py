"""Training on one process against several: `python benchmarks/processes.py [OVERRIDES] [--processes 2]`.

The same run, in turn: one process with N threads, N processes with one thread each by DistributedDataParallel, and by FSDP2.
Seconds are medians over the steps of a run, without the first ten; the validation loss is the same but for rounding.
"""

import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from measuring import benchmark_parser, ratios, spread, write_result

from partwise.train.metrics import read_metrics

SIZES = ("d_model=256", "n_layers=4", "attention.n_heads=4", "context_length=128", "train.batch_size=16")


def train(folder: Path, name: str, words: list[str], threads: int) -> tuple[float, float]:
    """The median seconds of a step, and the last validation loss."""
    subprocess.run(
        [sys.executable, "-P", "-m", "partwise", "train", *words, "--name", name, "--fresh"],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": str(threads)},
        stdout=subprocess.DEVNULL,
        check=True,
    )
    lines = read_metrics(folder / "runs" / name)
    seconds = [line["seconds"] for line in lines if line["kind"] == "step"]
    return statistics.median(seconds[10:]), next(
        line["validation"] for line in reversed(lines) if line["kind"] == "evaluation"
    )


def main() -> None:
    parser = benchmark_parser(__doc__, rounds=3)
    parser.add_argument("overrides", nargs="*", default=list(SIZES))
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--steps", type=int, default=40)
    options = parser.parse_args()
    n = options.processes
    common = ["mingpt", *options.overrides, "data=arithmetic", "data.validation=50", "data.test=1"]
    common += [f"train.steps={options.steps}", f"train.eval_every={options.steps}", f"train.save_every={options.steps}"]
    kinds = {
        f"1 process, {n} threads": ([], n),
        f"{n} processes, ddp": (["--processes", str(n)], 1),
        f"{n} processes, fsdp": (["--processes", str(n), "train.parallel=fsdp"], 1),
    }
    found: dict[str, list[float]] = {kind: [] for kind in kinds}
    losses: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as temporary:
        for _ in range(options.rounds):
            for number, (kind, (words, threads)) in enumerate(kinds.items()):
                seconds, losses[kind] = train(Path(temporary), f"run-{number}", [*common, *words], threads)
                found[kind].append(seconds)
    first = next(iter(found.values()))
    for kind, seconds in found.items():
        print(
            f"{kind}: {1000 * statistics.median(seconds):.1f} ms a step, "
            f"{spread(ratios(seconds, first), 'times as long')}; validation loss {losses[kind]:.5f}"
        )
    write_result(options.json, found)


if __name__ == "__main__":
    main()
