"""Forward hooks on named modules; a model without hooks pays nothing."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from torch import nn

Hook = Callable[[nn.Module, Any, Any], None]  # (module, inputs, output)
NamedHook = Callable[[str, Any, Any], None]  # (module name, inputs, output)


def find_modules(model: nn.Module, pattern: str) -> dict[str, nn.Module]:
    """The modules whose full name matches a regular expression, such as r"blocks\\.\\d+\\.ffn", in model order.

    Every module is observed through its output: `embed` gives the embeddings, `blocks.3.ffn.up` the input of
    the activation function, `blocks.3.ffn.hidden_dropout` the hidden units after it, `blocks.3.attention.scores.dropout`
    the attention weights (eager backend only), `blocks.3` the residual stream after the block, `head` the logits. Names
    in an encoder start with `encoder.`.
    """
    return {name: module for name, module in model.named_modules() if re.fullmatch(pattern, name)}


def watch_modules(model: nn.Module, pattern: str, hook: NamedHook) -> AbstractContextManager[None]:
    """Within this context, call `hook` with the name, inputs (a tuple) and output of each matching module.

    `hook` must copy or reduce immediately: the next layer may overwrite these tensors.
    """

    def by_name(name: str) -> Hook:
        return lambda module, inputs, output: hook(name, inputs, output)

    return forward_hooks([(module, by_name(name)) for name, module in find_modules(model, pattern).items()])


@contextmanager
def forward_hooks(hooks: Sequence[tuple[nn.Module, Hook]]) -> Iterator[None]:
    """Within this context, call each hook after every forward of its module."""
    handles = [module.register_forward_hook(hook) for module, hook in hooks]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
