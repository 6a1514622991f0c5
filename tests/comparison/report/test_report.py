"""The report of a comparison: complete, correct, safe for any names, and fast to import."""

import copy
import csv
import io
import math
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, get_args
from urllib.parse import unquote

import pytest
from rich.console import Console
from scipy import stats

from partwise.comparison.report import rendering as report
from partwise.comparison.report.cells import fraction_interval, with_relative_change
from partwise.comparison.report.explanations import write_p
from partwise.comparison.report.figures import draw_differences
from partwise.comparison.report.rendering import printable, summary, write_report
from partwise.comparison.report.tables import Paragraph, pairing, reference_sentence
from partwise.comparison.results import Proportion, Results
from partwise.comparison.stats.effect import Role
from partwise.comparison.stats.intervals import judge
from partwise.comparison.stats.protocol import Claim, Rules
from partwise.comparison.stats.verdict_text import details, explanations, headline

HOSTILE = "<script>alert('x')</script>|`$\\frac$`\n[bold]**b**\x1b[31m\u202e&amp;\""
STEPS = list(range(0, 5001, 250))
PROTOCOL = {"metric": "validation loss", "unit": "nats per character", "lower_is_better": True}
PROTOCOL |= {"margin": 0.005, "alpha": 0.05}


def accuracy_of(correct: int, total: int) -> dict[str, Any]:
    p, z = correct / total, 1.96
    half = z * math.sqrt(p * (1 - p) / total)
    return {"proportion": p, "low": max(0.0, p - half), "high": min(1.0, p + half), "correct": correct, "total": total}


def curve(seed: int, final: float, steps: list[int]) -> list[list[float]]:
    """A smooth decay from 4.2 to `final` with a wiggle that depends on the seed but not on the arm."""
    wiggle = [0.01 * math.sin(step / 90 + seed) for step in steps]
    decay = [final + (4.2 - final) * math.exp(-step / 600) for step in steps]
    return [[step, value + noise] for step, value, noise in zip(steps, decay, wiggle, strict=True)]


def arm(name: str, finals: list[float | None], **more: Any) -> dict[str, Any]:
    evaluations = [
        [[s, v, v - 0.1] for s, v in curve(seed, final or 3.9, STEPS if final else STEPS[:5])]
        for seed, final in enumerate(finals)
    ]
    training = [
        curve(seed, (final or 3.9) - 0.1, list(range(1, 5001 if final else 1001, 4)))
        for seed, final in enumerate(finals)
    ]
    plain: dict[str, Any] = {
        "name": name,
        "overrides": name.split() if "=" in name else [],
        "parameters": 888_512,
        "flops_per_token": 5_898_240,
        "tokens_per_second": 36_120.4,
        "peak_memory": 536_870_912,
        "config_changes": [],
        "trials": [
            {
                "seed": seed,
                "value": final,
                "diverged": final is None,
                "failed": final is None,
                "training_loss": None if final is None else final - 0.1,
                "training_curve": training[seed],
                "evaluations": evaluations[seed],
            }
            for seed, final in enumerate(finals)
        ],
        "accuracy": None,
        "unpaired_tensors": [],
        "n_paired_tensors": 100,
        "n_tensors": 100,
    }
    return plain | more


def values_of(side: dict[str, Any]) -> list[float | None]:
    return [trial["value"] for trial in side["trials"]]


def comparison(side: dict[str, Any], base: dict[str, Any]) -> dict[str, Any]:
    values = [{s: math.nan if v is None else v for s, v in enumerate(values_of(a))} for a in (side, base)]
    effect = judge(side["name"], base["name"], *values).to_dict()
    pairs = zip(side["trials"], base["trials"], strict=True)
    differences = [
        [[a[0], a[1] - b[1]] for a, b in zip(one["evaluations"], other["evaluations"], strict=False)]
        for one, other in pairs
    ]
    effects = []
    for index, step in enumerate(STEPS):
        if all(len(line) > index for line in differences):
            at_step = {seed: line[index][1] for seed, line in enumerate(differences)}
            row = judge("a", "b", at_step, dict.fromkeys(at_step, 0.0))
            effects.append({"step": step, "mean": row.mean, "low": row.low, "high": row.high})
    return {"effect": effect, "effect_over_training": effects, "differences_over_training": differences}


