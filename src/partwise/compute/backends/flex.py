"""FlexAttention, `train.attention_backend=flex`: windows, soft-caps, documents and position biases without a mask in memory.

Dong et al. 2024, arXiv:2412.05496. Its gradients need CUDA and are untested there: it is used only if it is named.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from partwise.compute import compilation
from partwise.compute.backends import Backend, backend
from partwise.compute.runtime import Runtime
from partwise.parts.attention.core import AttentionCore
from partwise.parts.attention.mask import AttentionMask, MaskRule
from partwise.parts.operations import OperationSpec, Rule, unsupported_option

HEAD_DIM_MULTIPLE = 16
DEVICES = ("cuda",)
"""Where its kernels have gradients."""


@backend
class FlexBackend(Backend):
    """torch's FlexAttention."""

    kind, name = "attention", "flex"

    def rank(self, runtime: Runtime) -> int:
        return -2

    def unsupported(self, spec: OperationSpec, runtime: Runtime) -> str | None:
        if runtime.device not in DEVICES:
            return "FlexAttention computes gradients on CUDA only"
        rules: dict[str, Rule] = {"head_dim": multiple, "v_head_dim": multiple, "scale": True, "mask": True}
        return unsupported_option(spec, {**rules, "softcap": True})

    def bind(self, module: AttentionCore, spec: OperationSpec) -> "Flex":  # type: ignore[override]
        return Flex(module.scale, module.softcap)


def multiple(head_dim: int) -> str | None:
    return f"heads must have a multiple of {HEAD_DIM_MULTIPLE} dimensions" if head_dim % HEAD_DIM_MULTIPLE else None


class Flex:
    """The attention of whole rows, or of a prompt; single tokens over a cache are computed otherwise."""

    def __init__(self, scale: float, softcap: float | None) -> None:
        self.scale, self.softcap = scale, softcap

    def takes(self, q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask) -> bool:
        rule = mask.rule
        whole = rule is not None and q.shape[2] > 1 and k.shape[2] == rule.past_length + q.shape[2]
        return whole and q.device.type in DEVICES

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask) -> Tensor:
        rule = mask.rule
        assert rule is not None
        if mask.kept is None:
            mask.kept = block_mask(rule, q, k.shape[2])
        return flex_attention()(
            q,
            k,
            v,
            score_mod=score_function(rule, self.softcap, q, k.shape[2]),
            block_mask=mask.kept,
            scale=self.scale,
            enable_gqa=q.shape[1] != k.shape[1],
        )


def flex_attention() -> Callable[..., Any]:
    """torch's function, compiled by itself unless the whole model is: uncompiled, it makes no kernel."""
    from torch.nn.attention import flex_attention as flex  # imports the compiler

    plain: Callable[..., Any] = flex.flex_attention
    makes_kernel = DEVICES_COMPILE and not torch.compiler.is_compiling()
    return compiled_flex_attention(compilation.COMPILER) if makes_kernel else plain


DEVICES_COMPILE = True
"""Whether a kernel is made; otherwise torch computes the same with all scores in memory."""


@lru_cache
def compiled_flex_attention(backend: str) -> Callable[..., Any]:
    from torch.nn.attention import flex_attention as flex

    return torch.compile(flex.flex_attention, backend=backend, dynamic=False)


def block_mask(rule: MaskRule, q: Tensor, n_keys: int) -> Any:
    """The blocks of queries and keys to compute, for all heads; None if all of them are."""
    from torch.nn.attention import flex_attention as flex

    past, window, documents = rule.past_length, rule.window, rule.document_ids
    if not rule.causal and window is None and documents is None:
        return None

    def attends(b: Tensor, h: Tensor, query: Tensor, key: Tensor) -> Tensor:
        distance = query + past - key
        visible = distance >= 0 if rule.causal else distance == distance
        if window is not None:
            visible = visible & (distance.abs() < window)
        if documents is not None:
            visible = visible & (documents[b, query + past] == documents[b, key])
        return visible

    rows = None if documents is None else q.shape[0]
    return flex.create_block_mask(attends, rows, None, q.shape[2], n_keys, device=str(q.device))


def score_function(rule: MaskRule, softcap: float | None, q: Tensor, n_keys: int) -> Callable[..., Tensor] | None:
    """The scaled score of a query and a key -> the score that enters the softmax, or None if it is the same."""
    table, past = bias_by_distance(rule, q, n_keys), rule.past_length
    if softcap is None and table is None:
        return None

    def score(s: Tensor, b: Tensor, h: Tensor, query: Tensor, key: Tensor) -> Tensor:
        if softcap is not None:
            s = softcap * torch.tanh(s / softcap)
        return s if table is None else s + table[h, n_keys - 1 - (query + past - key)]

    return score


def bias_by_distance(rule: MaskRule, q: Tensor, n_keys: int) -> Tensor | None:
    """(H, 2 S - 1) the bias of the distances S - 1, ..., -(S - 1), on which alone it may depend."""
    if rule.on_scores is None:
        return None
    query, keys = torch.tensor([n_keys - 1], device=q.device), torch.arange(2 * n_keys - 1, device=q.device)
    bias = rule.on_scores(query, keys, q)
    return None if bias is None else bias[:, 0].to(q.dtype)
