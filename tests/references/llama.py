"""The lesson "Implementing Transformers": a Llama-style decoder.

x_0 = embed[tokens]
h   = x + dropout(out(attention(RMSNorm(x))))
x'  = h + dropout(down(silu(gate(h')) * up(h')))  with h' = RMSNorm(h)
logits = RMSNorm(x_L) embed^T                      tied, without bias

6 layers, width 512, 8 heads, hidden width 1376, 32000 symbols, 2048 positions, rope theta 10000, RMSNorm eps 1e-6,
dropout 0.1 on each branch only. The lesson's w1 is our gate, its w3 our up, its w2 our down.

It uses an attention layer that it does not show, and names RoPE's theta but no rotation. Chosen here, as in Llama:
separate q, k, v and out without bias, scale 1/sqrt(E), by default as many key/value heads as heads, and rotation of
whole heads in the half-split layout, which pairs i with i + E/2. The reference has no dropout: it is the model in eval
mode.
"""

from torch import Tensor

from . import Shapes, Tensors, causal_attention, rms_norm, swiglu, with_biases

N_LAYERS = 6
WIDTH = 512
N_HEADS = 8
HIDDEN = 1376
VOCABULARY = 32000
CONTEXT = 2048


def llama_logits(
    tensors: Tensors,
    tokens: Tensor,
    *,
    n_layers: int = N_LAYERS,
    n_heads: int = N_HEADS,
    n_kv_heads: int | None = None,
    rope: bool = True,
) -> Tensor:
    """Logits (B, T, V) of tokens (B, T)."""
    x = tensors["embed.weight"][tokens]
    for i in range(n_layers):
        block = f"blocks.{i}"
        normed = rms_norm(tensors, f"{block}.residual.norms.attention", x)
        x = x + causal_attention(tensors, f"{block}.attention", normed, n_heads, n_kv_heads or n_heads, rope)
        x = x + swiglu(tensors, f"{block}.ffn", rms_norm(tensors, f"{block}.residual.norms.ffn", x))
    return rms_norm(tensors, "residual.norm", x) @ tensors["embed.weight"].T


def llama_shapes(
    vocab: int = VOCABULARY,
    *,
    n_layers: int = N_LAYERS,
    width: int = WIDTH,
    n_heads: int = N_HEADS,
    n_kv_heads: int | None = None,
    hidden: int = HIDDEN,
) -> Shapes:
    """The shapes of all tensors of the model, by name; the tied head has none."""
    shared = width // n_heads * (n_kv_heads or n_heads)
    shapes: Shapes = {"embed.weight": (vocab, width), "residual.norm.weight": (width,)}
    for i in range(n_layers):
        shapes |= {f"blocks.{i}.residual.norms.{norm}.weight": (width,) for norm in ("attention", "ffn")}
        attention = {"q": (width, width), "k": (shared, width), "v": (shared, width), "out": (width, width)}
        ffn = {"gate": (hidden, width), "up": (hidden, width), "down": (width, hidden)}
        shapes |= with_biases({f"blocks.{i}.attention.{role}": shape for role, shape in attention.items()}, False)
        shapes |= with_biases({f"blocks.{i}.ffn.{role}": shape for role, shape in ffn.items()}, False)
    return shapes


def llama_parameters(vocab: int = VOCABULARY, n_kv_heads: int = N_HEADS) -> int:
    """V D + L (2 D + 2 D^2 + 2 D E K + 3 D F) + D; the tied head is counted once."""
    d, e = WIDTH, WIDTH // N_HEADS
    return vocab * d + N_LAYERS * (2 * d + 2 * d * d + 2 * d * e * n_kv_heads + 3 * d * HIDDEN) + d
