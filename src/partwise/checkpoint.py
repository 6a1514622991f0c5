"""Checkpoints: folders that are either complete or absent and hold only safetensors and JSON.

A folder is written next to its destination under a temporary name; every file is synced to disk, the manifest with
sizes and SHA-256 hashes is written last, and one rename makes the folder visible. The latest checkpoint is the last one
that verifies; no pointer to it is stored.
"""

import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from partwise.config import ConfigError
from partwise.drafts import hidden_sibling, make_draft
from partwise.files import file_sha256, rename, sync, write_file
from partwise.json_files import Writer, json_writer
from partwise.messages import print_message
from partwise.records import DamagedFileError, read_record

if TYPE_CHECKING:
    from torch import Tensor

    from partwise.model import Transformer
    from partwise.tensor_files import TensorFiles
    from partwise.tokenizers import Tokenizer

MANIFEST = "manifest.json"
FORMAT = 1
Result = TypeVar("Result")


def write_synced(path: Path, write: Writer) -> dict[str, Any]:
    """Write a file and sync it to disk; returns its entry of the manifest."""
    write(path)
    sync(path)
    return {"size": path.stat().st_size, "sha256": file_sha256(path)}


def write_folder(
    target: Path, files: Mapping[str, Writer], written: Mapping[str, dict[str, Any]] | None = None
) -> None:
    """Write `files` into a new folder `target` atomically and sync it to disk; an existing `target` is replaced.

    `written` are the entries of files that processes have written into the draft of `target` before. A killed process
    leaves at most hidden sibling folders, which `remove_leftovers` deletes. On OSError nothing is left.
    """
    draft, previous = hidden_sibling(target, "tmp"), hidden_sibling(target, "old")
    try:
        if written is None:
            make_draft(target)
        manifest = {**(written or {}), **{name: write_synced(draft / name, write) for name, write in files.items()}}
        json_writer({"format": FORMAT, "files": manifest})(draft / MANIFEST)
        sync(draft / MANIFEST)
        sync(draft)
        if target.exists():
            rename(target, previous)
        rename(draft, target)
        sync(target.parent)
    except BaseException:
        if previous.exists() and not target.exists():
            rename(previous, target)
        shutil.rmtree(draft, ignore_errors=True)
        raise
    shutil.rmtree(previous, ignore_errors=True)


def remove_folder(target: Path) -> None:
    """Remove a folder atomically: a killed process never leaves part of it under its name."""
    hidden = hidden_sibling(target, "tmp")
    shutil.rmtree(hidden, ignore_errors=True)
    rename(target, hidden)
    shutil.rmtree(hidden, ignore_errors=True)


def verify(folder: Path) -> None:
    """Raise DamagedFileError unless every file has the size and hash recorded in the manifest."""
    try:
        manifest = read_record(_require_file(folder / MANIFEST))
        if manifest["format"] != FORMAT:
            raise DamagedFileError(f"{folder} is in format {manifest['format']!r}; this version reads format {FORMAT}")
        for name, entry in manifest["files"].items():
            if not re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]*", name):
                raise DamagedFileError(f"{folder / MANIFEST} lists an invalid file name {name!r}")
            path = _require_file(folder / name)
            if path.stat().st_size != entry["size"] or file_sha256(path) != entry["sha256"]:
                raise DamagedFileError(f"{path} is damaged")
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise DamagedFileError(f"{folder / MANIFEST} cannot be read: {error}") from None


def list_checkpoints(folder: Path) -> list[Path]:
    """The checkpoints in a folder, valid or not, sorted by step."""
    return sorted((path for path in folder.glob("step-*") if path.name[5:].isdecimal()), key=step_of)


def remove_older_checkpoints(folder: Path) -> None:
    """Remove all checkpoints in a folder but the latest."""
    for path in list_checkpoints(folder)[:-1]:
        remove_folder(path)


def step_of(checkpoint: Path) -> int:
    return int(checkpoint.name[5:])


def latest_checkpoint(folder: Path) -> tuple[Path | None, list[str]]:
    """The checkpoint with the highest step that verifies, and an error message for each later one."""
    return read_latest(folder, lambda path: path)


def read_latest(folder: Path, read: Callable[[Path], Result]) -> tuple[Result | None, list[str]]:
    """The result of `read` on the latest checkpoint that verifies and can be read, and a message for each later one.

    `read` raises DamagedFileError for a checkpoint it cannot read. The result is None if no checkpoint is readable.
    """
    errors: list[str] = []
    for path in reversed(list_checkpoints(folder)):
        try:
            verify(path)
            return read(path), errors
        except DamagedFileError as error:
            errors.append(str(error))
    return None, errors


def tensor_writer(tensors: "Mapping[str, Tensor]") -> Writer:
    def write(path: Path) -> None:
        from safetensors.torch import save

        write_file(path, save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}))

    return write


