"""The numbers of a comparison are those with which its runs ended: a changed, deleted or copied file is refused by name."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import partwise
from comparisons import ARITHMETIC
from partwise.config import ConfigError
from partwise.train.result import HASHES, verified_result, write_result

BASE, OTHER = "runs/c/runs/0-mingpt/seed-1", "runs/c/runs/1-ffn=swiglu/seed-1"


def compare() -> dict[str, object]:
    made = partwise.compare(
        "mingpt", "ffn=swiglu", data="arithmetic", common=ARITHMETIC, seeds=2, name="c", failure=100.0, margin=0.05
    )
    return made.results.to_dict()


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, object]]:
    folder = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        results = compare()
    return folder, results


def change(path: Path, pattern: str, new: str) -> None:
    text = path.read_text()
    changed = re.sub(pattern, new, text, count=1)
    assert changed != text, "the damage changes nothing"
    path.write_text(changed)


def remove_keys(path: Path, *keys: str) -> None:
    values = json.loads(path.read_text())
    path.write_text(json.dumps({key: value for key, value in values.items() if key not in keys}))


def copy_metrics_without(*keys: str) -> None:
    """Another arm's metrics, and a result that lacks some of its hashes."""
    shutil.copy(Path(OTHER, "metrics.jsonl"), Path(BASE, "metrics.jsonl"))
    remove_keys(Path(BASE, "result.json"), *keys)


def copy_over(source: Path, target: Path) -> None:
    shutil.rmtree(target)
    shutil.copytree(source, target)


DAMAGE: dict[str, tuple[Callable[[], object], str]] = {
    "a digit of the metrics": (
        lambda: change(Path(BASE, "metrics.jsonl"), r'("validation": \d\.)\d', r"\g<1>0"),
        "metrics.jsonl was changed after the run had ended",
    ),
    "no metrics": (Path(BASE, "metrics.jsonl").unlink, "metrics.jsonl was changed after the run had ended"),
    "another arm's run": (lambda: copy_over(Path(OTHER), Path(BASE)), "belongs to a run with another configuration"),
    "another seed's run": (
        lambda: copy_over(Path(BASE).with_name("seed-0"), Path(BASE)),
        "belongs to a run with another configuration",
    ),
    "another arm's result": (
        lambda: shutil.copy(Path(OTHER, "result.json"), Path(BASE, "result.json")),
        "belongs to a run with another configuration",
    ),
    "a digit of the result": (
        lambda: change(Path(BASE, "result.json"), r'("correct": )\d+', r"\g<1>19"),
        "result.json was changed after the run had ended",
    ),
    "one hash removed": (lambda: copy_metrics_without("sha256"), "result.json lacks 'sha256'"),
    "all hashes removed": (lambda: copy_metrics_without(*HASHES), "result.json lacks 'config_sha256'"),
    "a result cut off": (
        lambda: Path(BASE, "result.json").write_text(Path(BASE, "result.json").read_text()[:99]),
        "result.json is damaged",
    ),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_what_does_not_verify_is_refused_and_trained_again_once_deleted(
    kind: str, finished: tuple[Path, dict[str, object]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(finished[0] / "runs", "runs")
    before = Path("runs/c/results.json").read_bytes()
    damage, message = DAMAGE[kind]
    damage()
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        compare()
    assert "\n" not in str(caught.value) and f"delete {BASE} to train it again" in str(caught.value)
    assert Path("runs/c/results.json").read_bytes() == before
    if kind in ("a digit of the metrics", "another arm's run"):  # the others differ by their message only
        shutil.rmtree(BASE)
        repeated = compare()
        for key in ("claims", "verdicts", "seeds"):
            assert repeated.get(key) == finished[1].get(key)


@pytest.mark.parametrize("key", HASHES)
def test_a_result_that_lacks_a_hash_is_refused(key: str, tmp_path: Path) -> None:
    write_result(tmp_path, {"step": 3}, {"train": {}})
    remove_keys(tmp_path / "result.json", key)
    with pytest.raises(ConfigError, match=rf"result\.json lacks '{key}', .*delete .* to train it again"):
        verified_result(tmp_path, {"train": {}})


def test_a_result_with_other_metrics_is_refused(tmp_path: Path) -> None:
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text('{"kind": "evaluation", "step": 3, "validation": 1.5}\n')
    write_result(tmp_path, {"step": 3}, {"train": {}})
    assert verified_result(tmp_path, {"train": {}}) is not None
    change(metrics, "1.5", "1.4")
    with pytest.raises(ConfigError, match=r"metrics\.jsonl was changed after the run had ended"):
        verified_result(tmp_path, {"train": {}})


def test_a_change_of_the_log_keeps_a_result(tmp_path: Path) -> None:
    write_result(tmp_path, {"step": 3}, {"train": {"steps": 3, "log": "none"}})
    found = verified_result(tmp_path, {"train": {"steps": 3, "log": "tensorboard"}})
    assert found is not None and found["step"] == 3
    write_result(tmp_path, found, {"train": {"steps": 3, "log": "none"}})
    assert verified_result(tmp_path, {"train": {"steps": 3, "log": "none"}}) == found
    with pytest.raises(ConfigError, match="another configuration"):
        verified_result(tmp_path, {"train": {"steps": 4, "log": "none"}})
    assert verified_result(tmp_path / "absent", {"train": {}}) is None
