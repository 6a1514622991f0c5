"""Starting from trained weights, `from=RUN_OR_FOLDER`: what a run takes over from a run or a folder of `transformers`."""

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from partwise.checkpoint import MANIFEST, find_run, latest_checkpoint, tensor_files, weight_paths
from partwise.config import Config, ConfigError, open_to_read
from partwise.formats.huggingface.reading import (
    is_hf_folder,
    read_hf_config,
    read_hf_model,
    read_hf_tokenizer,
)
from partwise.formats.huggingface.stored import weight_files
from partwise.model import ModelConfig, Transformer
from partwise.records import DamagedFileError, read_record

SEQ_LEN = 1024
"""Tokens per row, if the model's context is longer."""


class InitialWeights(Config):
    """The weights that a run starts from, `from`: a checkpoint, or a folder of `transformers`.

    With `reinitialize`, tensors that the model has and the source lacks, or that have another shape there, keep their
    random initial values, and tensors that only the source has are dropped; otherwise they are an error.
    """

    path: str
    """A run, a checkpoint, or a folder of `transformers` with the weights that the run starts from."""
    sha256: str = Field(min_length=64, max_length=64)
    """SHA-256 over the weight files; `from=PATH` computes it."""
    reinitialize: bool = False
    """Keep random initial values for tensors that the source lacks or has in another shape; otherwise an error."""


@dataclass(frozen=True)
class Source:
    """A model to start from."""

    folder: Path  # with the weights
    settings: dict[str, Any]  # of a run, flat
    stored_run: bool = False  # whether a run, perhaps of an older version, stored them

    def initial_weights(self) -> dict[str, Any]:
        return {"path": str(self.folder), "sha256": hash_weights(self.folder), "reinitialize": False}


def find_source(name: str) -> Source:
    """The source of a name: a run, one of its checkpoints, or a folder of `transformers`. Raises ConfigError."""
    if is_hf_folder(name):
        folder = Path(name).resolve()
        _, model = read_hf_config(folder)
        read_hf_tokenizer(folder, model.vocab_size)
        train = {"seq_len": min(model.context_length, SEQ_LEN)}
        return Source(folder, model.to_dict() | {"train": train, "tokenizer": {"part": "bpe", "path": str(folder)}})
    folder = find_run(name).resolve()
    try:
        if (folder / MANIFEST).exists():
            model = ModelConfig.from_stored(read_record(folder / "config.json").record("model"))
            return Source(folder, model.to_dict() | tokenizer_settings(folder, {}))
        stored = read_record(folder / "run.json").record("config")
        checkpoint, _ = latest_checkpoint(folder / "checkpoints")
    except (DamagedFileError, KeyError, TypeError) as error:
        raise ConfigError(f"from={name}: {error}") from None
    if checkpoint is None:
        raise ConfigError(f"from={name}: it has no readable checkpoint")
    stored.pop("from", None)
    settings = stored | tokenizer_settings(checkpoint, stored.get("data", {}))
    return Source(checkpoint, settings, stored_run=True)


def tokenizer_settings(checkpoint: Path, data: dict[str, Any]) -> dict[str, Any]:
    """The tokenizer of a checkpoint, so that other data get the same ids; that of pairs follows from their data."""
    if "pairs" in str(data.get("part")):
        return {}
    return {"tokenizer": {"part": "bpe", "path": str(checkpoint)}}


def load_initial_weights(model: Transformer, initial: InitialWeights) -> list[str]:
    """Load the weights into a model; returns the names of tensors that keep their random values.

    Layers fitted to the training text keep their fit to the run's own text. Raises ConfigError.
    """
    folder = Path(initial.path)
    if hash_weights(folder) != initial.sha256:
        raise ConfigError(f"the weights in {folder} have changed since the run was planned: restore them")
    if is_hf_folder(folder):
        theirs: dict[str, Tensor] = dict(read_hf_model(folder).state_dict())
    else:
        try:
            theirs = dict(tensor_files(folder, "model"))
        except DamagedFileError as error:
            raise ConfigError(f"from={folder}: {error}") from None
    fitted = tuple(f"{name}." for name in model.fitted_layers)
    ours = {name: tensor for name, tensor in model.state_dict().items() if not name.startswith(fitted or "\0")}
    theirs = {name: tensor for name, tensor in theirs.items() if not name.startswith(fitted or "\0")}
    new = [name for name, tensor in ours.items() if name not in theirs or theirs[name].shape != tensor.shape]
    dropped = [name for name in theirs if name not in ours]
    if (new or dropped) and not initial.reinitialize:
        what = (
            f"{new[0]} is missing there or has another shape" if new else f"{dropped[0]} is not a tensor of this model"
        )
        raise ConfigError(
            f"from={folder}: {what} ({len(new)} missing or of another shape, {len(dropped)} unexpected): undo the "
            "overrides that change tensors, or set from.reinitialize=true to initialize new tensors at "
            "random and drop the others"
        )
    with torch.no_grad():
        for name in ours.keys() - set(new):
            ours[name].copy_(theirs[name])
    return new


def hash_weights(folder: Path) -> str:
    """SHA-256 over the weight files of a checkpoint or folder, in the order of their names. Raises ConfigError."""
    files = weight_paths(folder, "model") if (folder / MANIFEST).exists() else sorted(weight_files(folder))
    hasher = hashlib.sha256()
    for path in files:
        try:
            status = path.stat()
            hasher.update(_hash_file(path, status.st_size, status.st_mtime_ns))
        except OSError as error:
            raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    return hasher.hexdigest()


@lru_cache(maxsize=64)
def _hash_file(path: Path, size: int, modified: int) -> bytes:
    with open_to_read(path) as file:
        return hashlib.file_digest(file, "sha256").digest()
