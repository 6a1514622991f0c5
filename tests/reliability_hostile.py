"""Files made to harm: damaged and edited ones of every kind, code where data are expected, sizes that lie.

Each is given to a command in a process of its own, which may end in one line, but not in a traceback or by a signal, run
nothing, and take little memory and time.
"""

import json
import os
import pickle
import random
import resource
import shutil
import struct
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from pathlib import Path

from formats_hostile import intact_folder, mutate
from partwise.cli import main
from reliability_runs import Check, Trial, emptied
from test_records import COMPARE, READ, RUN, command, damage

MARKER = "executed"
MEMORY = 600 * 2**20
"""Bytes that a command may take more than this process had, with the libraries that it loads."""
SECONDS = 200
"""Of processor time."""
SMALL = [word for word in RUN[1:] if not word.startswith("data")]


class Payload:
    """Unpickling it leaves a mark."""

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (f"touch {MARKER}",)


LAUGHS = "".join(f"{n}: &{n} [{', '.join(['*' + p] * 9)}]\n" for p, n in zip("abcdefgh", "bcdefghi", strict=True))
YAMLS = [
    f"!!python/object/apply:os.system ['touch {MARKER}']",
    f"preset: mingpt\nd_model: !!python/object/apply:os.system ['touch {MARKER}']",
    f"a: &a [x, x]\n{LAUGHS}",
    "preset: hostile.yaml",
    "[" * 5000,
    "preset: mingpt\ntrain: {steps: 1e999}",
    "preset: mingpt\nd_model: 99999999999999999999",
    "preset: mingpt\nn_layers: 1000000000",
    "command: [1, {}]\narms: 3",
    f"command: touch {MARKER}\narms: {{a: {{}}}}\nmetric: {{pattern: '(a+)+$'}}",
    "\x00\x01",
]
TABLES = [
    "seed,arm,value\n" + "0,a," + "9" * 5000 + "\n",
    "seed,arm,value\n0,=cmd|' /C calc'!A0,1\n0,b,2\n",
    "seed,arm,value\n0,a,nan\n0,b,inf\n",
    "seed,arm,value\n0,\x1b[2J,1\n1,\x1b[2J,2\n0,b,1\n1,b,3\n",
    "a" * 300_000,
    "seed,arm,value\n" + "0,a,1\n" * 5,
    '"' * 1001,
    "seed,arm,value\n" + "\n".join(f"{n},a,{n}" for n in (10**30, -1, "x", "")),
]
TEXTS = [
    b"\xff\xfe" * 500,
    b"\x00" * 5000,
    b"a" * 100_000,
    b"[" * 100_000,
    b'{"text": ' * 50_000,
    b'{"source": "a"}\n' * 99,
]


def hostile_yaml(draw: random.Random, folder: Path) -> list[str]:
    (folder / "hostile.yaml").write_text(draw.choice(YAMLS))
    return draw.choice([["show", "hostile.yaml"], ["compare", "hostile.yaml", "--dry-run"], ["train", "hostile.yaml"]])


def hostile_table(draw: random.Random, folder: Path) -> list[str]:
    name = draw.choice(["values.csv", "values.jsonl", "events.out.tfevents.1"])
    content = draw.choice(TABLES).encode() if draw.random() < 0.7 else draw.randbytes(draw.randrange(3000))
    (folder / name).write_bytes(content)
    return ["verdict", name]


def hostile_text(draw: random.Random, folder: Path) -> list[str]:
    name = draw.choice(["data.txt", "data.jsonl", "data.tsv"])
    content = draw.choice(TEXTS) if draw.random() < 0.7 else draw.randbytes(draw.randrange(1, 5000))
    (folder / name).write_bytes(content)
    preset = "original" if name == "data.tsv" else "mingpt"
    return ["train", preset, *SMALL, "--data", name, "--name", "h"]


