"""Models that calculate."""

from partwise.presets.preset import Preset

CALCULATORS: dict[str, Preset] = {
    "calculator": Preset(
        "learns arithmetic: whole problems, loss on the answers, token shift, QK-norm, SwiGLU, Muon",
        {
            "d_model": 96,
            "n_layers": 4,
            "max_len": 36,
            # problems stand at fixed places: here a table of positions learns faster than rotary ones
            "positions": "learned",
            "attention": {"part": "multihead", "n_heads": 4, "qk_norm": "head"},
            "mixing": "shift",
            "ffn": "swiglu",
            "norm": "rmsnorm",
            "residual": "pre",
            "init": {"part": "gpt2", "zero_output": True},
            # the validation loss, of questions and all, says little about answers: few problems are enough for it
            "data": {"part": "arithmetic", "aligned": True, "loss_on": "answer", "train": 1_000_000, "validation": 500},
            "train": {"lr": 0.005, "batch_size": 32, "steps": 6000, "clip": 1.0, "eval_every": 2000},
            "optimizer": {"part": "muon", "momentum": 0.9, "adam_factor": 2.0, "beta2": 0.95},
            "schedule": {"part": "linear", "warmup": 50},
        },
    ),
}
