"""Setting the backends of models and of single layers."""

from collections import Counter

from torch import nn

from partwise import ModelConfig, Transformer
from partwise.compute.backend_plan import BackendPlan, apply_backends, plan_config
from partwise.compute.backends import BACKENDS
from partwise.compute.runtime import Runtime
from partwise.kernels.library import kernels_available
from partwise.parts.attention.core import AttentionCore
from partwise.parts.feed_forward.mlp import MLPBase


def runtime(precision: str = "float32", threads: int = 1) -> Runtime:
    return Runtime("cpu", precision, threads, kernels_available())


def use_backends(
    model: Transformer, attention: str = "eager", ffn: str = "eager", block: str = "eager", precision: str = "float32"
) -> BackendPlan:
    """Name the backend of every kind of operation; layers that it does not support use the next best."""
    return apply_backends(model, runtime(precision), {"attention": attention, "ffn": ffn, "block": block})


def use_layer_backend(layer: nn.Module, name: str) -> None:
    """Name the backend of the attention cores and MLPs in one layer. "cpp" is followed by "sdpa", as in a plan."""
    for module in layer.modules():
        if isinstance(module, AttentionCore):
            names, specs = {"eager": [], "sdpa": ["sdpa"], "cpp": ["cpp", "sdpa"]}[name], [module.spec("causal")]
            kind = "attention"
        elif isinstance(module, MLPBase):
            names, specs, kind = [] if name in ("eager", "sdpa") else [name], list(module.spec().variants()), "ffn"
        else:
            continue
        chosen = (BACKENDS[kind][each] for each in names)
        module.backends = tuple(
            each.bind(module, specs[0])
            for each in chosen
            if any(each.unsupported(spec, runtime()) is None for spec in specs)
        )


def counts(config: ModelConfig, precision: str = "float32", **names: str) -> dict[str, Counter[str]]:
    """Kind -> backend -> number of operations, in the plan of a model."""
    return plan_config(config, runtime(precision), names).counts()
