"""Training rates with whole blocks in C++ and with their layers one by one, in float32: `python benchmarks/block_width.py`.

Above a width, torch's matmuls are faster on a CPU without AVX-512; `compute/backends/block.py` holds that width. The two
alternate in one process; a ratio above 1 means that the layers are faster.
"""

import partwise
from partwise.compute.backend_plan import plan_config
from partwise.compute.runtime import DefaultSettings, choose_runtime
from partwise.compute.timing import training_times

MODELS = (
    ("mingpt", "d_model=128"),
    ("llama3", "d_model=128"),
    ("qwen3", "d_model=128"),
    ("mingpt", "d_model=192", "attention.n_heads=6"),
    ("llama3", "d_model=192", "attention.n_heads=6", "attention.n_kv_heads=6", "ffn.hidden=512"),
    ("llama3", "d_model=256", "ffn.hidden=688"),
    ("shakespeare",),
    ("mingpt", "d_model=384", "attention.n_heads=6"),
    ("llama3", "d_model=384", "attention.n_heads=6", "attention.n_kv_heads=6", "ffn.hidden=1024"),
)


def main() -> None:
    runtime = choose_runtime(DefaultSettings(precision="float32"))
    for preset, *overrides in MODELS:
        config = partwise.preset(preset, *overrides, "n_layers=4", "context_length=128")
        plans = {name: plan_config(config, runtime, {"block": name}) for name in ("cpp", "eager")}
        times = training_times(config, plans, runtime, 8)
        print(
            f"{preset} {' '.join(overrides)}: layers {times['cpp'].step / times['eager'].step:.2f} times the rate of blocks"
        )


if __name__ == "__main__":
    main()
