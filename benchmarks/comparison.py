"""A comparison of 2 arms x 5 seeds of the SwiGLU post's experiment, against the post's own code run ten times.

    python benchmarks/comparison.py [--data shakespeare|arithmetic] [--steps 200] [--seeds 5] [--json FILE]

Ours is the `partwise compare` command from an empty cache: imports, data preparation, kernel compilation, training,
evaluation, report. With fewer than 5,000 steps its time is extrapolated: the missing steps and evaluations are added at
the pace recorded by the runs, divided by the number of workers. The post's time is extrapolated from 200 steps of each
arm and one of its eleven evaluations; reading and encoding are measured on its text or part of it, and for arithmetic
its loop answers 40 of the 10,000 test problems. If interrupted, the same command resumes, and the time of all sessions
counts.
"""

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from measuring import Row, write_rows
from rich.console import Console

import partwise
from partwise.ablation.request import Request
from partwise.data import Arithmetic, generate_problems, prepare, split_problems
from partwise.studies.study import find_study

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))
from from_scratch.gpt import GPT
from references.tutorial_loop import Training, evaluated_steps, score_arithmetic

ROOT = Path(__file__).parent.parent
STEPS = 5000
THEIR_STEPS = 200
BLOCKS = 4  # blocks of their steps: the fastest and the slowest give the range of the ratio
ENCODED = 10_000_000  # maximum characters of their text that are encoded to time it
ANSWERED = 40  # test problems that their loop answers
TARGET = 8.0


def main() -> None:
    options = parse_options()
    study = find_study(str(ROOT / "studies" / "swiglu.yaml")).comparisons[options.data]
    torch.manual_seed(0)
    theirs = [measure_tutorial(options.data, gated=False)]
    ours = measure_command(study, options)
    theirs.append(measure_tutorial(options.data, gated=True))
    seconds = {key: options.seeds * sum(arm[key] for arm in theirs) for key in ("seconds", "low", "high")}
    steps = f"{STEPS:,} steps" if options.steps == STEPS else f"{STEPS:,} steps, extrapolated from {options.steps}"
    row: Row = {
        "goal": "comparison",
        "what": f"{options.data}: 2 arms x {options.seeds} seeds, {steps}",
        "ours": ours["seconds"] / 60,
        "unit": "min",
        "peers": {f"the post's code, {2 * options.seeds} times (extrapolated)": seconds["seconds"] / 60},
        "ratio": seconds["seconds"] / ours["seconds"],
        "low": seconds["low"] / ours["seconds"],
        "high": seconds["high"] / ours["seconds"],
        "target": TARGET,
    }
    losses = {"steps": [THEIR_STEPS, options.steps], "theirs": [arm["loss"] for arm in theirs], "ours": ours["losses"]}
    show(row, losses)
    write_rows(options.json, [row], losses=losses, ours=ours, theirs=theirs)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", choices=["shakespeare", "arithmetic"], default="shakespeare")
    parser.add_argument("--steps", type=int, default=200, help=f"steps of our runs; {STEPS} measures all")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument(
        "--folder", type=Path, default=ROOT / "build" / "comparison", help="folder of an unfinished comparison"
    )
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if not 20 <= options.steps <= STEPS:
        parser.error(f"--steps {options.steps}: must be from 20 to {STEPS}")
    if options.seeds < 2:
        parser.error(f"--seeds {options.seeds}: must be at least 2")
    return options


