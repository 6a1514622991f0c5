"""The configuration of a run: model, training settings, optimizer, schedule, averaging, data and tokenizer."""

from collections.abc import Iterable
from functools import reduce
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, ValidationInfo

from partwise.compute.backends import backend_names
from partwise.config import NAME_WIDTH, Config, ConfigError, Neutral, did_you_mean
from partwise.config.overrides import Override, apply_overrides, distinct, flatten, parse_overrides
from partwise.config.yaml import read_yaml
from partwise.data import Corpus, Dataset, parse_data_option, prepare
from partwise.model import ModelConfig, Transformer, meta_model
from partwise.model.freezing import freeze
from partwise.presets import find_preset
from partwise.tokenizers import TokenizerRecipe
from partwise.train.averaging import Averaging, NoAveraging
from partwise.train.optimizers import Optimizer
from partwise.train.schedules import Schedule
from partwise.train.source import InitialWeights, find_source


def check_backend(name: str, info: ValidationInfo) -> str:
    """Reject the name of a backend that is not registered for the kind of operation of its setting."""
    names = backend_names(str(info.field_name).removesuffix("_backend"))
    if name not in names:
        raise ValueError(f"unknown backend{did_you_mean(name, names)}")
    return name


BackendName = Annotated[str, AfterValidator(check_backend)]


class TrainConfig(Config):
    """Training settings, `train.*`."""

    steps: int = Field(2000, gt=0)
    """Optimizer steps of the run."""
    lr: float = Field(3e-4, gt=0)
    """The peak learning rate; `schedule` multiplies it by a factor at each step."""
    batch_size: int = Field(16, gt=0)
    """Sequences per step, over all micro-batches."""
    seq_len: int | None = Field(None, gt=0)
    """Tokens per training sequence. Default: `context_length`."""
    grad_accumulation: int = Field(1, gt=0)
    """Micro-batches per step, whose gradients are added: less memory, the same step."""
    grad_clip: float | None = Field(None, gt=0)
    """The largest norm of the gradient of all parameters; a longer gradient is scaled down. Default: no limit."""
    label_smoothing: float = Field(0.0, ge=0, lt=1)
    """The target probability that is spread uniformly over the vocabulary."""
    seed: int = Field(0, ge=0)
    """Seed of the initial weights, the data order and dropout."""
    init_seed: int | None = Field(None, ge=0)
    """Seed of the initial weights alone. Default: `train.seed`."""
    reinitialize: str | None = None
    """Tensors drawn from a second random stream, such as `ffn`: a change without an expected effect."""
    freeze: str | None = None
    """Tensors without gradient and optimizer state, which end as they began: `embed,blocks.0,blocks.1` or `ffn`."""
    tuning_split: bool = False
    """Train on the first 90% of the training split and validate on its last 10%."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """Where the run computes; `auto` takes a CUDA GPU or the CPU; `mps` is checked against the CPU first."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Number format of the matrix products; `auto` takes bfloat16 where the machine has instructions for it."""
    attention_backend: BackendName = "auto"
    """How attention is computed; `auto` takes the fastest backend that supports the layer."""
    ffn_backend: BackendName = "auto"
    """How feed-forward layers are computed; `auto` takes the fastest backend that supports the layer."""
    block_backend: BackendName = "auto"
    """How whole blocks are computed; `auto` takes the fastest backend that supports the block."""
    compile: bool | None = None
    """torch.compile the whole model, without the C++ kernels. Default: on CUDA."""
    threads: int | None = Field(None, gt=0)
    """CPU threads. Default: torch's."""
    deterministic: bool = False
    """Bitwise equal results with any number of threads: torch then has one, the C++ kernels have all."""
    eval_every: int | None = Field(None, gt=0)
    """Steps between evaluations. Default: a tenth of `train.steps`."""
    save_every: int = Field(500, gt=0)
    """Steps between checkpoints."""
    activation_checkpointing: bool = False
    """Compute activations again in the backward pass: less memory, more time."""
    validation_estimator: Literal["full", "random"] = "full"
    """Validate on the full split, or on 200 random batches as the tutorials do."""
    parallel: Literal["ddp", "fsdp"] = "ddp"
    """Several processes each hold the model (`ddp`), or a shard of every parameter (`fsdp`)."""
    log: Literal["none", "tensorboard", "wandb"] = "none"
    """Where losses and rates go besides `metrics.jsonl`: TensorBoard or Weights & Biases."""

    @property
    def weights_seed(self) -> int:
        """The seed of the initial weights."""
        return self.seed if self.init_seed is None else self.init_seed


