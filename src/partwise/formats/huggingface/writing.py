"""A model as a folder that `transformers` loads without partwise."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from partwise.config import ConfigError
from partwise.drafts import new_folder
from partwise.formats.huggingface.families import choose_family
from partwise.formats.huggingface.family import Family
from partwise.formats.huggingface.function import describe
from partwise.formats.huggingface.reading import CONFIG
from partwise.formats.huggingface.stored import WEIGHTS
from partwise.formats.huggingface.widening import widen_tensors
from partwise.model import Transformer
from partwise.tensor_files import write_tensors
from partwise.tokenizers import Tokenizer

NO_SPECIAL_TOKENS = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}


def hf_tensors(model: Transformer, family_name: str | None = None) -> tuple[Family, dict[str, Any], dict[str, Tensor]]:
    """The family of a model, the values of its `config.json`, and its tensors by their names in `transformers`.

    Raises ConfigError naming what no family has.
    """
    config = model.config
    family, wide = choose_family(config, family_name)
    tensors = {name: tensor.detach() for name, tensor in model.state_dict().items() if not name.startswith("ahead.")}
    tensors = widen_tensors(config, wide, tensors)
    rules = list(family.rules(wide))
    used = {name for rule in rules for name in rule.ours}
    assert used == {*tensors}, f"{family.title} has no rule for {sorted(used ^ {*tensors})}"
    return family, family.write(describe(wide)), {rule.theirs: rule.join(tensors) for rule in rules}


def write_hf_folder(
    model: Transformer,
    tokenizer: Tokenizer | None,
    folder: Path,
    *,
    family_name: str | None = None,
    dtype: torch.dtype = torch.float32,
    card: Callable[[Family], str] | None = None,
    check: Callable[[Path, Family], None] = lambda draft, family: None,
) -> Family:
    """Write config, weights, tokenizer, generation settings and model card into a new or empty folder.

    The folder is complete, and has passed `check`, which is given it under another name, or absent. Raises ConfigError
    for a folder with files, and for a model of no family.
    """
    check_new(folder)
    family, values, tensors = hf_tensors(model, family_name)
    name = str(dtype).removeprefix("torch.")
    config = {
        "architectures": [family.architecture],
        "model_type": family.model_type,
        "dtype": name,
        "torch_dtype": name,  # the same for older readers
        **values,
        **NO_SPECIAL_TOKENS,
        "use_cache": True,
    }
    files: dict[str, Any] = {
        CONFIG: config,
        "generation_config.json": {"_from_model_config": True, **NO_SPECIAL_TOKENS, "max_new_tokens": 200},
    }
    if tokenizer is not None:
        files["tokenizer_config.json"] = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": model.config.context_length,
            "clean_up_tokenization_spaces": False,
        }
    with explain_errors(folder), new_folder(folder) as draft:
        write_files(draft, files, tensors, tokenizer, dtype, card and card(family))
        check(draft, family)
    return family


def check_new(folder: Path) -> None:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} exists and is not empty: name a new folder")


def write_files(
    draft: Path,
    files: dict[str, Any],
    tensors: dict[str, Tensor],
    tokenizer: Tokenizer | None,
    dtype: torch.dtype,
    card: str | None,
) -> None:
    for name, values in files.items():
        (draft / name).write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8", newline="\n")
    kinds = {name: (dtype, tuple(tensor.shape)) for name, tensor in tensors.items()}
    write_tensors(draft / WEIGHTS, kinds, lambda name: finite(name, tensors[name].cpu().to(dtype)))
    if tokenizer is not None:
        tokenizer.save(draft / "tokenizer.json")
    if card is not None:
        (draft / "README.md").write_text(card, encoding="utf-8", newline="\n")


def finite(name: str, tensor: Tensor) -> Tensor:
    """Raises ConfigError for NaN and infinity, such as weights beyond the range of a precision."""
    if not tensor.isfinite().all():
        raise ConfigError(f"{name} is not finite in {str(tensor.dtype).removeprefix('torch.')}: choose --dtype float32")
    return tensor


@contextmanager
def explain_errors(folder: Path) -> Iterator[None]:
    """Turn an OSError into a one-line ConfigError."""
    try:
        yield
    except OSError as error:
        raise ConfigError(f"cannot write {folder}: {error.strerror or error}; choose another folder") from None
