"""The parameters and optimizer states of runs that differ only in their seed, stacked along a leading seed axis."""

from collections.abc import Sequence

import torch
from torch import Tensor

from partwise.train.averaging import WeightAverage
from partwise.train.loop import Run
from partwise.train.multi_seed_losses import VmappedForward
from partwise.train.optimizer_steps import set_precision, stack_seeds

SHARED_STATE = "step"
"""The key of the optimizer's state that all seeds share."""


class SeedStack:
    """The stacked tensors of S runs at the same step, and one optimizer that steps all of them.

    The parameters, their averages and the optimizer state of each run become views of its slice, so each run evaluates and
    saves as usual.
    `release` gives a run tensors of its own again.
    """

    def __init__(self, runs: Sequence[Run]) -> None:
        self.runs = list(runs)
        self.forward = VmappedForward(runs[0])
        first, by_run = runs[0], [dict(run.model.named_parameters()) for run in runs]
        self.parameters = {
            name: torch.stack([run[name].detach() for run in by_run]).requires_grad_(parameter.requires_grad)
            for name, parameter in by_run[0].items()
        }
        stacks: dict[Tensor, Tensor] = {by_run[0][name]: stack for name, stack in self.parameters.items()}
        self.optimizer = stack_seeds(first.config.optimizer.build(first.model, first.config.train.lr), stacks)
        set_precision(self.optimizer, first.runtime.precision)
        for name, stack in self.parameters.items():
            states = [run.optimizer.state.get(parameters[name]) for run, parameters in zip(runs, by_run, strict=True)]
            for key in states[0] or {}:
                values = [state[key] for state in states if state]
                self.optimizer.state[stack][key] = values[0].clone() if key == SHARED_STATE else torch.stack(values)
            for index, parameters in enumerate(by_run):
                parameters[name].data = stack.detach()[index]
        self.average = WeightAverage(first.config.averaging)
        for name, stack in self.parameters.items():
            if by_run[0][name] in first.average.tensors:
                kept = [run.average.tensors[own[name]] for run, own in zip(runs, by_run, strict=True)]
                self.average.tensors[stack] = torch.stack(kept)
        self._share_state()
        self._share_average()

    def step(self, lr: float) -> None:
        """One step of the optimizer for all runs, at this learning rate."""
        for group in self.optimizer.param_groups:
            group["lr"] = lr * group.get("lr_factor", 1.0)
        n_states = len(self.optimizer.state)
        self.optimizer.step()
        if len(self.optimizer.state) > n_states:  # a parameter's state is created at its first gradient
            self._share_state()
        first = self.runs[0]
        if self.average.update(self.parameters.values(), first.step, first.config.train.steps):
            self._share_average()

    def grad_norms(self) -> Tensor:
        """The gradient norm of each run (S,)."""
        grads = [stack.grad.reshape(len(self.runs), -1) for stack in self.parameters.values() if stack.grad is not None]
        return torch.linalg.vector_norm(torch.cat(grads, dim=1), dim=1)

    def clip_gradients(self, norms: Tensor) -> None:
        """Scale each run's gradients down to a norm of train.grad_clip, as torch's clip_grad_norm_ does."""
        max_norm = self.runs[0].config.train.grad_clip
        if max_norm is not None:
            factors = (max_norm / (norms + 1e-6)).clamp(max=1.0)
            for stack in self.parameters.values():
                if stack.grad is not None:
                    stack.grad.mul_(factors.view(-1, *(1,) * (stack.ndim - 1)))

    def zero_grad(self) -> None:
        for stack in self.parameters.values():
            stack.grad = None

    def select(self, indices: Sequence[int]) -> "SeedStack":
        """A new stack of some of the runs, with their gradients; the other runs have been released."""
        selected = SeedStack([self.runs[index] for index in indices])
        selected.forward = VmappedForward(selected.runs[0], self.forward.cuda_graphs)
        for name, stack in self.parameters.items():
            selected.parameters[name].grad = None if stack.grad is None else stack.grad[list(indices)]
        return selected

    def _share_state(self) -> None:
        """Give each run views of its slice of the optimizer's state."""
        for index, run in enumerate(self.runs):
            for name, parameter in run.model.named_parameters():
                state = self.optimizer.state.get(self.parameters[name])
                if state:
                    run.optimizer.state[parameter] = {
                        key: value if key == SHARED_STATE else value[index] for key, value in state.items()
                    }

    def _share_average(self) -> None:
        """Give each run views of its slice of the averages."""
        for index, run in enumerate(self.runs):
            stacks = {name: self.average.tensors.get(stack) for name, stack in self.parameters.items()}
            own = dict(run.model.named_parameters())
            run.average.tensors = {own[name]: each[index] for name, each in stacks.items() if each is not None}


def release(run: Run) -> None:
    """Give a run of a stack its own tensors again."""
    for parameter in run.model.parameters():
        parameter.data = parameter.data.clone()
        state = run.optimizer.state.pop(parameter, {})
        if state:
            run.optimizer.state[parameter] = {key: value.clone() for key, value in state.items()}
    run.average.tensors = {parameter: each.clone() for parameter, each in run.average.tensors.items()}
