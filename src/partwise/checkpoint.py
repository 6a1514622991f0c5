"""Checkpoints: folders that are either whole or absent, holding safetensors and JSON only.

A folder is written beside its place under a temporary name, every file is flushed to disk, a manifest with sizes and
SHA-256 comes last, and one rename makes it visible. Which checkpoint is the latest is computed from what verifies, never
stored in a pointer.
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from partwise.config import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

    from partwise.model import Transformer
    from partwise.tokenizers import Tokenizer

MANIFEST = "manifest.json"
FORMAT = 1
Writer = Callable[[Path], None]


class Damaged(Exception):
    """A checkpoint is missing a file, or a file is not what its manifest says."""


def write_folder(target: Path, files: Mapping[str, Writer]) -> None:
    """Write every file into a new folder `target`, all or nothing, flushed to disk. An older `target` is replaced."""
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir()
        manifest = {}
        for name, write in files.items():
            path = temporary / name
            write(path)
            _flush(path)
            manifest[name] = {"size": path.stat().st_size, "sha256": _sha256(path)}
        listing = temporary / MANIFEST
        listing.write_text(json.dumps({"format": FORMAT, "files": manifest}, indent=1))
        _flush(listing)
        _flush(temporary)
        if target.exists():
            retired = target.with_name(f".{target.name}.{os.getpid()}.old")
            os.rename(target, retired)
            os.rename(temporary, target)
            shutil.rmtree(retired, ignore_errors=True)
        else:
            os.rename(temporary, target)
        _flush(target.parent)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def verify(folder: Path) -> None:
    """Raise Damaged unless every file has the size and the hash that the manifest names."""
    try:
        files = json.loads((folder / MANIFEST).read_text())["files"]
        for name, entry in files.items():
            if not re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]*", name):
                raise Damaged(f"{folder} names a file {name!r}")
            path = folder / name
            if path.stat().st_size != entry["size"] or _sha256(path) != entry["sha256"]:
                raise Damaged(f"{path} is damaged")
    except FileNotFoundError as error:
        raise Damaged(f"{error.filename} is missing") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise Damaged(f"{folder / MANIFEST} cannot be read: {error}") from None


def newest(folder: Path) -> tuple[Path | None, list[str]]:
    """The checkpoint of the highest step that verifies, and one line per newer one that does not."""
    complaints = []
    for path in sorted(folder.glob("step-*"), key=lambda path: path.name, reverse=True):
        try:
            verify(path)
        except Damaged as error:
            complaints.append(str(error))
        else:
            return path, complaints
    return None, complaints


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
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise Damaged(f"{path} cannot be read: {error}") from None


def load_model(folder: Path) -> "tuple[Transformer, Tokenizer]":
    """The model and the tokenizer of one verified checkpoint folder, in evaluation mode. Raises ConfigError or Damaged."""
    from partwise.model import ModelConfig, Transformer
    from partwise.tokenizers import load_tokenizer

    config = ModelConfig.from_dict(json.loads((folder / "config.json").read_text())["model"])
    model = Transformer(config)
    load_weights(model, load_tensors(folder / "model.safetensors"))
    return model.eval(), load_tokenizer(folder / "tokenizer.json")


def load_weights(model: "Transformer", tensors: "Mapping[str, Tensor]") -> None:
    """Load weights under their canonical names; missing, unknown or misshapen ones raise Damaged."""
    try:
        model.load_state_dict(dict(tensors))
    except RuntimeError as error:
        raise Damaged(f"the weights do not fit the configuration: {' '.join(str(error).split())}") from None


def load(path: str | Path) -> "tuple[Transformer, Tokenizer]":
    """The model and tokenizer of a run (its name under `runs/`, or its folder) or of one checkpoint folder.

    A damaged checkpoint is skipped, with a warning on stderr, in favour of the newest that verifies. Raises ConfigError.
    """
    import sys

    folder = find_run(path)
    try:
        if (folder / MANIFEST).exists():
            verify(folder)
            return load_model(folder)
        checkpoint, complaints = newest(folder / "checkpoints")
        if checkpoint is None:
            detail = f" ({complaints[0]})" if complaints else ""
            raise ConfigError(f"{path} holds no checkpoint that can be read{detail}: train it again with --fresh")
        for complaint in complaints:
            print(f"{complaint}; using {checkpoint.name} instead", file=sys.stderr)
        return load_model(checkpoint)
    except Damaged as error:
        raise ConfigError(f"{error}: give another checkpoint, or train again") from None


def find_run(path: str | Path) -> Path:
    """The folder of a run given as its name or as a folder. Raises ConfigError with the closest known name."""
    from partwise.config import did_you_mean

    text = str(path)
    for folder in (Path("runs") / text, Path(text)):
        if (folder / "run.json").exists() or (folder / MANIFEST).exists():
            return folder
    known = [folder.parent.name for folder in Path("runs").glob("*/run.json")]
    raise ConfigError(f"there is no run {text!r}{did_you_mean(text, known)}")


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
