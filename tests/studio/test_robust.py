"""What happens to a studio and its comparisons on a bad day: each is told in one line, and nothing is lost."""

import contextlib
import errno
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from lazy_imports import lazy_module
from partwise.comparison.ledger.project import project_ledger
from users import IS_ROOT

lazy_module("uvicorn")
folders = lazy_module("studio.folders", needs="starlette")
served = lazy_module("studio.served", needs="starlette")

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="signals and mounts of Linux"),
    pytest.mark.timeout(300),
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    served.make_folder(tmp_path)
    return tmp_path


def some_done(state: Any) -> bool:
    return state["counts"].get("done", 0) > 0


def kinds(folder: Path) -> list[str]:
    return [each.content["kind"] for each in project_ledger(folder).read()]


WHOLE = ["started", "prediction", "result", "predicted result"]


def test_a_killed_server_loses_nothing_and_the_next_one_continues(folder: Path) -> None:
    """The comparison runs on; the next server shows, interrupts and resumes it, and its prediction stands."""
    slow = folder / "slow.yaml"
    slow.write_text(slow.read_text().replace("sleep 0.4", "sleep 4"))  # longer than a server takes to start
    with served.Served(folder) as first:
        assert first.post("comparisons", served.QUESTION)[0] == 200
        first.until(some_done)
        first.process.send_signal(signal.SIGKILL)
        first.process.wait(30)
    with served.Served(folder) as second:
        state = second.until(some_done)
        assert state["state"] == "running" and state["prediction"] == {"arm": "b", "low": -45.0, "high": -40.0}
        assert second.post("comparisons/slow/interrupt", {})[0] == 200
        stopped = second.until(lambda each: each["state"] in ("stopped", "finished"))
        if stopped["state"] == "stopped":
            assert stopped["resumable"]
            assert second.post("comparisons/slow/resume", {}) == (200, {"name": "slow"})
        second.until(lambda each: each["state"] == "finished")
        assert second.get("comparisons/slow/result")["outcome"]["inside"]
    assert [each for each in kinds(folder) if each != "resumed"] == WHOLE


def test_a_laptop_that_slept_continues(folder: Path) -> None:
    """The server and the comparison are stopped for a while, and go on."""
    with served.Served(folder) as studio:
        assert studio.post("comparisons", served.QUESTION)[0] == 200
        studio.until(some_done)
        owner = int((folder / "runs" / "slow" / ".pid").read_text())
        for each in (owner, studio.process.pid):
            os.kill(each, signal.SIGSTOP)
        time.sleep(3)
        for each in (owner, studio.process.pid):
            os.kill(each, signal.SIGCONT)
        studio.until(lambda each: each["state"] == "finished")
        assert studio.get("comparisons/slow/result")["verdicts"][0]["verdict"] == "better"
    assert kinds(folder) == WHOLE


def test_a_page_that_follows_a_comparison_costs_little(folder: Path) -> None:
    """The server's CPU while trials run and a page follows them: under 10 ms a second, and an event in two seconds."""
    slow = folder / "slow.yaml"
    slow.write_text(slow.read_text().replace("sleep 0.4", "sleep 4"))
    with served.Served(folder) as studio:
        assert studio.post("comparisons", served.QUESTION)[0] == 200
        studio.until(lambda each: each["state"] == "running")
        with socket.create_connection(("127.0.0.1", studio.port)) as page:
            head = f"Host: 127.0.0.1:{studio.port}\r\nCookie: {studio.cookie}\r\n\r\n"
            page.sendall(f"GET /api/comparisons/slow/events HTTP/1.1\r\n{head}".encode())
            time.sleep(1)
            before, received, end = cpu_seconds(studio.process.pid), b"", time.monotonic() + 8
            page.settimeout(0.5)
            while time.monotonic() < end:
                with contextlib.suppress(TimeoutError):
                    received += page.recv(1 << 20)
            spent = cpu_seconds(studio.process.pid) - before
        assert studio.state()["state"] == "running", "the page is closed, and that changes nothing"
    assert received.count(b"data: ") <= 5
    assert spent / 8 < 0.010, f"{1000 * spent / 8:.1f} ms of CPU a second"


def cpu_seconds(process: int) -> float:
    """Of a process, as the system counts them, in hundredths."""
    words = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


OTHER_USER = """
import http.client, json, pathlib, sys
port, process, folder = int(sys.argv[1]), sys.argv[2], sys.argv[3]
found = []
for method, path in [("GET", "/shelf"), ("GET", "/api/shelf"), ("GET", "/api/comparisons/slow"), ("POST", "/session"),
                     ("POST", "/api/comparisons/slow/look"), ("POST", "/api/comparisons")]:
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    body = json.dumps({"token": "guess"}) if method == "POST" else None
    headers = {"content-type": "application/json", "x-partwise": "1", "cookie": f"partwise-{port}=guess"}
    client.request(method, path, body, headers)
    found.append(client.getresponse().status)
print(json.dumps({"statuses": found, "line": pathlib.Path(f"/proc/{process}/cmdline").read_bytes().decode()}))
"""


