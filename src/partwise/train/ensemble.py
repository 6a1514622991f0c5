"""Several runs that differ in their seed as one program: an accelerator starts one kernel where it started many."""

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
from partwise.data import IGNORED, Batch, Windows
from partwise.parts.layers import Dropout
from partwise.parts.routing import Router
from partwise.parts.scores import Scores
from partwise.train.cross_entropy import later, summed_cross_entropy
from partwise.train.folder import Interrupted, RunFolder
from partwise.train.loop import Diverged, Losses, Run, Step
from partwise.train.updates import with_seeds

SHARED = "step"
"""What an optimizer counts, the same for every seed."""


class Apart(Exception):
    """These runs cannot be one program: each must be trained alone."""


class Ensemble:
    """Runs of one configuration but for their seed; each of their parameters becomes one tensor with a leading axis of seeds.

    Each run stays one: its parameters and what its optimizer remembers are views into those tensors, so that it is
    evaluated and saved as ever. The first run that asks for its next update makes that of all, so they must ask in turn,
    each once. To rounding each is what it would be alone, dropout included. Raises Apart where a part cannot be computed
    for several seeds at once.
    """

    def __init__(self, runs: Sequence[Run]) -> None:
        self.runs: list[Run] = []
        self.seeds = len(runs)
        self.made: dict[Run, Step | Diverged] = {}
        self._check(runs)
        self._stack(runs)
        try:
            self._try()
        except BaseException:
            for run in runs:
                self._release(run)
            raise
        for run in runs:
            run.updater = self

    def update(self, run: Run) -> Step:
        """The next update of one of the runs. Raises Diverged, and that run has left the others."""
        if run not in self.made:
            assert not self.made, "a run asks for its second update before another asked for its first"
            self._advance()
        made = self.made.pop(run)
        if isinstance(made, Diverged):
            run.updater = None
            raise made
        run.step = made.step  # only now: a run that has not asked yet may ask for its last update
        return made

    def leave(self, run: Run) -> None:
        """Give a run numbers of its own again; the others go on without it."""
        if run in self.runs:
            self._release(run)
            run.updater = None
            others = [other for other in self.runs if other is not run]
            self.runs = []
            if others:
                self._stack(others)

    def _check(self, runs: Sequence[Run]) -> None:
        first = runs[0]
        if {run.step for run in runs} != {first.step}:
            raise Apart("the runs stand at different steps")
        modules = list(first.model.modules())
        if "kernel" in (first.choices.ffn_path, first.choices.block_path):
            raise Apart("the kernels of perceptrons and blocks know one seed at a time")
        if any(isinstance(module, Router) for module in modules):
            raise Apart("experts are computed for one seed at a time")
        if any(
            name != "counts.text" for name, _ in first.model.named_buffers()
        ):  # which training neither reads nor writes
            raise Apart("a part keeps numbers that are not parameters")
        if first.model.encoder:
            raise Apart("sources are read for one seed at a time")
        if first.config.model.padding_idx is not None:
            raise Apart("the table's row at padding_idx would stay zero in the first seed alone")
        if not isinstance(first.examples, Windows) and any(
            isinstance(part, Dropout) and part.p > 0 for part in modules
        ):
            raise Apart("rows of several lengths would not draw the dropout noise that they draw alone")
        if not first.config.optimizer.stacks:
            raise Apart(f"optimizer={first.config.optimizer.name} does not say that it updates stacks of parameters")

    def _stack(self, runs: Sequence[Run]) -> None:
        """Move the numbers of the runs into common tensors, and what their optimizers remember."""
        first, own = runs[0], [dict(run.model.named_parameters()) for run in runs]
        self.runs = list(runs)
        self.parameters = {
            name: torch.stack([parameters[name].detach() for parameters in own]).requires_grad_() for name in own[0]
        }
        owners: dict[Tensor, Tensor] = {own[0][name]: stacked for name, stacked in self.parameters.items()}
        self.optimizer = with_seeds(first.config.optimizer.build(first.model, first.config.train.lr), owners)
        for name, stacked in self.parameters.items():
            states = [run.optimizer.state.get(parameters[name]) for run, parameters in zip(runs, own, strict=True)]
            for key in states[0] or {}:
                values = [state[key] for state in states if state]
                self.optimizer.state[stacked][key] = values[0].clone() if key == SHARED else torch.stack(values)
            for place, parameters in enumerate(own):
                parameters[name].data = stacked.detach()[place]
        self._share_state()

    def _share_state(self) -> None:
        """Let each run see its part of what the optimizer remembers."""
        for place, run in enumerate(self.runs):
            for name, parameter in run.model.named_parameters():
                state = self.optimizer.state.get(self.parameters[name])
                if state:
                    run.optimizer.state[parameter] = {
                        key: value if key == SHARED else value[place] for key, value in state.items()
                    }

    def _release(self, run: Run) -> None:
        for parameter in run.model.parameters():
            parameter.data = parameter.data.clone()
            state = run.optimizer.state.pop(parameter, {})
            if state:
                run.optimizer.state[parameter] = {key: value.clone() for key, value in state.items()}

    def _try(self) -> None:
        """Compute the first update's losses and gradients both ways. Raises Apart where they fail, or differ."""
        batches = [run.batch() for run in self.runs]
        reason = ""
        try:
            losses = self._losses(batches)
            losses.share(1, 1).backward()
            together = torch.stack((losses.main.detach(), self._norms())).T.tolist()
        except (RuntimeError, ValueError, NotImplementedError) as error:
            reason = str(error).strip().splitlines()[0]  # the error itself would keep all that was computed
        finally:
            self._zero()
        if reason:
            raise Apart(reason)
        bound = 2e-2 if self.runs[0].choices.precision == "bfloat16" else 1e-3
        for run, batch, found in zip(self.runs, batches, together, strict=True):
            run.model.train().set_noise(run.config.train.seed, run.step, 0, 0)
            losses = run.losses(batch)
            losses.share(1, 1).backward()
            alone = [losses.main.item(), run.clip(None).item()]
            run.optimizer.zero_grad(set_to_none=True)
            for what, one, other in zip(("loss", "gradient"), found, alone, strict=True):
                if math.isfinite(other) and not abs(one - other) <= bound * abs(other) + 1e-9:
                    raise Apart(f"together a {what} is {one}, alone {other}")

    def _advance(self) -> None:
        """One update of all, each run's own; runs that diverge leave before it."""
        started, first = time.perf_counter(), self.runs[0]
        train, step = first.config.train, first.step
        lr = train.lr * first.config.schedule.factor(step, train.steps)
        batches = [run.batch() for run in self.runs]
        counts = torch.tensor([max(1, batch.count) for batch in batches], device=first.device)
        total = torch.zeros(len(self.runs), device=first.device)
        for number, micro in enumerate(zip(*(batch.chunks(train.accumulate) for batch in batches), strict=True)):
            losses = self._losses(micro, number)
            losses.share(counts, train.accumulate).backward()
            total = total + losses.main.detach() / counts
        norms = self._norms()
        found = list(zip(*torch.stack((total, norms)).tolist(), strict=True))  # waits for the device once
        kept = [place for place, values in enumerate(found) if all(map(math.isfinite, values))]
        if len(kept) < len(self.runs):
            norms = self._part_with(kept, found)
        if kept:
            self._scale(norms)
            for group in self.optimizer.param_groups:
                group["lr"] = lr * group.get("factor", 1.0)
            known = len(self.optimizer.state)
            self.optimizer.step()
            if len(self.optimizer.state) > known:  # what it remembers of a parameter exists from its first gradient on
                self._share_state()
        self._zero()
        seconds = (time.perf_counter() - started) / max(1, len(kept))
        for run, place in zip(self.runs, kept, strict=True):
            run.model.after_step()
            loss, norm = found[place]
            self.made[run] = Step(step + 1, loss, norm, lr, batches[place].count, seconds)

    def _losses(self, batches: Sequence[Batch], micro: int = 0) -> Losses:
        """What each run learns from its micro-batch of that number, (S,) each."""
        first = self.runs[0]
        inputs, targets = (side.to(first.device) for side in stacked(batches))
        weight = first.weight_ahead
        keys = [(run.config.train.seed, run.step, micro, 0) for run in self.runs]

        def forward(parameters: dict[str, Tensor], inputs: Tensor) -> tuple[Tensor, list[Tensor], list[Tensor]]:
            ahead, layers = list[Tensor](), list[Tensor]()
            asked = {"losses": layers, "ahead": ahead if weight else None}
            return functional_call(first.model, parameters, (inputs,), asked), ahead, layers

        with first.autocast(), without_fallback(), several_seeds(first.model.train(), first.device, keys):
            logits, logits_ahead, layers = vmap(forward)(self.parameters, inputs)
        ahead = [
            weight * self._cross_entropy(further, later(targets, places))
            for places, further in enumerate(logits_ahead, start=1)
        ]
        return Losses(self._cross_entropy(logits, targets), ahead, layers)

    def _cross_entropy(self, logits: Tensor, targets: Tensor) -> Tensor:
        """(S, B, T, V), (S, B, T) -> the summed loss of each seed (S,)."""
        smoothing = self.runs[0].config.train.label_smoothing
        if logits.dtype in (torch.bfloat16, torch.float16):
            seeds = zip(logits.flatten(1, 2), targets.flatten(1), strict=True)
            return torch.stack([summed_cross_entropy(*seed, smoothing) for seed in seeds])
        losses = F.cross_entropy(
            logits.flatten(0, 2), targets.flatten(), ignore_index=IGNORED, reduction="none", label_smoothing=smoothing
        )
        return losses.view(len(self.runs), -1).sum(1)

    def _norms(self) -> Tensor:
        """The norm of each run's gradient (S,)."""
        grads = [
            stacked.grad.reshape(len(self.runs), -1) for stacked in self.parameters.values() if stacked.grad is not None
        ]
        return torch.linalg.vector_norm(torch.cat(grads, dim=1), dim=1)

    def _scale(self, norms: Tensor) -> None:
        """Scale each run's gradient down to train.clip where it is longer, as torch's clip_grad_norm_ does."""
        limit = self.runs[0].config.train.clip
        if limit is not None:
            factors = (limit / (norms + 1e-6)).clamp(max=1.0)
            for stacked in self.parameters.values():
                if stacked.grad is not None:
                    stacked.grad.mul_(factors.view(-1, *(1,) * (stacked.ndim - 1)))

    def _part_with(self, kept: list[int], found: list[tuple[float, float]]) -> Tensor:
        """Let runs whose loss or gradient is not finite go as they were; the norms of the others."""
        grads = {name: stacked.grad for name, stacked in self.parameters.items()}
        for place, run in enumerate(self.runs):
            if place not in kept:
                loss, norm = found[place]
                self._release(run)
                self.made[run] = Diverged(run.step + 1, f"loss {loss}, gradient norm {norm}")
        runs = [self.runs[place] for place in kept]
        if not runs:
            self.runs = []
            return torch.empty(0)
        self._stack(runs)
        for name, grad in grads.items():
            self.parameters[name].grad = None if grad is None else grad[kept]
        return self._norms()

    def _zero(self) -> None:
        for stacked in self.parameters.values():
            stacked.grad = None


