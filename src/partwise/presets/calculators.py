"""Models that learn arithmetic."""

from partwise.presets.preset import Preset

CALCULATORS: dict[str, Preset] = {
    "calculator": Preset(
        "arithmetic with worked answers: aligned problems, loss on steps and answers, token shift, QK-norm, SwiGLU, Muon",
        {
            "d_model": 128,
            "n_layers": 4,
            "context_length": 224,
            # aligned problems put every step at a place of its own: learned positions
            "positions": "learned",
            "attention": {"part": "multihead", "n_heads": 4, "qk_norm": "head"},
            "short_conv": "token_shift",
            "ffn": {"part": "swiglu", "hidden": 352},
            "norm": "rmsnorm",
            "residual": "pre",
            "init": {"part": "gpt2", "zero_output": True},
            "data": {
                "part": "arithmetic",
                "steps": True,
                "aligned": True,
                "answer_only_loss": True,
                "form_balance": 0.5,
                "train": 1_000_000,
                "validation": 500,
            },
            "train": {"lr": 0.01, "batch_size": 32, "steps": 8000, "grad_clip": 1.0, "eval_every": 1000},
            "optimizer": {"part": "muon", "momentum": 0.9, "adamw_lr_ratio": 2.0, "beta2": 0.95},
            "schedule": {"part": "linear", "warmup": 50},
        },
    ),
    "calculator-direct": Preset(
        "arithmetic without steps: aligned problems, rare forms oversampled, loss on answers, multi-token prediction, Muon",
        {
            "d_model": 96,
            "n_layers": 4,
            "context_length": 36,
            # aligned problems put digits at fixed positions: learned positions train faster than rotary ones
            "positions": "learned",
            "attention": {"part": "multihead", "n_heads": 8, "qk_norm": "head", "value_residual": True},
            "short_conv": "token_shift",
            "ffn": "swiglu",
            "norm": "rmsnorm",
            "residual": "pre",
            # to drop the last zero of 1.25 + 2.25 the model must know the tenths at once, so predicting the second token
            # together with the first helps. It starts later because it would slow early learning
            "mtp": {"part": "heads", "start_fraction": 0.2},
            "init": {"part": "gpt2", "zero_output": True},
            # forms such as 1.5 + 2.25 and 1.25 + 2.75 are rare among all problems and learned last
            "data": {
                "part": "arithmetic",
                "aligned": True,
                "answer_only_loss": True,
                "form_balance": 1.0,
                "train": 1_000_000,
                "validation": 500,
            },
            # with 32 problems per step, a plateau with correct lengths but wrong digits lasts far longer
            "train": {"lr": 0.005, "batch_size": 96, "steps": 3200, "grad_clip": 1.0, "eval_every": 800},
            "optimizer": {"part": "muon", "momentum": 0.9, "adamw_lr_ratio": 2.0, "beta2": 0.95},
            "schedule": {"part": "linear", "warmup": 50},
        },
    ),
}
