"""Faults put into runs, one per trial: kills, damaged bits, steps that end a run, values that are not finite.

Each check makes a trial: a function of a number that returns its outcome in a word, and raises AssertionError for a broken
promise. A trial depends on its number only, so that trials continue where an earlier call stopped, and a failed one
can be repeated.
"""

import errno
import hashlib
import json
import random
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch

from faults import failing, flip_bit, kill, seconds_of
from partwise.checkpoint import DamagedFileError, list_checkpoints, step_of
from partwise.config import ConfigError
from partwise.generation.sampling import Sampling
from partwise.model import ModelConfig, Transformer
from partwise.train.config import RunConfig, run_config
from partwise.train.loop import Diverged, Step
from partwise.train.metrics import read_metrics
from partwise.train.result import verified_result
from partwise.train.run_folder import Interrupted, RunFolder

Trial = Callable[[int], str]
STEPS = 6
SMALL = (
    "d_model=16 n_layers=1 attention.n_heads=2 context_length=16 train.batch_size=4 train.threads=1 train.precision=float32 "
    f"train.steps={STEPS} train.eval_every=3 train.save_every=2"
).split()
DROPOUT = [f"{site}dropout=0.1" for site in ("embed_", "attention.", "ffn.output_", "residual.")]
FAMILIES: dict[str, list[str]] = {
    "mingpt": [],
    "swiglu": ["ffn=swiglu"],
    "moe": ["ffn=moe"],
    "rope and rmsnorm": ["positions=rope", "norm=rmsnorm"],
    "mla": ["attention=mla", "positions=rope"],
    "differential attention": ["attention=differential"],
    "short convolution": ["short_conv=conv"],
    "multi-token prediction": ["mtp=heads"],
    "n-gram embeddings": ["ngram_embeddings=hashed"],
    "muon": ["optimizer=muon"],
}
SETTINGS = [
    (
        f"{family}{' dropout' * bool(dropout)}{f' accumulation={n}' * (n > 1)}",
        [
            *words,
            *(word for word in dropout if words != ["ffn=moe"] or "ffn." not in word),
            f"train.grad_accumulation={n}",
        ],
    )
    for (family, words), dropout, n in product(FAMILIES.items(), ([], DROPOUT), (1, 2))
]


@dataclass(frozen=True)
class Check:
    """A promise, the number of trials wanted, and what makes its trials in an empty folder."""

    promise: str
    target: int
    prepare: Callable[[Path], Trial]


def small(folder: Path, *words: str) -> RunConfig:
    text = folder / "text.txt"
    if not text.exists():
        text.write_text("".join(chr(97 + i * i % 23) for i in range(600)))
    return run_config("mingpt", *SMALL, *words, data=str(text))


def train(path: Path, config: RunConfig, stop: int | None = None) -> list[str]:
    """Train to the end, or until a checkpoint after `stop` steps; returns what was logged."""
    messages: list[str] = []
    folder = RunFolder(path, config, log=messages.append)
    with suppress(Interrupted):
        for event in folder.events():
            if isinstance(event, Step):
                folder.stop_requested = event.step == stop
    return messages


def end_of(path: Path) -> dict[str, Any]:
    """What a run has come to, without times: the tensors of its last checkpoint, its metrics, and its result."""
    last = list_checkpoints(path / "checkpoints")[-1]
    names = ("model.safetensors", "optimizer.safetensors")
    result = json.loads((path / "result.json").read_text())
    return {
        "checkpoint": last.name,
        "tensors": [hashlib.sha256((last / name).read_bytes()).hexdigest() for name in names],
        "metrics": without_times(read_metrics(path)),
        "result": [result["step"], without_times(result["evaluations"])],
    }


def uninterrupted(folder: Path, config: RunConfig) -> dict[str, Any]:
    """What a run that nothing disturbs comes to."""
    train(emptied(folder / "whole"), config)
    return end_of(folder / "whole")


def without_times(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in line.items() if key != "seconds"} for line in lines]


def emptied(path: Path) -> Path:
    shutil.rmtree(path, ignore_errors=True)
    return path


def resumes(folder: Path) -> Trial:
    """Every step of every setting as the one after which a run stops."""
    ends: dict[str, dict[str, Any]] = {}

    def trial(number: int) -> str:
        (name, words), stop = list(product(SETTINGS, range(1, STEPS)))[number % (len(SETTINGS) * (STEPS - 1))]
        config = small(folder, *words)
        if name not in ends:
            ends[name] = uninterrupted(folder, config)
        path = emptied(folder / "stopped")
        train(path, config, stop)
        assert len(read_metrics(path)) < len(ends[name]["metrics"]), f"{name} was not stopped after step {stop}"
        train(path, config)
        assert end_of(path) == ends[name], f"{name} stopped after step {stop} ends differently"
        return "equal"

    return trial


