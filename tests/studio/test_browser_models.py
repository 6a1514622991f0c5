"""A run's pages in Chromium: text that streams as text, what a head attends to, and processes that end with their page."""

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lazy_imports import lazy_module
from studio.test_browser import SECONDS, Studio
from studio.test_browser import browser as browser

axe = lazy_module("axe_playwright_python.sync_playwright")

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(1)> & <b>bold</b>\n"
"""The whole text that the model has learned."""
SIZES = [
    "d_model=32",
    "n_layers=2",
    "attention.n_heads=2",
    "context_length=64",
    "train.batch_size=8",
    "train.steps=150",
]


@pytest.fixture(scope="module")
def studio(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Studio]:
    """A folder with a model that writes markup."""
    folder = tmp_path_factory.mktemp("models")
    (folder / ".git").mkdir()
    (folder / "text.txt").write_text(HOSTILE * 200)
    words = ["train", "mingpt", *SIZES, "train.lr=0.01", "--data", "text.txt", "--name", "mine"]
    subprocess.run([sys.executable, "-m", "partwise", *words], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    found = Studio(folder, browser)
    yield found
    found.process.terminate()
    found.process.communicate(timeout=30)
    assert found.outside == []


def write(page: Any, prompt: str, **values: str) -> None:
    """Write on the page of text; `values` are fields by their ids."""
    page.wait_for_selector("#start:not([disabled])")
    for key, value in {"prompt": prompt, **values}.items():
        page.fill(f"#{key}", value)
    page.click("#start")


def screenshot(page: Any, name: str) -> None:
    if folder := os.environ.get("STUDIO_SCREENSHOTS"):
        page.screenshot(path=f"{folder}/{name}.png", full_page=True)


def test_from_the_shelf_to_a_text_that_the_shown_command_repeats(studio: Studio) -> None:
    """The text is full of markup, and is text."""
    page = studio.open()
    page.goto(f"{studio.address}/shelf")
    page.click("#runs a:has-text('mine')")
    page.wait_for_selector("#losses:not([hidden])")
    assert "partwise train" in page.inner_text("#command") and "from=runs/mine" in page.inner_text("#further")
    page.click("#draw")
    page.wait_for_selector("#live:has-text('The report is drawn')", state="attached")
    page.click("nav[aria-label='This run'] a:has-text('Generate')")
    write(page, "<script>", max_new_tokens="100", temperature="0.2", layer="1", seed="4")
    page.wait_for_selector("#status:has-text('Finished: 100 tokens')")
    text, command = page.text_content("#text"), page.inner_text("#command")
    assert "<img src=x" in text and "</script>" in text and "<b>" in text
    assert page.locator("#text > span").count() == page.locator("#text *").count() == 108
    assert page.locator("main script, main img, main b").count() == 0
    page.fill("#seed", "5")
    page.wait_for_selector("#stale:not([hidden])")
    assert page.inner_text("#stale").endswith(command)  # which the text is of, whatever the fields are now
    words = [sys.executable, "-m", "partwise", *shlex.split(command)[1:]]
    again = subprocess.run(words, cwd=studio.folder, capture_output=True, text=True, check=True)
    assert again.stdout == f"{text}\n"
    assert studio.errors == []
    page.context.close()


def test_the_attention_of_a_head_is_marked_and_named(studio: Studio) -> None:
    page = studio.open()
    page.goto(f"{studio.address}/run/mine/generate")
    write(page, "<script>", max_new_tokens="20")
    page.wait_for_selector("#status:has-text('Finished')")
    weights = (
        "[...document.querySelectorAll('#text span')].map((each) => Number(each.style.getPropertyValue('--weight')))"
    )
    page.wait_for_function(f"{weights}.some((each) => each === 1)")
    last = page.evaluate(weights)
    assert len(last) == 28 and last[27] == 0 and sum(last) > 1
    named = page.inner_text("#strongest")
    page.focus("#place")
    page.keyboard.press("Home")
    first = page.evaluate(weights)
    assert not any(first[8:]) and max(first) == 1  # the first token is written after those of the prompt
    assert page.inner_text("#strongest") != named
    page.uncheck("#watch")
    page.click("#start")
    page.wait_for_selector("#status:has-text('Finished')")
    assert page.is_hidden("#attention")
    page.context.close()


def children(process: int) -> list[int]:
    """The processes that a process has started and that still run."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == process and fields[0] != "Z":
            found.append(int(path.parent.name))
    return found


@pytest.mark.parametrize("ending", ["stop", "close", "leave"])
def test_a_command_ends_with_its_page(studio: Studio, ending: str) -> None:
    page = studio.open()
    page.goto(f"{studio.address}/run/mine/inspect")
    page.wait_for_selector("#start:not([disabled])")
    page.select_option("#what", "lr-transfer")  # trains for minutes
    page.click("#start")
    end = time.monotonic() + SECONDS / 1000
    while not children(studio.process.pid):
        assert time.monotonic() < end
        page.wait_for_timeout(10)  # in which its requests are let through
    if ending == "stop":
        page.click("#stop")
        page.wait_for_selector("#status:has-text('Stopped')")
    elif ending == "leave":
        page.goto(f"{studio.address}/run/mine")
        page.wait_for_selector("#losses:not([hidden])")
    page.context.close()
    while children(studio.process.pid):
        assert time.monotonic() < end
        time.sleep(0.05)


def test_by_keyboard_alone_and_announced_in_pieces(studio: Studio) -> None:
    page = studio.open()
    page.goto(f"{studio.address}/run/mine/generate")
    page.wait_for_selector("#start:not([disabled])")
    page.evaluate(
        "() => { window.said = []; new MutationObserver(() => said.push(document.querySelector('#live').textContent))"
        ".observe(document.querySelector('#live'), { childList: true, characterData: true, subtree: true }); }"
    )
    for target in ("prompt", "max_new_tokens", "start"):
        for _ in range(30):
            page.keyboard.press("Tab")
            if page.evaluate("document.activeElement.id") == target:
                break
        if target == "prompt":
            page.keyboard.type("<b>")
        elif target == "max_new_tokens":
            page.keyboard.press("Control+A")
            page.keyboard.type("60")
    page.keyboard.press("Enter")
    page.wait_for_function("document.activeElement.id === 'stop'")
    page.wait_for_selector("#status:has-text('Finished: 60 tokens')")
    assert page.evaluate("document.activeElement.id") == "start"
    said = page.evaluate("said")
    assert said[0] == "Loading the model" and said[-1].endswith("Finished: 60 tokens")
    assert len(said) < 10  # of 60 tokens
    assert page.get_attribute("#live", "aria-live") == "polite" and page.get_attribute("#text", "aria-live") is None
    page.context.close()


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1280])
def test_pages_of_a_run_have_no_fault_of_accessibility_and_fit(studio: Studio, width: int, theme: str) -> None:
    page = studio.open(width, theme)
    for screen in ("run", "inspect", "generate"):
        page.goto(f"{studio.address}/run/mine{'' if screen == 'run' else f'/{screen}'}")
        if screen == "run":
            page.frame_locator("#report").locator("h1").first.wait_for()
        elif screen == "inspect":
            page.wait_for_selector("#start:not([disabled])")
            page.fill("#text", "<script>alert(1)")
            page.click("#start")
            page.wait_for_selector("#shown:not([hidden])")
            page.frame_locator("#page").locator("svg").first.wait_for()
            assert page.get_attribute("#page", "sandbox") == "allow-scripts allow-downloads allow-popups"
        else:
            write(page, "<script>", max_new_tokens="100")
            page.wait_for_selector("#status:has-text('Finished')")
        page.wait_for_timeout(300)
        screenshot(page, f"{screen}-{width}-{theme}")
        found = axe.Axe().run(page).response["violations"]
        assert not [(each["id"], each["nodes"][0]["html"]) for each in found], screen
        assert page.evaluate("document.documentElement.scrollWidth") <= width, screen
        assert page.evaluate("document.documentElement.dataset.theme") == theme
    page.context.close()


def test_a_request_that_is_refused_says_why(studio: Studio) -> None:
    page = studio.open()
    page.goto(f"{studio.address}/run/mine/generate")
    write(page, "Ω")
    page.wait_for_selector("#error:has-text('is not among')")
    assert not page.is_disabled("#start")
    page.context.close()
