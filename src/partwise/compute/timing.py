"""Training rates of one model under several plans, measured in turn."""

import statistics
import time
from collections.abc import Mapping

import torch

from partwise.compute.backend_plan import BackendPlan
from partwise.compute.runtime import Runtime
from partwise.kernels.threads import is_deterministic, kernel_threads, set_threads
from partwise.model import ModelConfig, Transformer

ROUNDS, WARMUP_ROUNDS = 7, 2


def training_rates(
    config: ModelConfig, plans: Mapping[str, BackendPlan], runtime: Runtime, batch_size: int
) -> dict[str, float]:
    """Tokens per second of a forward and a backward pass over random full-length rows: the median over interleaved rounds."""
    threads, deterministic = kernel_threads(), is_deterministic()
    runtime.set_threads()
    device = torch.device(runtime.device)
    model = Transformer(config).to(device).train()
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(config.vocab_size, (batch_size, config.context_length), generator=generator).to(device)
    source = tokens if config.takes_source else None
    seconds: dict[str, list[float]] = {name: [] for name in plans}
    for round_ in range(ROUNDS + WARMUP_ROUNDS):
        for name, plan in plans.items():
            plan.apply(model)
            model.seed_dropout(0, round_)
            start = time.perf_counter()
            with torch.autocast(device.type, torch.bfloat16, enabled=runtime.precision == "bfloat16"):
                loss = model(tokens, source=source).float().logsumexp(-1).mean()
            loss.backward()
            loss.item()  # waits for the device
            model.zero_grad(set_to_none=True)
            if round_ >= WARMUP_ROUNDS:
                seconds[name].append(time.perf_counter() - start)
    set_threads(threads, deterministic)
    return {name: tokens.numel() / statistics.median(each) for name, each in seconds.items()}
