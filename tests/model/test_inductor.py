"""Small versions of every preset, compiled by torch's inductor, equal eager in logits and gradients. Compiling takes
minutes: `make test-inductor`."""

import pytest
import torch

import partwise
from partwise.presets import PRESETS
from recipes import LENGTH, VOCAB, error, logits_of, perturbed, source_of, tokens

CLOSE = 1e-10
SMALL = ("d_model=32", f"context_length={LENGTH}", "attention.n_heads=4")
DEPTHS = {"deepseek": 4}  # the length of its list of parts
FAMILIES = sorted({name.partition("-")[0] for name in PRESETS} - {"pythia"})
"""Other sizes have the same parts."""


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # in torch's own code
@pytest.mark.parametrize("name", FAMILIES)
def test_compiled_equals_eager(name: str) -> None:
    depth = DEPTHS.get(name, 2)
    words = [*SMALL, f"n_layers={depth}"]
    if PRESETS[name].settings.get("encoder_layers"):
        words.append(f"encoder_layers={depth}")
    config = partwise.preset(name, *words, vocab_size=VOCAB)
    torch._dynamo.reset()
    model, twin = perturbed(config), perturbed(config)
    compiled = torch.compile(twin, backend="inductor", fullgraph=True)
    inputs = tokens()
    logits, expected = compiled(inputs, source=source_of(model, inputs)), logits_of(model, inputs)
    assert error(logits, expected) <= CLOSE
    weights = torch.randn(logits.shape, generator=torch.Generator().manual_seed(7), dtype=logits.dtype)
    (logits * weights).sum().backward()
    (expected * weights).sum().backward()
    pairs = [(own.grad, other.grad) for own, other in zip(model.parameters(), twin.parameters(), strict=True)]
    largest = max(float(own.abs().max()) for own, _ in pairs if own is not None)
    for own, other in pairs:
        assert own is not None and other is not None and (own - other).abs().max() <= CLOSE * largest
