"""A long shelf, a search, the lessons and an experiment in Chromium; and pages of other servers that reach for the studio."""

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import yaml

from lazy_imports import lazy_module
from partwise.comparison.ledger.project import project_ledger
from studio.test_browser import Studio
from studio.test_browser import browser as browser

axe = lazy_module("axe_playwright_python.sync_playwright")
folders = lazy_module("studio.folders", needs="starlette")

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def studio(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Studio]:
    """A folder with a thousand runs, eight comparisons, a search, a comparison that stands still, and an experiment."""
    folder = tmp_path_factory.mktemp("shelf")
    with pytest.MonkeyPatch.context() as patch:
        folders.make_search(folder, patch)
    folders.make_many(folder)
    folders.make_running(folder)
    (folder / "text.txt").write_text("the cat sat on the mat " * 200)
    (folder / "e.yaml").write_text(yaml.safe_dump(folders.EXPERIMENT))
    found = Studio(folder, browser, "e.yaml")
    yield found
    found.process.terminate()
    found.process.communicate(timeout=30)
    assert found.outside == []


def screenshot(page: Any, name: str, full: bool) -> None:
    if folder := os.environ.get("STUDIO_SCREENSHOTS"):
        page.screenshot(path=f"{folder}/{name}.png", full_page=full)


def press_until(page: Any, key: str, holds: str) -> None:
    """Press a key until a script holds of the page."""
    for _ in range(150):
        if page.evaluate(holds):
            return
        page.keyboard.press(key)
    raise AssertionError(f"{key} never led to {holds}")


def test_a_long_shelf_is_filtered_sorted_and_opened_by_keyboard(studio: Studio) -> None:
    page = studio.open()
    page.goto(f"{studio.address}/shelf")
    page.wait_for_selector("#runs tbody tr")
    assert page.inner_text("#count") == "1010 of 1010 runs, comparisons and searches, of which 100 are shown"
    press_until(page, "Tab", "document.activeElement.id === 'sort'")
    page.keyboard.type("name")
    press_until(page, "Tab", "document.activeElement.id === 'more-runs'")
    page.keyboard.press("Enter")
    assert page.locator("#runs tbody tr").count() == 200
    assert page.evaluate("document.activeElement.closest('tr').rowIndex") == 101, "the first of the new rows"
    page.focus("#filter")
    page.keyboard.type("comparison-3")
    assert page.inner_text("#count").startswith("1 of 1010")
    press_until(page, "Tab", "document.activeElement.textContent === 'comparison-3'")
    page.keyboard.press("Enter")
    page.wait_for_url("**/read/comparison-3")
    page.wait_for_selector(".verdict")
    page.context.close()


def test_a_search_opens_from_the_shelf(studio: Studio) -> None:
    page = studio.open()
    page.goto(f"{studio.address}/shelf")
    page.wait_for_selector("#runs tbody tr")
    page.fill("#filter", "search")
    page.click("#runs a")
    page.wait_for_selector("#tries tbody tr")
    assert "2 tried: 1 kept, 1 discarded, 0 undecided" in page.inner_text("#summary")
    assert re.findall("keep|discard", page.inner_text("#tries tbody")) == ["discard", "keep"]
    assert page.inner_text("#command") == "partwise try --search s"
    page.context.close()


def test_an_experiment_is_asked_watched_read_and_checked(studio: Studio) -> None:
    page = studio.open()
    page.goto(f"{studio.address}/ask")
    page.wait_for_selector("#experiments:not([hidden])")
    page.click("#ask-experiment")
    page.wait_for_selector("#say-better:has-text('b')")
    page.click("input[value=better]")
    page.click("#start")
    page.wait_for_url("**/watch/e")
    page.wait_for_selector("#read:not([hidden])")
    page.click("#read")
    assert "b is better" in page.wait_for_selector(".verdict").inner_text()
    page.fill("#trials", "0")
    assert page.inner_text("#verify-command") == "partwise verify runs/e"
    page.click("#verify")
    page.wait_for_selector("#verified:has-text('Everything holds')")
    assert "--first-seed 5 --name e-from-5" in page.inner_text("#replicate-command")
    page.context.close()


def test_a_lesson_asks_before_it_runs(studio: Studio) -> None:
    page = studio.open()
    page.goto(f"{studio.address}/lessons")
    page.wait_for_selector("#lessons tbody tr")
    assert page.locator("#lessons tbody tr").count() == 12
    page.click("#lessons a >> nth=1")
    page.wait_for_selector("#prediction:not([hidden])")
    assert page.evaluate("document.querySelector('#before img').naturalWidth > 0 || 'loading'")
    assert page.is_hidden("#answer") and page.is_hidden("#show")
    page.fill("#low", "-0.5")
    page.fill("#high", "0.25")
    assert page.inner_text("#command") == "partwise lesson 2 --predict=-0.5,0.25"
    page.context.close()


