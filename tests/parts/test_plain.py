"""Plain modules of torch as parts."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

import partwise
from partwise.config import REGISTRY, part
from partwise.config import parts as config_parts

SIZES = {"vocab_size": 7, "d_model": 8, "n_layers": 2, "context_length": 8}


class Plain(nn.Module):
    """A plain MLP."""

    def __init__(self, d_model: int, hidden: int = 5, dropout: "float" = 0.0, kind=None) -> None:  # type: ignore[no-untyped-def]
        super().__init__()
        self.up, self.down = nn.Linear(d_model, hidden), nn.Linear(hidden, d_model)
        self.dropout, self.kind = dropout, kind

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.up(x).relu())


class Named(Plain):
    def __init__(self, d_model: int, name: str = "") -> None:
        super().__init__(d_model)


class Scaled(nn.Module):
    def __init__(self, width: int, *, scale: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((width,), scale))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    assert part("plain", family="ffn")(Plain) is Plain  # as torch's users expect of a decorated class
    part("scaled", family="norm")(Scaled)
    yield
    del REGISTRY["ffn"]["plain"], REGISTRY["norm"]["scaled"]


def test_arguments_after_the_width_are_options() -> None:
    ffn = {"part": "plain", "hidden": 3}
    config = partwise.ModelConfig.from_dict({**SIZES, "ffn": ffn, "norm": {"part": "scaled", "scale": 2}})
    assert config.to_dict()["ffn"] == {"part": "plain", "hidden": 3, "dropout": 0.0, "kind": None}
    assert partwise.ModelConfig.from_dict(config.to_dict()) == config
    model = partwise.Transformer(config)
    assert model.state_dict()["blocks.1.ffn.up.weight"].shape == (3, 8)
    assert isinstance(model.blocks[0].ffn, Plain) and model(torch.zeros(1, 8, dtype=torch.long)).shape == (1, 8, 7)
    assert REGISTRY["ffn"]["plain"].__doc__ == "A plain MLP."


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"ffn": {"part": "plain", "hiden": 3}}, "unknown option 'ffn.hiden'; did you mean 'hidden'"),
        ({"ffn": {"part": "plain", "hidden": "3"}}, "ffn.hidden='?3'?: input should be a valid integer"),
        ({"norm": "scaled"}, "'norm.scale' is missing"),
    ],
)
def test_options_are_checked(values: dict[str, object], message: str) -> None:
    with pytest.raises(partwise.ConfigError, match=message):
        partwise.ModelConfig.from_dict({**SIZES, **values})


def test_the_seed_determines_the_initial_weights_whatever_the_process_has_done() -> None:
    config = partwise.ModelConfig.from_dict({**SIZES, "ffn": "plain"})

    def weights(seed: int) -> Tensor:
        torch.rand(3)
        return partwise.Transformer(config, seed).state_dict()["blocks.0.ffn.up.weight"]

    assert torch.equal(weights(1), weights(1)) and not torch.equal(weights(1), weights(2))


@pytest.mark.parametrize(
    ("cls", "family", "message"),
    [
        (Plain, None, 'family="ffn"'),
        (Plain, "attention", "families ffn and norm"),
        (Named, "ffn", "'name' cannot be an option: rename the argument"),
        (int, "ffn", "subclass of nn.Module, not int"),
        (type("Bare", (nn.Module,), {"__init__": lambda self: None}), "ffn", r"__init__\(self, d_model"),
    ],
)
def test_what_cannot_be_a_part_is_told(cls: type, family: str | None, message: str) -> None:
    with pytest.raises(partwise.ConfigError, match=message):
        part("other", family=family)(cls)


def test_a_class_that_is_registered_before_the_families_waits_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    make_recipe = config_parts._make_recipe[0]
    monkeypatch.setattr(config_parts, "_make_recipe", [])
    part("early", family="norm")(Scaled)
    assert "early" not in REGISTRY["norm"]
    config_parts.register_plain_classes(make_recipe)
    assert REGISTRY["norm"].pop("early").__qualname__ == "Scaled"
