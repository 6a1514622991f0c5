"""The losses of runs that differ only in their seed, in one forward pass with `torch.vmap`, compiled if asked for."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn import functional as F

from partwise.compute import compilation
from partwise.data import IGNORE_INDEX, Batch
from partwise.parts.attention.core import AttentionCore
from partwise.parts.dropout import Dropout
from partwise.train.cross_entropy import compiled_losses, shift_targets, summed_cross_entropy
from partwise.train.loop import Run, TrainingLosses

Outputs = tuple[Tensor, list[Tensor], list[Tensor]]
"""The logits of all seeds, those of further tokens, and auxiliary losses."""

MAX_COMPILED_SHAPES = 4
"""Batches of further shapes are computed without compilation, which would take longer than it saves."""


class VmappedForward:
    """The forward pass of all seeds of a stack: (stacked parameters, inputs (S, B, T)) -> `Outputs`.

    To compile it, vmap and the autograd functions of the layers are first traced to plain operations.
    """

    def __init__(self, run: Run, cuda_graphs: bool = False) -> None:
        self.run, self.cuda_graphs = run, cuda_graphs
        self.compiled: dict[tuple[Any, ...], Callable[..., Outputs]] = {}

    def __call__(self, parameters: Mapping[str, Tensor], inputs: Tensor, ahead: bool) -> Outputs:
        key = (ahead, *inputs.shape)
        if not self.run.runtime.compile or (key not in self.compiled and len(self.compiled) == MAX_COMPILED_SHAPES):
            return self.vmapped(dict(parameters), inputs, ahead)
        if key not in self.compiled:
            from torch.fx.experimental.proxy_tensor import make_fx

            graph = make_fx(lambda parameters, inputs: self.vmapped(parameters, inputs, ahead))(
                dict(parameters), inputs
            )
            self.compiled[key] = compilation.compiled(graph, self.cuda_graphs)
        return self.compiled[key](dict(parameters), inputs)

    def vmapped(self, parameters: dict[str, Tensor], inputs: Tensor, ahead: bool) -> Outputs:
        def forward(parameters: dict[str, Tensor], inputs: Tensor) -> Outputs:
            mtp_logits, auxiliary = list[Tensor](), list[Tensor]()
            kwargs = {"aux_losses": auxiliary, "mtp_logits": mtp_logits if ahead else None}
            return functional_call(self.run.model, parameters, (inputs,), kwargs), mtp_logits, auxiliary

        with self.run.autocast():
            return vmap(forward)(parameters, inputs)


def multi_seed_losses(
    runs: Sequence[Run],
    parameters: Mapping[str, Tensor],
    batches: Sequence[Batch],
    forward: VmappedForward,
    first_row: int = 0,
) -> TrainingLosses:
    """The losses of each run's micro-batch, (S,) each, with stacked `parameters`.

    `first_row` is the first row of the micro-batch in the batch of the step.
    """
    first = runs[0]
    inputs, targets = (ids.to(first.device) for ids in stack_batches(batches))
    weight, smoothing = first.mtp_loss_weight, first.config.train.label_smoothing
    keys = [(run.config.train.seed, run.step, first_row) for run in runs]
    if not first.model.training:  # train() visits every module: skip it in most steps
        first.model.train()
    with vmap_fallback_disabled(), multi_seed_forward(first.model, keys):
        logits, mtp_logits, auxiliary = forward(parameters, inputs, weight > 0)
    cross_entropy = compiled_losses if first.runtime.compile else multi_seed_cross_entropy
    mtp = [
        weight * cross_entropy(logits_k, shift_targets(targets, k), smoothing)
        for k, logits_k in enumerate(mtp_logits, start=1)
    ]
    return TrainingLosses(cross_entropy(logits, targets, smoothing), mtp, auxiliary)


def multi_seed_cross_entropy(logits: Tensor, targets: Tensor, label_smoothing: float) -> Tensor:
    """(S, B, T, V), (S, B, T) -> each seed's loss (S,), summed over its targets."""
    if logits.dtype in (torch.bfloat16, torch.float16):
        by_seed = zip(logits.flatten(1, 2), targets.flatten(1), strict=True)
        return torch.stack([summed_cross_entropy(*seed, label_smoothing) for seed in by_seed])
    losses = F.cross_entropy(
        logits.flatten(0, 2),
        targets.flatten(),
        ignore_index=IGNORE_INDEX,
        reduction="none",
        label_smoothing=label_smoothing,
    )
    return losses.view(len(logits), -1).sum(1)


@contextmanager
def vmap_fallback_disabled() -> Iterator[None]:
    """Have vmap raise for operations without a batching rule, instead of warning and looping over the seeds."""
    functorch: Any = torch._C._functorch
    enabled = functorch._is_vmap_fallback_enabled()
    functorch._set_vmap_fallback_enabled(False)
    try:
        yield
    finally:
        functorch._set_vmap_fallback_enabled(enabled)


@contextmanager
def multi_seed_forward(model: nn.Module, keys: Sequence[tuple[int, int, int]]) -> Iterator[None]:
    """Prepare a model to run under vmap over seeds, each with the dropout noise of its key."""
    attention_cores = [module for module in model.modules() if isinstance(module, AttentionCore)]
    for module in model.modules():
        if isinstance(module, Dropout) and module.p > 0:
            module.seed_vmapped(keys)
    try:
        for module in attention_cores:
            module.multi_seed = True
        yield
    finally:
        for module in attention_cores:
            module.multi_seed = False


def stack_batches(batches: Sequence[Batch]) -> tuple[Tensor, Tensor]:
    """Stack the batches of several runs: inputs and targets, (S, B, T) each; shorter rows are padded on the right."""

    def stack(ids: Sequence[np.ndarray], padding: int) -> Tensor:
        longest = max(rows.shape[1] for rows in ids)
        padded = [np.pad(rows, ((0, 0), (0, longest - rows.shape[1])), constant_values=padding) for rows in ids]
        return torch.from_numpy(np.stack(padded))

    return stack([batch.inputs for batch in batches], 0), stack([batch.targets for batch in batches], IGNORE_INDEX)
