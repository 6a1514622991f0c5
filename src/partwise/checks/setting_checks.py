"""The checks of schedules, optimizers and data: what resuming, pairing and scoring rely on."""

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from partwise.checks.finding import Finding
from partwise.checks.probe import copy_model
from partwise.checks.random_state import seeded
from partwise.data import Corpus, Dataset
from partwise.data.repetition import WARNED_SHARE, repeated_share
from partwise.model import Transformer
from partwise.tokenizers import Text

RATES = 1000
"""Maximum number of steps at which a schedule is evaluated."""

IDS = 1 << 22
"""Maximum number of ids checked per split."""

CHARACTERS = 1 << 20
"""Maximum number of characters compared between two preparations of a text."""

SCHEDULE, OPTIMIZER, OPTIMIZER_STATE = (
    "the learning rate follows from the step",
    "the optimizer updates what has a gradient",
    "the optimizer resumes exactly",
)
IDS_IN_VOCABULARY, DATA_REPEATS, HELD_OUT = (
    "ids are in the vocabulary",
    "the data can be made again",
    "validation text is not in training",
)
"""The names of the checks."""

Build = Callable[[nn.Module], torch.optim.Optimizer]


def finding(check: str, fault: str, passed: str) -> Finding:
    return Finding(check, "warning" if fault else "passed", fault or passed)


def check_schedule(factor: Callable[[int, int], float], steps: int) -> Finding:
    """Whether the factor of the learning rate is finite, not negative, and the same whenever it is asked for."""
    asked = sorted({round(step) for step in np.linspace(0, steps - 1, min(steps, RATES))})
    rates = {step: factor(step, steps) for step in asked}
    wrong = next((step for step, rate in rates.items() if not math.isfinite(rate) or rate < 0), None)
    changed = next((step for step in reversed(asked) if factor(step, steps) != rates[step]), None)
    fault = ""
    if wrong is not None:
        fault = f"its factor is {rates[wrong]:g} at step {wrong:,}"
    elif changed is not None:
        fault = f"its factor at step {changed:,} differs when it is asked again, so a resumed run differs"
    return finding(SCHEDULE, fault, f"factors from {min(rates.values()):.3g} to {max(rates.values()):.3g}")


def check_optimizer(model: Transformer, build: Build, lr: float) -> list[Finding]:
    """Whether steps change the parameters with a gradient alone, stay finite, and continue from the saved state.

    The model does not change.
    """
    first = copy_model(model)
    optimizer = build(first)
    parameters = [parameter for parameter in first.parameters() if parameter.requires_grad]
    before = [parameter.detach().clone() for parameter in parameters]
    idle = len(parameters) - 1 if len(parameters) > 1 else None
    with seeded():
        for step in range(2):
            take_step(optimizer, parameters, lr, step, idle)
    names = [name for name, parameter in first.named_parameters() if parameter.requires_grad]
    fault = update_fault(names, before, parameters, idle)
    return [
        finding(OPTIMIZER, fault, f"{len(parameters):,} tensors"),
        finding(OPTIMIZER_STATE, resume_fault(first, optimizer, build, lr), "a step from the saved state is equal"),
    ]


def update_fault(names: Sequence[str], before: Sequence[Tensor], after: Sequence[Tensor], idle: int | None) -> str:
    for index, (name, old, new) in enumerate(zip(names, before, after, strict=True)):
        if not new.isfinite().all():
            return f"{name} is not finite after two steps"
        if index == idle and not torch.equal(old, new):
            return f"{name} changes without a gradient"
        if index != idle and torch.equal(old, new):
            return f"{name} has a gradient and does not change"
    return ""


def resume_fault(model: Transformer, optimizer: torch.optim.Optimizer, build: Build, lr: float) -> str:
    """Why a run that is saved and resumed does not continue as one that is not; '' if it does."""
    resumed = copy_model(model)
    other = build(resumed)
    state: dict[int, dict[str, Tensor]] = {}
    indices = {id(each): index for index, each in enumerate(grouped(optimizer))}
    for parameter, values in optimizer.state.items():
        odd = next((key for key, value in values.items() if not isinstance(value, Tensor)), None)
        if odd is not None:
            return f"its state {odd!r} is not a tensor, and only tensors are saved"
        state[indices[id(parameter)]] = {key: value.clone() for key, value in values.items()}
    other.load_state_dict({**other.state_dict(), "state": state})
    with seeded():
        take_step(optimizer, trainable(model), lr, 2, None)
    with seeded():
        take_step(other, trainable(resumed), lr, 2, None)
    pairs = zip(trainable(model), trainable(resumed), strict=True)
    if all(torch.equal(one, two) for one, two in pairs):
        return ""
    return "a step from the saved state differs: keep what later steps need in optimizer.state, as tensors"


def grouped(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def trainable(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def take_step(
    optimizer: torch.optim.Optimizer, parameters: Sequence[nn.Parameter], lr: float, step: int, idle: int | None
) -> None:
    """One step on random gradients; the parameter numbered `idle` has none."""
    generator = torch.Generator().manual_seed(step)
    for index, parameter in enumerate(parameters):
        noise = torch.randn(parameter.shape, generator=generator)
        parameter.grad = None if index == idle else noise.to(parameter)
    for group in optimizer.param_groups:
        group["lr"] = lr * group.get("lr_factor", 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def check_data(dataset: Dataset, corpus: Corpus, vocab_size: int) -> list[Finding]:
    """Whether ids are in the vocabulary, splits are the same when made again, and validation text is held out."""
    largest = max(int(sample(dataset.split(name)).max()) for name in dataset.split_names)
    fault = f"the id {largest:,} is not below vocab_size={vocab_size:,}" if largest >= vocab_size else ""
    first, second = (beginnings(corpus) for _ in range(2))
    changed = next((name for name in first if first[name] != second.get(name)), "")
    share = repeated_share(dataset)
    repeats = f"at least {share:.0%} of the validation text is in the training text" if share is not None else ""
    return [
        finding(IDS_IN_VOCABULARY, fault, f"the largest is {largest:,}, vocab_size is {vocab_size:,}"),
        finding(DATA_REPEATS, f"the split {changed!r} differs when it is made again" if changed else "", "equal texts"),
        finding(
            HELD_OUT,
            repeats if share is not None and share >= WARNED_SHARE else "",
            "not measured for pairs and problems" if share is None else f"{share:.1%} of it",
        ),
    ]


def sample(ids: np.ndarray) -> np.ndarray:
    """At most IDS ids, from the whole of a split."""
    return np.asarray(ids[:: max(1, len(ids) // IDS)])


def beginnings(corpus: Corpus) -> dict[str, tuple[int, str]]:
    """The length and the beginning of each split, prepared again."""
    return {name: (len(text), beginning(text)) for name, text in corpus.splits().items()}


def beginning(text: Text) -> str:
    found = text[:CHARACTERS]
    return found if isinstance(found, str) else found.tobytes().decode("ascii")
