"""Memory on one accelerator, and what saves it: pieces of `accelerator.py`."""

import gc
import statistics
from collections.abc import Callable
from typing import Any

import torch
from accelerator import Place
from accelerator_shapes import gpt2_config, gpt2_sizes, in_turn, random_run
from measuring import ratios
from torch import Tensor
from torch.nn import functional as F

from partwise.inspection.memory import Allocations, StepMemory, step_memory
from partwise.train import optimizer_steps
from partwise.train.config import RunConfig
from partwise.train.cross_entropy import summed_loss
from partwise.train.loop import Run
from partwise.train.optimizers import Muon

ROWS = 4
Values = dict[str, float | None]


def config(place: Place, *words: str) -> RunConfig:
    return gpt2_config(place, ROWS, "train.compile=false", *words)


def peak_bytes(place: Place, run: Run) -> int:
    """The peak of a step, by torch's allocator, or on a CPU by counting tensors; the optimizer's state must exist."""
    if place.device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        run.update()
        return torch.cuda.max_memory_allocated()
    with Allocations() as allocations:
        states: list[Any] = [value for state in run.optimizer.state.values() for value in state.values()]
        for tensor in (*run.model.parameters(), *run.model.buffers(), *states):
            allocations.count(tensor)
        run.update()
    return allocations.peak


def measured(place: Place, words: tuple[str, ...]) -> tuple[StepMemory, int]:
    """The forecast of a configuration, and the peak of a real step."""
    settings = config(place, *words)
    forecast = step_memory(settings, settings.train.precision, device=place.device)
    run = random_run(settings)
    run.update()
    peak = peak_bytes(place, run)
    del run
    gc.collect()
    if place.device == "cuda":
        torch.cuda.empty_cache()
    return forecast, peak


def memory(place: Place, notes: list[str]) -> Values:
    """The forecast of `inspect PRESET memory` relative to a real step's peak."""
    cases = {
        "plain": (),
        "checkpointed": ("train.activation_checkpointing=true",),
        "float32": ("train.precision=float32",),
    }
    ratios: Values = {}
    for name, words in cases.items():
        forecast, peak = measured(place, words)
        ratios[name] = forecast.peak / peak
        notes.append(f"{name}: {forecast.peak / 2**20:,.0f} MiB foretold, {peak / 2**20:,.0f} MiB measured")
    return {**ratios, "error": max(abs(ratio - 1) for ratio in ratios.values() if ratio is not None)}


def checkpointing(place: Place, notes: list[str]) -> Values:
    """Time and memory of a step with activation checkpointing, relative to a step without."""
    kept: dict[str, int] = {}
    for name, words in (("plain", ()), ("checkpointed", ("train.activation_checkpointing=true",))):
        forecast, peak = measured(place, words)
        kept[name] = peak - forecast.weights - forecast.gradients - forecast.optimizer
    runs = {
        name: random_run(config(place, f"train.activation_checkpointing={value}"))
        for name, value in (("plain", "false"), ("checkpointed", "true"))
    }
    seconds = in_turn(place, {name: run.update for name, run in runs.items()})
    return {
        "seconds": ratios(seconds["checkpointed"], seconds["plain"])["ratio"],
        "memory": kept["checkpointed"] / max(1, kept["plain"]),
    }


def cross_entropy(place: Place, notes: list[str]) -> Values:
    """The compiled cross-entropy of a large vocabulary in bfloat16, against torch's on float32 logits."""
    rows, vocab = (32, 128) if place.small else (16384, 50304)
    logits = torch.randn(1, rows, vocab, device=place.device).mul_(3).bfloat16().requires_grad_()
    targets = torch.randint(vocab, (1, rows), device=place.device)

    def ours() -> Tensor:
        return torch.autograd.grad(summed_loss(logits, targets, 0.0, cpp=False, compiled=True), logits)[0]

    def plain() -> Tensor:
        loss = F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), reduction="sum")
        return torch.autograd.grad(loss, logits)[0]

    found = ours().float()
    difference = found.sub_(plain().float())
    error = float(difference.norm() / plain().float().norm())
    del found, difference
    extra = None
    if place.device == "cuda":
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        ours()
        extra = (torch.cuda.max_memory_allocated() - before - 2 * logits.numel()) / 2**20
    seconds = in_turn(place, {"ours": ours, "plain": plain}, count=5)
    return {
        "memory": extra,
        "seconds": 1000 * statistics.median(seconds["ours"]),
        "plain": 1000 * statistics.median(seconds["plain"]),
        "error": error,
    }


def muon(place: Place, notes: list[str]) -> Values:
    """Muon's update of every matrix of GPT-2, equal shapes in one batch and one at a time."""
    run = random_run(gpt2_config(place, 1, "train.compile=false", "optimizer=muon"))
    optimizer = run.optimizer
    for parameter in run.model.parameters():
        parameter.grad = torch.randn_like(parameter)

    def update(largest_batch: int) -> Callable[[], None]:
        def step() -> None:
            optimizer_steps.MAX_BATCH_ELEMENTS = largest_batch
            optimizer.step()

        return step

    assert isinstance(run.config.optimizer, Muon)
    batch = optimizer_steps.MAX_BATCH_ELEMENTS
    seconds = in_turn(place, {"batched": update(batch), "loop": update(1)})
    notes.append(f"{gpt2_sizes(place).layers} layers; batches of at most {batch:,} elements")
    return {
        "batched": 1000 * statistics.median(seconds["batched"]),
        "loop": 1000 * statistics.median(seconds["loop"]),
        "ratio": ratios(seconds["loop"], seconds["batched"])["ratio"],
    }
