"""Collecting a class from certificates that were made up: what is read, what is refused, and what the table says."""

import io
import json
import stat
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from partwise.checks.model_checks import LEAK as MEASURED_LEAK
from partwise.classroom import files
from partwise.classroom.assignment import Assignment, fixed_part
from partwise.classroom.baseline import Baseline
from partwise.classroom.collection import Collection, collect, tail
from partwise.classroom.hand_in_checks import LEAK
from partwise.classroom.page import write_page
from partwise.cli import main
from partwise.comparison.certificate.certificate import Certificate, CertifiedVerdict, Code
from partwise.comparison.results import LedgerEntry, Protocol
from partwise.comparison.stats.protocol import Claim, Rules
from partwise.config import ConfigError, digest

RULES = Rules(looks=(), margin=0.02, failure=100.0)
BASE = {"d_model": 8, "norm": {"part": "layernorm"}, "ffn": {"part": "relu"}, "train": {"lr": 0.01}}
CHANGES = {"ffn=swiglu": {"ffn": {"part": "swiglu"}}, "norm=none": {"norm": {"part": "none"}}}
ASSIGNED: dict[str, Any] = {
    "preset": "mingpt",
    "data": "text.txt",
    "common": (),
    "families": ("norm", "ffn"),
    "students": 30,
    "seeds": 5,
    "first_seed": 1000,
    "margin": 0.02,
    "alpha": 0.05,
    "failure": 100.0,
    "metric": "loss",
    "version": "0.1.0",
    "sources": "1" * 64,
    "data_hash": "0" * 64,
}


def plan_of(first: int, change: str = "ffn=swiglu", **others: Any) -> dict[str, Any]:
    arms = [
        {"name": "mingpt", "config": BASE},
        {"name": change, "config": {**BASE, **CHANGES.get(change, {})}},
    ]
    rules = {key: getattr(RULES, key) for key in ("margin", "alpha", "metric", "failure", "method")}
    return {"arms": arms, **rules, "first_seed": first, "claims": [[change, "mingpt", "claim"]], **others}


ASSIGNMENT = Assignment(**ASSIGNED, plan=fixed_part(plan_of(1000)))


def make(number: int, change: str = "ffn=swiglu", effect: float = 0.0, **changes: Any) -> Certificate:
    """The certificate of a student who ran what was assigned."""
    rng, seeds = np.random.default_rng(number), ASSIGNMENT.seeds_of(number)
    base = 3.0 + 0.01 * rng.standard_normal(5)
    runs = {"mingpt": base, change: base + effect + 0.002 * rng.standard_normal(5)}
    values = {arm: dict(zip(seeds, map(float, each), strict=True)) for arm, each in runs.items()}
    plan = changes.pop("plan", None) or plan_of(seeds.start, change)
    claims = [Claim(change, "mingpt")]
    certificate = Certificate(
        name=f"student {number}",
        created="2026-11-23T00:00:00Z",
        question=f"Does {change} change the loss?",
        plan=plan,
        plan_hash=digest(plan),
        protocol=Protocol.from_rules(RULES),
        baseline="mingpt",
        arms={arm["name"]: arm["config"] for arm in plan["arms"]},
        values=values,
        judged=5,
        verdicts=tuple(map(CertifiedVerdict.from_effect, claims, RULES.judge(values, claims))),
        data="0" * 64,
        code=Code(version="0.1.0", sources="1" * 64),
        machine={"cpu": "one", "system": "Linux", "torch": "2"},
        runtime={"device": "cpu", "precision": "float32"},
    )
    certificate = certificate.model_copy(update=changes)
    certificate = certificate.model_copy(update={"judged_values": certificate.computed_values_hash})
    return certificate.model_copy(update={"hash": certificate.computed_hash})


def text_of(certificate: Certificate) -> bytes:
    return json.dumps(certificate.to_dict()).encode()


