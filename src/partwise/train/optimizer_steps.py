"""`torch.optim.Optimizer` subclasses: AdamW, Muon and Lion."""

import inspect
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim.adamw import adamw

A, B, C = 3.4445, -4.7750, 2.0315
"""a x + b x^3 + c x^5, iterated, maps every singular value in (0, 1] to about 0.7 .. 1.2."""
EPS = 1e-7  # lower bound of the norm that matrices are divided by: a zero matrix stays zero
MAX_BATCH_ELEMENTS = 2**24  # orthogonalized at once, to bound memory

MAX_STEP_STACKS = 16  # sets of parameters whose step counters stay stacked

ParamGroups = list[dict[str, Any]]


class ParameterSlice(NamedTuple):
    """The size, stride and offset of a logical tensor within the parameter that stores it."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    def view(self, tensor: Tensor) -> Tensor:
        """The slice of a tensor with the parameter's layout."""
        return tensor.as_strided(self.size, self.stride, int(tensor.storage_offset()) + self.offset)

    def with_seed_axis(self, stack: Tensor) -> "ParameterSlice":
        """The same slice of each parameter in a stack, with its leading seed axis."""
        return ParameterSlice((stack.shape[0], *self.size), (stack.stride(0), *self.stride), self.offset)


def slice_of(view: Tensor, parameter: Tensor) -> ParameterSlice:
    return ParameterSlice(tuple(view.shape), view.stride(), int(view.storage_offset() - parameter.storage_offset()))


def orthogonalize(matrices: Tensor, steps: int = 5, dtype: torch.dtype | None = None) -> Tensor:
    """(..., rows, columns) -> the same shape, approximately U V^T of each matrix's singular value decomposition U S V^T.

    X / |X|_F, then `steps` Newton-Schulz iterations X <- a X + b (X X^T) X + c (X X^T)^2 X with the coefficients of
    Jordan et al. 2024, kellerjordan.github.io/posts/muon, which trade accuracy (singular values end at about 0.7 .. 1.2)
    for speed. Computed in `dtype`; by default in bfloat16 on CUDA and float32 elsewhere, and float64 stays float64.
    """
    rows, columns = matrices.shape[-2:]
    x = matrices.reshape(-1, rows, columns).to(dtype or compute_dtype(matrices))
    x = x if rows <= columns else x.mT  # so that X X^T is the smaller of the two Gram matrices
    x = x / torch.linalg.vector_norm(x, dim=(1, 2), keepdim=True).clamp(min=EPS)
    for _ in range(steps):
        gram = torch.bmm(x, x.mT)
        polynomial = torch.baddbmm(gram, gram, gram, beta=B, alpha=C)
        x = torch.baddbmm(x, polynomial, x, beta=A)
    return (x if rows <= columns else x.mT).to(matrices.dtype).reshape(matrices.shape)


def compute_dtype(x: Tensor) -> torch.dtype:
    if x.device.type == "cuda" and x.dtype != torch.float64:
        return torch.bfloat16
    return torch.promote_types(x.dtype, torch.float32)


def update_scale(scale: str, rows: int, columns: int) -> float:
    """The factor of an orthogonalized update of that shape."""
    return 0.2 * math.sqrt(max(rows, columns)) if scale == "rms" else math.sqrt(max(1.0, rows / columns))


class OptimizerBase(torch.optim.Optimizer):
    """An optimizer that updates one parameter group at a time and skips parameters without a gradient."""

    # without torch's wrappers, which import torch._dynamo: more than a second of a short run
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

    def state_tensors(self, parameters: list[Tensor], key: str) -> list[Tensor]:
        """Each parameter's state tensor `key`, initialized to zero."""
        for parameter in parameters:
            if key not in self.state[parameter]:
                self.state[parameter][key] = torch.zeros_like(parameter)
        return [self.state[parameter][key] for parameter in parameters]


class LionOptimizer(OptimizerBase):
    """w -= lr (sign(b1 m + (1 - b1) g) + decay w), then m = b2 m + (1 - b2) g."""

    def __init__(self, groups: ParamGroups, lr: float, beta1: float, beta2: float) -> None:
        super().__init__(groups, {"lr": lr, "beta1": beta1, "beta2": beta2, "weight_decay": 0.0})

    def update(self, parameters: list[Tensor], grads: list[Tensor], group: dict[str, Any]) -> None:
        momenta, lr = self.state_tensors(parameters, "momentum"), group["lr"]
        directions = torch._foreach_lerp(momenta, grads, 1 - group["beta1"])
        torch._foreach_sign_(directions)
        torch._foreach_mul_(parameters, 1 - lr * group["weight_decay"])
        torch._foreach_add_(parameters, directions, alpha=-lr)
        torch._foreach_lerp_(momenta, grads, 1 - group["beta2"])


