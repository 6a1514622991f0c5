"""The command line: each command reads its words and hands them on; heavy imports wait until they are needed."""

import shlex
import sys
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(
    name="partwise",
    help="Change one part of a transformer; know what it bought.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
study_app = typer.Typer(help="Published claims, checked.", no_args_is_help=True)
app.add_typer(study_app, name="study")
tokenizer_app = typer.Typer(help="Vocabularies of your own.", no_args_is_help=True)
app.add_typer(tokenizer_app, name="tokenizer")

# overrides may be written as `--key=value`: what a command does not know as an option is left to them
OPEN: dict[str, Any] = {"allow_extra_args": True, "ignore_unknown_options": True}

Preset = Annotated[str, typer.Argument(help="A preset (mingpt, toy, llama) or a YAML file.", show_default=False)]
Overrides = Annotated[list[str] | None, typer.Argument(help="Changes such as ffn=swiglu train.lr=1e-3.")]
Data = Annotated[str | None, typer.Option(help="arithmetic, shakespeare, python, a text file, .jsonl or folder.")]
Name = Annotated[str | None, typer.Option(help="The folder below runs/; made from the command where not given.")]
Import = Annotated[list[str] | None, typer.Option("--import", help="A module or .py file with parts of your own.")]
RunName = Annotated[str, typer.Argument(metavar="RUN", help="A run's name below runs/, or its folder.")]


def words_of(context: typer.Context, overrides: list[str] | None) -> list[str]:
    return [*(overrides or []), *context.args]


def load_imports(sources: list[str] | None) -> tuple[str, ...]:
    from partwise.config import import_parts

    for source in sources or []:
        import_parts(source)
    return tuple(str(Path(source).resolve()) if source.endswith(".py") else source for source in sources or [])


@app.command(context_settings=OPEN)
def train(
    context: typer.Context,
    preset: Annotated[str, typer.Argument(help="A preset (mingpt, toy, llama) or a YAML file.")] = "fast",
    overrides: Overrides = None,
    data: Data = None,
    name: Name = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start over, deleting what the run's folder holds.")] = False,
    imports: Import = None,
) -> None:
    """Train one model; interrupted, the same command continues."""
    load_imports(imports)
    from partwise.commands.training import train_run

    words = words_of(context, overrides)
    if "=" in preset and not preset.endswith((".yaml", ".yml")):  # a change of the preset that was left out
        preset, words = "fast", [preset, *words]
    raise typer.Exit(train_run(preset, words, data, name, fresh, shlex.join(["partwise", *sys.argv[1:]])))


@app.command("eval")
def evaluate(
    run: RunName,
    problems: Annotated[
        int | None, typer.Option(help="Arithmetic: how many test problems; all where not given.")
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Also write the scores to this file.")] = None,
    imports: Import = None,
) -> None:
    """Score a run on its whole validation split, beside its floors."""
    load_imports(imports)
    from partwise.commands.scoring import evaluate_run

    evaluate_run(run, problems, json_file)


@app.command()
def generate(
    run: RunName,
    prompt: Annotated[list[str] | None, typer.Option(help="Text to continue; repeat it for a batch.")] = None,
    length: Annotated[int, typer.Option(help="Tokens to write at most.")] = 200,
    temperature: Annotated[float, typer.Option(help="0 takes the most likely token.")] = 0.8,
    top_k: Annotated[int | None, typer.Option(help="Draw from the K most likely tokens only.")] = None,
    top_p: Annotated[float, typer.Option(help="Draw from the fewest likely tokens that reach this probability.")] = 1.0,
    stop: Annotated[str | None, typer.Option(help="End after this token.")] = None,
    beams: Annotated[int | None, typer.Option(help="Search for the likeliest text with so many beams.", min=1)] = None,
    seed: Annotated[int, typer.Option(help="Equal seeds, equal texts.", min=0)] = 0,
    precision: Annotated[
        str, typer.Option(help="Of the weights: float32, or bfloat16, faster and rounded.")
    ] = "float32",
    path: Annotated[
        str, typer.Option(help="torch, kernel (ours, compiled), or auto: the kernel where it can.")
    ] = "auto",
    imports: Import = None,
) -> None:
    """Continue a prompt with a trained model."""
    load_imports(imports)
    from partwise.commands.training import generate_text

    generate_text(run, prompt or [], length, temperature, top_k, top_p, stop, seed, beams, precision, path)


@app.command()
def doctor(
    presets: Annotated[list[str] | None, typer.Argument(help="Presets to tell about; one of each family else.")] = None,
) -> None:
    """Say what this machine can do, what it lacks, and which path each preset takes."""
    from partwise.commands.doctoring import show_machine

    show_machine(presets or [])


@app.command(context_settings=OPEN)
def inspect(
    context: typer.Context,
    target: Annotated[str, typer.Argument(help="A preset, or the name or folder of a run.")],
    what: Annotated[
        str,
        typer.Argument(
            help="What to look at: activations, attention, coordinates, cost, gradients, lens, positions or transfer."
        ),
    ],
    overrides: Overrides = None,
    data: Data = None,
    length: Annotated[int | None, typer.Option("--context", help="Tokens to look at.")] = None,
    text: Annotated[str | None, typer.Option(help="A text to show the model; else some of its data.")] = None,
    imports: Import = None,
) -> None:
    """Look inside a preset or a run; the table is printed, the figures go into a page."""
    load_imports(imports)
    from partwise.commands.inspecting import inspect_target

    inspect_target(target, what, words_of(context, overrides), data, length, text)


@app.command(context_settings=OPEN)
def compare(
    context: typer.Context,
    preset: Preset,
    overrides: Overrides = None,
    data: Data = None,
    arm: Annotated[list[str] | None, typer.Option(help="One more arm: its overrides in quotes. Repeatable.")] = None,
    interaction: Annotated[
        list[str] | None, typer.Option(help="Give it twice: two changes, each alone and both together.")
    ] = None,
    common: Annotated[list[str] | None, typer.Option(help="An override for every arm. Repeatable.")] = None,
    seeds: Annotated[int | None, typer.Option(help="Paired seeds per arm: 5, or with --protocol 16.", min=1)] = None,
    first_seed: Annotated[int, typer.Option(help="The first of them.", min=0)] = 0,
    protocol: Annotated[
        bool, typer.Option("--protocol", help="Fix looks and stopping rule beforehand; judge as the seeds come.")
    ] = False,
    looks: Annotated[
        str | None, typer.Option(help="Numbers of seeds at which to judge, as 4,8,16: a protocol.")
    ] = None,
    variance: Annotated[str, typer.Option(help="pair, or residual: over all arms together.")] = "pair",
    margin: Annotated[float, typer.Option(help="A difference too small to matter, in nats.")] = 0.005,
    alpha: Annotated[float, typer.Option(help="The probability of a false claim, at most.")] = 0.05,
    null: Annotated[
        str | None, typer.Option(help="A control: a family, such as ffn, whose initial values are drawn again.")
    ] = None,
    planted: Annotated[str | None, typer.Option(help="A control: overrides with an effect that must be seen.")] = None,
    tune: Annotated[str | None, typer.Option(help="A number and its values: train.lr=1e-4,3e-4,1e-3.")] = None,
    tune_seeds: Annotated[int, typer.Option(help="Seeds per value, which the test does not use.", min=1)] = 2,
    match: Annotated[str | None, typer.Option(help="Held equal: tokens, parameters, flops or seconds.")] = None,
    grid: Annotated[
        list[str] | None,
        typer.Option(help="Values of a setting, as n_layers=2,4; one comparison for each. Repeatable."),
    ] = None,
    confirm: Annotated[bool, typer.Option("--confirm", help="Run what won again, on fresh seeds.")] = False,
    name: Name = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say how long it takes and what it could show.")] = False,
    sd: Annotated[float | None, typer.Option(help="The seed SD to assume in --dry-run.")] = None,
    workers: Annotated[int | None, typer.Option(help="Runs at once; one per core where not given.", min=1)] = None,
    imports: Import = None,
) -> None:
    """Compare a preset with its changed self over paired seeds, and say what the change bought."""
    from partwise.commands.comparing import compare_variants

    loaded = load_imports(imports)
    compare_variants(
        {
            "preset": preset,
            "change": words_of(context, overrides),
            "data": data,
            "arms": arm,
            "interaction": interaction,
            "common": common,
            "seeds": seeds,
            "first_seed": first_seed,
            "looks": looks,
            "variance": variance,
            "margin": margin,
            "alpha": alpha,
            "null": null,
            "planted": planted,
            "tune": tune,
            "tune_seeds": tune_seeds,
            "match": match,
        },
        protocol=protocol,
        grid=grid or [],
        confirm=confirm,
        name=name,
        dry_run=dry_run,
        sd=sd,
        workers=workers,
        imports=loaded,
    )


@app.command()
def parts(
    family: Annotated[str | None, typer.Argument(help="ffn, attention, positions, ...; all where not given.")] = None,
    imports: Import = None,
) -> None:
    """List the parts with their equations, papers and options."""
    load_imports(imports)
    from partwise.commands.describing import list_parts

    list_parts(family)


@app.command(context_settings=OPEN)
def show(
    context: typer.Context,
    preset: Preset,
    overrides: Overrides = None,
    data: Data = None,
    vocab_size: Annotated[
        int | None, typer.Option(help="Symbols, where no data is named; else the preset's, or 65.")
    ] = None,
    imports: Import = None,
) -> None:
    """Print a configuration, its size, and how exactly it differs from its preset."""
    load_imports(imports)
    from partwise.commands.describing import show_configuration

    show_configuration(preset, words_of(context, overrides), data, vocab_size)


@app.command()
def verdict(
    file: Annotated[Path, typer.Argument(help="A CSV file with the columns seed, arm and value.")],
    margin: Annotated[float, typer.Option(help="A difference too small to matter.")] = 0.005,
    higher: Annotated[bool, typer.Option("--higher", help="Higher values are better.")] = False,
    baseline: Annotated[str | None, typer.Option(help="The arm to compare with; the file's first otherwise.")] = None,
    look: Annotated[int, typer.Option(help="Which look at these growing data this is.")] = 1,
    metric: Annotated[str, typer.Option(help="What the values are, for the sentence.")] = "value",
    known_sd: Annotated[
        float | None, typer.Option("--known-sd", help="The SD of a single run, where it is known: a normal interval.")
    ] = None,
) -> None:
    """Judge anybody's own numbers: the same table, interval and verdict."""
    from partwise.commands.judging import judge_file

    settings = {"margin": margin, "higher": higher, "baseline": baseline, "look": look, "metric": metric}
    judge_file(file, **settings, known_sd=known_sd)


@study_app.command("run")
def run_study(
    study: Annotated[str, typer.Argument(help="A study's name in studies/, or its YAML file.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say how long it takes.")] = False,
) -> None:
    """Run every comparison of a study; interrupted, the same command continues."""
    from partwise.commands.comparing import run_study as run

    run(study, dry_run)


@tokenizer_app.command("train", context_settings=OPEN)
def train_tokenizer(
    context: typer.Context,
    overrides: Annotated[list[str] | None, typer.Argument(help="Changes to the data, as data.field=body.")] = None,
    data: Annotated[str, typer.Option(help="What to learn from, as for `partwise train`.")] = "shakespeare",
    vocab_size: Annotated[int, typer.Option(help="How many ids, of which 256 are the bytes.")] = 1024,
    out: Annotated[Path, typer.Option(help="The file to write.")] = Path("tokenizer.json"),
) -> None:
    """Learn byte-level BPE from a training split and write it as a tokenizer.json."""
    from partwise.commands.tokenizing import train_tokenizer as run

    run(data, words_of(context, overrides), vocab_size, out)


def name_value(message: str, words: list[str]) -> str:
    """A usage error with the value that the option was given, which the library leaves out."""
    for option, value in pairwise(words):
        if f"'{option}'" in message and value not in message:
            return f"{option} {value}: {message[0].lower()}{message[1:]}; see --help"
    return f"{message.removesuffix('.')}; see --help"


def main() -> None:
    """The `partwise` command. Bad input ends in one line on stderr and status 2, an interrupt in status 130."""
    from partwise.terminal import fail

    try:
        status = app(standalone_mode=False)
    except (KeyboardInterrupt, typer.Abort):
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(141)
    except Exception as error:
        from partwise.config import ConfigError

        # a misused option; its class depends on whether typer brings click along or imports it
        usage = getattr(error, "format_message", None)
        if not isinstance(error, ConfigError) and usage is None:
            raise
        fail(name_value(usage(), sys.argv) if usage else error)
        sys.exit(2)
    sys.exit(status if isinstance(status, int) else 0)
