"""The course: every lesson can be read and run, its answers are where they are said to be, and predictions come first."""

import importlib
import inspect
import json
import operator
import random
import re
import textwrap
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from typer.testing import CliRunner

from lazy_imports import lazy_module
from partwise.baselines.scale import ngram_name
from partwise.cli import app
from partwise.comparison.ledger.predictions import Prediction
from partwise.comparison.ledger.project import project_ledger
from partwise.config import ConfigError
from partwise.lessons.answers import (
    ALPHA,
    answer_file,
    expected,
    final_losses,
    find_value,
    judge,
    per_seed,
    read_answer,
)
from partwise.lessons.exercises import FOUR_GRAM
from partwise.lessons.findings import answer_table, draw_picture, picture_table
from partwise.lessons.lesson import (
    CHOOSING,
    LISTING,
    SECTIONS,
    STORED,
    Quantity,
    all_lessons,
    find_lesson,
    listing,
    with_listings,
)
from partwise.lessons.progress import write_progress
from partwise.run_names import FolderLock
from whole_figures import check_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

course = lazy_module("partwise.lessons.course")
run_comparison = lazy_module("partwise.ablation.run_comparison")
evaluate_references = lazy_module("partwise.evaluate.references")
train_config = lazy_module("partwise.train.config")
lesson_command = lazy_module("partwise.cli.commands.lesson")
lesson_text = lazy_module("partwise.cli.commands.lesson_text")

LESSONS = all_lessons()
BUDGET = 14_000
"""Steps of a model as wide and as deep as the demo's, with its context, or others of as much work."""


@pytest.mark.parametrize("number", LESSONS)
def test_a_lesson_can_be_run_and_has_an_answer(number: int) -> None:
    """Its arms exist, its steps are within the budget, its quantities are stored for 40 seeds of its own."""
    lesson, answer = LESSONS[number], read_answer(LESSONS[number])
    planned = {name: run_comparison.make_comparison(request, f"x-{name}") for name, request in lesson.head.runs.items()}
    steps = 0.0
    for comparison in planned.values():
        for arm in comparison.plan.arms:
            model, train = arm.config.model, arm.config.train
            work = max(1, model.d_model * model.n_layers / 128)  # of a step, in steps of the demo
            steps += comparison.plan.seeds * train.steps * work * max(model.context_length, arm.config.seq_len) / 64
    assert steps <= BUDGET
    assert set(lesson.head.needs) <= set(LESSONS) | {2}
    for quantity in lesson.head.quantities.values():
        names = {arm.name for arm in planned[quantity.run].plan.arms}
        assert {quantity.arm, *quantity.or_arms, quantity.against or quantity.arm} <= names
        values = per_seed(quantity, answer.measured)
        assert list(values) == list(range(STORED.start, STORED.start + 40))
        found = answer.expected(quantity)
        assert np.isfinite([found.low, found.high]).all() and found.low <= found.value <= found.high
        exact = quantity.measure.startswith("cache size")  # the same on every seed
        assert (found.low == found.high) is exact
        assert quantity.statistic == "share" or exact or found.low < found.value < found.high
    assert set(lesson.head.real) <= {arm.name for arm in planned["main"].plan.arms}
    seeds = range(lesson.seeds)
    assert not set(seeds) & {*CHOOSING, *STORED}


@pytest.mark.parametrize("number", LESSONS)
def test_the_text_of_a_lesson_fits_the_terminal(number: int) -> None:
    """In 24 lines of 80 columns each screen is whole, with its heading and the question whether to go on."""
    lesson = LESSONS[number]
    assert tuple(lesson.sections) == SECTIONS
    for text in map(lesson_text.without_links, map(with_listings, lesson.sections.values())):
        assert "literalinclude" not in text and not re.search(r"(?<!!)\[[^]]+\]\(\S+\.md", text)
        screens = list(lesson_text.screens(text, 80, 24 - lesson_command.BESIDE))
        assert all(lesson_text.shown_lines(screen, 80) <= 24 - lesson_command.BESIDE for screen in screens)
        assert "".join("".join(screens).split()) == "".join(text.split())


