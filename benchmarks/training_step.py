"""One training step at equal shape: partwise against nanoGPT, transformers, x-transformers and litgpt.

    python benchmarks/training_step.py [--shape seed|cpu-recipe|width-384|gpt2-124m] [ffn=swiglu ...]
                                       [--nanogpt FOLDER] [--litgpt PYTHON] [--rounds 21] [--threads 2] [--json FILE]
                                       [--peers-in-bfloat16]
    python benchmarks/training_step.py --variants      one part after another at the seed's shape

Each peer runs in a process of its own with the C library's own memory settings, as its users run it; ours here, with
those that training gives a process. They take turns of several steps in a row, a quarter of a second or so after a step
that does not count, since whoever begins finds the caches as the other left them, which is not what training is like.

A peer is first tried in each of its settings, a few turns with ours; then the fastest of all takes turns with ours for
`--rounds` rounds. A ratio is that of a round's mean steps, so that whatever else the machine does falls on both alike;
its median and range are printed. partwise steps by the choices that it makes for the machine.
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
from measuring import Row, Step, in_a_row, ratios, take_turns, time_in_turn, write_rows
from peer_process import PeerProcess, settings
from peers import LEARNING_RATE, PEERS, Setting, updating
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.nn import functional as F
from training_variants import measure_variants

import partwise
from partwise.compute.runtime import Runtime, choose_runtime
from partwise.inspection.cost import compute_costs
from partwise.kernels.malloc import keep_freed_memory
from partwise.train.config import TrainConfig
from partwise.train.cross_entropy import summed_cross_entropy
from partwise.train.optimizers import AdamW

SIZES = ("layers", "width", "heads", "batch", "context", "vocab")
TRIAL_ROUNDS = (2, 5)  # of a setting: as many as TRIAL_SECONDS allow, within these
TRIAL_SECONDS = 15.0
GOAL = "training step"
SIDE = 2048  # of the matrices whose product tells what the machine can do


@dataclass(frozen=True)
class Shape:
    """Sizes in the order of SIZES, how many times the best peer's rate is wanted, and what the model is made of."""

    sizes: tuple[int, int, int, int, int, int]
    wanted: float
    words: tuple[str, ...] = (
        "attention.out_bias=false",
        "ffn=gelu",
        "tie_embeddings=true",
        "head_bias=false",
        "init=gpt2",
    )
    share: float | None = None  # wanted of the machine's rate of matrix products


SHAPES = {
    "seed": Shape((8, 96, 8, 16, 128, 65), 5.0, ()),  # as `mingpt` is: ReLU, an own head
    "cpu-recipe": Shape((4, 128, 4, 12, 64, 65), 4.0),  # the others as nanoGPT trains them
    "width-384": Shape((6, 384, 6, 16, 256, 65), 2.0, share=0.5),
    "gpt2-124m": Shape((12, 768, 12, 2, 512, 50257), 1.5, share=0.5),
}


