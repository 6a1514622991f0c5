"""Backends of MLPs: `train.ffn_backend`."""

import torch
from torch import Tensor

from partwise.compute.backends import NO_KERNELS, Backend, backend, known_activation
from partwise.compute.runtime import Runtime
from partwise.kernels.bf16 import bf16_mlp, supports_bf16_mlp, unsupported_bf16_mlp_width
from partwise.kernels.mlp import mlp, supports_mlp, unsupported_mlp_width
from partwise.parts.feed_forward.mlp import MLPBase
from partwise.parts.operations import MLPSpec, OperationSpec, unsupported_option


@backend
class CppMLPBackend(Backend):
    """A narrow MLP in one pass over its rows, in C++."""

    kind, name = "ffn", "cpp"

    def unsupported(self, spec: OperationSpec, runtime: Runtime) -> str | None:
        if not runtime.kernels:
            return NO_KERNELS
        known = ("d_model", "hidden", "gated", "bias", "output_dropout")  # the layer itself applies output_dropout
        reason = unsupported_option(spec, {**dict.fromkeys(known, True), "activation": known_activation})
        if reason is not None:
            return reason
        assert isinstance(spec, MLPSpec)
        unsupported_width = unsupported_mlp_width if runtime.precision == "float32" else unsupported_bf16_mlp_width
        return unsupported_width(spec.d_model, spec.hidden, spec.gated)

    def bind(self, module: MLPBase, spec: OperationSpec) -> "CppMLP":  # type: ignore[override]
        return CppMLP(module)


class CppMLP:
    def __init__(self, layer: MLPBase) -> None:
        self.layer = layer

    def takes(self, x: Tensor) -> bool:
        if self.layer.training and self.layer.hidden_dropout.p > 0:
            return False
        weights = self.layer.input_projection().weight, self.layer.down.weight
        return supports_mlp(x, *weights) or supports_bf16_mlp(x, *weights)

    def __call__(self, x: Tensor) -> Tensor:
        up, down = self.layer.input_projection(), self.layer.down
        kernel = bf16_mlp if torch.is_autocast_enabled("cpu") else mlp
        return kernel(x, up.weight, up.bias, down.weight, down.bias, self.layer.activation_name)
