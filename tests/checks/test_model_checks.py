"""Parts that see what they predict are found; parts that do not are not, however unusual they are."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import partwise
from partwise.checks.model_checks import CACHE, EVALUATION, GRADIENTS, LEAK, ROWS, check_model
from partwise.config import Part
from partwise.parts.attention.multihead import MultiHead, MultiHeadAttention
from partwise.parts.contracts import AttentionLayer, FeedForward, LayerContext, Norm, Residual
from partwise.parts.residual.wirings import PreNorm, PreNormWiring

LENGTH = 24
SIZES: dict[str, Any] = {"vocab_size": 13, "d_model": 16, "n_layers": 2, "context_length": LENGTH}

Function = Callable[[nn.Module, Tensor], Tensor]


class Layer(nn.Module):
    """A matrix, a gate that is closed at first, some state, and a function of all of them."""

    def __init__(self, width: int, function: Function) -> None:
        super().__init__()
        self.up = nn.Linear(width, width)
        self.gate = nn.Parameter(torch.zeros(()))
        self.register_buffer("average", torch.zeros(width))
        self.register_buffer("steps", torch.zeros(()))
        self.function = function

    def forward(self, x: Tensor, ctx: Any = None) -> Tensor:
        return self.function(self, self.up(x)) + 0.1 * self.gate * x


def ffn(function: Function) -> Part:
    class Mine(FeedForward):
        def build(self, layer_ctx: LayerContext) -> nn.Module:
            return Layer(layer_ctx.d_model, function)

    return Mine()


def norm(function: Function) -> Part:
    class Mine(Norm):
        def build(self, width: int) -> nn.Module:
            return Layer(width, function)

    return Mine()


class Unmasked(MultiHeadAttention):
    def forward(self, x: Tensor, ctx: Any) -> Tensor:
        ctx.causal, causal = False, ctx.causal
        mask, ctx.masks = ctx.masks, {}
        y = super().forward(x, ctx)
        ctx.causal, ctx.masks = causal, mask
        return y


class UnmaskedAttention(MultiHead):
    def build(self, layer_ctx: LayerContext) -> AttentionLayer:
        layer = super().build(layer_ctx)
        layer.__class__ = Unmasked
        return layer


class ShiftedWiring(PreNormWiring):
    def forward(self, x: Tensor, ctx: Any, branches: Any) -> Tensor:
        return super().forward(x, ctx, branches) + 0.1 * x.roll(-1, dims=1)


class ShiftedResidual(PreNorm):
    def build(self, layer_ctx: LayerContext, branches: list[str], new_norm: Any) -> nn.Module:
        return ShiftedWiring(branches, new_norm, self.dropout)


def next_one(x: Tensor) -> Tensor:
    return torch.cat([x[:, 1:], torch.zeros_like(x[:, :1])], dim=1)


def moving_mean(layer: Any, x: Tensor) -> Tensor:
    """Centered by a moving average that this text has already changed."""
    if layer.training:
        layer.average.lerp_(x.detach().mean(dim=(0, 1)).to(layer.average), 0.01)
    return x - layer.average


def batch_norm(layer: Any, x: Tensor) -> Tensor:
    return (x - x.mean(dim=(0, 1))) / x.std() if layer.training else x


CHEATS: dict[str, Part] = {
    "a norm that sees the next position": norm(lambda layer, x: x + next_one(x)),
    "a norm over all positions": norm(lambda layer, x: x / x.norm(dim=(1, 2), keepdim=True)),
    "an ffn that sees the next position": ffn(lambda layer, x: x.relu() + next_one(x)),
    "an ffn that mixes blocks of positions": ffn(
        lambda layer, x: x.unflatten(1, (-1, 4)).mean(2).repeat_interleave(4, 1)
    ),
    "an ffn that counts what follows": ffn(lambda layer, x: x + (x > 0).flip(1).cumsum(1).flip(1)),
    "attention without a mask": UnmaskedAttention(n_heads=2),
    "a residual stream that moves": ShiftedResidual(),
    "a gate that is closed at first": ffn(lambda layer, x: x + layer.gate * next_one(x)),
    "only at full length": ffn(lambda layer, x: x + next_one(x) if x.shape[1] == LENGTH else x),
    "only on few tokens": ffn(lambda layer, x: x + next_one(x) if x.shape[1] < 8 else x),
    "only in training": ffn(lambda layer, x: x + next_one(x) if layer.training else x),
    "only in evaluation": ffn(lambda layer, x: x if layer.training else x + next_one(x)),
    "moving averages of this text": norm(moving_mean),
    "statistics of the batch": norm(batch_norm),
    "behind dropout": ffn(lambda layer, x: nn.functional.dropout(x + next_one(x), 0.5, layer.training)),
}


def counted(layer: Any, x: Tensor) -> Tensor:
    """Normalized by an average of earlier texts, which training updates afterwards."""
    y = x - layer.average
    if layer.training:
        layer.average.lerp_(x.detach().mean(dim=(0, 1)).to(layer.average), 0.01)
    return y


def top_one(layer: Any, x: Tensor) -> Tensor:
    chosen = x.argmax(dim=-1, keepdim=True)
    return torch.zeros_like(x).scatter(-1, chosen, x.gather(-1, chosen).sigmoid()) + layer.average


def single_only(layer: Any, x: Tensor) -> Tensor:
    if x.dtype != torch.float32:
        raise TypeError("this kernel computes float32 only")
    return x.relu()


def half_only(layer: Any, x: Tensor) -> Tensor:
    if x.dtype != torch.bfloat16:
        raise TypeError("this kernel computes bfloat16 only")
    return x.relu()


LEGITIMATE: dict[str, Part] = {
    "a plain ffn": ffn(lambda layer, x: x.relu()),
    "a gate that is closed at first": ffn(lambda layer, x: layer.gate * x.relu()),
    "top-k routing": ffn(top_one),
    "moving averages of earlier texts": norm(counted),
    "dropout of its own": ffn(lambda layer, x: x * (torch.rand_like(x) > 0.1) if layer.training else x),
    "dropout by numpy": ffn(lambda layer, x: x * float(np.random.rand() > 0.1) if layer.training else x),
    "dropout by Python": ffn(lambda layer, x: x * float(random.random() > 0.1) if layer.training else x),
    "float32 only": ffn(single_only),
    "bfloat16 only": ffn(half_only),
    "one width only": ffn(lambda layer, x: x.unflatten(-1, (4, 4)).flatten(-2)),
    "undefined below zero": norm(
        lambda layer, x: x * (layer.gate + 1).log1p() / (x.square().mean(-1, True) + 1).sqrt()
    ),
}


def config(part: Part | None, **settings: Any) -> partwise.ModelConfig:
    family = {part.family: part} if part else {}
    return partwise.ModelConfig(**{**SIZES, **family, **settings})


def findings(part: Part | None, trained: bool = False, **settings: Any) -> dict[str, str]:
    model = partwise.Transformer(config(part, **settings))
    return {finding.check: finding.outcome for finding in check_model(model, LENGTH, trained)}


@pytest.mark.parametrize("name", CHEATS)
def test_parts_that_see_later_positions_are_found(name: str) -> None:
    assert findings(CHEATS[name])[LEAK] == "leak"


@pytest.mark.parametrize("name", LEGITIMATE)
def test_parts_that_do_not_pass_every_check(name: str) -> None:
    assert set(findings(LEGITIMATE[name]).values()) == {"passed"}


@pytest.mark.parametrize("trained", [False, True])
def test_an_encoder_may_see_every_position(trained: bool) -> None:
    class Mine(FeedForward):
        def build(self, layer_ctx: LayerContext) -> nn.Module:
            return Layer(layer_ctx.d_model, lambda layer, x: x if layer_ctx.causal else x + next_one(x))

    assert findings(Mine(), trained, encoder_layers=1, padding_idx=12)[LEAK] == "passed"
    assert findings(CHEATS["an ffn that sees the next position"], trained, encoder_layers=1)[LEAK] == "leak"


def test_a_gate_that_only_training_opens_is_found_on_the_trained_weights() -> None:
    """Random weights of this size never open it."""
    part = ffn(lambda layer, x: x + (layer.gate - 9).relu() * next_one(x))
    assert findings(part)[LEAK] == "passed"
    model = partwise.Transformer(config(part))
    for block in model.blocks:
        block.ffn.gate.data.fill_(10.0)
    assert {each.check: each.outcome for each in check_model(model, LENGTH, trained=True)}[LEAK] == "leak"


def test_state_that_training_changes_is_part_of_the_trained_weights() -> None:
    part = ffn(lambda layer, x: x + next_one(x) if layer.steps > 2 else x)
    model = partwise.Transformer(config(part))
    assert {each.check: each.outcome for each in check_model(model, LENGTH, trained=True)}[LEAK] == "passed"
    model.blocks[0].ffn.steps.fill_(3)
    assert {each.check: each.outcome for each in check_model(model, LENGTH, trained=True)}[LEAK] == "leak"


def remember(layer: Any, x: Tensor) -> Tensor:
    y, layer.average = x + layer.average, x.detach().mean(dim=(0, 1))
    return y


@pytest.mark.parametrize(
    ("check", "part"),
    [
        (ROWS, norm(lambda layer, x: x - x.mean(dim=0, keepdim=True))),
        (CACHE, ffn(lambda layer, x: x.cumsum(dim=1))),
        (GRADIENTS, ffn(lambda layer, x: x.detach().relu())),
        (EVALUATION, ffn(lambda layer, x: nn.functional.dropout(x, 0.1))),
        (EVALUATION, ffn(remember)),
        (LEAK, ffn(lambda layer, x: layer.up.weight[: x.shape[1]].new_ones(LENGTH, 1) * x)),
    ],
    ids=["rows", "cache", "gradients", "random evaluation", "evaluation with memory", "one length only"],
)
def test_what_is_no_leak_is_a_warning(check: str, part: Part) -> None:
    found = findings(part)
    assert found[check] == "warning" and "leak" not in found.values()


def test_a_check_leaves_no_trace() -> None:
    """Not in the model, in its buffers, in gradients or in any random number generator."""
    model = partwise.Transformer(config(LEGITIMATE["moving averages of earlier texts"])).train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    torch.manual_seed(3), np.random.seed(3), random.seed(3)
    expected = torch.rand(2).tolist(), np.random.rand(), random.random()
    torch.manual_seed(3), np.random.seed(3), random.seed(3)
    check_model(model, LENGTH)
    check_model(model, LENGTH, trained=True)
    assert (torch.rand(2).tolist(), np.random.rand(), random.random()) == expected
    assert model.training and all(parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_a_layer_may_keep_tensors_of_the_last_step() -> None:
    """Part of its graph, which torch does not copy."""

    def keep(layer: Any, x: Tensor) -> Tensor:
        layer.last, layer.all = x, [*getattr(layer, "all", []), x]
        return x.relu()

    model = partwise.Transformer(config(ffn(keep))).train()
    model(torch.zeros(1, LENGTH, dtype=torch.long)).sum().backward()
    assert {each.outcome for each in check_model(model, LENGTH, trained=True)} == {"passed"}


def test_our_own_residual_wirings_are_not_mistaken() -> None:
    assert findings(None) == dict.fromkeys((LEAK, ROWS, CACHE, GRADIENTS, EVALUATION), "passed")
    assert issubclass(ShiftedResidual, Residual)
