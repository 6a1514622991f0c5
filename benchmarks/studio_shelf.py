"""The studio's shelf at size: seconds from its first request until the page, and until the list, of a new server.

    python benchmarks/studio_shelf.py [--runs 1000] [--comparisons 8] [--rounds 5] [--folder FOLDER]

The folder gets copies of one small run and of one small comparison, which are trained first; with `--folder`, those it has
stay. Every round starts a server, which keeps nothing from before. Needs the extra `studio`.
"""

import json
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from measuring import at_least_one, benchmark_parser

TINY = ["d_model=16", "n_layers=2", "attention.n_heads=2", "context_length=16", "train.batch_size=4", "train.steps=12"]
PARTWISE = [sys.executable, "-m", "partwise"]
GOALS = {"page": 0.5, "list": 2.0}


def main() -> None:
    parser = benchmark_parser(__doc__, rounds=5)
    parser.add_argument("--runs", type=at_least_one, default=1000)
    parser.add_argument("--comparisons", type=at_least_one, default=8)
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        fill(folder, options.runs, options.comparisons)
        rounds = [measure(folder) for _ in range(options.rounds)]
    print(f"{options.runs} runs and {options.comparisons} comparisons, {options.rounds} new servers:")
    for what, goal in GOALS.items():
        seconds = [each[what] for each in rounds]
        print(f"{what}: {statistics.median(seconds):.2f} s ({min(seconds):.2f} to {max(seconds):.2f}), goal {goal} s")


def fill(folder: Path, runs: int, comparisons: int) -> None:
    """Train what the copies are of, unless the folder has it, and copy."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ".git").mkdir(exist_ok=True)  # the ledger is in this folder, whatever is above it
    (folder / "text.txt").write_text("the cat sat on the mat and the dog ran far away " * 200)
    common = [word for each in TINY for word in ("--common", each)]
    commands = {
        "run": ["train", "mingpt", *TINY, "--data", "text.txt", "--name", "run"],
        "comparison": ["compare", "mingpt", "ffn=swiglu", *common, "--data", "text.txt", "--name", "comparison"],
    }
    for name, words in commands.items():
        if not (folder / "runs" / name).exists():
            subprocess.run([*PARTWISE, *words], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    for name, number in {"run": runs, "comparison": comparisons}.items():
        for each in range(1, number):
            if not (folder / "runs" / f"{name}-{each}").exists():
                shutil.copytree(folder / "runs" / name, folder / "runs" / f"{name}-{each}")


def measure(folder: Path) -> dict[str, float]:
    """Seconds until the page with its code, and until the list, of a server that has just printed its link."""
    words = [*PARTWISE, "studio", "--no-browser"]
    with subprocess.Popen(words, cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            found = next(
                match for line in process.stdout if (match := re.search(r"http://([\d.]+:\d+)\S*#(\S+)", line))
            )
            client = HTTPConnection(found[1], timeout=60)
            change = {"content-type": "application/json", "x-partwise": "1"}
            client.request("POST", "/session", json.dumps({"token": found[2]}), change)
            answer = client.getresponse()
            answer.read()
            cookie = {"cookie": str(answer.headers["set-cookie"]).partition(";")[0]}
            start = time.perf_counter()
            page = read(client, "/shelf", cookie).decode()
            for address in re.findall(r'(?:href|src)="(/static/[^"]*)"', page):
                read(client, address, cookie)
            shown = time.perf_counter() - start
            listed: Any = json.loads(read(client, "/api/shelf", cookie))
            assert listed["runs"]
            return {"page": shown, "list": time.perf_counter() - start}
        finally:
            process.terminate()


def read(client: HTTPConnection, address: str, headers: dict[str, str]) -> bytes:
    client.request("GET", address, headers=headers)
    answer = client.getresponse()
    content = answer.read()
    if answer.status != 200:
        raise RuntimeError(f"{address}: {answer.status} {content[:200]!r}")
    return content


if __name__ == "__main__":
    main()