@pytest.mark.skipif(not IS_ROOT, reason="only root may run a program as another user")
def test_another_user_of_the_machine_gets_nothing(folder: Path) -> None:
    """By the port without the token, and by what the system shows of the process."""
    with served.Served(folder) as studio:
        words = ["/usr/bin/env", "python3", "-c", OTHER_USER, str(studio.port), str(studio.process.pid), str(folder)]
        found = subprocess.run(words, user="nobody", cwd="/", capture_output=True, text=True)
        if found.returncode and not shutil.which("python3", path="/usr/bin"):
            pytest.skip("another user has no Python here")
        said = json.loads(found.stdout)
        assert set(said["statuses"]) <= {401, 403}, found
        tokens = [
            studio.cookie.partition("=")[2],
            *[line.partition("#")[2].strip() for line in studio.said if "#" in line],
        ]
        assert tokens and not any(token and token in said["line"] for token in tokens)


def test_two_servers_and_their_tabs_show_one_comparison(folder: Path) -> None:
    """The second says that its port is in use and takes another; what one starts the other shows, and cannot start again."""
    first_words = ["--port", "8765"] if free(8765) else []
    with served.Served(folder, *first_words) as first, served.Served(folder) as second:
        assert first.port != second.port
        if first.port == 8765:
            assert any("in use, perhaps by another studio" in line for line in second.said)
        assert first.post("comparisons", served.QUESTION)[0] == 200
        second.until(lambda each: "counts" in each and some_done(each))
        status, said = second.post("comparisons", served.QUESTION)
        assert status == 409 and said["name"] == "slow"
        assert second.post("comparisons/slow/interrupt", {})[0] == 200
        for each in (first, second):
            each.until(lambda state: state["state"] in ("stopped", "finished"))
        second.post("comparisons/slow/resume", {})
        for each in (first, second):
            each.until(lambda state: state["state"] == "finished")
    assert [each for each in kinds(folder) if each != "resumed"] == WHOLE


def free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


@pytest.fixture
def small_disk(folder: Path) -> Any:
    """A folder on a disk of one MiB."""
    path = folder / "disk"
    path.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(path)]
    if shutil.which("mount") is None or subprocess.run(words, capture_output=True).returncode:
        pytest.skip("this user may not mount a disk")
    served.make_folder(path)
    yield path
    os.chdir(folder)
    subprocess.run(["umount", "--lazy", str(path)], check=True)


def test_a_full_disk_is_told_and_nothing_is_lost(small_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a start nor a look does anything that it cannot record."""
    monkeypatch.chdir(small_disk)
    folders.make_running(small_disk)
    client = folders.make_client(small_disk)
    client.studio.allowed = folders.Allowed(experiments=("slow.yaml",))
    before = project_ledger(small_disk).path.read_bytes()
    fill(small_disk / "full")
    started = client.post("/api/comparisons", json=served.QUESTION)
    assert started.status_code == 400 and os.strerror(errno.ENOSPC) in started.json()["error"], started.text
    assert "\n" not in started.json()["error"] and not (small_disk / "runs" / "slow").exists()
    look = client.post("/api/comparisons/night/look", json={})
    assert look.status_code == 400 and "b" not in look.json().get("arms", {}) and "\n" not in look.json()["error"]
    state = client.get("/api/comparisons/night").json()
    assert state["counts"] == {"done": 2, "running": 2} and not state["revealed"]
    assert project_ledger(small_disk).path.read_bytes() == before
    (small_disk / "full").unlink()
    assert client.post("/api/comparisons/night/look", json={}).status_code == 200
    assert client.post("/api/comparisons", json=served.QUESTION).status_code == 200
    assert client.studio.processes.started["slow"].process.wait(120) == 0


def fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        for size in (4096, 1):
            try:
                while True:
                    file.write(b"0" * size)
            except OSError:
                continue


def test_a_comparison_of_a_terminal_says_how_it_is_resumed(folder: Path) -> None:
    """What is stored does not tell its whole command: no other one is started."""
    folders.make_running(folder)
    client = folders.make_client(folder)
    state = client.get("/api/comparisons/night").json()
    assert state["state"] == "stopped" and not state["resumable"]
    answer = client.post("/api/comparisons/night/resume", json={})
    assert answer.status_code == 400 and "run its command again in a terminal" in answer.json()["error"]
