"""Event files of TensorBoard: equal to what its own package writes and reads; damaged files are refused."""

import math
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from events import masked_crc, record, scalar, write_events
from partwise.comparison.stats.event_files import read_event_folders, read_events
from partwise.config import ConfigError


def test_scalars_are_read_by_tag_and_step(tmp_path: Path) -> None:
    path = write_events(tmp_path, {"loss": {0: 1.5, 1: 0.25, -1: 3.0, 2**40: math.inf}, "lr": {1: 0.5}})
    assert read_events(path) == {"loss": {0: 1.5, 1: 0.25, -1: 3.0, 2**40: math.inf}, "lr": {1: 0.5}}
    again = write_events(tmp_path, {"loss": {1: 0.125}}, name="events.out.tfevents.2")
    assert again != path
    assert read_event_folders(tmp_path)["."]["loss"][1] == 0.125  # the newer file counts, as after a restart


@pytest.mark.parametrize(
    ("start", "again", "expected"),
    [
        (
            101,
            {150: 4.0},
            {0: 1.0, 100: 2.0, 150: 4.0},
        ),  # what the interrupted session logged at 120 and 160 is no part of it
        (100, {150: 4.0}, {0: 1.0, 150: 4.0}),
        (0, {200: 4.0}, {200: 4.0}),
        (None, {150: 4.0}, {0: 1.0, 100: 2.0, 120: 3.0, 150: 4.0}),  # continued without a mark, from before 150
        (None, {200: 4.0}, {0: 1.0, 100: 2.0, 120: 3.0, 160: 0.5, 200: 4.0}),
    ],
)
def test_a_restart_replaces_later_steps(
    tmp_path: Path, start: int | None, again: dict[int, float], expected: dict[int, float]
) -> None:
    first = {0: 1.0, 100: 2.0, 120: 3.0, 160: 0.5}
    write_events(tmp_path, {"loss": first, "lr": {0: 1.0, 160: 0.5}})
    write_events(tmp_path, {"loss": again}, name="events.out.tfevents.2", start=start)
    write_events(tmp_path / "beside", {"loss": first})
    found = read_event_folders(tmp_path)
    assert found["."]["loss"] == expected and found["beside"]["loss"] == first  # each folder has its own sessions
    assert 160 in found["."].get("lr", {}) if start is None else 160 not in found["."].get("lr", {})


def test_steps_that_go_back(tmp_path: Path) -> None:
    """Before version 2 of the format they mark a restart of the tags at that step; since then they may have any order."""
    curve = {0: 1.0, 100: 2.0, 200: 0.5, 150: 3.0}
    for version, expected in ((1, {0: 1.0, 100: 2.0, 150: 3.0}), (2, curve)):
        write_events(tmp_path, {"lr": {200: 1.0}, "loss": curve}, version=version)
        assert read_event_folders(tmp_path)["."] == {"lr": {200: 1.0}, "loss": expected}


def test_the_checksum_is_crc32c() -> None:
    """The check value of CRC-32C is e3069283, for the digits 1 to 9; our own sum of a record must unmask to it."""
    crc = 0xE3069283
    assert masked_crc(b"123456789") == ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


@given(st.integers(0, 10**6), st.integers(1, 255))
def test_every_changed_byte_is_noticed(tmp_path_factory: pytest.TempPathFactory, position: int, change: int) -> None:
    path = write_events(tmp_path_factory.mktemp("events"), {"loss": {step: 1 / (step + 1) for step in range(3)}})
    content = bytearray(path.read_bytes())
    content[position % len(content)] ^= change
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="is damaged at byte") as caught:
        read_events(path)
    assert "\n" not in str(caught.value) and str(path) in str(caught.value)


@given(st.integers(0, 10**6))
def test_a_record_that_was_cut_off_is_ignored(tmp_path_factory: pytest.TempPathFactory, size: int) -> None:
    path = write_events(tmp_path_factory.mktemp("events"), {"loss": {step: float(step) for step in range(5)}})
    content = path.read_bytes()
    path.write_bytes(content[: size % len(content)])
    curve = read_events(path).get("loss", {})
    assert curve == {step: float(step) for step in range(len(curve))} and len(curve) < 5


@pytest.mark.parametrize("event", [b"\xff", b"\x2a\x7f", b"\x2a\x02\x0a\x7f", b"\x07", b"\x2a\x04\x0a\x02\x15\x00"])
def test_a_record_that_is_no_event_is_refused(tmp_path: Path, event: bytes) -> None:
    """The checksum is right, and the content is not a protocol buffer."""
    (tmp_path / "events.out.tfevents.1").write_bytes(record(event))
    with pytest.raises(ConfigError, match="is damaged at byte 0"):
        read_event_folders(tmp_path)