def hostile_model(draw: random.Random, folder: Path, intact: Path) -> list[str]:
    """A folder of `transformers`: damaged, pickled, with code, or with sizes that lie."""
    path = shutil.copytree(intact, folder / "model")
    kind = draw.randrange(4)
    if kind == 0:
        mutate(path, draw)
    elif kind == 1:
        name = draw.choice(["model.safetensors", "pytorch_model.bin", "config.json", "tokenizer.json"])
        (path / name).write_bytes(pickle.dumps(Payload()))
        if name == "pytorch_model.bin":
            (path / "model.safetensors").unlink()
    elif kind == 2:
        config = json.loads((path / "config.json").read_text())
        (path / "config.json").write_text(json.dumps({**config, "auto_map": {"AutoModel": "code.Model"}}))
        (path / "code.py").write_text(f"open({MARKER!r}, 'w')\n")
    else:
        size = draw.choice([0, 2**20, 2**40, 2**62, 2**64 - 1])
        (path / "model.safetensors").write_bytes(struct.pack("<Q", size) + draw.randbytes(200))
    return draw.choice(
        [["import", "model"], ["generate", "model"], ["eval", "model"], ["inspect", "model", "attention"]]
    )


def hostile_run(draw: random.Random, folder: Path, whole: Path) -> list[str]:
    """A run and a comparison: one of their files damaged, edited or replaced by a pickle."""
    shutil.copytree(whole, folder, dirs_exist_ok=True, symlinks=True)
    files = sorted(path for path in folder.rglob("*") if path.is_file() and "cache" not in path.parts)
    if draw.random() < 0.2:
        draw.choice(files).write_bytes(pickle.dumps(Payload()))
    else:
        damage(draw.choice([path for path in files if path.suffix in (".json", ".jsonl")]), draw)
    return draw.choice(READ)


def in_limits(words: list[str], folder: Path) -> tuple[int, str, int]:
    """Exit status, what a command printed, and the bytes of memory that it took at most, in a child."""
    output = folder.parent / "output"
    process = os.fork()
    if process == 0:  # pragma: no cover
        os.chdir(folder)
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
        status = 1
        with output.open("w") as file, redirect_stdout(file), redirect_stderr(file):
            sys.argv = ["partwise", *words]
            try:
                status = int(main() or 0)  # type: ignore[func-returns-value]
            except SystemExit as end:
                status = int(end.code or 0)
            except BaseException as error:
                print(f"Traceback: {error!r}")
        os._exit(status)
    _, status, usage = os.wait4(process, 0)
    return os.waitstatus_to_exitcode(status), output.read_text(errors="replace"), usage.ru_maxrss * 1024


def hostile_files(folder: Path) -> Trial:
    """One hostile file and a command that reads it."""
    whole, intact = folder / "whole", intact_folder(folder)
    whole.mkdir()
    for words in (["train", *RUN, "--name", "r"], COMPARE):
        assert command(whole, words)[0] == 0
    kinds = [
        hostile_yaml,
        hostile_table,
        hostile_text,
        partial(hostile_model, intact=intact),
        partial(hostile_run, whole=whole),
    ]

    def trial(number: int) -> str:
        draw, path = random.Random(number), emptied(folder / "hostile")
        path.mkdir()
        words = kinds[number % len(kinds)](draw, path)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        status, said, memory = in_limits(words, path)
        assert not list(path.rglob(MARKER)), f"{words}: something was executed"
        assert "Traceback" not in said, f"{words}: {said[-300:]}"
        assert status in (0, 1, 2), f"{words}: status {status}: {said[-300:]}"
        assert memory < before + MEMORY, f"{words}: {memory / 2**20:.0f} MiB"
        return {0: "read", 1: "told", 2: "told"}[status]

    return trial


HOSTILE_CHECKS = {
    "hostile": Check(
        "A hostile file runs nothing, takes bounded memory, and is read or refused without a traceback",
        500,
        hostile_files,
    ),
}
