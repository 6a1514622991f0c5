"""Multi-seed training: runs that differ only in their seed, vectorized with `torch.vmap` to save kernel launches."""

import math
import time
from collections.abc import Sequence
from contextlib import suppress

import torch
from torch import Tensor

from partwise.compute.compilation import REPLAYED, is_small
from partwise.data import Batch
from partwise.parts.feed_forward.router import Router
from partwise.train.loop import Diverged, Run, Step
from partwise.train.multi_seed_losses import VmappedForward, multi_seed_losses
from partwise.train.seed_stack import SeedStack, release


class CannotVectorize(Exception):
    """These runs cannot be vectorized and must be trained one at a time."""


class MultiSeedTrainer:
    """Trains several seeds of one configuration with `torch.vmap`; every parameter gets a leading seed axis.

    The first run to request its next step computes that of all runs, so they must take turns, one step each.
    Results equal separate runs up to rounding, dropout included. Raises CannotVectorize if a part supports one seed only.
    """

    def __init__(self, runs: Sequence[Run]) -> None:
        check_supported(runs)
        self.n_seeds = len(runs)
        self.results: dict[Run, Step | Diverged] = {}  # results of the current step, not yet requested
        self.stack: SeedStack | None = SeedStack(runs)  # None after every run was removed
        try:
            choose_forward(self.stack)
        except BaseException:
            for run in runs:
                release(run)
            raise
        for run in runs:
            run.updater = self

    @property
    def runs(self) -> list[Run]:
        """The runs that are still trained."""
        return self.stack.runs if self.stack else []

    def update(self, run: Run) -> Step:
        """The next step of one of the runs. Raises Diverged, after removing the run."""
        if run not in self.results:
            assert not self.results, "a run requested its second step before another requested its first"
            assert self.stack and run in self.runs, "the run was removed"
            self._advance(self.stack)
        result = self.results.pop(run)
        if isinstance(result, Diverged):
            run.updater = None
            raise result
        run.step = result.step  # only now: a run behind this step may still request its last one
        return result

    def is_ahead(self, run: Run) -> bool:
        """Whether the weights are ahead of the run's step."""
        return isinstance(self.results.get(run), Step)

    def remove(self, run: Run) -> None:
        """Give a run its own tensors again; the others continue without it."""
        if run in self.runs:
            release(run)
            run.updater = None
            others = [other for other in self.runs if other is not run]
            self.stack = SeedStack(others) if others else None

    def _advance(self, stack: SeedStack) -> None:
        """Compute one step of every run; runs that diverge are removed first."""
        started, first = time.perf_counter(), stack.runs[0]
        train, step = first.config.train, first.step
        lr = train.lr * first.config.schedule.factor(step, train.steps)
        batches = [run.batch() for run in stack.runs]
        totals, norms = accumulate_gradients(stack, batches)
        results = list(zip(*torch.stack((totals, norms)).tolist(), strict=True))  # the only device synchronization
        finite = [index for index, values in enumerate(results) if all(map(math.isfinite, values))]
        for index, run in enumerate(stack.runs):
            if index not in finite:
                loss, norm = results[index]
                release(run)  # unchanged by this step
                self.results[run] = Diverged(step + 1, f"loss {loss}, gradient norm {norm}")
        if not finite:
            self.stack = None
            return
        max_norm = train.grad_clip
        if len(finite) < len(stack.runs):
            self.stack = stack = stack.select(finite)
            norms = stack.grad_norms()
        if max_norm is not None and any(results[index][1] + 1e-6 > max_norm for index in finite):
            stack.clip_gradients(norms)  # else it would multiply every gradient by 1
        stack.step(lr)
        stack.zero_grad()
        seconds = (time.perf_counter() - started) / len(finite)
        for run, index in zip(stack.runs, finite, strict=True):
            run.model.after_step()
            loss, norm = results[index]
            self.results[run] = Step(step + 1, loss, norm, lr, batches[index].n_targets, seconds)


