"""This version of partwise against another checkout of it: training steps and sampling, in turn.

    python benchmarks/versions.py CHECKOUT [--rounds 11] [--json FILE]

Both versions run with this Python, each in a process of its own with one thread. Every round times both, so that the noise of
a shared machine meets both. A ratio above 1 means that this version is faster. The threads are one because CPU seconds of
idle threads would count.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from measuring import alternate, benchmark_parser, ratios, write_rows

HERE = Path(__file__).resolve()
TASKS = {
    "training step, mingpt": 10,
    "training step, mingpt in float32": 5,
    "training step, toy with dropout": 3,
    "training step, the decoder of the claims": 4,
    "sampling 100 tokens, 1 row": 4,
    "sampling 100 tokens, 16 rows": 2,
}
"""What is timed, and how often per measurement."""
CLAIMS = [
    "d_model=128", "n_layers=4", "attention.n_heads=4", "context_length=128", "ffn.hidden=384", "init=gpt2",
    "residual.dropout=0", "train.seq_len=128", "train.batch_size=16", "optimizer.beta2=0.95", "data.train=50000",
]  # fmt: skip
"""The shape of the protocol decoder-1m, on other data."""


def worker() -> None:
    """Answer each name of a task on stdin with its CPU seconds on stdout."""
    import partwise

    def steps(preset: str, *overrides: str) -> Callable[[], object]:
        config = partwise.run_config(preset, "train.threads=1", "train.steps=1000000", *overrides, data="arithmetic")
        iterator = partwise.Run(config).steps()
        return lambda: next(iterator)

    def sampling(rows: int) -> Callable[[], object]:
        run = partwise.Run(partwise.run_config("mingpt", "train.threads=1", data="arithmetic"))
        prompts = ["$("] * rows
        return lambda: partwise.generate(run.model, run.dataset.tokenizer, prompts, max_new_tokens=100, seed=1)

    calls = [
        steps("mingpt"),
        steps("mingpt", "train.precision=float32"),
        steps("toy", "n_layers=2", "d_model=64"),
        steps("llama", *CLAIMS),
        sampling(1),
        sampling(16),
    ]
    tasks = dict(zip(TASKS, calls, strict=True))
    for task in tasks.values():
        task()
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        task = tasks[line.strip()]
        began = time.process_time()
        for _ in range(TASKS[line.strip()]):
            task()
        print(json.dumps(time.process_time() - began), flush=True)


class Version:
    """A process that runs one checkout."""

    def __init__(self, checkout: Path) -> None:
        if not (checkout / "src" / "partwise").is_dir():
            raise SystemExit(f"{checkout}: not a checkout of partwise; give the folder that holds src/partwise")
        environment = {**os.environ, "PYTHONPATH": str(checkout / "src")}
        command = [sys.executable, str(HERE), "--worker"]
        self.process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8"
        )
        self.answer()

    def answer(self) -> object:
        assert self.process.stdout
        for line in self.process.stdout:
            try:
                return json.loads(line)
            except ValueError:  # kernels are compiled for the first time, and say so
                continue
        raise SystemExit(f"a worker ended with status {self.process.wait()}")

    def seconds(self, task: str) -> float:
        assert self.process.stdin
        print(task, file=self.process.stdin, flush=True)
        return float(str(self.answer()))


def main() -> None:
    if sys.argv[1:] == ["--worker"]:
        return worker()
    parser = benchmark_parser(__doc__, rounds=11)
    parser.add_argument("checkout", type=Path)
    arguments = parser.parse_args()
    versions = {"this": Version(HERE.parents[1]), "other": Version(arguments.checkout.resolve())}
    rows = []
    for task in TASKS:
        times: dict[str, list[float]] = {name: [] for name in versions}

        def measure(name: str, task: str = task, times: dict[str, list[float]] = times) -> None:
            times[name].append(versions[name].seconds(task))

        alternate({name: lambda name=name: measure(name) for name in versions}, arguments.rounds)  # type: ignore[misc]
        result = ratios(times["other"], times["this"])
        print(f"{task:36} {result['ratio']:.3f} ({result['low']:.3f} to {result['high']:.3f}) times as fast")
        ours, theirs = (1e3 * statistics.median(times[name]) / TASKS[task] for name in versions)
        rows.append({"what": task, "unit": "CPU ms", "ours": ours, "peers": {"other version": theirs}, **result})
    write_rows(arguments.json, rows)
    return None


if __name__ == "__main__":
    main()
