"""An option that a later version adds, to a part, to `train`, to a request and to a plan, breaks nothing stored before it.

Everything is made first by the code as it is. Then the options are added to its classes, as a later version would, and
everything is resumed, judged, verified and found again. Worker processes are those of the version before: what they receive
must not name the options either.
"""

import json
import shutil
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from pathlib import Path
from typing import Any

import pytest
from pydantic.fields import FieldInfo

from partwise.ablation.request import Request
from partwise.any_code.experiment_file import Metric, TrialLimits
from partwise.comparison.design.plan import Plan
from partwise.config import Config, Neutral, neutral_values
from partwise.inspection.lr_transfer import plan_runs
from partwise.model import ModelConfig
from partwise.parts.feed_forward.dense import GEGLU
from partwise.train.config import RunConfig, TrainConfig, run_config
from test_records import command

TINY = [
    "d_model=16", "n_layers=1", "attention.n_heads=2", "context_length=16", "ffn=geglu", "train.batch_size=2",
    "train.steps=4", "train.eval_every=2", "train.save_every=2", "train.precision=float32", "train.threads=1",
    "data=arithmetic", "data.train=50", "data.validation=10", "data.test=5",
]  # fmt: skip
COMMON = [word for override in TINY for word in ("--common", override)]
TRAIN = ["train", "mingpt", *TINY, "--name", "run"]
COMPARE = ["compare", "mingpt", "norm=rmsnorm", *COMMON, "--margin", "0.05", "--seeds"]
TUNE = [*COMPARE, "2", "--name", "tuned", "--tune", "train.lr=1e-4,1e-3"]
CALIBRATE = ["calibrate", "mingpt", *TINY, "--seeds", "3"]
COMMANDS = """
command: python3 -c "print('loss', {value} + {seed} / 10)"
arms: {a: {value: 1.0}, b: {value: 2.0}}
metric: {pattern: 'loss (\\S+)', margin: 0.1}
trial: {minutes: 5}
"""
STUDY = {
    "claim": "c", "source": "s", "published": "p", "changed": "d",
    "comparisons": {
        "norms": {"preset": "mingpt", "change": ["norm=rmsnorm"], "common": TINY, "seeds": 2, "margin": 0.05}
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def made_before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run, comparisons, a tuned one, a study, a calibration and their ledger, of the version before."""
    folder = tmp_path_factory.mktemp("made before")
    (folder / "commands.yaml").write_text(COMMANDS)
    (folder / "studies").mkdir()
    (folder / "studies" / "norms.yaml").write_text(json.dumps(STUDY))
    for words in (
        TRAIN, [*COMPARE, "2", "--name", "c"], TUNE, CALIBRATE, ["study", "run", "norms"],
        ["compare", "commands.yaml", "--seeds", "2", "--name", "commands"],
    ):  # fmt: skip
        done(folder, *words)
    return folder


@pytest.fixture
def folder(made_before: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made_before, tmp_path / "project")


def done(folder: Path, *words: str) -> str:
    status, printed, errors = command(folder, list(words))
    assert status == 0, errors
    return " ".join((printed + errors).split())


@contextmanager
def option(cls: type[Config], name: str, default: Any, neutral: Any) -> Iterator[None]:
    """The class with one more option."""
    fields, annotations = cls.__pydantic_fields__, cls.__annotations__
    field = FieldInfo.from_annotated_attribute(float, default)
    field.metadata = [Neutral(neutral)]
    fields[name], annotations[name] = field, float
    cls.model_rebuild(force=True)
    neutral_values.cache_clear()
    try:
        yield
    finally:
        del fields[name], annotations[name]
        cls.model_rebuild(force=True)
        neutral_values.cache_clear()


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The version after: an option more in a part, in the model, in `train`, in requests, in a plan and in commands."""
    identity = Plan.identity
    monkeypatch.setattr(
        Plan, "identity", lambda plan: {**identity(plan), **({"new": 2} if plan.first_seed == 99 else {})}
    )
    with (
        option(GEGLU, "gate_scale", 1.0, 1.0),
        option(ModelConfig, "head_scale", 1.0, 1.0),
        option(TrainConfig, "ema", 0.0, 0.0),
        option(Request, "patience", 0.0, 0.0),
        option(TrialLimits, "pause", 0.0, 0.0),
        option(Metric, "scale", 1.0, 1.0),
    ):
        yield


def test_the_options_are_there(later: None) -> None:
    config = run_config("mingpt", *TINY)
    assert config.to_dict()["train"]["ema"] == 0.0 and config.to_dict()["ffn"]["gate_scale"] == 1.0
    stored = config.to_stored()
    assert "ema" not in stored["train"] and "gate_scale" not in stored["ffn"] and "head_scale" not in stored
    assert RunConfig.from_stored(stored) == config
    changed = run_config("mingpt", *TINY, "ffn.gate_scale=2.0", "train.ema=0.5")
    assert changed.to_stored()["train"]["ema"] == 0.5 and RunConfig.from_stored(changed.to_stored()) == changed


def test_an_unfinished_run_resumes(folder: Path, later: None) -> None:
    shutil.rmtree(folder / "runs/run/checkpoints/step-00000004")
    (folder / "runs/run/result.json").unlink()
    assert "resuming after step 2" in done(folder, *TRAIN)
    assert "contains a different run (ffn.gate_scale was 1.0, now 2.0)" in refused(folder, *TRAIN, "ffn.gate_scale=2.0")


def test_a_finished_run_is_read(folder: Path, later: None) -> None:
    done(folder, "eval", "run")
    done(folder, "report", "run")
    done(folder, *TRAIN)
    done(folder, "train", "from=run", "--name", "more", "train.steps=1")


def refused(folder: Path, *words: str) -> str:
    status, printed, errors = command(folder, list(words))
    assert status == 2, printed
    return " ".join(errors.split())


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("result.json"))}