@contextmanager
def without_fallback() -> Iterator[None]:
    """Within it torch refuses what it could only do for one seed after the other, rather than warn at every call."""
    setting: Any = torch._C._functorch
    enabled = setting._is_vmap_fallback_enabled()
    setting._set_vmap_fallback_enabled(False)
    try:
        yield
    finally:
        setting._set_vmap_fallback_enabled(enabled)


@contextmanager
def several_seeds(model: nn.Module, device: torch.device, keys: Sequence[tuple[int, ...]]) -> Iterator[None]:
    """Within it a model computes for several seeds at once, each with the noise of its key."""
    scores = [module for module in model.modules() if isinstance(module, Scores)]
    for module in model.modules():
        if isinstance(module, Dropout) and module.p > 0:
            module.set_noise_of_each(device, keys)
    try:
        for module in scores:
            module.several_seeds = True
        yield
    finally:
        for module in scores:
            module.several_seeds = False


def stacked(batches: Sequence[Batch]) -> tuple[Tensor, Tensor]:
    """Batches of several runs as one, inputs and targets (S, B, T) each; shorter rows are filled up behind."""

    def stack(sides: Sequence[np.ndarray], fill: int) -> Tensor:
        longest = max(side.shape[1] for side in sides)
        rows = [np.pad(side, ((0, 0), (0, longest - side.shape[1])), constant_values=fill) for side in sides]
        return torch.from_numpy(np.stack(rows))

    return stack([batch.inputs for batch in batches], 0), stack([batch.targets for batch in batches], IGNORED)


