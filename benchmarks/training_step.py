"""One training step at equal shape: partwise against Hugging Face's GPT-2 and, given a checkout, against nanoGPT.

    python benchmarks/training_step.py [ffn=swiglu ...] [--nanogpt PATH] [--rounds 15] [--threads 2] [--json FILE]

All stand in one process and take their steps in turn, so that whatever else the machine does falls on each alike; the
ratio is taken within a round, and its median and range over the rounds are printed. Each steps as its own project does:
the others in float32 with their own defaults, partwise by the choices that it makes for the machine.
"""

import argparse
import contextlib
import importlib.util
import io
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.nn import functional as F

import partwise
from partwise.train.choices import Choices, choose, machine
from partwise.train.settings import TrainConfig

WARM_UP = 3
LEARNING_RATE = 3e-4
Step = Callable[[], Tensor]
"""Forward, backward and update on one batch; returns the loss before the update."""


def main() -> None:
    options = parse_options()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    tokens = torch.randint(options.vocab, (options.batch, options.context + 1))
    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    choices = choose(
        TrainConfig(
            precision=options.precision, attention_path=options.attention_path, ffn_path=options.ffn_path, device="cpu"
        )
    )
    ours = {f"partwise ({choices.precision}, {choices.attention_path}, {choices.ffn_path})": choices}
    label = next(iter(ours))
    if choices.ffn_path == "kernel":  # the same with torch's perceptrons, in turn with ours
        ours[f"partwise ({choices.precision}, {choices.attention_path}, torch)"] = replace(choices, ffn_path="torch")
    steps: dict[str, Step] = {name: partwise_step(options, each, inputs, targets) for name, each in ours.items()}
    if options.nanogpt:
        steps["nanoGPT (float32)"] = nanogpt_step(options, inputs, targets)
    with contextlib.suppress(ImportError):
        steps["transformers GPT-2 (float32)"] = transformers_step(options, inputs, targets)

    seconds = time_in_turn(steps, options.rounds)
    rows = summarize(label, seconds, options.batch * options.context)
    show(rows, options)
    if options.json:
        shape = {key: getattr(options, key) for key in ("layers", "width", "heads", "batch", "context", "vocab")}
        result = {"shape": shape, "rounds": options.rounds, "threads": options.threads, "machine": machine()}
        options.json.write_text(json.dumps({**result, "steps": rows}, indent=1) + "\n", encoding="utf-8")


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("overrides", nargs="*", help="changes of partwise's model, such as ffn=swiglu")
    parser.add_argument("--nanogpt", type=Path, help="a checkout's folder, which holds model.py")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--precision", choices=["auto", "float32", "bfloat16"], default="auto")
    parser.add_argument("--attention-path", choices=["auto", "products", "fused", "kernel"], default="auto")
    parser.add_argument("--ffn-path", choices=["auto", "torch", "kernel"], default="auto")
    parser.add_argument("--json", type=Path)
    for name, default in (("layers", 8), ("width", 96), ("heads", 8), ("batch", 16), ("context", 128), ("vocab", 65)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error(f"--rounds {options.rounds}: give at least 1")
    if options.nanogpt and not (options.nanogpt / "model.py").is_file():
        parser.error(f"--nanogpt {options.nanogpt}: no model.py there; give the folder of a nanoGPT checkout")
    return options


def partwise_step(options: argparse.Namespace, choices: Choices, inputs: Tensor, targets: Tensor) -> Step:
    shape = [f"n_layers={options.layers}", f"d_model={options.width}", f"max_len={options.context}"]
    words = [*shape, f"attention.n_heads={options.heads}", *options.overrides]
    config = partwise.preset("mingpt", *words, vocab_size=options.vocab)
    model = partwise.Transformer(config)
    model.use_path(choices.attention_path, choices.ffn_path)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, fused=True)

    def forward() -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=choices.precision == "bfloat16"):
            logits = model(inputs)
        return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())

    return updating(forward, optimizer)


