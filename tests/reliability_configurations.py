"""Random configurations over the whole registry: each trains, is stopped and resumed, scored and sampled."""

import json
import random
from functools import lru_cache
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings

from partwise.checkpoint import list_checkpoints
from partwise.config import ConfigError
from partwise.config.overrides import apply_overrides, parse_overrides
from partwise.data import Dataset, build_examples
from partwise.evaluate.loss import mean_loss
from partwise.generation.generate import generate
from partwise.model import ModelConfig
from partwise.tensor_files import TensorFiles
from partwise.train.config import FROM, RunConfig, default_settings, resolve_settings
from partwise.train.loop import Diverged
from partwise.train.metrics import read_metrics
from partwise.train.samples import draw_sample
from partwise.train.trained_model import TrainedModel, open_trained
from recipes import configs, recipes
from reliability_runs import SETTINGS, STEPS, Check, Trial, emptied, end_of, small, train, uninterrupted

PER_SEED = 25
"""Configurations of one seed of hypothesis; the first ones are always the smallest."""
WIDTHS = (4, 8, 16, 32, 48)
EAGER = [f"train.{kind}_backend=eager" for kind in ("block", "attention", "ffn")]
PRECISE, ROUNDED = 1e-3, 3e-2  # relative differences of losses in float32 and bfloat16, by different backends


@lru_cache(maxsize=2)
def drawn(number: int) -> list[dict[str, Any]]:
    """Models, optimizers, schedules and averages of weights, as plain values."""
    found: list[dict[str, Any]] = []

    @seed(number)
    @settings(
        max_examples=PER_SEED,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        deadline=None,
        database=None,
    )
    @given(
        model=configs(), optimizer=recipes("optimizer"), schedule=recipes("schedule"), averaging=recipes("averaging")
    )
    def collect(model: ModelConfig, **others: dict[str, Any]) -> None:
        found.append({**model.to_dict(), **others})

    collect()
    return found