def main() -> None:
    options = parse_options()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    tokens = torch.randint(options.vocab, (options.batch, options.context + 1))
    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    runtime = choose_runtime(
        TrainConfig(
            precision=options.precision,
            attention_backend=options.attention_backend,
            ffn_backend=options.ffn_backend,
            block_backend=options.block_backend,
            device="cpu",
        )
    )
    if options.variants:
        rows = measure_variants(options, runtime, inputs, targets, partwise_step)
        tried: dict[str, object] = {}
    else:
        with compiled_anew():
            rows, tried = measure_shape(options, runtime, inputs, targets)
    show(rows, options, runtime)
    write_rows(options.json, rows, rounds=options.rounds, runtime=runtime.to_dict(), **tried)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("overrides", nargs="*", help="changes of partwise's model, such as ffn=swiglu")
    parser.add_argument("--shape", runtime=SHAPES, default="seed")
    parser.add_argument("--variants", action="store_true", help="one part after another at the seed's shape")
    parser.add_argument("--nanogpt", type=Path, help="a checkout's folder, which holds model.py")
    parser.add_argument("--litgpt", type=Path, help="the Python of an environment with litgpt")
    parser.add_argument(
        "--peers-in-bfloat16", action="store_true", help="try no other settings of peers: half the time"
    )
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--precision", choices=["auto", "float32", "bfloat16"], default="auto")
    parser.add_argument("--attention-backend", choices=["auto", "eager", "sdpa", "cpp"], default="auto")
    parser.add_argument("--ffn-backend", choices=["auto", "eager", "cpp"], default="auto")
    parser.add_argument("--block-backend", choices=["auto", "eager", "cpp"], default="auto")
    parser.add_argument("--json", type=Path)
    for name in SIZES:
        parser.add_argument(f"--{name}", type=int)
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error(f"--rounds {options.rounds}: give at least 1")
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
    options.tied = bool(shape.words)
    options.what = ", ".join([options.shape, *changed])
    options.wanted = None if changed else shape.wanted
    return options


def partwise_config(options: argparse.Namespace) -> partwise.ModelConfig:
    shape = [f"n_layers={options.layers}", f"d_model={options.width}", f"context_length={options.context}"]
    words = [*shape, f"attention.n_heads={options.heads}", *options.overrides]
    return partwise.preset("mingpt", *words, vocab_size=options.vocab)


def partwise_step(options: argparse.Namespace, runtime: Runtime, inputs: Tensor, targets: Tensor) -> Step:
    model = partwise.Transformer(partwise_config(options))
    model.use_backend(runtime.attention_backend, runtime.ffn_backend, runtime.block_backend)
    keep_freed_memory()  # as training does
    optimizer = AdamW().build(model, LEARNING_RATE)

    def forward() -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=runtime.precision == "bfloat16"):
            logits = model(inputs)
        if logits.dtype == torch.bfloat16:  # as training does
            total = summed_cross_entropy(logits.flatten(0, 1), targets.flatten(), cpp=runtime.compiled)
            return total / targets.numel()
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())

    return updating(forward, optimizer)


def measure_shape(
    options: argparse.Namespace, runtime: Runtime, inputs: Tensor, targets: Tensor
) -> tuple[list[Row], dict[str, object]]:
    """The row of a shape, and of the share of the machine's rate; and how long each peer took in each setting."""
    trials: dict[str, dict[Setting, float]] = {}
    missing = {}
    for peer in PEERS:
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
        seconds = time_in_turn(steps, options.rounds)
    tokens = options.batch * options.context
    speed = tokens / statistics.median(seconds["ours"])
    peers: dict[str, float | None] = dict.fromkeys(missing)
    for name, tried in trials.items():
        best = min(tried, key=lambda setting: tried[setting])
        peers |= {f"{name} ({each})": speed / tried[each] for each in (Setting(), best) if each in tried}
    row = {"goal": GOAL, "what": options.what, "ours": speed, "unit": "tokens/s", "wanted": options.wanted}
    if rivals:
        peers[f"{peer} ({setting})"] = tokens / statistics.median(seconds["theirs"])
        rows: list[Row] = [{**row, "peers": peers, **ratios(seconds["theirs"], seconds["ours"])}]
    else:
        rows = [{**row, "peers": peers, "ratio": None, "low": None, "high": None}]
    rows.append(measure_share(ours, options, runtime))
    tried_settings = {name: {str(key): value for key, value in tried.items()} for name, tried in trials.items()}
    return rows, {"times_ours": tried_settings, "missing": missing}


