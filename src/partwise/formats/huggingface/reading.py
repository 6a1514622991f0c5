"""A folder written by `transformers`: its configuration, weights and tokenizer become ours.

Nothing in the folder is executed, and every tensor is accounted for. Nothing is allocated before names and shapes of all
tensors are known to fit.
"""

import math
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from partwise.checkpoint import MANIFEST
from partwise.config import ConfigError
from partwise.formats.huggingface.copying import allocate, blocks, copy_tensors
from partwise.formats.huggingface.families import read_config
from partwise.formats.huggingface.family import Family
from partwise.formats.huggingface.stored import DTYPES, Stored, read_object, stored_tensors
from partwise.formats.huggingface.tensors import TensorRule
from partwise.model import ModelConfig, Transformer, meta_model
from partwise.tokenizers import Tokenizer, load_tokenizer

CONFIG = "config.json"


def is_hf_folder(path: str | Path) -> bool:
    """Whether this is a folder as `transformers` writes it, not a run or checkpoint of ours."""
    folder = Path(path)
    if (Path("runs") / str(path) / "run.json").exists():  # the name of a run comes first
        return False
    return (folder / CONFIG).is_file() and not (folder / MANIFEST).exists() and not (folder / "run.json").exists()


def read_hf_config(folder: Path) -> tuple[Family, ModelConfig]:
    """The family and our configuration of the model in a folder. Raises ConfigError."""
    return read_config(read_object(folder / CONFIG), str(folder / CONFIG))


def read_hf_model(
    folder: Path, dtype: torch.dtype = torch.float32, known: tuple[Family, ModelConfig] | None = None
) -> Transformer:
    """The model in a folder, in eval mode; `known` is its configuration if it was read before.

    Needs the memory of the model and of one tensor. Raises ConfigError.
    """
    family, config = known or read_hf_config(folder)
    model = meta_model(config)
    rules = list(family.rules(config))
    with stored_tensors(folder) as stored:
        found = match_names(family, config, rules, model.state_dict(), stored, folder)
        allocate(model, dtype)
        copy_tensors(rules, found, model.state_dict(), folder)
        head = f"{family.head}.weight"
        if config.tie_embeddings and head in stored:
            check_tied(stored[head], model, folder)
    return model.eval()


def read_hf_tokenizer(folder: Path, vocab_size: int) -> Tokenizer:
    """The tokenizer of a folder. Raises ConfigError."""
    if not any((folder / name).exists() for name in ("tokenizer.json", "vocab.json", "encoder.json")):
        raise ConfigError(f"{folder} has no tokenizer.json: save the tokenizer there with `transformers`")
    return load_tokenizer(folder, vocab_size)


def load_hf(folder: Path, known: tuple[Family, ModelConfig]) -> tuple[Transformer, Tokenizer]:
    """The model, in eval mode, and the tokenizer of a folder with this configuration. Raises ConfigError."""
    return read_hf_model(folder, known=known), read_hf_tokenizer(folder, known[1].vocab_size)


def stored_dtype(folder: Path) -> torch.dtype:
    """The precision of most tensors in the folder. Raises ConfigError."""
    with stored_tensors(folder) as stored:
        counts: dict[torch.dtype, int] = {}
        for tensor in stored.values():
            if tensor.kind in DTYPES:  # some older files have masks of another
                counts[tensor.dtype] = counts.get(tensor.dtype, 0) + math.prod(tensor.shape)
    return max(counts, key=lambda dtype: counts[dtype], default=torch.float32)


def match_names(
    family: Family,
    config: ModelConfig,
    rules: list[TensorRule],
    shapes: Mapping[str, Tensor],
    stored: dict[str, Stored],
    folder: Path,
) -> dict[str, Stored]:
    """The stored tensor of each rule. Raises ConfigError for tensors that are missing, left over or of another shape."""
    head, embeddings = f"{family.head}.weight", next(rule.theirs for rule in rules if rule.ours == ("embed.weight",))
    if "lm_head.weight" in stored and head not in stored:  # its name in memory since 5.0, and in some files
        stored[head] = stored.pop("lm_head.weight")
    if not any(name.startswith(family.prefix) for name in stored):  # as the model without its head saves them
        for name in [name for name in stored if name != head]:
            stored[family.prefix + name] = stored.pop(name)
    if config.tie_embeddings and embeddings not in stored and head in stored:  # one tensor, under its other name
        stored[embeddings] = stored.pop(head)
    expected = {rule.theirs: rule.shape(shapes) for rule in rules}
    missing = [name for name in expected if name not in stored]
    if missing == [head]:
        raise ConfigError(
            f"{folder} lacks {head}: it holds the model without its head; save it as {family.architecture}"
        )
    if missing:
        raise ConfigError(f"{folder} lacks the tensor {missing[0]} ({len(missing)} missing): restore the folder")
    for name, shape in expected.items():
        if stored[name].shape != shape:
            raise ConfigError(
                f"{folder}: {name} has shape {list(stored[name].shape)}, but {CONFIG} describes {list(shape)}"
            )
        if stored[name].kind not in DTYPES:
            raise ConfigError(
                f"{stored[name].file.name}: {name} has type {stored[name].kind}: only floating point is supported"
            )
    tied = {head} if config.tie_embeddings else set()
    left_over = [name for name in stored if name not in {*expected, *tied} and not family.is_unused(name, config)]
    if left_over:
        raise ConfigError(
            f"{folder}: unexpected tensor {left_over[0]} ({len(left_over)} unexpected): a {family.title} model with this "
            f"{CONFIG} does not have it"
        )
    return {name: stored[name] for name in expected}


def check_tied(head: Stored, model: Transformer, folder: Path) -> None:
    """Raise ConfigError if the head's weights differ from the embeddings."""
    embeddings = model.embed.weight
    is_equal = head.shape == embeddings.shape and all(
        torch.equal(rows.to(embeddings.dtype), embeddings[start : start + len(rows)]) for start, rows in blocks(head)
    )
    if not is_equal:
        raise ConfigError(f"{folder}: tie_word_embeddings=true, but lm_head.weight differs from the embeddings")
