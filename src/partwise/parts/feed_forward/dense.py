"""Dense feed-forward layers, `ffn=`. Ungated ones share `MLP`, gated ones `GatedMLP`."""

from functools import partial
from typing import Any, Literal

import torch
from pydantic import Field
from torch import nn
from torch.nn import functional as F

from partwise.config import ConfigError, part
from partwise.parts.contracts import FeedForward, LayerContext
from partwise.parts.feed_forward.mlp import MLP, OTHER, Activation, GatedMLP, gelu, identity, relu2, swish


class FeedForwardOptions(FeedForward):
    """Options of every dense feed-forward layer. The hidden width F is `hidden` (default: `expansion` times D)."""

    hidden: int | None = Field(None, gt=0, le=2**24)
    """Hidden units, F. Default: `expansion` times d_model."""
    expansion: float = Field(4.0, gt=0, le=1000)
    """Hidden units per number of d_model."""
    bias: bool = False
    """A bias in each matrix."""
    hidden_dropout: float = Field(0.0, ge=0, lt=1)
    """Dropout rate on the hidden units."""
    output_dropout: float = Field(0.0, ge=0, lt=1)
    """Dropout rate on the output, before the residual connection."""

    def activation(self) -> Activation:
        raise NotImplementedError

    def layer_options(self) -> dict[str, Any]:
        return {"bias": self.bias, "hidden_dropout": self.hidden_dropout, "output_dropout": self.output_dropout}

    def width(self, layer_ctx: LayerContext) -> int:
        width = self.hidden or round(self.expansion * layer_ctx.d_model)
        if width < 1:
            raise ConfigError(
                f"ffn.expansion={self.expansion} rounds to no hidden unit at d_model={layer_ctx.d_model}: raise it"
            )
        return width


class Ungated(FeedForwardOptions):
    def build(self, layer_ctx: LayerContext) -> nn.Module:
        return MLP(layer_ctx.d_model, self.width(layer_ctx), self.activation(), **self.layer_options())


class Gated(FeedForwardOptions):
    expansion: float = Field(8 / 3, gt=0, le=1000)
    """Hidden units per number of d_model. 8/3 is 2/3 of 4: three matrices then have as many parameters as two with 4."""

    def build(self, layer_ctx: LayerContext) -> nn.Module:
        return GatedMLP(layer_ctx.d_model, self.width(layer_ctx), self.activation(), **self.layer_options())


@part("relu")
class ReLU(Ungated):
    """down(max(up(x), 0)). Vaswani et al. 2017, arXiv:1706.03762."""

    def activation(self) -> Activation:
        return Activation("relu", partial(F.relu, inplace=True))  # nothing else needs its input; steps are 4% faster


@part("relu2")
class SquaredReLU(Ungated):
    """down(max(up(x), 0)^2). So et al. 2021, arXiv:2109.08668."""

    def activation(self) -> Activation:
        return Activation("relu2", relu2)


@part("gelu")
class GELU(Ungated):
    """down(u Phi(u)), u = up(x); Phi exact or by tanh. Hendrycks & Gimpel 2016, arXiv:1606.08415."""

    approximate: Literal["none", "tanh"] = "none"
    """`tanh` computes Phi by its approximation with tanh, as GPT-2 does."""

    def activation(self) -> Activation:
        return gelu(self.approximate)


@part("tanh")
class Tanh(Ungated):
    """down(tanh(up(x))). Bengio et al. 2003, JMLR 3:1137-1155."""

    def activation(self) -> Activation:
        return Activation(OTHER, torch.tanh)


@part("elu")
class ELU(Ungated):
    """down(u if u > 0 else alpha (exp(u) - 1)), u = up(x). Clevert et al. 2015, arXiv:1511.07289."""

    alpha: float = Field(1.0, gt=0)
    """The limit for inputs far below 0 is -alpha."""

    def activation(self) -> Activation:
        return Activation(OTHER, partial(F.elu, alpha=self.alpha))


@part("swish")
class Swish(Ungated):
    """down(u sigmoid(beta u)), u = up(x); beta fixed or trainable. Ramachandran et al. 2017, arXiv:1710.05941."""

    beta: float = 1.0
    """The steepness of the sigmoid; its initial value if trainable."""
    trainable_beta: bool = False
    """Train beta."""

    def activation(self) -> Activation:
        return swish(self.beta, self.trainable_beta)


@part("glu")
class GLU(Gated):
    """down(sigmoid(gate(x)) * up(x)). Dauphin et al. 2016, arXiv:1612.08083; Shazeer 2020, arXiv:2002.05202."""

    def activation(self) -> Activation:
        return Activation("sigmoid", torch.sigmoid)


@part("bilinear")
class Bilinear(Gated):
    """down(gate(x) * up(x)). Shazeer 2020, arXiv:2002.05202."""

    def activation(self) -> Activation:
        return Activation("identity", identity)


@part("reglu")
class ReGLU(Gated):
    """down(max(gate(x), 0) * up(x)). Shazeer 2020, arXiv:2002.05202."""

    def activation(self) -> Activation:
        return Activation("relu", F.relu)


@part("geglu")
class GEGLU(Gated):
    """down(gelu(gate(x)) * up(x)). Shazeer 2020, arXiv:2002.05202."""

    approximate: Literal["none", "tanh"] = "none"
    """`tanh` computes Phi by its approximation with tanh, as GPT-2 does."""

    def activation(self) -> Activation:
        return gelu(self.approximate)


@part("swiglu")
class SwiGLU(Gated):
    """down(g sigmoid(beta g) * up(x)), g = gate(x); beta fixed or trainable. Shazeer 2020, arXiv:2002.05202."""

    beta: float = 1.0
    """The steepness of the sigmoid; its initial value if trainable."""
    trainable_beta: bool = False
    """Train beta."""

    def activation(self) -> Activation:
        return swish(self.beta, self.trainable_beta)
