"""One training step at equal shape: partwise against nanoGPT, transformers, x-transformers and litgpt.

    python benchmarks/training_step.py [--shape seed|cpu-recipe|width-384|gpt2-124m] [ffn=swiglu ...]
                                       [--nanogpt FOLDER] [--litgpt PYTHON] [--rounds 21] [--threads 2] [--json FILE]
                                       [--peers-in-bfloat16]
    python benchmarks/training_step.py --variants      one part at a time at the seed shape

Each peer runs in its own process with the C library's default memory settings, as for its users; ours runs here, with
the memory settings of training. They alternate in blocks of several steps, about a quarter of a second, after an untimed
step, because the first step of a block finds the CPU caches filled by the other, unlike in training.

Each setting of a peer is first tried for a few rounds; then the fastest of all alternates with ours for `--rounds`
rounds. A ratio compares the mean steps of a round, so that other load on the machine affects both; its median and range
are printed. partwise uses the runtime settings that it chooses for the machine.
"""

import argparse
import contextlib
import os
import statistics
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from measuring import (
    Row,
    Step,
    alternate,
    benchmark_parser,
    ratios,
    repeated,
    show_rows,
    steps_per_block,
    time_alternating,
    write_rows,
)
from peer_process import PeerProcess, settings
from peers import LEARNING_RATE, PEERS, Setting, updating
from torch import Tensor
from torch.nn import functional as F
from training_variants import measure_variants

import partwise
from partwise.compute.backend_plan import apply_backends
from partwise.compute.runtime import Runtime, choose_runtime
from partwise.inspection.cost import compute_costs
from partwise.kernels.malloc import keep_freed_memory
from partwise.train.config import TrainConfig
from partwise.train.cross_entropy import summed_cross_entropy
from partwise.train.optimizers import AdamW

SIZES = ("layers", "width", "heads", "batch", "context", "vocab")
TRIAL_ROUNDS = (2, 5)  # minimum and maximum rounds per setting; TRIAL_SECONDS decides in between
TRIAL_SECONDS = 15.0
GOAL = "training step"
SIDE = 2048  # side of the square matrices whose matmul measures the machine's peak FLOP/s


@dataclass(frozen=True)
class Shape:
    """Sizes in the order of SIZES, the target ratio to the best peer, and overrides of the model."""

    sizes: tuple[int, int, int, int, int, int]
    target: float
    words: tuple[str, ...] = (
        "attention.out_bias=false",
        "ffn=gelu",
        "tie_embeddings=true",
        "head_bias=false",
        "init=gpt2",
    )
    fraction: float | None = None  # the target fraction of the peak matmul FLOP/s


SHAPES = {
    "seed": Shape((8, 96, 8, 16, 128, 65), 5.0, ()),  # `mingpt`: ReLU, untied head
    "cpu-recipe": Shape((4, 128, 4, 12, 64, 65), 4.0),  # the others as in nanoGPT
    "width-384": Shape((6, 384, 6, 16, 256, 65), 2.0, fraction=0.5),
    "gpt2-124m": Shape((12, 768, 12, 2, 512, 50257), 1.5, fraction=0.5),
}


def main() -> None:
    options = parse_options()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    tokens = torch.randint(options.vocab, (options.batch, options.context + 1))
    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    runtime = choose_runtime(TrainConfig(precision=options.precision, device="cpu"))
    options.backends = {kind: getattr(options, f"{kind}_backend") for kind in ("attention", "ffn", "block")}
    if options.variants:
        rows = measure_variants(options, runtime, inputs, targets, partwise_step)
        tried: dict[str, object] = {}
    else:
        with temporary_compile_cache():
            rows, tried = measure_shape(options, runtime, inputs, targets)
    show(rows, options, runtime)
    write_rows(options.json, rows, rounds=options.rounds, runtime=runtime.to_dict(), **tried)