def nanogpt_step(options: argparse.Namespace, inputs: Tensor, targets: Tensor) -> Step:
    """nanoGPT's own model, loss and optimizer, imported from its checkout."""
    spec = importlib.util.spec_from_file_location("nanogpt_model", options.nanogpt / "model.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclass looks itself up there
    spec.loader.exec_module(module)
    config = module.GPTConfig(
        n_layer=options.layers,
        n_embd=options.width,
        n_head=options.heads,
        block_size=options.context,
        vocab_size=options.vocab,
        dropout=0.0,
    )
    with contextlib.redirect_stdout(io.StringIO()):  # it reports its parameter counts
        model = module.GPT(config)
        optimizer = model.configure_optimizers(0.1, LEARNING_RATE, (0.9, 0.95), "cpu")
    return updating(lambda: model(inputs, targets)[1], optimizer)


def transformers_step(options: argparse.Namespace, inputs: Tensor, targets: Tensor) -> Step:
    """GPT-2 as Hugging Face builds it, with torch's AdamW by its defaults. Raises ImportError without the package."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_layer=options.layers,
        n_embd=options.width,
        n_head=options.heads,
        n_positions=options.context,
        vocab_size=options.vocab,
        bos_token_id=0,
        eos_token_id=0,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        use_cache=False,
    )
    model: Any = GPT2LMHeadModel(config)

    def forward() -> Tensor:
        logits = model(input_ids=inputs).logits
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())

    return updating(forward, torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE))


def updating(forward: Callable[[], Tensor], optimizer: torch.optim.Optimizer) -> Step:
    def step() -> Tensor:
        loss = forward()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


def time_in_turn(steps: dict[str, Step], rounds: int) -> dict[str, list[float]]:
    """Seconds of every step of every round. Raises RuntimeError if one of them does not learn its batch."""
    first = {name: float(step()) for name, step in steps.items()}
    for _ in range(WARM_UP):
        for step in steps.values():
            step()
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    names = list(steps)
    for turn in range(rounds):
        shift = turn % len(names)  # nobody always runs in the cache that the same neighbour left behind
        for name in names[shift:] + names[:shift]:
            began = time.perf_counter()
            steps[name]()
            seconds[name].append(time.perf_counter() - began)
    for name, step in steps.items():
        last = float(step())
        if not last < first[name]:
            raise RuntimeError(f"{name}: the loss went from {first[name]:.4f} to {last:.4f}: this is no training step")
    return seconds


def summarize(label: str, seconds: dict[str, list[float]], tokens: int) -> list[dict[str, Any]]:
    """One row per model; `ratio` is how many times as fast as it partwise is, taken within each round."""
    rows = []
    for name, times in seconds.items():
        ratios = [theirs / ours for theirs, ours in zip(times, seconds[label], strict=True)]
        median = statistics.median(times)
        rows.append(
            {
                "name": name,
                "milliseconds": 1000 * median,
                "tokens_per_second": tokens / median,
                "ratio": statistics.median(ratios),
                "ratio_range": [min(ratios), max(ratios)],
            }
        )
    return rows


def show(rows: list[dict[str, Any]], options: argparse.Namespace) -> None:
    shape = f"{options.layers} layers, {options.width} wide, {options.heads} heads, {options.batch} x {options.context}"
    table = Table(title=f"One training step: {shape}")
    for column in ("", "median ms", "tokens/s", "partwise is", "min to max"):
        table.add_column(column, justify="left" if not column else "right")
    for row in rows:
        low, high = row["ratio_range"]
        speed = f"{row['milliseconds']:.1f}", f"{row['tokens_per_second']:,.0f}"
        itself = row is rows[0]
        table.add_row(
            row["name"], *speed, "" if itself else f"{row['ratio']:.2f} x", "" if itself else f"{low:.2f} to {high:.2f}"
        )
    console = Console()
    console.print(table)
    console.print(
        f"{options.rounds} rounds in turn, {options.threads} threads, torch {torch.__version__}, {platform.machine()}"
    )


if __name__ == "__main__":
    main()