@pytest.mark.parametrize("number", LESSONS)
def test_a_listing_is_whole(number: int) -> None:
    """As `inspect` finds it, whose functions Python has compiled; a signature may have several lines."""
    text = LESSONS[number].path.read_text(encoding="utf-8")
    found = [(match[1], match[2]) for match in LISTING.finditer(text)]
    assert len(found) == text.count("{literalinclude}") > 0
    for file, name in found:
        module = importlib.import_module(f"from_scratch.{file.removesuffix('.py')}")
        assert listing(file, name) == textwrap.dedent(inspect.getsource(operator.attrgetter(name)(module)))


@pytest.mark.parametrize("number", LESSONS)
def test_a_listing_has_a_line_of_the_terminal_for_each_of_its_own(number: int) -> None:
    """A terminal of 80 columns shows code as it can be copied: no line is continued, indented, or padded with spaces."""
    for text in map(with_listings, LESSONS[number].sections.values()):
        for block in re.findall(r"^```.*?^```$", text, re.DOTALL | re.MULTILINE):
            lines = block.splitlines()[1:-1]
            assert max(map(len, lines)) <= 78, max(lines, key=len)
            shown = lesson_command.console.render_lines(
                lesson_text.LessonText(block), lesson_command.console.options.update_width(80), pad=False
            )
            assert ["".join(piece.text for piece in line) for line in shown] == ["", *lines, ""]


