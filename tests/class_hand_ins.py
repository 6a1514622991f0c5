"""A class of 30 students who hand in really run comparisons, of whom 8 cheat in different ways.

`python tests/class_hand_ins.py FOLDER` makes it: course.yaml, the teacher's comparison in runs/teacher, and handed/*.zip.
`FOLDER 1 2 3` makes these students alone; several processes may make a class together once it has its course.yaml.
The rows of docs/class.md are from

    partwise collect handed/*.zip --baseline runs/teacher --page class.html
    partwise collect handed/*.zip --baseline runs/teacher --run-parts --rerun 2
"""

import contextlib
import json
import os
import shutil
import sqlite3
import sys
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import partwise
from partwise.ablation.run_execution import execute
from partwise.ablation.run_workload import RunWorkload
from partwise.classroom.assignment import Assignment
from partwise.cli.commands.assign import write_assignment
from partwise.comparison.certificate.certificate import Certificate, CertifiedVerdict
from partwise.comparison.certificate.verification import judge_values
from partwise.comparison.ledger.chain import ChainEntry, Ledger
from partwise.comparison.results import LedgerEntry, Results
from partwise.comparison.trials.executor import Executor
from partwise.comparison.trials.trial import Trial
from partwise.config import import_parts
from partwise.json_files import write_hashed

COMMON = [
    "d_model=16",
    "n_layers=1",
    "attention.n_heads=2",
    "context_length=16",
    "train.batch_size=4",
    "train.lr=0.01",
    "train.steps=40",
    "train.eval_every=40",
    "train.threads=1",
    "train.precision=float32",
]
HONEST = ["ffn=swiglu", "ffn=geglu", "norm=rmsnorm", "norm=scalenorm", "ffn=gelu", "norm=none", "ffn=bilinear"]
LEDGER = Path("runs") / "ledger.sqlite"
FOLDER = Path("runs") / "hand-in"

PART = '''"""A part of a student's own: {about}."""

import torch
from torch import nn

from partwise.config import part


@part("{name}", family="ffn")
class Mine(nn.Module):
    def __init__(self, d_model):
        super().__init__()
        self.up, self.down = nn.Linear(d_model, 4 * d_model), nn.Linear(4 * d_model, d_model)

    def forward(self, x):
        return self.down(torch.nn.functional.mish(self.up(x))){extra}
'''


class InThisProcess(Executor):
    """Runs the trials one after another in this process, which spares the start of a process for each of 300 short ones."""

    def __init__(self) -> None:
        self.waiting: list[Trial] = []

    def submit(self, trials: Sequence[Trial]) -> None:
        self.waiting += trials

    def watch(self, seconds: float) -> Sequence[Trial]:
        ended = self.waiting[:1]
        del self.waiting[:1]
        for trial in ended:
            (trial.status,) = execute([trial.folder], lambda: False)
        return ended

    def cancel(self) -> None:
        self.waiting.clear()


class Student:
    """One student with a ledger of their own, in the one working folder of the class: its server of trials is kept."""

    def __init__(self, root: Path, assignment: Assignment, number: int) -> None:
        self.root, self.assignment, self.number = root, assignment, number
        self.folder = root / f"desk-{os.getpid()}"
        (self.folder / ".git").mkdir(parents=True, exist_ok=True)  # the ledger is that of the nearest folder with one
        shutil.rmtree(self.folder / "runs", ignore_errors=True)
        shutil.copy(root / "text.txt", self.folder)
        self.sources: list[str] = []

    def compare(self, *change: str, name: str = "hand-in", common: Sequence[str] = (), **options: Any) -> None:
        """Run the assigned comparison, or another one."""
        request = self.assignment.request(self.number, []) | options
        own = {word.partition("=")[0] for word in common}
        request["common"] = [word for word in request["common"] if word.partition("=")[0] not in own] + [*common]
        del request["change"]
        in_this_process = mock.patch.object(RunWorkload, "executor", lambda _: InThisProcess())
        with contextlib.chdir(self.folder), in_this_process:
            for source in self.sources:
                import_parts(source)
            partwise.compare(
                request.pop("preset"), *change, name=name, imports=tuple(self.sources), progress=False, **request
            )

    def write_part(self, about: str, extra: str = "") -> str:
        """Write a part into a file; returns the change that uses it."""
        name = f"mine_{self.number}"
        text = PART.format(about=about, name=name, extra=extra)
        (self.folder / f"{name}.py").write_text(text, encoding="utf-8", newline="\n")
        self.sources = [str(self.folder / f"{name}.py")]
        return f"ffn={name}"

    def hand_in(self, *without: str) -> None:
        """Pack what the sheet names."""
        names = ["certificate.json", "results.json"]
        paths = [self.folder / FOLDER / name for name in names] + [self.folder / LEDGER, *map(Path, self.sources)]
        with zipfile.ZipFile(self.root / "handed" / f"{self.number:02}.zip", "w", zipfile.ZIP_DEFLATED) as archive:
            for path in paths:
                if path.name not in without:
                    archive.write(path, path.name)


