"""Float64 for models on devices that lack it, such as Apple's Metal: computed on the CPU."""

import torch
from torch import Tensor


def float64_device(device: torch.device) -> torch.device:
    """The device itself if it computes in float64, else the CPU."""
    return device if device.type in ("cpu", "cuda") else torch.device("cpu")


def to_float64(values: Tensor) -> Tensor:
    """The values in float64, on their `float64_device`."""
    return values.to(float64_device(values.device)).double()
