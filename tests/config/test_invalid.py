"""An invalid value is one line: its path as the user wrote it, and what it should be, in no word of pydantic's."""

from pathlib import Path

import pytest

from partwise.any_code.experiment_file import experiment_from_yaml
from partwise.config import ConfigError
from partwise.config.yaml import read_yaml

EXPERIMENT = """\
command: train {seed} {args}
arms: {base: {}, gain: {args: --gain}}
metric: {margin: 0.1, pattern: '(.)'}
"""
TYPES = "input should be a valid string or a valid integer or a valid number or a valid boolean"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("trial: {minutes: -3}", "trial.minutes=-3: input should be greater than 0"),
        ("trial: {minutes: long}", "trial.minutes=long: input should be a valid number or a valid integer"),
        ("settings: {lr: [1]}", f"settings.lr=[1]: {TYPES}"),
        ("settings: {str: null}", f"settings.str=null: {TYPES}"),
        ("settings: [lr]", 'settings=["lr"]: input should be options, as {NAME: VALUE}'),
        ("share: data", "share=data: input should be a list, as [VALUE, VALUE]"),
        ("share: [data, 3]", "share.1=3: input should be a valid string"),
        ("arms: {a: {}, b: {args: 3}}", "arms.b.args=3: input should be a valid string or a list, as [VALUE, VALUE]"),
        ("arms: {a: {}, b: {args: [x, 3]}}", "arms.b.args.1=3: input should be a valid string"),
        ("arms: {a: {}, b: x}", "arms.b=x: input should be options, as {NAME: VALUE}"),
        ("arms: {a: {}}", "needs at least two arms, the first being the baseline"),
        ("arms: {a: {}, b: {lr: [1]}}", "arms.b.lr=[1]: expected a number or text"),
        (
            "metric: {margin: 0.1}",
            "metric: give either `pattern`, a regular expression, or `value`, a key of the file in `from`",
        ),
        (
            "metric: {margin: 0.1, value: val}",
            "metric: `value` needs a file in `from`, not stdout: give `from: '{folder}/FILE'`, or `pattern` for the output",
        ),
    ],
)
def test_an_experiment_file(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "e.yaml"
    key = line.partition(":")[0]
    kept = [each for each in EXPERIMENT.splitlines() if not each.startswith(f"{key}:")]
    path.write_text("\n".join([*kept, line]))
    with pytest.raises(ConfigError) as caught:
        experiment_from_yaml(read_yaml(path), path)
    assert str(caught.value) == f"{path}: {message}"
