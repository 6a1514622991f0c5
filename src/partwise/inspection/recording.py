"""Watching a model at named sites while it computes; a model that nobody watches pays nothing."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from torch import nn

Hook = Callable[[nn.Module, Any, Any], None]  # is given a module, what it was called with, and what it returned
Take = Callable[[str, Any, Any], None]  # the same by the module's name


def sites(model: nn.Module, pattern: str) -> dict[str, nn.Module]:
    """The modules whose whole name fits a regular expression, such as r"blocks\\.\\d+\\.ffn", in the order of the model.

    Every module is a site by its name, and what it returns is what can be watched there: `embed` the embeddings,
    `blocks.3.ffn.up` what goes into the activation, `blocks.3.ffn.hidden_dropout` the hidden units that come out of it,
    `blocks.3.attention.scores.dropout` the attention weights (on the path `products`), `blocks.3` the residual stream
    after the block, `head` the logits; an encoder's begin with `encoder.`.
    """
    return {name: module for name, module in model.named_modules() if re.fullmatch(pattern, name)}


def watching(model: nn.Module, pattern: str, take: Take) -> AbstractContextManager[None]:
    """While this lasts, hand `take` the name of every matching module, its inputs (a tuple) and its output at each call.

    `take` must copy or reduce at once: the next layer may overwrite what it is given.
    """

    def by_name(name: str) -> Hook:
        return lambda module, inputs, output: take(name, inputs, output)

    return hooked([(module, by_name(name)) for name, module in sites(model, pattern).items()])


@contextmanager
def hooked(hooks: Sequence[tuple[nn.Module, Hook]]) -> Iterator[None]:
    """While this lasts, call each hook whenever its module was."""
    handles = [module.register_forward_hook(hook) for module, hook in hooks]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
