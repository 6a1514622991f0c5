"""Memory of a training step, found by running it on tensors without content, and per process if several share it."""

import weakref
from contextlib import nullcontext
from dataclasses import dataclass
from math import ceil
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from partwise.compute.runtime import choose_runtime
from partwise.inspection.cost import format_bytes
from partwise.inspection.subject import Subject
from partwise.model import Transformer, meta_model
from partwise.model.activation_checkpointing import checkpoint_activations
from partwise.model.freezing import freeze
from partwise.plots.page import Page, bar_chart
from partwise.train.averaging import WeightAverage
from partwise.train.config import RunConfig
from partwise.train.cross_entropy import chunk_size, shift_targets, summed_loss


@dataclass(frozen=True)
class StepMemory:
    """Bytes. Weights, gradients and optimizer states are exact; the rest is what torch's operations allocate."""

    weights: int
    gradients: int
    optimizer: int
    activations: int
    """Kept at the end of the forward pass, with the logits and the loss."""
    peak: int
    """The most at any moment of a step, when the optimizer's state exists."""


class Allocations(TorchDispatchMode):
    """Counts the bytes of tensors that operations create and nothing has freed."""

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            return 1  # such as an optimizer's step counter, which has no content here
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self.count(leaf)
        return result

    def count(self, tensor: Tensor) -> None:
        """Count a tensor's storage until it is freed; views share one."""
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self._known:
            return
        self._known.add(key)
        self.live += size
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._free, key, size).atexit = False

    def _free(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.live -= size


def step_memory(
    config: RunConfig, precision: str, rows: int | None = None, shards: int = 1, device: str = "cpu"
) -> StepMemory:
    """The memory of a training step over micro-batches of `rows` (default: those of the configuration).

    It is that of torch's operations, with SDPA on an accelerator: C++ kernels keep less. Weights, gradients and optimizer
    states count as the largest part if `shards` split their first dimension, as FSDP2 does. Nothing is allocated.
    """
    train = config.train
    rows = rows or ceil(train.batch_size / train.grad_accumulation)
    with FakeTensorMode(allow_non_fake_inputs=True):
        model = fake_model(config, sdpa=device != "cpu")
        if train.freeze is not None:
            freeze(model, train.freeze)
        if train.activation_checkpointing:
            checkpoint_activations(model)
        optimizer = config.optimizer.build(model, train.lr)
        with Allocations() as allocations:
            for tensor in (*model.parameters(), *model.buffers()):
                allocations.count(tensor)
            compute_losses(model, config, precision, rows, device).backward()
            parameters = list(model.parameters())
            gradients = sum(part_size(p, shards) for p in parameters if p.grad is not None)
            optimizer.step()
            states = sum(
                part_size(value, shards if value.shape == p.shape else 1)
                for p, state in optimizer.state.items()
                for value in state.values()
                if isinstance(value, Tensor)
            )
            average = WeightAverage(config.averaging)
            average.update(parameters, 0, train.steps)
            states += sum(part_size(each, shards) for each in average.tensors.values())
            optimizer.zero_grad(set_to_none=True)
            before, allocations.peak = allocations.live, 0
            loss = compute_losses(model, config, precision, rows, device)
            activations = allocations.live - before
            loss.backward()
            optimizer.step()
    weights = sum(part_size(p, shards) for p in parameters)
    return StepMemory(weights, gradients, states, activations, allocations.peak)


def memory_warning(config: RunConfig, precision: str, available: int | None, runs: int = 1) -> str | None:
    """One line if a training step may need more than the available bytes, which `runs` runs at once share.

    Small models are not measured, to start at once.
    """
    if available is not None:
        available //= runs
    train, model = config.train, config.model
    tokens = ceil(train.batch_size / train.grad_accumulation) * config.seq_len
    rough = 16 * model.parameters() + tokens * (12 * model.vocab_size + 128 * model.n_layers * model.d_model)
    if available is None or rough < available / 4:
        return None
    try:
        peak = step_memory(config, precision).peak
    except Exception:  # a part of the user's own may need the content of tensors; training does not depend on this
        return None
    if peak <= available:
        return None
    return (
        f"warning: a training step may need {format_bytes(peak)} (with torch's operations), but only "
        f"{format_bytes(available)} is available{f' for each of {runs} runs' if runs > 1 else ''}; if it runs out of memory, "
        f"lower train.batch_size or train.seq_len, {'use --workers 1, ' if runs > 1 else ''}or raise train.grad_accumulation"
    )


def part_size(tensor: Tensor, shards: int) -> int:
    """Bytes of the largest of the parts of a tensor, split along its first dimension."""
    if not tensor.ndim or not tensor.numel():
        return tensor.numel() * tensor.element_size()
    return ceil(tensor.shape[0] / shards) * (tensor.numel() // tensor.shape[0]) * tensor.element_size()


def fake_model(config: RunConfig, sdpa: bool = False) -> Transformer:
    """A model in training mode with fake tensors, computed by torch's operations; needs FakeTensorMode.

    With `sdpa`, torch's scaled_dot_product_attention computes what it supports, as on accelerators, and keeps no scores.
    Shared tensors stay shared, which `to_empty` does not promise.
    """
    model = meta_model(config.model)
    if not sdpa:
        model.reset_backends()
    fakes: dict[int, Tensor] = {}
    for module in model.modules():
        for tensors in (module._parameters, module._buffers):
            for name, tensor in tensors.items():
                if tensor is not None:
                    fake = torch.empty_like(tensor, device="cpu")
                    made = nn.Parameter(fake, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else fake
                    tensors[name] = fakes.setdefault(id(tensor), made)  # type: ignore[assignment]
    return model.train()


def compute_losses(model: Transformer, config: RunConfig, precision: str, rows: int, device: str = "cpu") -> Tensor:
    """The loss of a micro-batch of `rows`, multi-token prediction and the layers included, as `device` computes it."""
    inputs, targets = torch.zeros(2, rows, config.seq_len, dtype=torch.long).unbind()
    source = inputs if model.config.takes_source else None
    auxiliary, ahead = list[Tensor](), list[Tensor]()
    autocast = torch.autocast("cpu", torch.bfloat16) if precision == "bfloat16" else nullcontext()
    weight = model.ahead.loss_weight_at(1.0)
    with autocast:
        logits = model(inputs, source=source, aux_losses=auxiliary, mtp_logits=ahead if weight else None)
    smoothing, chunk = config.train.label_smoothing, chunk_size(device)
    losses = [summed_loss(logits, targets, smoothing, cpp=False, chunk=chunk)]
    losses += [
        weight * summed_loss(each, shift_targets(targets, k), smoothing, cpp=False, chunk=chunk)
        for k, each in enumerate(ahead, start=1)
    ]
    return torch.stack([*losses, *auxiliary]).sum()


def gathered_bytes(config: RunConfig) -> int:
    """Bytes of the whole weights that FSDP2 holds while a block computes: its own, and those outside of blocks."""
    model = meta_model(config.model)
    blocks = [*model.blocks, *(model.encoder.blocks if model.encoder else [])]
    sizes = [sum(part_size(p, 1) for p in block.parameters()) for block in blocks]
    return sum(part_size(p, 1) for p in model.parameters()) - sum(sizes) + max(sizes, default=0)


def inspect(subject: Subject) -> Page:
    """The memory of a training step of one process, and of each of several."""
    config, n = subject.config, subject.processes
    runtime = choose_runtime(config.train)
    precision, device = runtime.precision, runtime.device
    columns = {"one process": amounts(step_memory(config, precision, device=device))}
    if n > 1:
        rows = ceil(config.train.batch_size / config.train.grad_accumulation / n)
        columns[f"each of {n}, ddp"] = amounts(step_memory(config, precision, rows, device=device))
        sharded = amounts(step_memory(config, precision, rows, shards=n, device=device))
        sharded["gathered weights"] = gathered_bytes(config)
        del sharded[PEAK]  # depends on how far ahead blocks are gathered
        columns[f"each of {n}, fsdp"] = sharded
    names = [name for name in ROWS if any(name in column for column in columns.values())]
    return Page(
        f"memory of a training step of {config.train.batch_size} x {config.seq_len} tokens in {precision}",
        "Found by running a step on tensors without content, with torch's operations: C++ kernels keep less. Activations are "
        "what the forward pass keeps for the backward pass, with the logits. The peak also has temporary tensors; torch and "
        "its libraries take some hundred MiB more. To lower it: a smaller train.batch_size, train.grad_accumulation, or "
        "train.activation_checkpointing=true.",
        ["", *columns],
        [(name, *(format_bytes(c[name]) if name in c else "" for c in columns.values())) for name in names],
        [
            bar_chart(
                title, [(name, c[name], format_bytes(c[name])) for name in names if c.get(name)], f"memory{number}"
            )
            for number, (title, c) in enumerate(columns.items())
        ],
    )


PEAK = "peak of a step"
ROWS = ("weights", "gradients", "optimizer states", "activations", "gathered weights", PEAK)


def amounts(memory: StepMemory) -> dict[str, int]:
    return {
        "weights": memory.weights,
        "gradients": memory.gradients,
        "optimizer states": memory.optimizer,
        "activations": memory.activations,
        PEAK: memory.peak,
    }
