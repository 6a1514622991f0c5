"""The studio in Chromium: by hand, by keyboard alone, narrow and wide, in both themes (`make test-studio`).

STUDIO_CHROMIUM names the program, and STUDIO_SCREENSHOTS a folder for pictures of every screen. STUDIO_PYTHON is another
command for Python, such as `build/wheel-builder/bin/python tests/wine.py python.exe` with whole paths, for Windows' in wine.
"""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest

from comparisons import TINY
from lazy_imports import lazy_module
from partwise.comparison.ledger.project import project_ledger

api = lazy_module("playwright.sync_api")
axe = lazy_module("axe_playwright_python.sync_playwright")
folders = lazy_module("studio.folders", needs="starlette")

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

CHROMIUM = os.environ.get("STUDIO_CHROMIUM", "/usr/bin/chromium")
PYTHON = shlex.split(os.environ.get("STUDIO_PYTHON", shlex.quote(sys.executable)))
SECONDS = 240_000
"""Milliseconds for what takes seconds on a machine that does nothing else."""

COMMON = [word for word in TINY if not word.startswith("train.steps")]


class Studio:
    """A server, and a browser that has opened its link and reaches this machine alone."""

    def __init__(self, folder: Path, browser: Any, *more: str) -> None:
        self.folder, self.browser = folder, browser
        words = [*PYTHON, "-m", "partwise", "studio", "--no-browser", "--data", "text.txt", *more]
        self.process = subprocess.Popen(words, cwd=folder, stdout=subprocess.PIPE, text=True, encoding="utf-8")
        self.outside: list[str] = []
        self.errors: list[str] = []

    def link(self) -> str:
        assert self.process.stdout
        for line in self.process.stdout:
            if found := re.search(r"http://\S+", line):
                return found[0]
        raise AssertionError("the studio has printed no link")

    def open(self, width: int = 1280, theme: str = "light") -> Any:
        """A page at the first screen."""
        context = self.browser.new_context(viewport={"width": width, "height": 900}, color_scheme=theme)
        context.set_default_timeout(SECONDS)
        context.route("**/*", self.inside)
        page = context.new_page()
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", lambda said: self.errors.append(said.text) if said.type == "error" else None)
        page.goto(self.link())
        page.wait_for_url("**/ask*")
        self.address = "http://" + urlsplit(page.url).netloc
        return page

    def inside(self, route: Any) -> None:
        if urlsplit(route.request.url).hostname == "127.0.0.1" or route.request.url.startswith(("data:", "blob:")):
            route.continue_()
        else:
            self.outside.append(route.request.url)
            route.abort()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def studio(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Studio]:
    """A folder with a text and a comparison that stands still."""
    folder = tmp_path_factory.mktemp("project")
    (folder / ".git").mkdir()
    (folder / "text.txt").write_text("the cat sat on the mat and the dog ran far away " * 200)
    folders.make_running(folder, seeds=3)
    found = Studio(folder, browser)
    yield found
    found.process.terminate()
    found.process.communicate(timeout=30)
    assert found.outside == []


def ask_address(studio: Studio, name: str = "first") -> str:
    asked = {**folders.QUESTION, "common": COMMON, "name": name}
    return f"{studio.address}/ask?q={quote(json.dumps(asked))}"


def test_a_verdict_takes_five_clicks(studio: Studio) -> None:
    page = studio.open()
    page.goto(ask_address(studio))
    clicks = 0

    def click(selector: str) -> None:
        nonlocal clicks
        page.click(selector)
        clicks += 1

    page.wait_for_selector("#next:not([disabled])")
    shown = page.inner_text("#command")
    click("#next")
    page.wait_for_selector("#say-better:has-text('swiglu')")
    click("input[value=better]")
    click("#start")
    page.wait_for_url("**/watch/first")
    page.wait_for_selector("#read:not([hidden])")
    click("#read")
    assert re.match(r"ffn=swiglu .*\bmingpt\b", page.wait_for_selector(".verdict").inner_text())
    assert clicks <= 5
    assert page.inner_text("#command").startswith(shown)
    kinds = [each.content["kind"] for each in project_ledger(studio.folder).read() if each.content["name"] == "first"]
    assert kinds == ["started", "prediction", "result", "predicted result"]
    assert "you predicted" in page.inner_text("#prediction").lower()
    frame = page.frame_locator("#report")
    assert frame.locator("h1").first.inner_text()
    assert studio.errors == []


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1280])
def test_every_screen_has_no_fault_of_accessibility_and_fits(studio: Studio, width: int, theme: str) -> None:
    """After the first test, which has made the comparison that is read here."""
    page = studio.open(width, theme)
    places = {
        "ask": (ask_address(studio), "#next:not([disabled])"),
        "predict": (ask_address(studio).replace("/ask?", "/predict?"), "#say-better:has-text('swiglu')"),
        "watch": (f"{studio.address}/watch/night", "#status:has-text('of')"),
        "read": (f"{studio.address}/read/first", ".verdict"),
        "shelf": (f"{studio.address}/shelf", "#runs tbody tr"),
    }
    for screen, (address, ready) in places.items():
        page.goto(address)
        page.wait_for_selector(ready, state="attached")
        page.wait_for_timeout(300)
        if folder := os.environ.get("STUDIO_SCREENSHOTS"):
            page.screenshot(path=f"{folder}/{screen}-{width}-{theme}.png", full_page=True)
        found = axe.Axe().run(page).response["violations"]
        assert not [(each["id"], each["nodes"][0]["html"]) for each in found], screen
        assert page.evaluate("document.documentElement.scrollWidth") <= width, screen
        assert page.evaluate("document.documentElement.dataset.theme") == theme
    page.context.close()


