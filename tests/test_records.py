"""Files of runs and comparisons that were damaged, edited, or made by others: one line, never a traceback, never a hang."""

import io
import json
import os
import random
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from partwise.ablation.run_list import list_runs
from partwise.cli import main
from partwise.machine import is_alive
from partwise.records import DamagedFileError, Record, parse, read_bytes, read_record
from partwise.train.metrics import parse_line, read_metrics

RUN = [
    "mingpt", "d_model=16", "n_layers=1", "attention.n_heads=2", "context_length=16", "train.batch_size=2", "train.steps=4",
    "train.eval_every=2", "train.save_every=2", "train.precision=float32", "train.threads=1", "data=arithmetic",
    "data.train=50", "data.validation=10", "data.test=5",
]  # fmt: skip
COMPARED = [word for override in RUN[1:] for word in ("--common", override)]
COMPARE = ["compare", "mingpt", "norm=rmsnorm", "--seeds", "2", "--name", "c", *COMPARED]
READ = [
    ["runs"], ["runs", "--json"], ["report", "r"], ["eval", "r"], ["generate", "r", "--max-new-tokens", "2"],
    ["inspect", "r", "attention"], ["inspect", "r", "gradients"],
    ["export", "r", "--to", "hf", "--family", "partwise", "out"],
    ["report", "runs/c"], ["verify", "runs/c"], ["ledger"], ["ledger", "verify"],
    ["plan", "mingpt", "--arm", "norm=rmsnorm", *COMPARED],
]  # fmt: skip
WRITE = [
    ["train", *RUN, "--name", "r"],
    COMPARE,
    ["work", "runs/c"],
    ["train", "from=r", "--name", "more", "train.steps=1"],
]


def command(folder: Path, words: list[str]) -> tuple[int, str, str]:
    """The exit status of a command in this process, and what it printed to stdout and stderr."""
    printed, errors, before = io.StringIO(), io.StringIO(), sys.argv
    status: Any = 0
    sys.argv = ["partwise", *words]
    try:
        with chdir(folder), redirect_stdout(printed), redirect_stderr(errors), time_limit(100, words):
            main()
    except SystemExit as stop:
        status = stop.code
    finally:
        sys.argv = before
    return int(status or 0), printed.getvalue(), errors.getvalue()


