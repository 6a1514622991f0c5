"""A run that is stopped, killed or damaged at any point resumes and ends bitwise equal to an uninterrupted run."""

import hashlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import partwise
from partwise.checkpoint import latest_checkpoint, list_checkpoints, step_of, verify
from partwise.config import ConfigError
from partwise.data import Batch
from partwise.run_names import LOCK, OWNER, FolderLock
from partwise.train.config import RunConfig, run_config
from partwise.train.loop import Diverged, Run, Step
from partwise.train.metrics import read_metrics
from partwise.train.run_folder import Interrupted, RunFolder
from partwise.train.run_metadata import read_metadata, stored_runtime

Tiny = Callable[..., RunConfig]
DROPOUT = [f"{site}dropout=0.1" for site in ("embed_", "attention.", "ffn.hidden_", "ffn.output_", "residual.")]
SETTINGS = {
    "plain": [],
    "dropout": DROPOUT,
    "bfloat16": [*DROPOUT, "train.precision=bfloat16"],
    "accumulate": [*DROPOUT, "train.grad_accumulation=2", "train.grad_clip=0.5"],
    "cosine": [*DROPOUT, "schedule=cosine", "schedule.warmup=2", "optimizer.decay_vectors=false"],
    "frozen": [*DROPOUT, "train.freeze=embed,blocks.0,attention", "train.grad_clip=0.5"],
    "wsd": ["schedule=wsd", "schedule.warmup=2", "schedule.decay_fraction=0.5", "ffn=swiglu"],
    "averaged": [*DROPOUT, "averaging=ema", "averaging.decay=0.6", "train.freeze=blocks.0"],
    "averaged last steps": ["averaging=swa", "averaging.fraction=0.5", "optimizer=muon"],
    "tie_embeddings": [
        "positions=rope",
        "tie_embeddings=true",
        "norm=rmsnorm",
        "attention.n_kv_heads=1",
        "train.attention_backend=eager",
    ],
}
each_setting = pytest.mark.parametrize("words", SETTINGS.values(), ids=SETTINGS)


@pytest.fixture(autouse=True)
def no_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip fsync: after a kill, unlike a power loss, written data survive without it."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def fingerprint(run: Run) -> str:
    """A hash of every weight and every tensor of the optimizer."""
    tensors = {**run.model.state_dict(), **{f"optimizer {k}": v for k, v in run.optimizer_tensors().items()}}
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(f"{name} {tensors[name].dtype} {tuple(tensors[name].shape)}".encode())
        digest.update(tensors[name].detach().contiguous().numpy().tobytes())
    return digest.hexdigest()


def train(
    path: Path, config: RunConfig, *stops: int, finish: bool = True, **options: Any
) -> dict[int, tuple[Any, ...]]:
    """Train to the end, stopping and resuming after each of `stops`.

    Returns the results of each step, and asserts that it ran only once.
    """
    seen: dict[int, tuple[Any, ...]] = {}
    for stop in (*stops, None) if finish else stops:
        folder = RunFolder(path, config, **options)
        options.pop("fresh", None)
        try:
            for event in folder.events():
                if isinstance(event, Step):
                    assert event.step not in seen, "a step ran twice"
                    seen[event.step] = (event.loss, event.grad_norm, event.lr, event.tokens, fingerprint(folder.run))
                    folder.stop_requested = event.step == stop
        except Interrupted as error:
            assert f"after step {stop} of {config.train.steps}" in str(error)
        else:
            assert stop is None
    return seen


def metrics_of(path: Path) -> list[dict[str, Any]]:
    """A run's metrics without the times."""
    return [{key: value for key, value in line.items() if key != "seconds"} for line in read_metrics(path)]


def last_checkpoint(path: Path) -> str:
    """Hashes of the tensors in the last checkpoint."""
    last = list_checkpoints(path / "checkpoints")[-1]
    return "".join(
        hashlib.sha256((last / name).read_bytes()).hexdigest()
        for name in ("model.safetensors", "optimizer.safetensors")
    )


