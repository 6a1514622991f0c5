"""Checkpoints are complete or absent; damaged ones are rejected and skipped; a full disk never loses a checkpoint."""

import errno
import json
import os
import shutil
import struct
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import partwise
from partwise import checkpoint
from partwise.checkpoint import (
    MANIFEST,
    DamagedFileError,
    latest_checkpoint,
    list_checkpoints,
    load_model,
    tensor_writer,
    verify,
    write_folder,
)
from partwise.config import ConfigError
from partwise.drafts import remove_leftovers
from partwise.json_files import json_writer, write_json
from partwise.model import transformer
from partwise.tensor_files import TensorFiles
from partwise.train import result
from partwise.train.config import RunConfig
from partwise.train.metrics import read_metrics
from partwise.train.run_folder import CheckpointSaved, RunFolder

Tiny = Callable[..., RunConfig]
FILES = {"config.json", "model.safetensors", "optimizer.safetensors", "state.json", "tokenizer.json"}


def run_to(path: Path, config: RunConfig, step: int = 10**9) -> list[str]:
    """Train until the checkpoint of `step`, or to the end; returns the messages logged."""
    messages: list[str] = []
    run = RunFolder(path, config, log=messages.append)
    try:
        for event in run.events():
            if isinstance(event, CheckpointSaved) and event.step == step:
                break
    finally:
        run.close()
    return messages


@pytest.fixture(scope="module")
def config(tiny: Tiny) -> RunConfig:
    return tiny("train.save_every=2", "residual.dropout=0.1", "train.eval_every=6")


