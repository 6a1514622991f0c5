"""Named models: each a set of plain overrides over the defaults, training settings included."""

from dataclasses import dataclass
from typing import Any

from partwise.config import ConfigError, apply_overrides, did_you_mean, flatten, parse_overrides
from partwise.model import ModelConfig


@dataclass(frozen=True)
class Preset:
    """A one-line description and the overrides, nested as they would stand in a YAML file."""

    about: str
    settings: dict[str, Any]


PRESETS: dict[str, Preset] = {
    "mingpt": Preset(
        "the minimal GPT of tutorials: 8 layers of width 96, learned positions, ReLU",
        {
            "d_model": 96,
            "n_layers": 8,
            "max_len": 128,
            "positions": "learned",
            "attention": {"part": "multihead", "n_heads": 8, "out_bias": True},
            "ffn": {"part": "relu", "expansion": 4.0},
            "norm": "layernorm",
            "residual": "pre",
            "init": "torch",
            "head_bias": True,
            "train": {"lr": 3e-4, "batch_size": 16, "steps": 5000},
            "optimizer": "adamw",
            "schedule": "constant",
        },
    ),
    "toy": Preset(
        "a toy decoder: sinusoidal positions, separate biased projections, GELU with two dropouts",
        {
            "d_model": 128,
            "n_layers": 4,
            "max_len": 256,
            "positions": "sinusoidal",
            "attention": {
                "part": "multihead",
                "n_heads": 4,
                "bias": True,
                "out_bias": True,
                "fused": False,
                "dropout": 0.1,
            },
            "ffn": {"part": "gelu", "expansion": 4.0, "bias": True, "hidden_dropout": 0.1, "output_dropout": 0.1},
            "norm": "layernorm",
            "residual": "pre",
            "init": "torch",
            "head_bias": True,
            "train": {"lr": 3e-4, "batch_size": 16, "steps": 2000},
            "schedule": "constant",
        },
    ),
    "llama": Preset(
        "a Llama-style decoder: RMSNorm, SwiGLU, rotary positions, tied embeddings",
        {
            "d_model": 512,
            "n_layers": 6,
            "max_len": 2048,
            "positions": {"part": "rope", "theta": 10000.0},
            "attention": {"part": "multihead", "n_heads": 8},
            "ffn": {"part": "swiglu", "hidden": 1376},
            "norm": {"part": "rmsnorm", "eps": 1e-6},
            "residual": {"part": "pre", "dropout": 0.1},
            # the lesson only says that residual projections are divided by sqrt(2 n_layers); with PyTorch's unit
            # normal table, tied to the head, training would start at a loss in the hundreds: the rest is GPT-2's
            "init": "gpt2",
            "tied": True,
            "train": {"lr": 3e-4, "batch_size": 16, "context": 256, "steps": 2000, "clip": 1.0},
            "schedule": {"part": "cosine", "warmup": 100},
        },
    ),
}


def find_preset(name: str) -> Preset:
    """The preset of that name. Raises ConfigError with the closest known name."""
    if name not in PRESETS:
        raise ConfigError(f"unknown preset {name!r}{did_you_mean(name, PRESETS)}")
    return PRESETS[name]


def preset(name: str, *overrides: str, vocab_size: int = 65) -> ModelConfig:
    """The model of a preset, changed by overrides such as `"ffn=swiglu"`. Raises ConfigError."""
    base = ModelConfig().to_dict()
    settings = {key: value for key, value in find_preset(name).settings.items() if key in base}
    values = apply_overrides({**base, "vocab_size": vocab_size}, flatten(settings))
    return ModelConfig.from_dict(apply_overrides(values, parse_overrides(overrides)))
