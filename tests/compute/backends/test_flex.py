"""FlexAttention computes the same attention as the equation, for every mask and bias; its gradients need CUDA."""

from typing import Any

import pytest
import torch
from torch import Tensor

import partwise
from partwise.compute.backend_plan import plan_config
from partwise.compute.backends import flex
from partwise.compute.runtime import Runtime
from partwise.config import ConfigError
from partwise.parts.attention.core import AttentionCore
from partwise.parts.attention.mask import MaskRule
from partwise.train.config import run_config
from partwise.train.loop import Run
from recipes import LENGTH, VOCAB, error, perturbed, source_of, tokens

EXACT = 1e-12
SMALL = ("d_model=32", f"context_length={LENGTH}", "attention.n_heads=4", "n_layers=2")
CUDA = Runtime("cuda", "bfloat16", 1, False, True)


class Counted(flex.Flex):
    calls = 0

    def __call__(self, *inputs: Any) -> Tensor:
        Counted.calls += 1
        return super().__call__(*inputs)


@pytest.fixture
def on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's own computation without a kernel, which has a forward pass only."""
    monkeypatch.setattr(flex, "DEVICES", ("cpu",))
    monkeypatch.setattr(flex, "DEVICES_COMPILE", False)


@pytest.mark.usefixtures("on_the_cpu")
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile:UserWarning")
@pytest.mark.parametrize(
    "words",
    [
        ("mingpt",),
        ("gemma2",),  # windows and soft-caps
        ("llama", "attention.window=3", "positions=alibi"),
        ("mingpt", "positions=t5", "attention.n_kv_heads=2", "attention.softcap=8"),
        ("llama", "attention=differential", "positions=alibi"),
        ("original", "encoder_layers=2", "positions=t5", "padding_idx=10"),
    ],
    ids=" ".join,
)
def test_the_forward_pass_equals_the_equation(words: tuple[str, ...]) -> None:
    preset, *rest = words
    model = perturbed(partwise.preset(preset, *SMALL, *rest, vocab_size=VOCAB))
    inputs = tokens()
    source = source_of(model, inputs)
    documents = None if source is not None else torch.tensor([[0, 0, 0, 1, 1, 2], [0, 1, 1, 1, 1, 1]])
    expected, found, calls = list[Tensor](), list[Tensor](), []
    for results, backends in ((expected, False), (found, True)):
        for core in (module for module in model.modules() if isinstance(module, AttentionCore)):
            core.backends = (Counted(core.scale, core.softcap),) if backends else ()
        before = Counted.calls
        with torch.no_grad():
            results.append(model(inputs, source=source))
            if documents is not None:
                results.append(model(inputs, document_ids=documents))
            cache = model.new_cache(2, LENGTH, source)  # a prompt, more of it, and a single token
            results += [model(inputs[:, a:b], cache) for a, b in ((0, 3), (3, 5), (5, 6))]
        calls.append(Counted.calls - before)
    assert calls[0] == 0 and calls[1] >= 6
    for own, other in zip(found, expected, strict=True):
        assert error(own, other) <= EXACT


@pytest.mark.usefixtures("on_the_cpu")
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile:UserWarning")
def test_it_is_compiled_with_the_model_in_one_graph() -> None:
    torch._dynamo.reset()
    model = perturbed(partwise.preset("gemma2", *SMALL, vocab_size=VOCAB))
    inputs = tokens()
    with torch.no_grad():
        expected = model(inputs)
        for core in (module for module in model.modules() if isinstance(module, AttentionCore)):
            core.backends = (flex.Flex(core.scale, core.softcap),)
        assert error(torch.compile(model, backend="aot_eager", fullgraph=True)(inputs), expected) <= EXACT


def test_the_bias_of_a_score_is_that_of_its_distance() -> None:
    """Of three queries after two cached keys."""
    slopes = torch.tensor([1.0, -2.0])[:, None, None]
    rule = MaskRule(2, True, None, None, lambda queries, keys, like: slopes * (queries[:, None] - keys))
    score = flex.score_function(rule, None, torch.zeros(1, 2, 3, 4), 5)
    heads, queries, keys = torch.arange(2)[:, None, None], torch.arange(3)[:, None], torch.arange(5)
    assert score is not None
    found = score(torch.ones(2, 3, 5), torch.tensor(0), heads, queries, keys)
    assert torch.equal(found, 1 + slopes * (queries + 2 - keys))


def test_it_is_chosen_only_if_it_is_named() -> None:
    config = partwise.preset("gemma2", "d_model=64", "attention.n_heads=4", "n_layers=2", vocab_size=VOCAB)
    assert {each.backend for each in plan_config(config, CUDA).choices.values() if each.kind == "attention"} == {
        "eager"
    }
    named = plan_config(config, CUDA, {"attention": "flex"})
    assert {each.chain for each in named.choices.values() if each.kind == "attention"} == {("flex",)}
    for words, reason in (
        (("attention.head_dim=24",), "heads must have a multiple of 16 dimensions"),
        (("attention.sinks=true",), "attention.sinks=true is not supported"),
    ):
        other = partwise.preset("llama", "d_model=64", "attention.n_heads=4", *words, vocab_size=VOCAB)
        plan = plan_config(other, CUDA, {"attention": "flex"})
        assert reason in plan.reasons()["attention"][0]
    with pytest.raises(ConfigError, match=r"attention_backend=flex supports no layer of this model .*on CUDA only"):
        Run(
            run_config("mingpt", "data=arithmetic", "data.train=50", "train.device=cpu", "train.attention_backend=flex")
        )
