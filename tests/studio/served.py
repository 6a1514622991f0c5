"""A studio as a process of its own, and a client that has opened its link."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import yaml

SLOW = {
    "command": "sh -c 'sleep 0.4; echo loss {n}{seed}'",
    "arms": {"a": {"n": 3}, "b": {"n": -1}},
    "metric": {"pattern": r"loss (\S+)", "margin": 1},
}
"""An experiment of six trials of half a second."""
QUESTION = {"experiment": "slow.yaml", "seeds": 3, "name": "slow", "prediction": {"low": -45, "high": -40}}


def make_folder(folder: Path) -> None:
    (folder / ".git").mkdir()
    (folder / "slow.yaml").write_text(yaml.safe_dump(SLOW))


class Served:
    """`partwise studio` in a folder. Use as a context, which ends it."""

    def __init__(self, folder: Path, *words: str) -> None:
        command = [sys.executable, "-m", "partwise", "studio", "--no-browser", "slow.yaml", *words]
        self.process = subprocess.Popen(
            command, cwd=folder, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"}
        )
        self.said: list[str] = []
        assert self.process.stdout
        for line in self.process.stdout:
            self.said.append(line)
            if found := re.search(r"http://127\.0\.0\.1:(\d+)\S*#(\S+)", line):
                break
        else:
            raise AssertionError("".join(self.said))
        self.port = int(found[1])
        self.cookie = ""
        _, headers, _ = self.request("POST", "/session", {"token": found[2]})
        self.cookie = headers["set-cookie"].partition(";")[0]

    def __enter__(self) -> "Served":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate(timeout=30)

    def request(self, method: str, path: str, body: Any = None) -> tuple[int, Any, Any]:
        client = HTTPConnection("127.0.0.1", self.port, timeout=60)
        headers = {"content-type": "application/json", "x-partwise": "1", "cookie": self.cookie}
        client.request(method, path, None if body is None else json.dumps(body), headers)
        answer = client.getresponse()
        content = answer.read()
        client.close()
        return answer.status, answer.headers, json.loads(content) if content[:1] in b"{[" else content

    def get(self, path: str) -> Any:
        return self.request("GET", f"/api/{path}")[2]

    def post(self, path: str, body: Any) -> tuple[int, Any]:
        status, _, said = self.request("POST", f"/api/{path}", body)
        return status, said

    def state(self) -> Any:
        return self.get("comparisons/slow")

    def until(self, holds: Callable[[Any], bool], seconds: float = 120) -> Any:
        """The state of the comparison once this holds of it."""
        end = time.monotonic() + seconds
        while not holds(state := self.state()):
            assert time.monotonic() < end, state
            time.sleep(0.1)
        return state