@pytest.fixture(scope="module")
def full() -> dict[str, Any]:
    """Three arms over five seeds: one better and scored on arithmetic, one with a run that diverged."""
    accuracy = {
        kind: {
            "char_accuracy_closed": accuracy_of(5928, 10_000),
            "char_accuracy": accuracy_of(5500, 9000),
            "exact_match": accuracy_of(7, 1000),
        }
        for kind in ("all", "+")
    }
    base = arm("mingpt", [1.7148, 1.7103, 1.7181, 1.7095, 1.7120], accuracy=accuracy)
    better = arm(
        "ffn=swiglu ffn.expansion=2.667",
        [1.6631, 1.6598, 1.6690, 1.6570, 1.6612],
        parameters=890_112,
        config_changes=[["ffn", "relu", "swiglu"], ["ffn.expansion", 4.0, 8 / 3], ["ffn.hidden_dropout", 0.0, None]],
        unpaired_tensors=[f"blocks.{i}.ffn.{name}.weight" for i in range(8) for name in ("gate", "up", "down")],
        n_paired_tensors=84,
        n_tensors=108,
        accuracy=accuracy,
    )
    diverged = arm(
        "norm=none", [1.71, None, 1.72, 1.73, 1.74], config_changes=[["norm", "layernorm", "none"]], peak_memory=None
    )
    return {
        "format": 3,
        "question": "Does any of ffn=swiglu ffn.expansion=2.667, norm=none change the validation loss of mingpt?",
        "protocol": PROTOCOL,
        "look": 1,
        "seeds": [0, 1, 2, 3, 4],
        "scope": "This holds for 888,512 parameters trained for 5,000 steps of 16 x 128 characters on shakespeare; "
        "another size, horizon or dataset may answer differently.",
        "tuning_note": "one learning rate (0.0003), untuned",
        "task": {"data": "shakespeare", "tokenizer": "characters", "steps": 5000, "batch_size": 16, "seq_len": 128}
        | {"tokens": 10_240_000, "epochs": 10.2},
        "provenance": {
            "name": "mingpt-swiglu",
            "created": "2026-11-21T09:00:00Z",
            "command": "partwise compare mingpt 'ffn=swiglu ffn.expansion=2.667' --arm norm=none --seeds 5",
            "runtime": {"device": "cpu", "precision": "bfloat16", "threads": 1, "kernels": False},
            "machine": {"partwise": "0.1.0", "torch": "2.13.0", "cpu": "A processor", "cores": "2"},
        },
        "arms": [base, better, diverged],
        "claims": [
            comparison(better, base) | {"minimum_detectable_effect": 0.0031},
            comparison(diverged, base),
        ],
        "minimum_detectable_effect": 0.0031,
        "references": {"ngrams": [[1, 3.3201], [2, 2.4835], [7, 1.5165]], "fitted_tokens": 1_003_854}
        | {"constant_char_accuracy_closed": 0.594, "constant_char_accuracy": 0.553, "constant_exact_match": 0.0016},
    }


@pytest.fixture
def minimal() -> dict[str, Any]:
    """One seed, with every optional number unknown."""
    numbers = ("parameters", "flops_per_token", "tokens_per_second", "peak_memory", "accuracy")
    numbers += ("n_paired_tensors", "n_tensors")
    sides = [arm("mingpt", [1.7]), arm("ffn=geglu", [1.69])]
    for side in sides:
        side |= dict.fromkeys(numbers)
        side["trials"] = [{"seed": 0, "value": side["trials"][0]["value"]}]
    effect = judge("ffn=geglu", "mingpt", {0: 1.69}, {0: 1.7}).to_dict()
    plain = {"format": 3, "question": "Does ffn=geglu change it?", "protocol": PROTOCOL}
    return plain | {"seeds": [0], "arms": sides, "claims": [{"effect": effect}]}


class Page(HTMLParser):
    """The elements, attributes and visible text of an HTML page; asserts that tags are balanced."""

    VOID = ("meta", "link", "br", "input")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert not self.open, self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open and "script" not in self.open:
            self.text += data

    def values(self, name: str) -> list[str]:
        return [value for _, attributes in self.tags if (value := attributes.get(name)) is not None]


