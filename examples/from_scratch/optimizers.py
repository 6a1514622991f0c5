"""Lesson 10, one rate or each its best? A step of AdamW and a step of Muon, each on one matrix, in place."""

import torch
from torch import Tensor


def adamw_step(
    w: Tensor,
    grad: Tensor,
    m: Tensor,  # running mean of the gradient; starts at 0
    v: Tensor,  # running mean of its square; starts at 0
    step: int,  # counted from 1
    lr: float,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.01,
) -> None:
    """Each weight moves by about lr, however large its gradient is."""
    m += (1 - betas[0]) * (grad - m)
    v += (1 - betas[1]) * (grad**2 - v)
    m_hat = m / (1 - betas[0] ** step)  # both means started at 0: without this the first steps would be too small
    v_hat = v / (1 - betas[1] ** step)
    w *= 1 - lr * weight_decay
    w -= lr * m_hat / (v_hat.sqrt() + eps)


def newton_schulz(grad: Tensor, steps: int = 5) -> Tensor:
    """About U V^T of a gradient U S V^T, with matrix products alone."""
    wide = grad.shape[0] <= grad.shape[1]
    x = grad if wide else grad.T  # so that x x^T is the smaller product
    x = x / x.norm().clamp(min=1e-7)  # now no singular value exceeds 1
    for _ in range(steps):  # s -> 3.4 s - 4.8 s^3 + 2 s^5, which nears 1
        gram = x @ x.T
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x if wide else x.T


def muon_step(
    w: Tensor, grad: Tensor, m: Tensor, lr: float, momentum: float = 0.95, weight_decay: float = 0.01
) -> None:
    """Every direction of the matrix moves by the same amount, also those in which the gradient is small."""
    m += (1 - momentum) * (grad - m)
    ahead = grad + momentum * (m - grad)  # Nesterov: the mean after one more step like this
    w *= 1 - lr * weight_decay
    w -= lr * 0.2 * max(w.shape) ** 0.5 * newton_schulz(ahead)  # 0.2 sqrt(n): entries as large as those of AdamW's step


if __name__ == "__main__":
    torch.manual_seed(0)
    grad = torch.randn(64, 4) @ torch.randn(4, 64) + 0.1 * torch.randn(
        64, 64
    )  # four strong directions, as gradients have
    before, after = (torch.linalg.svdvals(each) for each in (grad, newton_schulz(grad)))
    ratios = [(values[0] / values[31]).item() for values in (before, after)]
    print(f"largest singular value over the median: {ratios[0]:.0f} before Newton-Schulz, {ratios[1]:.2f} after")
