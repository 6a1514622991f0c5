"""Small copies of a model at several widths, to train: what is widened, what is left out, and how far the work is."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from typing import Any

from partwise.config import ConfigError
from partwise.inspection.subject import Subject, preset_config
from partwise.train.card import open_run
from partwise.train.settings import RunConfig

LAYERS = 2  # of each stack, where the user asks for no other number
ROWS = 8  # of a batch
CONTEXT = 32  # tokens of a row, where the user asks for no other number

SIZES = ("hidden", "head_dim", "rope_dim", "value_dim", "kv_rank", "q_rank")
"""Options of attention and feed-forward that are widths: given as numbers, they keep their proportion to d_model."""


def trial(subject: Subject, **train: Any) -> tuple[RunConfig, str]:
    """What is widened: the subject's configuration on few layers and small batches, and that in words.

    Numbers of layers and a schedule that the user's overrides set stand. Raises ConfigError.
    """
    if subject.text is not None:
        raise ConfigError("--text: this look trains, and needs more than a line: name a corpus or a file by --data")
    config, own = subject.config, before_overrides(subject)
    depths = (config.model.n_layers, config.model.encoder_layers)
    if depths == (own.model.n_layers, own.model.encoder_layers):
        depths = (min(depths[0], LAYERS), min(depths[1], LAYERS))
    context = subject.asked_context or min(CONTEXT, config.model.max_len)
    values = shallow(config.to_dict(), *depths)
    values["train"] |= {"batch_size": ROWS, "context": context, "accumulate": 1} | train
    if config.schedule == own.schedule:
        values["schedule"] = {"part": "constant"}
    whole = counted(depths[0], config.model.n_layers, "layers")
    whole += f", {counted(depths[1], config.model.encoder_layers, 'of the encoder')}," if depths[1] else ""
    rows = f"{ROWS} pairs" if depths[1] else f"{ROWS} rows of {context} tokens"
    who = "The preset" if subject.run is None else "The run's configuration with fresh initial values,"
    return RunConfig.from_dict(values), (
        f"{who} on {whole} and batches of {rows}, the schedule {values['schedule']['part']}. The number of heads stays, "
        "so that heads widen with the model"
    )


def before_overrides(subject: Subject) -> RunConfig:
    """The preset or run as it is of itself."""
    return preset_config(subject.name, [], [], None) if subject.run is None else open_run(subject.run)[1]


def counted(kept: int, own: int, what: str) -> str:
    return f"{kept} {what}" if kept == own else f"{kept} (not {own}) {what}"


def shallow(values: dict[str, Any], n_layers: int, encoder_layers: int) -> dict[str, Any]:
    """A plain configuration of so many layers: of parts listed layer by layer, the first ones."""
    cut = {name: value[:n_layers] if isinstance(value, list) else value for name, value in values.items()}
    return cut | {"n_layers": n_layers, "encoder_layers": encoder_layers}


def widened(config: RunConfig, width: int) -> RunConfig:
    """The configuration at another d_model, what is given as a number of `SIZES` in proportion. Raises ConfigError."""

    def scaled(path: str, value: Any) -> Any:
        if isinstance(value, list):
            return [scaled(path, item) for item in value]
        if isinstance(value, dict):
            return {key: scaled(path if key == "cycle" else f"{path}.{key}", item) for key, item in value.items()}
        if value is None or path.rpartition(".")[2] not in SIZES:
            return value
        size = Fraction(value * width, config.model.d_model)
        if size.denominator > 1:
            raise ConfigError(
                f"width {width}: {path}={value} of d_model={config.model.d_model} would be {float(size):.2f} there: set "
                f"{path}=null, or a d_model that {width} or its multiple divides"
            )
        return int(size)

    values = config.to_dict()
    parts = {family: scaled(family, values[family]) for family in ("attention", "ffn")}
    try:
        return RunConfig.from_dict(values | parts | {"d_model": width})
    except ConfigError as error:
        raise ConfigError(f"width {width}: {error}") from None


@contextmanager
def following(what: str, total: int) -> Iterator[Callable[[], None]]:
    """Show how many pieces of work are done and how long the rest takes; call what this yields after each.

    A bar on a terminal, gone at the end; elsewhere a line after each tenth.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console, began, done = Console(highlight=False, soft_wrap=True), time.monotonic(), 0
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(what, total=total)

        def advance() -> None:
            nonlocal done
            done += 1
            progress.advance(task)
            if not console.is_terminal and done < total and done * 10 // total > (done - 1) * 10 // total:
                left = (time.monotonic() - began) / done * (total - done)
                console.print(f"{done} of {total} {what}, about {left:.0f} s left")

        yield advance
