"""A trained model for evaluation, with the device, threads and backends of its run, which reproduce its losses."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from partwise.compute.backend_plan import plan_backends
from partwise.compute.runtime import Runtime, machine_info, requested
from partwise.config import ConfigError
from partwise.config.overrides import apply_overrides, distinct, parse_overrides
from partwise.config.yaml import show
from partwise.kernels.library import kernels_available
from partwise.model import ModelConfig, Transformer
from partwise.model.reconfigured import reconfigured
from partwise.tokenizers import Tokenizer
from partwise.train.config import RunConfig
from partwise.train.run_metadata import load_run, open_run, read_plan, read_runtime


@dataclass(frozen=True)
class TrainedModel:
    """The model of a run, or of a folder as `transformers` writes it."""

    model: Transformer
    tokenizer: Tokenizer
    config: RunConfig
    metadata: dict[str, Any]
    runtime: Runtime


def open_trained(
    name: str, precision: str | None = None, overrides: Sequence[str] = (), seq_len: int | None = None
) -> TrainedModel:
    """The model of a run, ready to be evaluated; this process then has the threads of the run.

    Its device, precision and backends are those of the run where this machine has them; `precision` float32 or bfloat16
    replaces the run's. `overrides` change how the trained weights compute, such as `positions=rope_ntk`, and `seq_len`
    the tokens of a window, beyond context_length too. Raises ConfigError.
    """
    check_precision(precision)
    folder, stored_config, metadata = open_run(name)
    config = changed_config(stored_config, overrides, seq_len)
    model, tokenizer = load_run(folder, stored_config, metadata)
    if config.model != stored_config.model:
        model = reconfigured(model, config.model)
    stored = read_runtime(folder, metadata)
    runtime = replace(
        stored,
        device=stored.device if is_available(stored.device) else "cpu",
        precision=precision or stored.precision,
        kernels=stored.kernels and kernels_available(),
    )
    runtime.set_threads()
    model.to(runtime.device)
    unchanged = runtime == stored and config == stored_config
    if unchanged and "plan" in metadata and metadata["machine"] == machine_info():
        plan = read_plan(folder, metadata)  # an arm of a comparison has those that all arms share
    else:
        plan = plan_backends(model, runtime, requested(config.train), config.seq_len)
    plan.apply(model)
    return TrainedModel(model, tokenizer, config, metadata, runtime)


def changed_config(config: RunConfig, words: Sequence[str], seq_len: int | None = None) -> RunConfig:
    """A run's configuration for another computation with its weights: overrides of the model, and tokens per window.

    Raises ConfigError for overrides of anything else, and for a new part whose options differ from the trained part's.
    """
    overrides = distinct(parse_overrides(words))
    for (key, *_), _ in overrides:
        if key not in ModelConfig.model_fields:
            raise ConfigError(f"{key}=...: overrides change how the trained model computes, such as positions=rope_ntk")
    values = config.to_dict()
    if seq_len is not None:
        if config.data.paired or seq_len < 1:
            reason = "sources and targets have their own lengths" if config.data.paired else "must be at least 1"
            raise ConfigError(f"--seq-len {seq_len}: {reason}")
        values["train"]["seq_len"] = seq_len
        values["context_length"] = max(seq_len, values["context_length"])
    changed = apply_overrides(values, overrides)
    check_options_kept(values, RunConfig.from_dict(changed).to_dict(), {path for path, _ in overrides})
    return RunConfig.from_dict(changed)


def check_options_kept(old: dict[str, Any], new: dict[str, Any], given: set[tuple[str, ...]]) -> None:
    """Raise ConfigError if a new part has another value of an option of the trained part, which no override states.

    `positions=rope_ntk` would otherwise compute with the default `theta`, whatever the weights were trained with.
    """
    for family, options in new.items():
        trained = old[family]
        if (family,) not in given or not (isinstance(options, dict) and isinstance(trained, dict)):
            continue
        for option, value in options.items():
            if option != "part" and trained.get(option, value) != value and (family, option) not in given:
                kept = show(trained[option]).removesuffix(".0")
                raise ConfigError(
                    f"{family}={options['part']} sets {family}.{option}={show(value).removesuffix('.0')}, but the model was "
                    f"trained with {kept}: add {family}.{option}={kept}, or the value that you mean"
                )


def is_available(device: str) -> bool:
    """Whether torch finds a device of this kind here."""
    module: Any = torch.backends.mps if device == "mps" else getattr(torch, device, None)
    return hasattr(module, "is_available") and bool(module.is_available())


def check_precision(precision: str | None) -> None:
    """Raise ConfigError unless it is float32, bfloat16, or None for the run's."""
    if precision not in (None, "float32", "bfloat16"):
        raise ConfigError(f"precision={precision}: must be float32 or bfloat16")
