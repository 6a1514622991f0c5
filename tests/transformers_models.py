"""Models of `transformers` as references, in float64 throughout."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
import safetensors.torch as _with_float32  # it must not first be imported while float32 is replaced
import torch
from torch import Tensor

assert _with_float32


@contextmanager
def in_float64() -> Iterator[None]:
    """Replace the casts to float32 in `transformers` by casts to float64: norms, rotary tables, softmax and router."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "float32", torch.float64)
        patch.setattr(torch, "float", torch.float64)
        patch.setattr(torch.Tensor, "float", torch.Tensor.double)
        default = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            yield
        finally:
            torch.set_default_dtype(default)


def build_reference(values: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Any:
    """The model of `transformers` for the values of a `config.json`, with these tensors, in eval mode."""
    import transformers

    options = {key: value for key, value in values.items() if key not in ("model_type", "architectures")}
    config = transformers.AutoConfig.for_model(values["model_type"], **options)
    config._attn_implementation = config._experts_implementation = "eager"
    model = getattr(transformers, values["architectures"][0])(config)
    model = model.to(next(iter(tensors.values())).dtype).eval()
    missing, unexpected = model.load_state_dict(fuse_experts(dict(tensors)), strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}, (missing, unexpected)
    model.tie_weights()
    return model


def fuse_experts(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Experts as the library holds them in memory, from one tensor per expert as in files."""
    for name in [name for name in tensors if ".experts.0.gate_proj." in name]:
        stem = name.partition(".experts.0.")[0] + ".experts."
        count = len({key.split(".experts.")[1].split(".")[0] for key in tensors if key.startswith(stem)})

        def taken(kind: str, stem: str = stem, count: int = count) -> Tensor:
            return torch.stack([tensors.pop(f"{stem}{expert}.{kind}_proj.weight") for expert in range(count)])

        gate, up, down = map(taken, ("gate", "up", "down"))
        tensors[f"{stem}gate_up_proj"], tensors[f"{stem}down_proj"] = torch.cat([gate, up], dim=1), down
    return tensors