def test_an_answer_is_checked_by_keyboard_and_said(studio: Studio) -> None:
    for number in (9, 12):
        folders.end_lesson(studio.folder, number)
    words = [sys.executable, "-m", "partwise", "lesson", "9", "--stored", "--no-predict", "--json"]
    stored = subprocess.run(words, cwd=studio.folder, capture_output=True, check=True).stdout
    page = studio.open(400)
    page.route("**/api/lessons/*/answer", lambda route: route.fulfill(body=stored, content_type="application/json"))
    page.goto(f"{studio.address}/lesson/9")
    page.wait_for_selector("#show:not([hidden])")
    press_until(page, "Tab", "document.activeElement.id === 'show'")
    page.keyboard.press("Enter")
    page.wait_for_selector("#answer:not([hidden])")
    page.evaluate("document.querySelector('#after img').decode()")
    press_until(page, "Tab", "document.activeElement.id === 'reply'")
    page.keyboard.type("750 KiB")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.wait_for_selector("#said:has-text('give bytes, not KiB')")
    assert page.inner_text("#check-command") == "partwise lesson 9 --check '750 KiB'"
    assert page.evaluate("document.activeElement.textContent") == "Check"
    screenshot(page, "answer-400-light", full=True)
    found = axe.Axe().run(page).response["violations"]
    assert not [(each["id"], each["nodes"][0]["html"]) for each in found]
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    page.keyboard.press("Shift+Tab")
    page.keyboard.type("768000")  # in place of the text, which the key has selected
    assert page.inner_text("#said") == "" and page.inner_text("#check-command").endswith('--check "ANSWER"')
    page.keyboard.press("Enter")
    page.wait_for_selector("#said:text-is('right')")
    assert page.get_attribute("#said", "aria-live") == "polite"
    page.goto(f"{studio.address}/lesson/12")
    page.click("#show")
    page.wait_for_selector("#said:has-text('check it in a terminal')")
    assert page.is_hidden("#reply") and page.inner_text("#check-command") == 'partwise lesson 12 --check "ANSWER"'
    page.context.close()


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1280])
def test_these_screens_have_no_fault_of_accessibility_and_fit(studio: Studio, width: int, theme: str) -> None:
    page = studio.open(width, theme)
    places = {
        "shelf": ("shelf", "#runs tbody tr"),
        "search": ("search/s", "#tries tbody tr"),
        "lessons": ("lessons", "#lessons tbody tr"),
        "lesson": ("lesson/2", "#prediction:not([hidden])"),
        "again": ("read/comparison-0", ".verdict"),
        "experiment": ("ask", "#next:not([disabled])"),
    }
    for screen, (address, ready) in places.items():
        page.goto(f"{studio.address}/{address}")
        page.wait_for_selector(ready, state="attached")
        page.wait_for_timeout(300)
        screenshot(page, f"{screen}-{width}-{theme}", full=screen != "shelf")
        found = axe.Axe().run(page).response["violations"]
        assert not [(each["id"], each["nodes"][0]["html"]) for each in found], screen
        assert page.evaluate("document.documentElement.scrollWidth") <= width, screen
    page.context.close()


ATTACK = """<!doctype html><title>other</title>
<iframe name="sink"></iframe><iframe id="frame" src="STUDIO/shelf"></iframe>
<img id="image" src="STUDIO/files/comparison-0/report.html"><script src="STUDIO/static/page.js"></script>
<form id="form" method="post" action="STUDIO/api/comparisons/night/look" enctype="text/plain" target="sink">
<input name='{"a":"' value='"}'></form>
<script>
async function attack() {
  const change = { method: "POST", body: "{}", headers: { "content-type": "application/json", "x-partwise": "1" } };
  const tries = {
    read: ["/api/shelf", { credentials: "include" }],
    bare: ["/api/shelf", { credentials: "omit" }],
    opaque: ["/api/shelf", { credentials: "include", mode: "no-cors" }],
    change: ["/api/comparisons/night/look", { ...change, credentials: "include" }],
    simple: ["/api/comparisons/night/look", { method: "POST", body: "{}", credentials: "include", mode: "no-cors" }],
    session: ["/session", { ...change, body: '{"token":"guess"}' }],
  };
  const said = {};
  for (const [name, [path, options]] of Object.entries(tries)) {
    try { said[name] = await (await fetch("STUDIO" + path, options)).text(); } catch { said[name] = ""; }
  }
  document.getElementById("form").submit();
  return said;
}
</script>"""


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_page_of_another_server_of_this_machine_gets_and_changes_nothing(studio: Studio, host: str) -> None:
    """In the same browser, which has the cookie and sends it to every port of the host."""
    page = studio.open()

    class Other(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.end_headers()
            self.wfile.write(ATTACK.replace("STUDIO", studio.address).encode())

        def log_message(self, *_: Any) -> None:
            pass

    before = project_ledger(studio.folder).path.read_bytes()
    other = ThreadingHTTPServer(("127.0.0.1", 0), Other)
    threading.Thread(target=other.serve_forever, daemon=True).start()
    page.context.unroute_all()
    answered: list[tuple[str, int]] = []
    asked: list[str] = []
    page.on("request", lambda found: asked.append(found.url))
    page.on("response", lambda found: answered.append((found.url, found.status)))
    try:
        page.goto(f"http://{host}:{other.server_port}/")
        said = page.evaluate("attack()")
        page.wait_for_timeout(1000)
    finally:
        other.shutdown()
        other.server_close()
    assert set(said.values()) == {""}
    reached = [(url, status) for url, status in answered if url.startswith(studio.address)]
    assert reached and {status for _, status in reached} <= {401, 403, 405, 415}, reached
    assert sum(url.startswith(studio.address) for url in asked) >= 9, "everything above was tried"
    assert page.evaluate("document.querySelector('#image').naturalWidth") == 0
    assert not any("Filter" in frame.content() for frame in page.frames[1:])
    assert project_ledger(studio.folder).path.read_bytes() == before
    again = studio.address + "/api/comparisons/night"
    assert not json.loads(page.context.request.get(again).text())["revealed"]
    page.context.close()
