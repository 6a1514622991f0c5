"""Commands for one model: train, evaluate, inspect, and describe."""

import os
import shlex
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from partwise.cli.completion import complete_preset
from partwise.cli.options import (
    ALLOW_OVERRIDES,
    FLAG,
    Data,
    Figures,
    Import,
    Json,
    Name,
    Overrides,
    Preset,
    RunName,
    app,
    collect_overrides,
    load_imports,
    tokenizer_app,
)
from partwise.cli.signals import ENDING

CHECKED_PRESET = "mingpt"
"""The preset of `check` without an argument."""


@app.command(context_settings=ALLOW_OVERRIDES)
def train(
    context: typer.Context,
    preset: Annotated[
        str,
        typer.Argument(
            help="A preset (mingpt, toy, llama), a YAML file, or from=RUN to continue from its weights.",
            autocompletion=complete_preset,
        ),
    ] = "fast",
    overrides: Overrides = None,
    data: Data = None,
    name: Name = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", metavar=FLAG, help="Delete the run's folder and start over.")
    ] = False,
    processes: Annotated[
        int | None,
        typer.Option(
            "--processes",
            help="Share each batch between N processes of this machine (train.parallel=ddp or fsdp). torchrun starts "
            "them on several machines.",
            metavar="N",
            min=1,
        ),
    ] = None,
    imports: Import = None,
    allow_leak: Annotated[
        bool,
        typer.Option(
            "--allow-leak", metavar=FLAG, help="Train although a part of your own sees the tokens that it predicts."
        ),
    ] = False,
) -> None:
    """Train a model. Run the same command again to resume an interrupted run."""
    from partwise.config import ConfigError
    from partwise.train.distributed.environment import launched

    if processes and launched() and os.environ["WORLD_SIZE"] != str(processes):
        size = os.environ["WORLD_SIZE"]
        raise ConfigError(
            f"--processes {processes}: torchrun already started {size} process{'' if size == '1' else 'es'}; omit --processes"
        )
    if processes and processes > 1 and not launched():
        from partwise.train.distributed.launcher import check_cores, launch

        check_cores(processes)
        raise typer.Exit(launch(processes, sys.argv[1:], (signal.SIGINT, *ENDING)))
    load_imports(imports)
    from partwise.cli.commands.train import train_run, train_with_others

    changes = collect_overrides(context, overrides)
    if is_override(preset):
        preset, changes = "fast", [preset, *changes]
    start = train_with_others if launched() else train_run
    raise typer.Exit(start(preset, changes, data, name, fresh, shlex.join(["partwise", *sys.argv[1:]]), allow_leak))


@app.command(context_settings=ALLOW_OVERRIDES)
def check(
    context: typer.Context,
    preset: Annotated[
        str, typer.Argument(help="A preset or a YAML file.", autocompletion=complete_preset)
    ] = CHECKED_PRESET,
    overrides: Overrides = None,
    data: Data = None,
    imports: Import = None,
) -> None:
    """Check parts of your own: that no position sees later ones, and more. Exits with 1 if one does."""
    load_imports(imports)
    from partwise.cli.commands.check import check_preset

    changes = collect_overrides(context, overrides)
    if is_override(preset):
        preset, changes = CHECKED_PRESET, [preset, *changes]
    raise typer.Exit(check_preset(preset, changes, data))


def is_override(preset: str) -> bool:
    """Whether the preset was omitted, and an override is in its place."""
    return "=" in preset and not preset.endswith((".yaml", ".yml")) and not preset.startswith("from=")


@app.command("eval")
def evaluate(
    run: RunName,
    max_problems: Annotated[
        int | None,
        typer.Option(help="Maximum number of arithmetic problems, or of items of a task. Default: all.", min=1),
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="Other data than the run's: a corpus or a file, encoded by the run's tokenizer.")
    ] = None,
    tasks: Annotated[
        list[str] | None,
        typer.Option(
            help="Score this task of lm_eval instead: arithmetic, shakespeare_cloze, a folder of task files, or a name that "
            "lm_eval knows. Repeat it for several."
        ),
    ] = None,
    precision: Annotated[
        str | None, typer.Option(help="float32 or bfloat16. Default: the precision of the run.")
    ] = None,
    seq_len: Annotated[
        int | None,
        typer.Option(
            help="Tokens per window, also more than in training; the targets stay the same. Default: train.seq_len.",
            min=1,
        ),
    ] = None,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FILE] [KEY=VALUE]...",
            help="With --json: the file of the document, in place of standard output. Overrides such as "
            "positions=rope_ntk change how the trained weights compute.",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
    imports: Import = None,
) -> None:
    """Evaluate a run on its full validation split, next to n-gram and constant references."""
    load_imports(imports)
    from partwise.cli.commands.evaluate import evaluate_run, split_words

    file, overrides = split_words(run, words or [])
    if tasks:
        from partwise.cli.commands.harness import evaluate_tasks

        changes = overrides if seq_len is None else [*overrides, f"--seq-len {seq_len}"]
        evaluate_tasks(run, tasks, max_problems, data, precision, as_json, file, changes)
        return
    evaluate_run(run, max_problems, data, precision, as_json, file, overrides, seq_len)


