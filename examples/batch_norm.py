"""Batch normalization, Ioffe & Szegedy 2015, arXiv:1502.03167: a norm that a language model must not have.

    partwise check mingpt norm=example_batch_norm --import examples/batch_norm.py

refuses it. In training, the mean and variance of a feature are taken over all positions of all rows, so that a position
sees the tokens that it is to predict, and a row depends on the rows beside it. In evaluation the averages of earlier
batches take their place, and nothing is seen: what training used is then missing. `layernorm` and `rmsnorm` take their
statistics over the features of one token.
"""

import torch
from torch import Tensor, nn

import partwise
from partwise.parts.contracts import Norm


@partwise.part("example_batch_norm")
class ExampleBatchNorm(Norm):
    """(x - mean(x)) / sqrt(var(x) + eps) * weight + bias, over all tokens of a batch. arXiv:1502.03167."""

    eps: float = 1e-5
    """Added to the variance."""
    momentum: float = 0.1
    """The weight of the newest batch in the averages for evaluation."""

    def build(self, width: int) -> nn.Module:
        return BatchNormOfTokens(width, self.eps, self.momentum)


class BatchNormOfTokens(nn.BatchNorm1d):
    """(..., D) -> (..., D), each feature normalized over all other dimensions."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.flatten(0, -2)).view(x.shape)


if __name__ == "__main__":
    torch.manual_seed(0)
    norm, text = BatchNormOfTokens(4, 1e-5, 0.1), torch.randn(1, 6, 4)
    other = text.clone()
    other[0, -1] += 1  # another last token
    for mode in ("training", "evaluation"):
        norm.train(mode == "training")
        change = (norm(text) - norm(other))[0, 0].abs().max().item()
        print(f"{mode}: the last token changes the first output by {change:.3f}")
