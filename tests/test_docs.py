"""README and docs: links lead somewhere, generated pages are current, every page is in the site."""

import json
import re
import runpy
import sys
from pathlib import Path

import pytest

from partwise.comparison.results import Results

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


def prose(path: Path) -> str:
    """A page without its code."""
    text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"`[^`\n]*`", "code", text)


def anchors(path: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and MyST form them."""
    headings = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize(
    "path", [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.glob("*.md"))], ids=lambda p: p.stem
)
def test_relative_links_lead_to_a_file_and_a_heading(path: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(path)):
        if target.startswith(("http://", "https://")):
            continue
        name, _, anchor = target.partition("#")
        file = (path.parent / name).resolve() if name else path
        assert file.exists(), f"{path.name} links to {target}"
        if anchor:
            assert anchor in anchors(file), f"{path.name} links to {target}"


def title_of(page: Path) -> str:
    return re.findall(r"^# (.+)", page.read_text(encoding="utf-8"), re.MULTILINE)[0]


def test_every_page_is_in_the_contents_of_the_site() -> None:
    contents = re.findall(r"```\{toctree\}\n(.*?)```", (DOCS / "index.md").read_text(encoding="utf-8"), re.DOTALL)
    lines = [line for block in contents for line in block.splitlines() if line and not line.startswith(":")]
    listed = [line.rpartition("<")[2].removesuffix(">") for line in lines]
    titles = [line.partition(" <")[0] for line in lines]
    pages = {path.stem for path in DOCS.glob("*.md")} - {"index"}
    pages |= {f"lessons/{path.stem}" for path in (DOCS / "lessons").glob("*.md")}
    assert pages <= set(listed), pages - set(listed)
    headings = [
        title if title != name else title_of(DOCS / f"{name}.md") for title, name in zip(titles, listed, strict=True)
    ]
    assert len(set(headings)) == len(headings), "two pages with one title cannot be told apart"


def test_readme_links_to_every_page_or_to_one_that_does() -> None:
    """From README every page can be reached on a host that shows Markdown only."""
    reached, queue = set(), [ROOT / "README.md"]
    while queue:
        path = queue.pop()
        if path in reached or not path.exists():
            continue
        reached.add(path)
        links = re.findall(r"\]\(([^)\s#]+\.md)", prose(path))
        queue += [(path.parent / link).resolve() for link in links if "://" not in link]
    unreached = {path.name for path in DOCS.glob("*.md") if path not in reached} - {"index.md", "api.md"}
    assert not unreached


PAGES, IMAGES = "https://host/owner/partwise/blob/v0.1.0/", "https://host/owner/partwise/raw/v0.1.0/"


def test_the_description_of_a_package_index_has_no_relative_link() -> None:
    """With public addresses each link and picture lies below them; without, its text stays."""
    description = runpy.run_path(str(ROOT / "hatch_build.py"))["description"]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    targets = re.findall(r"(!?)\[([^]]*)\]\(([^)\s]+)\)", prose(ROOT / "README.md"))
    assert len(targets) > 20
    linked = description(readme, PAGES, IMAGES)
    plain = description(readme, "", "")
    for picture, text, target in targets:
        assert f"[{text}]({IMAGES if picture else PAGES}{target})" in linked
        assert (f"*Figure: {text}*" if picture else text) in plain
    assert linked.count(IMAGES) == sum(bool(picture) for picture, *_ in targets) > 0
    for text in (linked, plain):
        assert not re.search(r"\]\((?!https://)", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE))
    assert linked.replace(PAGES, "").replace(IMAGES, "") == readme
    assert "](" not in plain and "docs/" in plain.splitlines()[-1]


def test_code_and_web_links_stay_in_the_description() -> None:
    description = runpy.run_path(str(ROOT / "hatch_build.py"))["description"]
    kept = "```\n[a](b.md)\n```\n[c](https://host/d) [e](#f)\n"
    assert description(kept, PAGES, IMAGES) == kept
    assert description(kept, "", "").startswith(kept)
    assert description("[a](b.md)\n", PAGES, IMAGES) == f"[a]({PAGES}b.md)\n"


@pytest.mark.parametrize(
    ("pages", "images", "message"),
    [
        (PAGES, "", "give both addresses"),
        ("", IMAGES, "give both addresses"),
        (PAGES, IMAGES.rstrip("/"), "end with /"),
        ("http://host/", IMAGES, "begin with https://"),
    ],
)
def test_a_wrong_address_stops_the_build(pages: str, images: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        runpy.run_path(str(ROOT / "hatch_build.py"))["description"]("[a](b.md)", pages, images)


UNNATURAL = re.compile(
    r"\b(to be had|in the midst|came of (it|a)|free its place|heeding|is not found out|at whose|let the \w+ compute|"
    r"whoever|all the same|thereof|wherein|anew|so many (times|pairs|rows|seeds|words|chunks)|by its own doing|"
    r"is no (tensor|comparison|path|module)|stays? as (it|they) (is|are)|goes on|, of which|as long as there is)\b",
    re.I,
)


def test_no_sentence_is_translated() -> None:
    """Phrases that no native engineer writes, in the source, README and docs."""
    files = [*(ROOT / "src").rglob("*.py"), ROOT / "README.md", *DOCS.glob("*.md")]
    found = [(path.name, match[0]) for path in files for match in UNNATURAL.finditer(path.read_text(encoding="utf-8"))]
    assert found == []


@pytest.mark.parametrize("name", re.findall(r"\]\((\S+)\)", (DOCS / "index.md").read_text().split("## Results")[1]))
def test_a_page_of_results_opens_with_a_figure_or_a_table(name: str) -> None:
    """After its title, at most a few sentences, and no heading."""
    opening = re.split(r"^(?:!\[|\|)", (DOCS / name).read_text(encoding="utf-8"), maxsplit=1, flags=re.MULTILINE)[0]
    assert opening.count("\n#") == 0 and len(opening.split()) < 50


def test_readme_is_a_screen_and_a_half() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(readme.splitlines()) < 100
    assert len(re.findall(r"^!\[", readme, re.MULTILINE)) == 2  # a result, and the studio
    assert re.findall(r"^make (\S+)", readme, re.MULTILINE) == ["demo", "test"]


def test_the_output_in_readme_is_that_of_the_demo_on_its_page() -> None:
    """README has some lines of what docs/first-comparison.md shows whole."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```text\n(Does any.*?)^```", readme, re.DOTALL | re.MULTILINE)
    page = (DOCS / "first-comparison.md").read_text(encoding="utf-8")
    (shown,) = [block.splitlines() for block in blocks]
    assert len(shown) <= 14
    assert set(shown) <= set(page.splitlines())


def test_the_speed_chart_has_a_bar_for_every_label(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(ROOT / "benchmarks"), *sys.path])
    import chart

    rows = json.loads((DOCS / "benchmarks.json").read_text(encoding="utf-8"))["rows"]
    bars = chart.bars(rows)
    assert [label for label, *_ in bars] == list(chart.LABELS.values())
    drawn = (DOCS / "images" / "speed.svg").read_text(encoding="utf-8")
    for label, ratio, low, high in bars:
        assert low <= ratio <= high
        assert label in drawn
        assert f">{ratio:.3g}<" in drawn


def test_the_picture_of_the_demo_can_be_made_again(tmp_path: Path) -> None:
    script = runpy.run_path(str(DOCS / "record_demo.py"))
    script["draw_over_training"].__globals__["IMAGES"] = tmp_path
    study = json.loads((ROOT / "src/partwise/studies/library/swiglu/results.json").read_text(encoding="utf-8"))
    results = Results.from_dict(next(iter(study["comparisons"].values())))
    script["draw_over_training"](results)
    assert "</svg>" in (tmp_path / "overtraining.svg").read_text(encoding="utf-8")
