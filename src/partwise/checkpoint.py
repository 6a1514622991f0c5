"""Checkpoints: folders that are either whole or absent, holding safetensors and JSON only.

A folder is written beside its place under a temporary name, every file is flushed to disk, a manifest with sizes and
SHA-256 comes last, and one rename makes it visible. Which checkpoint is the latest is computed from what verifies,
never stored in a pointer.
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from partwise.config import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

    from partwise.model import Transformer
    from partwise.tokenizers import Tokenizer

MANIFEST = "manifest.json"
FORMAT = 1
Writer = Callable[[Path], None]
Result = TypeVar("Result")


class Damaged(Exception):
    """A checkpoint is missing a file, or a file is not what its manifest says."""


def write_folder(target: Path, files: Mapping[str, Writer]) -> None:
    """Write every file into a new folder `target`, all or nothing, flushed to disk. An older `target` is replaced.

    A kill leaves at most hidden folders beside it, which `tidy` clears away. Raises OSError, and then leaves nothing.
    """
    new_folder(target.parent)
    draft, retired = _aside(target, "tmp"), _aside(target, "old")
    shutil.rmtree(draft, ignore_errors=True)
    try:
        draft.mkdir()
        manifest = {}
        for name, write in files.items():
            path = draft / name
            write(path)
            _flush(path)
            manifest[name] = {"size": path.stat().st_size, "sha256": _sha256(path)}
        json_writer({"format": FORMAT, "files": manifest})(draft / MANIFEST)
        _flush(draft / MANIFEST)
        _flush(draft)
        if target.exists():
            os.rename(target, retired)
        os.rename(draft, target)
        _flush(target.parent)
    except BaseException:
        if retired.exists() and not target.exists():
            os.rename(retired, target)
        shutil.rmtree(draft, ignore_errors=True)
        raise
    shutil.rmtree(retired, ignore_errors=True)


def remove_folder(target: Path) -> None:
    """Remove a folder in one stroke: killed half-way, no half of it stands under its name."""
    doomed = _aside(target, "tmp")
    shutil.rmtree(doomed, ignore_errors=True)
    os.rename(target, doomed)
    shutil.rmtree(doomed, ignore_errors=True)


def tidy(parent: Path) -> None:
    """Clear away what a kill left beside the folders in `parent`; for the owner of `parent` alone."""
    for path in list(parent.glob(".*")):
        match = re.fullmatch(r"\.(.+)\.\d+\.(tmp|old)", path.name)
        if match and match[2] == "old" and not (parent / match[1]).exists():
            os.rename(path, parent / match[1])  # killed between the two renames of a replacement
        elif match:
            shutil.rmtree(path, ignore_errors=True)


def verify(folder: Path) -> None:
    """Raise Damaged unless every file has the size and the hash that the manifest names."""
    try:
        manifest = json.loads(_regular(folder / MANIFEST).read_text())
        if manifest["format"] != FORMAT:
            raise Damaged(f"{folder} is in format {manifest['format']!r}, and this version reads {FORMAT}")
        for name, entry in manifest["files"].items():
            if not re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]*", name):
                raise Damaged(f"{folder} names a file {name!r}")
            path = _regular(folder / name)
            if path.stat().st_size != entry["size"] or _sha256(path) != entry["sha256"]:
                raise Damaged(f"{path} is damaged")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Damaged(f"{folder / MANIFEST} cannot be read: {error}") from None


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoints in a folder, whole or not, in the order of their steps."""
    return sorted((path for path in folder.glob("step-*") if path.name[5:].isdecimal()), key=step_of)


def step_of(checkpoint: Path) -> int:
    return int(checkpoint.name[5:])


def newest(folder: Path) -> tuple[Path | None, list[str]]:
    """The checkpoint of the highest step that verifies, and one line per newer one that does not."""
    return read_newest(folder, lambda path: path)


def read_newest(folder: Path, read: Callable[[Path], Result]) -> tuple[Result | None, list[str]]:
    """What `read` makes of the newest checkpoint that verifies and that it can read, and one line per newer one.

    `read` raises Damaged for what it cannot read. The result is None where no checkpoint is left.
    """
    complaints: list[str] = []
    for path in reversed(checkpoints(folder)):
        try:
            verify(path)
            return read(path), complaints
        except Damaged as error:
            complaints.append(str(error))
    return None, complaints


def new_folder(path: Path) -> None:
    """Make a folder and those above it, so that their names outlast a loss of power."""
    if not path.is_dir():
        new_folder(path.parent)
        path.mkdir(exist_ok=True)
        _flush(path.parent)


