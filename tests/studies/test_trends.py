"""The figure of effects against the number of steps, by size and corpus, and the table of changes between them."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev

import numpy as np
import pytest
from scipy import stats
from typer.testing import CliRunner

from comparisons import TINY
from partwise.cli import app
from partwise.comparison.stats.effect import Effect
from partwise.comparison.stats.families import decide
from partwise.comparison.stats.protocol import Claim, Rules
from partwise.studies.claims import find_outcomes
from partwise.studies.claims_page import markdown
from partwise.studies.growth import GrowthLine, Setting, change_between, contrasts, growth_lines, line_of
from partwise.studies.study import find_study
from partwise.studies.trends import change_look, changes_by_steps, choose_looks, draw_changes, draw_panel, draw_trends

COMMON = [word for word in TINY if not word.startswith("train.steps")]
PROTOCOL = f"""about: tiny
preset: mingpt
seeds: 2
margin: 0.05
failure: 100
horizons: [4, 8]
common: {json.dumps(COMMON)}
"""

SMALL, MIDDLE, LARGE, HUGE = (Setting(size, "shakespeare") for size in (340_000, 2_700_000, 10_000_000, 30_000_000))
PYTHON = Setting(2_800_000, "python")


@pytest.fixture
def studies(here: Path) -> list[str]:
    folder = here / "studies"
    (folder / "protocols").mkdir(parents=True)
    for protocol in ("decoder-1m", "growth"):
        (folder / "protocols" / f"{protocol}.yaml").write_text(PROTOCOL)
    entry = "{data: text.txt, arms: [norm=rmsnorm, positions=rope positions.theta=1000, positions=rope]}"
    (folder / "parts.yaml").write_text(f"claim: c\nprotocol: decoder-1m\ncomparisons: {{all: {entry}}}\n")
    entry = "{data: text.txt, common: [n_layers=1], arms: [norm=rmsnorm, positions=rope]}"
    (folder / "growth.yaml").write_text(f"claim: c\nprotocol: growth\ncomparisons: {{small: {entry}}}\n")
    return ["growth", "parts"]


def test_a_panel_for_each_part_and_a_line_for_each_setting(studies: list[str]) -> None:
    found = [find_study(name) for name in studies]
    assert growth_lines(found) == {} and draw_trends(found) == "" and "trends.svg" not in markdown(found)
    for name in studies:
        done = CliRunner().invoke(app, ["study", "run", name])
        assert done.exit_code == 0, done.output
    lines = growth_lines(found)
    assert list(lines) == ["norm=rmsnorm", "positions=rope"]
    stored = {name: find_study(name).read().comparisons for name in studies}
    sizes = [stored["growth"]["small"].arms[0].parameters, stored["parts"]["all"].arms[0].parameters]
    assert sizes[0] < sizes[1]
    for part in lines.values():
        assert [line.setting.parameters for line in part] == sizes
        assert all([*line.differences] == [4, 8] for line in part)
    # the claim of the same arm, not of the one whose first override is the same
    rope = next(claim for claim in stored["parts"]["all"].claims if claim.effect.arm == "positions=rope")
    assert lines["positions=rope"][1].differences[8] == pytest.approx(rope.effect.differences, abs=1e-15)
    texts = re.findall(r"<text[^>]*>(.*?)</text>", draw_trends(found))
    labels = [str(line.setting) for line in lines["norm=rmsnorm"]]
    assert {"norm=rmsnorm", "positions=rope", *labels} <= set(texts) and texts.count(labels[0]) == 1
    page = markdown(found)
    assert "(images/trends.svg)" in page and "**no prediction**" in page
    title = f"{lines['norm=rmsnorm'][0].setting.size} to {lines['norm=rmsnorm'][1].setting.size}"
    assert f"| difference in | {labels[0]} | {labels[1]} |" in page
    assert "| change from | norm=rmsnorm | positions=rope |" in page
    change = contrasts(lines)[0].changes["positions=rope"]
    assert re.search(rf"\| {title} \|.*\| {change.mean:.3f} \({change.low:.3f} to", page)


def line(setting: Setting, values: list[float], tuning_error: float = 0.0, seeds: int = 4) -> GrowthLine:
    """A line after 500 and 2,000 steps; `tuning_error` was measured with four seeds."""
    effect = Rules(margin=0.02, failure=100.0, looks=()).judge(
        {"base": dict.fromkeys(range(seeds), 0.0), "arm": dict(enumerate(values))}, [Claim("arm", "base")]
    )[0]
    effect = effect.replace(tuning_error=tuning_error)
    return GrowthLine(setting, {500: tuple(2 * x for x in values), 2000: tuple(values)}, effect, 3)


def test_a_change_is_tested_unpaired_with_the_noise_of_tuning_of_both() -> None:
    small, large = [0.10, 0.12, 0.09, 0.13], [0.05, 0.055, 0.06, 0.05]
    found = change_between(line(SMALL, small), line(LARGE, large), 2000)
    assert found is not None
    error = math.hypot(stdev(small) / 2, stdev(large) / 2)
    t = stats.t(3).ppf(0.975)  # below five seeds: those of the smaller group
    difference = mean(large) - mean(small)
    assert [found.mean, found.low, found.high] == pytest.approx(
        [difference, difference - t * error, difference + t * error], rel=1e-12
    )
    assert found.p == pytest.approx(2 * stats.t(3).sf(abs(difference) / error), rel=1e-9)
    noisy = change_between(line(SMALL, small, 0.03), line(LARGE, large, 0.04), 2000)
    assert noisy is not None and noisy.mean == found.mean
    total = math.hypot(error, 0.05)
    df = total**4 / (error**4 / 3 + 0.03**4 / 3 + 0.04**4 / 3)
    assert noisy.high - noisy.mean == pytest.approx(stats.t(df).ppf(0.975) * total, rel=1e-9)


def test_a_line_has_no_points_if_a_run_failed_at_any_length() -> None:
    (finding,) = find_outcomes([find_study("muon")])["muon"]
    baseline, arm = finding.results.arms
    first, *others = arm.trials
    lost = first.model_copy(update={"horizons": first.horizons[:2]})
    failed = finding.results.model_copy(update={"arms": (baseline, arm.model_copy(update={"trials": (lost, *others)}))})
    assert [*line_of(finding).differences] == [500, 1000, 2000]
    assert line_of(replace(finding, results=failed)).differences == {}


def test_no_change_without_a_verdict_or_without_variation() -> None:
    values = [0.10, 0.12, 0.09, 0.13]
    failed = line(LARGE, [0.1, math.inf, 0.1, 0.1])
    assert failed.effect.verdict is None
    assert change_between(line(SMALL, values), failed, 2000) is None
    open_end = line(LARGE, values)
    open_end = replace(open_end, effect=open_end.effect.replace(not_bracketed="edge", verdict=None))
    assert change_between(line(SMALL, values), open_end, 2000) is None
    assert change_between(line(SMALL, [0.1] * 4), line(LARGE, [0.2] * 4), 2000) is None
    assert change_between(line(SMALL, values), line(LARGE, values), 1000) is None  # neither has runs of these steps


def test_a_change_is_found_by_chance_in_at_most_five_of_a_hundred() -> None:
    rng, wrong, draws = np.random.default_rng(0), 0, 2000
    template = line(SMALL, [0.1, 0.2, 0.15, 0.12])

    def drawn(sd: float, n: int, tuning: float) -> GrowthLine:
        values = sd * rng.standard_normal(n)
        noise = tuning * rng.standard_normal()
        estimated = tuning * math.sqrt(rng.chisquare(3) / 3)
        effect: Effect = template.effect.replace(n=n, tuning_error=estimated)
        return replace(template, differences={2000: tuple((values + noise).tolist())}, effect=effect)

    for _ in range(draws):
        change = change_between(drawn(0.03, 4, 0.01), drawn(0.01, 8, 0.004), 2000)
        wrong += change is not None and change.p <= 0.05
    assert wrong / draws <= 0.06  # 0.05 and two standard errors


def test_sizes_are_in_order_of_their_numbers_and_other_corpora_last() -> None:
    lines = {"ffn=relu": [line(setting, [0.1, 0.12, 0.09, 0.13]) for setting in (SMALL, MIDDLE, LARGE, PYTHON)]}
    looks = choose_looks(lines)
    assert [str(setting) for setting in looks] == [
        "0.34M shakespeare",
        "2.7M shakespeare",
        "10M shakespeare",
        "2.8M python",
    ]
    darkness = [sum(int(look.color[i : i + 2], 16) for i in (1, 3, 5)) for look in [*looks.values()][:3]]
    assert darkness == sorted(darkness, reverse=True) and len(set(darkness)) == 3
    assert [look.line for look in looks.values()] == ["-", "-", "-", "--"]
    found = contrasts(lines)
    assert [each.title for each in found] == ["0.34M to 10M", "2.7M to 10M", "shakespeare to python"]
    assert found[2].first == MIDDLE  # the nearest in size
    assert [change_look(each, looks).marker for each in found] == ["o", "D", "s"]  # a diamond: not from the smallest
    assert contrasts({}) == [] and contrasts({"ffn=relu": lines["ffn=relu"][:1]}) == []


def test_a_setting_with_fewer_steps_is_compared_after_as_many() -> None:
    values = [0.10, 0.12, 0.09, 0.13]
    short = line(LARGE, values)
    short = replace(short, differences={500: tuple(values)})
    found = contrasts({"ffn=relu": [line(SMALL, values), line(MIDDLE, values), short, line(PYTHON, values)]})
    titles = ["0.34M to 2.7M", "0.34M to 10M, 500 steps", "2.7M to 10M, 500 steps", "shakespeare to python"]
    assert [each.title for each in found] == titles
    assert [each.steps for each in found] == [2000, 500, 500, 2000]
    assert found[1].changes["ffn=relu"].mean == pytest.approx(mean(values) - 2 * mean(values))


def test_the_largest_of_each_number_of_steps_is_compared() -> None:
    values = (0.10, 0.12, 0.09, 0.13)
    ends = {SMALL: 2000, MIDDLE: 1000, LARGE: 500, HUGE: 500}
    steps = (500, 1000, 2000)
    lines = [
        replace(line(setting, [*values]), differences={step: values for step in steps if step <= end})
        for setting, end in ends.items()
    ]
    found = contrasts({"ffn=relu": lines})
    assert [each.title for each in found] == ["0.34M to 2.7M, 1,000 steps", "0.34M to 30M, 500 steps"]
    title, rows = changes_by_steps({"ffn=relu": lines}, choose_looks({"ffn=relu": lines}))
    assert title == "500 to 2,000 steps" and len(rows[0][1]) == 1  # the others have other changes


def test_settings_without_a_part_or_a_length_in_common_are_not_compared() -> None:
    values = [0.10, 0.12, 0.09, 0.13]
    assert contrasts({"ffn=relu": [line(SMALL, values)], "norm=dyt": [line(LARGE, values)]}) == []
    other = replace(line(LARGE, values), differences={100: tuple(values)})
    assert contrasts({"ffn=relu": [line(SMALL, values), other]}) == []


def test_failed_runs_of_one_length_have_no_point() -> None:
    """If all runs of an arm end above the loss of uniform guessing, there is a verdict without a mean."""
    finding = find_outcomes([find_study("growth-10m")])["growth-10m"][0]
    lost = finding.effect.replace(differences=(None,) * 4, mean=None, verdict="worse")
    assert line_of(replace(finding, effect=lost)).differences == {}
    values = [0.10, 0.12, 0.09, 0.13]
    assert change_between(line(SMALL, values), replace(line(LARGE, values), effect=lost), 2000) is None


def test_runs_of_one_length_have_a_point() -> None:
    findings = find_outcomes([find_study("growth-10m")])["growth-10m"]
    assert len(findings) == 6
    for finding in findings:
        found = line_of(finding)
        assert [*found.differences] == [500] and found.most_steps == 500 and found.change is None
        assert found.differences[500] == pytest.approx(finding.effect.differences, abs=1e-15)


def test_p_values_of_a_contrast_are_adjusted_for_all_parts() -> None:
    rows = {"a": [0.10, 0.12, 0.09, 0.13], "b": [0.3, 0.1, 0.2, 0.4]}
    lines = {part: [line(SMALL, values), line(LARGE, [x / 2 for x in values])] for part, values in rows.items()}
    single = {part: change_between(*each, 2000).p for part, each in lines.items()}
    low, high = sorted(single, key=lambda part: single[part])
    changes = contrasts(lines)[0].changes
    assert changes[low].p == pytest.approx(2 * single[low])
    assert changes[high].p == pytest.approx(max(2 * single[low], single[high]))


def test_intervals_have_one_level_however_the_claim_was_adjusted() -> None:
    values = [0.10, 0.12, 0.09, 0.13]
    adjusted = line(SMALL, values)
    adjusted = replace(adjusted, effect=decide([adjusted.effect], 0.05, untested=17)[0])
    assert adjusted.effect.nominal_alpha < 0.003
    half = stats.t(3).ppf(0.975) * stdev(values) / 2
    point = adjusted.points[-1]
    assert point.step == 2000 and point.low == pytest.approx(mean(values) - half)
    change = adjusted.change
    assert (
        change is not None
        and change.mean == pytest.approx(-mean(values))
        and change.high - change.mean == pytest.approx(half)
    )
    assert replace(adjusted, differences={2000: tuple(values)}).change is None


def test_differences_without_an_interval_are_drawn() -> None:
    from matplotlib.figure import Figure

    lines = {"ffn=relu": [line(SMALL, [-0.1] * 4), line(LARGE, [0.1, 0.11, 0.12, 0.1])]}
    axes = Figure().subplots()
    draw_panel(axes, "ffn=relu", lines["ffn=relu"], choose_looks(lines))
    low, high = axes.get_ylim()
    assert low < -0.2 < 0.24 < high  # the seeds after 500 steps
    draw_changes(
        Figure().subplots(),
        "500 to 2,000 steps",
        [("ffn=relu", [(each.change, choose_looks(lines)[SMALL]) for each in lines["ffn=relu"]])],
    )
