"""Multi-seed training: runs that differ only in their seed, vectorized with `torch.vmap` to save kernel launches."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn import functional as F

from partwise.config import ConfigError
from partwise.data import IGNORE_INDEX, Batch
from partwise.parts.attention.core import AttentionCore
from partwise.parts.dropout import Dropout
from partwise.parts.feed_forward.router import Router
from partwise.train.cross_entropy import shift_targets, summed_cross_entropy
from partwise.train.loop import Diverged, Run, Step, TrainingLosses
from partwise.train.optimizer_steps import stack_seeds
from partwise.train.run_folder import Interrupted, RunFolder

SHARED_STATE = "step"
"""The key of the optimizer's state that all seeds share."""


class CannotVectorize(Exception):
    """These runs cannot be vectorized and must be trained one at a time."""


class MultiSeedTrainer:
    """Trains several seeds of one configuration with `torch.vmap`; every parameter gets a leading seed axis.

    The parameters and optimizer state of each run become views into the stacked tensors, so each run evaluates and saves
    as usual. The first run to request its next step computes that of all runs, so they must take turns, one step each.
    Results equal separate runs up to rounding, dropout included. Raises CannotVectorize if a part supports one seed only.
    """

    def __init__(self, runs: Sequence[Run]) -> None:
        self.runs: list[Run] = []
        self.n_seeds = len(runs)
        self.results: dict[Run, Step | Diverged] = {}  # results of the current step, not yet requested
        self._check_supported(runs)
        self._stack(runs)
        try:
            self._verify()
        except BaseException:
            for run in runs:
                self._unstack(run)
            raise
        for run in runs:
            run.updater = self

    def update(self, run: Run) -> Step:
        """The next step of one of the runs. Raises Diverged, after removing the run."""
        if run not in self.results:
            assert not self.results, "a run requested its second step before another requested its first"
            self._advance()
        result = self.results.pop(run)
        if isinstance(result, Diverged):
            run.updater = None
            raise result
        run.step = result.step  # only now: a run that has yet to request this step may request its last one
        return result

    def remove(self, run: Run) -> None:
        """Give a run its own tensors again; the others continue without it."""
        if run in self.runs:
            self._unstack(run)
            run.updater = None
            others = [other for other in self.runs if other is not run]
            self.runs = []
            if others:
                self._stack(others)

    def _check_supported(self, runs: Sequence[Run]) -> None:
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
        if first.model.encoder:
            raise CannotVectorize("encoders support one seed")
        if first.config.model.padding_idx is not None:
            raise CannotVectorize("the embedding at padding_idx would stay zero for the first seed only")
        if not first.config.optimizer.supports_multi_seed:
            raise CannotVectorize(f"optimizer={first.config.optimizer.name} does not support several seeds")

    def _stack(self, runs: Sequence[Run]) -> None:
        """Stack the parameters and optimizer states of the runs."""
        first, by_run = runs[0], [dict(run.model.named_parameters()) for run in runs]
        self.runs = list(runs)
        self.parameters = {
            name: torch.stack([run[name].detach() for run in by_run]).requires_grad_() for name in by_run[0]
        }
        stacks: dict[Tensor, Tensor] = {by_run[0][name]: stack for name, stack in self.parameters.items()}
        self.optimizer = stack_seeds(first.config.optimizer.build(first.model, first.config.train.lr), stacks)
        for name, stack in self.parameters.items():
            states = [run.optimizer.state.get(parameters[name]) for run, parameters in zip(runs, by_run, strict=True)]
            for key in states[0] or {}:
                values = [state[key] for state in states if state]
                self.optimizer.state[stack][key] = values[0].clone() if key == SHARED_STATE else torch.stack(values)
            for index, parameters in enumerate(by_run):
                parameters[name].data = stack.detach()[index]
        self._share_state()

    def _share_state(self) -> None:
        """Give each run views of its slice of the optimizer's state."""
        for index, run in enumerate(self.runs):
            for name, parameter in run.model.named_parameters():
                state = self.optimizer.state.get(self.parameters[name])
                if state:
                    run.optimizer.state[parameter] = {
                        key: value if key == SHARED_STATE else value[index] for key, value in state.items()
                    }

    def _unstack(self, run: Run) -> None:
        for parameter in run.model.parameters():
            parameter.data = parameter.data.clone()
            state = run.optimizer.state.pop(parameter, {})
            if state:
                run.optimizer.state[parameter] = {key: value.clone() for key, value in state.items()}

    def _verify(self) -> None:
        """Raise CannotVectorize unless the first step's losses and gradient norms match those of separate runs."""
        batches = [run.batch() for run in self.runs]
        reason = ""
        try:
            losses = self._training_losses(batches)
            losses.total(1, 1).backward()
            vectorized = torch.stack((losses.next_token.detach(), self._grad_norms())).T.tolist()
        except (RuntimeError, ValueError, NotImplementedError) as error:
            reason = str(error).strip().splitlines()[0]  # the error itself would keep every tensor of the computation
        finally:
            self._zero_grad()
        if reason:
            raise CannotVectorize(reason)
        tolerance = 2e-2 if self.runs[0].runtime.precision == "bfloat16" else 1e-3
        for run, batch, results in zip(self.runs, batches, vectorized, strict=True):
            run.model.train().seed_dropout(run.config.train.seed, run.step)
            losses = run.training_losses(batch)
            losses.total(1, 1).backward()
            expected = [losses.next_token.item(), run.clip_gradients(None).item()]
            run.optimizer.zero_grad(set_to_none=True)
            for what, value, reference in zip(("loss", "gradient norm"), results, expected, strict=True):
                if math.isfinite(reference) and not abs(value - reference) <= tolerance * abs(reference) + 1e-9:
                    raise CannotVectorize(f"the vectorized {what} is {value}, but {reference} in a separate run")

    def _advance(self) -> None:
        """Compute one step of every run; runs that diverge are removed first."""
        started, first = time.perf_counter(), self.runs[0]
        train, step = first.config.train, first.step
        lr = train.lr * first.config.schedule.factor(step, train.steps)
        batches = [run.batch() for run in self.runs]
        counts = torch.tensor([max(1, batch.n_targets) for batch in batches], device=first.device)
        total = torch.zeros(len(self.runs), device=first.device)
        first_row = 0
        for chunks in zip(*(batch.micro_batches(train.grad_accumulation) for batch in batches), strict=True):
            losses = self._training_losses(chunks, first_row)
            first_row += len(chunks[0].inputs)
            losses.total(counts, train.grad_accumulation).backward()
            total = total + losses.next_token.detach() / counts
        norms = self._grad_norms()
        results = list(zip(*torch.stack((total, norms)).tolist(), strict=True))  # the only device synchronization
        finite = [index for index, values in enumerate(results) if all(map(math.isfinite, values))]
        if len(finite) < len(self.runs):
            norms = self._remove_diverged(finite, results)
        if finite:
            self._clip_gradients(norms)
            for group in self.optimizer.param_groups:
                group["lr"] = lr * group.get("lr_factor", 1.0)
            n_states = len(self.optimizer.state)
            self.optimizer.step()
            if len(self.optimizer.state) > n_states:  # a parameter's state is created at its first gradient
                self._share_state()
        self._zero_grad()
        seconds = (time.perf_counter() - started) / max(1, len(finite))
        for run, index in zip(self.runs, finite, strict=True):
            run.model.after_step()
            loss, norm = results[index]
            self.results[run] = Step(step + 1, loss, norm, lr, batches[index].n_targets, seconds)

    def _training_losses(self, batches: Sequence[Batch], first_row: int = 0) -> TrainingLosses:
        """The losses of each run's micro-batch, (S,) each; `first_row` is its first row in the batch of the step."""
        first = self.runs[0]
        inputs, targets = (ids.to(first.device) for ids in stack_batches(batches))
        weight = first.mtp_loss_weight
        keys = [(run.config.train.seed, run.step, first_row) for run in self.runs]

        def forward(parameters: dict[str, Tensor], inputs: Tensor) -> tuple[Tensor, list[Tensor], list[Tensor]]:
            mtp_logits, auxiliary = list[Tensor](), list[Tensor]()
            kwargs = {"aux_losses": auxiliary, "mtp_logits": mtp_logits if weight else None}
            return functional_call(first.model, parameters, (inputs,), kwargs), mtp_logits, auxiliary

        with first.autocast(), vmap_fallback_disabled(), multi_seed_forward(first.model.train(), keys):
            logits, mtp_logits, auxiliary = vmap(forward)(self.parameters, inputs)
        mtp = [
            weight * self._cross_entropy(logits_k, shift_targets(targets, k))
            for k, logits_k in enumerate(mtp_logits, start=1)
        ]
        return TrainingLosses(self._cross_entropy(logits, targets), mtp, auxiliary)

    def _cross_entropy(self, logits: Tensor, targets: Tensor) -> Tensor:
        """(S, B, T, V), (S, B, T) -> each seed's loss (S,), summed over its targets."""
        smoothing = self.runs[0].config.train.label_smoothing
        if logits.dtype in (torch.bfloat16, torch.float16):
            by_seed = zip(logits.flatten(1, 2), targets.flatten(1), strict=True)
            return torch.stack([summed_cross_entropy(*seed, smoothing) for seed in by_seed])
        losses = F.cross_entropy(
            logits.flatten(0, 2),
            targets.flatten(),
            ignore_index=IGNORE_INDEX,
            reduction="none",
            label_smoothing=smoothing,
        )
        return losses.view(len(self.runs), -1).sum(1)

    def _grad_norms(self) -> Tensor:
        """The gradient norm of each run (S,)."""
        grads = [stack.grad.reshape(len(self.runs), -1) for stack in self.parameters.values() if stack.grad is not None]
        return torch.linalg.vector_norm(torch.cat(grads, dim=1), dim=1)

    def _clip_gradients(self, norms: Tensor) -> None:
        """Scale each run's gradients down to a norm of train.grad_clip, as torch's clip_grad_norm_ does."""
        max_norm = self.runs[0].config.train.grad_clip
        if max_norm is not None:
            factors = (max_norm / (norms + 1e-6)).clamp(max=1.0)
            for stack in self.parameters.values():
                if stack.grad is not None:
                    stack.grad.mul_(factors.view(-1, *(1,) * (stack.ndim - 1)))

    def _remove_diverged(self, finite: list[int], results: list[tuple[float, float]]) -> Tensor:
        """Remove the runs whose loss or gradient is not finite, unchanged; return the gradient norms of the others."""
        grads = {name: stack.grad for name, stack in self.parameters.items()}
        for index, run in enumerate(self.runs):
            if index not in finite:
                loss, norm = results[index]
                self._unstack(run)
                self.results[run] = Diverged(run.step + 1, f"loss {loss}, gradient norm {norm}")
        runs = [self.runs[index] for index in finite]
        if not runs:
            self.runs = []
            return torch.empty(0)
        self._stack(runs)
        for name, grad in grads.items():
            self.parameters[name].grad = None if grad is None else grad[finite]
        return self._grad_norms()

    def _zero_grad(self) -> None:
        for stack in self.parameters.values():
            stack.grad = None


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


