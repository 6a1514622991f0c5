"""Update rules that torch does not have in this form. What they remember is saved and continued like torch's own."""

import inspect
import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim.adamw import adamw

A, B, C = 3.4445, -4.7750, 2.0315
"""a x + b x^3 + c x^5, applied again and again, takes every singular value in (0, 1] to about 0.7 .. 1.2."""
EPS = 1e-7  # the smallest norm by which a matrix is divided: zero stays zero
BATCH = 2**24  # numbers that are orthogonalised at once, which bounds the memory

GROUPS = 16  # sets of parameters whose numbers of updates stay joined

Groups = list[dict[str, Any]]


class Place(NamedTuple):
    """Where a logical tensor lies in the parameter that stores it."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    def of(self, whole: Tensor) -> Tensor:
        """The view there into a tensor laid out like the parameter."""
        return whole.as_strided(self.size, self.stride, int(whole.storage_offset()) + self.offset)

    def in_each(self, stacked: Tensor) -> "Place":
        """The same in a stack of such parameters, with its leading axis."""
        return Place((stacked.shape[0], *self.size), (stacked.stride(0), *self.stride), self.offset)


def place(view: Tensor, whole: Tensor) -> Place:
    return Place(tuple(view.shape), view.stride(), int(view.storage_offset() - whole.storage_offset()))


def orthogonalise(matrices: Tensor, steps: int = 5) -> Tensor:
    """(..., rows, columns) -> the same shape, near U V^T of each matrix's singular value decomposition U S V^T.

    X / |X|_F, then `steps` times X <- a X + b (X X^T) X + c (X X^T)^2 X: the Newton-Schulz iteration with the coefficients
    of Jordan et al. 2024, kellerjordan.github.io/posts/muon, which trade exactness (singular values end in about 0.7 ..
    1.2) for speed. In bfloat16 on CUDA, elsewhere in float32; float64 stays float64.
    """
    rows, columns = matrices.shape[-2:]
    x = matrices.reshape(-1, rows, columns).to(working_dtype(matrices))
    x = x if rows <= columns else x.mT  # the smaller of the two products X X^T
    x = x / torch.linalg.vector_norm(x, dim=(1, 2), keepdim=True).clamp(min=EPS)
    for _ in range(steps):
        square = torch.bmm(x, x.mT)
        polynomial = torch.baddbmm(square, square, square, beta=B, alpha=C)
        x = torch.baddbmm(x, polynomial, x, beta=A)
    return (x if rows <= columns else x.mT).to(matrices.dtype).reshape(matrices.shape)


def working_dtype(x: Tensor) -> torch.dtype:
    if x.device.type == "cuda" and x.dtype != torch.float64:
        return torch.bfloat16
    return torch.promote_types(x.dtype, torch.float32)


def in_shape(scale: str, rows: int, columns: int) -> float:
    """By what an orthogonal update of that shape is multiplied."""
    return 0.2 * math.sqrt(max(rows, columns)) if scale == "rms" else math.sqrt(max(1.0, rows / columns))


class Rule(torch.optim.Optimizer):
    """An optimizer whose groups are updated one after the other; parameters without a gradient are left out."""

    # as they are without what torch wraps around them, which imports its compiler: over a second of a short run
    add_param_group = inspect.unwrap(torch.optim.Optimizer.add_param_group)
    zero_grad = inspect.unwrap(torch.optim.Optimizer.zero_grad)
    state_dict = inspect.unwrap(torch.optim.Optimizer.state_dict)
    load_state_dict = inspect.unwrap(torch.optim.Optimizer.load_state_dict)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            if parameters:
                self.update(parameters, [parameter.grad for parameter in parameters], group)
        return loss

    def update(self, parameters: list[Tensor], grads: list[Tensor], group: dict[str, Any]) -> None:
        raise NotImplementedError

    def remembered(self, parameters: list[Tensor], key: str) -> list[Tensor]:
        """One tensor of the state per parameter, zero at first."""
        for parameter in parameters:
            if key not in self.state[parameter]:
                self.state[parameter][key] = torch.zeros_like(parameter)
        return [self.state[parameter][key] for parameter in parameters]


class Lion(Rule):
    """w -= lr (sign(b1 m + (1 - b1) g) + decay w), then m = b2 m + (1 - b2) g."""

    def __init__(self, groups: Groups, lr: float, beta1: float, beta2: float) -> None:
        super().__init__(groups, {"lr": lr, "beta1": beta1, "beta2": beta2, "weight_decay": 0.0})

    def update(self, parameters: list[Tensor], grads: list[Tensor], group: dict[str, Any]) -> None:
        momenta, lr = self.remembered(parameters, "momentum"), group["lr"]
        direction = torch._foreach_lerp(momenta, grads, 1 - group["beta1"])
        torch._foreach_sign_(direction)
        torch._foreach_mul_(parameters, 1 - lr * group["weight_decay"])
        torch._foreach_add_(parameters, direction, alpha=-lr)
        torch._foreach_lerp_(momenta, grads, 1 - group["beta2"])


class AdamW(Rule):
    """torch.optim.AdamW's update, for groups with `betas`, `eps`, `weight_decay` and `fused`."""

    def __init__(self, groups: Groups, lr: float) -> None:
        super().__init__(groups, {"lr": lr})
        self.joined: dict[tuple[int, ...], tuple[Tensor, list[Tensor]]] = {}

    def update(self, parameters: list[Tensor], grads: list[Tensor], group: dict[str, Any]) -> None:
        means, squares = self.remembered(parameters, "exp_avg"), self.remembered(parameters, "exp_avg_sq")
        for parameter in parameters:
            if "step" not in self.state[parameter]:
                device = parameter.device if group["fused"] else "cpu"
                self.state[parameter]["step"] = torch.zeros((), dtype=torch.float32, device=device)
        numbers = {
            "amsgrad": False,
            "beta1": group["betas"][0],
            "beta2": group["betas"][1],
            "lr": group["lr"],
            "weight_decay": group["weight_decay"],
            "eps": group["eps"],
            "maximize": False,
        }
        if group["fused"] and all(parameter.is_cpu for parameter in parameters):
            torch._fused_adamw_(parameters, grads, means, squares, [], self.counted(parameters), **numbers)
        else:
            steps = [self.state[parameter]["step"] for parameter in parameters]
            adamw(parameters, grads, means, squares, [], steps, fused=group["fused"], **numbers)

    def counted(self, parameters: list[Tensor]) -> list[Tensor]:
        """Everybody's number of updates, one more than before: places of one tensor, so that counting is one addition."""
        steps = [self.state[parameter]["step"] for parameter in parameters]
        key = tuple(map(id, steps))
        if key not in self.joined:
            whole = torch.stack(steps)
            steps = list(whole.unbind())
            for parameter, step in zip(parameters, steps, strict=True):
                self.state[parameter]["step"] = step
            key = tuple(map(id, steps))
            self.joined = {**self.joined, key: (whole, steps)} if len(self.joined) < GROUPS else {key: (whole, steps)}
        whole, steps = self.joined[key]
        whole += 1
        return steps