@pytest.mark.promise
@each_setting
def test_stopped_at_any_step_and_resumed_equals_uninterrupted(tiny: Tiny, tmp_path: Path, words: list[str]) -> None:
    config = tiny(*words)
    uninterrupted = train(tmp_path / "uninterrupted", config)
    assert list(uninterrupted) == [1, 2, 3, 4, 5, 6] and len({row[-1] for row in uninterrupted.values()}) == 6
    for stop in range(1, 6):
        path = tmp_path / str(stop)
        assert train(path, config, stop) == uninterrupted, f"stopped after step {stop}"
        assert metrics_of(path) == metrics_of(tmp_path / "uninterrupted")
        assert last_checkpoint(path) == last_checkpoint(tmp_path / "uninterrupted")


@each_setting
def test_three_chained_resumes_equal_uninterrupted(tiny: Tiny, tmp_path: Path, words: list[str]) -> None:
    config = tiny(*words, "train.save_every=2")
    assert train(tmp_path / "chained", config, 1, 3, 4) == train(tmp_path / "uninterrupted", config)
    assert metrics_of(tmp_path / "chained") == metrics_of(tmp_path / "uninterrupted")
    assert len((tmp_path / "chained" / "metrics.jsonl").read_text().splitlines()) == 8  # no line is repeated


def test_the_random_estimator_resumes_with_the_same_batches(tiny: Tiny, tmp_path: Path) -> None:
    config = tiny(
        "train.validation_estimator=random",
        "train.steps=2",
        "train.eval_every=2",
        "context_length=8",
        "train.batch_size=2",
    )
    assert train(tmp_path / "stopped", config, 1) == train(tmp_path / "uninterrupted", config)
    assert metrics_of(tmp_path / "stopped") == metrics_of(tmp_path / "uninterrupted")
    assert metrics_of(tmp_path / "uninterrupted")[-1]["validation_estimator"] == "random"


def test_a_finished_run_does_not_train_again(tiny: Tiny, tmp_path: Path) -> None:
    train(tmp_path, tiny())
    files = {
        path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and path.name not in (LOCK, OWNER)
    }
    assert train(tmp_path, tiny()) == {}
    assert all(path.read_bytes() == content for path, content in files.items())


def test_the_sequence_of_windows_over_three_epochs_survives_chained_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = tmp_path / "text.txt"
    text.write_text("".join(chr(97 + i * i % 23) for i in range(500)))
    words = "d_model=16 n_layers=1 attention.n_heads=2 context_length=16 train.batch_size=4 train.steps=24 train.save_every=5"
    config = run_config("mingpt", *words.split(), data=str(text))
    windows: list[bytes] = []
    original_batch = Run.batch

    def record(run: Run, step: int | None = None) -> Any:
        batch = original_batch(run, step)
        windows.append(np.hstack([batch.inputs, batch.targets[:, -1:]]).tobytes())  # with their last target
        return batch

    monkeypatch.setattr(Run, "batch", record)
    train(tmp_path / "uninterrupted", config)
    uninterrupted = windows.copy()
    windows.clear()
    train(tmp_path / "chained", config, 6, 7, 8, 14, 15, 21)  # 450 tokens are 7 steps: at, before and after epoch ends
    assert windows == uninterrupted
    assert len(set(windows)) == 24 and 24 * 64 > 3 * 450
    ids = Run(config).ids
    every = {ids[start : start + 17].astype(np.int64).tobytes() for start in range(len(ids) - 16)}
    assert {rows[at : at + 136] for rows in windows for at in range(0, len(rows), 136)} <= every


