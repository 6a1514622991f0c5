"""The original Transformer and GPT-2."""

from partwise.presets.preset import Preset


def gpt2(size: str, d_model: int, n_layers: int, n_heads: int) -> Preset:
    """Radford et al. 2019, in the released sizes."""
    return Preset(
        f"GPT-2 {size}: {n_layers} layers of width {d_model}, learned positions, tanh GELU, tied embeddings",
        {
            "vocab_size": 50257,
            "d_model": d_model,
            "n_layers": n_layers,
            "context_length": 1024,
            "positions": "learned",
            "attention": {"part": "multihead", "n_heads": n_heads, "bias": True, "out_bias": True, "dropout": 0.1},
            "ffn": {"part": "gelu", "expansion": 4.0, "approximate": "tanh", "bias": True},
            "norm": "layernorm",
            "residual": {"part": "pre", "dropout": 0.1},
            "init": "gpt2",
            "tie_embeddings": True,
            "embed_dropout": 0.1,
            "train": {"lr": 6e-4, "batch_size": 8, "steps": 2000, "grad_clip": 1.0},
            "optimizer": {"part": "adamw", "beta2": 0.95, "weight_decay": 0.1, "decay_vectors": False},
            "schedule": {"part": "cosine", "warmup": 100},
        },
    )


CLASSIC: dict[str, Preset] = {
    "original": Preset(
        "the original Transformer, base: 6 encoder and 6 decoder layers of width 512, embeddings shared and tied to the head",
        {
            "d_model": 512,
            "n_layers": 6,
            "encoder_layers": 6,
            "context_length": 512,
            "positions": "sinusoidal",
            "attention": {"part": "multihead", "n_heads": 8, "bias": True, "out_bias": True, "dropout": 0.1},
            "ffn": {"part": "relu", "hidden": 2048, "bias": True, "hidden_dropout": 0.1},
            "norm": "layernorm",
            "residual": {"part": "post", "dropout": 0.1},
            "init": "xavier",
            "tie_embeddings": True,
            "scale_embeddings": True,
            "embed_dropout": 0.1,
            "data": "arithmetic_pairs",
            "train": {"lr": 7e-4, "batch_size": 64, "steps": 4000, "label_smoothing": 0.1},
            "optimizer": {"part": "adamw", "beta1": 0.9, "beta2": 0.98, "eps": 1e-9, "weight_decay": 0.0},
            "schedule": {"part": "inverse_sqrt", "warmup": 400},
        },
    ),
    "gpt2": gpt2("small, 124M", 768, 12, 12),
    "gpt2-medium": gpt2("medium, 355M", 1024, 24, 16),
    "gpt2-large": gpt2("large, 774M", 1280, 36, 20),
    "gpt2-xl": gpt2("XL, 1.6B", 1600, 48, 25),
}
