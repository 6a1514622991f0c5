"""Growth of a training step's time and memory with width, depth, batch and context: partwise, nanoGPT, transformers.

    python benchmarks/growth.py [--nanogpt FOLDER] [--threads 2] [--json FILE] [--figure growth.svg]

One size is varied at a time, around 4 layers, width 128, 4 heads and a batch of 12 x 64; context again at batch 1, up to
8192. Each system runs in its own process: alternating blocks of several steps for the time, separately for the peak
memory, which is that beyond a tiny model (weights, optimizer, gradients and activations). Each uses its own defaults,
partwise the runtime settings that it chooses for the machine. Requires Linux, for the peak memory of a process.
"""

import argparse
import contextlib
import importlib.util
import multiprocessing
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from growth_figure import draw_growth
from measuring import Step, time_alternating, write_rows
from peer_process import PeerProcess
from peers import Setting, nanogpt_step, transformers_step
from torch import Tensor
from training_step import partwise_step

from partwise.compute.runtime import choose_runtime
from partwise.train.config import TrainConfig

BASE = {"layers": 4, "width": 128, "heads": 4, "batch": 12, "context": 64, "vocab": 65}
TINY = {"layers": 1, "width": 32, "batch": 1, "context": 16}
SWEEPS: dict[str, tuple[str, tuple[int, ...], dict[str, int]]] = {
    "width": ("width", (64, 128, 256, 512), {}),
    "depth": ("layers", (2, 4, 8, 16), {}),
    "batch": ("batch", (3, 6, 12, 24, 48), {}),
    "context": ("context", (32, 64, 128, 256, 512), {}),
    "context at batch 1": ("context", (512, 1024, 2048, 4096, 8192), {"batch": 1}),
}
WORDS = ["attention.out_bias=false", "ffn=gelu", "tie_embeddings=true", "head_bias=false", "init=gpt2"]  # as in nanoGPT
LINEAR = 0.9
"""The minimum ratio of twice the memory at half the longest context to that at the longest."""

SECONDS = 3.0  # approximate seconds of steps per point
ROUNDS = (2, 20)
OURS = "partwise"

Builder = Callable[[argparse.Namespace, Tensor, Tensor], Step]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--nanogpt", type=Path, help="folder of a nanoGPT checkout, with model.py")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", type=Path)
    parser.add_argument("--figure", type=Path)
    options = parser.parse_args()
    if options.nanogpt and not (options.nanogpt / "model.py").is_file():
        parser.error(f"--nanogpt {options.nanogpt}: no model.py there; give the folder of a nanoGPT checkout")
    points = measure(builders(options.nanogpt is not None), options)
    rows = as_rows(points)
    write_rows(options.json, rows)
    if options.figure:
        options.figure.write_text(draw_growth(as_rows(points)), encoding="utf-8")


def builders(with_nanogpt: bool) -> dict[str, Builder]:
    runtime = choose_runtime(TrainConfig(device="cpu"))  # compiles the kernels before the first measurement
    result: dict[str, Builder] = {
        OURS: lambda options, inputs, targets: partwise_step(options, runtime, inputs, targets)
    }
    if with_nanogpt:
        result["nanoGPT"] = nanogpt_step
    if importlib.util.find_spec("transformers"):
        import transformers  # noqa: F401 - before forking, so that its import is not measured

        result["transformers"] = transformers_step
    return result


def measure(builders: dict[str, Builder], options: argparse.Namespace) -> list[dict[str, Any]]:
    """One point per size of each sweep: milliseconds of a step, and peak MiB, by system."""
    points = []
    for sweep, (size, values, others) in SWEEPS.items():
        for value in values:
            shape = {**BASE, **others, size: value}
            point_options = argparse.Namespace(**shape, overrides=WORDS, tie_embeddings=True, nanogpt=options.nanogpt)
            milliseconds = in_process(step_times, builders, point_options, options.threads)
            peaks = {
                name: in_process(peak_memory, build, point_options, options.threads) for name, build in builders.items()
            }
            points.append({"sweep": sweep, "value": value, "ms": milliseconds, "MiB": peaks})
            figures = ", ".join(f"{name} {milliseconds[name]:.1f} ms {peaks[name]:.1f} MiB" for name in builders)
            print(f"{sweep} {value}: {figures}", flush=True)
    return points


def in_process(work: Callable[..., Any], *arguments: Any) -> Any:
    """Return the result of `work` in a forked process. Raises RuntimeError if it fails."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=lambda: sender.send(work(*arguments)))
    process.start()
    sender.close()
    try:
        return receiver.recv()
    except EOFError:
        raise RuntimeError(f"{work.__name__} of {arguments} failed: see above") from None
    finally:
        process.join()


def step_times(builders: dict[str, Builder], options: argparse.Namespace, threads: int) -> dict[str, float]:
    """Median milliseconds of a step of each system, alternating."""
    tokens = batch(options, threads)
    with contextlib.ExitStack() as stack:
        steps: dict[str, Step] = {OURS: builders[OURS](options, *tokens)}
        for name in builders:
            if name != OURS:
                steps[name] = stack.enter_context(PeerProcess(name, options, *tokens, Setting()))
        fewest, most = ROUNDS
        seconds = time_alternating(steps, most, warmup=1, fewest=fewest, within=SECONDS)
    return {name: 1000 * statistics.median(times) for name, times in seconds.items()}


def peak_memory(build: Builder, options: argparse.Namespace, threads: int) -> float:
    """Peak MiB of two steps beyond those of a tiny model, which loads torch's code into memory."""
    tiny = argparse.Namespace(**{**vars(options), **TINY})
    build(tiny, *batch(tiny, threads))()
    before = max_resident()
    step = build(options, *batch(options, threads))
    step()
    step()
    return max_resident() - before


def batch(options: argparse.Namespace, threads: int) -> tuple[Tensor, Tensor]:
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    tokens = torch.randint(options.vocab, (options.batch, options.context + 1))
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def max_resident() -> float:
    """The peak resident memory of this process, in MiB."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def as_rows(points: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row per point and unit; `ratio` is the best peer's figure over ours."""
    rows = []
    for unit, what in (("ms", "time"), ("MiB", "memory")):
        for point in points:
            ours, peers = point[unit][OURS], {n: v for n, v in point[unit].items() if n != OURS}
            row = {"goal": "growth", "what": f"{what}, {point['sweep']} {point['value']}", "ours": ours, "unit": unit}
            rows.append({**row, "peers": peers, "ratio": min(peers.values()) / ours if peers else None, "target": None})
    half, longest = (point["MiB"][OURS] for point in points[-2:])
    row = {"goal": "growth", "what": "memory, linear in context to 8192", "ours": longest, "unit": "MiB"}
    return [*rows, {**row, "peers": {"twice that of 4096": 2 * half}, "ratio": 2 * half / longest, "target": LINEAR}]


if __name__ == "__main__":
    main()
