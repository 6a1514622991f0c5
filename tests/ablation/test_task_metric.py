"""`--metric task:NAME`: values are the scores of `eval --tasks`; the error over items stays apart."""

import json
import math
import sys
from pathlib import Path

import pytest

import partwise
from partwise.ablation.run_comparison import plan_comparison
from partwise.comparison.experiment import Comparison
from partwise.config import ConfigError
from partwise.train.result import write_result

SIZE = ["d_model=16", "n_layers=1", "attention.n_heads=2", "context_length=32", "train.device=cpu"]
SHORT = [*SIZE, "train.steps=3", "train.batch_size=4", "train.precision=float32"]
ARITHMETIC = ["data.train=300", "data.validation=20", "data.test=12"]
TASK = """\
task: letters
dataset_path: json
dataset_kwargs: {data_files: {test: items.jsonl}}
output_type: loglikelihood
test_split: test
doc_to_text: "{{context}}"
doc_to_target: "{{word}}"
target_delimiter: ""
metric_list:
  - {metric: perplexity, aggregation: perplexity, higher_is_better: false}
  - {metric: acc, aggregation: mean, higher_is_better: true}
"""


def compare(metric: str, *common: str, data: str = "text.txt", name: str = "scored", **options: object) -> Comparison:
    return partwise.compare(
        "mingpt", arms=["train.lr=0.05"], seeds=2, data=data, metric=metric, common=[*SHORT, *common], name=name,
        progress=False, **options,
    )  # type: ignore[arg-type]  # fmt: skip


def write_task(folder: Path, text: str = TASK, name: str = "letters") -> None:
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.yaml").write_text(text)
    rows = [{"context": "the quick brown ", "word": word} for word in ("fox", "dog", "lazy")]
    (folder / "items.jsonl").write_text("\n".join(map(json.dumps, rows)))


