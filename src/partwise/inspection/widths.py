"""Small copies of a model at several widths, for the inspections that train, and their progress bar."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from typing import Any

from partwise.config import ConfigError
from partwise.inspection.subject import Subject
from partwise.train.config import RunConfig, run_config
from partwise.train.run_metadata import open_run

N_LAYERS = 2  # default, per stack
BATCH_SIZE = 8
SEQ_LEN = 32  # default

SCALED_OPTIONS = ("hidden", "head_dim", "rope_head_dim", "v_head_dim", "kv_lora_rank", "q_lora_rank")
"""Options of attention and feed-forward that are widths: numbers set explicitly keep their ratio to d_model."""


def small_config(subject: Subject, **train: Any) -> tuple[RunConfig, str]:
    """The subject's configuration with few layers, small batches and settings `train`, and a description of it.

    Keeps numbers of layers and a schedule set by overrides. Raises ConfigError.
    """
    if subject.text is not None:
        raise ConfigError("--text: this inspection trains a model: name a corpus or a file with --data instead")
    config, original = subject.config, original_config(subject)
    depths = (config.model.n_layers, config.model.encoder_layers)
    if depths == (original.model.n_layers, original.model.encoder_layers):
        depths = (min(depths[0], N_LAYERS), min(depths[1], N_LAYERS))
    seq_len = subject.requested_seq_len or min(SEQ_LEN, config.model.context_length)
    values = with_layers(config.to_dict(), *depths)
    values["train"] |= {"batch_size": BATCH_SIZE, "seq_len": seq_len, "grad_accumulation": 1} | train
    if config.schedule == original.schedule:
        values["schedule"] = {"part": "constant"}
    layers = layer_count(depths[0], config.model.n_layers, "layers")
    layers += f", {layer_count(depths[1], config.model.encoder_layers, 'encoder layers')}" if depths[1] else ""
    batch = f"{BATCH_SIZE} pairs" if depths[1] else f"{BATCH_SIZE} rows of {seq_len} tokens"
    source = "The preset" if subject.run is None else "The run's configuration with new initial weights"
    return RunConfig.from_dict(values), (
        f"{source}: {layers}, batches of {batch}, {values['schedule']['part']} schedule. The number of heads is fixed; "
        "head_dim grows with the width"
    )


def original_config(subject: Subject) -> RunConfig:
    """The configuration of the preset or run before the user's overrides."""
    return run_config(subject.name) if subject.run is None else open_run(subject.run)[1]


def layer_count(n: int, original: int, noun: str) -> str:
    return f"{n} {noun}" if n == original else f"{n} (not {original}) {noun}"


def with_layers(values: dict[str, Any], n_layers: int, encoder_layers: int) -> dict[str, Any]:
    """A plain configuration with these numbers of layers; lists of parts per layer keep their first items."""
    truncated = {name: value[:n_layers] if isinstance(value, list) else value for name, value in values.items()}
    return truncated | {"n_layers": n_layers, "encoder_layers": encoder_layers}


def with_width(config: RunConfig, width: int) -> RunConfig:
    """The configuration at another d_model, with `SCALED_OPTIONS` scaled by the same factor. Raises ConfigError."""

    def scaled(path: str, value: Any) -> Any:
        if isinstance(value, list):
            return [scaled(path, item) for item in value]
        if isinstance(value, dict):
            return {key: scaled(path if key == "cycle" else f"{path}.{key}", item) for key, item in value.items()}
        if value is None or path.rpartition(".")[2] not in SCALED_OPTIONS:
            return value
        size = Fraction(value * width, config.model.d_model)
        if size.denominator > 1:
            raise ConfigError(
                f"width {width}: {path}={value} at d_model={config.model.d_model} would become {float(size):.2f}: set "
                f"{path}=null, or a d_model that divides {width}"
            )
        return int(size)

    values = config.to_dict()
    parts = {family: scaled(family, values[family]) for family in ("attention", "ffn")}
    try:
        return RunConfig.from_dict(values | parts | {"d_model": width})
    except ConfigError as error:
        raise ConfigError(f"width {width}: {error}") from None


@contextmanager
def show_progress(noun: str, total: int) -> Iterator[Callable[[], None]]:
    """Show how many of `total` items are done and the time remaining; yields a function to call after each item.

    On a terminal, a progress bar that disappears at the end; elsewhere, a line after each tenth.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console, start, done = Console(highlight=False, soft_wrap=True), time.monotonic(), 0
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(noun, total=total)

        def advance() -> None:
            nonlocal done
            done += 1
            progress.advance(task)
            if not console.is_terminal and done < total and done * 10 // total > (done - 1) * 10 // total:
                remaining = (time.monotonic() - start) / done * (total - done)
                console.print(f"{done} of {total} {noun}, about {remaining:.0f} s left")

        yield advance
