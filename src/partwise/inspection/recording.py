"""Watching a model at named sites while it computes; a model that nobody watches pays nothing."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch import Tensor, nn

Take = Callable[[str, Tensor], None]


def sites(model: nn.Module, pattern: str) -> dict[str, nn.Module]:
    """The modules whose whole name fits a regular expression, such as r"blocks\\.\\d+\\.ffn", in the order of the model.

    Every module is a site by its name, and what it returns is what can be watched there: `embed` the embeddings,
    `blocks.3.ffn.up` what goes into the activation, `blocks.3.ffn.hidden_dropout` the hidden units that come out of it,
    `blocks.3.attention.scores.dropout` the attention weights (on the path `products`), `blocks.3` the residual stream
    after the block, `head` the logits; an encoder's begin with `encoder.`.
    """
    return {name: module for name, module in model.named_modules() if re.fullmatch(pattern, name)}


@contextmanager
def watching(model: nn.Module, pattern: str, take: Take) -> Iterator[list[str]]:
    """While this lasts, hand `take` the name and the output of every matching module each time it is called.

    `take` must copy or reduce at once: the next layer may overwrite what it is given. Outputs that are no tensor are
    left out. Yields the names of the sites.
    """
    found = sites(model, pattern)

    def hook(name: str) -> Callable[[nn.Module, object, object], None]:
        def after(module: nn.Module, inputs: object, output: object) -> None:
            if isinstance(output, Tensor):
                take(name, output)

        return after

    handles = [module.register_forward_hook(hook(name)) for name, module in found.items()]
    try:
        yield list(found)
    finally:
        for handle in handles:
            handle.remove()
