"""Mutation testing: change one line at a time, and expect the tests to fail.

    python tests/mutation_testing.py [NAME ...] [--list planted_bugs] [--workers 2] [--tier fast [--table FILE]]

A mutation that no test notices has survived: a mistake of that kind would go unseen. `tests/mutations.yaml` has mutations of
the statistics, `tests/planted_bugs.yaml` bugs of the kinds that codebases of the field have shipped. Each names a module, a
text that occurs in it once, its replacement, and the tests that should notice. Exit status 1 if one survived, 2 if one does
not apply. Mutants live in a temporary copy of the sources.
"""

import argparse
import hashlib
import itertools
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import Queue

import pytest
import yaml

from mutation_tiers import TierTable, find_tiers

ROOT = Path(__file__).parent.parent
LISTS = ("mutations", "planted_bugs")
KERNELS = Path("build") / "test-kernels"
"""Compiled kernels, which mutants share: their names have a hash of the sources."""

MOMENTS = itertools.count(1)
"""A time of change for each mutant: Python takes bytecode for a source of the same time and size."""

SUFFIXES = {".py", ".cpp", ".yaml", ".json"}
TESTS = "tests/comparison/stats"
TIMEOUT = 900
"""In seconds; a mutant that never ends counts as caught."""


@dataclass(frozen=True)
class Mutation:
    """One change of one module: `old`, which occurs once, becomes `new`."""

    name: str
    module: str
    old: str
    new: str
    tests: str = TESTS

    @property
    def path(self) -> Path:
        return Path("src/partwise") / self.module

    def source(self) -> str:
        """The text of the mutated module. Raises ValueError unless `old` occurs exactly once."""
        text = (ROOT / self.path).read_text(encoding="utf-8")
        if text.count(self.old) != 1:
            raise ValueError(
                f"{self.name}: {self.old!r} occurs {text.count(self.old)} times in {self.path}, expected once"
            )
        return text.replace(self.old, self.new)


def read_mutations(name: str) -> list[Mutation]:
    """The mutations of a list. Raises ValueError if two share a name."""
    path = Path(__file__).with_name(f"{name}.yaml")
    mutations = [Mutation(**row) for row in yaml.safe_load(path.read_text(encoding="utf-8"))]
    if len({mutation.name for mutation in mutations}) < len(mutations):
        raise ValueError(f"{path}: two mutations share a name")
    return mutations


def failing_test(
    mutation: Mutation, copy: Path, tests: Sequence[str] = (), timeout: float | None = TIMEOUT
) -> str | None:
    """The first test that fails with the mutated module in place; None if all pass.

    `tests` are words for pytest, by default the mutation's own tests.
    """
    path = copy / mutation.path
    original = path.read_text(encoding="utf-8")
    times = path.stat()
    path.write_text(mutation.source(), encoding="utf-8")
    os.utime(path, (number := next(MOMENTS), number))
    words = ["-x", "-p", "no:cacheprovider", "-p", "no:xdist", "--no-header", "--tb=no"]
    words += tests or mutation.tests.split()
    environment = {**os.environ, "PYTHONPATH": str(copy / "src")}
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *words],
            cwd=copy,
            env=environment,
            capture_output=True,
            text=True,
            timeout=timeout,
        )
    except subprocess.TimeoutExpired:
        return f"no end within {timeout} s"
    finally:
        path.write_text(original, encoding="utf-8")
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    if done.returncode in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        return None
    if done.returncode < 0 and mutation.source() != original:
        return f"the tests end with signal {-done.returncode}"
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    if not failed:
        raise RuntimeError(f"{mutation.name}: pytest ended with status {done.returncode}:\n{done.stdout}{done.stderr}")
    return failed[0].split(" - ")[0]


def copy_of_project(folder: Path) -> Path:
    """A copy of what the tests need."""
    ignored = shutil.ignore_patterns("__pycache__", "*.so")
    for name in ("src", "tests", "docs", "examples", "benchmarks", ".ci"):
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    for path in (each for each in ROOT.iterdir() if each.is_file()):
        shutil.copy(path, folder)
    (ROOT / KERNELS).mkdir(parents=True, exist_ok=True)
    (folder / KERNELS.parent).mkdir()
    (folder / KERNELS).symlink_to(ROOT / KERNELS)
    return folder


def hash_of_sources() -> str:
    """What the package and its tests are, for a table that is only true of them."""
    files = sorted(path for name in ("src", "tests") for path in (ROOT / name).rglob("*") if path.suffix in SUFFIXES)
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", help="only these mutations")
    parser.add_argument("--list", choices=(*LISTS, "all"), default=LISTS[0], help="the list of mutations")
    parser.add_argument("--tier", choices=("fast",), help="tell which tier catches each mutation, with one worker")
    parser.add_argument("--table", type=Path, help="with --tier: a file for what is known, with which it goes on")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    lists = LISTS if options.list == "all" else [options.list]
    mutations = [mutation for name in lists for mutation in read_mutations(name)]
    if unknown := set(options.names) - {mutation.name for mutation in mutations}:
        print(f"unknown mutation {sorted(unknown)[0]!r}", file=sys.stderr)
        return 2
    chosen = [mutation for mutation in mutations if not options.names or mutation.name in options.names]
    try:
        for mutation in chosen:
            compile(mutation.source(), str(mutation.path), "exec")
    except (ValueError, SyntaxError) as error:
        print(error, file=sys.stderr)
        return 2
    started, survivors = time.monotonic(), []
    workers = 1 if options.tier else min(options.workers, len(chosen))
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(workers) as pool:
        copies: Queue[Path] = Queue()
        for number in range(workers):
            copies.put(copy_of_project(Path(folder) / str(number)))

        def run(
            mutation: Mutation, words: Sequence[str] = (), timeout: float | None = TIMEOUT
        ) -> tuple[Mutation, str | None]:
            copy = copies.get()
            try:
                return mutation, failing_test(mutation, copy, words, timeout)
            finally:
                copies.put(copy)

        tests = list(dict.fromkeys(word for mutation in chosen for word in mutation.tests.split()))
        unchanged = Mutation("unchanged", chosen[0].module, chosen[0].old, chosen[0].old)
        tier = ["--tier", options.tier] if options.tier else []
        if failed := run(unchanged, [*tier, *tests], timeout=None)[1]:  # all tests in one process
            print(f"the tests fail without any mutation: {failed}", file=sys.stderr)
            return 2
        if options.tier:
            table = TierTable(options.table, hash_of_sources())
            find_tiers(chosen, unchanged, lambda mutation, words: run(mutation, words)[1], copies.queue[0], table)
            print("\n".join(table.lines(chosen)))
            return 0 if table.is_enough(chosen) else 1
        for number, (mutation, failed) in enumerate(pool.map(run, chosen), start=1):
            print(f"{number:3}/{len(chosen)}  {mutation.name}: {failed or 'SURVIVED'}", flush=True)
            if failed is None:
                survivors.append(mutation.name)
    caught = len(chosen) - len(survivors)
    print(f"{caught} of {len(chosen)} mutations caught, after {time.monotonic() - started:.0f} s")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