def train_seeds(folders: Sequence[RunFolder], should_stop: Callable[[], bool]) -> list[str]:
    """Train runs that differ in their seed; the status of each: `done`, `diverged`, `interrupted` or `failed ...`.

    Runs at the same step are vectorized where possible. If `should_stop()` or if one fails, all are saved and stopped.
    """
    statuses: dict[RunFolder, str] = {}
    for step in sorted({folder.run.step for folder in folders}, reverse=True):
        group = [folder for folder in folders if folder.run.step == step]
        try:
            trainer = MultiSeedTrainer([folder.run for folder in group]) if len(group) > 1 else None
        except CannotVectorize as error:
            group[0].log(f"training one seed at a time: {error}")
            trainer = None
        for members in [group] if trainer else [[folder] for folder in group]:
            statuses |= _train_in_turns(members, trainer, should_stop)
    return [statuses[folder] for folder in folders]


def _train_in_turns(
    folders: Sequence[RunFolder], trainer: MultiSeedTrainer | None, should_stop: Callable[[], bool]
) -> dict[RunFolder, str]:
    """Advance the runs by one event each in turns, so that none requests a second step before another its first."""
    statuses: dict[RunFolder, str] = {}
    events = {folder: folder.events() for folder in folders}
    while events:
        stop = should_stop() or any(status.startswith("failed") for status in statuses.values())
        for folder in events:
            folder.stop_requested = stop
        for folder in list(events):
            status = None
            try:
                next(events[folder])
            except StopIteration:
                status = "done"
            except Interrupted:
                status = "interrupted"
            except Diverged:
                status = "diverged"
            except ConfigError as error:  # such as a full disk; reported after the others are saved
                status = f"failed {error}"
            if status:
                statuses[folder] = status
                del events[folder]
                if trainer:
                    trainer.remove(folder.run)
                folder.run.optimizer.state.clear()  # free its memory for the other runs
    return statuses
