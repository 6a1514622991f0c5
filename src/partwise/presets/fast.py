"""Models that learn fast; the default of `partwise train`."""

from partwise.presets.preset import Preset

# tuned on the last tenth of TinyShakespeare's training text; its validation split was not used
FAST: dict[str, Preset] = {
    "fast": Preset(
        "a small model that trains fast: hashed n-gram embeddings, token shift, RoPE, QK-norm, SwiGLU, Muon, an n-gram LM",
        {
            "d_model": 128,
            "n_layers": 2,
            "context_length": 128,
            "positions": "rope",
            "ngram_embeddings": {"part": "hashed", "max_n": 4, "table_size": 16384, "dropout": 0.1},
            "attention": {"part": "multihead", "n_heads": 4, "qk_norm": "head"},
            "short_conv": "token_shift",
            "ffn": "swiglu",
            "norm": "rmsnorm",
            "residual": "pre",
            "init": {"part": "gpt2", "zero_output": True},
            "ngram_lm": "kneser_ney",
            "train": {"lr": 0.01, "batch_size": 16, "steps": 600, "grad_clip": 1.0},
            "optimizer": {"part": "muon", "momentum": 0.9, "adamw_lr_ratio": 2.0, "beta2": 0.95},
            "schedule": {"part": "linear", "warmup": 10},
        },
    ),
}
