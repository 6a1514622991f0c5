"""Where float64 is computed."""

import pytest
import torch

from partwise.compute.float64 import float64_device, to_float64


@pytest.mark.parametrize(("device", "expected"), [("mps", "cpu"), ("xpu", "cpu"), ("cpu", "cpu"), ("cuda:1", "cuda:1")])
def test_only_devices_with_float64_compute_in_it(device: str, expected: str) -> None:
    assert float64_device(torch.device(device)) == torch.device(expected)


def test_values_are_kept() -> None:
    values = torch.tensor([0.1, 3.0])
    assert to_float64(values).equal(values.double())
