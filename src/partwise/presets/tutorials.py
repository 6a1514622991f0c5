"""Models built in tutorials."""

from partwise.presets.preset import Preset

TUTORIALS: dict[str, Preset] = {
    "mingpt": Preset(
        "the minimal GPT of tutorials: 8 layers of width 96, learned positions, ReLU",
        {
            "d_model": 96,
            "n_layers": 8,
            "context_length": 128,
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
            "context_length": 256,
            "positions": "sinusoidal",
            "attention": {
                "part": "multihead",
                "n_heads": 4,
                "bias": True,
                "out_bias": True,
                "fused_qkv": False,
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
            "context_length": 2048,
            "positions": {"part": "rope", "theta": 10000.0},
            "attention": {"part": "multihead", "n_heads": 8},
            "ffn": {"part": "swiglu", "hidden": 1376},
            "norm": {"part": "rmsnorm", "eps": 1e-6},
            "residual": {"part": "pre", "dropout": 0.1},
            # the tutorial only says that residual projections are divided by sqrt(2 n_layers); with PyTorch's unit
            # normal embeddings, tied to the head, the initial loss would be in the hundreds: the rest is GPT-2's
            "init": "gpt2",
            "tie_embeddings": True,
            "train": {"lr": 3e-4, "batch_size": 16, "seq_len": 256, "steps": 2000, "grad_clip": 1.0},
            "schedule": {"part": "cosine", "warmup": 100},
        },
    ),
}
