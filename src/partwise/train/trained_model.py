"""A trained model for evaluation, with the device, threads and backends of its run, which reproduce its losses."""

from dataclasses import dataclass, replace
from typing import Any

import torch

from partwise.compute.backend_plan import plan_backends
from partwise.compute.runtime import Runtime, machine_info, requested
from partwise.config import ConfigError
from partwise.formats.loading import load
from partwise.kernels.library import kernels_available
from partwise.model import Transformer
from partwise.tokenizers import Tokenizer
from partwise.train.config import RunConfig
from partwise.train.run_metadata import open_run, read_plan, read_runtime


@dataclass(frozen=True)
class TrainedModel:
    """The model of a run, or of a folder as `transformers` writes it."""

    model: Transformer
    tokenizer: Tokenizer
    config: RunConfig
    metadata: dict[str, Any]
    runtime: Runtime


def open_trained(name: str, precision: str | None = None) -> TrainedModel:
    """The model of a run, ready to be evaluated; this process then has the threads of the run.

    Its device, precision and backends are those of the run where this machine has them; `precision` float32 or bfloat16
    replaces the run's. Raises ConfigError.
    """
    check_precision(precision)
    folder, config, metadata = open_run(name)
    model, tokenizer = load(folder)
    stored = read_runtime(folder, metadata)
    runtime = replace(
        stored,
        device=stored.device if is_available(stored.device) else "cpu",
        precision=precision or stored.precision,
        kernels=stored.kernels and kernels_available(),
    )
    runtime.set_threads()
    model.to(runtime.device)
    if runtime == stored and "plan" in metadata and metadata["machine"] == machine_info():
        plan = read_plan(folder, metadata)  # an arm of a comparison has those that all arms share
    else:
        plan = plan_backends(model, runtime, requested(config.train), config.seq_len)
    plan.apply(model)
    return TrainedModel(model, tokenizer, config, metadata, runtime)


def is_available(device: str) -> bool:
    """Whether torch finds a device of this kind here."""
    module: Any = torch.backends.mps if device == "mps" else getattr(torch, device, None)
    return hasattr(module, "is_available") and bool(module.is_available())


def check_precision(precision: str | None) -> None:
    """Raise ConfigError unless it is float32, bfloat16, or None for the run's."""
    if precision not in (None, "float32", "bfloat16"):
        raise ConfigError(f"precision={precision}: must be float32 or bfloat16")