@pytest.mark.parametrize("name", ["c", "tuned"])
def test_a_comparison_resumes_without_training_again(folder: Path, later: None, name: str) -> None:
    before, trained = (folder / f"runs/{name}/results.json").read_bytes(), snapshot(folder / "runs" / name)
    done(folder, *(TUNE if name == "tuned" else [*COMPARE, "2", "--name", "c"]))
    assert snapshot(folder / "runs" / name) == trained
    old, new = json.loads(before), json.loads((folder / f"runs/{name}/results.json").read_text())
    assert new["claims"] == old["claims"]
    assert done(folder, "verify", f"runs/{name}")


def test_a_comparison_gets_more_seeds(folder: Path, later: None) -> None:
    """Trained by workers of the version before, so that jobs name no option at its neutral value."""
    done(folder, *COMPARE, "3", "--name", "c")
    assert len(json.loads((folder / "runs/c/results.json").read_text())["arms"][0]["trials"]) == 3
    message = refused(folder, *COMPARE, "3", "--name", "c", "--common", "ffn.gate_scale=2.0")
    assert "plan.arms.mingpt.ffn.gate_scale was 1.0, now 2.0" in message


def test_commands_resume(folder: Path, later: None, monkeypatch: pytest.MonkeyPatch) -> None:
    before = snapshot(folder / "runs/commands")
    done(folder, "compare", "commands.yaml", "--seeds", "2", "--name", "commands")
    assert snapshot(folder / "runs/commands") == before
    assert done(folder, "verify", "runs/commands")


def test_studies_and_the_ledger(folder: Path, later: None) -> None:
    before = snapshot(folder / "runs/study-norms-norms")
    done(folder, "study", "run", "norms")
    assert snapshot(folder / "runs/study-norms-norms") == before
    done(folder, "ledger", "verify")
    # the same question under another name is recognized
    again = done(folder, *COMPARE, "2", "--name", "again")
    assert "asked" in again


@pytest.mark.parametrize(("source", "other"), [("A/A pairs", "*/results.json"), ("pairs of", "calibrations.json")])
def test_measured_noise_is_found(folder: Path, later: None, source: str, other: str) -> None:
    for path in (folder / "runs").glob(other):
        path.unlink()
    assert source in done(folder, "plan", "mingpt", "norm=rmsnorm", *COMMON)


def test_finished_runs_of_a_learning_rate_sweep_are_found(folder: Path, request: pytest.FixtureRequest) -> None:
    with chdir(folder):
        before = plan_runs(run_config("mingpt", *TINY), run_config("mingpt", *TINY).prepare(), [16], [1e-3])
        request.getfixturevalue("later")
        after = plan_runs(run_config("mingpt", *TINY), run_config("mingpt", *TINY).prepare(), [16], [1e-3])
    assert list(before) == list(after)


def test_an_option_whose_default_computes_something_else(folder: Path) -> None:
    """Its neutral value is not its default: stored runs are read at the neutral one, and the message names it."""
    with option(TrainConfig, "ema", 0.9, 0.0):
        stored = json.loads((folder / "runs/run/run.json").read_text())["config"]
        read = RunConfig.from_stored(stored)
        assert read.to_dict()["train"]["ema"] == 0.0 and run_config("mingpt", *TINY).to_dict()["train"]["ema"] == 0.9
        assert read.to_stored() == stored
        assert "train.ema was 0.0, now 0.9" in refused(folder, *TRAIN)
        done(folder, *TRAIN, "train.ema=0.0")
        message = refused(folder, *COMPARE, "2", "--name", "c")
        assert "plan.arms.mingpt.train.ema was 0.0, now 0.9" in message
        done(folder, *COMPARE, "2", "--name", "c", "--common", "train.ema=0.0")
        from_run = run_config(f"from={folder / 'runs/run'}", data="arithmetic")
        assert from_run.to_dict()["train"]["ema"] == 0.0