@pytest.mark.parametrize("number", LESSONS)
def test_nothing_of_a_figure_is_cut(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a page for a phone, where a wider figure would have smaller text."""
    monkeypatch.setattr("partwise.plots.plotting.svg_file", check_figure)
    for before in (False, True) if LESSONS[number].head.problem else (False,):
        assert draw_picture(read_answer(LESSONS[number]), before) == "whole"


def test_rows_of_one_change_have_one_color_and_their_mean_beside_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lesson 8: three rates of post-norm are one change; shares of 0 have no bar, and still a number."""
    drawn: list[tuple[list[str], list[str]]] = []

    def look(figure: "Figure") -> str:
        [axes] = figure.axes
        drawn.append(([str(bar.get_facecolor()) for bar in axes.patches], [each.get_text() for each in axes.texts]))
        return ""

    monkeypatch.setattr("partwise.plots.plotting.svg_file", look)
    draw_picture(read_answer(LESSONS[8]), before=False)
    [(colors, texts)] = drawn
    assert colors[1] == colors[2] == colors[3] and len({colors[0], colors[1], colors[4]}) == 3
    assert texts == ["1.00", "0.00", "0.40", "0.95", "0.00", "mean"]


def test_numbers_have_a_screen_of_their_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The table of a lesson follows its text after Enter. Text that is no terminal's has every line of code whole."""
    reader = lesson_command.Reader(LESSONS[3], None, False, True, 0)
    monkeypatch.setattr(reader, "go_on", lambda: print("ENTER"))
    shown = {}
    for section in ("The problem", "The answer"):
        reader.show(section)
        shown[section] = capsys.readouterr().out
    problem, answer = shown.values()
    assert (
        problem.index("Attention compares")
        < problem.index("ENTER")
        < problem.index("The figure, as a table, from 40 stored seeds:\nloss after")
    )
    assert answer.index("loss after steps") < answer.index("ENTER") < answer.index("At 200 steps, the model")
    assert all(each.rstrip().endswith("ENTER") for each in shown.values())
    reader.show("The idea")
    lines = capsys.readouterr().out.splitlines()
    assert set(with_listings(LESSONS[3].sections["The idea"]).splitlines()) <= set(lines)


def test_what_runs_is_read_before_it_starts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The commands and the progress of lesson 11 would move its text off the screen."""
    reader = lesson_command.Reader(LESSONS[11], None, False, False, 0)
    monkeypatch.setattr(reader, "go_on", lambda: print("ENTER"))
    monkeypatch.setattr(reader, "train", lambda: print("TRAIN"))
    reader.show("The run")
    shown = capsys.readouterr().out
    assert shown.index("Five arms") < shown.index("ENTER") < shown.index("TRAIN") < shown.rindex("ENTER")


def test_one_enter_leaves_the_prediction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader who has just pressed Enter is not asked whether to go on; one whose prediction is known, is."""
    monkeypatch.chdir(tmp_path)
    reader = lesson_command.Reader(LESSONS[7], None, True, False, 0)
    pressed: list[str] = []
    monkeypatch.setattr(reader, "interactive", True)
    monkeypatch.setattr(lesson_command.console, "input", lambda prompt, **_: pressed.append(prompt) or "-1,1")
    reader.show("Your prediction")
    assert len(pressed) == 1 and "as LOW,HIGH" in pressed[0]
    reader.show("Your prediction")
    assert len(pressed) == 2 and "Enter continues" in pressed[1]


@pytest.mark.parametrize(("typed", "prediction"), [(["", "-1,1"], Prediction(-1, 1)), (["", ""], None)])
def test_an_enter_too_many_loses_no_prediction(
    typed: list[str], prediction: Prediction | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Enter has continued on each screen before: only a second one predicts nothing."""
    monkeypatch.chdir(tmp_path)
    reader = lesson_command.Reader(LESSONS[7], None, True, False, 0)
    answers = iter(typed)
    monkeypatch.setattr(reader, "interactive", True)
    monkeypatch.setattr(lesson_command.console, "input", lambda prompt, **_: next(answers))
    reader.show("Your prediction")
    assert reader.prediction == prediction and next(answers, "all were asked for") == "all were asked for"


def test_the_list_of_lessons_names_the_next_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for done in (0, 1, 2):
        assert f"next: `partwise lesson {done + 1}`;" in CliRunner().invoke(app, ["lesson"]).output
        write_progress(done + 1, "done")


def test_a_lesson_that_runs_elsewhere_names_an_option_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    comparison = course.LessonRun.plan(LESSONS[3]).comparisons["main"]
    comparison.path.mkdir(parents=True)
    lock = FolderLock(comparison.path)
    with pytest.raises(ConfigError, match="or choose another --first-seed"):
        comparison.run()
    lock.release()


def test_a_value_without_its_table_says_what_it_is() -> None:
    """Rows of lesson 11 are kinds of positions: the heading, the prediction and the error name the difference."""
    columns = next(answer_table(read_answer(LESSONS[11]), None))
    assert columns[0] == "loss at 512 minus loss at 128 (nats per character)"
    assert picture_table(read_answer(LESSONS[11]), before=True).columns[0] == "loss at 512 minus loss at 128"
    assert LESSONS[11].asked_text == "loss at 512 minus loss at 128, RoPE"
    assert next(answer_table(read_answer(LESSONS[9]), None))[0] == "quantity"  # KiB, digits and nats


def test_the_answer_of_other_seeds_lies_in_the_prediction_interval() -> None:
    """In all but one of 1,000 cases, for a mean and for an SD; 2 to 12 other seeds, values simulated here."""
    noise = np.random.default_rng(0)
    for statistic, function in (("mean", np.mean), ("sd", lambda x: np.std(x, ddof=1))):
        quantity = Quantity.from_dict({"text": "x", "arm": "a", "statistic": statistic})
        outside = []
        for seeds in (2, 4, 12):
            x = noise.normal(2.0, 0.3, (3000, 40 + seeds))
            for row in x:
                found = expected(quantity, {"main": {"a": {"loss": dict(enumerate(row[:40].tolist()))}}}, seeds)
                outside.append(function(row[40:]) not in found)
        assert 0 < sum(outside) < 3 * ALPHA * len(outside)  # 9 are expected


def test_the_share_of_other_seeds_lies_in_the_prediction_interval() -> None:
    """In all but one of 1,000 cases or fewer, whatever the probability of a failure; one interval by hand."""
    noise = np.random.default_rng(1)
    quantity = Quantity.from_dict({"text": "x", "arm": "a", "measure": "loss above 3", "statistic": "share"})
    for seeds in (2, 6, 12):
        intervals = [
            expected(quantity, {"main": {"a": {"loss": dict(enumerate([3.5] * k + [2.5] * (40 - k)))}}}, seeds)
            for k in range(41)
        ]
        for probability in (0.02, 0.3, 0.5, 0.9):
            stored, others = noise.binomial(40, probability, 20000), noise.binomial(seeds, probability, 20000)
            low, high = (np.array([getattr(each, end) for each in intervals])[stored] for end in ("low", "high"))
            outside = (others / seeds < low) | (others / seeds > high)
            assert outside.mean() < 1.5 * ALPHA  # 20 of 20,000 would be ALPHA
        assert [1 - each.high for each in reversed(intervals)] == pytest.approx([each.low for each in intervals])
    # after 40 of 40, all that do not fail are among the six: of 46, three with 20 / 15,180, four with 15 / 163,185
    found = expected(quantity, {"main": {"a": {"loss": dict.fromkeys(range(40), np.nan)}}}, 6)
    assert (found.low, found.value, found.high) == (3 / 6, 1, 1)


def test_values_of_a_lesson_are_those_of_its_seeds() -> None:
    """A difference pairs seeds; the SD is over them; a failed run gives nan; verdicts are those of `compare`."""
    measured = {"main": {"a": {"loss": {1: 2.0, 2: 3.0}}, "b": {"loss": {1: 1.5, 2: 2.0, 3: 9.0}}}}
    quantity = Quantity.from_dict({"text": "x", "arm": "a", "against": "b"})
    assert per_seed(quantity, measured) == {1: 0.5, 2: 1.0} and find_value(quantity, measured) == 0.75
    spread = Quantity.from_dict({"text": "x", "arm": "b", "statistic": "sd"})
    assert find_value(spread, measured) == pytest.approx(np.std([1.5, 2.0, 9.0], ddof=1), rel=1e-12)
    measured["main"]["a"]["loss"][2] = float("nan")
    assert np.isnan(find_value(quantity, measured))
    lesson = LESSONS[3]
    losses = {arm: each["loss"] for arm, each in read_answer(lesson).measured["main"].items()}
    effects = judge(losses, lesson.head.runs["main"], range(STORED.start, STORED.start + 7))
    assert [effect.verdict for effect in effects] == ["worse", "better"]


def test_how_often_verdicts_on_nothing_differ_is_what_lesson_2_says() -> None:
    lesson = LESSONS[2]
    losses = final_losses(read_answer(lesson).measured["main"])
    draw, found = random.Random(0), Counter[str]()
    for _ in range(1000):
        seeds = draw.sample(sorted(losses["mingpt"]), lesson.seeds)
        positions = judge(losses, lesson.head.runs["main"], seeds)[1]
        assert positions.arm == "train.reinitialize=positions"
        found[positions.verdict] += 1
    assert found == {"equivalent": 980, "undecided": 18, "better": 1, "worse": 1}
    text = " ".join(lesson.sections["The answer"].split())
    assert "980 are equivalent on other positions and 18 undecided; one says *better*, and one *worse*" in text


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [("-0.1,0.02", -0.1, 0.02), ("-0.1 to 0.02", -0.1, 0.02), ("1e-3 .5", 1e-3, 0.5), ("-1..-.5", -1, -0.5)],
)
def test_a_prediction_is_a_range(text: str, low: float, high: float) -> None:
    assert Prediction.parse(text) == Prediction(low, high)


@pytest.mark.parametrize("text", ["", "0.1", "0.2,0.1", "a,b", "1,2,3", "nan,1"])
def test_no_range_is_no_prediction(text: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(repr(text))):
        Prediction.parse(text)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["3"], "no terminal to ask: add --predict LOW,HIGH"),
        (["99"], "lesson 99: there is no such lesson"),
        (["3", "--predict", "high"], "expected two numbers"),
        (["3", "--no-predict", "--first-seed", "1995"], "--first-seed 1995: with seeds 1000 to 1999 the course chose"),
        (["3", "--no-predict", "--first-seed", "2999"], "with seeds 2000 to 2999 the course stores its answers"),
    ],
)
def test_what_cannot_be_run_is_refused(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["lesson", *words])
    assert isinstance(result.exception, ConfigError) and message in str(result.exception)
    assert not Path("runs").exists()


def test_the_stored_answer_is_read_without_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["lesson", "3", "--stored", "--no-predict"])
    assert result.exit_code == 0, result.output
    assert all(section in result.output for section in SECTIONS) and "worse in 10" in result.output
    assert result.output.index("worse in 10") < result.output.index("Had you stopped at 200 steps")  # numbers, then why
    assert CliRunner().invoke(app, ["lesson", "3", "--check", "200,300"]).output.strip() == "right"
    assert CliRunner().invoke(app, ["lesson", "3", "--check", "100,200"]).exit_code == 1
    checked = CliRunner().invoke(app, ["lesson", "3", "--check", "300,200", "--json"])
    said = {"lesson": 3, "right": False, "said": "Give the earlier step first."}
    assert checked.exit_code == 1 and json.loads(checked.stdout) == said
    document = json.loads(CliRunner().invoke(app, ["lesson", "3", "--stored", "--no-predict", "--json"]).stdout)
    assert document["value"] is document["inside"] is None and len(document["table"]) > 2
    assert any("worse in 10" in line for line in document["verdicts"])
    assert json.loads(CliRunner().invoke(app, ["lesson", "--json"]).stdout)[2]["at"] == "done"
    predicted = CliRunner().invoke(app, ["lesson", "3", "--stored", "--predict", "-0.1,0"])
    assert "your prediction -0.1 to 0: -0.02221 is inside" in predicted.output and not Path("runs/lesson-03").exists()
    listed = CliRunner().invoke(app, ["lesson"])
    assert "Where am I?" in listed.output and "done" in listed.output


@pytest.mark.parametrize(
    "number", [pytest.param(number, marks=pytest.mark.promise if number == 3 else ()) for number in LESSONS]
)
def test_a_prediction_is_in_the_ledger_before_the_first_run(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A whole lesson with runs 200 times shorter: what was predicted is answered once, a second time nothing is trained."""
    monkeypatch.chdir(tmp_path)
    lesson = LESSONS[number]
    plan = course.LessonRun.plan
    small = ["train.validation_estimator=random", "train.batch_size=2", "train.eval_every=2"]
    monkeypatch.setattr(
        course.LessonRun, "plan", lambda lesson, first_seed: plan(lesson, first_seed, 2, small, shorter=100)
    )
    words = ["lesson", str(number), "--predict", "-9,9"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output + repr(result.exception)
    kinds = [record.content["kind"] for record in project_ledger().read()]
    assert (
        kinds[0] == "prediction" and kinds[-1] == "predicted result" and kinds.count("started") == len(lesson.head.runs)
    )
    assert "predictions that held: 1 of 1" in result.output
    assert ("measuring" in result.output) == bool(lesson.head.measures)
    assert "removing this arm" not in result.output  # the arms are the lesson's
    before = {path: path.stat().st_mtime_ns for path in Path("runs").rglob("result.json")}
    again = CliRunner().invoke(app, ["lesson", str(number), "--no-predict"])
    assert again.exit_code == 0 and "in the ledger: -9 to 9" in again.output and "measuring" not in again.output
    assert before == {path: path.stat().st_mtime_ns for path in Path("runs").rglob("result.json")}
    document = json.loads(CliRunner().invoke(app, ["lesson", str(number), "--no-predict", "--json"]).stdout)
    assert (
        document["prediction"] == {"low": -9.0, "high": 9.0}
        and document["inside"]
        and document["table"][0][1] == "yours"
    )
    assert [record.content["kind"] for record in project_ledger().read()].count("predicted result") == 1


def test_stored_answers_name_their_machine() -> None:
    for lesson in LESSONS.values():
        for each in json.loads(answer_file(lesson).read_text(encoding="utf-8"))["sets"]:
            assert each["precision"] in ("bfloat16", "float32") and each["machine"]


def test_a_prediction_after_the_start_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once the plan is fixed, trials may have ended: a prediction is not recorded."""
    monkeypatch.chdir(tmp_path)
    folder = Path("runs/lesson-07")
    folder.mkdir(parents=True)
    (folder / "compare.json").write_text("{}")
    reader = lesson_command.Reader(find_lesson(7), Prediction(-1, 1), True, False, 0)
    reader.predict()
    assert reader.prediction is None and not project_ledger().path.exists()


def test_an_unknown_lesson_names_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="choose one of"):
        find_lesson(99)


def test_the_references_of_a_lesson_are_those_of_its_text() -> None:
    """N-gram models fitted on its training split; the exercise of lesson 1 asks to pass one of them."""
    data = train_config.run_config("mingpt", data="shakespeare").prepare()
    ngrams = {ngram_name(n): round(loss, 4) for n, loss in evaluate_references.dataset_references(data)["ngrams"]}
    assert ngrams["4-gram"] == FOUR_GRAM
    for lesson in LESSONS.values():
        references = lesson.head.references
        assert references.items() <= ngrams.items()
        if references:
            table = picture_table(read_answer(lesson), before=True)
            assert [(row[0], row[-1]) for row in table.rows[-len(references) :]] == [
                (name, f"{loss:.3f}") for name, loss in references.items()
            ]
