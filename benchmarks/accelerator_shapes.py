"""Shared by the pieces of `accelerator.py`: configurations, ids, nanoGPT's model, and timing in turn."""

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from accelerator import Place
from peers import nanogpt_model
from plain_gpt import PlainGPT, Sizes
from torch import Tensor, nn

from partwise.compute import compilation
from partwise.data import Dataset
from partwise.train.config import RunConfig, run_config
from partwise.train.loop import Run

GPT2 = Sizes()
SMALL_GPT2 = Sizes(layers=2, width=32, heads=2, context=16, vocab=128)
WITHOUT_BIAS = "attention.bias=false attention.out_bias=false ffn.bias=false norm.bias=false ffn.approximate=none"
WITHOUT_DROPOUT = "attention.dropout=0 residual.dropout=0 embed_dropout=0"
DATA = "data=arithmetic data.train=2000 data.validation=50 data.test=5"
WITHOUT_KERNELS = ("train.block_backend=eager", "train.ffn_backend=eager")
"""Torch's operations on the CPU as well, in rehearsals."""


def gpt2_sizes(place: Place) -> Sizes:
    return SMALL_GPT2 if place.small else GPT2


def gpt2_config(place: Place, batch: int, *words: str) -> RunConfig:
    """The preset `gpt2` as nanoGPT trains it: 50304 ids, no biases, no dropout."""
    sizes = gpt2_sizes(place)
    return run_config(
        "gpt2",
        *WITHOUT_BIAS.split(),
        *WITHOUT_DROPOUT.split(),
        *DATA.split(),
        *WITHOUT_KERNELS,
        f"train.attention_backend={'eager' if place.device == 'cpu' else 'auto'}",
        f"n_layers={sizes.layers}",
        f"d_model={sizes.width}",
        f"attention.n_heads={sizes.heads}",
        f"context_length={sizes.context}",
        f"vocab_size={sizes.vocab}",
        f"train.batch_size={2 if place.small else batch}",
        f"train.device={place.device}",
        "train.precision=bfloat16",
        "train.steps=100000",
        *words,
    )


class RandomIds:
    """A dataset whose splits are random ids of a whole vocabulary, so that embeddings are read as in training on text."""

    def __init__(self, dataset: Dataset, vocab: int) -> None:
        self.dataset = dataset
        self.ids = np.random.default_rng(0).integers(vocab, size=2**20, dtype=np.uint16)

    def split(self, name: str) -> np.ndarray:
        return self.ids

    def __getattr__(self, name: str) -> Any:
        return getattr(self.dataset, name)


def random_run(config: RunConfig) -> Run:
    return Run(config, RandomIds(config.prepare(), config.model.vocab_size))  # type: ignore[arg-type]


def peer_step(place: Place, sizes: Sizes, batch: int, compiled: bool, notes: list[str]) -> Callable[[], object]:
    """A training step of nanoGPT's model by its checkout, or of the plain reference: bfloat16, clipping, fused AdamW."""
    model = peer_model(place, sizes, notes).to(place.device).train()
    optimizer = model.configure_optimizers(0.1, 6e-4, (0.9, 0.95), place.device)  # type: ignore[operator]
    called = torch.compile(model, backend=compilation.COMPILER) if compiled else model
    shape = (2 if place.small else batch, sizes.context)
    inputs, targets = torch.randint(sizes.vocab, (2, *shape), device=place.device).unbind()

    def step() -> Tensor:
        with torch.autocast(place.device, torch.bfloat16):
            _, loss = called(inputs, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


def peer_model(place: Place, sizes: Sizes, notes: list[str]) -> nn.Module:
    if place.nanogpt is None:
        notes.append("no checkout of nanoGPT: the plain reference of benchmarks/plain_gpt.py stands for its model")
        return PlainGPT(sizes)
    return nanogpt_model(place.nanogpt, sizes, sizes.dropout)


def in_turn(
    place: Place, steps: Mapping[str, Callable[[], object]], rounds: int = 8, count: int = 10
) -> dict[str, list[float]]:
    """Seconds per step in each round: blocks of `count` steps in turn, after three steps of each to warm up."""
    rounds, count, warmup = (2, 1, 1) if place.small else (rounds, count, 3)
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for step in steps.values():
        for _ in range(warmup):
            step()
    for _ in range(rounds):
        for name, step in steps.items():
            place.synchronize()
            began = time.perf_counter()
            for _ in range(count):
                step()
            place.synchronize()
            seconds[name].append((time.perf_counter() - began) / count)
    return seconds
