"""Training steps with a wheel's kernels against those compiled here: `prebuilt_kernels.py build/wheels/linux-x86_64`.

Each variant that this CPU runs has a process of its own; they take turns. A ratio above 1 means that the wheel's is slower.
Variants below the CPU's own are compared with a native build for their instructions (`CXX="c++ -march=x86-64-v3"`).
With `--cpu-seconds` a step has one thread and is measured by its CPU seconds, which other processes change less.
"""

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from measuring import benchmark_parser

MODELS = {"demo": ["mingpt", "d_model=64", "n_layers=2", "attention.n_heads=4", "context_length=64"]}
MODELS |= {"width 256": ["llama3", "d_model=256", "n_layers=4", "ffn.hidden=704", "context_length=128"]}
NATIVE = {"avx2": "-march=x86-64-v3", "avx512": "-march=x86-64-v4", "avx512_bf16": "-march=x86-64-v4 -mavx512bf16"}
STEPS = 5


def serve(folder: str, model: str, clock: str) -> None:
    """Run a block of steps for each line of the input, and print its seconds."""
    from partwise.kernels import prebuilt

    if folder != "native":
        prebuilt.FOLDER = Path(folder).resolve()
    import torch

    import partwise
    from partwise.compute.backend_plan import plan_config
    from partwise.compute.runtime import DefaultSettings, choose_runtime, has_fast_bfloat16

    fast = has_fast_bfloat16("cpu") and os.environ.get("PARTWISE_KERNELS", "avx512_bf16") in ("avx512_bf16", "amx")
    runtime = choose_runtime(DefaultSettings(precision="bfloat16" if fast else "float32"))
    runtime.set_threads()
    preset, *words = MODELS[model]
    config = partwise.preset(preset, *words, vocab_size=65)
    network = partwise.Transformer(config).train()
    plan_config(config, runtime).apply(network)
    tokens = torch.randint(65, (12, config.context_length), generator=torch.Generator().manual_seed(0))
    for _ in sys.stdin:
        started = getattr(time, clock)()
        for _ in range(STEPS):
            with torch.autocast("cpu", torch.bfloat16, enabled=runtime.precision == "bfloat16"):
                network(tokens).float().logsumexp(-1).mean().backward()
        print(getattr(time, clock)() - started, flush=True)


def start(folder: str, variant: str, model: str, cpu_seconds: bool) -> "subprocess.Popen[str]":
    environment = {**os.environ, "PARTWISE_KERNELS": variant}
    if cpu_seconds:
        environment["OMP_NUM_THREADS"] = "1"
    if folder == "native" and variant in NATIVE:
        environment["CXX"] = f"c++ {NATIVE[variant]}"
    command = [sys.executable, __file__, "--serve", folder, model, "process_time" if cpu_seconds else "perf_counter"]
    return subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def block(process: "subprocess.Popen[str]") -> float:
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    return float(process.stdout.readline())


def main() -> None:
    parser = benchmark_parser(__doc__, rounds=15)
    parser.add_argument("folder", type=Path, help="the kernels of one platform, by `make wheels`")
    parser.add_argument("--cpu-seconds", action="store_true", help="one thread, by its CPU seconds")
    parser.add_argument("--variants", nargs="*", help="default: all that this CPU runs")
    options = parser.parse_args()
    from partwise.kernels import prebuilt

    prebuilt.FOLDER = options.folder
    found = prebuilt.wheel()
    assert found is not None
    best, *lower = [each.name for each in found.usable()]
    NATIVE.pop(best, None)  # compiled for this CPU
    for variant in options.variants or [best, *lower]:
        for model in MODELS:
            native, ours = (
                start(name, variant, model, options.cpu_seconds) for name in ("native", str(options.folder))
            )
            for process in (native, ours):
                block(process)
            pairs = [(block(native), block(ours)) for _ in range(options.rounds)]
            ratios = sorted(b / a for a, b in pairs)
            times = [1000 * statistics.median(each) / STEPS for each in zip(*pairs, strict=True)]
            middle, low, high = statistics.median(ratios), ratios[len(ratios) // 4], ratios[3 * len(ratios) // 4]
            print(
                f"{variant}, {model}: the wheel's step takes {middle:.3f} times the native one's (quartiles {low:.3f} to "
                f"{high:.3f}; {times[1]:.2f} and {times[0]:.2f} ms)",
                flush=True,
            )
            for process in (native, ours):
                process.communicate()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(*sys.argv[2:])
    else:
        main()
