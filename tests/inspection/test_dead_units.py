"""Hidden units that are dead from the start: their share, their loss of gradient, and what revives them."""

import pytest
import torch

import partwise
from partwise.config import ConfigError
from partwise.inspection.dead_units import dead_shares
from recipes import error

SIZES = ["d_model=32", "n_layers=2", "attention.n_heads=2", "context_length=32", "ffn.hidden=40", "ffn.bias=true"]
TOKENS = torch.randint(0, 19, (64, 32), generator=torch.Generator().manual_seed(0))


def model(*words: str) -> partwise.Transformer:
    return partwise.Transformer(partwise.preset("mingpt", *SIZES, *words, vocab_size=19))


@pytest.mark.parametrize("ffn", ["relu", "reglu", "relu2"])
@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_the_share_of_dead_units_is_the_one_asked_for(ffn: str, share: float) -> None:
    one = model(f"ffn={ffn}", "init=dead_units", f"init.share={share}").train()
    assert dead_shares(one, TOKENS) == [share, share] and one.training


def test_depth_zero_is_normal_and_a_smooth_activation_does_not_die() -> None:
    plain, shallow = model("ffn=relu", "init=normal"), model("ffn=relu", "init=dead_units", "init.depth=0")
    assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), shallow.parameters(), strict=True))
    assert dead_shares(plain, TOKENS) == [0, 0]
    assert dead_shares(model("ffn=gelu", "init=dead_units", "init.depth=3"), TOKENS) == [0, 0]


def test_a_model_with_dead_units_is_one_without_them_and_they_get_no_gradient() -> None:
    """In float64, with the columns and rows of the 10 dead units removed."""
    one = model("ffn=relu", "init=dead_units", "init.share=0.25").double()
    small = model("ffn=relu", "init=normal", "ffn.hidden=30").double()
    cut = {"ffn.up.weight": 0, "ffn.up.bias": 0, "ffn.down.weight": 1}
    tensors = {
        name: tensor.narrow(dim, 10, 30) if (dim := cut.get(name.split(".", 2)[-1])) is not None else tensor
        for name, tensor in one.state_dict().items()
    }
    small.load_state_dict(tensors)
    logits = one(TOKENS)
    assert error(logits, small(TOKENS)) <= 1e-12
    logits.square().sum().backward()
    for block in one.blocks:
        assert block.ffn.up.weight.grad is not None and block.ffn.up.bias.grad is not None  # type: ignore[union-attr]
        assert not block.ffn.up.weight.grad[:10].any() and not block.ffn.up.bias.grad[:10].any()  # type: ignore[union-attr,index]
        assert block.ffn.up.weight.grad[10:].any(dim=1).all()  # type: ignore[union-attr,index]


def test_only_the_bias_before_the_activation_changes() -> None:
    one = model("ffn=reglu", "attention.bias=true", "attention.out_bias=true", "init=dead_units", "init.share=1")
    changed = {name for name, tensor in one.state_dict().items() if name.endswith("bias") and tensor.any()}
    assert changed == {f"blocks.{layer}.ffn.gate.bias" for layer in (0, 1)}


def test_without_a_bias_it_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"init=dead_units sets biases of hidden units, and there are none: set ffn.bias"
    ):
        model("ffn.bias=false", "init=dead_units")
