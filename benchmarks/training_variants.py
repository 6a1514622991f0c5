"""Speed with other parts than the default ones: `training_step.py --variants`."""

import argparse
import contextlib
import copy
import statistics
from collections.abc import Callable
from typing import Any

from measuring import Row, Step, ratios, time_alternating
from peer_process import PeerProcess
from peers import Setting
from torch import Tensor

from partwise.compute.runtime import Runtime

RELU: dict[str, Any] = {"ff_custom_activation": "ReLU"}
SWIGLU: dict[str, Any] = {"ff_glu": True, "ff_swish": True, "ff_mult": 8 / 3}
VARIANTS: dict[str, tuple[list[str], dict[str, Any]]] = {
    "relu": ([], RELU),
    "gelu": (["ffn=gelu"], {}),
    "swiglu": (["ffn=swiglu"], SWIGLU),
    "RMSNorm": (["norm=rmsnorm"], {**RELU, "use_rmsnorm": True}),
    "rope": (["positions=rope"], {**RELU, "rotary_pos_emb": True}),
    "2 KV heads of 8": (["attention.n_kv_heads=2"], {**RELU, "attn_kv_heads": 2}),
    "swiglu, RMSNorm, rope, 2 KV heads of 8": (
        ["ffn=swiglu", "norm=rmsnorm", "positions=rope", "attention.n_kv_heads=2"],
        {**SWIGLU, "use_rmsnorm": True, "rotary_pos_emb": True, "attn_kv_heads": 2},
    ),
}
"""Overrides of `mingpt`, which has ReLU, LayerNorm and learned positions, and x-transformers' keywords for the same."""
Builder = Callable[[argparse.Namespace, Runtime, Tensor, Tensor], Step]


def measure_variants(
    options: argparse.Namespace, runtime: Runtime, inputs: Tensor, targets: Tensor, partwise_step: Builder
) -> list[Row]:
    """Two rows per variant: ours against x-transformers with the same part, and against our eager backends."""
    rows = []
    tokens = options.batch * options.context
    for name, (words, parts) in VARIANTS.items():
        varied = copy.copy(options)
        varied.overrides = [*options.overrides, *words]
        eager = copy.copy(varied)
        eager.backends = {"attention": "sdpa", "ffn": "eager", "block": "eager"}
        steps = {
            "ours": partwise_step(varied, runtime, inputs, targets),
            "eager": partwise_step(eager, runtime, inputs, targets),
        }
        with contextlib.ExitStack() as stack:
            try:
                theirs = PeerProcess("x-transformers", varied, inputs, targets, Setting(tuned=True), **parts)
                steps["theirs"] = stack.enter_context(theirs)
            except ImportError as error:
                print(f"x-transformers is missing: {error}")
            seconds = time_alternating(steps, options.rounds)
        speeds = {key: tokens / statistics.median(times) for key, times in seconds.items()}
        row = {"goal": "training step", "ours": speeds["ours"], "unit": "tokens/s"}
        if "theirs" in steps:
            peers = {"x-transformers (tuned)": speeds["theirs"]}
            within = ratios(seconds["theirs"], seconds["ours"])
            rows.append({**row, "what": f"{options.what}, {name}", "peers": peers, "target": options.target, **within})
        peers = {"partwise eager": speeds["eager"]}
        within = ratios(seconds["eager"], seconds["ours"])
        rows.append(
            {
                **row,
                "what": f"{options.what}, {name}: C++ kernels against eager",
                "peers": peers,
                "target": None,
                **within,
            }
        )
    return rows
