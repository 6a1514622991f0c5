"""A training step while other programs keep every core busy: partwise against nanoGPT.

    python benchmarks/busy_machine.py [--busy 2] [--shape seed|cpu-recipe|width-384] [--precision auto|float32]
                                      [--nanogpt FOLDER] [--rounds 9] [--json FILE]

Each trains in its own process with its own defaults, in turn, and ours again with threads that spin as long as their runtime
lets them by default. `--busy` counts the busy processes per core, which each round stops and continues. The slowdown is the
ratio of a step's time beside them to that without. Without a checkout of nanoGPT, `plain_gpt.py` stands for it.
"""

import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from measuring import Row, benchmark_parser, median_and_range, ratios, spread, write_rows

GOAL = "busy machine"
OURS, SPINNING, PEER = "partwise", "partwise, spinning", "nanoGPT"
WHEN = "idle", "busy"
DEFAULT_WAITING = {"GOMP_SPINCOUNT": "300000", "KMP_BLOCKTIME": "200"}
"""What the OpenMP runtimes do by themselves."""
Times = dict[tuple[str, str], list[tuple[float, float]]]
"""(who, when) -> the seconds and the CPU seconds of a step in each round."""
SHAPES = {
    "seed": (8, 96, 8, 16, 128, 65),
    "cpu-recipe": (4, 128, 4, 12, 64, 65),
    "width-384": (6, 384, 6, 16, 256, 65),
}
SIZES = ("layers", "width", "heads", "batch", "context", "vocab")
BUSY = """import os
parent = os.getppid()
while os.getppid() == parent:
    for _ in range(1_000_000): pass"""
STEPS = 5  # of a block
WARMUP = 3
SETTLE = 0.3  # seconds after the busy processes are stopped or continued