def written(results: dict[str, Any], folder: Path) -> tuple[str, str]:
    write_report(Results.from_dict(results), folder)
    return (folder / "report.html").read_text("utf-8"), (folder / "report.md").read_text("utf-8")


@pytest.fixture(scope="module")
def reports(full: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    return written(full, tmp_path_factory.mktemp("report"))


def terminal(results: dict[str, Any], width: int = 80, **settings: Any) -> str:
    console = Console(file=io.StringIO(), width=width, soft_wrap=True, highlight=False, **settings)
    console.print(summary(Results.from_dict(results), Path("runs/mingpt-swiglu")))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


CHOICES = {*report.MARKS, *get_args(Role)}


def everywhere(value: Any, text: str) -> Any:
    """`value` with `text` in place of every string except verdicts, and as an extra key of the free-form dictionaries."""
    if isinstance(value, str):
        return value if value in CHOICES else text
    if isinstance(value, list):
        return [everywhere(item, text) for item in value]
    if isinstance(value, dict):
        replaced = {key: everywhere(item, text) for key, item in value.items()}
        for name in ("machine", "runtime"):
            if isinstance(replaced.get(name), dict):
                replaced[name][text] = text
        return replaced
    return value


def test_the_two_lines_of_each_verdict_come_first_then_the_sections_in_order(
    full: dict[str, Any], reports: tuple[str, str]
) -> None:
    html, markdown = reports
    page = Page(html)
    effects = Results.from_dict(full).effects
    lines = [line for effect in effects for line in headline(effect)]
    sentences = [*details(effects)]
    assert sentences and all(len(headline(effect)) == 2 for effect in effects[:1])
    body = page.text[page.text.index(full["question"], 120) :]
    order = (*lines, "At a glance", "Every difference", full["scope"], "Over training", "Details")
    offsets = [body.index(text) for text in order]
    offsets.append(body.rindex(full["provenance"]["command"]))
    assert offsets == sorted(offsets)
    headings = re.findall("<h2>(.*?)</h2>", html)
    order = ["At a glance", "Every seed", "Over training", "The arms", "Configuration changes", "Shared initialization"]
    order += ["The statistics", "Arithmetic accuracy", "References", "How it was run"]
    assert [title for title in headings if title in order] == order
    links = re.findall('<a href="#(section-.*?)">(.*?)</a>', html)
    assert [title for _, title in links] == headings, "the table of contents lists every section"
    assert [key for key, _ in links] == re.findall('<section id="(.*?)">', html)
    assert [a["class"] for _, a in page.tags if (a.get("class") or "").startswith("verdict ")] == [
        "verdict better",
        "verdict none",
    ]
    assert full["provenance"]["command"] in markdown and full["scope"] in markdown
    interval = headline(effects[0])[1].partition(",")[0]  # without p, where < is escaped
    assert markdown.index("\n- **✓ ") < markdown.index(f"\n\n  {interval}, ") < markdown.index("## At a glance")
    assert all(page.text.index("Details") < page.text.index(sentence) for sentence in sentences)
    assert markdown.index("## Details") < markdown.index(sentences[0]) < markdown.index("## Every seed")


def test_the_terminal_has_the_verdict_first_and_its_rules_among_the_details(full: dict[str, Any]) -> None:
    lines = terminal(full, width=1000).splitlines()
    question = lines.index(full["question"])
    assert lines[question + 2].startswith("✓ ") and " is better than mingpt: lower by " in lines[question + 2]
    assert re.fullmatch(r"  [\d.]+ to [\d.]+ \([\d.]+% interval, 5 paired seeds\), p .*", lines[question + 3])
    first, details = "\n".join(lines).split("\nDetails\n")
    assert full["scope"] not in first and full["claims"][0]["effect"]["sentence"] not in first
    assert full["claims"][0]["effect"]["sentence"] in details and full["scope"] in details


def test_every_number_is_in_both_reports(full: dict[str, Any], reports: tuple[str, str]) -> None:
    better = full["claims"][0]["effect"]
    shown = [f"{value:.4f}" for value in (better["mean"], better["low"], better["high"], *better["differences"])]
    shown += [f"{value:.4f}" for side in full["arms"] for value in values_of(side) if value is not None]
    shown += [f"{better[key]:.4f}" for key in ("sd_arm", "sd_against", "sd_difference")]
    shown += [
        f"{better['correlation']:.2f}",
        "888,512",
        "890,112 (+0.2%)",
        "5,898,240",
        "36,120",
        "512 MiB",
        "failed",
    ]
    shown += ["84 of 108 tensors", "100 of 100 tensors", "3.3201", "1.5165", "59.28%", "59.40%", "0.16%", "0.0031"]
    shown += [
        "one learning rate (0.0003), untuned",
        "10,240,000",
        "2026-11-21",
        "bfloat16",
        "1 of 5, 0 of 5",
        "Fisher's exact test",
        "5 pairs",
    ]
    html, markdown = reports
    for text in (Page(html).text, markdown):
        assert [number for number in shown if number not in text] == []
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in markdown.splitlines() if line[:1] == "|"]
    of_seed = ["1", "1.7103", "1.6598", "failed", f"{better['differences'][1]:.4f}", "–"]
    assert of_seed in [row[: len(of_seed)] for row in cells]
    assert ["mean", f"{sum(values_of(full['arms'][0])) / 5:.4f}"] == next(row for row in cells if row[0] == "mean")[:2]
    assert ["ffn.hidden_dropout", "0.0", "–"] in cells
    gap = next(row for row in cells if row[0].startswith("7-gram"))
    assert gap[2] == f"{sum(values_of(full['arms'][0])) / 5 - 1.5165:+.4f}" and gap[4] == "–"