def test_metrics_changed_while_a_run_is_stopped_are_trained_again_or_told(tmp_path: Path, tiny: Tiny) -> None:
    config, whole = tiny("train.save_every=2"), tmp_path / "whole"
    train(whole, config)
    train(tmp_path / "base", config, 4, finish=False)
    lines = (tmp_path / "base" / "metrics.jsonl").read_text().splitlines(keepends=True)
    for index, line in enumerate(lines):
        path = tmp_path / str(index)
        shutil.copytree(tmp_path / "base", path)
        changed = json.dumps({**json.loads(line), "seconds": 1e9}) + "\n"
        (path / "metrics.jsonl").write_text("".join([*lines[:index], changed, *lines[index + 1 :]]))
        if json.loads(line)["step"] <= 2:  # before both checkpoints
            with pytest.raises(ConfigError, match=r"metrics\.jsonl was changed or damaged, and no older .*--fresh"):
                train(path, config)
            continue
        messages: list[str] = []
        train(path, config, log=messages.append)
        assert messages == [f"{path / 'metrics.jsonl'} was changed or damaged; resuming from step 2 instead"]
        assert metrics_of(path) == metrics_of(whole) and last_checkpoint(path) == last_checkpoint(whole)


def test_drafts_of_a_killed_process_are_removed_on_resume(tmp_path: Path, tiny: Tiny) -> None:
    train(tmp_path, tiny(), 1, finish=False)
    (tmp_path / ".run.json.4999123.tmp").write_text("{")
    (tmp_path / ".tmp").write_text("mine")
    train(tmp_path, tiny())
    assert not (tmp_path / ".run.json.4999123.tmp").exists() and (tmp_path / ".tmp").exists()


KILLER = """
import json, os, shutil, signal, sys
from pathlib import Path
from partwise.train.run_folder import CheckpointSaved, RunFolder
from partwise.train.loop import Step
from partwise.train.config import RunConfig

calls_left = None  # until the process kills itself; None: do not count
CALLS = {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "shutil.rmtree", "fsync"}

def hook(event, arguments):
    global calls_left
    writes = event == "open" and (arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
    if calls_left is None or not (writes or event in CALLS):
        return
    if calls_left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    calls_left -= 1

sys.addaudithook(hook)  # called before every open, rename, mkdir and remove
os.fsync = lambda descriptor: hook("fsync", ())

def train(folder, config, save, kill):
    global calls_left
    for event in RunFolder(folder, config).events():
        if isinstance(event, Step) and event.step == (save or kill):
            calls_left = kill if save else 0
            hook("fsync", ()) if not save else None
        elif isinstance(event, CheckpointSaved) and event.step == save:
            break

for root, values, save in json.loads(sys.argv[1]):
    root, config = Path(root), RunConfig.from_dict(values)
    for kill in range(1000) if save else range(1, config.train.steps):
        if (root / "base").exists():
            shutil.copytree(root / "base", root / str(kill))
        child = os.fork()
        if child == 0:
            train(root / str(kill), config, save, kill)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if status == 0:
            break
        assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL, status
    (root / "kills").write_text(str(kill))
"""


@dataclass
class Killed:
    """Runs in the folders `0`, `1`, ... of `root`, each killed at a different point, and one that was not killed."""

    root: Path
    config: RunConfig
    uninterrupted: dict[int, tuple[Any, ...]]
    kills: int

    def resume(self, kill: int) -> dict[int, tuple[Any, ...]]:
        path = self.root / str(kill)
        seen = train(path, self.config)
        assert seen == {step: self.uninterrupted[step] for step in seen}
        assert metrics_of(path) == metrics_of(self.root / "uninterrupted") and last_checkpoint(path) == last_checkpoint(
            self.root / "uninterrupted"
        )
        names = {entry.name for entry in path.iterdir()}
        assert names == {LOCK, OWNER, "run.json", "metrics.jsonl", "result.json", "checkpoints"}
        assert not list((path / "checkpoints").glob(".*"))
        return seen


