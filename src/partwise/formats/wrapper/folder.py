"""A folder that `transformers` loads after `import partwise.formats.wrapper`: any model, also of no family."""

from collections.abc import Callable
from pathlib import Path

import torch
from safetensors import SafetensorError

from partwise.config import ConfigError
from partwise.drafts import new_folder
from partwise.formats.huggingface.writing import check_new, explain_errors, finite
from partwise.formats.wrapper.models import wrap
from partwise.generation.sampling import known_ids
from partwise.model import Transformer
from partwise.tokenizers import Tokenizer, WithSpecialTokens
from partwise.tokenizers.library_errors import library_errors
from partwise.tokenizers.special_tokens import SPECIAL_TOKENS

USE = """## Use

```python
import partwise.formats.wrapper  # registers the model with transformers
from transformers import {auto}, AutoTokenizer

model, tokenizer = {auto}.from_pretrained(FOLDER), AutoTokenizer.from_pretrained(FOLDER)
```

Parts of your own: first import the module that defines them.
"""


def save_wrapped(
    model: Transformer,
    tokenizer: Tokenizer | None,
    folder: Path,
    *,
    dtype: torch.dtype = torch.float32,
    card: str | None = None,
    check: Callable[[Path], None] = lambda draft: None,
) -> None:
    """Write config, weights, tokenizer, generation settings and model card into a new or empty folder.

    The folder is complete and has passed `check`, which receives it under another name, or it is absent. `card` is the text
    of its README.md, to which the lines that load it are added. Raises ConfigError for a folder with files, and for weights
    that are not finite in `dtype`.
    """
    check_new(folder)
    special = tokenizer if isinstance(tokenizer, WithSpecialTokens) else None
    ids: dict[str, int | None] = {}
    if special is not None:
        ids = {"pad_token_id": special.pad_id, "bos_token_id": special.bos_id, "eos_token_id": special.eos_id}
        ids["decoder_start_token_id"] = special.bos_id
    wrapped = wrap(model, **ids).to(dtype)
    for name, tensor in wrapped.state_dict().items():
        finite(name, tensor)
    wrapped.generation_config.max_length = model.config.context_length
    if tokenizer is not None:
        known = known_ids(tokenizer, model.config.vocab_size, torch.device("cpu"))
        without = set(range(model.config.vocab_size)).difference(() if known is None else known.tolist())
        wrapped.generation_config.suppress_tokens = None if known is None else sorted(without)
    auto = "AutoModelForSeq2SeqLM" if model.encoder is not None else "AutoModelForCausalLM"
    with explain_errors(folder), new_folder(folder) as draft:
        try:
            wrapped.save_pretrained(draft)
        except SafetensorError as error:  # also that of the system
            raise ConfigError(f"cannot write {folder}: {error}; choose another folder") from None
        (draft / "README.md").write_text(
            f"{card or ''}\n{USE.format(auto=auto)}".lstrip(), encoding="utf-8", newline="\n"
        )
        if tokenizer is not None:
            save_tokenizer(tokenizer, model.config.context_length, draft)
        for path in draft.iterdir():  # safetensors lets its owner alone read a file
            path.chmod((draft / "README.md").stat().st_mode & 0o777)
        check(draft)


def save_tokenizer(tokenizer: Tokenizer, context_length: int, folder: Path) -> None:
    """`tokenizer.json` and `tokenizer_config.json`, as `AutoTokenizer` reads them."""
    from transformers import PreTrainedTokenizerFast

    tokenizer.save(folder / "tokenizer.json")
    special = dict(zip(("pad_token", "bos_token", "eos_token"), SPECIAL_TOKENS, strict=True))
    with library_errors("transformers cannot read tokenizer.json ({}): restore the tokenizer of the checkpoint"):
        PreTrainedTokenizerFast(
            tokenizer_file=str(folder / "tokenizer.json"),
            model_max_length=context_length,
            clean_up_tokenization_spaces=False,
            model_input_names=["input_ids", "attention_mask"],  # version 4 of transformers adds token types
            **(special if isinstance(tokenizer, WithSpecialTokens) else {}),
        ).save_pretrained(folder)
    tokenizer.save(folder / "tokenizer.json")  # exactly ours, which loads as the same tokenizer