def measure_tutorial(data: str, gated: bool) -> dict[str, float]:
    """Seconds of one run of the post's code, also by its fastest and slowest steps; its loss after 200 steps."""
    text, length = tutorial_text(data)
    began = time.perf_counter()
    index = {character: number for number, character in enumerate(sorted(set(text)))}
    symbols = torch.tensor([index[character] for character in text])
    reading = (time.perf_counter() - began) * length / len(text)

    training = Training(GPT(len(index), gated=gated), symbols)
    blocks = []
    for _ in range(BLOCKS):
        began = time.perf_counter()
        for _ in range(THEIR_STEPS // BLOCKS):
            training.update()
        blocks.append((time.perf_counter() - began) * BLOCKS / THEIR_STEPS)
    began = time.perf_counter()
    loss = training.evaluate()["val"]
    evaluation = time.perf_counter() - began
    once = reading + len(evaluated_steps(STEPS)) * evaluation
    if data == "arithmetic":
        corpus = partwise.run_config("mingpt", data=data).data
        assert isinstance(corpus, Arithmetic)
        problems = split_problems(text)[:ANSWERED]
        began = time.perf_counter()
        score_arithmetic(training.model, problems, limit=11)
        once += (time.perf_counter() - began) * corpus.test / ANSWERED
    pace = {"seconds": statistics.mean(blocks), "low": min(blocks), "high": max(blocks)}
    return {key: once + STEPS * step for key, step in pace.items()} | {"loss": loss, "evaluation": evaluation}


def tutorial_text(data: str) -> tuple[str, int]:
    """The post's text, or the beginning of it, and the number of characters of the whole text."""
    config = partwise.run_config("mingpt", data=data)
    corpus = config.data
    if isinstance(corpus, Arithmetic):
        problems = ENCODED // corpus.max_line_length()
        encoded = generate_problems(corpus.problem_spec(), train=problems, validation=1, test=1)["train"]
        return encoded.tobytes().decode(), len(encoded) * corpus.train // problems
    dataset = prepare(corpus, config.tokenizer)
    text = "".join(dataset.tokenizer.decode(dataset.split(name).tolist()) for name in ("train", "val"))
    return text, len(text)


def measure_command(study: Request, options: argparse.Namespace) -> dict[str, Any]:
    """Seconds of the command, extrapolated to all steps; mean and SD of each arm's losses."""
    common = {key: value for key, _, value in (words.partition("=") for words in study.common)}
    assert int(common["train.steps"]) == STEPS
    common["train.steps"] = str(options.steps)
    command = [sys.executable, "-m", "partwise", "compare", study.preset, *study.change, "--data", str(study.data)]
    command += ["--seeds", str(options.seeds), "--name", "benchmark"]
    command += [word for key, value in common.items() for word in ("--common", f"{key}={value}")]
    folder = options.folder.resolve() / f"{options.data}-{options.steps}-{options.seeds}"
    if (folder / "finished").exists():
        shutil.rmtree(folder)
    measured = run_to_the_end(command, folder)
    home = folder / "runs" / "benchmark"
    results = json.loads((home / "results.json").read_text(encoding="utf-8"))
    workers = json.loads((home / "compare.json").read_text(encoding="utf-8"))["workers"]
    every = int(common["train.eval_every"])
    missing = sum(time_left(run, options.steps, every) for run in sorted(home.glob("runs/*/seed-*")))
    losses = {}
    for arm in results["arms"]:
        values = [trial["value"] for trial in arm["trials"]]
        losses[arm["name"]] = [statistics.mean(values), statistics.stdev(values)]
    (folder / "finished").touch()
    return {"seconds": measured + missing / workers, "measured": measured, "workers": workers, "losses": losses}


def run_to_the_end(command: list[str], folder: Path) -> float:
    """Seconds of the command over all sessions, including interrupted ones to within a second."""
    folder.mkdir(parents=True, exist_ok=True)
    clock = folder / "seconds"
    before = float(clock.read_text()) if clock.exists() else 0.0
    began = time.monotonic()
    environment = {**os.environ, "PARTWISE_CACHE": str(folder / "cache")}
    # in its own session: Ctrl-C reaches only this process, which forwards it once
    process = subprocess.Popen(command, cwd=folder, env=environment, start_new_session=True)
    try:
        while process.poll() is None:
            time.sleep(0.2)
            clock.write_text(str(before + time.monotonic() - began))
    except KeyboardInterrupt:
        process.send_signal(signal.SIGINT)
        process.wait()
        clock.write_text(str(before + time.monotonic() - began))
        sys.exit("stopped: run the same command again to resume")
    if process.returncode:
        sys.exit(f"partwise compare exited with status {process.returncode}: run the same command again to resume")
    return before + time.monotonic() - began


def time_left(run: Path, steps: int, every: int) -> float:
    """Seconds of the steps, evaluations and checkpoints that a run left out, at its own pace."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    updates = [line["seconds"] for line in lines if line["kind"] == "step"]
    done = max(1, len([line for line in lines if line["kind"] == "evaluation"]))
    if steps == STEPS:
        return 0.0
    total = json.loads((run / "result.json").read_text(encoding="utf-8"))["seconds"]
    evaluation = max(0.0, total - sum(updates)) / done
    return (STEPS - steps) * statistics.mean(updates) + (STEPS // every - done) * evaluation


def show(row: Row, losses: dict[str, Any]) -> None:
    (name, theirs), *_ = row["peers"].items()
    console = Console()
    console.print(f"{row['what']}: ours {row['ours']:.1f} min; {name} {theirs:.1f} min", markup=False)
    console.print(f"{row['ratio']:.2f} times as fast ({row['low']:.2f} to {row['high']:.2f}), target {row['target']:g}")
    before, after = losses["steps"]
    console.print(f"validation losses of the post's code after {before} steps, one seed per arm: {losses['theirs']}")
    console.print(f"ours after {after}, mean and SD over seeds: {losses['ours']}", markup=False)


if __name__ == "__main__":
    main()