class AdamWOptimizer(OptimizerBase):
    """The update of torch.optim.AdamW, for groups with `betas`, `eps`, `weight_decay` and `fused`."""

    def __init__(self, groups: ParamGroups, lr: float) -> None:
        super().__init__(groups, {"lr": lr})
        self.step_stacks: dict[tuple[int, ...], tuple[Tensor, list[Tensor]]] = {}

    def update(self, parameters: list[Tensor], grads: list[Tensor], group: dict[str, Any]) -> None:
        exp_avgs, exp_avg_sqs = self.state_tensors(parameters, "exp_avg"), self.state_tensors(parameters, "exp_avg_sq")
        for parameter in parameters:
            if "step" not in self.state[parameter]:
                device = parameter.device if group["fused"] else "cpu"
                self.state[parameter]["step"] = torch.zeros((), dtype=torch.float32, device=device)
        options = {
            "amsgrad": False,
            "beta1": group["betas"][0],
            "beta2": group["betas"][1],
            "lr": group["lr"],
            "weight_decay": group["weight_decay"],
            "eps": group["eps"],
            "maximize": False,
        }
        if group["fused"] and all(parameter.is_cpu for parameter in parameters):
            torch._fused_adamw_(
                parameters, grads, exp_avgs, exp_avg_sqs, [], self.increment_steps(parameters), **options
            )
        else:
            steps = [self.state[parameter]["step"] for parameter in parameters]
            adamw(parameters, grads, exp_avgs, exp_avg_sqs, [], steps, fused=group["fused"], **options)

    def increment_steps(self, parameters: list[Tensor]) -> list[Tensor]:
        """Increment the parameters' step counters, kept as views of one stacked tensor, and return them."""
        steps = [self.state[parameter]["step"] for parameter in parameters]
        key = tuple(map(id, steps))
        if key not in self.step_stacks:
            stack = torch.stack(steps)
            steps = list(stack.unbind())
            for parameter, step in zip(parameters, steps, strict=True):
                self.state[parameter]["step"] = step
            key = tuple(map(id, steps))
            self.step_stacks = (
                {**self.step_stacks, key: (stack, steps)}
                if len(self.step_stacks) < MAX_STEP_STACKS
                else {key: (stack, steps)}
            )
        stack, steps = self.step_stacks[key]
        stack += 1
        return steps


class MuonOptimizer(AdamWOptimizer):
    """Muon for parameter groups with `kind` muon, AdamW for the others.

    `slices` are the matrices stored in each parameter, (..., rows, columns) each, which are orthogonalized separately.
    """

    def __init__(self, groups: ParamGroups, lr: float, slices: Mapping[Tensor, list[ParameterSlice]]) -> None:
        super().__init__(groups, lr)
        self.slices = slices
        self.dtype: torch.dtype | None = None  # of orthogonalization; None: by device
        # set where a process holds only a part of each parameter: (part, tensor like it) -> whole tensor, and back
        self.gather: Callable[[Tensor, Tensor], Tensor] | None = None
        self.part: Callable[[Tensor, Tensor], Tensor] | None = None

    def update(self, parameters: list[Tensor], grads: list[Tensor], group: dict[str, Any]) -> None:
        rule = self.update_matrices if group["kind"] == "muon" else super().update
        rule(parameters, grads, group)

    def update_matrices(self, parameters: list[Tensor], grads: list[Tensor], group: dict[str, Any]) -> None:
        momenta, lr = self.state_tensors(parameters, "momentum"), group["lr"]
        # an exponential average instead of the paper's sum: orthogonalization removes the factor between them
        torch._foreach_lerp_(momenta, grads, 1 - group["momentum"])
        lookahead = torch._foreach_lerp(grads, momenta, group["momentum"]) if group["nesterov"] else momenta
        torch._foreach_mul_(parameters, 1 - lr * group["weight_decay"])
        if self.gather is None or self.part is None:
            self.add_orthogonalized(parameters, parameters, lookahead, group)
            return
        for parameter, direction in zip(parameters, lookahead, strict=True):  # one at a time, to bound memory
            whole = self.gather(parameter, direction.contiguous())
            update = torch.zeros_like(whole)
            self.add_orthogonalized([parameter], [update], [whole], group)
            parameter += self.part(parameter, update)

    def add_orthogonalized(
        self, parameters: list[Tensor], targets: list[Tensor], directions: Sequence[Tensor], group: dict[str, Any]
    ) -> None:
        """Add to each target, of its parameter's whole shape, the orthogonalized update of that direction."""
        lr = group["lr"]
        by_size = defaultdict[tuple[int, ...], list[tuple[Tensor, Tensor]]](list)
        for parameter, target, direction in zip(parameters, targets, directions, strict=True):
            for matrix in self.slices[parameter]:
                by_size[matrix.size].append((matrix.view(target), matrix.view(direction.contiguous())))
        for size, pairs in by_size.items():
            scale = update_scale(group["scale"], *size[-2:])
            batch_size = max(1, MAX_BATCH_ELEMENTS // math.prod(size))
            for start in range(0, len(pairs), batch_size):
                weights, matrices = zip(*pairs[start : start + batch_size], strict=True)
                updates = orthogonalize(torch.stack(matrices), group["ns_steps"], self.dtype)
                torch._foreach_add_(weights, updates.unbind(), alpha=-lr * scale)


def set_precision(optimizer: torch.optim.Optimizer, precision: str) -> None:
    """Compute updates in the precision of a run, "float32" or "bfloat16". Only Muon's orthogonalization depends on it.

    Weights and the optimizer's state stay in float32.
    """
    if isinstance(optimizer, MuonOptimizer) and precision == "bfloat16":
        optimizer.dtype = torch.bfloat16


def stack_seeds(optimizer: torch.optim.Optimizer, stacks: Mapping[Tensor, Tensor]) -> torch.optim.Optimizer:
    """Replace the parameters of a new optimizer by their stacks, which have a leading seed axis."""
    for group in optimizer.param_groups:
        group["params"] = [stacks[parameter] for parameter in group["params"]]
    if isinstance(optimizer, MuonOptimizer):
        optimizer.slices = {
            stacks[parameter]: [matrix.with_seed_axis(stacks[parameter]) for matrix in matrices]
            for parameter, matrices in optimizer.slices.items()
        }
    return optimizer