def test_no_number_has_more_digits_than_it_needs(full: dict[str, Any], tmp_path: Path) -> None:
    """Also not in the figures, their downloads or lists of parts by layer."""
    first, *arms = copy.deepcopy(full["arms"])
    layers = [{"part": "swiglu", "expansion": 8 / 3}, {"part": "relu", "expansion": 1 / 3}]
    arms[0]["config_changes"].append(["ffn", "relu", layers])
    for each in (first, *arms):
        each["budget"] = {"tokens": 1e7 / 3, "parameters": 1e6, "flops": 1e15 / 3, "seconds": 1e3 / 3}
    for text in written(full | {"arms": [first, *arms]}, tmp_path):
        assert "2.66667" in text and "0.333333" in text
        assert re.findall(r".{20}\.0*[1-9]\d{8,}", text) == []


def test_losses_are_shown_against_all_that_is_known(full: dict[str, Any], tmp_path: Path) -> None:
    """Tokens and seconds need the budget of every arm; without one, a figure has no choice."""
    arms = copy.deepcopy(full["arms"])
    for each in arms:
        each["budget"] = {"tokens": 1e7, "parameters": 1e6, "flops": 1e15, "seconds": 300.0}
    page = Page(written(full | {"arms": arms}, tmp_path)[0])
    choices = [attributes for tag, attributes in page.tags if tag == "input"]
    assert [each["aria-label"].rpartition(" ")[2] for each in choices if each["aria-label"]] == 2 * [
        "step",
        "tokens",
        "seconds",
    ]
    assert len({each["name"] for each in choices}) == 2 and sum("checked" in each for each in choices) == 2
    assert {each["id"] for each in choices} == set(page.values("for"))
    arms[1]["budget"] = None
    page = Page(written(full | {"arms": arms}, tmp_path)[0])
    assert [tag for tag, _ in page.tags if tag == "input"] == []


def test_every_figure_downloads(reports: tuple[str, str]) -> None:
    page = Page(reports[0])
    files = [attributes["download"] for _, attributes in page.tags if attributes.get("download")]
    figures = [tag for tag, _ in page.tags if tag == "figure"]
    for ending in (".svg", ".csv"):
        assert len({name for name in files if name.endswith(ending)}) == len(figures) == 8
    link = next(a["href"] for _, a in page.tags if a.get("download") == "Every-difference.csv")
    assert link is not None
    numbers = list(csv.DictReader(io.StringIO(unquote(link.partition(",")[2]))))
    assert [row["verdict"] for row in numbers] == ["better", ""] and float(numbers[0]["mean"]) < 0