def check_supported(runs: Sequence[Run]) -> None:
    """Raise CannotVectorize if the runs are at different steps or a part of their model supports one seed only."""
    first = runs[0]
    if {run.step for run in runs} != {first.step}:
        raise CannotVectorize("the runs are at different steps")
    modules = list(first.model.modules())
    if first.plan.uses_kernels("block", "ffn"):
        raise CannotVectorize("the kernels of MLPs and blocks support one seed")
    if any(isinstance(module, Router) for module in modules):
        raise CannotVectorize("mixtures of experts support one seed")
    fitted = tuple(f"{name}." for name in first.model.fitted_layers)  # training does not read their buffers
    if any(not name.startswith(fitted) for name, _ in first.model.named_buffers()):
        raise CannotVectorize("a part has buffers")
    if first.config.train.activation_checkpointing:
        raise CannotVectorize("activation checkpointing supports one seed")
    if first.model.encoder:
        raise CannotVectorize("encoders support one seed")
    if first.config.model.padding_idx is not None:
        raise CannotVectorize("the embedding at padding_idx would stay zero for the first seed only")
    if not first.config.optimizer.supports_multi_seed:
        raise CannotVectorize(f"optimizer={first.config.optimizer.name} does not support several seeds")


def choose_forward(stack: SeedStack) -> None:
    """Let CUDA graphs replay small steps if they are compiled and their results are right. Raises CannotVectorize."""
    run = stack.runs[0]
    flops = run.config.flops_per_token() * run.config.train.batch_size * run.config.seq_len
    if run.runtime.compile and is_small(flops, run.device.type, run.config.train.grad_accumulation):
        stack.forward = VmappedForward(run, cuda_graphs=True)
        with suppress(CannotVectorize):
            verify(stack, passes=REPLAYED)
            return
        stack.forward = VmappedForward(run)
    verify(stack)


def verify(stack: SeedStack, passes: int = 1) -> None:
    """Raise CannotVectorize unless the first step's losses and gradient norms match those of separate runs.

    They are those of the last of several `passes`.
    """
    batches = [run.batch() for run in stack.runs]
    reason = ""
    try:
        for _ in range(passes):
            stack.zero_grad()
            losses = multi_seed_losses(stack.runs, stack.parameters, batches, stack.forward)
            losses.total(1, 1).backward()
            vectorized = torch.stack((losses.next_token.detach(), stack.grad_norms())).T.tolist()
    except (RuntimeError, ValueError, NotImplementedError) as error:
        reason = str(error).strip().splitlines()[0]  # the error itself would keep every tensor of the computation
    finally:
        stack.zero_grad()
    if reason:
        raise CannotVectorize(reason)
    tolerance = 2e-2 if stack.runs[0].runtime.precision == "bfloat16" else 1e-3
    for run, batch, results in zip(stack.runs, batches, vectorized, strict=True):
        run.model.train().seed_dropout(run.config.train.seed, run.step)
        run.forward = run.model  # a run of a stack has no compiled model of its own
        losses = run.training_losses(batch)
        losses.total(1, 1).backward()
        expected = [losses.next_token.item(), run.parallel.total_norm().item()]
        run.optimizer.zero_grad(set_to_none=True)
        for what, value, reference in zip(("loss", "gradient norm"), results, expected, strict=True):
            if math.isfinite(reference) and not abs(value - reference) <= tolerance * abs(reference) + 1e-9:
                raise CannotVectorize(f"the vectorized {what} is {value}, but {reference} in a separate run")


def accumulate_gradients(stack: SeedStack, batches: Sequence[Batch]) -> tuple[Tensor, Tensor]:
    """Backpropagate the losses of one step; each run's loss per target and its gradient norm, (S,) each."""
    first = stack.runs[0]
    n_micro_batches = first.config.train.grad_accumulation
    counts = torch.tensor([max(1, batch.n_targets) for batch in batches], device=first.device)
    total = torch.zeros(len(batches), device=first.device)
    first_row = 0
    for chunks in zip(*(batch.micro_batches(n_micro_batches) for batch in batches), strict=True):
        losses = multi_seed_losses(stack.runs, stack.parameters, chunks, stack.forward, first_row)
        first_row += len(chunks[0].inputs)
        losses.total(counts, n_micro_batches).backward()
        total = total + losses.next_token.detach() / counts
    return total, stack.grad_norms()
