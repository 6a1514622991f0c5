"""Models that calculate."""

from partwise.presets.preset import Preset

CALCULATORS: dict[str, Preset] = {
    "calculator": Preset(
        "learns arithmetic: whole problems, rare forms more often, loss on the answers, a token ahead, token shift, Muon",
        {
            "d_model": 96,
            "n_layers": 4,
            "context_length": 36,
            # problems stand at fixed places: here a table of positions learns faster than rotary ones
            "positions": "learned",
            "attention": {"part": "multihead", "n_heads": 8, "qk_norm": "head", "value_residual": True},
            "short_conv": "token_shift",
            "ffn": "swiglu",
            "norm": "rmsnorm",
            "residual": "pre",
            # to drop a last zero, 1.25 + 2.25 needs the tenths at once: what comes second is worked out beside what comes
            # first. From the beginning on it holds up what is learned before that
            "mtp": {"part": "heads", "start_fraction": 0.2},
            "init": {"part": "gpt2", "zero_output": True},
            # 1.5 + 2.25 and 1.25 + 2.75, say, are rare among all problems, and learnt last
            "data": {
                "part": "arithmetic",
                "aligned": True,
                "answer_only_loss": True,
                "form_balance": 1.0,
                "train": 1_000_000,
                "validation": 500,
            },
            # with 32 problems a step a plateau, on which lengths are right and digits are wrong, is left far later
            "train": {"lr": 0.005, "batch_size": 96, "steps": 3200, "grad_clip": 1.0, "eval_every": 800},
            "optimizer": {"part": "muon", "momentum": 0.9, "adamw_lr_ratio": 2.0, "beta2": 0.95},
            "schedule": {"part": "linear", "warmup": 50},
        },
    ),
}
