"""Training on one accelerator: pieces of `accelerator.py`."""

import statistics

import torch
from accelerator import Place
from accelerator_shapes import (
    DATA,
    WITHOUT_KERNELS,
    gpt2_config,
    gpt2_sizes,
    in_turn,
    peer_step,
    random_run,
)
from measuring import ratios

from partwise.compute.compilation import CompiledModel
from partwise.train.config import run_config
from partwise.train.loop import Run
from partwise.train.multi_seed_trainer import MultiSeedTrainer

Values = dict[str, float | None]


def step(place: Place, notes: list[str]) -> Values:
    """A compiled step beside nanoGPT's, and its share of the matrix products' rate."""
    if place.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    run = random_run(gpt2_config(place, 16, "train.compile=true"))
    notes.append(f"compiled in {run.compile():.0f} s before the first step")
    run.update()
    peak = torch.cuda.max_memory_allocated() / 2**30 if place.device == "cuda" else None
    sizes, rows = gpt2_sizes(place), run.config.train.batch_size
    side = 64 if place.small else 8192
    a, b = torch.randn(2, side, side, device=place.device, dtype=torch.bfloat16).unbind()
    steps = {
        "ours": run.update,
        "peer": peer_step(place, sizes, rows, True, notes),
        "matmul": lambda: torch.mm(a, b),
    }
    seconds = in_turn(place, steps)
    tokens = rows * sizes.context
    hidden_scores = 6 * sizes.context * sizes.width * sizes.layers  # half of the scores are masked
    work = tokens * (run.config.flops_per_token() - hidden_scores)
    rate = 2 * side**3 / statistics.median(seconds["matmul"])
    ours = statistics.median(seconds["ours"])
    return {
        "tokens": tokens / ours,
        "peer": tokens / statistics.median(seconds["peer"]),
        "ratio": ratios(seconds["peer"], seconds["ours"])["ratio"],
        "matmul": rate / 1e12,
        "fraction": work / ours / rate,
        "peak": peak,
    }


def eager(place: Place, notes: list[str]) -> Values:
    """A step without torch.compile beside nanoGPT's."""
    run = random_run(gpt2_config(place, 16, "train.compile=false"))
    sizes, rows = gpt2_sizes(place), run.config.train.batch_size
    seconds = in_turn(place, {"ours": run.update, "peer": peer_step(place, sizes, rows, False, notes)})
    tokens = rows * sizes.context
    return {
        "tokens": tokens / statistics.median(seconds["ours"]),
        "peer": tokens / statistics.median(seconds["peer"]),
        "ratio": ratios(seconds["peer"], seconds["ours"])["ratio"],
    }


def small_step(place: Place, notes: list[str]) -> Values:
    """A step of `mingpt`, which takes longer to launch than to compute, with CUDA graphs and without."""
    with_graphs, without, eager = (small_run(place, 0, compiled) for compiled in ("true", "true", "false"))
    notes.append(f"compiled in {with_graphs.compile():.0f} s before the first step")
    used = isinstance(with_graphs.forward, CompiledModel) and with_graphs.forward.cuda_graphs
    notes.append("CUDA graphs are used" if used else "CUDA graphs are not used: a replayed step was not the first one")
    steps = {"graphs": with_graphs.update, "compiled": without.update, "eager": eager.update}
    seconds = in_turn(place, steps, count=50)
    rates = {name: 1 / statistics.median(each) for name, each in seconds.items()}
    return {**rates, "ratio": ratios(seconds["compiled"], seconds["graphs"])["ratio"]}


def small_run(place: Place, seed: int, compiled: str) -> Run:
    words = ["d_model=16", "n_layers=1", "attention.n_heads=2", "context_length=16"] if place.small else []
    words += [*DATA.split(), *WITHOUT_KERNELS, f"train.device={place.device}", f"train.compile={compiled}"]
    return Run(run_config("mingpt", *words, f"train.seed={seed}", "train.steps=100000", "train.precision=float32"))


def seeds(place: Place, notes: list[str]) -> Values:
    """Eight seeds of `mingpt` in one process beside one seed."""
    one, eight = small_run(place, 0, "true"), [small_run(place, seed, "true") for seed in range(8)]
    one.compile()
    trainer = MultiSeedTrainer(eight)
    assert trainer.stack is not None
    notes.append(f"CUDA graphs: {trainer.stack.forward.cuda_graphs}")

    def step_all() -> None:
        for each in eight:
            each.update()

    seconds = in_turn(place, {"one": one.update, "eight": step_all}, count=50)
    return {
        "one": 1 / statistics.median(seconds["one"]),
        "eight": 1 / statistics.median(seconds["eight"]),
        "times": ratios(seconds["eight"], seconds["one"])["ratio"],
    }