def test_other_summaries_are_left_out(tmp_path: Path) -> None:
    """A tensor counts if it is one number of a float type: not text, and not a histogram."""

    def tensor(kind: int, field: int, content: bytes) -> bytes:
        value = bytes([8, kind, field << 3 | 2, len(content)]) + content
        entry = b"\x0a\x01t" + bytes([8 << 3 | 2, len(value)]) + value
        return bytes([5 << 3 | 2, len(entry) + 2, 10, len(entry)]) + entry

    cases: list[tuple[bytes, dict[str, Any]]] = [
        (tensor(1, 4, struct.pack("<f", 0.5)), {"t": {0: 0.5}}),
        (tensor(2, 4, struct.pack("<d", 0.1)), {"t": {0: 0.1}}),
        (tensor(19, 4, struct.pack("<e", 0.5)), {"t": {0: 0.5}}),
        (tensor(2, 6, struct.pack("<d", 0.1)), {"t": {0: 0.1}}),
        (tensor(1, 5, struct.pack("<f", 0.5)), {"t": {0: 0.5}}),
        (tensor(1, 4, struct.pack("<2f", 0.5, 1)), {}),
        (tensor(7, 8, b"text"), {}),
        (tensor(3, 4, struct.pack("<i", 5)), {}),
        (b"\x1a\x05brain", {}),  # the version, which begins each file
    ]
    for event, expected in cases:
        path = tmp_path / "events.out.tfevents.1"
        path.write_bytes(record(event))
        assert read_events(path) == expected


def test_the_writer_of_the_tests_agrees_with_tensorboard(tmp_path: Path) -> None:
    """What TensorBoard reads from our file is what we read, and the other way round for a file of torch's SummaryWriter."""
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util.tensor_util import make_ndarray
    from torch.utils.tensorboard import SummaryWriter

    write_events(tmp_path / "ours", {"loss": {-1: 0.1, 0: math.nan, 1: -math.inf, 2**40: 1e-30}})
    with SummaryWriter(str(tmp_path / "theirs")) as writer:
        for step in range(50):
            writer.add_scalar("loss/val", 1 / (step + 1), step)
            writer.add_scalar("new", 0.1 * step, -step, new_style=True)
            writer.add_scalar("double", 0.1 * step, step, new_style=True, double_precision=True)
            writer.add_text("text", "hello", step)
        writer.add_scalar("none", math.nan, 3)
        writer.add_hparams({"lr": 0.1}, {"final": 2.0}, run_name="hparams")
    for session, first, last in ((1, 0, 20), (2, 12, 30)):
        purge = None if session == 1 else first
        with SummaryWriter(str(tmp_path / "resumed"), purge_step=purge, filename_suffix=f".{session}") as writer:
            for step in range(first, last, session):
                writer.add_scalar("loss", session / (step + 1), step)
    write_events(tmp_path / "old", {"loss": {0: 1.0, 2: 2.0, 4: 3.0, 3: 4.0}, "lr": {4: 0.5, 5: 0.25}}, version=1)
    found = read_event_folders(tmp_path)
    assert sorted(found) == ["old", "ours", "resumed", "theirs", "theirs/hparams"]
    assert list(found["theirs/hparams"]["final"].values()) == [2.0]
    for folder in sorted(found.keys() - {"theirs/hparams"}):
        reader = EventAccumulator(str(tmp_path / folder), size_guidance={"scalars": 0, "tensors": 0})
        reader.Reload()
        expected = {tag: {e.step: repr(e.value) for e in reader.Scalars(tag)} for tag in reader.Tags()["scalars"]}
        for tag in set(reader.Tags()["tensors"]) - {"text/text_summary"}:
            expected[tag] = {e.step: repr(float(make_ndarray(e.tensor_proto))) for e in reader.Tensors(tag)}
        assert {tag: {k: repr(v) for k, v in curve.items()} for tag, curve in found[folder].items()} == expected


def test_scalar_is_an_event() -> None:
    """The bytes that TensorBoard's own package writes for tag 'a', value 1 at step 1, without a wall time."""
    assert scalar("a", 1, 1.0) == b"\x10\x01\x2a\x0a\x0a\x08\x0a\x01a\x15\x00\x00\x80\x3f"
