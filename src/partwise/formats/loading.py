"""A model from any folder that holds one: a run, a checkpoint, or a folder as `transformers` writes it."""

from pathlib import Path

from partwise import checkpoint
from partwise.formats.huggingface.reading import is_hf_folder, load_hf, read_hf_config
from partwise.model import Transformer
from partwise.tokenizers import Tokenizer


def load(path: str | Path) -> tuple[Transformer, Tokenizer]:
    """The model, in eval mode, and the tokenizer of a run (its name under `runs/`, or its folder), of a checkpoint, or of
    a folder as `transformers` writes it.

    A run loads its latest checkpoint that verifies; skipped ones are reported on stderr. Nothing in the folder is
    executed. Raises ConfigError.
    """
    if not is_hf_folder(path):
        return checkpoint.load(path)
    return load_hf(Path(path), read_hf_config(Path(path)))
