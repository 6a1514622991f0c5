"""Whole commands on one accelerator: pieces of `accelerator.py`."""

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from accelerator import Place
from accelerator_shapes import WITHOUT_KERNELS, Sizes, in_turn, peer_step

from partwise.train.metrics import read_metrics

RECIPE = Sizes(layers=6, width=384, heads=6, context=256, vocab=65, dropout=0.2)
"""nanoGPT's config/train_shakespeare_char.py, as its README describes it."""
RECIPE_ROWS, RECIPE_STEPS = 64, 5000
Values = dict[str, float | None]


def run_command(place: Place, *words: str) -> float:
    """Run `partwise` with these words in the piece's folder; returns the seconds that it took."""
    began = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "partwise", *words],
        cwd=place.folder,
        env={**os.environ, "PYTHONPATH": python_path()},
        check=True,
    )
    return time.perf_counter() - began


def python_path() -> str:
    """This process's path, absolute, since commands run in another folder."""
    return os.pathsep.join(str(Path(entry).absolute()) for entry in sys.path if entry)


def time_to_loss(place: Place, notes: list[str]) -> Values:
    """`partwise train shakespeare`, beside the time of nanoGPT's recipe for a GPU."""
    words = []
    if place.small:
        words = [
            "train.steps=2",
            "train.eval_every=2",
            "n_layers=1",
            "d_model=16",
            "attention.n_heads=2",
            "ffn.hidden=32",
        ]
        words += ["train.batch_size=2", *WITHOUT_KERNELS, "train.attention_backend=eager"]
    words += [f"train.device={place.device}", "train.compile=false"]  # compiling takes longer than these steps
    ours = run_command(place, "train", "shakespeare", *words, "--data", "shakespeare", "--name", "run")
    folder = place.folder / "runs" / "run"
    result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    loss = result["evaluations"][-1]["validation"]
    seconds = [line["seconds"] for line in read_metrics(folder) if line["kind"] == "step"]
    notes.append(
        f"a step took {1000 * statistics.median(seconds):.1f} ms, all {len(seconds)} took {sum(seconds):.1f} s"
    )
    sizes = Sizes(layers=1, width=16, heads=2, context=16, vocab=65, dropout=0.2) if place.small else RECIPE
    step = peer_step(place, sizes, RECIPE_ROWS, True, notes)
    peer = RECIPE_STEPS * statistics.median(in_turn(place, {"peer": step}, rounds=4, count=50)["peer"])
    notes.append("nanoGPT's time is without compilation and evaluation")
    return {"ours": ours, "loss": loss, "peer": peer, "fraction": ours / peer}


def experiment(place: Place, notes: list[str]) -> Values:
    """The comparison of the documents: `mingpt` against `ffn=swiglu` on arithmetic."""
    common = [f"train.device={place.device}"]
    seeds = 8
    if place.small:
        seeds = 2
        common += [*WITHOUT_KERNELS, "train.attention_backend=eager"]
        common += ["train.steps=4", "n_layers=1", "d_model=16", "attention.n_heads=2", "context_length=16"]
        common += ["data.train=500", "data.validation=20", "data.test=5", "train.eval_every=4"]
    words = [word for setting in common for word in ("--common", setting)]
    arms = ["compare", "mingpt", "ffn=swiglu", "--data", "arithmetic", "--seeds", str(seeds), "--name", "both"]
    seconds = run_command(place, *arms, "--seeds-per-process", str(seeds), *words)
    results = json.loads((place.folder / "runs" / "both" / "results.json").read_text(encoding="utf-8"))
    notes.append(f"{len(results['arms'])} arms x {seeds} seeds")
    run = next((place.folder / "runs" / "both").rglob("result.json"))
    steps = json.loads(run.read_text(encoding="utf-8"))["evaluations"][-1]["step"]
    return {"seconds": seconds, "steps": steps}