def test_samples_are_shown_by_arm(full: dict[str, Any], tmp_path: Path) -> None:
    arms = [side | {"samples": [f"{number} says <i>", "more"]} for number, side in enumerate(full["arms"])]
    html, markdown = written(full | {"arms": arms}, tmp_path)
    places = [html.index(text) for text in ("<h2>At", "0 says &lt;i&gt;\nmore", "2 says &lt;i&gt;", "<h2>Every seed")]
    assert places == sorted(places)
    assert "| norm=none | 2 says &lt;i&gt; more |" in markdown
    assert "Samples" not in Page(written(full, tmp_path)[0]).text


def test_a_mean_never_omits_diverged_runs(full: dict[str, Any], reports: tuple[str, str]) -> None:
    _, markdown = reports
    row = next(line for line in markdown.splitlines() if line.startswith("| norm=none |"))
    assert [cell.strip() for cell in row.split("|")[-5:-1]] == ["–", "–", "–", "1"]
    assert "1.7250" not in markdown and "1.7250" not in terminal(full)


def test_equal_batches_are_claimed_only_if_they_are_equal(full: dict[str, Any], reports: tuple[str, str]) -> None:
    sentence = "all arms also see the same batches"
    other = arm("train.batch_size=8", [1.7], config_changes=[["train.batch_size", 16, 8]])
    page = [
        block.text
        for block in pairing(Results.from_dict(full | {"arms": [full["arms"][0], other]}))
        if isinstance(block, Paragraph)
    ]
    assert sentence in reports[1] and not any(sentence in text for text in page)
    assert page[-1].startswith("The arms differ in the shape of their batches")


def test_html_opens_offline(reports: tuple[str, str]) -> None:
    html, _ = reports
    page = Page(html)
    assert {tag for tag, _ in page.tags} & {
        "iframe",
        "object",
        "embed",
        "img",
        "base",
        "form",
        "image",
    } == set()
    targets = [*page.values("src"), *page.values("href"), *page.values("xlink:href")]
    assert [target for target in targets if not target.startswith(("#", "data:"))] == []
    assert [attributes for tag, attributes in page.tags if tag == "script"] == [{}], "one script, in the page itself"
    assert re.findall(r"https?:|@import|url\((?!#)", html) == []
    assert html.count("<style>") == 1
    assert len(html.encode()) < 1_000_000


def test_ids_of_inline_figures_never_clash(reports: tuple[str, str]) -> None:
    html, _ = reports
    page = Page(html)
    ids = page.values("id")
    assert len(ids) > 100 and len(set(ids)) == len(ids)
    used = {value[1:] for value in page.values("xlink:href")} | set(re.findall(r"url\(#([^)]*)\)", html))
    assert used <= set(ids)
    figures = re.findall(r'<div class="plot".*?(<svg.*?</svg>)', html, re.DOTALL)
    assert len(figures) == 8
    for svg in figures:
        ElementTree.fromstring(svg.replace("<svg ", '<svg xmlns:xlink="http://www.w3.org/1999/xlink" ', 1))
        assert "<text" in svg and "<metadata" not in svg and "<style" not in svg


def test_the_same_results_give_the_same_bytes(full: dict[str, Any], tmp_path: Path, reports: tuple[str, str]) -> None:
    assert reports == written(copy.deepcopy(full), tmp_path)


@pytest.mark.filterwarnings("error")
def test_hostile_text_stays_text(full: dict[str, Any], tmp_path: Path, reports: tuple[str, str]) -> None:
    tags = {tag for tag, _ in Page(reports[0]).tags}
    hostile = everywhere(full, HOSTILE)
    for side in hostile["arms"]:
        if side["accuracy"]:
            side["accuracy"][HOSTILE] = side["accuracy"]["all"]
    html, markdown = written(hostile, tmp_path)
    page = Page(html)
    assert {tag for tag, _ in page.tags} <= tags
    assert not [name for _, attributes in page.tags for name in attributes if name.startswith("on")]
    assert "<script>alert('x')</script>|`$\\frac$`" in page.text
    assert not any(mark in html + markdown for mark in ("\x1b", "\u202e"))
    body = markdown.replace(markdown.split("```")[1], "")
    assert "<script" not in body and "[bold]" not in body
    assert re.search(r"(?<!\\)`(?!`|report\.html`)[^`]*(?<!\\)\$", body) is None
    widths: list[int] = []
    for line in markdown.splitlines():
        if line.startswith("|"):
            widths.append(len(re.findall(r"(?<!\\)\|", line)))
        else:
            assert len(set(widths)) <= 1, line
            widths = []
    shown = terminal(hostile, force_terminal=True, color_system=None)
    assert "\x1b" not in shown and "[bold]**b**" in " ".join(shown.split())


