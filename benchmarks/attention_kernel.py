"""Causal attention, forward and backward, in float32 on the CPU: the C++ kernel against torch.

    python benchmarks/attention_kernel.py [--rounds 21] [--threads 1 2] [--json FILE]

Each takes a fused QKV projection (B, T, 3 H E) and returns (B, T, H E) and the projection's gradient, as in a layer. All
alternate in one process; ratios are taken within a round, and their median is printed. `CPU time` compares the CPU time
of all threads, which other load on the machine affects less than wall time.
"""

import math
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from measuring import benchmark_parser, ratios, write_result
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.nn import functional as F

from partwise.kernels.attention import packed_attention
from partwise.kernels.library import kernels_available

SHAPES = [(16, 8, 128, 12), (12, 4, 64, 32), (16, 6, 256, 64), (2, 4, 1024, 16)]  # B, H, T, E
WARMUP = 2


def main() -> None:
    parser = benchmark_parser(__doc__, rounds=21)
    parser.add_argument("--threads", type=int, nargs="+", default=sorted({1, torch.get_num_threads()}))
    options = parser.parse_args()
    if not kernels_available():
        parser.error("the C++ kernels are not available: install a C++ compiler")
    rows = []
    for threads in options.threads:
        torch.set_num_threads(threads)
        rows += [row for shape in SHAPES for row in measure(shape, threads, options.rounds)]
    show(rows)
    if options.json:
        write_result(options.json, {"rounds": options.rounds, "rows": rows})


def measure(shape: tuple[int, int, int, int], threads: int, rounds: int) -> list[dict[str, Any]]:
    """One row per backend. Raises RuntimeError if their results differ."""
    B, H, T, E = shape
    qkv, grad = torch.randn(B, T, 3 * H * E).requires_grad_(), torch.randn(B, T, H * E)
    mask = torch.full((T, T), -math.inf).triu(1)

    def heads() -> tuple[Tensor, ...]:
        return tuple(x.unflatten(2, (H, E)).transpose(1, 2) for x in qkv.split(H * E, dim=2))

    def sdpa() -> Tensor:
        return F.scaled_dot_product_attention(*heads(), is_causal=True).transpose(1, 2).flatten(2)

    def eager() -> Tensor:
        q, k, v = (x.reshape(B * H, T, E) for x in heads())
        weights = torch.baddbmm(mask, q, k.transpose(1, 2), alpha=E**-0.5).softmax(-1)
        return torch.bmm(weights, v).view(B, H, T, E).transpose(1, 2).flatten(2)

    backends = {"cpp": lambda: packed_attention(qkv, H, H, E**-0.5), "sdpa": sdpa, "eager": eager}
    results = {name: (out := run(), *torch.autograd.grad(out, qkv, grad)) for name, run in backends.items()}
    for name, result in results.items():
        if not all(torch.allclose(x, y, rtol=1e-4, atol=1e-4) for x, y in zip(result, results["cpp"], strict=True)):
            raise RuntimeError(f"{name} differs from the C++ kernel at {shape}")
    times = time_alternating(backends, qkv, grad, rounds)
    return [
        {"threads": threads, "shape": shape, "name": name, "milliseconds": 1000 * statistics.median(clock)}
        | {"ratio": ratios(clock, times["cpp"][0])["ratio"], "cpu_ratio": ratios(cpu, times["cpp"][1])["ratio"]}
        for name, (clock, cpu) in times.items()
    ]


def time_alternating(
    backends: dict[str, Callable[[], Tensor]], qkv: Tensor, grad: Tensor, rounds: int
) -> dict[str, tuple[list[float], list[float]]]:
    """Wall seconds and CPU seconds of each round."""
    times: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in backends}
    names = list(backends)
    for round_ in range(WARMUP + rounds):
        shift = round_ % len(names)
        for name in names[shift:] + names[:shift]:
            began = time.perf_counter(), time.process_time()
            torch.autograd.grad(backends[name](), qkv, grad)
            if round_ >= WARMUP:
                times[name][0].append(time.perf_counter() - began[0])
                times[name][1].append(time.process_time() - began[1])
    return times


def show(rows: list[dict[str, Any]]) -> None:
    table = Table(title="Attention, forward and backward: time relative to the C++ kernel")
    for column in ("threads", "B H T E", "", "median ms", "wall time", "CPU time"):
        table.add_column(column, justify="left" if not column else "right")
    for row in rows:
        figures = f"{row['milliseconds']:.2f}", f"{row['ratio']:.2f} x", f"{row['cpu_ratio']:.2f} x"
        table.add_row(str(row["threads"]), " ".join(map(str, row["shape"])), row["name"], *figures)
    Console().print(table)


if __name__ == "__main__":
    main()