class RunConfig(Config):
    """Everything needed to reproduce a run. Serialized as one flat mapping with the model's fields at the root."""

    model: ModelConfig
    train: TrainConfig
    optimizer: Optimizer
    schedule: Schedule
    averaging: Annotated[Averaging, Neutral(NoAveraging())] = Field(default_factory=NoAveraging)
    data: Corpus
    tokenizer: TokenizerRecipe
    initial_weights: InitialWeights | None = None  # the setting `from`; absent if None

    def __str__(self) -> str:
        """The settings of the model, then `train.*`, then the other parts."""
        train = [
            f"{f'train.{line[:NAME_WIDTH].rstrip()}':{NAME_WIDTH}}{line[NAME_WIDTH:]}"
            for line in str(self.train).splitlines()
        ]
        names = ("optimizer", "schedule", "averaging", "data", "tokenizer")
        return "\n".join([str(self.model), *train, *(f"{name:{NAME_WIDTH}}{getattr(self, name)}" for name in names)])

    def to_dict(self) -> dict[str, Any]:
        return self._flat(super().to_dict())

    def to_stored(self) -> dict[str, Any]:
        return self._flat(super().to_stored())

    def _flat(self, values: dict[str, Any]) -> dict[str, Any]:
        initial = values.pop("initial_weights")
        return {**values.pop("model"), **values, **({FROM: initial} if initial else {})}

    @classmethod
    def from_dict(cls, values: Any, prefix: str = "") -> Self:
        rest = {key: value for key, value in values.items() if key in cls.model_fields and key != "model"}
        model = ModelConfig.from_dict({key: value for key, value in values.items() if key not in (*rest, FROM)})
        train = TrainConfig.from_dict(rest.pop("train"), prefix="train")
        if values.get(FROM) is not None:
            rest["initial_weights"] = InitialWeights.from_dict(values[FROM], prefix=FROM)
        config = super().from_dict({"model": model, "train": train, **rest}, prefix)
        config.check()
        return config

    def with_override(self, override: str) -> Self:
        """The configuration with one override applied, such as `train.lr=1e-3`. Raises ConfigError."""
        return self.from_dict(apply_overrides(self.to_dict(), parse_overrides([override])))

    def with_seed(self, seed: int) -> Self:
        return self.model_copy(update={"train": self.train.model_copy(update={"seed": seed})})

    def check(self) -> None:
        if self.seq_len > self.model.context_length:
            raise ConfigError(
                f"train.seq_len={self.seq_len} exceeds context_length={self.model.context_length}: lower train.seq_len or "
                "raise context_length"
            )
        if self.model.init.adaptive_optimizers_only and not self.optimizer.adaptive:
            raise ConfigError(
                f"init={self.model.init.name} requires an adaptive optimizer, not optimizer={self.optimizer.name}: "
                "choose adamw or lion, or another init"
            )
        if self.train.freeze is not None:
            self.trainable_parameters()  # a pattern may match nothing
        for part in self.model.parts():
            if self.data.paired and part.needs_text:
                raise ConfigError(
                    f"{part.family}={part.name} needs text, but data={self.data.name} contains pairs: set {part.family}=none"
                )
        masked = self.data.masked_share > 0
        if masked != self.model.encoder_only and not self.data.paired:
            raise ConfigError(
                f"data.mask_rate={self.data.masked_share:g} is for an encoder alone: set n_layers=0 and encoder_layers, or "
                "data.mask_rate=0"
                if masked
                else "n_layers=0 is an encoder alone, which predicts masked tokens: set data.mask_rate=0.15, or n_layers"
            )
        if self.data.paired != self.model.takes_source:
            raise ConfigError(
                f"data={self.data.name} contains pairs, which need an encoder and a decoder: set encoder_layers and "
                "n_layers, or use text data"
                if self.data.paired
                else f"encoder_layers={self.model.encoder_layers} needs a source, but data={self.data.name} has none: "
                "use pairs, such as data=arithmetic_pairs or a .tsv file, or set encoder_layers=0"
            )
        if self.train.compile and self.train.activation_checkpointing:
            raise ConfigError(
                "train.compile=true does not support train.activation_checkpointing=true: leave out one of them"
            )
        if self.train.batch_size % self.train.grad_accumulation:
            raise ConfigError(
                f"train.grad_accumulation={self.train.grad_accumulation} does not divide "
                f"train.batch_size={self.train.batch_size}: choose a divisor"
            )

    def trainable_parameters(self) -> int:
        """The number of parameters that training changes: all but those that `train.freeze` names. Raises ConfigError."""
        if self.train.freeze is None:
            return self.model.parameters()
        return sum(parameter.numel() for parameter in self._frozen_model().parameters() if parameter.requires_grad)

    def _frozen_model(self) -> Transformer:
        """The model on the meta device, with the parameters that `train.freeze` names frozen. Raises ConfigError."""
        model = meta_model(self.model)
        if self.train.freeze is not None:
            freeze(model, self.train.freeze)
        return model

    def flops_per_token(self) -> int:
        """FLOPs of one training step per token, without gradients that `train.freeze` spares. Raises ConfigError."""
        frozen = None if self.train.freeze is None else self._frozen_model()
        return self.model.flops_per_token(self.seq_len, frozen)

    def flops_per_step(self) -> int:
        """FLOPs of one training step, with the matmuls of the optimizer. Raises ConfigError."""
        model = self._frozen_model()
        frozen = None if self.train.freeze is None else model
        tokens = self.train.batch_size * self.seq_len
        return tokens * self.model.flops_per_token(self.seq_len, frozen) + self.optimizer.flops(model)

    def count_parameters(self) -> str:
        """`1,000 parameters`, with the number of trainable ones if some are frozen."""
        total = f"{self.model.parameters():,} parameters"
        return total if self.train.freeze is None else f"{total} ({self.trainable_parameters():,} trainable)"

    def prepare(self) -> Dataset:
        """The run's dataset, created if it does not exist. Raises ConfigError."""
        dataset = prepare(self.data, self.tokenizer)
        return dataset.tuning_split() if self.train.tuning_split else dataset

    @property
    def seq_len(self) -> int:
        return self.train.seq_len or self.model.context_length

    @property
    def eval_every(self) -> int:
        return self.train.eval_every or max(1, self.train.steps // 10)


FROM = "from"
"""The setting of the initial weights; in place of a preset's name, `from=PATH` takes over the other settings as well."""


def default_settings() -> dict[str, Any]:
    """The flat configuration before any preset."""
    return {
        **ModelConfig().to_dict(),
        "train": TrainConfig().to_dict(),
        "optimizer": Optimizer.resolve("adamw").to_dict(),
        "schedule": Schedule.resolve("constant").to_dict(),
        "averaging": NoAveraging().to_dict(),
        "data": Corpus.resolve("shakespeare").to_dict(),
        "tokenizer": TokenizerRecipe.resolve("characters").to_dict(),
    }


def preset_settings(name: str) -> dict[str, Any]:
    """The flat configuration of a preset or a YAML file (which may extend another with `preset: NAME`)."""
    values = reduce(apply_overrides, _override_layers(name), default_settings() | {FROM: {}})
    return {key: value for key, value in values.items() if key != FROM or value}


def _override_layers(name: str, parents: tuple[str, ...] = ()) -> list[list[Override]]:
    """The overrides of a preset or a YAML file, preceded by those of the preset or file that it extends."""
    if name.startswith(f"{FROM}="):
        source = find_source(name.removeprefix(f"{FROM}="))
        settings = RunConfig.from_stored(source.settings).to_dict() if source.stored_run else source.settings
        return [flatten({**settings, FROM: source.initial_weights()})]
    if Path(name).suffix not in (".yaml", ".yml"):
        return [flatten(find_preset(name).settings)]
    if name in parents:
        raise ConfigError(f"preset: {' -> '.join([*parents, name])!r} is circular: name another preset")
    values = read_yaml(Path(name))
    base = values.pop("preset", None)
    return [
        *([] if base is None else _override_layers(str(base), (*parents, name))),
        expand_data(distinct(flatten(values))),
    ]


def expand_data(overrides: list[Override]) -> list[Override]:
    """Replace a path in `data=notes.txt` by the corpus `text` with that path, and one in `from=runs/a` by its weights."""
    expanded: list[Override] = []
    for path, value in overrides:
        if path == ("data",) and isinstance(value, str):
            expanded += flatten({"data": parse_data_option(value)})
        elif path == (FROM,) and isinstance(value, str):
            expanded += flatten({FROM: find_source(value).initial_weights()})
        else:
            expanded.append((path, value))
    return expanded


def run_config(name: str, *overrides: str, data: str | None = None, common: Iterable[str] = ()) -> RunConfig:
    """The run configuration of a preset or YAML file, with overrides such as `"ffn=swiglu"` and `"train.lr=1e-3"`.

    `data` is the name of a corpus or the path of a text file. The data determine the vocabulary. `common` are overrides that
    several configurations share; `overrides` replace them. Raises ConfigError.
    """
    given = ([] if data is None else [(("data",), data)]) + parse_overrides(overrides)
    distinct([override for override in given if override[0] == ("data",)])
    last = expand_data([override for word in common for override in parse_overrides([word])] + given)
    layers = [*_override_layers(name), last]
    values = reduce(apply_overrides, layers, default_settings() | {FROM: {}})
    return resolve_settings(
        values, explicit_vocab_size=any(path == ("vocab_size",) for layer in layers for path, _ in layer)
    )


def resolve_settings(values: dict[str, Any], explicit_vocab_size: bool = False) -> RunConfig:
    """Validate a flat configuration and set the model's vocabulary size from its data."""
    values = {key: value for key, value in values.items() if key != FROM or value}
    corpus, recipe = Corpus.resolve(values["data"]), TokenizerRecipe.resolve(values["tokenizer"])
    assert isinstance(corpus, Corpus) and isinstance(recipe, TokenizerRecipe)
    needed = recipe.expected_vocab_size(corpus) + 3 * corpus.paired + (corpus.masked_share > 0)  # the mask has an id
    if explicit_vocab_size and type(values["vocab_size"]) is int and values["vocab_size"] < needed:
        raise ConfigError(
            f"vocab_size={values['vocab_size']} is smaller than the data's vocabulary, {needed}: omit vocab_size"
        )
    if corpus.paired and values["padding_idx"] is None:
        values = {**values, "padding_idx": needed - 3}
    return RunConfig.from_dict({**values, **({} if explicit_vocab_size else {"vocab_size": needed})})


PADDING = 128
"""Tables are padded to multiples of this at most, which some accelerators compute faster."""


def vocabulary_note(config: RunConfig, dataset: Dataset) -> str | None:
    """One line if the embedding table has many more rows than the data have token ids, beyond padding; else None."""
    rows, ids = config.model.vocab_size, dataset.vocab_size
    if rows <= -(-ids // PADDING) * PADDING:
        return None
    remedy = "choose the tokenizer that these weights were trained with"
    if config.initial_weights is None:
        remedy = f"add vocab_size={ids}, or a tokenizer with more ids (tokenizer=bpe)"
    return (
        f"note: the embedding table has {rows:,} rows, but tokenizer={config.tokenizer.name} has {ids:,} ids; the other rows "
        f"only cost memory and time: {remedy}"
    )