@pytest.fixture(scope="module")
def killed(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Killed]:
    """Runs killed in children of one process, which imports everything once and forks a child per kill."""
    every = tiny("train.save_every=1", "train.steps=4", "train.eval_every=4", *DROPOUT)
    jobs = {"first": (every, 1), "third": (every, 3), "between": (tiny("train.save_every=2", *DROPOUT), 0)}
    roots = {name: tmp_path_factory.mktemp(name) for name in jobs}
    results = {name: train(roots[name] / "uninterrupted", config) for name, (config, _) in jobs.items()}
    train(roots["third"] / "base", every, 2, finish=False)
    arguments = [(str(roots[name]), config.to_dict(), save) for name, (config, save) in jobs.items()]
    subprocess.run([sys.executable, "-c", KILLER, json.dumps(arguments)], env=environment(), check=True)
    return {
        name: Killed(roots[name], config, results[name], int((roots[name] / "kills").read_text()))
        for name, (config, _) in jobs.items()
    }


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(Path(partwise.__file__).parents[1])}


@pytest.mark.parametrize(
    ("name", "save", "min_kills"),
    [("first", 1, 16), ("third", 3, 25)],
    ids=["the first save", "a save that removes an old checkpoint"],
)
def test_killed_at_every_call_of_a_save(killed: dict[str, Killed], name: str, save: int, min_kills: int) -> None:
    runs = killed[name]
    assert runs.kills >= min_kills  # system calls to kill at
    reached = set()
    for kill in range(runs.kills):
        found, errors = latest_checkpoint(runs.root / str(kill) / "checkpoints")
        assert errors == []
        for path in list_checkpoints(runs.root / str(kill) / "checkpoints"):
            verify(path)  # a folder with a checkpoint's name is complete
        reached.add(step_of(found) if found else 0)
        runs.resume(kill)
    assert reached == {save - 1, save}


@pytest.mark.promise
def test_killed_between_steps_with_a_truncated_line_of_metrics(killed: dict[str, Killed]) -> None:
    for kill in range(1, 6):
        metrics = killed["between"].root / str(kill) / "metrics.jsonl"
        metrics.write_bytes(metrics.read_bytes()[:-20])
        seen = killed["between"].resume(kill)
        assert min(seen) == (kill - 1) // 2 * 2 + 1  # killed before that step was saved


def launch(folder: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "partwise", *words],
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def warnings_in(err: str) -> list[str]:
    """The lines of standard error, except that kernels are compiled, which the first process to need them prints."""
    return [line for line in err.splitlines() if not line.startswith("compiling ")]


def wait_for_lines(path: Path, lines: int, process: subprocess.Popen[str]) -> None:
    for _ in range(12000):
        if path.exists() and path.read_bytes().count(b"\n") >= lines:
            return
        assert process.poll() is None, process.communicate()
        time.sleep(0.005)
    raise AssertionError("the run wrote too few lines")


def test_ctrl_c_and_sigterm_save_and_print_the_command_to_resume(tmp_path: Path) -> None:
    (tmp_path / "a text.txt").write_text("to be or not to be, that is the question\n" * 30)
    words = (
        "train mingpt d_model=16 n_layers=2 attention.n_heads=2 context_length=16 train.batch_size=4 train.steps=500 "
        "train.eval_every=250 ffn.hidden_dropout=0.1 --data './a text.txt' --name 'my,run' --fresh"
    )
    command = shlex.split(words)
    metrics, target = tmp_path / "runs" / "my,run" / "metrics.jsonl", 20
    for number in (signal.SIGINT, signal.SIGTERM):
        process = launch(tmp_path, *command)
        wait_for_lines(metrics, target, process)
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
        assert process.returncode == 128 + number and not warnings_in(err), (process.returncode, out, err)
        stopped = re.search(r"stopped after step (\d+) of 500; everything is saved. To resume:\n  (.*)\n", out)
        assert stopped and latest_checkpoint(metrics.parent / "checkpoints")[0].name == f"step-{int(stopped[1]):08d}"  # type: ignore[union-attr]
        program, *command = shlex.split(stopped[2])
        assert program == "partwise" and command == shlex.split(words.removesuffix(" --fresh"))
        target = int(stopped[1]) + 20
    process = launch(tmp_path, *command)
    out, err = process.communicate(timeout=100)
    assert (process.returncode, warnings_in(err)) == (0, []) and f"resuming after step {stopped[1]}" in out
    config = RunConfig.from_dict(json.loads((metrics.parent / "run.json").read_text())["config"])
    text = {"data": {"part": "text", "path": str(tmp_path / "a text.txt")}}
    config = RunConfig.from_dict({**config.to_dict(), **text})
    train(tmp_path / "uninterrupted", config)
    assert metrics_of(metrics.parent) == metrics_of(tmp_path / "uninterrupted") and last_checkpoint(
        metrics.parent
    ) == last_checkpoint(tmp_path / "uninterrupted")