def honest(student: Student) -> None:
    student.compare(HONEST[student.number % len(HONEST)])
    student.hand_in()


def own_part(student: Student) -> None:
    """Honest: a part of the student's own."""
    student.compare(student.write_part("down(mish(up(x)))"))
    student.hand_in()


def asked_twice(student: Student) -> None:
    """Honest: another change was tried first, and the ledger says so."""
    student.compare("norm=rmsnorm", name="first")
    honest(student)


def certificate_alone(student: Student) -> None:
    """Honest, but with nothing beside the certificate."""
    student.compare("ffn=swiglu")
    shutil.copy(student.folder / FOLDER / "certificate.json", student.root / "handed" / f"{student.number:02}.json")


def another_baseline(student: Student) -> None:
    """A baseline that trains worse, so that the change looks good."""
    student.compare("ffn=swiglu", common=["train.lr=0.0005"])
    student.hand_in()


def two_changes(student: Student) -> None:
    student.compare("ffn=swiglu", "norm=none")
    student.hand_in()


def edited_values(student: Student) -> None:
    """Values are lowered, and verdicts and hashes of certificate and results made to agree."""
    student.compare("ffn=geglu")
    forge(student.folder, lower=0.3)
    student.hand_in()


def picked_seeds(student: Student) -> None:
    """Of three sets of seeds, the one with the lowest difference."""
    means = {}
    for shift in range(3):
        first = student.assignment.seeds_of(student.number).start + 10_000 * (shift + 1)
        student.compare("norm=rmsnorm", name=f"try-{shift}", first_seed=first)
        results = Results.from_json(student.folder / "runs" / f"try-{shift}" / "results.json")
        means[shift] = results.effects[0].mean or 0.0
    best = min(means, key=lambda shift: means[shift])
    shutil.copytree(student.folder / "runs" / f"try-{best}", student.folder / FOLDER)
    student.hand_in()


def sees_the_future(student: Student) -> None:
    """The part adds the next position; its check failed, and results.json was edited to say that it passed."""
    leaky = " + torch.cat([x[:, 1:], x[:, :1]], dim=1)"
    student.compare(student.write_part("down(mish(up(x)))", leaky), allow_leak=True)
    path = student.folder / FOLDER / "results.json"
    values = json.loads(path.read_text(encoding="utf-8"))
    del values["sha256"]
    for arm in values["arms"]:
        for finding in arm.get("findings", ()):
            finding["outcome"] = "passed"
    write_hashed(path, values)
    student.hand_in()


def copied(student: Student) -> None:
    """The hand-in of the student before, under another name."""
    other = student.root / "handed" / f"{student.number - 1:02}.zip"
    shutil.copy(other, student.root / "handed" / f"{student.number:02}.zip")


def deleted_ledger(student: Student) -> None:
    """Three changes were tried; then the ledger was deleted, and the last comparison continued."""
    for name, change in {"a": "ffn=geglu", "b": "norm=none", "hand-in": "ffn=gelu"}.items():
        student.compare(change, name=name)
    (student.folder / LEDGER).unlink()
    student.compare("ffn=gelu")
    student.hand_in()


def forged_throughout(student: Student) -> None:
    """As `edited_values`, and the ledger was made again to agree: only a rerun differs."""
    student.compare("ffn=gelu")
    forge(student.folder, lower=0.3, ledger=True)
    student.hand_in()