def zipped(**content: bytes) -> bytes:
    """A zip file with a certificate and these files beside it."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, each in {"certificate.json": text_of(make(1)), **content}.items():
            archive.writestr(name, each)
    return made.getvalue()


def write(folder: Path, **content: bytes) -> list[Path]:
    folder.mkdir(exist_ok=True)
    for name, each in content.items():
        (folder / name).write_bytes(each)
    return [folder / name for name in content]


def class_of(tmp_path: Path, *certificates: Certificate) -> Collection:
    paths = write(tmp_path / "handed", **{f"{n:02}.json": text_of(each) for n, each in enumerate(certificates)})
    return collect(paths, ASSIGNMENT, None)


def objections(found: Collection, name: str) -> dict[str, str]:
    entry = next(each for each in found.entries if each.name == name)
    return {check.what: check.text for check in entry.objections if check.what != "ledger"}


def test_an_assignment_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "course.yaml"
    path.write_text(ASSIGNMENT.to_yaml(path.name), encoding="utf-8", newline="\n")
    read = Assignment.read(path)
    assert read.to_dict() == {**ASSIGNMENT.to_dict(), "hash": ASSIGNMENT.computed_hash}
    path.write_text(path.read_text().replace("margin: 0.02", "margin: 0.2"), encoding="utf-8", newline="\n")
    with pytest.raises(ConfigError, match="changed after"):
        Assignment.read(path)
    with pytest.raises(ConfigError, match="no such file; write it with"):
        Assignment.read(tmp_path / "none.yaml")


def test_students_have_seeds_of_their_own() -> None:
    every = [seed for number in range(31) for seed in ASSIGNMENT.seeds_of(number)]
    assert len({*every}) == len(every) == 31 * 5
    assert ASSIGNMENT.student_of(1035) == 7 and ASSIGNMENT.student_of(1036) is None
    assert ASSIGNMENT.student_of(1155) is None and ASSIGNMENT.student_of(995) is None
    assert ASSIGNMENT.request(7, ["ffn=swiglu"])["first_seed"] == 1035
    with pytest.raises(ConfigError, match="--student 31: the numbers of this class are 1 to 30"):
        ASSIGNMENT.request(31, [])


def other_baseline() -> Certificate:
    plan = plan_of(1005)
    for arm in plan["arms"]:
        arm["config"] = {**arm["config"], "train": {"lr": 0.5}}
    return make(1, plan=plan)


@pytest.mark.parametrize(
    ("made", "what", "text"),
    [
        (lambda: other_baseline(), "baseline", "train.lr was assigned as 0.01, and is 0.5"),
        (
            lambda: make(1, plan=plan_of(1005, alpha=0.05, margin=0.5)),
            "plan",
            "margin was assigned as 0.02, and is 0.5",
        ),
        (lambda: make(1, data="9" * 64), "data", "other data: hash 999"),
        (lambda: make(1, code=Code(version="0.1.0", sources="7" * 64)), "initialization", "with other source files"),
        (lambda: make(1, plan=plan_of(1007)), "seeds", "its seeds from 1007 are those of no number"),
        (lambda: make(1, plan=plan_of(1010)), "seeds", "has the seeds [1005"),
        (lambda: make(1, arms={"mingpt": {}, "ffn=swiglu": {}}), "plan", "its arms are others than those of its plan"),
        (lambda: make(1, changes=1), "certificate", "trials were repeated with other values"),
        (lambda: make(1).model_copy(update={"plan": {**plan_of(1005), "arms": []}}), "plan", "its plan has no arms"),
        (lambda: make(1).model_copy(update={"plan": {**plan_of(1005), "arms": [7]}}), "plan", "its plan has no arms"),
    ],
)
def test_what_was_not_assigned_is_an_objection(tmp_path: Path, made: Any, what: str, text: str) -> None:
    found = class_of(tmp_path, made())
    assert text in objections(found, "00")[what]
    assert not found.judged


@pytest.mark.parametrize(
    ("configuration", "text"),
    [
        ({"ffn": {"part": "swiglu"}, "norm": {"part": "none"}}, "2 changes: norm, ffn"),
        ({"train": {"lr": 0.5}}, "it changes train, and norm or ffn was assigned"),
        ({"ffn": {"part": "swiglu"}, "train": {"lr": 0.5}}, "2 changes"),
        ({}, "0 changes: none"),
    ],
)
def test_exactly_one_change(tmp_path: Path, configuration: dict[str, Any], text: str) -> None:
    plan = plan_of(1005)
    plan["arms"][1]["config"] = {**BASE, **configuration}
    assert text in objections(class_of(tmp_path, make(1, plan=plan)), "00")["one change"]


def test_an_honest_class_has_verdicts_alone_and_together(tmp_path: Path) -> None:
    """One change works; the others do nothing. No ledger was handed in, which the certificate would have to name."""
    made = [make(n, effect=-0.05 if n == 3 else 0.0, ledger=entry_of(n)) for n in range(1, 13)]
    found = class_of(tmp_path, *made)
    assert [each.number for each in found.entries] == list(range(1, 13))
    assert not any(each.objections for each in found.entries)
    assert {check.what for each in found.entries for check in each.missing} == {"results", "ledger"}
    best = found.entries[2]
    assert best.effect and best.together and best.effect.p_adjusted and best.together.p_adjusted
    assert best.effect.verdict == "better"
    smallest = min(each.effect.p_adjusted for each in found.entries if each.effect and each.effect.p_adjusted)
    assert min(e.together.p_adjusted or 1 for e in found.entries if e.together) == pytest.approx(12 * smallest)
    mean, unusual, probability = found.expected_false()
    assert mean == pytest.approx(0.6) and unusual == 3 and probability == pytest.approx(0.0196, abs=1e-4)


def entry_of(number: int) -> LedgerEntry:
    """A record that a certificate may name."""
    return LedgerEntry(number=2, hash=f"{number:064}")


def test_the_tail_is_that_of_a_binomial_number() -> None:
    assert tail(30, 0, 0.05) == 1 and tail(3, 4, 0.05) == 0
    assert tail(30, 1, 0.05) == pytest.approx(1 - 0.95**30)


def test_a_copy_is_told_whatever_was_changed_about_it(tmp_path: Path) -> None:
    mine = make(1)
    renamed = mine.model_copy(update={"name": "mine"})
    moved = make(2, values={arm: {seed + 5: runs[seed] for seed in runs} for arm, runs in mine.values.items()})
    found = class_of(tmp_path, mine, renamed.model_copy(update={"hash": renamed.computed_hash}), make(3), moved)
    assert objections(found, "00")["copy"] == "it shares its number with 01"
    assert objections(found, "03")["copy"] == "it shares all values of an arm with 00, 01"
    assert "copy" not in objections(found, "02")


def test_the_values_of_the_baseline_are_compared_with_those_of_the_class(tmp_path: Path) -> None:
    """Another machine or precision is told; it is no objection."""
    lower = make(5).values
    forged = make(5, values={arm: {seed: value - 1 for seed, value in runs.items()} for arm, runs in lower.items()})
    shifted = {arm: {seed + 5: value for seed, value in runs.items()} for arm, runs in forged.values.items()}
    elsewhere = make(6, machine={"cpu": "two"}, values=shifted)
    found = class_of(tmp_path, *[make(n, ledger=entry_of(n)) for n in range(1, 5)], forged, elsewhere)
    assert "the baseline's mean is 1.99" in objections(found, "04")["values"]
    assert all("values" not in objections(found, name) for name in ("00", "01", "05"))


def test_the_values_of_the_baseline_are_compared_with_the_teachers(tmp_path: Path) -> None:
    (path,) = write(tmp_path, **{"certificate.json": text_of(make(0))})
    baseline = Baseline.read([path], ASSIGNMENT)
    low, high = baseline.interval(5, students=30)
    x = list(make(0).values["mingpt"].values())
    half = 11.438401 * np.std(x, ddof=1) * np.sqrt(2 / 5)  # t(4) at 0.01 / 30, two-sided
    assert (low, high) == pytest.approx((np.mean(x) - half, np.mean(x) + half))
    bf16 = make(2, runtime={"device": "cpu", "precision": "bf16"})
    found = collect(write(tmp_path, **{"a.json": text_of(make(1)), "b.json": text_of(bf16)}), ASSIGNMENT, baseline)
    texts = {each.name: next(check for check in each.checks if check.what == "values") for each in found.entries}
    assert texts["a"].outcome == "holds" and texts["b"].outcome == "told"
    assert "precision bf16, not float32" in texts["b"].text
    with pytest.raises(ConfigError, match="another baseline"):
        Baseline.read(write(tmp_path, **{"c.json": text_of(other_baseline())}), ASSIGNMENT)


def bomb() -> bytes:
    return zipped(**{"results.json": b" " * (files.MAX_FILE + 1)})


def lying_bomb() -> bytes:
    """Its directory states a small size."""
    content = bomb()
    return content.replace((files.MAX_FILE + 1).to_bytes(4, "little"), (100).to_bytes(4, "little"))


def link() -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        info = zipfile.ZipInfo("certificate.json")
        info.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(info, "/etc/passwd")
    return made.getvalue()


def several() -> bytes:
    return zipped(**{"again/certificate.json": text_of(make(2))})


OTHER_VERSION = json.dumps({**make(1).to_dict(), "format": 2}).encode()
OTHER_METHOD = json.dumps(
    {**make(1).to_dict(), "protocol": {**Protocol.from_rules(RULES).to_dict(), "method": 99}}
).encode()
BAD: dict[str, tuple[bytes, str]] = {
    "bomb.zip": (bomb(), "unpacks 'results.json' to more than 16 MiB"),
    "lying.zip": (lying_bomb(), "its zip file"),
    "outside.zip": (
        zipped(**{"../certificate.json": b"{}"}),
        "has the path '../certificate.json', which leads out of it",
    ),
    "absolute.zip": (zipped(**{"/etc/x.py": b""}), "has the path '/etc/x.py', which leads out of it"),
    "windows.zip": (zipped(**{"C:x.py": b""}), "has the path 'C:x.py', which leads out of it"),
    "link.zip": (link(), "has 'certificate.json', which is a link"),
    "two.zip": (several(), "it has again/certificate.json and certificate.json: hand in one"),
    "empty.zip": (zipped()[-22:], "its zip file is damaged"),
    "cut.zip": (zipped()[:200], "the certificate is damaged"),
    "text.json": (b"my results were good", "the certificate is damaged"),
    "list.json": (b"[1, 2]", "it is not a certificate"),
    "other.json": (b'{"a": 1}', "is not a certificate: give the certificate.json of a comparison"),
    "version.json": (OTHER_VERSION, "the certificate has the format 2, and this version reads 1"),
    "method.json": (OTHER_METHOD, "method 99 of judging"),
    "deep.json": (b"[" * 100_000, "the certificate is damaged"),
    "large.json": (b" " * (1 << 20) + text_of(make(1)), "has more than 1 MiB"),
}


def test_what_cannot_be_read_costs_one_line_and_no_other_hand_in(tmp_path: Path) -> None:
    paths = write(tmp_path / "handed", **{name: content for name, (content, _) in BAD.items()})
    (tmp_path / "handed" / "nothing").mkdir()
    paths += [tmp_path / "handed" / "nothing", tmp_path / "handed" / "gone.zip"]
    paths += write(tmp_path / "handed", **{"good.json": text_of(make(1)), "good.zip": zipped(**{"a/b.py": b"x"})})
    found = collect(paths, ASSIGNMENT, None)
    for name, (_, text) in BAD.items():
        refused = found.refused.get(name.partition(".")[0], "")
        assert text.removeprefix("it ") in refused or text in refused, (name, refused)
    assert found.refused["nothing"] == "it has no certificate.json: hand in that of a comparison"
    assert "cannot be read" in found.refused["gone"]
    assert len(found.refused) == len(BAD) + 2 and all("\n" not in each for each in found.refused.values())
    assert [each.name for each in found.entries] == [str(path) for path in paths[-2:]]
    assert found.notes == ["2 hand-ins have the name good: the table has their paths"]


def test_folders_are_read_without_links_and_zips_within_them_too(tmp_path: Path) -> None:
    """As course servers make them: a folder for each student, with one zip file in it."""
    (tmp_path / "secret.py").write_text("token = 1", encoding="utf-8", newline="\n")
    write(tmp_path / "ann", **{"certificate.json": text_of(make(1)), "mine.py": b"x = 1"})
    (tmp_path / "ann" / "linked.py").symlink_to(tmp_path / "secret.py")
    (tmp_path / "ann" / "up").symlink_to(tmp_path)
    write(tmp_path / "bob", **{"K.zip": zipped(**{"deep/mine.py": b"x = 2"})})
    (tmp_path / "eve").symlink_to(tmp_path / "ann")
    write(tmp_path / "dan", **{"mine.py": b"x = 1"})
    (tmp_path / "dan" / "certificate.json").symlink_to(tmp_path / "ann" / "certificate.json")
    found = collect([tmp_path / name for name in ("ann", "bob", "dan", "eve")], ASSIGNMENT, None)
    sources = {each.name: each.hand_in.sources for each in found.entries}
    assert sources == {"ann": {"mine.py": b"x = 1"}, "bob": {"mine.py": b"x = 2"}}
    assert "it is a link, which is not followed" in found.refused["eve"]
    assert "it has 'certificate.json', which is a link: hand in the file itself" in found.refused["dan"]


def test_a_folder_with_too_many_files_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_ENTRIES", 3)
    write(tmp_path / "a", **{f"{n}.txt": b"" for n in range(4)})
    (path,) = write(tmp_path, **{"b.zip": zipped(**{str(n): b"" for n in range(4)})})
    found = collect([tmp_path / "a", path], ASSIGNMENT, None)
    assert "more than 3 files" in found.refused["a"] and "has 5 entries, more than 3" in found.refused["b"]


def test_the_page_escapes_everything(tmp_path: Path) -> None:
    """Names, changes and sources of others are text, without control characters."""
    evil = "<script>alert(1)</script>\x1b[31m"
    certificate = make(1, question=evil)
    plan = plan_of(1005)
    plan["arms"][1]["name"] = evil
    other = make(2, plan=plan)
    paths = write(
        tmp_path,
        **{"a<b>.zip": zipped(**{"certificate.json": text_of(certificate), "p.py": evil.encode() + b"\n# <b>"})},
    )
    paths += write(tmp_path, **{"c.json": text_of(other)})
    write_page(collect(paths, ASSIGNMENT, None), tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "<script>alert" not in page and "\x1b" not in page and "a<b>" not in page
    assert page.count("&lt;script&gt;alert(1)&lt;/script&gt;") >= 2 and "# &lt;b&gt;" in page
    with pytest.raises(ConfigError, match=r"ends in .html"):
        write_page(collect(paths, ASSIGNMENT, None), tmp_path / "page.txt")


def command(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["partwise", "collect", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def test_the_command_and_its_exit_statuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """0 without an objection, 1 with one or with a file that cannot be read, 2 if none can be read or there is no course."""
    monkeypatch.chdir(tmp_path)
    Path("course.yaml").write_text(ASSIGNMENT.to_yaml("course.yaml"), encoding="utf-8", newline="\n")
    fine = make(1, ledger=entry_of(1))
    write(tmp_path / "handed", **{"1.json": text_of(fine)})
    assert command(monkeypatch, "handed/*") == 0
    out = capsys.readouterr().out
    assert "ffn=swiglu" in out and "It cannot show that values come from training" in out
    write(tmp_path / "handed", **{"2.json": b"{}"})
    assert command(monkeypatch, "handed/*", "--json", "--page", "class.html") == 1
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert [each["name"] for each in document["hand_ins"]] == ["1"] and document["refused"].keys() == {"2"}
    assert "error: 2: the certificate is not a certificate" in captured.err and Path("class.html").exists()
    assert command(monkeypatch, "handed/2.json") == 2
    assert command(monkeypatch, "nothing/*") == 2
    assert command(monkeypatch, "handed/*", "--course", "no.yaml") == 2


def test_collecting_imports_neither_torch_nor_what_was_handed_in(tmp_path: Path) -> None:
    (tmp_path / "course.yaml").write_text(ASSIGNMENT.to_yaml("course.yaml"), encoding="utf-8", newline="\n")
    code = Code(version="0.1.0", sources="1" * 64, imports={"mine.py": "2" * 64})
    certificate = text_of(make(1, code=code, imports=("mine.py",)))
    write(tmp_path, **{"1.zip": zipped(**{"certificate.json": certificate, "mine.py": b"raise SystemExit(77)"})})
    script = "import runpy, sys; sys.argv = ['partwise', 'collect', '1.zip', '--page', 'c.html']\n"
    script += "try: runpy.run_module('partwise', run_name='__main__')\n"
    script += "finally: print('torch' in sys.modules, 'mine' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and done.stdout.splitlines()[-1] == "False False"
    assert "1: part: mine.py is not the file that ran: its hash is another" in done.stdout
    assert "raise SystemExit(77)" in (tmp_path / "c.html").read_text(encoding="utf-8")


def test_the_name_of_the_check_is_that_of_the_model_checks() -> None:
    assert LEAK == MEASURED_LEAK


def test_several_certificates_are_verified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    good, edited = make(1), make(2).model_copy(update={"name": "edited"})
    a, b, c = write(tmp_path, **{"a.json": text_of(good), "b.json": text_of(edited), "c.json": b"{}"})

    def verify(*words: str) -> int:
        monkeypatch.setattr(sys, "argv", ["partwise", "verify", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        return int(ended.value.code or 0)

    assert verify(str(a), str(a)) == 0
    capsys.readouterr()
    assert verify(str(c), str(b), str(a)) == 2
    captured = capsys.readouterr()
    assert "is not a certificate" in captured.err and captured.out.count("✓ the plan matches its hash") == 2
    assert verify(str(c)) == 2
    capsys.readouterr()
    assert verify(str(a), str(b), "--json") == 1
    document = json.loads(capsys.readouterr().out)
    assert [(each["name"], each["holds"]) for each in document["certificates"]] == [
        ("student 1", True),
        ("edited", False),
    ]
    faults = [check["statement"] for check in document["certificates"][1]["checks"] if check["fault"]]
    assert faults == ["the file is unchanged"] and not document["refused"]