def test_the_last_record_of_a_repeated_step_counts(tmp_path: Path) -> None:
    """A resumed run repeats the steps after its checkpoint, perhaps on another machine: the model has the later ones."""
    others = {"grad_norm": 1.0, "lr": 0.1, "tokens": 8, "seconds": 0.1}
    losses = ((1, 3.0), (2, 2.5), (2, 2.4), (3, 2.0))
    lines: list[dict[str, Any]] = [{"kind": "step", "step": step, "loss": loss, **others} for step, loss in losses]
    lines.insert(2, {"kind": "evaluation", "step": 2, "validation": 2.6, "training": 2.5})
    lines.append({"kind": "evaluation", "step": 2, "validation": 2.3, "training": 2.5})
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = read_metrics(tmp_path)
    assert [(line["kind"], line["step"]) for line in found] == [
        ("step", 1),
        ("step", 2),
        ("evaluation", 2),
        ("step", 3),
    ]
    assert found[1]["loss"] == 2.4 and found[2]["validation"] == 2.3


HOLDER = """
import json, sys
from pathlib import Path
from partwise.train.run_folder import RunFolder
from partwise.train.config import RunConfig

path, config = Path(sys.argv[1]), RunConfig.from_dict(json.loads(sys.argv[2]))
folder = RunFolder(path, config)
print("locked", flush=True)
sys.stdin.readline()
for event in folder.events():
    pass
print("done", flush=True)
sys.stdin.readline()
folder = RunFolder(path, config)
print("locked", flush=True)
sys.stdin.readline()
"""


def test_a_lock_excludes_another(tmp_path: Path) -> None:
    message = rf"^\S+ is in use by process {os.getpid()}: .*--name\Z"
    lock = FolderLock(tmp_path)
    with pytest.raises(ConfigError, match=message):
        FolderLock(tmp_path)
    lock.release()
    FolderLock(tmp_path).release()


def test_a_folder_has_one_owner(tiny: Tiny, tmp_path: Path) -> None:
    config = tiny()
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path), json.dumps(config.to_dict())],
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin and process.stdout

    def assert_locked() -> None:
        for fresh in (False, True):
            with pytest.raises(ConfigError, match=rf"^\S+ is in use by process {process.pid}: .*--name\Z"):
                RunFolder(tmp_path, config, fresh=fresh)

    assert process.stdout.readline() == "locked\n"
    assert_locked()
    process.stdin.write("\n")
    process.stdin.flush()
    assert process.stdout.readline() == "done\n"
    RunFolder(tmp_path, config).close()  # the run has ended, although its process is alive
    process.stdin.write("\n")
    process.stdin.flush()
    assert process.stdout.readline() == "locked\n"
    assert_locked()
    process.kill()
    process.wait()
    process.stdin.close()
    process.stdout.close()
    folder = RunFolder(tmp_path, config)
    folder.close()
    assert folder.run.step == 6


def test_a_fork_neither_keeps_nor_releases_a_lock(tmp_path: Path) -> None:
    lock = FolderLock(tmp_path)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:  # as a data loader's process, which outlives the run
        lock.release()
        os.write(write, b"x")
        os._exit(0)
    os.read(read, 1)
    with pytest.raises(ConfigError, match="in use"):
        FolderLock(tmp_path).release()
    os.waitpid(child, 0)
    os.close(read)
    read, other = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(other)
        os.read(read, 1)
        os._exit(0)
    lock.release()
    FolderLock(tmp_path).release()
    for end in (other, read, write):
        os.close(end)
    os.waitpid(child, 0)


