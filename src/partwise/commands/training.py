"""`train` and `generate`."""

import signal
from contextlib import nullcontext
from pathlib import Path
from types import FrameType
from typing import Any

from partwise.checkpoint import load
from partwise.commands.scoring import show_scores
from partwise.config import ConfigError
from partwise.data import Dataset, Pairs, examples, problem_lines
from partwise.evaluate.arithmetic import answer_problems
from partwise.generation import generate
from partwise.terminal import console, fail, flush_text, follow_run, table
from partwise.tokenizers import Tokenizer, WithSpecials
from partwise.train.choices import choose
from partwise.train.folder import Interrupted, RunFolder
from partwise.train.loop import Diverged
from partwise.train.names import default_name, run_name
from partwise.train.settings import TrainConfig, run_config


def train_run(preset: str, words: list[str], data: str | None, name: str | None, fresh: bool, command: str) -> int:
    """Train or continue one run; returns the exit status."""
    config = run_config(preset, *words, data=data)
    folder = run_name(name) if name else default_name([Path(preset).stem, *words, *([data] if data else [])])
    path = Path("runs") / folder
    with console.status("preparing the data") if console.is_terminal else nullcontext():
        dataset = config.prepare()
    run = RunFolder(path, config, fresh=fresh, command=[command], dataset=dataset)
    choices = run.choices
    console.print(
        f"{folder}: {config.model.parameters():,} parameters on {choices.device}, {choices.precision}, "
        f"{choices.threads} threads, {len(run.run.ids):,} training tokens"
    )
    if run.run.step:
        console.print(f"continuing after step {run.run.step}")

    def stop(signum: int, frame: FrameType | None) -> None:
        run.stopping = True

    previous = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        follow_run(run)
    except Interrupted as reason:
        console.print(f"{reason}. To continue:\n  {command.replace(' --fresh', '')}", markup=False)
        return 130
    except Diverged as error:
        fail(f"training diverged at {error}. The last good checkpoint is kept in {path / 'checkpoints'}")
        return 1
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
    known = run.latest if config.train.estimator == "full" else None
    show_scores(run.run.model, dataset, config.context, choices, problems=200, known=known)
    console.print()
    show_sample(run, dataset)
    console.print(f"\nThe run is in {path}; more text: partwise generate {folder} --prompt ...")
    return 0


def show_sample(run: RunFolder, dataset: Dataset) -> None:
    """A text by the model, or for arithmetic a few problems with its answers."""
    model, tokenizer = run.run.model, dataset.tokenizer
    if dataset.corpus.task == "arithmetic":
        problems = problem_lines(dataset, "test", 5)
        answers = answer_problems(model, tokenizer, problems, temperature=0, precision=run.choices.precision)
        rows = [
            (problem[: problem.index("=") + 1], answer, problem[problem.index("=") + 1 :])
            for problem, answer in zip(problems, answers, strict=True)
        ]
        console.print(table("five test problems", ["problem", "model", "truth"], rows))
        return
    if dataset.corpus.paired:
        pairs = examples(dataset, "val", 1, model.config.max_len)
        assert isinstance(pairs, Pairs)
        rows = [
            (source, generate(model, tokenizer, [source], length=model.config.max_len, temperature=0)[0], target)
            for source, target in pairs.texts(tokenizer, 5)
        ]
        console.print(table("five validation pairs", ["source", "model", "target"], rows))
        return
    prompt = tokenizer.decode(dataset.split("val")[:32])
    text = generate(model, tokenizer, [prompt], length=300, temperature=0.8)[0]
    console.print("[bold]a sample[/]")
    console.print(prompt + text, markup=False)


def first_prompt(tokenizer: Tokenizer) -> str:
    """A line's beginning where the tokenizer knows lines; else its first symbol, the `$` that begins a problem."""
    try:
        tokenizer.encode("\n")
    except ConfigError:
        return tokenizer.decode([0])
    return "\n"


def generate_text(
    name: str,
    prompts: list[str],
    length: int,
    temperature: float,
    top_k: int | None,
    top_p: float,
    stop: str | None,
    seed: int,
    beams: int | None,
    precision: str,
    path: str,
) -> None:
    """Print the continuation of each prompt, or the target of each source; a single one is streamed."""
    model, tokenizer = load(name)
    here = choose(TrainConfig(device="cpu"))
    model.use_path(here.attention_path, here.ffn_path, here.block_path)
    pairs = isinstance(tokenizer, WithSpecials)
    if pairs and not prompts:
        raise ConfigError(f"{name} was trained on pairs: give a source to answer, as in --prompt TEXT")
    prompts = prompts or [first_prompt(tokenizer)]
    settings: dict[str, Any] = {
        "length": length,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "stop": stop,
        "seed": seed,
        "beams": beams,
        "precision": precision,
        "path": path,
    }
    if len(prompts) == 1:
        tokenizer.encode(prompts[0])  # before anything is printed: it may refuse the prompt
        flush_text(f"{prompts[0]} -> " if pairs else prompts[0])
        generate(model, tokenizer, prompts, **settings, on_text=lambda row, piece: flush_text(piece))
        flush_text("\n")
        return
    for prompt, text in zip(prompts, generate(model, tokenizer, prompts, **settings), strict=True):
        console.print(f"{prompt} -> {text}" if pairs else f"{prompt}{text}\n", markup=False)
