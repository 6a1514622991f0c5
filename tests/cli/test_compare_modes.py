"""The four modes of `compare`: each lists its own options and refuses those of the others."""

import sys
from pathlib import Path

import pytest
import typer
import yaml

from partwise.any_code.experiment_file import Experiment
from partwise.cli import main
from partwise.cli.commands import compare_experiment, experiment_noise
from partwise.cli.options import app
from partwise.config import ConfigError
from partwise.config.reading import read_file

EXPERIMENT = {
    "command": "echo loss {seed}",
    "arms": {"a": {}, "b": {"args": "x"}},
    "metric": {"pattern": r"loss (\S+)", "margin": 1},
}


@pytest.fixture
def compare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):  # type: ignore[no-untyped-def]
    """Run `compare` in a folder with an experiment: its exit status, standard output and standard error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    (tmp_path / "e.yaml").write_text(yaml.safe_dump(EXPERIMENT))
    (tmp_path / "model.yaml").write_text("preset: mingpt\n")

    def run(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["partwise", "compare", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        assert not (tmp_path / "runs").exists()
        return int(ended.value.code or 0), out, err

    return run


def test_the_modes_are_listed(compare) -> None:  # type: ignore[no-untyped-def]
    status, out, _ = compare("--help")
    assert status == 0 and len(out.splitlines()) <= 24
    assert out.splitlines()[:4] == [
        "Usage: partwise compare [OPTIONS] PRESET [OVERRIDES...]",
        "       partwise compare [OPTIONS] FILE.yaml",
        "       partwise compare --refs [OPTIONS] COMMITS...",
        "       partwise compare [OPTIONS] COURSE.yaml [OVERRIDES...]",
    ]
    assert out.splitlines()[-1].endswith("partwise compare --help preset (or file, refs, course)")
    assert compare() == (2, out, "")
    assert compare("--help", "--seeds", "3") == (0, out, "")


@pytest.mark.parametrize(
    ("mode", "line", "own", "foreign"),
    [
        ("preset", ["mingpt", "ffn=swiglu"], "--horizons", "--retry-failed"),
        ("preset", ["model.yaml"], "--import", "--command"),
        ("file", ["e.yaml"], "--retry-failed", "--metric"),
        ("refs", ["--refs", "main"], "--metric", "--arm"),
    ],
)
def test_help_has_the_options_of_one_mode(compare, mode: str, line: list[str], own: str, foreign: str) -> None:  # type: ignore[no-untyped-def]
    status, out, _ = compare("--help", mode)
    assert status == 0 and len(out.splitlines()) <= 100
    listed = {line.split()[0] for line in out.splitlines() if line.startswith("  --")}
    assert own in listed and foreign not in listed
    assert {"--seeds", "--margin", "--workers", "--json"} <= listed
    assert compare(*line, "--help")[1] == out == compare("-h", *line)[1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["mingpt", "--setup", "x"], "--setup is an option of `compare --refs`, not of `compare PRESET`"),
        (["model.yaml", "--allow-changes"], "of `compare FILE.yaml` or `compare --refs`, not of `compare PRESET`"),
        (["--retry-failed", "mingpt", "ffn=swiglu"], "or `compare --refs`, not of `compare PRESET`"),
        (["e.yaml", "--arm", "x=2"], "--arm is an option of `compare PRESET`, not of `compare FILE.yaml`"),
        (["--import", "x.py", "e.yaml"], "`compare PRESET` or `compare COURSE.yaml`, not of `compare FILE.yaml`"),
        (["e.yaml", "--higher-is-better"], "--higher-is-better is an option of `compare --refs`, not of"),
        (["e.yaml", "--metric", "loss"], "--metric is an option of `compare PRESET` or `compare --refs`, not of"),
        (["e.yaml", "--design", "paired", "--tuned-only"], "--tuned-only is an option of `compare PRESET`, not of"),
        (["main", "e.yaml", "--refs", "--first-seed", "1", "--horizons", "2"], "not of `compare --refs`; see"),
        (["e.yaml", "--sedes", "3"], "No such option: --sedes"),
        (["e.yaml", "--seeds", "3", "--looks", "2,4"], "--seeds 3 --looks 2,4: give only one"),
        (["mingpt", "ffn=swiglu", "--seeds", "3", "--looks", "2,4"], "--seeds 3 --looks 2,4: give only one"),
        (["e.yaml", "ffn=swiglu"], "ffn=swiglu: unexpected argument"),
        (["missing.yaml", "--allow-changes"], "missing.yaml: no such file"),
        (["--seeds", "3"], "compare needs PRESET, FILE.yaml, --refs or COURSE.yaml; see `partwise compare --help`"),
    ],
)
def test_one_line_for_options_that_do_not_fit(compare, words: list[str], message: str) -> None:  # type: ignore[no-untyped-def]
    status, out, err = compare(*words)
    assert status == 2 and not out and len(err.splitlines()) == 1
    assert message in err


def test_every_option_is_one_of_a_mode() -> None:
    """Options of one name take a value in every mode or in none: the mode is found before its options are parsed."""
    root = typer.main.get_command(app)
    context = root.make_context("partwise", ["compare"], resilient_parsing=True)
    modes = root.get_command(context, "compare").commands  # type: ignore[attr-defined]
    assert list(modes) == ["preset", "file", "refs", "course"]
    flags: dict[str, set[tuple[bool, bool, int]]] = {}
    for command in modes.values():
        for param in command.params:
            if param.param_type_name == "option":
                flags.setdefault(param.opts[0], set()).add((param.is_flag, param.multiple, param.nargs))
    assert len(flags) >= 40 and all(len(kinds) == 1 for kinds in flags.values())


def test_the_shell_completes_the_options_of_the_mode(
    compare,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],  # type: ignore[no-untyped-def]
) -> None:
    def complete(*words: str) -> set[str]:
        monkeypatch.setattr("sys.argv", ["partwise"])
        monkeypatch.setenv("_PARTWISE_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", " ".join(("partwise", "compare", *words)))
        monkeypatch.setenv("COMP_CWORD", str(len(words) + 1))
        with pytest.raises(SystemExit):
            main()
        return set(capsys.readouterr().out.split())

    assert complete("--re") == {"--refs", "--replicate", "--require", "--retry-failed"}
    assert complete("mingpt", "--re") == {"--replicate", "--require"}
    assert complete("e.yaml", "--re") == {"--replicate", "--require", "--retry-failed"}
    assert complete("missing.yaml", "--ref") == {"--refs"}
    assert complete("--refs", "main", "--me") == {"--metric"}


@pytest.mark.parametrize("words", [["compare"], ["plan", "--sd", "0.1"], ["calibrate"]])
def test_the_mode_and_the_command_share_one_reading_of_the_file(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "e.yaml").write_text(yaml.safe_dump(EXPERIMENT))
    read, made = list[str](), list[Experiment]()

    def count(path: Path, limit: int) -> bytes:
        read.append(path.name)
        return read_file(path, limit)

    def stop(experiment: Experiment, *_: object, **__: object) -> None:
        made.append(experiment)
        raise ConfigError("enough")

    monkeypatch.setattr("partwise.config.yaml.read_file", count)
    for module in (compare_experiment, experiment_noise):
        for name in ("make_command_comparison", "make_command_calibration"):
            monkeypatch.setattr(module, name, stop, raising=False)
    monkeypatch.setattr(sys, "argv", ["partwise", words[0], str(tmp_path / "e.yaml"), *words[1:]])
    with pytest.raises(SystemExit):
        main()
    assert [list(each.arms) for each in made] == [["a", "b"]]
    assert read == ["e.yaml"]