def test_another_configuration_raises_and_fresh_starts_over(tiny: Tiny, tmp_path: Path) -> None:
    path = tmp_path / "run"
    before = train(path, tiny(), 4)
    (path / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match=r"contains a different run \(ffn was relu, now swiglu\): .*--fresh"):
        RunFolder(path, tiny("ffn=swiglu"))
    with pytest.raises(ConfigError, match=r"\(train.lr was 0.0003, now 0.001\)"):
        RunFolder(path, tiny("train.lr=1e-3"))
    assert train(path, tiny()) == {}  # the errors changed nothing: the run is still finished
    assert set(before) == {1, 2, 3, 4, 5, 6}
    after = train(path, tiny("ffn=swiglu"), fresh=True)
    assert after == train(tmp_path / "other", tiny("ffn=swiglu")) and metrics_of(path) == metrics_of(tmp_path / "other")
    assert (path / "notes.txt").read_text() == "mine"


def test_missing_metadata_does_not_silently_start_over(tiny: Tiny, tmp_path: Path) -> None:
    train(tmp_path, tiny("train.save_every=3"))
    (tmp_path / "run.json").unlink()
    with pytest.raises(ConfigError, match=r"has checkpoints but no run\.json: .*--fresh"):
        RunFolder(tmp_path, tiny("train.save_every=3"))
    assert len(list_checkpoints(tmp_path / "checkpoints")) == 2
    (tmp_path / "run.json").write_text('{"format": 1')
    with pytest.raises(ConfigError, match=r"run\.json is damaged: .*--fresh"):
        RunFolder(tmp_path, tiny("train.save_every=3"))


def test_metadata_without_the_hash_of_the_data_are_one_line(tiny: Tiny, tmp_path: Path) -> None:
    """One flipped bit renames a key."""
    RunFolder(tmp_path, tiny("train.steps=3")).close()
    path = tmp_path / "run.json"
    path.write_text(path.read_text().replace('"hash"', '"hasi"'))
    with pytest.raises(ConfigError, match=r"run\.json lacks the hash of its data: start over with --fresh$"):
        RunFolder(tmp_path, tiny("train.steps=3"))


def test_another_torch_or_thread_count_is_reported(tiny: Tiny, tmp_path: Path) -> None:
    config, metadata, messages = tiny("train.steps=3"), tmp_path / "run.json", list[str]()
    folder = RunFolder(tmp_path, config, log=messages.append)
    for _ in folder.events():
        folder.stop_requested = True
        if latest_checkpoint(tmp_path / "checkpoints")[0]:
            break
    folder.close()
    RunFolder(tmp_path, config, log=messages.append).close()
    assert messages == []
    values = json.loads(metadata.read_text())
    values["machine"]["torch"], values["runtime"]["threads"] = "1.0.0", 2
    metadata.write_text(json.dumps(values))
    RunFolder(tmp_path, config, log=messages.append).close()
    assert [line.partition(":")[0] for line in messages] == [
        f"resuming with torch {torch.__version__} instead of 1.0.0",
        f"resuming with threads 2 instead of {folder.runtime.threads}",
    ]
    values["runtime"]["device"] = "abacus"
    metadata.write_text(json.dumps(values))
    with pytest.raises(ConfigError, match=r"was trained on abacus, which is not available here: .*--fresh"):
        RunFolder(tmp_path, config)


