"""The tiers of the tests: `make test` runs what was fast when `make test-times` measured it, `make test-all` the rest.

tests/seconds.json names each test with a case that took at least `FAST` seconds, by file and function, and each fixture that
did and that tests of a file share. The marker `promise` puts a slow test into `make test` anyway: a case of each
promise of the README.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

SECONDS = Path(__file__).with_name("seconds.json")
FAST = 0.3
"""The seconds from which on a case is slow."""
OUTGROWN = 5 * FAST
"""The seconds from which on a test of `make test` is told: other machines are slower, and busy."""


class Tiers:
    """Deselects the tests of other tiers, and knows how long each test took."""

    def __init__(self, tier: str, write: bool) -> None:
        self.tier, self.write = tier, write
        self.measured: dict[str, float] = json.loads(SECONDS.read_text())
        self.taken: dict[str, float] = {}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        if self.tier == "all":
            return
        chosen, others = list[pytest.Item](), list[pytest.Item]()
        for item in items:
            promise = item.get_closest_marker("promise") is not None
            slow = not promise and any(key in self.measured for key in keys_of(item))
            (chosen if slow == (self.tier == "rest") else others).append(item)
        config.hook.pytest_deselected(items=others)
        items[:] = chosen

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        # a fixture that tests of a file share is paid for by whichever of them runs first
        shared = dict(report.user_properties).get("shared_fixtures", [])
        key = shared[-1] if report.when == "setup" and shared else key_of(report.nodeid)
        self.taken[key] = max(self.taken.get(key, 0.0), report.duration)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        slow = {key: round(seconds, 1) for key, seconds in sorted(self.taken.items()) if seconds >= FAST}
        if self.write:
            SECONDS.write_text(json.dumps(slow, indent=0) + "\n")
        for key, seconds in slow.items() if self.tier == "fast" else ():
            if key not in self.measured and seconds >= OUTGROWN:
                terminalreporter.write_line(
                    f"{key} took {seconds} s, and `make test` is for tests below {FAST} s: make it faster, or run "
                    "`make test-times`, which moves it to `make test-all`"
                )


def keys_of(item: pytest.Item) -> Iterator[str]:
    """The names in tests/seconds.json of a test and of the fixtures that it shares with others."""
    yield key_of(item.nodeid)
    yield from shared_fixtures(item)


def key_of(nodeid: str) -> str:
    """The file below tests/ and the function of a test, without its parameters."""
    return nodeid.partition("[")[0].removeprefix("tests/")


def shared_fixtures(item: pytest.Item) -> Iterator[str]:
    """The fixtures of the test's own file that several tests share."""
    file = key_of(item.nodeid).partition("::")[0]
    info = getattr(item, "_fixtureinfo", None)
    for name, definitions in (info.name2fixturedefs if info else {}).items():
        if definitions[-1].scope != "function" and definitions[-1].baseid.removeprefix("tests/") == file:
            yield f"{file}::fixture {name}"


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    item.user_properties.append(("shared_fixtures", list(shared_fixtures(item))))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--tier", choices=("fast", "rest", "all"), default="all", help="fast tests, the rest, or all")
    parser.addoption("--write-times", action="store_true", help="write tests/seconds.json")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Tiers(config.getoption("--tier"), config.getoption("--write-times")), "tiers")
