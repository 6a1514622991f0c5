"""The server of the studio: its address, connections that send nothing, a port in use, and what it needs to be installed."""

import asyncio
import os
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from http.client import HTTPConnection
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from lazy_imports import lazy_module
from partwise.cli import main
from partwise.cli.commands import studio as command
from partwise.config import ConfigError

lazy_module("uvicorn")
folders = lazy_module("studio.folders", needs="starlette")


@pytest.fixture
def server() -> Any:
    """The module, which is imported when a test needs it."""
    return import_module("partwise.studio.server")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What asked for the choices of a question, which import torch."""
    found: list[Any] = []
    monkeypatch.setattr(import_module("partwise.studio.pages"), "known_choices", found.append)
    return found


@pytest.fixture
def port(server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: list[Any]) -> Iterator[int]:
    """A server of the folder `tmp_path` in this process, and its port."""
    monkeypatch.chdir(tmp_path)
    if hasattr(server, "known_choices"):
        monkeypatch.setattr(server, "known_choices", asked.append)
    monkeypatch.setattr(server, "REQUEST_SECONDS", 1.0)
    running: list[Any] = []

    class Server(server.Server):  # type: ignore[misc]
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            running.append(self)

    monkeypatch.setattr(server, "Server", Server)
    thread = threading.Thread(target=server.run_studio, args=(None, folders.Allowed(), (), "", False), daemon=True)
    thread.start()
    end = time.monotonic() + 60
    while not (running and running[0].started):
        assert time.monotonic() < end
        time.sleep(0.02)
    yield int(running[0].address.rpartition(":")[2])
    running[0].should_exit = True
    thread.join(30)


def status(port: int, path: str = "/open") -> int:
    connection = HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", path)
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer.status


def test_two_hundred_silent_connections_end_and_others_are_answered_meanwhile(port: int) -> None:
    """A third have sent nothing, a third the head of a request but for its end, and a third that after a whole request."""
    silent = [socket.create_connection(("127.0.0.1", port), timeout=60) for _ in range(200)]
    for number, each in enumerate(silent):
        head = b"GET /open HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        each.sendall([b"", head + b"X-Slow: ", head + b"\r\n" + head][number % 3])
    assert status(port) == 200 and status(port, "/ask") == 401
    for each in silent:
        while each.recv(1024):
            pass
        each.close()
    assert status(port) == 200


def test_torch_is_imported_when_a_question_is_asked(port: int, asked: list[Any]) -> None:
    """Its import holds every answer back for a second, that of a long shelf too."""
    assert status(port) == 200
    time.sleep(0.2)
    assert not asked


def test_the_address_is_of_this_machine_alone(port: int) -> None:
    listening = [line.split()[1] for line in Path("/proc/net/tcp").read_text().splitlines() if f":{port:04X} " in line]
    assert "0100007F" in {each.partition(":")[0] for each in listening}
    assert "00000000" not in {each.partition(":")[0] for each in listening}


def test_a_port_in_use_is_told(
    server: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        used = other.getsockname()[1]
        with pytest.raises(ConfigError, match=f"--port {used}: .*: choose another one"):
            server.bind(used)
        monkeypatch.setattr(server, "DEFAULT_PORT", used)
        found = server.bind(None)
        assert found.getsockname()[1] != used
        found.close()
    assert f"port {used} is in use" in capsys.readouterr().out


def test_the_token_is_on_no_command_line(server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other users of the machine read command lines, and nothing in a folder of this user."""
    opened: list[str] = []
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setattr(server.webbrowser, "open", opened.append)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    server.open_browser("http://127.0.0.1:1/open#secret")
    assert opened and "secret" not in opened[0]
    [page] = tmp_path.glob("*/open.html")
    assert "secret" in page.read_text()
    if os.name == "posix":
        assert not page.parent.stat().st_mode & 0o077


def test_a_missing_extra_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(command, "find_spec", lambda name: None)
    monkeypatch.setattr(sys, "argv", ["partwise", "studio"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert capsys.readouterr().err == "error: `partwise studio` needs starlette: `pip install 'partwise[studio]'`\n"


@pytest.mark.parametrize(
    ("options", "message"),
    [(["--data", "none.txt"], "no such file"), (["--prefix", "lab"], "expected a path such as /partwise")],
)
def test_wrong_options_are_told(
    options: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["partwise", "studio", *options])
    with pytest.raises(SystemExit):
        main()
    assert message in capsys.readouterr().err


def test_pages_of_a_running_comparison_cost_little(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten tabs that follow one comparison: at most one reading in two seconds, and under 10 ms of CPU a second."""
    monkeypatch.chdir(tmp_path)
    folders.make_running(tmp_path, seeds=8)
    studio = folders.make_client(tmp_path, opened=False).studio
    readings = []
    read_on = folders.Comparisons.state
    monkeypatch.setattr(folders.Comparisons, "state", lambda self, name: readings.append(name) or read_on(self, name))
    studio.comparisons.state("night")

    async def follow() -> int:
        stream = studio.states("night", studio.comparisons.state("night"))
        events = 0
        try:
            async with asyncio.timeout(6.5):
                async for _ in stream:
                    events += 1
        except TimeoutError:
            pass
        return events

    async def follow_all() -> list[int]:
        return await asyncio.gather(*(follow() for _ in range(10)))

    before = time.process_time()
    events = asyncio.run(follow_all())
    spent = time.process_time() - before
    assert max(events) <= 4  # of 6.5 s
    assert spent / 6.5 < 0.010, f"{1000 * spent / 6.5:.1f} ms of CPU a second"