def write_corpora(folder: Path) -> None:
    """A text, JSON lines, a folder of files, and pairs."""
    draw = random.Random(0)
    words = ["".join(draw.choices("abcdefgh", k=draw.randint(1, 6))) for _ in range(40)]
    lines = [" ".join(draw.choices(words, k=draw.randint(3, 9))) for _ in range(60)]
    (folder / "text.txt").write_text("\n".join(lines))
    (folder / "lines.jsonl").write_text("\n".join(json.dumps({"text": line + " é"}) for line in lines))
    (folder / "files").mkdir(exist_ok=True)
    for number, line in enumerate(lines):
        (folder / "files" / f"{number}.txt").write_text(line)
    pairs = [(word, word[::-1]) for word in dict.fromkeys(words)]
    (folder / "pairs.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in pairs))


def training(draw: random.Random, paired: bool, folder: Path) -> list[str]:
    """Random words for the data, the tokenizer and the settings of training."""
    sizes = ["data.train=60", "data.validation=20", "data.test=5"]
    corpora = {
        "text.txt": ["data=text", f"data.path={folder / 'text.txt'}"],
        "lines.jsonl": ["data=jsonl", f"data.path={folder / 'lines.jsonl'}"],
        "files": ["data=folder", f"data.path={folder / 'files'}"],
        "arithmetic": ["data=arithmetic", *sizes, f"data.reverse={draw.choice(['true', 'false'])}"],
    }
    pairs = {
        "pairs.tsv": ["data=pairs", f"data.path={folder / 'pairs.tsv'}"],
        "arithmetic": ["data=arithmetic_pairs", *sizes, "data.padding=0", "data.limit=20", "data.decimals=0"],
    }
    chosen = pairs if paired else corpora
    name = draw.choice(sorted(chosen))
    tokenizer = draw.choice([["characters"], ["bytes"], ["bpe", "vocab_size=270"]])
    length = draw.choice([12, 17, 24, 48] if paired else [8, 12, 17, 24])
    accumulation, rows = draw.choice([1, 1, 2, 3]), draw.choice([1, 2, 3])
    values = {
        "steps": STEPS,
        "lr": draw.choice([1e-4, 1e-3, 1e-2]),
        "batch_size": accumulation * rows,
        "grad_accumulation": accumulation,
        "seq_len": draw.choice(["null", length // 2]),
        "grad_clip": draw.choice(["null", 0.5]),
        "label_smoothing": draw.choice([0.0, 0.1]),
        "seed": draw.randrange(5),
        "reinitialize": draw.choice(["null", "null", "ffn"]),
        "freeze": draw.choice(["null", "null", "embed"]),
        "tuning_split": draw.choice(["false", "false", "true"]),
        "precision": draw.choice(["float32", "float32", "bfloat16"]),
        "attention_backend": draw.choice(["auto", "auto", "eager"]),
        "ffn_backend": draw.choice(["auto", "auto", "eager"]),
        "block_backend": draw.choice(["auto", "auto", "eager"]),
        "threads": draw.choice([1, 1, 2]),
        "deterministic": draw.choice(["false", "true"]),
        "activation_checkpointing": draw.choice(["false", "false", "true"]),
        "validation_estimator": draw.choice(["full", "full", "random"]),
        "eval_every": draw.choice([1, 3, 6]),
        "save_every": draw.choice([1, 2, 5]),
    }
    return [
        f"context_length={length}",
        f"d_model={draw.choice(WIDTHS)}",
        *(f"{site}dropout={draw.choice([0.0, 0.1])}" for site in ("embed_", "attention.", "residual.")),
        *chosen[name],
        f"tokenizer={tokenizer[0]}",
        *(f"tokenizer.{word}" for word in tokenizer[1:]),
        *(f"train.{key}={value}" for key, value in values.items() if not (paired and key == "seq_len")),
    ]


def random_config(number: int, folder: Path) -> RunConfig:
    """Raises ConfigError for settings that do not fit each other, which the next trial may not have."""
    models, draw = drawn(number // PER_SEED), random.Random(number)
    values = default_settings() | models[number % PER_SEED % len(models)] | {FROM: {}}
    if values["encoder_layers"]:
        values["padding_idx"] = None  # of the data, as for every user
    words = training(draw, values["encoder_layers"] > 0, folder)
    if draw.random() < 0.8:  # most runs of a weight decay of any size diverge
        words.append(f"optimizer.weight_decay={draw.choice([0.0, 0.1])}")
    if not isinstance(values["attention"], dict) or "part" not in values["attention"]:
        words = [word for word in words if not word.startswith("attention.")]  # a pattern over layers
    return resolve_settings(apply_overrides(values, parse_overrides(words)))


def check_model(path: Path, config: RunConfig) -> None:
    """A finished run is opened, scored as in training, and sampled twice alike."""
    trained = open_trained(str(path))
    dataset = config.prepare()
    trained.runtime.set_threads()
    if config.train.validation_estimator == "full":
        validation = build_examples(dataset, "val", config.seq_len, config.model.context_length)
        loss = mean_loss(trained.model, validation.eval_batches(), trained.runtime.precision)
        stored = [line for line in read_metrics(path) if line["kind"] == "evaluation"][-1]["validation"]
        bound = ROUNDED if trained.runtime.precision == "bfloat16" else PRECISE
        assert abs(loss - stored) <= bound * max(1.0, abs(stored)), f"scored {loss}, in training {stored}"
    assert sampled(trained, dataset) == sampled(trained, dataset), "two samples of one seed differ"


def sampled(trained: TrainedModel, dataset: Dataset) -> Any:
    """A continuation of the validation text, or the answers to two problems or sources."""
    precision = trained.runtime.precision
    if dataset.corpus.paired or dataset.corpus.task == "arithmetic":
        return draw_sample(trained.model, dataset, precision, n=2)
    prompt = dataset.tokenizer.decode(dataset.split("val")[:3])
    return generate(trained.model, trained.tokenizer, [prompt] * 2, max_new_tokens=6, seed=7, precision=precision)


def configurations(folder: Path) -> Trial:
    """Random models, data, tokenizers, optimizers, schedules and settings of training."""
    write_corpora(folder)

    def trial(number: int) -> str:
        try:
            config = random_config(number, folder)
            whole = emptied(folder / "whole")
            train(whole, config)
        except ConfigError as error:
            assert len(str(error).splitlines()) == 1, str(error)
            return "refused in one line"
        except Diverged as error:
            assert str(error).startswith("step ") and len(str(error).splitlines()) == 1, str(error)
            for checkpoint in list_checkpoints(whole / "checkpoints"):
                tensors = TensorFiles([checkpoint / "model.safetensors"])
                assert all(tensor.isfinite().all() for tensor in tensors.values()), "saved weights are not finite"
            return "diverged in one line"
        stopped = emptied(folder / "stopped")
        train(stopped, config, random.Random(number).randrange(1, STEPS))
        train(stopped, config)
        assert end_of(stopped) == end_of(whole), "the resumed run ends differently"
        check_model(whole, config)
        return "trained, resumed, scored and sampled"

    return trial


WIDE = ["d_model=64", "context_length=64", "train.batch_size=9", "train.steps=2", "train.deterministic=true"]
THREADS = (1, 2, 7)


def threads(folder: Path) -> Trial:
    """Every setting with `train.deterministic=true`, wide enough for torch to divide its sums among threads."""

    def trial(number: int) -> str:
        name, words = SETTINGS[number % len(SETTINGS)]
        draw, ends = random.Random(number), []
        rest = [f"train.seed={number}", f"train.precision={draw.choice(['float32', 'bfloat16'])}"]
        rest += draw.choice([[], ["train.block_backend=eager"], EAGER])
        words = [word.replace("accumulation=2", "accumulation=3") for word in words]
        for count in THREADS:
            config = small(folder, *WIDE, *words, *rest, f"train.threads={count}")
            ends.append(uninterrupted(folder, config))
        assert ends[0] == ends[1] == ends[2], f"{name} {rest}: {THREADS} threads differ"
        return "equal"

    return trial


CONFIGURATION_CHECKS = {
    "threads": Check(
        "With train.deterministic=true, runs on 1, 2 and 7 threads are bitwise equal", 5 * len(SETTINGS), threads
    ),
    "configurations": Check(
        "A random configuration trains, resumes bitwise equal, is scored and sampled, or is refused in one line",
        2_000,
        configurations,
    ),
}