@app.command(context_settings=ALLOW_OVERRIDES)
def doctor(
    context: typer.Context,
    presets: Annotated[
        list[str] | None,
        typer.Argument(help="Presets to report on, and overrides such as ffn=swiglu. Default: one preset per family."),
    ] = None,
    time: Annotated[
        bool,
        typer.Option(
            "--time", metavar=FLAG, help="Time training steps with these backends, without, and with torch.compile."
        ),
    ] = False,
    imports: Import = None,
) -> None:
    """Report this machine's capabilities, missing components, and the backends that each preset uses.

    For presets that you name, it says why layers do not use a faster backend, and with --time what that costs.
    """
    load_imports(imports)
    from partwise.cli.commands.doctor import show_machine

    words = [*(presets or []), *context.args]
    overrides = [word for word in words if "=" in word]
    show_machine([word for word in words if "=" not in word], overrides, time)


@app.command(context_settings=ALLOW_OVERRIDES)
def inspect(
    context: typer.Context,
    target: Annotated[str, typer.Argument(help="A preset, or the name or folder of a run.")],
    what: Annotated[
        str,
        typer.Argument(
            help="activations, attention, coordinates, cost, gradients, length, logit-lens, lr-transfer, memory or positions."
        ),
    ],
    overrides: Overrides = None,
    data: Data = None,
    seq_len: Annotated[
        int | None,
        typer.Option(
            help="Tokens per sequence. Default: train.seq_len, at most 256; for length, the longest window: 4 train.seq_len."
        ),
    ] = None,
    text: Annotated[str | None, typer.Option(help="Input text. Default: a sample of the validation split.")] = None,
    processes: Annotated[
        int,
        typer.Option(
            "--processes",
            metavar="N",
            help="For memory: the memory of each of N processes, with ddp and with fsdp.",
            min=1,
        ),
    ] = 1,
    against: Annotated[
        str | None,
        typer.Option(
            help="Another preset or run: figures side by side, a table with both columns. Overrides hold for both."
        ),
    ] = None,
    figures: Figures = None,
    as_json: Json = False,
    imports: Import = None,
) -> None:
    """Inspect a preset or a run: print a table and write an HTML page with figures."""
    load_imports(imports)
    from partwise.cli.commands.inspect import inspect_target

    inspect_target(
        target, what, collect_overrides(context, overrides), data, seq_len, text, processes, against, figures, as_json
    )


@app.command()
def parts(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[WORD]",
            help="A family, part, option, setting or concept, such as ffn, rope, train.lr or dying relu. Default: all parts.",
        ),
    ] = None,
    imports: Import = None,
) -> None:
    """List the parts with their equations, papers and options; explain a part, a setting or a concept by its name."""
    load_imports(imports)
    if words:
        from partwise.cli.commands.explain import explain

        explain(" ".join(words))
    else:
        from partwise.cli.commands.describe import list_parts

        list_parts(None)


@app.command(context_settings=ALLOW_OVERRIDES)
def show(
    context: typer.Context,
    preset: Preset,
    overrides: Overrides = None,
    data: Data = None,
    vocab_size: Annotated[
        int | None, typer.Option(help="Vocabulary size if --data is not given. Default: the preset's, or the data's.")
    ] = None,
    imports: Import = None,
) -> None:
    """Print a configuration, its size, and its differences from the preset."""
    load_imports(imports)
    from partwise.cli.commands.describe import show_configuration

    show_configuration(preset, collect_overrides(context, overrides), data, vocab_size)


@tokenizer_app.command("train", context_settings=ALLOW_OVERRIDES)
def train_tokenizer(
    context: typer.Context,
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Overrides of the data, such as data.field=body.")
    ] = None,
    data: Annotated[str, typer.Option(help="Training text, as for `partwise train`.")] = "shakespeare",
    vocab_size: Annotated[int, typer.Option(help="Vocabulary size, including the 256 bytes.")] = 1024,
    out: Annotated[Path, typer.Option(help="Output file.")] = Path("tokenizer.json"),
) -> None:
    """Train a byte-level BPE tokenizer on a training split and write it as tokenizer.json."""
    from partwise.cli.commands.tokenizer import train_tokenizer as run

    run(data, collect_overrides(context, overrides), vocab_size, out)
