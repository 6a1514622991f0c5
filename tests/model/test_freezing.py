"""Frozen tensors get no gradient, and change no gradient or output of the others, whatever computes the model."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

import partwise
from backends import use_backends
from kernel_inputs import require_kernels
from partwise.config import ConfigError
from partwise.model import Transformer
from partwise.model.freezing import freeze
from partwise.model.parameters import matching_names
from partwise.parts.feed_forward.router import Router

SHAPE = ("d_model=32", "n_layers=3", "attention.n_heads=2", "context_length=16", "ffn.hidden=64", "vocab_size=11")
FROZEN = {
    "the first layers": "embed,positions,blocks.0",
    "a layer between": "blocks.1",
    "a branch of every layer": "ffn",
    "a branch of two layers": "blocks.[12].attention",
    "all but the head": "embed,positions,blocks,residual",
}
FFN_0_1 = ("blocks.0.ffn.", "blocks.1.ffn.")


@pytest.fixture
def float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def build(*words: str, pattern: str | None = None, preset: str = "mingpt") -> Transformer:
    model = Transformer(partwise.preset(preset, *SHAPE, *words), seed=3)
    if pattern is not None:
        freeze(model, pattern)
    return model


def gradients(model: Transformer) -> tuple[Tensor, dict[str, Tensor | None]]:
    """The logits, and every parameter's gradient, of one batch."""
    tokens = torch.randint(11, (4, 16), generator=torch.Generator().manual_seed(0))
    logits = model.train()(tokens)
    (logits * torch.linspace(-1, 1, 11)).sum().backward()
    return logits.detach(), {name: parameter.grad for name, parameter in model.named_parameters()}