def parse_options() -> argparse.Namespace:
    parser = benchmark_parser(__doc__, rounds=21, threads=torch.get_num_threads())
    parser.add_argument("overrides", nargs="*", help="overrides of partwise's model, such as ffn=swiglu")
    parser.add_argument("--shape", choices=SHAPES, default="seed")
    parser.add_argument("--variants", action="store_true", help="one part at a time at the seed shape")
    parser.add_argument("--nanogpt", type=Path, help="folder of a nanoGPT checkout, with model.py")
    parser.add_argument("--litgpt", type=Path, help="Python executable of an environment with litgpt")
    parser.add_argument(
        "--peers-in-bfloat16", action="store_true", help="try only bfloat16 settings of peers: half the time"
    )
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=list(PEERS), help="only these")
    parser.add_argument("--precision", choices=["auto", "float32", "bfloat16"], default="auto")
    parser.add_argument("--attention-backend", choices=["auto", "eager", "sdpa", "cpp"], default="auto")
    parser.add_argument("--ffn-backend", choices=["auto", "eager", "cpp"], default="auto")
    parser.add_argument("--block-backend", choices=["auto", "eager", "cpp"], default="auto")
    for name in SIZES:
        parser.add_argument(f"--{name}", type=int)
    options = parser.parse_args()
    if options.nanogpt and not (options.nanogpt / "model.py").is_file():
        parser.error(f"--nanogpt {options.nanogpt}: no model.py there; give the folder of a nanoGPT checkout")
    shape = SHAPES[options.shape]
    changed = list(options.overrides)
    for name, size in zip(SIZES, shape.sizes, strict=True):
        if getattr(options, name) is None:
            setattr(options, name, size)
        else:
            changed.append(f"{name} {getattr(options, name)}")
    options.overrides = [*shape.words, *options.overrides]
    options.tie_embeddings = bool(shape.words)
    options.what = ", ".join([options.shape, *changed])
    options.target = None if changed else shape.target
    return options


def partwise_config(options: argparse.Namespace) -> partwise.ModelConfig:
    shape = [f"n_layers={options.layers}", f"d_model={options.width}", f"context_length={options.context}"]
    words = [*shape, f"attention.n_heads={options.heads}", *options.overrides]
    return partwise.preset("mingpt", *words, vocab_size=options.vocab)


def partwise_step(options: argparse.Namespace, runtime: Runtime, inputs: Tensor, targets: Tensor) -> Step:
    model = partwise.Transformer(partwise_config(options))
    apply_backends(model, runtime, options.backends, inputs.shape[1])
    keep_freed_memory()  # as in training
    optimizer = AdamW().build(model, LEARNING_RATE)

    def forward() -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=runtime.precision == "bfloat16"):
            logits = model(inputs)
        if logits.dtype == torch.bfloat16:  # as in training
            total = summed_cross_entropy(logits.flatten(0, 1), targets.flatten(), cpp=runtime.kernels)
            return total / targets.numel()
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())

    return updating(forward, optimizer)


def measure_shape(
    options: argparse.Namespace, runtime: Runtime, inputs: Tensor, targets: Tensor
) -> tuple[list[Row], dict[str, object]]:
    """The rows of a shape and of the fraction of peak FLOP/s, and the time of each peer in each setting."""
    trials: dict[str, dict[Setting, float]] = {}
    missing = {}
    for peer in options.peers:
        try:
            trials[peer] = try_settings(peer, options, runtime, inputs, targets)
        except ImportError as error:
            missing[peer] = str(error)
            print(f"{peer} is missing: {error}", flush=True)
    rivals = {(peer, setting): times for peer, tried in trials.items() for setting, times in tried.items()}
    ours = partwise_step(options, runtime, inputs, targets)
    steps: dict[str, Step] = {"ours": ours}
    with contextlib.ExitStack() as stack:
        if rivals:
            peer, setting = min(rivals, key=lambda key: rivals[key])
            steps["theirs"] = stack.enter_context(PeerProcess(peer, options, inputs, targets, setting))
        seconds = time_alternating(steps, options.rounds)
    tokens = options.batch * options.context
    speed = tokens / statistics.median(seconds["ours"])
    peers: dict[str, float | None] = dict.fromkeys(missing)
    for name, tried in trials.items():
        best = min(tried, key=lambda setting: tried[setting])
        peers |= {f"{name} ({each})": speed / tried[each] for each in (Setting(), best) if each in tried}
    row = {"goal": GOAL, "what": options.what, "ours": speed, "unit": "tokens/s", "target": options.target}
    if rivals:
        peers[f"{peer} ({setting})"] = tokens / statistics.median(seconds["theirs"])
        rows: list[Row] = [{**row, "peers": peers, **ratios(seconds["theirs"], seconds["ours"])}]
    else:
        rows = [{**row, "peers": peers, "ratio": None, "low": None, "high": None}]
    rows.append(measure_fraction(ours, options, runtime))
    tried_settings = {name: {str(key): value for key, value in tried.items()} for name, tried in trials.items()}
    return rows, {"times_ours": tried_settings, "missing": missing}