@contextmanager
def time_limit(seconds: int, words: list[str]) -> Iterator[None]:
    def stop(*_: object) -> None:
        raise AssertionError(f"`partwise {' '.join(words)}` does not end")

    if sys.platform == "win32":  # which has no alarms
        yield
        return
    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished run `r` and a finished comparison `c`."""
    folder = tmp_path_factory.mktemp("finished runs")
    for words in (["train", *RUN, "--name", "r"], COMPARE):
        status, _, errors = command(folder, words)
        assert status == 0, errors
    for words in READ:  # what follows is worth nothing if they fail without damage
        with TemporaryDirectory() as copied:
            shutil.copytree(folder, copied, dirs_exist_ok=True)
            status, _, errors = command(Path(copied), words)
            assert status == 0, f"{words}: {errors}"
    return folder


VALUES = [None, True, "text", "", -1, 3, 1.5, [], {}, [[]], [None], {"a": 1}, "\x1b[2J\u2028", 10**30]
RAW = ["NaN", "-Infinity", "1e999", "9" * 5000, "[" * 100_000, '"\\ud800"', "\x00"]
CONTENTS: list[bytes] = [b"", b"[]", b"3", b"null", b"{", b"\xff\xfe\x00", b"[" * 100_000, b"{}", b'{"format": 99}']


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all values in a JSON value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, item in inner for place in places(item, (*path, key)))]


def changed(text: str, draw: random.Random) -> bytes:
    """A JSON text with one value replaced or removed."""
    values = json.loads(text)
    *path, last = draw.choice([place for place in places(values) if place])
    parent = values
    for key in path:
        parent = parent[key]
    if draw.random() < 0.3:
        del parent[last]
        return json.dumps(values).encode()
    if draw.random() < 0.7:
        parent[last] = draw.choice(VALUES)
        return json.dumps(values).encode()
    parent[last] = "\0here"
    return json.dumps(values).replace(json.dumps("\0here"), draw.choice(RAW)).encode("utf-8", "surrogatepass")


def damage(path: Path, draw: random.Random) -> str:
    """Damage a file in one of many ways, and say how."""
    text, kind = path.read_text("utf-8"), draw.random()
    if kind < 0.7:
        lines = text.splitlines(keepends=True) if path.suffix == ".jsonl" else [text]
        number = draw.randrange(len(lines))
        content = changed(lines[number], draw) + b"\n"
        before, after = ("".join(part).encode() for part in (lines[:number], lines[number + 1 :]))
        path.write_bytes(before + content + after)
        return f"{path.name}: {content[:300]!r}"
    if kind < 0.9:
        content = draw.choice([*CONTENTS, text.encode()[: draw.randrange(len(text))]])
        path.write_bytes(content)
        return f"{path.name}: {content[:300]!r}"
    path.unlink()
    if kind < 0.93:
        path.mkdir()
        return f"{path.name} is a folder"
    if kind < 0.96:
        os.mkfifo(path)
        return f"{path.name} is a pipe"
    if kind < 0.98:
        path.symlink_to("nowhere")
        return f"{path.name} is a dangling link"
    return f"{path.name} is missing"


def try_damage(whole: Path, folder: Path, number: int, commands: list[list[str]]) -> None:
    draw = random.Random(number)
    shutil.copytree(whole, folder, symlinks=True)
    files = sorted(path for path in folder.rglob("*.json*") if path.is_file() and "cache" not in path.parts)
    how = damage(draw.choice(files), draw)
    for words in draw.sample(commands, min(4, len(commands))):
        try:
            status, _, errors = command(folder, words)
        except BaseException as error:
            raise AssertionError(f"damage {number}, {how}: `partwise {' '.join(words)}`: {error!r}") from error
        lines = errors.splitlines()
        told = status in (0, 1) or (status == 2 and lines and lines[-1].startswith("error: "))
        assert told and "Traceback" not in errors, f"damage {number}, {how}: `partwise {' '.join(words)}`: {errors}"


@pytest.mark.parametrize("number", range(40))
def test_damaged_files_are_told(whole: Path, tmp_path: Path, number: int) -> None:
    try_damage(whole, tmp_path / "damaged", number, READ)


@pytest.mark.long
def test_damaged_files_are_told_by_every_command(whole: Path, tmp_path: Path) -> None:
    for number in range(40, 80):
        try_damage(whole, tmp_path / str(number), number, [*READ, *WRITE])


def test_typed_values_name_the_file_and_the_place(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{"n": "3", "x": 1e999, "b": true, "t": "text", "o": {"m": 1}, "l": [{"k": 2}], "w": [1]}')
    record = read_record(path)
    assert (
        record.text("t") == "text" and record.record("o").whole("m") == 1 and record.records("l")[0].number("k") == 2.0
    )
    asked: list[tuple[Callable[[], Any], str]] = [
        (lambda: record.whole("n"), "'n' is \"3\", not a whole number"),
        (lambda: record.whole("b"), "'b' is true, not a whole number"),
        (lambda: record.record("o").whole("m", minimum=2), "'m' is 1, not a whole number of at least 2"),
        (lambda: record.number("x"), "'x' is Infinity, not a number"),
        (lambda: record.text("n2"), "it lacks 'n2'"),
        (lambda: record["o"]["n2"], "it lacks 'n2'"),
        (lambda: record.records("o"), "not a list of objects"),
        (lambda: record.texts("w"), "not a list of texts"),
        (lambda: record.record("l"), "not an object"),
    ]
    for ask, message in asked:
        with pytest.raises(DamagedFileError, match=rf"a\.json is damaged: .*{message}"):
            ask()


def test_a_whole_number_beyond_the_floats_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(f'{{"n": {"9" * 308}}}')
    assert float(read_record(path).whole("n")) == 1e308
    path.write_text(f'{{"n": [{{"m": -{"9" * 400}}}]}}')
    with pytest.raises(DamagedFileError, match=r"a\.json is damaged: a whole number has 401 digits"):
        read_record(path)


def test_files_that_never_end_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "long").write_bytes(b"[" * 1000)
    for name, message in (("pipe", "not a regular file"), (".", "it is a folder"), ("long", "more than 0 MiB")):
        with pytest.raises(DamagedFileError, match=message):
            read_bytes(tmp_path / name, 100)
    with pytest.raises(DamagedFileError, match="not a regular file"):
        read_bytes(Path("/dev/zero"))
    with pytest.raises(DamagedFileError, match="recursion"):
        parse("[" * 100_000, "x")


def test_a_line_of_metrics_has_a_kind_a_step_and_numbers(tmp_path: Path) -> None:
    good = {"kind": "evaluation", "step": 2, "validation": 2.5, "training": 2.4, "note": "a\u2028b"}
    bad = [
        {**good, "step": "3"},
        {**good, "step": True},
        {**good, "validation": None},
        {**good, "kind": "other"},
        [good],
        7,
    ]
    lines = [json.dumps(line, ensure_ascii=False) for line in (*bad, {**good, "step": -1}, good)]
    (tmp_path / "metrics.jsonl").write_text("\n".join([*lines, '{"kind": "ste']), encoding="utf-8")
    assert read_metrics(tmp_path) == [good]
    assert isinstance(parse_line(json.dumps(good).encode()), Record)


def test_a_lock_of_no_process_is_no_activity(tmp_path: Path) -> None:
    assert not is_alive(0) and not is_alive(-1) and is_alive(os.getpid())
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "run.json").write_text(
        '{"config": {"train": {"steps": 4}, "data": {}}, "command": [], "data": {"hash": "0"}, "parameters": 3}'
    )
    for content in ("-1", "0", "9" * 90, "", "x"):
        (folder / ".pid").write_text(content)
        assert list_runs(tmp_path)[0].state == "stopped at step 0 of 4"
