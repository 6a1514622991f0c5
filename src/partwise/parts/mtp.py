"""Multi-token prediction, `mtp=`."""

from pydantic import Field
from torch import Tensor, nn

from partwise.config import part
from partwise.parts.contracts import LayerContext, MTPLayer, MultiTokenPrediction
from partwise.parts.layers import linear


@part("none")
class NoMTP(MultiTokenPrediction):
    """-log p(i_{t+1} | i_1 ... i_t): next-token prediction only."""

    def build(self, layer_ctx: LayerContext, vocab_size: int) -> MTPLayer:
        return MTPLayer()


@part("heads")
class MTPHeads(MultiTokenPrediction):
    """-log p(i_{t+1}) - loss_weight sum_k log softmax(W_k x_t)[i_{t+1+k}], k = 1 ... n_tokens. Gloeckle et al. 2024,
    arXiv:2404.19737.

    x_t is the input of the model's head, and W_k a matrix without bias or soft-cap, where the paper has a layer and the
    model's own head. The objective makes a model compute later tokens before it writes the first. It is used only in
    training, after the fraction `start_fraction` of the steps, since it can slow down early learning.
    """

    n_tokens: int = Field(1, ge=1, le=8)
    """Additional tokens that are predicted, after the next one."""
    loss_weight: float = Field(0.5, gt=0, le=10)
    """The weight of each additional loss."""
    start_fraction: float = Field(0.0, ge=0, lt=1)
    """The fraction of the steps after which the additional losses begin."""

    def build(self, layer_ctx: LayerContext, vocab_size: int) -> MTPLayer:
        return LinearHeads(layer_ctx.d_model, vocab_size, self.n_tokens, self.loss_weight, self.start_fraction)


class LinearHeads(MTPLayer):
    """One linear head per additional token, not tied to the embeddings."""

    def __init__(self, d_model: int, vocab_size: int, n_tokens: int, loss_weight: float, start_fraction: float) -> None:
        super().__init__()
        self.heads = nn.ModuleList(linear(d_model, vocab_size, bias=False, role="head") for _ in range(n_tokens))
        self.loss_weight, self.start_fraction = loss_weight, start_fraction

    def forward(self, x: Tensor) -> list[Tensor]:  # (B, T, D) -> (B, T, V) each
        return [head(x) for head in self.heads]

    def loss_weight_at(self, progress: float) -> float:
        return self.loss_weight if progress >= self.start_fraction else 0.0