@contextlib.contextmanager
def temporary_compile_cache() -> Iterator[None]:
    """Use a temporary torch.compile cache: a file left half-written by a killed run would fail every later run."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
        yield


def try_settings(
    peer: str, options: argparse.Namespace, runtime: Runtime, inputs: Tensor, targets: Tensor
) -> dict[Setting, float]:
    """Each setting's time relative to ours, over a few rounds. Raises ImportError if the peer is missing."""
    fewest, most = TRIAL_ROUNDS
    times = {}
    for setting in settings(PEERS[peer][1]):
        if options.peers_in_bfloat16 and not setting.bfloat16:
            continue
        # a new model, since the loss of one that has memorized the batch no longer decreases
        ours = partwise_step(options, runtime, inputs, targets)
        try:
            with PeerProcess(peer, options, inputs, targets, setting) as theirs:
                steps: dict[str, Step] = {"ours": ours, "theirs": theirs}
                seconds = time_alternating(steps, most, warmup=2, fewest=fewest, within=TRIAL_SECONDS)
            times[setting] = ratios(seconds["theirs"], seconds["ours"])["ratio"]
            print(f"{peer} ({setting}): {times[setting]:.2f} times our time", flush=True)
        except Exception as error:  # skip a setting that does not build or compile, or takes too long
            reason = " ".join(str(error).split())[:150] or type(error).__name__
            print(f"{peer} ({setting}): skipped: {reason}", flush=True)
    if not times:
        raise ImportError(f"all of its settings failed; the last: {reason}")
    return times


def measure_fraction(ours: Step, options: argparse.Namespace, runtime: Runtime) -> Row:
    """Our steps' FLOP/s as a fraction of a large matmul's, alternating with it; counts only causal work."""
    dtype = torch.bfloat16 if runtime.precision == "bfloat16" else torch.float32
    a, b = torch.randn(SIDE, SIDE, dtype=dtype), torch.randn(SIDE, SIDE, dtype=dtype)
    steps: dict[str, Callable[..., object]] = {"ours": ours, "matmul": repeated(lambda: torch.mm(a, b))}
    seconds = alternate(steps, options.rounds, steps_per_block(alternate(steps, 2)))
    full_scores = 4 * options.context * options.width * options.layers  # FLOPs of attention scores; half is masked
    forward = compute_costs(partwise_config(options))[-1].flops - full_scores / 2
    work = 3 * forward * options.batch * options.context / (2 * SIDE**3)  # in units of the matmul
    within = ratios([work * time for time in seconds["matmul"]], seconds["ours"])
    rate = 2 * SIDE**3 / statistics.median(seconds["matmul"])
    return {
        "goal": GOAL,
        "what": f"{options.what}: fraction of peak {runtime.precision} matmul FLOP/s",
        "ours": within["ratio"],
        "unit": f"of {rate / 1e9:.0f} GFLOP/s",
        "peers": {},
        "target": SHAPES[options.shape].fraction if options.target else None,
        **within,
    }


def show(rows: list[Row], options: argparse.Namespace, runtime: Runtime) -> None:
    sizes = f"{options.layers} layers, {options.width} wide, {options.heads} heads, {options.batch} x {options.context}"
    kernels = "C++ kernels" if runtime.kernels else "no C++ kernels"
    conditions = f"{options.rounds} alternating rounds, {options.threads} threads, {runtime.precision}, {kernels}"
    show_rows(f"One training step: {sizes}", rows, f"{conditions}, torch {torch.__version__}")


if __name__ == "__main__":
    main()