def kills(folder: Path) -> Trial:
    """SIGKILL at any moment of a run, from its start to its last write, up to three times in a row."""
    config = small(folder, *DROPOUT)
    end = uninterrupted(folder, config)
    duration = seconds_of(lambda: train(emptied(folder / "timed"), config))

    def trial(number: int) -> str:
        draw, path, ended = random.Random(number), emptied(folder / "killed"), 0
        for _ in range(draw.randint(1, 3)):
            ended += kill(lambda: train(path, config), draw.uniform(0, 0.9 * duration))
        train(path, config)
        assert end_of(path) == end, "a killed run ends differently"
        assert not list(path.rglob(".*.tmp")) and not list(path.rglob(".*.old")), "leftovers of a killed process"
        return "equal, some kill after the end" if ended else "equal"

    return trial


def flips(folder: Path) -> Trial:
    """One bit of any file of a run, half trained or finished: told, repaired or harmless."""
    config = small(folder)
    whole, half = emptied(folder / "whole"), emptied(folder / "half")
    train(half, config, 4)
    shutil.copytree(half, whole)
    train(whole, config)
    end = end_of(whole)
    path = folder / "flipped"

    def trial(number: int) -> str:
        draw = random.Random(number)
        shutil.copytree(draw.choice([whole, half]), emptied(path))
        flipped = flip_bit(path, draw)
        damaged = flipped.read_bytes()
        try:
            messages = train(path, config)
            verified_result(path, config.to_stored())
        except (ConfigError, DamagedFileError, Diverged) as error:
            assert len(str(error).splitlines()) == 1, f"{flipped}: not one line: {error}"
            return "told"
        if messages:
            return "told"
        assert end_of(path) == end, f"silent damage of {flipped.relative_to(path)}"
        return "repaired" if not flipped.exists() or flipped.read_bytes() != damaged else "harmless"

    return trial


def non_finite(folder: Path) -> Trial:
    """NaN or infinity in the gradient of any parameter, or in the loss, at any step: no such weight is saved."""

    def trial(number: int) -> str:
        name, words = SETTINGS[number % len(SETTINGS)]
        draw, config, path = random.Random(number), small(folder, *words), emptied(folder / "diverged")
        at, value = draw.randint(1, STEPS), draw.choice([float("nan"), float("inf"), -float("inf")])
        run_folder = RunFolder(path, config, log=lambda text: None)
        run = run_folder.run
        parameter, planted = draw.choice([None, *run.model.parameters()]), list[int]()
        losses = run.training_losses

        def spoil(tensor: Any) -> Any:
            if run.step != at - 1:
                return tensor
            planted.append(at)
            return torch.full_like(tensor, value) + 0 * tensor

        if parameter is None:
            run.training_losses = lambda batch: (  # type: ignore[method-assign]
                lambda all_losses: all_losses._replace(next_token=spoil(all_losses.next_token))
            )(losses(batch))
        else:
            parameter.register_hook(spoil)
        try:
            for _ in run_folder.events():
                pass
        except Diverged as error:
            assert str(error).startswith(f"step {at}:"), str(error)
            kept = list_checkpoints(path / "checkpoints")
            assert at == 1 or step_of(kept[-1]) == at - 1, f"{name}: step {at} cannot be repeated"
        else:
            assert not planted, f"{name}: {value} at step {at} went unnoticed"
            return "parameter without a gradient"
        assert all(tensor.isfinite().all() for tensor in run.model.state_dict().values()), (
            f"{name}: {value} is in the weights"
        )
        assert all("nan" not in str(line).lower() for line in read_metrics(path))
        return "told before the step"

    return trial