class Trainee:
    """A process that trains one of the two; `block` returns the seconds and the CPU seconds of a step."""

    def __init__(self, task: dict[str, Any], environment: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--child", json.dumps(task)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )
        self.block(WARMUP)

    def block(self, steps: int) -> tuple[float, float]:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(f"{steps}\n")
        self.process.stdin.flush()
        seconds, cpu = json.loads(self.process.stdout.readline())
        return float(seconds), float(cpu)

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        train(**json.loads(sys.argv[2]))
        return
    parser = benchmark_parser(__doc__, rounds=9)
    parser.add_argument("--busy", type=int, default=2, help="busy processes per core")
    parser.add_argument("--shape", choices=SHAPES, default="seed")
    parser.add_argument("--precision", choices=["auto", "float32", "bfloat16"], default="auto")
    parser.add_argument("--nanogpt", type=Path, help="folder of a nanoGPT checkout, with model.py")
    options = parser.parse_args()
    task = dict(zip(SIZES, SHAPES[options.shape], strict=True)) | {"precision": options.precision}
    peer = {**task, "peer": True, "nanogpt": str(options.nanogpt or "")}
    busy = options.busy * len(os.sched_getaffinity(0))
    with contextlib.ExitStack() as stack:
        trainees = {OURS: Trainee(task, {}), SPINNING: Trainee(task, DEFAULT_WAITING), PEER: Trainee(peer, {})}
        for trainee in trainees.values():
            stack.callback(trainee.close)
        others = stack.enter_context(busy_processes(busy))
        times = alternate(trainees, others, options.rounds)
    rows = make_rows(times, f"{options.shape}, {busy} busy processes")
    write_rows(options.json, rows, times={f"{who}, {when}": each for (who, when), each in times.items()})


@contextlib.contextmanager
def busy_processes(count: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """So many processes that compute, stopped at first."""
    found = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(count)]
    try:
        for each in found:
            each.send_signal(signal.SIGSTOP)
        yield found
    finally:
        for each in found:
            each.kill()
            each.wait()


def alternate(trainees: dict[str, Trainee], others: Sequence[subprocess.Popen[bytes]], rounds: int) -> Times:
    times: Times = {}
    for _ in range(rounds):
        for when, sent in zip(WHEN, (signal.SIGSTOP, signal.SIGCONT), strict=True):
            for each in others:
                each.send_signal(sent)
            time.sleep(SETTLE)
            for who, trainee in trainees.items():
                trainee.block(1)
                times.setdefault((who, when), []).append(trainee.block(STEPS))
    return times


def make_rows(times: Times, what: str) -> list[Row]:
    """Print every figure. The rows: our slowdown against theirs; a step alone against one with spinning threads."""
    slowdown = {}
    for who in (OURS, SPINNING, PEER):
        (idle, idle_cpu), (busy, busy_cpu) = (
            [list(each) for each in zip(*times[who, when], strict=True)] for when in WHEN
        )
        slowdown[who] = [a / b for a, b in zip(busy, idle, strict=True)]
        print(
            f"{who}: {1000 * statistics.median(idle):.1f} ms a step alone; beside them "
            f"{spread(median_and_range(slowdown[who]), 'times as long')}, "
            f"CPU seconds {spread(ratios(busy_cpu, idle_cpu), 'times as many')}"
        )
    ours, spinning = ([seconds for seconds, _ in times[who, WHEN[0]]] for who in (OURS, SPINNING))
    alone = ratios(spinning, ours)
    print(f"alone, against spinning: {spread(alone)}")
    return [
        {
            "goal": GOAL,
            "what": what,
            "ours": statistics.median(slowdown[OURS]),
            "unit": "times as long as alone",
            "peers": {who: statistics.median(slowdown[who]) for who in (PEER, SPINNING)},
            **ratios(slowdown[PEER], slowdown[OURS]),
            "target": 1.0,
        },
        {
            "goal": GOAL,
            "what": f"{what}: stopped, a step against one whose threads spin",
            "ours": 1000 * statistics.median(ours),
            "unit": "ms",
            "peers": {SPINNING: 1000 * statistics.median(spinning)},
            **alone,
            "target": None,
        },
    ]


def train(precision: str, peer: bool = False, nanogpt: str = "", **sizes: int) -> None:
    """A child: answers the number of steps with the seconds and the CPU seconds of one."""
    with contextlib.redirect_stdout(sys.stderr):  # nanoGPT prints, and the answers are read as JSON
        step = theirs(sizes, nanogpt) if peer else ours(sizes, precision)
    for line in sys.stdin:
        began, cpu = time.perf_counter(), time.process_time()
        for _ in range(int(line)):
            step()
        result = (time.perf_counter() - began) / int(line), (time.process_time() - cpu) / int(line)
        print(json.dumps(result), flush=True)


def ours(sizes: dict[str, int], precision: str) -> Any:
    import partwise
    from partwise.train.config import run_config

    words = [f"n_layers={sizes['layers']}", f"d_model={sizes['width']}", f"context_length={sizes['context']}"]
    words += [f"attention.n_heads={sizes['heads']}", f"train.batch_size={sizes['batch']}", "train.steps=1000000"]
    words += [
        f"train.precision={precision}",
        "train.device=cpu",
        "data.train=20000",
        "data.validation=100",
        "data.test=10",
    ]
    return partwise.Run(run_config("mingpt", *words, data="arithmetic")).update


def theirs(sizes: dict[str, int], nanogpt: str) -> Any:
    import torch
    from peers import LEARNING_RATE, nanogpt_model, updating
    from plain_gpt import PlainGPT, Sizes

    plain = Sizes(*(sizes[name] for name in ("layers", "width", "heads", "context", "vocab")))
    model = nanogpt_model(Path(nanogpt), plain) if nanogpt else PlainGPT(plain)
    optimizer = model.configure_optimizers(0.1, LEARNING_RATE, (0.9, 0.95), "cpu")
    inputs, targets = torch.randint(sizes["vocab"], (2, sizes["batch"], sizes["context"])).unbind()
    return updating(lambda: model(inputs, targets)[1], optimizer)


if __name__ == "__main__":
    main()
