"""An experiment's file is checked before anything runs; each fault is one line that names the value and the remedy."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from partwise.any_code.command_plan import plan_commands
from partwise.any_code.experiment_file import experiment_from_yaml
from partwise.cli.experiment_files import is_experiment_file
from partwise.comparison.ledger.questions import question_key
from partwise.config import ConfigError
from partwise.config.yaml import read_yaml
from programs import ARMS, COMMAND, METRIC, comparison, experiment, write_program

FILE = """\
command: python train.py --seed={seed} --out={folder} --lr={lr} {args}
settings: {lr: 1e-3}
arms:
  baseline:
  wide: {args: --width=96 --name "a b", env: {FLAG: 1, NAN: "nan"}}
  fast: {lr: 3e-3}
metric: {name: validation loss, unit: nats, margin: 0.005, pattern: 'val loss (\\S+)'}
curve: {from: '{folder}/log.jsonl', step: iter, value: val_loss}
trial: {minutes: 20, retries: 1}
"""


def test_a_file_becomes_a_plan(tmp_path: Path) -> None:
    (tmp_path / "e.yaml").write_text(FILE)
    context = SimpleNamespace(obj=None)
    assert is_experiment_file(context, str(tmp_path / "e.yaml"))
    plan = plan_commands(experiment_from_yaml(context.obj, tmp_path / "e.yaml"), {}, seeds=3)
    assert [arm.name for arm in plan.arms] == ["baseline", "wide", "fast"]
    base, wide, fast = (arm.config for arm in plan.arms)
    assert wide.words(wide.values("wide", 7, "/o p")) == [
        *("python", "train.py", "--seed=7", "--out=/o p", "--lr=0.001", "--width=96", "--name", "a b")
    ]
    assert base.words(base.values("baseline", 7, "/o"))[-1] == "--lr=0.001"
    assert fast.words(fast.values("fast", 7, "/o"))[-1] == "--lr=0.003"
    variables = wide.variables(wide.values("wide", 7, "/o"))
    assert variables["FLAG"] == "1" and variables["NAN"] == "nan" and variables["PARTWISE_SEED"] == "7"
    assert variables["PARTWISE_LR"] == "0.001" and "FLAG" not in base.variables(base.values("baseline", 7, "/o"))
    assert plan.rules.margin == 0.005 and plan.rules.lower_is_better and plan.rules.metric == "validation loss"
    assert plan.question == "Does any of wide and fast change the validation loss of baseline?"


def test_a_preset_file_is_no_experiment(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text("preset: mingpt\nffn: swiglu\n")
    for word in (str(tmp_path / "p.yaml"), "mingpt"):
        assert not is_experiment_file(SimpleNamespace(obj=None), word)


def test_the_negative_control_is_the_baseline_on_other_seeds() -> None:
    plan = plan_commands(experiment(negative_control=True), {}, seeds=3)
    base, control = plan.arms[0].config, plan.arms[-1].config
    assert plan.claims[-1].role == "negative" and plan.arms[-1].name == "A/A control (base on other seeds)"
    assert control.values("c", 0, "/o")["seed"] == "500000" and base.values("b", 0, "/o")["seed"] == "0"
    assert control.seed_offset and control.command == base.command and control.args == base.args


def test_the_same_change_of_another_command_is_another_question() -> None:
    def key(command: str, seeds: int = 3) -> str:
        plan = plan_commands(experiment(command=command), {}, seeds=seeds)
        return question_key(plan, plan.claims[0])

    assert key(COMMAND) == key(COMMAND, seeds=5) != key(COMMAND.replace("train.py", "other.py"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"command": "python train.py {args}"}, "the command has no {seed}, so all trials of an arm would be the same"),
        ({"command": "python train.py --seed={seed}"}, "arms.gain.args='--gain=0.1': the command has no {args}"),
        ({"command": COMMAND + " {lr}"}, "{lr} is unknown.*; give `settings: {lr: VALUE}`, or write {{lr}}"),
        (
            {"arms": {**ARMS, "typo": {"arg": "--x"}}},
            r"arms.typo.arg: unknown, and the command has no placeholder {arg}",
        ),
        ({"arms": {**ARMS, "s": {"seed": 3}}}, "arms.s.seed: seed is reserved; rename the setting"),
        ({"arms": {**ARMS, "twin": {"args": "--gain=0.1"}}}, "arm 'twin' runs the same as 'gain'"),
        ({"arms": {"base": {}}}, "needs at least two arms"),
        ({"arms": {"base": {}, "l": {"x": [1]}}}, r"arms.l.x=\[1\]: expected a number or text"),
        ({"arms": {"base": {}, "\x1b[2J": {"args": "-x"}}}, "give it a printable name"),
        ({"metric": {**METRIC, "pattern": "val loss"}}, "the pattern needs 1 group in parentheses"),
        ({"metric": {**METRIC, "pattern": "val (loss"}}, r"pattern val \(loss is not a regular expression"),
        ({"metric": {"name": "v", "margin": 1}}, "give either `pattern`, a regular expression, or `value`"),
        ({"metric": {"value": "v", "margin": 1}}, "`value` needs a file in `from`, not stdout"),
        ({"metric": {**METRIC, "margin": 0}}, "metric.margin"),
        ({"metric": {**METRIC, "margin": float("nan")}}, "metric.margin"),
        ({"metric": {**METRIC, "margin": None}}, "metric.margin is missing: give the largest difference of val loss"),
        ({"metric": {**METRIC, "beter": "lower"}}, "unknown option 'metric.beter'; did you mean 'better'"),
        ({"curve": {"pattern": r"(\S+)"}}, "the pattern needs 2 group"),
        ({"curve": {"from": "x.csv", "value": "v"}}, "`step` is missing"),
        (
            {"metric": {**METRIC, "from": "tensorboard"}},
            "`from: tensorboard` needs `value`, the tag of a scalar, and no",
        ),
        ({"curve": {"from": "tensorboard", "value": "v", "step": "s"}}, "have their own steps: leave out `step`"),
        ({"trial": {"minutes": -1}}, "trial.minutes"),
        (
            {"command": "x {seed}", "check": "--few", "arms": {"a": {}, "b": {"env": {"X": "1"}}}},
            "check: --few: the command has no",
        ),
        ({"folder": "nowhere"}, "folder: .*nowhere does not exist"),
        ({"arms": {**ARMS, "r": {"ref": "main"}}}, "is not in a git repository: arms with `ref` need one"),
    ],
)
def test_what_cannot_be_right_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    write_program(tmp_path)
    with pytest.raises(ConfigError, match=message) as caught:
        comparison(tmp_path, **changes)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected a mapping"),
        ("[1, 2]", "expected a mapping"),
        ("command: run {seed}", "arms=null: expected NAME"),
        ("command: [run]\narms: {a: , b: {args: x}}\nmetric: {pattern: (.)}", "command"),
        ("command: &a run\narms: *a", "aliases"),
    ],
)
def test_a_file_that_is_no_experiment_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "e.yaml").write_text(text)
    with pytest.raises(ConfigError, match=message) as caught:
        experiment_from_yaml(read_yaml(tmp_path / "e.yaml"), tmp_path / "e.yaml")
    assert "\n" not in str(caught.value)


def test_numbers_in_scientific_notation_are_numbers(tmp_path: Path) -> None:
    """YAML 1.1 reads 1e-3 as text, which as a margin would be refused and as a setting would be another job than 0.001."""
    write_program(tmp_path)
    (tmp_path / "e.yaml").write_text(
        "command: python train.py --seed={seed} --gain={lr} {args}\nsettings: {lr: 1e-3}\n"
        "arms: {a: {}, b: {lr: 3e-3}}\nmetric: {margin: 1e-3, pattern: '(.)', failure: 1e2}\n"
    )
    found = experiment_from_yaml(read_yaml(tmp_path / "e.yaml"), tmp_path / "e.yaml")
    assert (found.metric.margin, found.metric.failure, found.settings) == (0.001, 100.0, {"lr": 0.001})
    assert plan_commands(found, {}, seeds=2).arms[1].config.settings == {"lr": 0.003}
