"""The values of a `config.json`: each key is read once, and none is left unread."""

import json
import math
from collections.abc import Mapping
from typing import Any

from partwise.config import ConfigError, did_you_mean

METADATA = {
    "_name_or_path",
    "_model_name_or_path",  # of models that transformers read from GGUF files
    "_attn_implementation_autoset",
    "_num_labels",
    "architectures",
    "model_type",
    "transformers_version",
    "torch_dtype",
    "dtype",
    "use_cache",
    "cache_implementation",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "sep_token_id",
    "cls_token_id",
    "decoder_start_token_id",
    "unk_token_id",
    "initializer_range",
    "id2label",
    "label2id",
    "num_labels",
    "problem_type",
    "return_dict",
    "output_attentions",
    "output_hidden_states",
    "output_router_logits",
    "task_specific_params",
    "finetuning_task",
    "tokenizer_class",
    "prefix",
    "torchscript",
    "gradient_checkpointing",
    "output_past",
    "chunk_size_feed_forward",
    "keys_to_ignore_at_inference",
    "tie_encoder_decoder",
    "max_length",
    "min_length",
    "do_sample",
    "temperature",
    "top_k",
    "top_p",
    "repetition_penalty",
    "num_beams",
}
"""Keys that do not determine the logits of a decoder."""

REQUIRED: Any = object()
MAX_LAYERS = 1000


class Values:
    """The values of a file. Each method reads one key and raises ConfigError, naming file, key and value."""

    def __init__(self, values: Mapping[str, Any], source: str) -> None:
        self.values, self.source = dict(values), source
        self.unread = set(values)

    def get(self, key: str, default: Any = REQUIRED) -> Any:
        """The value; a missing or null one counts as the default."""
        self.unread.discard(key)
        value = self.values.get(key)
        if value is None and default is REQUIRED:
            raise ConfigError(f"{self.source} lacks {key!r}: get the complete file from the model's publisher")
        return default if value is None else value

    def integer(self, key: str, default: Any = REQUIRED) -> int:
        value = self.get(key, default)
        if type(value) is float and value.is_integer():
            value = int(value)
        if type(value) is not int or not 0 <= value < 2**40:
            self.refuse(key, "expected an integer")
        return value

    def layer_count(self, key: str, default: Any = REQUIRED) -> int:
        """A number of layers, bounded before lists of that length are made."""
        if self.integer(key, default) > MAX_LAYERS:
            self.refuse(key, f"at most {MAX_LAYERS} layers are supported")
        return self.integer(key, default)

    def number(self, key: str, default: Any = REQUIRED) -> float:
        value = self.get(key, default)
        if type(value) not in (int, float) or not math.isfinite(value):
            self.refuse(key, "expected a number")
        return float(value)

    def optional_number(self, key: str) -> float | None:
        return None if self.get(key, None) is None else self.number(key)

    def nullable(self, key: str, default: int | None) -> int | None:
        """An integer or null, which differs from a missing key."""
        self.unread.discard(key)
        if key not in self.values:
            return default
        return None if self.values[key] is None else self.integer(key)

    def nullable_number(self, key: str, default: float | None) -> float | None:
        """A number or null, which differs from a missing key."""
        self.unread.discard(key)
        if key not in self.values:
            return default
        return None if self.values[key] is None else self.number(key)

    def flag(self, key: str, default: Any = REQUIRED) -> bool:
        value = self.get(key, default)
        if type(value) is not bool:
            self.refuse(key, "expected true or false")
        return value

    def name(self, key: str, known: Mapping[str, Any], default: Any = REQUIRED) -> str:
        """One of the known names."""
        value = self.get(key, default)
        if not isinstance(value, str) or value not in known:
            self.refuse(key, f"not supported{did_you_mean(str(value)[:40], known)}")
        return value

    def layers(self, key: str, n_layers: int, default: Any) -> list[Any]:
        """One value per layer."""
        value = self.get(key, default)
        if not isinstance(value, list) or len(value) != n_layers:
            self.refuse(key, f"expected a list with a value for each of the {n_layers} layers")
        return value

    def section(self, key: str) -> "Values":
        """The values of a nested object, none if it is missing."""
        value = self.get(key, {})
        if not isinstance(value, Mapping):
            self.refuse(key, "expected an object")
        return Values(value, f"{self.source}: {key}")

    def expect(self, key: str, *accepted: Any) -> None:
        """Refuse all values but these; the first is the default of a missing key."""
        value = self.get(key, accepted[0])
        if not any(type(value) is type(each) and value == each for each in accepted):
            self.refuse(key, f"only {' or '.join(map(show, accepted))} is supported")

    def ignore(self, *keys: str) -> None:
        """Mark keys without effect on the function as read."""
        self.unread -= {*keys}

    def finish(self) -> None:
        """Refuse keys that were not read."""
        if unknown := sorted(self.unread - METADATA):
            self.refuse(unknown[0], "this key is not understood, so the model may compute something else")

    def refuse(self, key: str, reason: str) -> None:
        raise ConfigError(f"{self.source}: {show(key)}={show(self.values.get(key))}: {reason}")


def show(value: Any) -> str:
    """A value as JSON has it, shortened; strings without quotes, with control characters escaped."""
    text = value if isinstance(value, str) and value.isprintable() else json.dumps(value, default=repr)
    return text if len(text) <= 60 else f"{text[:57]}..."