def test_the_backends_of_each_arm_are_listed_with_their_reasons(minimal: dict[str, Any], tmp_path: Path) -> None:
    base, own = minimal["arms"]
    base["backends"] = [
        {"kind": "block", "counts": {"cpp": 3, "eager": 1}, "reasons": ["cpp: a window", "sdpa: a cap"]}
    ]
    own["backends"] = [
        {"kind": "block", "counts": {"eager": 4}, "reasons": ["cpp: ffn=mine is not supported"]},
        {"kind": "attention", "counts": {"sdpa": 4}, "reasons": []},
        {"kind": "ffn", "counts": {"eager": 4}, "reasons": ["cpp: ffn=mine has no kernel"]},
    ]
    of_base = "block: 3 cpp, 1 eager (cpp: a window; sdpa: a cap)"
    of_own = (
        "block: 4 eager (cpp: ffn=mine is not supported); attention: 4 sdpa; ffn: 4 eager (cpp: ffn=mine has no kernel)"
    )
    html, markdown = written(minimal, tmp_path)
    for text in (Page(html).text, markdown):
        assert text.index("The arms") < text.index(of_base) < text.index(of_own)
    assert f"| {own['name']} | {of_own} |" in markdown
    own["backends"] = base["backends"]
    html, markdown = written(minimal, tmp_path)
    for text in (Page(html).text, markdown):
        assert text.count(of_base) == 1 and f"Backends of every arm: {of_base}." in text


def test_a_command_with_backticks_stays_in_its_block(full: dict[str, Any], tmp_path: Path) -> None:
    _, markdown = written(full | {"provenance": {"command": "echo '```\n# not a heading\n````'"}}, tmp_path)
    assert "`````\necho '```\n# not a heading\n````'\n`````\n" in markdown


def test_missing_values_are_omitted(minimal: dict[str, Any], tmp_path: Path) -> None:
    html, markdown = written(minimal, tmp_path)
    text = Page(html).text
    for title in ("Over training", "Configuration", "Shared init", "Arithmetic", "References", "How it was run"):
        assert title not in text and title not in markdown
    assert minimal["claims"][0]["effect"]["sentence"] in text
    for output in (text, markdown, terminal(minimal)):
        assert re.search(r"\b(None|nan|null|Undefined)\b", output) is None
    bare = minimal | {"arms": [], "claims": []}
    assert minimal["question"] in written(bare, tmp_path)[0] and minimal["question"] in terminal(bare)


def test_a_single_difference_is_shown_at_a_glance_and_not_again(full: dict[str, Any], tmp_path: Path) -> None:
    single = full | {"claims": [full["claims"][0] | {"exploratory": None}]}
    html, _ = written(single, tmp_path)
    effect = single["claims"][0]["effect"]
    title = f'<p class="title">{effect["arm"]} minus {effect["against"]}'
    offsets = [html.index(text) for text in (f"{title}</p>", f"{title}, over training</p>", effect["sentence"])]
    assert offsets == sorted(offsets) and html.count(title) == 2
    assert "Every difference" not in html


def test_verdicts_without_a_figure_come_first(minimal: dict[str, Any], tmp_path: Path) -> None:
    claims = [minimal["claims"][0] | {"effect": minimal["claims"][0]["effect"] | {"differences": [None]}}]
    found = minimal | {"claims": claims}
    text = Page(written(found, tmp_path)[0]).text
    assert text.index(headline(Results.from_dict(found).effects[0])[0]) < text.index("The arms")


def test_many_columns_become_a_list_on_narrower_pages(reports: tuple[str, str], full: dict[str, Any]) -> None:
    tables = re.findall('<table class="(.*?)">.*?<thead>(.*?)</thead>', reports[0], re.DOTALL)
    columns = [(name.split(), head.count("<th ")) for name, head in tables]
    assert any("many" in name for name, _ in columns) and any("many" not in name for name, _ in columns)
    assert all(("many" in name) == (count > (3 if "hinted" in name else 6)) for name, count in columns)