def write_json(path: Path, values: Any) -> None:
    """Replace a JSON file, all or nothing, flushed to disk. Raises OSError, and then leaves the old one."""
    draft = path.with_name(f".{path.name}.tmp")
    try:
        json_writer(values)(draft)
        _flush(draft)
        os.replace(draft, path)
        _flush(path.parent)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file. Raises Damaged."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise Damaged(f"{path} cannot be read: {error}") from None
    if not isinstance(values, dict):
        raise Damaged(f"{path} holds no JSON object")
    return values


def json_writer(values: Any) -> Writer:
    return lambda path: _write(path, json.dumps(values, indent=1, allow_nan=False).encode())


def tensor_writer(tensors: "Mapping[str, Tensor]") -> Writer:
    def write(path: Path) -> None:
        from safetensors.torch import save

        _write(path, save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}))

    return write


def load_tensors(path: Path) -> "dict[str, Tensor]":
    """Tensors of a safetensors file, whose declared sizes are checked against the file before anything is allocated."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        return load(path.read_bytes())  # not mapped: the file may be gone, or shorter, while they are still in use
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise Damaged(f"{path} cannot be read: {error}") from None


def load_model(folder: Path) -> "tuple[Transformer, Tokenizer]":
    """The model, in evaluation mode, and the tokenizer of one verified checkpoint. Raises ConfigError or Damaged."""
    import torch

    from partwise.model import ModelConfig, Transformer
    from partwise.tokenizers import load_tokenizer

    values = read_json(folder / "config.json").get("model")
    tensors = load_tensors(folder / "model.safetensors")
    if not isinstance(values, dict):
        raise Damaged(f"{folder / 'config.json'} lacks 'model'")
    try:
        config = ModelConfig.from_dict(values)
        with torch.device("meta"):  # what it claims is held against what the file holds before memory is spent on it
            claimed = Transformer(config)
            claimed.counts.make_room(tensors["counts.text"].numel() if "counts.text" in tensors else 0)
            expected = {name: tensor.shape for name, tensor in claimed.state_dict().items()}
            text = claimed.state_dict().get("counts.text")
    except RuntimeError as error:
        raise Damaged(f"{folder / 'config.json'} describes no model that fits in memory: {error}") from None
    if expected != {name: tensor.shape for name, tensor in tensors.items()}:
        raise Damaged(f"the weights in {folder} do not fit the configuration beside them")
    if text is not None and len(text):
        counted = tensors["counts.text"]
        if counted.dtype != text.dtype or not 0 <= counted.min() <= counted.max() < config.vocab_size:
            raise Damaged(f"the text that was counted in {folder} is no text of {config.vocab_size} tokens")
    model = Transformer(config)
    load_weights(model, tensors)
    return model.eval(), load_tokenizer(folder / "tokenizer.json", config.vocab_size)


def load_weights(model: "Transformer", tensors: "Mapping[str, Tensor]") -> None:
    """Load weights under their canonical names; missing, unknown or misshapen ones raise Damaged."""
    try:
        model.load_state_dict(dict(tensors))
    except RuntimeError as error:
        raise Damaged(f"the weights do not fit the configuration: {' '.join(str(error).split())}") from None


def load(path: str | Path) -> "tuple[Transformer, Tokenizer]":
    """The model and tokenizer of a run (its name under `runs/`, or its folder) or of one checkpoint folder.

    A damaged checkpoint is skipped, with a warning on stderr, for the newest that verifies. Raises ConfigError.
    """
    import sys

    folder = find_run(path)
    if (folder / MANIFEST).exists():
        try:
            verify(folder)
            return load_model(folder)
        except Damaged as error:
            raise ConfigError(f"{error}: give another checkpoint, or train again") from None
    found, complaints = read_newest(folder / "checkpoints", lambda path: (path.name, load_model(path)))
    if found is None:
        detail = f" ({complaints[0]})" if complaints else ""
        raise ConfigError(f"{path} holds no checkpoint that can be read{detail}: train it again with --fresh")
    for complaint in complaints:
        print(f"{complaint}; using {found[0]} instead", file=sys.stderr)
    return found[1]


def find_run(path: str | Path) -> Path:
    """The folder of a run given as its name or as a folder. Raises ConfigError with the closest known name."""
    from partwise.config import did_you_mean

    text = str(path)
    for folder in (Path("runs") / text, Path(text)):
        if (folder / "run.json").exists() or (folder / MANIFEST).exists():
            return folder
    known = [folder.parent.name for folder in Path("runs").glob("*/run.json")]
    raise ConfigError(f"there is no run {text!r}{did_you_mean(text, known)}")


def _regular(path: Path) -> Path:
    if not path.is_file():  # nor may it be a pipe, on which a reader would wait for ever
        raise Damaged(f"{path} is missing")
    return path


def _aside(target: Path, end: str) -> Path:
    return target.with_name(f".{target.name}.{os.getpid()}.{end}")


def _write(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)


def _flush(path: Path) -> None:
    """Have the system put a file, or a folder's list of names, on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