@contextlib.contextmanager
def compiled_anew() -> Iterator[None]:
    """What torch.compile leaves goes when we go: a file that a stopped run left half written would fail every later one."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
        yield


def try_settings(
    peer: str, options: argparse.Namespace, runtime: Runtime, inputs: Tensor, targets: Tensor
) -> dict[Setting, float]:
    """How many times ours each setting's step takes, over a few rounds. Raises ImportError where the peer is missing."""
    fewest, most = TRIAL_ROUNDS
    found = {}
    for setting in settings(PEERS[peer][1]):
        if options.peers_in_bfloat16 and not setting.bfloat16:
            continue
        # anew, since one that knows its batch by heart learns no more
        ours = partwise_step(options, runtime, inputs, targets)
        try:
            with PeerProcess(peer, options, inputs, targets, setting) as theirs:
                steps: dict[str, Step] = {"ours": ours, "theirs": theirs}
                seconds = time_in_turn(steps, most, warm_up=2, fewest=fewest, within=TRIAL_SECONDS)
            found[setting] = ratios(seconds["theirs"], seconds["ours"])["ratio"]
            print(f"{peer} ({setting}): {found[setting]:.2f} times our time", flush=True)
        except Exception as error:  # a setting that cannot be built, compiled, or in time, leaves the others
            reason = " ".join(str(error).split())[:150] or type(error).__name__
            print(f"{peer} ({setting}): left out: {reason}", flush=True)
    if not found:
        raise ImportError(f"none of its settings worked; the last: {reason}")
    return found


def measure_share(ours: Step, options: argparse.Namespace, runtime: Runtime) -> Row:
    """Which share of the rate of a large matrix product our steps reach, in turn with it; causal work counted only."""
    dtype = torch.bfloat16 if runtime.precision == "bfloat16" else torch.float32
    a, b = torch.randn(SIDE, SIDE, dtype=dtype), torch.randn(SIDE, SIDE, dtype=dtype)

    def product(count: int = 1) -> None:
        for _ in range(count):
            torch.mm(a, b)

    steps: dict[str, Callable[..., object]] = {"ours": ours, "product": product}
    seconds = take_turns(steps, options.rounds, in_a_row(take_turns(steps, 2)))
    square = 4 * options.context * options.width * options.layers  # of the scores, of which half is masked
    forward = compute_costs(partwise_config(options))[-1].flops - square / 2
    work = 3 * forward * options.batch * options.context / (2 * SIDE**3)  # in products
    within = ratios([work * time for time in seconds["product"]], seconds["ours"])
    rate = 2 * SIDE**3 / statistics.median(seconds["product"])
    return {
        "goal": GOAL,
        "what": f"{options.what}: share of the rate of {runtime.precision} matrix products",
        "ours": within["ratio"],
        "unit": f"of {rate / 1e9:.0f} GFLOP/s",
        "peers": {},
        "wanted": SHAPES[options.shape].share if options.wanted else None,
        **within,
    }


def show(rows: list[Row], options: argparse.Namespace, runtime: Runtime) -> None:
    sizes = f"{options.layers} layers, {options.width} wide, {options.heads} heads, {options.batch} x {options.context}"
    table = Table(title=f"One training step: {sizes}")
    for column in ("", "figure", "partwise is", "min to max"):
        table.add_column(column, justify="right" if column else "left")
    for row in rows:
        ours = f"{row['ours']:.2f}" if row["ours"] < 10 else f"{row['ours']:,.0f}"
        ratio = (
            ("", "") if row["ratio"] is None else (f"{row['ratio']:.2f} x", f"{row['low']:.2f} to {row['high']:.2f}")
        )
        table.add_row(row["what"], f"{ours} {row['unit']}", *ratio)
        for name, figure in row["peers"].items():
            table.add_row(f"  {name}", "missing" if figure is None else f"{figure:,.0f}")
    console = Console()
    console.print(table)
    console.print(
        f"{options.rounds} rounds in turn, {options.threads} threads, {runtime.precision}, attention by "
        f"{runtime.attention_backend}, perceptrons by {runtime.ffn_backend}, blocks by {runtime.block_backend}, torch "
        f"{torch.__version__}"
    )


if __name__ == "__main__":
    main()
