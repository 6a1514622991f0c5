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
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    largest = max(float(own.abs().max()) for own in gradients.values() if own is not None)
    for name, parameter in twin.named_parameters():
        own, other = gradients[name], parameter.grad
        if name.startswith("ahead."):  # multi-token prediction, whose logits this pass does not ask for
            assert own is None and other is None
        else:
            assert own is not None and other is not None and (own - other).abs().max() <= CLOSE * largest
