"""What training predicts beyond the next token: what stands at `ahead=`, beside the head."""

from pydantic import Field
from torch import Tensor, nn

from partwise.config import part
from partwise.parts.families import Ahead, AheadLayer, Site
from partwise.parts.layers import linear


@part("none")
class NextAlone(Ahead):
    """-log p(i_{t+1} | i_1 ... i_t): the next token alone is learned."""

    def build(self, site: Site, vocab_size: int) -> AheadLayer:
        return AheadLayer()


@part("heads")
class FurtherHeads(Ahead):
    """-log p(i_{t+1}) - weight sum_k log softmax(W_k x_t)[i_{t+1+k}], k = 1 ... tokens. Gloeckle et al. 2024,
    arXiv:2404.19737.

    x_t is what the model's head reads, and W_k one matrix without a bias or a soft-cap, where the paper has a layer and
    the model's own head. It has a model work out what comes later before it writes what comes first. Only training
    computes it, and only from the share `start` of its steps on: it can hold up what is learned first.
    """

    tokens: int = Field(1, ge=1, le=8)  # beyond the next one
    weight: float = Field(0.5, gt=0, le=10)  # of the loss of each
    start: float = Field(0.0, ge=0, lt=1)

    def build(self, site: Site, vocab_size: int) -> AheadLayer:
        return LinearHeads(site.d_model, vocab_size, self.tokens, self.weight, self.start)


class LinearHeads(AheadLayer):
    """A linear map for each token, never tied to the table of embeddings."""

    def __init__(self, d_model: int, vocab_size: int, tokens: int, weight: float, start: float) -> None:
        super().__init__()
        self.heads = nn.ModuleList(linear(d_model, vocab_size, bias=False, role="head") for _ in range(tokens))
        self.weight, self.start = weight, start

    def forward(self, x: Tensor) -> list[Tensor]:  # (B, T, D) -> (B, T, V) each
        return [head(x) for head in self.heads]

    def weight_at(self, done: float) -> float:
        return self.weight if done >= self.start else 0.0
