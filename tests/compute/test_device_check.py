"""A device that computes otherwise than the CPU is found: in its loss, in one gradient, or in its steps."""

import pytest
import torch

from lazy_imports import lazy_module
from partwise.config import ConfigError

device_check = lazy_module("partwise.compute.device_check")
runtime = lazy_module("partwise.compute.runtime")
CPU = torch.device("cpu")


def faults(change: object, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Of a device on which the second of two trainings is changed."""
    computed, calls = device_check.trained, []

    def trained(config, device):
        calls.append(device)
        found = computed(config, device)
        if len(calls) == 2:
            change(found)
        return found

    monkeypatch.setattr("partwise.compute.device_check.trained", trained)
    return list(device_check.model_faults(device_check.MODELS["a Llama"], CPU))


def test_the_cpu_equals_itself() -> None:
    assert device_check.device_faults("cpu") == ()


def test_a_wrong_gradient_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """One entry that is off by a hundredth of the largest; rounding of float32 is not."""

    def wrong(found):
        gradient = found.gradients["blocks.1.ffn.down.weight"]
        gradient[3, 5] += 0.01 * gradient.abs().max()

    assert faults(wrong, monkeypatch) == [
        "the gradient of blocks.1.ffn.down.weight differs by 0.01 of its largest entry"
    ]


def test_rounding_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def rounded(found):
        for gradient in found.gradients.values():
            gradient.mul_(1 + 1e-5)

    assert faults(rounded, monkeypatch) == []


@pytest.mark.parametrize(("step", "value"), [(0, 1.001), (5, 0.99), (3, float("nan"))])
def test_a_wrong_loss_is_found(step: int, value: float, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(found):
        found.losses[step] *= value

    (fault,) = faults(wrong, monkeypatch)
    assert fault.startswith(f"the loss after {step} steps is ")


def test_metal_is_offered_and_never_chosen_unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """`auto` is the CPU; asked for, it is refused with what it computes wrongly."""
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    train = lazy_module("partwise.train.config").TrainConfig
    assert runtime.choose_runtime(train()).device == "cpu"
    chosen = runtime.choose_runtime(train(device="mps"))
    monkeypatch.setattr("partwise.compute.device_check.device_faults", lambda device: ("a GPT: the loss is 3",))
    with pytest.raises(ConfigError, match=r"train\.device=mps: Metal is wrong on this machine: a GPT: the loss is 3"):
        chosen.check()