def train_together(folders: Sequence[RunFolder], stopping: Callable[[], bool]) -> list[str]:
    """Train runs that differ in their seed to their ends; `done`, `diverged`, `interrupted` or `failed ...` for each.

    Those that stand at the same step are one program where they can be. Once `stopping` says so, or one has failed, all
    are saved and end.
    """
    statuses: dict[RunFolder, str] = {}
    for step in sorted({folder.run.step for folder in folders}, reverse=True):
        group = [folder for folder in folders if folder.run.step == step]
        try:
            ensemble = Ensemble([folder.run for folder in group]) if len(group) > 1 else None
        except Apart as error:
            group[0].say(f"these seeds are trained one after the other: {error}")
            ensemble = None
        for some in [group] if ensemble else [[folder] for folder in group]:
            statuses |= _in_turn(some, ensemble, stopping)
    return [statuses[folder] for folder in folders]


def _in_turn(
    folders: Sequence[RunFolder], ensemble: Ensemble | None, stopping: Callable[[], bool]
) -> dict[RunFolder, str]:
    """One event of each run after the other, so that each asks for its update before another asks for two."""
    statuses: dict[RunFolder, str] = {}
    events = {folder: folder.events() for folder in folders}
    while events:
        asked = stopping() or any(status.startswith("failed") for status in statuses.values())
        for folder in events:
            folder.stopping = asked
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
            except ConfigError as error:  # its disk is full, say: the others are saved before this is told
                status = f"failed {error}"
            if status:
                statuses[folder] = status
                del events[folder]
                if ensemble:
                    ensemble.leave(folder.run)
                folder.run.optimizer.state.clear()  # of which nothing is needed any more, while others may need the room
    return statuses