class Muon(AdamW):
    """Muon for the groups whose `kind` is muon, AdamW for the others.

    `places` tells for each parameter which matrices lie in it: (..., rows, columns) each, orthogonalised alone.
    """

    def __init__(self, groups: Groups, lr: float, places: Mapping[Tensor, list[Place]]) -> None:
        super().__init__(groups, lr)
        self.places = places

    def update(self, parameters: list[Tensor], grads: list[Tensor], group: dict[str, Any]) -> None:
        rule = self.update_matrices if group["kind"] == "muon" else super().update
        rule(parameters, grads, group)

    def update_matrices(self, parameters: list[Tensor], grads: list[Tensor], group: dict[str, Any]) -> None:
        momenta, lr = self.remembered(parameters, "momentum"), group["lr"]
        # a running mean where the paper has a sum: the factor between them is lost in orthogonalising
        torch._foreach_lerp_(momenta, grads, 1 - group["momentum"])
        ahead = torch._foreach_lerp(grads, momenta, group["momentum"]) if group["nesterov"] else momenta
        torch._foreach_mul_(parameters, 1 - lr * group["weight_decay"])
        alike = defaultdict[tuple[int, ...], list[tuple[Tensor, Tensor]]](list)
        for parameter, direction in zip(parameters, ahead, strict=True):
            for piece in self.places[parameter]:
                alike[piece.size].append((piece.of(parameter), piece.of(direction.contiguous())))
        for size, pairs in alike.items():
            scale = in_shape(group["scale"], *size[-2:])
            number = max(1, BATCH // math.prod(size))
            for start in range(0, len(pairs), number):
                weights, directions = zip(*pairs[start : start + number], strict=True)
                updates = orthogonalise(torch.stack(directions), group["ns_steps"])
                torch._foreach_add_(weights, updates.unbind(), alpha=-lr * scale)


def with_seeds(optimizer: torch.optim.Optimizer, stacks: Mapping[Tensor, Tensor]) -> torch.optim.Optimizer:
    """A new optimizer, made to update stacks of its parameters instead: each has a leading axis, of seeds."""
    for group in optimizer.param_groups:
        group["params"] = [stacks[parameter] for parameter in group["params"]]
    if isinstance(optimizer, Muon):
        optimizer.places = {
            stacks[parameter]: [piece.in_each(stacks[parameter]) for piece in pieces]
            for parameter, pieces in optimizer.places.items()
        }
    return optimizer
