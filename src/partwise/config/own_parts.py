"""The parts in a configuration that are not of this package: their names, and what their families expect."""

import sys
import traceback
from collections.abc import Callable
from functools import wraps
from typing import TypeVar

from partwise.config.parts import Config, Part
from partwise.config.yaml import ConfigError

EXPECTED = {
    "positions": "build(layer_ctx), which returns a PositionLayer",
    "ngram_embeddings": "build(layer_ctx, vocab_size), which returns a module with forward(x, tokens, ctx)",
    "attention": "heads(d_model) and build(layer_ctx), which returns an AttentionLayer with forward(x, ctx)",
    "short_conv": "build(layer_ctx), which returns a module with forward(x, ctx)",
    "ffn": "build(layer_ctx), which returns a module with forward(x, ctx)",
    "norm": "build(width), which returns a module with forward(x)",
    "residual": "build(layer_ctx, branches, new_norm), which returns a module with forward(x, ctx, branches), and "
    "build_ends(layer_ctx, new_norm)",
    "mtp": "build(layer_ctx, vocab_size), which returns an MTPLayer with forward(x)",
    "init": "draw(values, spec, generator)",
    "ngram_lm": "build(vocab_size), which returns a module with forward(logits, tokens, ctx)",
    "optimizer": "build(model, lr), which returns a torch.optim.Optimizer",
    "schedule": "factor(step, steps), which returns a number",
    "data": "alphabet(), splits() and identity()",
}
"""Family -> the methods of its recipes and of what they return."""

C = TypeVar("C", bound=Config)


def own_parts(config: Config) -> list[Part]:
    """The recipes in a configuration, and in its recipes, that are not of this package."""
    found: list[Part] = []
    for name in type(config).model_fields:
        if isinstance(value := getattr(config, name), Config) and not isinstance(value, Part):
            found += own_parts(value)
    for recipe in config.parts():
        if not type(recipe).__module__.startswith("partwise."):
            found.append(recipe)
        found += own_parts(recipe)
    return found


def own_names(config: Config) -> str:
    """The parts that are not of this package, with their files: `ffn=mine (my_parts.py)`; '' if there are none."""
    names = (
        f"{each.family}={each.name}" + (f" ({file_of(each)})" if file_of(each) else "") for each in own_parts(config)
    )
    return ", ".join(dict.fromkeys(names))


def file_of(recipe: Part) -> str | None:
    """The file that defines a recipe, if there is one."""
    return getattr(sys.modules.get(type(recipe).__module__), "__file__", None)


def own_error(config: Config, error: Exception) -> ConfigError:
    """The error for custom parts without the methods of their families; it names the expected ones."""
    families = dict.fromkeys(each.family for each in own_parts(config))
    expected = [f"{family}: {EXPECTED[family]}" for family in families if family in EXPECTED]
    hint = f"; expected of {'; '.join(expected)}" if expected else ""
    files = {file_of(each) for each in own_parts(config)}
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename in files]
    where = f" (line {lines[-1]})" if lines else ""
    return ConfigError(f"{own_names(config)}: {describe_error(error)}{where}{hint}")


def explain_own(check: Callable[[C], object]) -> Callable[[C], None]:
    """The check of a configuration; an error by a part that is not of this package names what its family expects."""

    @wraps(check)
    def explained(config: C) -> None:
        try:
            check(config)
        except (TypeError, AttributeError, NotImplementedError) as error:
            if not own_parts(config):
                raise
            raise own_error(config, error) from error

    return explained


def describe_error(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:200]}" if text else type(error).__name__