@pytest.fixture(scope="module")
def whole(config: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted run of six steps."""
    path = tmp_path_factory.mktemp("whole")
    run_to(path, config)
    return path


@pytest.fixture(scope="module")
def stopped(config: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run, stopped with checkpoints at steps 2 and 4."""
    path = tmp_path_factory.mktemp("stopped")
    run_to(path, config, 4)
    return path


@pytest.fixture
def run(stopped: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(stopped, tmp_path / "run"))


def weights(path: Path) -> bytes:
    last = list_checkpoints(path / "checkpoints")[-1]
    return b"".join((last / name).read_bytes() for name in ("model.safetensors", "optimizer.safetensors"))


def last(path: Path) -> Path:
    return list_checkpoints(path / "checkpoints")[-1]


def seal(folder: Path, **changes: Any) -> None:
    """Rewrite the manifest to match the files, as a forger would."""
    import hashlib

    files = {
        path.name: {"size": path.stat().st_size, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
        for path in folder.iterdir()
        if path.name != MANIFEST
    }
    (folder / MANIFEST).write_text(json.dumps({"format": 1, "files": {**files, **changes}}))


# writing


def test_a_folder_is_written_atomically_and_verifies(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "inside" / "step-00000001"
    write_folder(target, {"a.json": json_writer({"a": 1}), "b.safetensors": tensor_writer({"b": torch.arange(3)})})
    verify(target)
    assert {path.name for path in target.iterdir()} == {"a.json", "b.safetensors", MANIFEST}
    assert torch.equal(TensorFiles([target / "b.safetensors"])["b"], torch.arange(3))
    assert [path.name for path in target.parent.iterdir()] == ["step-00000001"]


def test_everything_is_synced_before_the_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    fsync, rename = os.fsync, os.rename
    monkeypatch.setattr(os, "fsync", lambda fd: (order.append(os.readlink(f"/proc/self/fd/{fd}")), fsync(fd))[1])
    monkeypatch.setattr(os, "rename", lambda a, b: (order.append("rename"), rename(a, b))[1])
    if not Path("/proc/self/fd").exists():
        pytest.skip("no /proc to see which file is synced")
    write_folder(tmp_path / "new" / "target", {"a": json_writer(1), "b": json_writer(2)})
    names = [name if name == "rename" else Path(name).name for name in order]
    draft = f".target.{os.getpid()}.tmp"
    assert names == [tmp_path.name, "a", "b", MANIFEST, draft, "rename", "new"]


@pytest.mark.parametrize("broken", ["a", "b"])
def test_a_failed_write_leaves_the_old_folder_and_nothing_else(tmp_path: Path, broken: str) -> None:
    def fail(path: Path) -> None:
        path.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    target = tmp_path / "target"
    write_folder(target, {"a": json_writer("old"), "b": json_writer("old")})
    with pytest.raises(OSError, match="No space left"):
        write_folder(target, {"a": json_writer("new"), "b": json_writer("new"), broken: fail})
    verify(target)
    assert (target / "a").read_text() == '"old"' and os.listdir(tmp_path) == ["target"]


def test_a_replacement_that_cannot_be_renamed_restores_the_old_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, rename = tmp_path / "target", os.rename
    write_folder(target, {"a": json_writer("old")})

    def refuse(source: Path, goal: Path) -> None:
        if str(source).endswith(".tmp"):
            raise OSError(errno.EIO, "Input/output error")
        rename(source, goal)

    monkeypatch.setattr(os, "rename", refuse)
    with pytest.raises(OSError, match="Input/output"):
        write_folder(target, {"a": json_writer("new")})
    assert (target / "a").read_text() == '"old"' and os.listdir(tmp_path) == ["target"]


def test_drafts_of_a_living_process_are_kept(tmp_path: Path) -> None:
    kept, own = tmp_path / f".job.json.{os.getppid()}.tmp", tmp_path / f".job.json.{os.getpid()}.tmp"
    for path in (kept, own):
        path.write_text("")
    remove_leftovers(tmp_path)
    assert list(tmp_path.iterdir()) == [kept]


def test_leftovers_of_a_killed_process_are_restored_or_deleted(tmp_path: Path) -> None:
    for name in ("step-1", ".step-1.4999977.old", ".step-2.4999977.old", ".step-3.4999977.tmp", ".keep", "step-9"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "from").write_text(name)
    remove_leftovers(tmp_path)
    assert {path.name: (path / "from").read_text() for path in tmp_path.iterdir()} == {
        "step-1": "step-1",
        "step-2": ".step-2.4999977.old",
        ".keep": ".keep",
        "step-9": "step-9",
    }


def test_a_json_file_is_replaced_atomically(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_json(path, {"a": 1})
    with pytest.raises(ValueError, match="JSON compliant"):
        write_json(path, {"a": float("nan")})
    assert path.read_text() == '{\n "a": 1\n}' and os.listdir(tmp_path) == ["a.json"]


def test_only_the_two_latest_checkpoints_are_kept(whole: Path) -> None:
    assert [path.name for path in list_checkpoints(whole / "checkpoints")] == ["step-00000004", "step-00000006"]
    assert {path.name for path in last(whole).iterdir()} == FILES | {MANIFEST}


def test_steps_are_sorted_numerically(tmp_path: Path) -> None:
    for name in ("step-99999999", "step-100000000", "step-x", "step-", ".step-00000001.4999977.tmp"):
        (tmp_path / name).mkdir()
    assert [path.name for path in list_checkpoints(tmp_path)] == ["step-99999999", "step-100000000"]


# damage


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


DAMAGES = {
    "truncated": truncate,
    "flipped": flip,
    "missing": Path.unlink,
    "empty": lambda path: path.write_bytes(b""),
    "a pipe": fifo,
}


@pytest.mark.parametrize("name", sorted(FILES | {MANIFEST}))
@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_checkpoint_is_reported_and_skipped(
    run: Path,
    config: RunConfig,
    whole: Path,
    damage: Callable[[Path], None],
    name: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    damage(last(run) / name)
    model, _ = partwise.load(run)
    assert "step-00000004" in (error := capsys.readouterr().err) and error.endswith("; using step-00000002 instead\n")
    earlier = TensorFiles([run / "checkpoints" / "step-00000002" / "model.safetensors"])
    assert all(torch.equal(tensor, earlier[key]) for key, tensor in model.state_dict().items())
    messages = run_to(run, config)
    assert len(messages) == 1 and "step-00000004" in messages[0]
    assert messages[0].endswith("; resuming from step 2 instead")
    assert weights(run) == weights(whole)
    assert [path.name for path in list_checkpoints(run / "checkpoints")] == ["step-00000004", "step-00000006"]
    for path in list_checkpoints(run / "checkpoints"):
        verify(path)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_flipped_bit_is_detected_or_harmless(stopped: Path, data: st.DataObject) -> None:
    folder = last(stopped)
    path = folder / data.draw(st.sampled_from(sorted(FILES | {MANIFEST})))
    before = path.read_bytes()
    at, bit = data.draw(st.integers(0, len(before) - 1)), data.draw(st.integers(0, 7))
    content = bytearray(before)
    content[at] ^= 1 << bit
    path.write_bytes(content)
    try:
        found, errors = latest_checkpoint(stopped / "checkpoints")
        assert found is not None
        if found == folder:  # only in the manifest: its JSON can be spelled in more than one way
            listed = json.loads(bytes(content))["files"]
            assert path.name == MANIFEST and listed.items() <= json.loads(before)["files"].items()
        else:
            assert found.name == "step-00000002" and len(errors) == 1
    finally:
        path.write_bytes(before)


def test_training_does_not_silently_restart_if_no_checkpoint_verifies(run: Path, config: RunConfig) -> None:
    for path in list_checkpoints(run / "checkpoints"):
        flip(path / "model.safetensors")
    for _ in range(2):
        with pytest.raises(
            ConfigError, match=r"model\.safetensors is damaged, and no older .*: start over with --fresh\Z"
        ):
            RunFolder(run, config)
    with pytest.raises(ConfigError, match=r"has no readable checkpoint \(.* is damaged\): .*--fresh\Z"):
        partwise.load(run)
    with pytest.raises(ConfigError, match=r"model\.safetensors is damaged: give another checkpoint"):
        partwise.load(last(run))
    assert len(list_checkpoints(run / "checkpoints")) == 2
    fresh = RunFolder(run, config, fresh=True)
    fresh.close()
    assert fresh.run.step == 0 and list_checkpoints(run / "checkpoints") == []


def test_saving_before_damaged_checkpoints_never_deletes_the_good_ones(run: Path, config: RunConfig) -> None:
    shutil.copytree(last(run), run / "checkpoints" / "step-00000006")
    for path in list_checkpoints(run / "checkpoints")[1:]:
        flip(path / "model.safetensors")
    folder = RunFolder(run, config, log=lambda text: None)
    next(folder.events())
    folder.checkpoints.save()  # saves step 3, as stopping a run does, before the damaged 4 and 6
    folder.close()
    assert [path.name for path in list_checkpoints(run / "checkpoints")] == ["step-00000002", "step-00000003"]
    assert latest_checkpoint(run / "checkpoints") == (run / "checkpoints" / "step-00000003", [])


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_manifest_without_a_required_file_is_not_a_checkpoint(run: Path, config: RunConfig, name: str) -> None:
    (last(run) / name).unlink()
    seal(last(run))
    verify(last(run))
    if name == "tokenizer.json":
        with pytest.raises(ConfigError, match="cannot read the tokenizer"):
            partwise.load(run)
    else:
        partwise.load(run)
    if name == "model.safetensors":
        assert "resuming from step 2 instead" in run_to(run, config)[0]


# hostile folders


@pytest.mark.parametrize("name", ["../config.json", "/etc/passwd", ".hidden", "a/b", "", "..", "a\n", "-\0"])
def test_hostile_names_in_a_manifest_are_refused(run: Path, name: str) -> None:
    (run / "checkpoints" / "config.json").write_text("{}")
    seal(last(run), **{name: {"size": 2, "sha256": "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"}})
    with pytest.raises(DamagedFileError, match="invalid file name"):
        verify(last(run))
    with pytest.raises(ConfigError, match="invalid file name"):
        partwise.load(last(run))


@pytest.mark.parametrize(
    "manifest",
    ["", "[]", "null", "{}", '{"format": 2, "files": {}}', '{"format": 1, "files": []}', "[" * 10**5, "\0", "\xff",
     '{"format": 1, "files": {"config.json": null}}', '{"format": 1, "files": {"config.json": {"size": "1"}}}'],
    ids=range(11),
)  # fmt: skip
def test_a_malformed_manifest_is_refused(run: Path, manifest: str) -> None:
    (last(run) / MANIFEST).write_bytes(manifest.encode("latin-1"))
    with pytest.raises(DamagedFileError):
        verify(last(run))
    found, errors = latest_checkpoint(run / "checkpoints")
    assert found and found.name == "step-00000002" and len(errors) == 1


def safetensors(header: dict[str, Any] | bytes, data: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def entry(shape: list[int], begin: int, end: int, dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


BAD_HEADERS = {
    "a header longer than the file": safetensors({}, length=2**40),
    "a header of 2^64 - 1 bytes": safetensors({}, length=2**64 - 1),
    "data beyond the end": safetensors({"a": entry([2**40], 0, 2**42)}, bytes(8)),
    "less data than the shape": safetensors({"a": entry([1000, 1000], 0, 8)}, bytes(8)),
    "a shape that overflows": safetensors({"a": entry([2**32, 2**32, 4], 0, 8)}, bytes(8)),
    "negative offsets": safetensors({"a": entry([2], -8, 0)}, bytes(8)),
    "overlap": safetensors({"a": entry([2], 0, 8), "b": entry([2], 4, 12)}, bytes(12)),
    "unused bytes": safetensors({"a": entry([2], 0, 8)}, bytes(80)),
    "an unknown type": safetensors({"a": entry([2], 0, 8, "OBJ")}, bytes(8)),
    "no header": b"\x01",
    "not JSON": safetensors(b"\x80\x04K\x01."),
}


@pytest.mark.parametrize("content", BAD_HEADERS.values(), ids=BAD_HEADERS)
def test_a_safetensors_file_with_a_bad_header_is_refused(run: Path, content: bytes) -> None:
    path = last(run) / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(DamagedFileError, match=r"model\.safetensors cannot be read"):
        TensorFiles([path])
    seal(last(run))
    with pytest.raises(ConfigError, match=r"\A[^\n]*model\.safetensors cannot be read[^\n]*\Z"):
        partwise.load(last(run))


@pytest.mark.parametrize(
    "change", [{"d_model": 2**20}, {"n_layers": 50}, {"context_length": 2**24}, {"vocab_size": 2**24}]
)
def test_a_configuration_with_wrong_sizes_allocates_nothing(
    run: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, int]
) -> None:
    path = last(run) / "config.json"
    values = json.loads(path.read_text())
    path.write_text(json.dumps({**values, "model": {**values["model"], **change}}))

    def refuse(*args: Any) -> None:
        raise AssertionError("a model was allocated")

    monkeypatch.setattr(transformer, "initialize", refuse)
    with pytest.raises(DamagedFileError, match="do not match the configuration"):
        load_model(last(run))


# full disks


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Limit every file to `size` bytes, so that a write fails half-way."""
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


ONE_LINE = r"\Acannot write [^\n]+: check disk space and permissions, then run the same command again to resume[^\n]*\Z"


@pytest.mark.parametrize("size", [4_000, 30_000, 50_000])
def test_a_save_that_does_not_fit_keeps_the_previous_one(run: Path, config: RunConfig, whole: Path, size: int) -> None:
    before = {path.name: (path / MANIFEST).read_bytes() for path in list_checkpoints(run / "checkpoints")}
    with largest_file(size), pytest.raises(ConfigError, match=ONE_LINE):
        run_to(run, config)
    assert {path.name: (path / MANIFEST).read_bytes() for path in (run / "checkpoints").iterdir()} == before
    assert run_to(run, config) == [] and weights(run) == weights(whole)


def test_a_disk_that_is_really_full(config: RunConfig, whole: Path, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)]
    if not shutil.which("mount") or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("no permission to mount a small disk here")
    try:
        with pytest.raises(ConfigError, match=ONE_LINE.replace("write", "write .*checkpoints: No space left", 1)):
            run_to(disk / "run", config)
        found, errors = latest_checkpoint(disk / "run" / "checkpoints")
        assert found and errors == [] and list(found.parent.glob(".*")) == []
        subprocess.run(["mount", "-o", "remount,size=4m", str(disk)], check=True)
        run_to(disk / "run", config)
        assert weights(disk / "run") == weights(whole)
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_failing_to_append_metrics_is_a_one_line_error(run: Path, config: RunConfig, whole: Path) -> None:
    metrics, before = run / "metrics.jsonl", (run / "metrics.jsonl").read_bytes()
    with largest_file(len(before) + 50), pytest.raises(ConfigError, match=r"\Acannot write \S+metrics\.jsonl: "):
        run_to(run, config)
    assert metrics.read_bytes().startswith(before) and metrics.stat().st_size == len(before) + 50  # a torn line
    assert run_to(run, config) == [] and weights(run) == weights(whole)
    lines = [[{**line, "seconds": 0} for line in read_metrics(path)] for path in (run, whole)]
    assert lines[0] == lines[1]


def test_failing_to_write_the_run_metadata_is_a_one_line_error(tmp_path: Path, config: RunConfig) -> None:
    with largest_file(100), pytest.raises(ConfigError, match=ONE_LINE):
        RunFolder(tmp_path / "run", config)
    assert sorted(os.listdir(tmp_path / "run")) == [".lock", ".pid"]
    run_to(tmp_path / "run", config, 2)
    assert latest_checkpoint(tmp_path / "run" / "checkpoints")[0]


def test_a_result_that_could_not_be_written_is_written_on_resume(
    run: Path, config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, values: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(result, "write_hashed", refuse)
        with pytest.raises(ConfigError, match=ONE_LINE):
            run_to(run, config)
    assert not (run / "result.json").exists()
    run_to(run, config)
    assert [line["step"] for line in json.loads((run / "result.json").read_text())["evaluations"]] == [6]


def test_a_path_that_cannot_hold_a_run_is_a_one_line_error(tmp_path: Path, config: RunConfig) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=ONE_LINE):
        RunFolder(tmp_path / "file" / "run", config)
    with pytest.raises(ConfigError, match=ONE_LINE):
        RunFolder(tmp_path / "file", config)
    assert checkpoint.list_checkpoints(tmp_path) == []