def write_errors(folder: Path) -> Trial:
    """ENOSPC or EIO at any call of a whole run that opens, changes or syncs a file."""
    config = small(folder)
    end = uninterrupted(folder, config)
    with failing(-1, 0) as made:
        train(emptied(folder / "counted"), config)
    calls = list(product(range(len(made)), (errno.ENOSPC, errno.EIO)))

    def trial(number: int) -> str:
        at, code = calls[number % len(calls)]
        path, outcome = emptied(folder / "failed"), "harmless"
        try:
            with failing(at, code):
                train(path, config)
        except ConfigError as error:
            assert len(str(error).splitlines()) == 1, str(error)
            outcome = "told"
        # data that cannot be read are prepared again, and an old checkpoint that cannot be removed is removed later
        assert outcome == "told" or made[at] in ("read", "unlink", "mkdir again"), (
            f"call {at} ({made[at]}) failed, and nothing was said"
        )
        train(path, config)
        assert end_of(path) == end, f"a run whose call {at} ({made[at]}) failed ends differently"
        return outcome

    return trial


def repeats(folder: Path) -> Trial:
    """Every setting trained twice with one seed."""

    def trial(number: int) -> str:
        name, words = SETTINGS[number % len(SETTINGS)]
        config = small(folder, *words, f"train.seed={number}")
        ends = []
        for name in ("first", "second"):
            train(emptied(folder / name), config)
            ends.append(end_of(folder / name))
        assert ends[0] == ends[1], f"{name}, seed {number}: two runs differ"
        return "equal"

    return trial


def rows(folder: Path) -> Trial:
    """The logits of a row of a batch, whatever the other rows are, in float64."""

    def trial(number: int) -> str:
        name, words = SETTINGS[number % len(SETTINGS)]
        generator = torch.Generator().manual_seed(number)
        model = Transformer(ModelConfig.from_dict(small(folder, *words).model.to_dict()), number).double().eval()
        ids = torch.randint(model.config.vocab_size, (4, 12), generator=generator)
        others = torch.randint(model.config.vocab_size, (4, 12), generator=generator)
        others[number % 4] = ids[number % 4]
        with torch.no_grad():
            difference = (model(ids)[number % 4] - model(others)[number % 4]).abs().max().item()
        assert difference < 1e-12, f"{name}: other rows change a row by {difference}"
        return "equal"

    return trial


DRAWS = 1_000_000


def sampling(folder: Path) -> Trial:
    """A million draws each: a chi-square of the counts against probabilities computed apart, in numpy's float64."""
    import numpy as np
    from scipy import stats

    def trial(number: int) -> str:
        draw = np.random.default_rng(number)
        size = int(draw.integers(3, 40))
        logits, temperature = draw.normal(size=size) * 2, float(draw.uniform(0.5, 2))
        top_k = int(draw.integers(1, size + 1)) if number % 2 else None
        top_p = float(draw.uniform(0.3, 1)) if number % 3 else 1.0
        scaled = np.exp(logits / temperature - (logits / temperature).max())
        order = np.argsort(-scaled)
        scaled[order[top_k:] if top_k else []] = 0
        before = np.cumsum(scaled[order]) - scaled[order]
        scaled[order[(before >= top_p * scaled.sum()) & (np.arange(size) > 0)]] = 0
        expected = scaled / scaled.sum() * DRAWS
        batch = torch.from_numpy(logits).expand(10_000, -1)
        uniform = torch.Generator().manual_seed(number)
        sampler, counts = Sampling(temperature, top_k, top_p), torch.zeros(size, dtype=torch.long)
        for _ in range(DRAWS // 10_000):
            counts += sampler.sample(batch, torch.rand(10_000, generator=uniform, dtype=torch.float64)).bincount(
                minlength=size
            )
        found = counts.numpy()
        assert not found[expected == 0].any(), "a token outside top_k or top_p was sampled"
        kept = expected > 0
        p = 1.0 if kept.sum() == 1 else stats.chisquare(found[kept], expected[kept]).pvalue
        assert p > 1e-6, f"chi-square p = {p:.2g}"
        return "p above 1e-6"

    return trial


RUN_CHECKS = {
    "resume": Check(
        "A run stopped after any step and resumed ends bitwise equal", len(SETTINGS) * (STEPS - 1), resumes
    ),
    "kill": Check("A run killed at any moment, up to three times, ends bitwise equal", 2000, kills),
    "flip": Check("A flipped bit in any file of a run is told, repaired or harmless", 10_000, flips),
    "errors": Check("A run in which a file operation failed is resumed and ends bitwise equal", 400, write_errors),
    "nonfinite": Check(
        "NaN or infinity in a loss or gradient ends the run before its step, which can be repeated", 400, non_finite
    ),
    "repeat": Check("Two runs with one seed are bitwise equal", 200, repeats),
    "rows": Check("A row of a batch does not depend on the others, to 1e-12", 400, rows),
    "sampling": Check("A million sampled tokens follow their probabilities (chi-square)", 20, sampling),
}
