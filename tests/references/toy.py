"""The tutorial "Build a Toy Transformer from Scratch in PyTorch": its decoder, and its suggested swaps, RoPE and SwiGLU.

x_0 = embed[tokens] + sinusoid[0..T-1]      sin(t 10000^(-2i/D)) in column 2i, its cos in column 2i + 1
h   = x + out(attention(LayerNorm(x)))      q, k, v and out with bias, dropout on the weights, scale 1/sqrt(E)
x'  = h + dropout(down(dropout(gelu(up(LayerNorm(h))))))           both with bias, exact GELU
logits = head(LayerNorm(x_L))

With SwiGLU: down(silu(gate(x)) * up(x)); the tutorial writes silu(W1 x) * W2 x -> proj. With RoPE: no sinusoid, and q
and k are rotated, theta 10000, half-split. The tutorial specifies neither sizes nor what surrounds its blocks. Chosen
here: the embeddings are not scaled, the last block is followed by a LayerNorm, the head is untied and has a bias, and a
SwiGLU layer has no biases. The reference has no dropout: it is the model in eval mode.
"""

from torch import Tensor

from from_scratch.ffn import gelu
from from_scratch.positions import sinusoidal

from . import Shapes, Tensors, affine, causal_attention, layer_norm, swiglu, with_biases


def gelu_layer(tensors: Tensors, name: str, x: Tensor) -> Tensor:
    """down(gelu(up(x)))."""
    return affine(tensors, f"{name}.down", gelu(affine(tensors, f"{name}.up", x)))


def toy_logits(
    tensors: Tensors, tokens: Tensor, *, n_layers: int, n_heads: int, rope: bool = False, gated: bool = False
) -> Tensor:
    """Logits (B, T, V) of tokens (B, T)."""
    feed_forward = swiglu if gated else gelu_layer
    x = tensors["embed.weight"][tokens]
    if not rope:
        x = sinusoidal(x)
    for i in range(n_layers):
        block = f"blocks.{i}"
        normed = layer_norm(tensors, f"{block}.residual.norms.attention", x)
        x = x + causal_attention(tensors, f"{block}.attention", normed, n_heads, n_heads, rope)
        x = x + feed_forward(tensors, f"{block}.ffn", layer_norm(tensors, f"{block}.residual.norms.ffn", x))
    return affine(tensors, "head", layer_norm(tensors, "residual.norm", x))


def toy_shapes(vocab: int, *, n_layers: int, width: int, hidden: int, gated: bool = False) -> Shapes:
    """The shapes of all tensors of the model, by name; neither sinusoidal positions nor RoPE have any."""
    shapes: Shapes = {"embed.weight": (vocab, width)}
    for i in range(n_layers):
        for norm in ("attention", "ffn"):
            shapes[f"blocks.{i}.residual.norms.{norm}.weight"] = (width,)
            shapes[f"blocks.{i}.residual.norms.{norm}.bias"] = (width,)
        shapes |= with_biases({f"blocks.{i}.attention.{role}": (width, width) for role in ("q", "k", "v", "out")}, True)
        into = ("gate", "up") if gated else ("up",)
        shapes |= with_biases({f"blocks.{i}.ffn.{role}": (hidden, width) for role in into}, biased=not gated)
        shapes |= with_biases({f"blocks.{i}.ffn.down": (width, hidden)}, biased=not gated)
    shapes |= {"residual.norm.weight": (width,), "residual.norm.bias": (width,)}
    return shapes | with_biases({"head": (vocab, width)}, biased=True)


def toy_parameters(vocab: int, n_layers: int, width: int, hidden: int, gated: bool = False) -> int:
    """V D + L (4 D + 4 (D^2 + D) + ffn) + 2 D + (D V + V); ffn = 2 D F + F + D, or 3 D F with SwiGLU."""
    d, f = width, hidden
    feed_forward = 3 * d * f if gated else 2 * d * f + f + d
    return vocab * d + n_layers * (4 * d + 4 * (d * d + d) + feed_forward) + 2 * d + (d * vocab + vocab)
