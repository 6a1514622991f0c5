"""The post on SwiGLU: a minimal GPT with a ReLU or SwiGLU feed-forward layer.

x_0 = embed[tokens] + positions[0..T-1]
h   = x + out(attention(LayerNorm(x)))      q, k and v without bias, out with bias, scale 1/sqrt(E)
x'  = h + ffn(LayerNorm(h))                 no biases: down(relu(up(h))), or down(silu(gate(h)) * up(h))
logits = head(LayerNorm(x_L))               head with bias, untied

8 layers, width 96, 8 heads, context 128, hidden width 4 * 96, LayerNorm eps 1e-5 (torch's default), no dropout. The
post splits its fused projection in the order k, q, v; here they are separate, so the order does not matter. Its w is
our gate, its v our up, its w2 our down.

Two errors of the post, both tested: its formula of the SwiGLU layer, (SwiGLU(xW) * xV) W2, gates twice, because its
SwiGLU already is the gated product, while its code gates once; and it states 21 symbols, but its format has 19.
"""

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from from_scratch.gpt import GPT

from . import Shapes, Tensors, with_biases

N_LAYERS = 8
WIDTH = 96
N_HEADS = 8
CONTEXT = 128
HIDDEN = 4 * WIDTH
SWIGLU_HIDDEN = 4 * int(2 * WIDTH / 3)


class SwiGLUAsPrinted(nn.Module):
    """The printed formula, as literally as its shapes allow: down((silu(gate(x)) * up(x)) * up(x))."""

    def __init__(self, ffn: nn.Module) -> None:
        super().__init__()
        self.gate, self.up, self.down = ffn.gate, ffn.up, ffn.down

    def forward(self, x: Tensor) -> Tensor:
        up = self.up(x)
        return self.down(F.silu(self.gate(x)) * up * up)


def gpt_weights(tensors: Tensors) -> dict[str, Tensor]:
    """The tensors by the names of `from_scratch.gpt`, with k, q and v in one."""
    weights = {}
    for name, tensor in tensors.items():
        if name.endswith(("attention.q.weight", "attention.v.weight")):
            continue
        if name.endswith("attention.k.weight"):
            block = name.removesuffix("k.weight")
            name, tensor = f"{block}kqv.weight", torch.cat([tensors[f"{block}{role}.weight"] for role in "kqv"])
        for ours, theirs in (
            ("embed.", "token_embedding."),
            ("positions.", "position_embedding."),
            ("residual.norms.attention.", "ln1."),
            ("residual.norms.ffn.", "ln2."),
            ("residual.norm.", "ln_f."),
        ):
            name = name.replace(ours, theirs)
        weights[name] = tensor
    return weights


def mingpt_logits(
    tensors: Tensors, tokens: Tensor, *, n_layers: int = N_LAYERS, n_heads: int = N_HEADS, ffn: str = "relu"
) -> Tensor:
    """Logits (B, T, V) of tokens (B, T) by the model of examples/from_scratch/gpt.py.

    `ffn` is relu, swiglu or swiglu_as_printed.
    """
    (vocab, width), (context, _) = tensors["embed.weight"].shape, tensors["positions.weight"].shape
    model = GPT(vocab, n_layers, width, n_heads, context, gated=ffn != "relu")
    if ffn == "swiglu_as_printed":
        for block in model.blocks:
            block.ffn = SwiGLUAsPrinted(block.ffn)
    weights = {**dict(model.named_buffers()), **gpt_weights(tensors)}  # masks are buffers
    return functional_call(model, weights, (tokens,), strict=True)


def mingpt_shapes(
    vocab: int,
    *,
    n_layers: int = N_LAYERS,
    width: int = WIDTH,
    context: int = CONTEXT,
    hidden: int | None = None,
    gated: bool = False,
) -> Shapes:
    """The shapes of all tensors of the model, by name."""
    hidden = hidden or (SWIGLU_HIDDEN if gated else HIDDEN)
    shapes: Shapes = {"embed.weight": (vocab, width), "positions.weight": (context, width)}
    for i in range(n_layers):
        for norm in ("attention", "ffn"):
            shapes[f"blocks.{i}.residual.norms.{norm}.weight"] = (width,)
            shapes[f"blocks.{i}.residual.norms.{norm}.bias"] = (width,)
        shapes |= with_biases({f"blocks.{i}.attention.{role}": (width, width) for role in "qkv"}, biased=False)
        shapes |= with_biases({f"blocks.{i}.attention.out": (width, width)}, biased=True)
        into = ("gate", "up") if gated else ("up",)
        shapes |= with_biases({f"blocks.{i}.ffn.{role}": (hidden, width) for role in into}, biased=False)
        shapes |= with_biases({f"blocks.{i}.ffn.down": (width, hidden)}, biased=False)
    shapes |= {"residual.norm.weight": (width,), "residual.norm.bias": (width,)}
    return shapes | with_biases({"head": (vocab, width)}, biased=True)


def mingpt_parameters(vocab: int, gated: bool = False) -> int:
    """V D + T D + L (4 D + 3 D^2 + D^2 + D + ffn) + 2 D + D V + V; ffn = 2 D F, F = 4 D, or 3 D F, F = 4 [2 D / 3]."""
    d = WIDTH
    feed_forward = 3 * d * SWIGLU_HIDDEN if gated else 2 * d * HIDDEN
    layer = 2 * 2 * d + 3 * d * d + (d * d + d) + feed_forward
    return vocab * d + CONTEXT * d + N_LAYERS * layer + 2 * d + (d * vocab + vocab)
