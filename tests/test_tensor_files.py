"""safetensors files that hold rows of tensors: read by us, by the library and by torch; damage is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor

from lazy_imports import lazy_module
from partwise.records import DamagedFileError
from partwise.tensor_files import DTYPES, RowRange, TensorFiles, rows_of, whole, write_rows, write_tensors

dcp = lazy_module("torch.distributed.checkpoint")


def tensor(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.arange(torch.Size(shape).numel()).reshape(shape).to(dtype)


def write_shards(folder: Path, tensors: dict[str, Tensor], cuts: list[int]) -> list[Path]:
    """Files that each hold the rows between two cuts."""
    paths = []
    for number, (first, end) in enumerate(zip([0, *cuts], [*cuts, 1 << 20], strict=True)):
        rows = {
            name: RowRange(each[first:end], first, tuple(each.shape)) for name, each in tensors.items() if each.ndim
        }
        rows = {name: each for name, each in rows.items() if len(each.data)}
        if number == 0:
            rows |= {name: whole(each) for name, each in tensors.items() if not each.ndim}
        paths.append(folder / f"{number}.safetensors")
        write_rows(paths[-1], rows)
    return paths


def test_every_type_is_written_as_the_library_reads_it(tmp_path: Path) -> None:
    tensors = {name: tensor(3, 5, dtype=dtype) for name, dtype in DTYPES.items()}
    tensors |= {"step": torch.tensor(3.0), "none": torch.empty(0, 4), "turned": tensor(4, 3).T, "odd": tensor(3).bool()}
    path = tmp_path / "a.safetensors"
    write_tensors(path, {name: (each.dtype, tuple(each.shape)) for name, each in tensors.items()}, tensors.__getitem__)
    for loaded in (load_file(path), dict(TensorFiles([path]))):
        assert {*loaded} == {*tensors}
        assert all(
            torch.equal(loaded[name], tensors[name]) and loaded[name].dtype == tensors[name].dtype for name in loaded
        )
    save_file({name: each.contiguous() for name, each in tensors.items()}, path)
    assert all(torch.equal(each, tensors[name]) for name, each in TensorFiles([path]).items())


@settings(max_examples=40, deadline=None)
@given(
    n_rows=st.integers(1, 9),
    cuts=st.lists(st.integers(0, 9), max_size=3).map(sorted),
    ends=st.tuples(*[st.integers(0, 9)] * 2),
)
def test_any_rows_are_read_from_any_shards(
    tmp_path_factory: pytest.TempPathFactory, n_rows: int, cuts: list[int], ends: tuple[int, int]
) -> None:
    tensors = {"matrix": tensor(n_rows, 3), "vector": tensor(n_rows, dtype=torch.bfloat16), "step": torch.tensor(7.0)}
    files = TensorFiles(write_shards(tmp_path_factory.mktemp("shards"), tensors, cuts))
    assert files.shapes == {name: tuple(each.shape) for name, each in tensors.items()}
    assert all(torch.equal(files[name], each) for name, each in tensors.items())
    first, end = min(*ends, n_rows), min(max(ends), n_rows)
    for source in (files, tensors):
        assert torch.equal(rows_of(source, "matrix", first, end), tensors["matrix"][first:end])


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_torch_reads_our_shards_and_we_read_its_own(tmp_path: Path) -> None:
    tensors = {"matrix": tensor(5, 3), "vector": tensor(7)}
    write_shards(tmp_path, tensors, [2, 4])
    read = {name: torch.zeros_like(each) for name, each in tensors.items()}
    dcp.load(read, storage_reader=dcp.HuggingFaceStorageReader(str(tmp_path)), no_dist=True)
    assert all(torch.equal(read[name], each) for name, each in tensors.items())
    theirs = tmp_path / "theirs"
    dcp.save(tensors, storage_writer=dcp.HuggingFaceStorageWriter(str(theirs), save_distributed=True), no_dist=True)
    assert [path.name for path in theirs.iterdir()] == ["shard-00001-model-00001-of-00001.safetensors"]
    assert all(torch.equal(each, tensors[name]) for name, each in TensorFiles(theirs.iterdir()).items())


def rewritten(path: Path, **changes: Any) -> Path:
    """The file with other values in the header's entry of `matrix`, or other offsets."""
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    if "offsets" in changes:
        header["__metadata__"]["DCP_SHARDING_INFO"] = changes.pop("offsets")
    header["matrix"] |= changes
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + size :])
    return path


@pytest.mark.parametrize(
    "changes",
    [
        {"offsets": "{"},
        {"offsets": "[1]"},
        {"offsets": "{}" * 3},
        {"offsets": '{"matrix": {}}'},
        {"offsets": '{"matrix": {"saved_offsets": [1]}}'},
        {"offsets": '{"matrix": {"saved_offsets": [-1, 0]}}'},
        {"offsets": '{"matrix": {"saved_offsets": [1, 0]}}'},
        {"offsets": '{"matrix": {"saved_offsets": [0, 1]}}'},
        {"offsets": '{"matrix": {"saved_offsets": [0.0, 0]}}'},
        {"offsets": '{"matrix": {"saved_offsets": "00"}}'},
        {"shape": [1 << 60, 3]},
        {"shape": [1 << 40, 1 << 40]},
        {"dtype": "F4"},
        {"data_offsets": [0, 1 << 50]},
        {"data_offsets": [-4, 20]},
    ],
    ids=str,
)
def test_a_hostile_header_is_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    path = tmp_path / "a.safetensors"
    write_rows(path, {"matrix": whole(tensor(2, 3))})
    with pytest.raises(DamagedFileError):
        TensorFiles([rewritten(path, **changes)])


def test_rows_that_are_missing_or_there_twice_are_refused(tmp_path: Path) -> None:
    paths = write_shards(tmp_path, {"matrix": tensor(6, 3), "step": torch.tensor(1.0)}, [2, 4])
    assert TensorFiles(paths).shapes["matrix"] == (6, 3)
    for some in ([paths[0], paths[2]], [*paths, paths[1]], [paths[0], paths[0]], paths[1:]):
        with pytest.raises(DamagedFileError, match=r"the chunks do not contain each row of .* exactly once"):
            TensorFiles(some)
    write_rows(paths[1], {"matrix": RowRange(tensor(2, 4), 2, (6, 3))})
    with pytest.raises(DamagedFileError, match="each row of matrix"):
        TensorFiles(paths)
    write_rows(paths[1], {"matrix": RowRange(tensor(2, 3).double(), 2, (6, 3))})
    with pytest.raises(DamagedFileError, match="each row of matrix"):
        TensorFiles(paths)


def test_a_file_that_changes_after_it_was_opened_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    write_rows(path, {"matrix": whole(tensor(200, 3))})
    files = TensorFiles([path])
    with path.open("r+b") as file:
        file.truncate(900)
    with pytest.raises(DamagedFileError, match="ends early"):
        files["matrix"]
    path.unlink()
    with pytest.raises(DamagedFileError, match=r"a\.safetensors cannot be read: No such file"):
        files["matrix"]
    with pytest.raises(DamagedFileError, match=r"a\.safetensors cannot be read"):
        TensorFiles([path])