def test_without_lm_eval_the_comparison_is_refused_in_one_line(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("lm_eval", "lm_eval.tasks"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match=r"^metric=task:arithmetic needs lm_eval: `pip install 'partwise\[eval\]'`$"):
        compare("task:arithmetic", *ARITHMETIC, data="arithmetic")


@pytest.mark.parametrize("metric", ["task:", "task", "acc", "tasks:arithmetic", "task: x"])
def test_other_metrics_are_refused(metric: str) -> None:
    with pytest.raises(ConfigError, match="expected loss, exact_match, char_accuracy or task:NAME"):
        plan_comparison("mingpt", "ffn=swiglu", metric=metric)


class TestWithLmEval:
    pytestmark = pytest.mark.filterwarnings("ignore")  # of lm_eval and what it imports

    @pytest.fixture(autouse=True)
    def lm_eval(self) -> None:
        pytest.importorskip("lm_eval", reason="lm_eval is an optional dependency")

    def test_arithmetic_gets_the_values_of_exact_match(self, here: Path) -> None:
        """The task scores the problems that `metric=exact_match` does, by another program."""
        comparison = compare("task:arithmetic", *ARITHMETIC, data="arithmetic")
        results = comparison.results
        other = compare("exact_match", *ARITHMETIC, data="arithmetic", name="own").results
        assert [arm.values for arm in results.arms] == [arm.values for arm in other.arms]
        assert results.protocol.metric == "exact_match of task:arithmetic" and not results.protocol.lower_is_better
        assert {trial.task_score.items for arm in results.arms for trial in arm.trials if trial.task_score} == {12}

    def test_a_folder_of_ones_own_with_a_metric_that_is_better_lower(self, here: Path) -> None:
        from partwise.harness.tasks import score_tasks

        write_task(here / "letters")
        comparison = compare("task:letters")
        results = comparison.results
        assert results.protocol.metric == "perplexity of task:letters" and results.protocol.lower_is_better
        for arm in results.arms:
            for trial in arm.trials:
                (folder,) = [
                    each.folder for each in comparison.trials if (each.arm, each.seed) == (arm.name, trial.seed)
                ]
                expected = next(
                    score for score in score_tasks(str(folder), ["letters"]) if score.metric == "perplexity"
                )
                assert trial.task_score is not None
                assert trial.value == trial.task_score.value == expected.value > 1
                assert (trial.task_score.item_error, trial.task_score.items) == (expected.item_error, 3)
        assert results.claims[0].effect.n == 2 and results.claims[0].effect.low is not None
        assert not results.claims[0].differences_over_training  # those are losses
        errors = [trial.task_score.item_error for trial in results.arms[1].trials if trial.task_score]
        shown = math.sqrt(sum(error**2 for error in errors if error is not None) / 2)
        report = (comparison.path / "report.md").read_text()
        assert "standard error over items" in report and f"{shown:.4f}" in report
        stored = json.loads((comparison.path / "results.json").read_text())
        assert stored["arms"][1]["trials"][0]["task_score"]["item_error"] == errors[0]

    def test_runs_that_were_trained_but_not_scored_are_scored_on_resuming(self, here: Path) -> None:
        write_task(here / "letters")
        first = compare("task:letters")
        values = [arm.values for arm in first.results.arms]
        for trial in first.trials:
            result = json.loads((trial.folder / "result.json").read_text())
            del result["task_score"]
            write_result(trial.folder, result, json.loads((trial.folder / "run.json").read_text())["config"])
        lines = [(trial.folder / "metrics.jsonl").read_bytes() for trial in first.trials]
        again = compare("task:letters")
        assert [arm.values for arm in again.results.arms] == values
        assert [(trial.folder / "metrics.jsonl").read_bytes() for trial in again.trials] == lines

    def test_other_items_are_another_plan(self, here: Path) -> None:
        """One changed answer or prompt is told before anything is trained or judged."""
        write_task(here / "letters")
        values = [arm.values for arm in compare("task:letters").results.arms]
        items = here / "letters" / "items.jsonl"
        kept = items.read_text()
        for old, new in (("lazy", "lady"), ("quick", "quack")):
            items.write_text(kept.replace(old, new))
            with pytest.raises(ConfigError, match=r"task_items"):
                compare("task:letters")
        items.write_text(kept)
        assert [arm.values for arm in compare("task:letters").results.arms] == values

    def test_a_run_scored_on_other_items_is_refused(self, here: Path) -> None:
        """A worker on another machine may have another version of the task's files."""
        write_task(here / "letters")
        first = compare("task:letters")
        trial = first.trials[1]
        result = json.loads((trial.folder / "result.json").read_text())
        result["task_score"]["items_sha256"] = "0" * 64
        write_result(trial.folder, result, json.loads((trial.folder / "run.json").read_text())["config"])
        with pytest.raises(ConfigError, match=f"{trial.folder.name} was scored on other items of letters than planned"):
            compare("task:letters")

    def test_arms_with_data_of_their_own_have_items_of_their_own(self, here: Path) -> None:
        plan = plan_comparison(
            "mingpt", "data.reverse=false", data="arithmetic", metric="task:arithmetic", common=[*SHORT, *ARITHMETIC]
        ).plan
        baseline, reversed_answers = plan.task_items.values()
        assert baseline != reversed_answers

    def test_tuning_is_by_loss(self, here: Path) -> None:
        write_task(here / "letters")
        results = compare("task:letters", tune="train.grad_clip=0.1,1", tune_seeds=4).results
        assert results.tuning is not None
        losses = [loss for arm in results.tuning.arms for curve in arm.losses for loss in curve if loss is not None]
        assert losses and max(losses) < 2 * math.log(28)

    def test_bad_tasks_are_one_line_before_anything_runs(self, here: Path) -> None:
        write_task(here / "two")
        write_task(here / "two", TASK.replace("task: letters", "task: more"), "more")
        for metric, data, said in (
            ("task:cloze", "text.txt", r"neither a folder nor a task"),
            ("task:two", "text.txt", r"these are 2 tasks \(letters, more, \.\.\.\): name a single one"),
            ("task:arithmetic", "text.txt", r"data=text: the task arithmetic needs a run on arithmetic"),
        ):
            with pytest.raises(ConfigError, match=said) as raised:
                compare(metric, data=data, name="bad")
            assert "\n" not in str(raised.value)
        assert not (here / "runs" / "bad").exists()