def test_by_keyboard_alone_and_announced(studio: Studio) -> None:
    """Reveal the arms of a comparison: the ledger gets the look, and a screen reader hears of it."""
    page = studio.open()
    page.goto(f"{studio.address}/watch/night")
    page.wait_for_selector("#look:not([hidden])")
    assert not re.search("swiglu|verdict:", page.inner_text("main"))
    for key in ["Tab"] * 30:
        page.keyboard.press(key)
        if page.evaluate("document.activeElement.id") == "look":
            break
    page.keyboard.press("Enter")
    assert page.evaluate("document.querySelector('#confirm').open")
    page.keyboard.press("Escape")
    assert not page.evaluate("document.querySelector('#confirm').open")
    assert len(project_ledger(studio.folder).read()) == before_look(studio)
    page.keyboard.press("Enter")
    while page.evaluate("document.activeElement.id") != "confirm-yes":
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.wait_for_selector("#labelled:not([hidden])")
    assert "ffn=swiglu" in page.inner_text("#labelled")
    assert page.inner_text("#live")
    looks = [each for each in project_ledger(studio.folder).read() if each.content["kind"] == "look"]
    assert [each.content["planned"] for each in looks] == [False]


def before_look(studio: Studio) -> int:
    return sum(each.content["kind"] != "look" for each in project_ledger(studio.folder).read())


def test_the_question_and_the_prediction_by_keyboard(studio: Studio) -> None:
    page = studio.open()
    page.goto(ask_address(studio, "second"))
    page.wait_for_selector("#next:not([disabled])")
    page.focus("#seeds")
    page.keyboard.press("Enter")  # which submits, as in every form
    page.wait_for_url("**/predict*")
    page.wait_for_selector("#say-better:has-text('swiglu')")
    for _ in range(20):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.name") == "sign":
            break
    page.keyboard.press("Space")
    page.keyboard.press("ArrowDown")
    assert page.evaluate("document.querySelector('[name=sign]:checked').value") == "same"
    assert page.input_value("#low") == "-0.05"
    assert not page.is_disabled("#start")


def test_markup_in_a_name_stays_text(studio: Studio) -> None:
    hostile = "<img src=http://evil.example/x onerror=alert(1)><b>bold</b>"
    path = folders.make_running(studio.folder, "hostile")
    plan = json.loads((path / "compare.json").read_text())
    plan["plan"]["arms"][1]["name"] = hostile
    (path / "compare.json").write_text(json.dumps(plan))
    page = studio.open()
    page.goto(f"{studio.address}/watch/hostile")
    page.wait_for_selector("#look:not([hidden])")
    page.click("#look")
    page.click("#confirm-yes")
    page.wait_for_selector("#labelled:not([hidden])")
    assert hostile in page.inner_text("#labelled")
    assert page.locator("main img, main b").count() == 0
    page.goto(f"{studio.address}/shelf")
    page.wait_for_selector("#runs tbody tr", state="attached")
    assert page.locator("main img, main b").count() == 0


def test_the_end_of_the_studio_is_told_and_loses_nothing(studio: Studio) -> None:
    page = studio.open()
    page.goto(f"{studio.address}/watch/night")
    page.wait_for_selector("#status:has-text('of')")
    studio.process.kill()
    studio.process.wait(30)
    page.wait_for_selector("#error:has-text('does not answer')")
    assert (studio.folder / "runs" / "night" / "compare.json").exists()