def tensor_files(checkpoint: Path, kind: str) -> "TensorFiles":
    """The tensors of a checkpoint, `model` or `optimizer`: in one file, or in those of the processes that share a model."""
    from partwise.tensor_files import TensorFiles

    return TensorFiles(weight_paths(checkpoint, kind))


def weight_paths(checkpoint: Path, kind: str) -> list[Path]:
    """The files of `tensor_files`."""
    path = checkpoint / f"{kind}.safetensors"
    shards = sorted(checkpoint.glob(f"{kind}-shard-*.safetensors"))
    return shards if shards and not path.exists() else [path]


def is_sharded(checkpoint: Path) -> bool:
    """Whether several processes have each written their part of a checkpoint."""
    return not (checkpoint / "model.safetensors").exists()


def load_model(folder: Path) -> "tuple[Transformer, Tokenizer]":
    """The model, in eval mode, and the tokenizer of a verified checkpoint. Raises ConfigError or DamagedFileError."""
    import torch

    from partwise.model import ModelConfig, Transformer
    from partwise.tokenizers import load_tokenizer

    values = read_record(folder / "config.json").get("model")
    files = tensor_files(folder, "model")
    if not isinstance(values, dict):
        raise DamagedFileError(f"{folder / 'config.json'} has no 'model' entry")
    try:
        config = ModelConfig.from_stored(values)
        with torch.device("meta"):  # compare the claimed shapes with the file's before allocating memory
            claimed = Transformer(config)
            for name, layer in claimed.fitted_layers.items():
                layer.allocate(tensors_of(name, files))
            expected = {name: tensor.shape for name, tensor in claimed.state_dict().items()}
    except RuntimeError as error:
        raise DamagedFileError(f"{folder / 'config.json'} describes a model too large for memory: {error}") from None
    if expected != files.shapes:
        raise DamagedFileError(f"the weights in {folder} do not match the configuration in config.json")
    tensors = dict(files)
    for name, layer in claimed.fitted_layers.items():
        damage = layer.find_damage(tensors_of(name, tensors))
        if damage:
            raise DamagedFileError(f"{folder} is damaged: {name}.{damage}")
    model = Transformer(config)
    load_weights(model, tensors)
    return model.eval(), load_tokenizer(folder / "tokenizer.json", config.vocab_size)


def tensors_of(layer: str, tensors: "Mapping[str, Tensor]") -> "dict[str, Tensor]":
    """The tensors of one layer, by their names in it."""
    prefix = f"{layer}."
    return {name.removeprefix(prefix): tensors[name] for name in tensors if name.startswith(prefix)}


def load_weights(model: "Transformer", tensors: "Mapping[str, Tensor]") -> None:
    """Load weights by name; missing, unexpected or wrongly shaped ones raise DamagedFileError."""
    try:
        model.load_state_dict(dict(tensors))
    except RuntimeError as error:
        raise DamagedFileError(f"the weights do not match the configuration: {' '.join(str(error).split())}") from None


def load(path: str | Path) -> "tuple[Transformer, Tokenizer]":
    """The model and tokenizer of a run (its name under `runs/`, or its folder) or of a checkpoint folder.

    A run loads its latest checkpoint that verifies; skipped ones are reported on stderr. Raises ConfigError.
    """
    folder = find_run(path)
    if (folder / MANIFEST).exists():
        try:
            verify(folder)
            return load_model(folder)
        except DamagedFileError as error:
            raise ConfigError(f"{error}: give another checkpoint, or train again") from None
    loaded, errors = read_latest(folder / "checkpoints", lambda path: (path.name, load_model(path)))
    if loaded is None:
        detail = f" ({errors[0]})" if errors else ""
        raise ConfigError(f"{path} has no readable checkpoint{detail}: train it again with --fresh")
    for message in errors:
        print_message(f"{message}; using {loaded[0]} instead")
    return loaded[1]


def find_run(path: str | Path) -> Path:
    """The folder of a run, given its name or its folder. Raises ConfigError with the closest known name."""
    from partwise.config import did_you_mean

    text = str(path)
    for folder in (Path("runs") / text, Path(text)):
        if (folder / "run.json").exists() or (folder / MANIFEST).exists():
            return folder
        if runs := sorted(folder.glob("runs/*/*/run.json")):
            raise ConfigError(f"{text} is a comparison: name one of its runs, such as {runs[0].parent}")
    known = [folder.parent.name for folder in Path("runs").glob("[!.]*/run.json")]
    raise ConfigError(f"there is no run {text!r}{did_you_mean(text, known)}")


def _require_file(path: Path) -> Path:
    if not path.is_file():  # this also refuses a pipe, on which a reader would wait forever
        raise DamagedFileError(f"{path} is missing")
    return path
