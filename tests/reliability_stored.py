"""Checks of what is stored and read again: values of commands and functions, reports and lists, compiled kernels."""

import json
import os
import random
import shutil
from collections.abc import Callable
from contextlib import chdir, redirect_stderr
from pathlib import Path
from typing import Any

import partwise
from faults import flip_bit, seconds_of
from partwise.config import ConfigError
from partwise.kernels import build
from programs import ARMS, COMMAND, METRIC, expected, write_program
from reliability_comparisons import compare
from reliability_runs import SMALL, Check, Trial, emptied
from test_records import command

EXPERIMENT = {"command": COMMAND, "arms": ARMS, "metric": METRIC}


def loss(seed: int, report: Callable[[int, float], None], gain: float = 0.0) -> float:
    """A function that is compared."""
    value = expected(seed, gain)
    for step in (0, 10, 20):
        report(step, value + 1 / (1 + step))
    return value


def compare_command(folder: Path) -> tuple[int, str]:
    """`partwise compare` of a program, as `runs/c` of a folder: the exit status and what it printed on standard error."""
    (folder / "e.yaml").write_text(json.dumps(EXPERIMENT))
    status, _, errors = command(folder, ["compare", "e.yaml", "--seeds", "2", "--name", "c"])
    return status, errors


def compare_function(folder: Path) -> tuple[int, str]:
    """The same for a function: its errors are exceptions."""
    arms: dict[str, dict[str, Any]] = {"base": {}, "gain": {"gain": 0.1}}
    try:
        with chdir(folder):
            partwise.compare_function(loss, arms, margin=0.01, seeds=2, progress=False, name="c")
    except ConfigError as error:
        return 2, f"error: {error}"
    return 0, ""


def command_flips(folder: Path) -> Trial:
    """One bit of any file of a finished comparison of a command or a function: told, repaired or harmless."""
    kinds = []
    for compared in (compare_command, compare_function):
        path = folder / compared.__name__
        path.mkdir(parents=True)
        write_program(path)
        assert compared(path)[0] == 0
        found = json.loads((path / "runs/c/results.json").read_text())["claims"]
        kinds.append((compared, path, found, shutil.copytree(path / "runs", folder / f"{path.name} whole")))

    def trial(number: int) -> str:
        compared, path, found, whole = kinds[number % 2]
        shutil.copytree(whole, emptied(path / "runs"))
        flipped = flip_bit(path / "runs", random.Random(number))
        damaged = flipped.read_bytes()
        status, said = compared(path)
        if status:
            told = status in (1, 2) and "Traceback" not in said and said.count("error: ") == 1
            assert told, f"{flipped.relative_to(path)}: {status}: {said[-300:]}"
            return "told"
        claims = json.loads((path / "runs/c/results.json").read_text())["claims"]
        assert claims == found, f"silent damage of {flipped.relative_to(path)}"
        return "repaired" if not flipped.exists() or flipped.read_bytes() != damaged else "harmless"

    return trial


def shown(folder: Path) -> tuple[list[str], list[Any]]:
    """What commands said of a folder with a comparison, and the numbers that they show."""
    run = sorted((folder / "runs/c").glob("runs/*/seed-*"))[0].relative_to(folder)
    said, numbers = [], []
    for words in (["report", "runs/c"], ["report", str(run)], ["runs", "--json"], ["runs", str(run), "--json"]):
        status, printed, errors = command(folder, words)
        assert status in (0, 2) and "Traceback" not in errors, f"{words}: {status}: {errors[-300:]}"
        if status == 2 or "damaged" in printed:
            said.append(errors or printed)
        elif words[0] == "runs":
            numbers += [[entry[key] for key in ("loss", "state", "verdict")] for entry in json.loads(printed)]
    numbers.append((folder / "runs/c/report.md").read_text())
    settings = [word for override in SMALL for word in ("--common", override)]
    plan = ["plan", "mingpt", "--arm", "ffn=swiglu", "--data", str(folder / "text.txt"), *settings, "--json"]
    (folder / "runs/c/results.json").unlink()  # a plan prefers a comparison's noise to a calibration's
    status, printed, errors = command(folder, plan)
    assert status == 0, errors
    if "calibrations" in errors:
        said.append(errors)
    else:
        numbers += [json.loads(printed)[key] for key in ("sd", "noise")]
    return said, numbers


def reading_flips(folder: Path) -> Trial:
    """One bit of any file that `report`, `runs` and `plan` read."""
    path = folder / "flipped"
    path.mkdir()
    assert compare(path)[0] == 0
    settings = ["mingpt", *SMALL, "--data", str(path / "text.txt"), "--seeds", "3", "--name", "aa"]
    status, _, errors = command(path, ["calibrate", *settings])
    assert status == 0, errors
    shutil.rmtree(path / "runs/aa")
    for checkpoints in path.rglob("checkpoints"):
        shutil.rmtree(checkpoints)  # most of the files, and not read here
    whole = shutil.copytree(path / "runs", folder / "whole")
    said, found = shown(path)
    assert not said, said

    def trial(number: int) -> str:
        shutil.copytree(whole, emptied(path / "runs"))
        flipped = flip_bit(path / "runs", random.Random(number))
        said, numbers = shown(path)
        if said:
            return "told"
        assert numbers == found, f"silent damage of {flipped.relative_to(path)}"
        return "harmless"

    return trial


COMPILER = """#!/bin/sh
case "$*" in *--version*) echo 1; exit;; esac
while [ "$1" != -o ]; do shift; done
cp "{library}" "$2"
"""


def kernel_flips(folder: Path) -> Trial:
    """One bit of a compiled kernel, or its end, is lost: it is not loaded, and compiled again."""
    name = "dropout"
    (folder / "real").mkdir(mode=0o700)
    build.load.__wrapped__(name, folder / "real")
    compiler, cache = folder / "compiler", folder / "cache"
    (compiled,) = (folder / "real").glob("*.so")
    compiler.write_text(COMPILER.format(library=compiled))  # compiling again for every trial would take seconds
    compiler.chmod(0o700)

    def load() -> None:  # always in a process of its own: a library that is loaded stays
        os.environ["CXX"] = str(compiler)
        with (folder / "said").open("w") as file, redirect_stderr(file):
            build.load.__wrapped__(name, cache)

    seconds_of(load)
    (path,) = cache.glob("*.so")
    content = path.read_bytes()

    def trial(number: int) -> str:
        draw = random.Random(number)
        if number % 3:
            flip_bit(cache, draw)
        else:
            path.write_bytes(content[: draw.randrange(len(content))])
        seconds_of(load)
        assert path.read_bytes() == content, "a damaged kernel was loaded"
        assert f"{path} is not loaded, since it is damaged" in (folder / "said").read_text()
        return "repaired"

    return trial


STORED_CHECKS = {
    "command-flip": Check(
        "A flipped bit in any file of a comparison of commands or functions is told, repaired or harmless",
        1_000,
        command_flips,
    ),
    "reading-flip": Check(
        "A flipped bit in any file that report, runs and plan read is told or harmless", 500, reading_flips
    ),
    "kernel-flip": Check("A compiled kernel with a flipped bit or a lost end is compiled again", 1_000, kernel_flips),
}
