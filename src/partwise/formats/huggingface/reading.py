"""A folder written by `transformers`: its configuration, weights and tokenizer become ours.

Nothing in the folder is executed, and every tensor is accounted for. Nothing is allocated before names and shapes of all
tensors are known to fit.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from partwise.checkpoint import MANIFEST
from partwise.config import ConfigError
from partwise.files import open_to_read
from partwise.formats.huggingface.families import read_config
from partwise.formats.huggingface.family import Family
from partwise.formats.huggingface.tensors import TensorRule
from partwise.model import ModelConfig, Transformer
from partwise.tokenizers import Tokenizer, load_tokenizer

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
MAX_JSON_BYTES = 1 << 26
DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


@dataclass(frozen=True)
class Stored:
    """A tensor in a file."""

    file: BufferedReader
    start: int  # of its bytes
    shape: tuple[int, ...]
    dtype: torch.dtype

    def read(self) -> Tensor:
        # not from a mapped file, whose pages would stay in memory beside the weights
        values = torch.empty(self.shape, dtype=self.dtype)
        self.file.seek(self.start)
        if self.file.readinto(values.view(-1).view(torch.uint8).numpy().data) != values.nbytes:
            raise ConfigError(f"{self.file.name} ends within a tensor: restore the folder")
        return values


def is_hf_folder(path: str | Path) -> bool:
    """Whether this is a folder as `transformers` writes it, not a run or checkpoint of ours."""
    folder = Path(path)
    if (Path("runs") / str(path) / "run.json").exists():  # the name of a run comes first
        return False
    return (folder / CONFIG).is_file() and not (folder / MANIFEST).exists() and not (folder / "run.json").exists()


def read_hf_config(folder: Path) -> tuple[Family, ModelConfig]:
    """The family and our configuration of the model in a folder. Raises ConfigError."""
    return read_config(read_object(folder / CONFIG), str(folder / CONFIG))


def read_hf_model(folder: Path, dtype: torch.dtype = torch.float32) -> Transformer:
    """The model in a folder, in eval mode. Needs the memory of the model and of one tensor. Raises ConfigError."""
    family, config = read_hf_config(folder)
    with torch.device("meta"):
        model = Transformer(config)
    rules = list(family.rules(config))
    with stored_tensors(folder) as stored:
        found = match_names(family, config, rules, model.state_dict(), stored, folder)
        model = allocate(model, dtype)
        ours = model.state_dict()
        for rule in rules:
            rule.copy(found[rule.theirs].read(), ours)
            check_finite(rule, ours, folder)
        if config.tie_embeddings and "lm_head.weight" in stored:
            check_tied(stored["lm_head.weight"].read(), model, folder)
    return model.eval()


def read_hf_tokenizer(folder: Path, vocab_size: int) -> Tokenizer:
    """The tokenizer of a folder. Raises ConfigError."""
    if not any((folder / name).exists() for name in ("tokenizer.json", "vocab.json", "encoder.json")):
        raise ConfigError(f"{folder} has no tokenizer.json: save the tokenizer there with `transformers`")
    return load_tokenizer(folder, vocab_size)


def stored_dtype(folder: Path) -> torch.dtype:
    """The precision of most tensors in the folder. Raises ConfigError."""
    with stored_tensors(folder) as stored:
        counts: dict[torch.dtype, int] = {}
        for tensor in stored.values():
            counts[tensor.dtype] = counts.get(tensor.dtype, 0) + math.prod(tensor.shape)
    return max(counts, key=lambda dtype: counts[dtype])


@contextmanager
def stored_tensors(folder: Path) -> Iterator[dict[str, Stored]]:
    """The tensors in the safetensors files of a folder, by name, while the files are open. Raises ConfigError."""
    from safetensors import SafetensorError, safe_open

    stored: dict[str, Stored] = {}
    with ExitStack() as stack:
        for path, names in weight_files(folder).items():
            try:
                with safe_open(path, framework="pt"):  # checks types, sizes and places of all tensors
                    file = stack.enter_context(open_to_read(path))
                for name, tensor in read_header(file).items():
                    if name in stored:
                        raise ConfigError(f"{path}: {name} is also in another file: restore the folder")
                    stored[name] = tensor
            except (SafetensorError, OSError, ValueError) as error:
                raise ConfigError(f"{path} is damaged: {' '.join(str(error).split())[:200]}") from None
            if missing := sorted(names - {*stored}):
                raise ConfigError(f"{path} lacks {missing[0]}, which {INDEX} lists: restore the folder")
        if not stored:
            raise ConfigError(f"{folder} has no tensors: restore the folder")
        yield stored


def read_header(file: BufferedReader) -> dict[str, Stored]:
    """The tensors of a safetensors file that the library has checked. Raises ConfigError."""
    size = int.from_bytes(file.read(8), "little")
    header = json.loads(file.read(size))
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        if entry["dtype"] not in DTYPES:
            raise ConfigError(f"{file.name}: {name} has type {entry['dtype']}: only floating point is supported")
        start, _ = entry["data_offsets"]
        tensors[name] = Stored(file, 8 + size + start, tuple(entry["shape"]), DTYPES[entry["dtype"]])
    return tensors


def weight_files(folder: Path) -> dict[Path, set[str]]:
    """The safetensors files of a folder, with the tensors that the index expects in each. Raises ConfigError."""
    single = folder / WEIGHTS
    if single.exists():
        return {check_file(single): set()}
    if not (folder / INDEX).exists():
        pickled = next(iter(sorted(folder.glob("pytorch_model*.bin"))), None)
        hint = f": {pickled.name} may contain code and is not read; convert it to safetensors" if pickled else ""
        raise ConfigError(f"{folder} has no {WEIGHTS}{hint}")
    weight_map = read_object(folder / INDEX).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ConfigError(f"{folder / INDEX} has no weight_map: restore the folder")
    files: dict[Path, set[str]] = {}
    for name, file in weight_map.items():
        if not isinstance(file, str) or not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]*\.safetensors", file):
            raise ConfigError(f"{folder / INDEX} names the file {str(file)[:80]!r}: expected a file in the folder")
        files.setdefault(folder / file, set()).add(name)
    return {check_file(path): names for path, names in files.items()}


def check_file(path: Path) -> Path:
    if not path.is_file():  # a pipe would block
        raise ConfigError(f"{path} is missing or no regular file: restore the folder")
    return path


def read_object(path: Path) -> dict[str, Any]:
    """A JSON object of bounded size. Raises ConfigError."""
    check_file(path)
    try:
        if path.stat().st_size > MAX_JSON_BYTES:
            raise ConfigError(f"{path} has {path.stat().st_size:,} bytes, more than any such file: restore the folder")
        values = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{path} does not contain a JSON object: restore the folder")
    return values


def match_names(
    family: Family,
    config: ModelConfig,
    rules: list[TensorRule],
    shapes: Mapping[str, Tensor],
    stored: dict[str, Stored],
    folder: Path,
) -> dict[str, Stored]:
    """The stored tensor of each rule. Raises ConfigError for tensors that are missing, left over or of another shape."""
    if not any(name.startswith(family.prefix) for name in stored):  # as the model without its head saves them
        for name in [name for name in stored if not name.startswith("lm_head.")]:
            stored[family.prefix + name] = stored.pop(name)
    expected = {rule.theirs: tuple(rule.join(dict(shapes)).shape) for rule in rules}
    if missing := [name for name in expected if name not in stored]:
        raise ConfigError(f"{folder} lacks the tensor {missing[0]} ({len(missing)} missing): restore the folder")
    for name, shape in expected.items():
        if stored[name].shape != shape:
            raise ConfigError(
                f"{folder}: {name} has shape {list(stored[name].shape)}, but {CONFIG} describes {list(shape)}"
            )
    tied = {"lm_head.weight"} if config.tie_embeddings else set()
    left_over = [name for name in stored if name not in {*expected, *tied} and not family.is_unused(name, config)]
    if left_over:
        raise ConfigError(
            f"{folder}: the tensor {left_over[0]} has no place in a {family.title} model as {CONFIG} describes it "
            f"({len(left_over)} left over)"
        )
    return {name: stored[name] for name in expected}


def allocate(model: Transformer, dtype: torch.dtype) -> Transformer:
    """The model with memory for its weights, not initialized: sampling them would take longer than reading."""
    model = model.to(dtype).to_empty(device="cpu")
    model.tie_weights()
    for buffer in model.buffers():
        buffer.zero_()
    return model


def check_finite(rule: TensorRule, ours: dict[str, Tensor], folder: Path) -> None:
    """Raise ConfigError for NaN and infinity."""
    for tensor in rule.sources(ours):
        # the sum is several times as fast, but may overflow
        if not math.isfinite(tensor.sum()) and not tensor.isfinite().all():
            raise ConfigError(f"{folder}: {rule.theirs} contains NaN or infinity: restore the folder")


def check_tied(head: Tensor, model: Transformer, folder: Path) -> None:
    if head.shape != model.embed.weight.shape or not torch.equal(head.to(model.embed.weight.dtype), model.embed.weight):
        raise ConfigError(f"{folder}: tie_word_embeddings=true, but lm_head.weight differs from the embeddings")