def test_signs_are_listed_only_where_the_loss_was_evaluated(full: dict[str, Any], tmp_path: Path) -> None:
    assert [column for column in ("25%", "50%", "75%", "100%") if f">{column}</th>" in written(full, tmp_path)[0]] == [
        *("25%", "50%", "75%", "100%")
    ]
    claim = copy.deepcopy(full["claims"][0])
    points = claim["effect_over_training"]
    last = points[-1]["step"]
    claim["effect_over_training"] = [point | {"step": last * (n + 1) // 6} for n, point in enumerate(points[-6:])]
    html = written(full | {"claims": [claim]}, tmp_path)[0]
    assert ">50%</th>" in html and ">100%</th>" in html and ">25%</th>" not in html and ">75%</th>" not in html


def test_files_are_replaced_atomically(full: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = full | {"arms": full["arms"][:2], "claims": []}
    before = written(full, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "report.md"]
    replaced = []
    monkeypatch.setattr(os, "replace", lambda old, new: replaced.append((old, new)))
    write_report(Results.from_dict(full | {"question": "another"}), tmp_path)
    assert [(old.parent, new.name) for old, new in replaced] == [(tmp_path, "report.html"), (tmp_path, "report.md")]
    assert ((tmp_path / "report.html").read_text("utf-8"), (tmp_path / "report.md").read_text("utf-8")) == before
    assert "another" in replaced[0][0].read_text("utf-8")


def test_many_arms_and_seeds_stay_small(full: dict[str, Any], tmp_path: Path) -> None:
    base, better = full["arms"][:2]
    sides = [copy.deepcopy(better) | {"name": f"arm {index}"} for index in range(8)]
    for side in [base, *sides]:
        side["trials"] = [trial | {"seed": 5 * copied + trial["seed"]} for copied in (0, 1) for trial in side["trials"]]
    claim = full["claims"][0]
    claims = [claim | {"effect": claim["effect"] | {"arm": side["name"]}} for side in sides]
    many = full | {"arms": [base, *sides], "claims": claims}
    written(many, tmp_path)
    assert (tmp_path / "report.html").stat().st_size < 1_000_000


def test_dots_are_at_their_differences(full: dict[str, Any]) -> None:
    row = Results.from_dict(full).effects[0]
    svg = draw_differences(row, "#123456", 0.005, True, "k")
    tick = r'<use xlink:href="#k-m\w+" x="([\d.]+)" y="[\d.]+" style="fill: #3c4043.*?>(-?\d+\.\d+)</text>'
    ticks = [(float(x), float(value)) for x, value in re.findall(tick, svg, re.DOTALL)]
    assert len(ticks) >= 2
    (x0, v0), (x1, v1) = ticks[0], ticks[-1]
    dots = re.findall(r'<use xlink:href="#k-m\w+" x="([\d.]+)" y="([\d.]+)" style="fill: #123456; fill-opacity', svg)
    found = [v0 + (float(x) - x0) * (v1 - v0) / (x1 - x0) for x, _ in dots]
    assert found == pytest.approx(list(row.differences), abs=1e-6)
    heights = [float(y) for _, y in dots]
    assert heights == sorted(heights) and "seed 4" in svg and "better · difference · worse" in svg
    assert "worse · difference · better" in draw_differences(row, "#123456", 0.005, False, "k")


def test_figures_handle_missing_values() -> None:
    diverged = judge("a", "b", {0: math.nan}, {0: 1.0})
    assert draw_differences(diverged, "#000", 0.0, True, "k") == ""


def test_terminal_fits_80_columns(full: dict[str, Any], minimal: dict[str, Any]) -> None:
    for results in (full, minimal, everywhere(full, "ffn=a-name-without-any-space-in-it-that-is-long,option=1 " * 3)):
        assert max(map(len, terminal(results).splitlines())) <= 80
    shown = " ".join(terminal(full).split())
    for text in (
        *(claim["effect"]["sentence"] for claim in full["claims"]),
        full["question"],
        full["scope"],
        "1.5165",
        "59.28%",
    ):
        assert text in shown
    assert shown.endswith("report: runs/mingpt-swiglu/report.html")


def test_the_reference_sentence_counts_the_arms_above(full: dict[str, Any]) -> None:
    def sentence(*means: float) -> str:
        arms = [{"name": "a", "trials": [{"seed": 0, "value": value}]} for value in means]
        return reference_sentence(Results.from_dict(full | {"arms": arms}))

    assert sentence(1.6, 1.7).endswith("Every arm is above it and has not beaten n-gram counting.")
    assert sentence(1.4, 1.5).endswith("Every arm is below it and beats n-gram counting.")
    assert sentence(1.4, 1.7).endswith("1 of 2 arms are above it and have not beaten n-gram counting.")
    assert reference_sentence(Results.from_dict(full | {"references": {}})) == ""


def test_the_adjusted_p_and_the_level_of_each_interval_are_shown(full: dict[str, Any], tmp_path: Path) -> None:
    """Two comparisons: the smaller p is doubled and its interval has 97.5%; the other is tested at 5%."""
    base = dict(enumerate([1.7148, 1.7103, 1.7181, 1.7095, 1.7120]))
    values = {"base": base, "one": {s: v - 0.03 + 0.002 * (-1) ** s for s, v in base.items()}}
    values["two"] = {s: v - 0.03 + 0.015 * (-1) ** s for s, v in base.items()}
    effects = Rules(looks=()).judge(values, [Claim("one", "base"), Claim("two", "base")])
    p = [stats.ttest_rel(list(values[name].values()), list(base.values())).pvalue for name in ("one", "two")]
    assert p[0] < 0.025 and p[1] < 0.05
    found = full | {"claims": [{"effect": effect.to_dict()} for effect in effects]}
    _, markdown = written(found, tmp_path)
    line = next(line for line in markdown.splitlines() if line.startswith("| p adjusted"))
    shown = [float(cell.replace("&lt;", "")) for cell in line.split("|")[2:4]]
    assert shown == [pytest.approx(max(2 * p[0], 1e-4), rel=0.05), pytest.approx(max(p[1], 2 * p[0]), rel=0.05)]
    line = next(line for line in markdown.splitlines() if line.startswith("| t interval"))
    assert "(97.5%)" in line.split("|")[2] and "(95%)" in line.split("|")[3]
    for text in (markdown, terminal(found)):
        assert all(each in " ".join(text.split()) for each in explanations(effects))


def test_an_exploratory_estimate_is_shown_without_a_verdict(full: dict[str, Any], tmp_path: Path) -> None:
    claim, *others = full["claims"]
    effect = claim["effect"] | {"verdict": None, "sentence": "exploratory, over 9 paired seeds: no verdict."}
    found = full | {"claims": [claim | {"exploratory": effect}, *others]}
    html, markdown = written(found, tmp_path)
    assert all(effect["sentence"] in text for text in (Page(html).text, markdown, terminal(found)))


def test_cells() -> None:
    assert write_p(0.04996) == "0.05" or float(write_p(0.04996)) < 0.05
    assert write_p(1e-9) == "<0.0001" and write_p(None) == "–" and write_p(0.5) == "0.5"
    assert (
        with_relative_change(110, 100) == "110 (+10.0%)"
        and with_relative_change(None, 100) == "–"
        and with_relative_change(5, None) == "5"
    )
    assert (
        fraction_interval(Proportion.from_dict(accuracy_of(0, 10))) == "0.00% (0.00 to 0.00)"
        and fraction_interval(None) == "–"
    )
    assert printable({"a\x00": ["\x1b[31m", "b\u00a0c\n", 1.5, None]}) == {
        "a\ufffd": ["\ufffd[31m", "b c\n", 1.5, None]
    }


def test_importing_the_report_loads_nothing_heavy() -> None:
    heavy = {"torch", "matplotlib", "jinja2", "rich", "scipy"}
    code = f"import sys, partwise.comparison.report.rendering; assert not {heavy} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)})


def test_every_color_of_a_figure_has_one_for_dark_pages(reports: tuple[str, str]) -> None:
    html, _ = reports
    figures = "".join(re.findall(r'<div class="plot".*?</svg>', html, re.DOTALL))
    light = set(re.findall(r"(?:stroke|fill): (#[0-9a-f]{6})", figures)) - {"#ffffff"}
    dark = html[html.index(".plot { background: var(--card)") :]
    dark = dark[: dark.index(".contents")]
    assert len(light) > 8 and light <= set(re.findall(r"#[0-9a-f]{6}", dark)), light