def names(model: Transformer) -> set[str]:
    """The saved tensors that training would change."""
    with torch.no_grad():
        return {
            tensor.name
            for tensor in model.logical_tensors()
            if (tensor.data if tensor.data._base is None else tensor.data._base).requires_grad
        }


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("pattern", FROZEN.values(), ids=FROZEN)
@pytest.mark.parametrize("words", [[], ["norm=rmsnorm", "ffn=swiglu", "positions=rope"]], ids=["gpt", "llama"])
def test_the_other_gradients_are_those_of_the_whole_model(words: list[str], pattern: str) -> None:
    pattern = pattern.replace("positions,", "") if words else pattern
    logits, expected = gradients(build(*words))
    frozen_logits, found = gradients(build(*words, pattern=pattern))
    torch.testing.assert_close(frozen_logits, logits, rtol=0, atol=1e-12)
    assert {None} < {type(grad) if grad is not None else None for grad in found.values()}  # some are frozen, some not
    for name, grad in found.items():
        if grad is not None:
            torch.testing.assert_close(grad, expected[name], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("pattern", FROZEN.values(), ids=FROZEN)
@pytest.mark.parametrize("backends", [{"block": "cpp"}, {"ffn": "cpp", "attention": "cpp"}, {"attention": "sdpa"}])
def test_backends_obey(pattern: str, backends: dict[str, str], shared_cache: object) -> None:
    """Against the same backends without frozen tensors, bit for bit: the order of sums does not change."""
    require_kernels()
    whole, frozen, eager = build(), build(pattern=pattern), build(pattern=pattern).double()
    for model in (whole, frozen):
        plan = use_backends(model, **backends)
        assert all(plan.counts()[kind][name] for kind, name in backends.items())
    logits, expected = gradients(whole)
    frozen_logits, found = gradients(frozen)
    assert torch.equal(frozen_logits, logits)
    _, reference = gradients(eager)
    assert [name for name, grad in found.items() if grad is None] == [
        name for name, grad in reference.items() if grad is None
    ]
    for name, grad in found.items():
        if grad is not None:
            assert torch.equal(grad, expected[name])
            torch.testing.assert_close(grad.double(), reference[name], rtol=1e-3, atol=1e-4)


def test_a_training_loop_of_ones_own_freezes_parameters_as_in_torch(shared_cache: object) -> None:
    """`select_backends` computes models whose parameters were frozen by hand, before or after."""
    require_kernels()
    expected = gradients(build(pattern="embed,positions,blocks.0"))[1]
    for before in (True, False):
        model = build()
        if not before:
            partwise.select_backends(model, backends={"block": "cpp"})
        for module in (model.embed, model.positions, model.blocks[0]):
            module.requires_grad_(False)
        if before:
            partwise.select_backends(model, backends={"block": "cpp"})
        for name, grad in gradients(model)[1].items():
            assert (grad is None) == (expected[name] is None)
            if grad is not None:
                torch.testing.assert_close(grad, expected[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("pattern", "trained"),
    [
        ("embed", lambda name: not name.startswith("embed.")),
        ("blocks.1", lambda name: not name.startswith("blocks.1.")),
        ("blocks.[0-1].ffn,norms", lambda name: ".norms." not in name and name[:13] not in FFN_0_1),
        ("attention.out", lambda name: ".attention.out." not in name),
        ("*.weight", lambda name: name.endswith(".bias")),
        ("norms.attention", lambda name: ".norms.attention." not in name),
    ],
)  # fmt: skip
def test_patterns_match_consecutive_words_of_a_name(pattern: str, trained: object) -> None:
    everything = names(build("n_layers=12", "head_bias=true"))
    assert names(build("n_layers=12", "head_bias=true", pattern=pattern)) == set(filter(trained, everything))  # type: ignore[arg-type]


def test_blocks_1_is_not_blocks_10() -> None:
    assert matching_names(["blocks.1.x", "blocks.10.x", "x.blocks.1"], "blocks.1", "s") == {"blocks.1.x", "x.blocks.1"}


def test_a_frozen_router_keeps_its_bias() -> None:
    words = ["ffn=moe", "ffn.load_balancing=bias", "ffn.bias_update_rate=0.5"]
    for pattern, moves in (("blocks.0", True), ("blocks.0,router", False), ("ffn", False)):
        model = build(*words, "n_layers=2", pattern=pattern)
        gradients(model)
        model.after_step()
        routers = [module for module in model.modules() if isinstance(module, Router)]
        biases = [dict(router.named_buffers())["balance.bias"] for router in routers]
        assert [bool(bias.any()) for bias in biases] == [False, moves]


@pytest.mark.parametrize(
    ("words", "pattern", "said"),
    [
        ([], "embedding", "train.freeze=embedding: no tensor has that name; choose one of attention, blocks, "),
        ([], "blocks.7", "train.freeze=blocks.7: no tensor has that name"),
        ([], "ffn,", "train.freeze=: no tensor has that name"),
        (
            [],
            "attention.k",
            "blocks.0.attention.k.weight is fused with blocks.0.attention.q.weight, blocks.0.attention.v",
        ),
        (["tie_embeddings=true"], "head", "head.weight is tied to embed.weight: freeze embed.weight as well"),
        ([], "embed,positions,blocks,residual,head", "leaves no parameter to train"),
        (["tie_embeddings=true", "head_bias=false"], "embed,positions,blocks,residual", "leaves no parameter to train"),
    ],
)
def test_patterns_that_cannot_be_obeyed_are_refused(words: list[str], pattern: str, said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        build(*words, pattern=pattern)
    assert said in str(raised.value) and "\n" not in str(raised.value)


def test_separate_projections_are_frozen_alone() -> None:
    model = build("attention.fused_qkv=false", pattern="attention.k")
    assert len(names(build("attention.fused_qkv=false")) - names(model)) == 3


@pytest.mark.parametrize("preset", ["mingpt", "gpt2", "llama", "gemma2", "gptneox"])
@pytest.mark.parametrize("pattern", ["blocks.1", "ffn", "embed,blocks.0", "blocks.[12].attention"])
def test_flops_are_those_of_torchs_forward_and_backward_pass(preset: str, pattern: str) -> None:
    """Counted by torch at its own operations while a model trains: gradients of frozen parameters are not computed."""
    config = partwise.run_config(preset, *SHAPE[:-1], "train.batch_size=1", "train.seq_len=16")
    if config.model.tie_embeddings:
        pattern = pattern.replace("embed,", "embed,head,")
    config = config.with_override(f"train.freeze={pattern}")
    model = Transformer(config.model, seed=0)
    freeze(model, pattern)
    model.reset_backends()
    tokens = torch.randint(11, (1, 16), generator=torch.Generator().manual_seed(0))
    with FlopCounterMode(display=False) as counter:
        model.train()(tokens).sum().backward()
    assert config.flops_per_token() == round(counter.get_total_flops() / 16)
    assert config.flops_per_token() < config.model.flops_per_token(16)