CHEATS: dict[int, Callable[[Student], None]] = {
    4: another_baseline,
    8: two_changes,
    12: edited_values,
    15: picked_seeds,
    19: sees_the_future,
    22: copied,
    26: deleted_ledger,
    29: forged_throughout,
}
OTHERS: dict[int, Callable[[Student], None]] = {5: asked_twice, 10: own_part, 17: certificate_alone}
FOUND_BY_RUNNING = (19, 29)
"""The cheats that reading cannot find."""


def forge(folder: Path, lower: float, ledger: bool = False) -> None:
    """Lower the values of the change, and make everything that follows from them agree; the ledger only if asked."""
    path = folder / FOLDER
    certificate = Certificate.read(path)
    (arm,) = certificate.arms.keys() - {certificate.baseline}
    moved = {seed: None if value is None else value - lower for seed, value in certificate.values[arm].items()}
    certificate = certificate.model_copy(update={"values": {**certificate.values, arm: moved}})
    effects = judge_values(certificate)
    verdicts = tuple(
        CertifiedVerdict.from_effect(old.claim, new) for old, new in zip(certificate.verdicts, effects, strict=True)
    )
    changed: dict[str, Any] = {"verdicts": verdicts, "judged_values": certificate.computed_values_hash}
    if ledger:
        changed["ledger"] = rebuild_ledger(folder / LEDGER, changed["judged_values"], verdicts)
    certificate.model_copy(update=changed).write(path)
    results = Results.from_json(path / "results.json")
    arms = [
        each
        if each.name != arm
        else each.model_copy(
            update={"trials": tuple(t.model_copy(update={"value": moved[t.seed]}) for t in each.trials)}
        )
        for each in results.arms
    ]
    claims = [old.model_copy(update={"effect": new}) for old, new in zip(results.claims, effects, strict=True)]
    results.model_copy(update={"arms": tuple(arms), "claims": tuple(claims)}).to_json(path / "results.json")


def rebuild_ledger(path: Path, values: str, verdicts: Sequence[CertifiedVerdict]) -> LedgerEntry:
    """The same records with other values, chained again; returns the record of the result."""
    made: list[ChainEntry] = []
    for record in Ledger(path).read():
        content = dict(record.content)
        if content["kind"] == "result":
            content |= {"values": values}
            numbers = {name: getattr(verdicts[0], name) for name in ("verdict", "mean", "low", "high")}
            content["verdicts"] = [{**row, **numbers} for row in content["verdicts"]]
        made.append(ChainEntry.following(made[-1] if made else None, content))
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("DELETE FROM records")
        rows = [(each.number, each.previous, each.text, each.hash) for each in made]
        connection.executemany("INSERT INTO records VALUES (?, ?, ?, ?)", rows)
    last = next(each for each in reversed(made) if each.content["kind"] == "result")
    return LedgerEntry(number=last.number, hash=last.hash)


def make_class(root: Path, numbers: Sequence[int] = range(1, 31), seeds: int = 5) -> Assignment:
    """Write the assignment, run the teacher's comparison, and let these students hand in."""
    (root / "handed").mkdir(parents=True, exist_ok=True)
    if (root / "course.yaml").exists():  # another process makes other students of the same class
        hand_in_all(root, Assignment.read(root / "course.yaml"), numbers)
        return Assignment.read(root / "course.yaml")
    lines = [f"the quick brown fox {number} jumps over the lazy dog\n" for number in range(400)]
    (root / "text.txt").write_text("".join(lines), encoding="utf-8", newline="\n")
    request = {"preset": "mingpt", "data": "text.txt", "common": COMMON, "seeds": seeds, "margin": 0.05}
    request |= {"alpha": 0.05, "metric": "loss", "failure": None}
    with contextlib.chdir(root):
        write_assignment(Path("course.yaml"), request, "norm,ffn", 30, 1000)
        assignment = Assignment.read(Path("course.yaml"))
    teacher = Student(root, assignment, 0)
    teacher.compare("norm=rmsnorm", name="teacher")
    shutil.copytree(teacher.folder / "runs" / "teacher", root / "runs" / "teacher")
    hand_in_all(root, assignment, numbers)
    return assignment


def hand_in_all(root: Path, assignment: Assignment, numbers: Sequence[int]) -> None:
    for number in numbers:
        (CHEATS | OTHERS).get(number, honest)(Student(root, assignment, number))
        print(f"student {number} has handed in", flush=True)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    make_class(Path(sys.argv[1]).resolve(), [int(word) for word in sys.argv[2:]] or range(1, 31))
