"""Everything that determines a run: the model, the training numbers, the optimizer, the schedule and the data."""

from functools import reduce
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field

from partwise.config import Config, ConfigError
from partwise.data import Corpus, Dataset, data_override, prepare
from partwise.model import ModelConfig
from partwise.overrides import Override, apply_overrides, flatten, parse_overrides
from partwise.presets import find_preset
from partwise.reading import read_yaml
from partwise.tokenizers import TokenizerRecipe
from partwise.train.optimizers import Optimizer
from partwise.train.schedules import Schedule


class TrainConfig(Config):
    """The numbers of training, `train.*`."""

    steps: int = Field(2000, gt=0)
    lr: float = Field(3e-4, gt=0)
    batch_size: int = Field(16, gt=0)  # windows per update, over all micro-batches
    context: int | None = Field(None, gt=0)  # tokens per window; the model's max_len where not given
    accumulate: int = Field(1, gt=0)  # micro-batches per update
    clip: float | None = Field(None, gt=0)  # largest norm of the gradient
    label_smoothing: float = Field(0.0, ge=0, lt=1)  # share of the target's weight spread evenly over the vocabulary
    seed: int = Field(0, ge=0)
    redraw: str | None = None  # tensors whose initial values come from a second stream, such as ffn: a null change
    held_out: bool = False  # learn from nine tenths of the training split, and be scored on the last tenth of it
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    attention_path: Literal["auto", "products", "fused", "kernel"] = "auto"
    ffn_path: Literal["auto", "torch", "kernel"] = "auto"
    block_path: Literal["auto", "layers", "kernel"] = "auto"
    threads: int | None = Field(None, gt=0)  # of the CPU; torch's choice where not given
    eval_every: int | None = Field(None, gt=0)  # steps between evaluations; a tenth of all where not given
    save_every: int = Field(500, gt=0)  # steps between checkpoints
    estimator: Literal["full", "random"] = "full"  # validation on the whole split, or on 200 random batches


class RunConfig(Config):
    """One run, repeatable from this alone. Written as one flat mapping: the model's fields at the root."""

    model: ModelConfig
    train: TrainConfig
    optimizer: Optimizer
    schedule: Schedule
    data: Corpus
    tokenizer: TokenizerRecipe

    def to_dict(self) -> dict[str, Any]:
        values = super().to_dict()
        return {**values.pop("model"), **values}

    @classmethod
    def from_dict(cls, values: Any, prefix: str = "") -> Self:
        rest = {key: value for key, value in values.items() if key in cls.model_fields and key != "model"}
        model = ModelConfig.from_dict({key: value for key, value in values.items() if key not in rest})
        train = TrainConfig.from_dict(rest.pop("train"), prefix="train")
        config = super().from_dict({"model": model, "train": train, **rest}, prefix)
        config.check()
        return config

    def check(self) -> None:
        if self.context > self.model.max_len:
            raise ConfigError(
                f"train.context={self.context} exceeds max_len={self.model.max_len}: lower it, or raise max_len"
            )
        if self.model.init.for_adaptive_optimizers and not self.optimizer.adaptive:
            raise ConfigError(
                f"init={self.model.init.name} states its learning rates for optimizers like adamw and lion, not for "
                f"optimizer={self.optimizer.name}: choose one of these, or another init"
            )
        if self.data.paired and self.model.counts.name != "none":
            raise ConfigError(
                f"counts={self.model.counts.name} counts running text, and data={self.data.name} is pairs: set counts=none"
            )
        if self.data.paired != (self.model.encoder_layers > 0):
            raise ConfigError(
                f"data={self.data.name} is pairs, which need a model that reads a source: set encoder_layers, or give text"
                if self.data.paired
                else f"encoder_layers={self.model.encoder_layers} reads a source, and data={self.data.name} has none: "
                "give pairs, such as data=arithmetic_pairs or a .tsv file, or set encoder_layers=0"
            )
        if self.train.batch_size % self.train.accumulate:
            raise ConfigError(
                f"train.accumulate={self.train.accumulate} does not divide train.batch_size={self.train.batch_size}: "
                "choose a divisor"
            )

    def prepare(self) -> Dataset:
        """What it learns from and is scored on, made where it is not there yet. Raises ConfigError."""
        dataset = prepare(self.data, self.tokenizer)
        return dataset.held_out() if self.train.held_out else dataset

    @property
    def context(self) -> int:
        return self.train.context or self.model.max_len

    @property
    def eval_every(self) -> int:
        return self.train.eval_every or max(1, self.train.steps // 10)


def defaults() -> dict[str, Any]:
    """The flat configuration before any preset."""
    return {
        **ModelConfig().to_dict(),
        "train": TrainConfig().to_dict(),
        "optimizer": Optimizer.resolve("adamw").to_dict(),
        "schedule": Schedule.resolve("constant").to_dict(),
        "data": Corpus.resolve("shakespeare").to_dict(),
        "tokenizer": TokenizerRecipe.resolve("characters").to_dict(),
    }


def preset_settings(name: str) -> dict[str, Any]:
    """The flat configuration of a preset, or of a YAML file (which may itself start from `preset: NAME`)."""
    return reduce(apply_overrides, _layers(name), defaults())


def _layers(name: str, above: tuple[str, ...] = ()) -> list[list[Override]]:
    """The overrides of a preset, or of a YAML file after those of the preset or file that it starts from."""
    if Path(name).suffix not in (".yaml", ".yml"):
        return [flatten(find_preset(name).settings)]
    if name in above:
        raise ConfigError(f"preset: {' -> '.join([*above, name])!r} leads back to itself: name another preset")
    values = read_yaml(Path(name))
    base = values.pop("preset", None)
    return [*([] if base is None else _layers(str(base), (*above, name))), expand_data(flatten(values))]


def expand_data(overrides: list[Override]) -> list[Override]:
    """`data=notes.txt` means the corpus `text` at that path, wherever it is written."""
    return [
        single
        for path, value in overrides
        for single in (
            flatten({"data": data_override(value)}) if path == ("data",) and isinstance(value, str) else [(path, value)]
        )
    ]


def run_config(name: str, *overrides: str, data: str | None = None) -> RunConfig:
    """The run of a preset (or YAML file), changed by overrides such as `"ffn=swiglu"` and `"train.lr=1e-3"`.

    `data` is a corpus by name or the path of a text file. The vocabulary follows from the data. Raises ConfigError.
    """
    words = expand_data(([] if data is None else [(("data",), data)]) + parse_overrides(overrides))
    layers = [*_layers(name), words]
    values = reduce(apply_overrides, layers, defaults())
    return resolve(values, own_vocabulary=any(path == ("vocab_size",) for layer in layers for path, _ in layer))


def resolve(values: dict[str, Any], own_vocabulary: bool = False) -> RunConfig:
    """Validate a flat configuration and give the model the vocabulary of its data."""
    corpus, recipe = Corpus.resolve(values["data"]), TokenizerRecipe.resolve(values["tokenizer"])
    assert isinstance(corpus, Corpus) and isinstance(recipe, TokenizerRecipe)
    needed = recipe.size(corpus) + 3 * corpus.paired
    if own_vocabulary and type(values["vocab_size"]) is int and values["vocab_size"] < needed:
        raise ConfigError(
            f"vocab_size={values['vocab_size']} is less than the {needed} symbols of the data: leave it out"
        )
    if corpus.paired and values["padding_idx"] is None:
        values = {**values, "padding_idx": needed - 3}
    return RunConfig.from_dict({**values, **({} if own_vocabulary else {"vocab_size": needed})})
