"""`generate`: text by a trained model, as text or as JSON lines."""

import json
import re
from dataclasses import dataclass, field
from typing import Any

from partwise.cli.json_output import json_output
from partwise.cli.terminal import console, flush_text, with_prompt
from partwise.compute.backend_plan import apply_backends
from partwise.compute.runtime import choose_runtime
from partwise.config import ConfigError
from partwise.formats.loading import load
from partwise.generation.generate import generate
from partwise.inspection.next_token_attention import NextTokenAttention
from partwise.model import Transformer
from partwise.tokenizers import Tokenizer, WithSpecialTokens
from partwise.train.config import TrainConfig
from partwise.train.samples import first_prompt

WEIGHT_DIGITS = 7
"""Decimals of attention weights: as many as float32 has."""


def generate_text(
    name: str, prompts: list[str], settings: dict[str, Any], as_json: bool = False, attention: str | None = None
) -> None:
    """Print the continuation of each prompt, or the target of each source; a single one is streamed.

    `settings` are options of `generate`. `as_json` prints JSON lines, with the weights of the `attention` LAYER,HEAD if
    asked. Raises ConfigError.
    """
    place = None if attention is None else parse_attention(attention, prompts, settings, as_json)
    model, tokenizer = load(name)
    paired = isinstance(tokenizer, WithSpecialTokens)
    if paired and not prompts:
        raise ConfigError(f"{name} was trained on pairs: give a source with --prompt TEXT")
    if paired and attention is not None:
        raise ConfigError(f"--attention {attention}: {name} was trained on pairs; `partwise inspect` shows its maps")
    prompts = prompts or [first_prompt(tokenizer)]
    if as_json:
        lines = JsonLines(model, tokenizer, prompts, place, settings["max_new_tokens"])
        apply_backends(model, choose_runtime(TrainConfig(device="cpu", precision="float32")))
        lines.print_end(generate(model, tokenizer, prompts, **settings, on_token=lines.print_token))
        return
    apply_backends(model, choose_runtime(TrainConfig(device="cpu", precision="float32")))
    print_text(model, tokenizer, prompts, settings)


def print_text(model: Transformer, tokenizer: Tokenizer, prompts: list[str], settings: dict[str, Any]) -> None:
    arrow, end = (" -> ", "") if isinstance(tokenizer, WithSpecialTokens) else ("", "\n")
    if len(prompts) == 1:
        waiting = [prompts[0]]  # printed with the first text, so that a request that is refused prints nothing

        def show(row: int, piece: str) -> None:
            while waiting:
                flush_text(waiting.pop(), bold=True)
                flush_text(arrow)
            flush_text(piece)

        generate(model, tokenizer, prompts, **settings, on_text=show)
        show(0, "\n")
        return
    for prompt, text in zip(prompts, generate(model, tokenizer, prompts, **settings), strict=True):
        console.print(with_prompt(prompt, f"{arrow}{text}{end}"), soft_wrap=True)


def parse_attention(word: str, prompts: list[str], settings: dict[str, Any], as_json: bool) -> tuple[int, int]:
    """Layer and head of `LAYER,HEAD`. Raises ConfigError, also for what has no weights of one text."""
    found = re.fullmatch(r"(\d{1,6}),(\d{1,6})", word, re.ASCII)
    if found is None:
        raise ConfigError(f"--attention {word}: expected LAYER,HEAD, such as 0,0")
    refused = {
        "needs --json": not as_json,
        "is of one text: give one --prompt": len(prompts) > 1,
        "is of sampled text: leave out --num-beams": settings["num_beams"] is not None,
        "is computed in float32: leave out --precision": settings["precision"] != "float32",
    }
    for reason, applies in refused.items():
        if applies:
            raise ConfigError(f"--attention {word} {reason}")
    return int(found[1]), int(found[2])


@dataclass
class JsonLines:
    """The lines of `generate --json`: the tokens of every prompt, each token as it is written, all texts at the end."""

    model: Transformer
    tokenizer: Tokenizer
    prompts: list[str]
    place: tuple[int, int] | None
    max_new_tokens: int
    ids: list[int] = field(default_factory=list)
    """The tokens of the only prompt and its text so far, with attention."""
    attention: NextTokenAttention | None = None
    begun: bool = False

    def __post_init__(self) -> None:
        if self.place is not None:
            self.ids = self.tokenizer.encode(self.prompts[0]).tolist()
            length = len(self.ids) + max(1, self.max_new_tokens)
            self.attention = NextTokenAttention(self.model, *self.place, length)

    def print_prompts(self) -> None:
        """Before the first token, so that a request that is refused prints nothing."""
        self.begun = True
        for row, prompt in enumerate(self.prompts):
            print_line({"kind": "prompt", "row": row, "tokens": token_texts(self.tokenizer, prompt)})

    def print_token(self, row: int, token: int | None, piece: str) -> None:
        if not self.begun:
            self.print_prompts()
        if token is None:
            print_line({"kind": "text", "row": row, "text": piece})
            return
        line = {"kind": "token", "row": row, "id": token, "text": piece}
        if self.attention is not None:
            weights = self.attention.weights(self.ids).tolist()
            line["attention"] = [round(weight, WEIGHT_DIGITS) for weight in weights]
            self.ids.append(token)
        print_line(line)

    def print_end(self, texts: list[str]) -> None:
        if not self.begun:
            self.print_prompts()
        print_line({"kind": "end", "texts": texts})


def token_texts(tokenizer: Tokenizer, prompt: str) -> list[str]:
    """The text that each token of a prompt completes; the text of a token that ends within a character is empty."""
    stream = tokenizer.decode_stream()
    texts = [stream.push(index) for index in tokenizer.encode(prompt).tolist()]
    rest = stream.flush()
    return [*texts[:-1], texts[-1] + rest]


def print_line(values: dict[str, Any]) -> None:
    print(json.dumps(values, allow_nan=False), file=json_output(), flush=True)