def test_a_run_keeps_its_threads_where_others_are_the_default(tiny: Tiny, tmp_path: Path) -> None:
    """Sums depend on the number: the one that its first start has chosen is stored, and every later start has it."""
    config, before = tiny("d_model=64", "train.batch_size=8"), torch.get_num_threads()
    path, counts = tmp_path / "resumed", list[int]()
    try:
        torch.set_num_threads(2)
        uninterrupted = train(tmp_path / "uninterrupted", config)
        begun = train(path, config, 2, finish=False)
        torch.set_num_threads(1)
        folder = RunFolder(path, config)
        for event in folder.events():
            if isinstance(event, Step):
                begun[event.step] = (event.loss, event.grad_norm, event.lr, event.tokens, fingerprint(folder.run))
                counts.append(torch.get_num_threads())
        assert json.loads((path / "run.json").read_text())["runtime"]["threads"] == folder.runtime.threads == 2
        assert counts == [2, 2, 2, 2] and begun == uninterrupted
        torch.set_num_threads(1)
        assert train(tmp_path / "one thread", config)[6] != uninterrupted[6], "the case shows no difference"
    finally:
        torch.set_num_threads(before)


@pytest.fixture(scope="module")
def begun(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a `run.json` and no checkpoint."""
    folder = tmp_path_factory.mktemp("begun") / "run"
    RunFolder(folder, tiny("train.steps=3")).close()
    return folder


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("runtime.threads", value) for value in ("x", {}, 10**9, -1, True)),
        ("runtime.precision", "x"),
        ("runtime.kernels", 3),
        ("runtime", "x"),
        ("command", [0]),
        ("command", "partwise train"),
    ],
)
def test_a_damaged_runtime_or_command_is_one_line(key: str, value: Any, begun: Path, tmp_path: Path) -> None:
    values = json.loads((begun / "run.json").read_text())
    *above, last = key.split(".")
    (values[above[0]] if above else values)[last] = value
    (tmp_path / "run.json").write_text(json.dumps(values))
    with pytest.raises(ConfigError, match=r"run\.json (is damaged|lacks 'runtime').*--fresh$"):
        stored_runtime(tmp_path, read_metadata(tmp_path))


def test_facts_of_the_machine_of_another_kind_are_reported(tiny: Tiny, begun: Path, tmp_path: Path) -> None:
    values, messages = json.loads((begun / "run.json").read_text()), list[str]()
    values["machine"] |= {"cores": {"a": 1}, "torch": {}}
    values["processes"] = {"a": 1}
    (tmp_path / "run.json").write_text(json.dumps(values))
    RunFolder(tmp_path, tiny("train.steps=3"), log=messages.append).close()
    assert {line.split()[2] for line in messages} == {"torch", "cores", "processes"}
    (tmp_path / "run.json").write_text(json.dumps({**values, "machine": "x"}))
    with pytest.raises(ConfigError, match="lacks 'machine'"):
        RunFolder(tmp_path, tiny("train.steps=3"))


@pytest.mark.parametrize("at", [1, 4])
def test_the_step_that_diverged_can_be_repeated(tiny: Callable[..., RunConfig], tmp_path: Path, at: int) -> None:
    """The weights before it are saved, and its error names the parameter."""
    config = tiny("train.save_every=100", "embed_dropout=0.1")
    batches: list[Batch] = []

    def train() -> str:
        folder = RunFolder(tmp_path / "run", config)
        run = folder.run
        first, batch = run.step, run.batch
        run.batch = lambda *args: (batches.append(batch(*args)), batches[-1])[1]  # type: ignore[method-assign]
        run.model.head.weight.register_hook(lambda gradient: gradient * (float("nan") if run.step == at - 1 else 1.0))
        with pytest.raises(Diverged) as caught:
            list(folder.events())
        return f"{first} {caught.value}"

    said = train()
    assert re.fullmatch(rf"0 step {at}: loss [\d.]+, gradient norm nan, in the gradient of \S*weight: lower .*", said)
    assert [step_of(path) for path in list_checkpoints(tmp_path / "run/checkpoints")] == ([at - 1] if at > 1 else [])
    assert json.loads((tmp_path / "run/result.json").read_text())["step"] == at - 1
    again = train()
    assert again.partition(" ")[0] == str(at - 1 if at > 1 else 0)
    assert again.partition(" ")[2] == said.partition(" ")[2]  # the same loss, to the last digit
    assert np.array_equal(batches[at - 1].inputs, batches[-1].inputs)
