"""Mutation testing: change one line at a time, and expect the tests to fail.

    python tests/mutation_testing.py [NAME ...] [--list planted_bugs] [--workers 2]

A mutation that no test notices has survived: a mistake of that kind would go unseen. `tests/mutations.yaml` has mutations of
the statistics, `tests/planted_bugs.yaml` bugs of the kinds that codebases of the field have shipped. Each names a module, a
text that occurs in it once, its replacement, and the tests that should notice. Exit status 1 if one survived, 2 if one does
not apply. Mutants live in a temporary copy of the sources.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import Queue

import yaml

ROOT = Path(__file__).parent.parent
LISTS = ("mutations", "planted_bugs")
KERNELS = Path("build") / "test-kernels"
"""Compiled kernels, which mutants share: their names have a hash of the sources."""

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
    long: bool = False
    """Whether tests marked `long` are needed to catch it."""

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


def failing_test(mutation: Mutation, copy: Path, timeout: float | None = TIMEOUT) -> str | None:
    """The first test that fails with the mutated module in place; None if all pass."""
    path = copy / mutation.path
    original = path.read_text(encoding="utf-8")
    path.write_text(mutation.source(), encoding="utf-8")
    words = ["-x", "-p", "no:cacheprovider", "-p", "no:xdist", "--no-header", "--tb=no", *mutation.tests.split()]
    words += ["-m", "long or not long"] if mutation.long else []
    environment = {**os.environ, "PYTHONPATH": str(copy / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
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
    if done.returncode == 0:
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
    for name in ("src", "tests", "docs"):
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, folder / name)
    (ROOT / KERNELS).mkdir(parents=True, exist_ok=True)
    (folder / KERNELS.parent).mkdir()
    (folder / KERNELS).symlink_to(ROOT / KERNELS)
    return folder


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", help="only these mutations")
    parser.add_argument("--list", choices=LISTS, default=LISTS[0], help="the list of mutations")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    mutations = read_mutations(options.list)
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
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(options.workers) as pool:
        copies: Queue[Path] = Queue()
        for number in range(min(options.workers, len(chosen))):
            copies.put(copy_of_project(Path(folder) / str(number)))

        def run(mutation: Mutation, timeout: float | None = TIMEOUT) -> tuple[Mutation, str | None]:
            copy = copies.get()
            try:
                return mutation, failing_test(mutation, copy, timeout)
            finally:
                copies.put(copy)

        tests = " ".join(dict.fromkeys(word for mutation in chosen for word in mutation.tests.split()))
        unchanged = Mutation("unchanged", chosen[0].module, chosen[0].old, chosen[0].old, tests)
        if failed := run(unchanged, timeout=None)[1]:  # all tests in one process
            print(f"the tests fail without any mutation: {failed}", file=sys.stderr)
            return 2
        for number, (mutation, failed) in enumerate(pool.map(run, chosen), start=1):
            print(f"{number:3}/{len(chosen)}  {mutation.name}: {failed or 'SURVIVED'}", flush=True)
            if failed is None:
                survivors.append(mutation.name)
    caught = len(chosen) - len(survivors)
    print(f"{caught} of {len(chosen)} mutations caught, after {time.monotonic() - started:.0f} s")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
