"""Training rates of one model under several plans, measured in turn."""

import statistics
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import torch

from partwise.compute.backend_plan import BackendPlan
from partwise.compute.compilation import CompiledModel
from partwise.compute.runtime import Runtime
from partwise.kernels.threads import is_deterministic, kernel_threads, set_threads
from partwise.model import ModelConfig, Transformer

ROUNDS, WARMUP_ROUNDS = 7, 2


@dataclass
class StepTimes:
    """Seconds of a forward and a backward pass over the same random rows, once per round."""

    n_tokens: int
    seconds: list[float] = field(default_factory=list)

    @property
    def step(self) -> float:
        """The median, in seconds."""
        return statistics.median(self.seconds[WARMUP_ROUNDS:])

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self.n_tokens / self.step

    @property
    def preparation(self) -> float:
        """What the first pass took beyond a later one, in seconds: compilation."""
        return max(0.0, self.seconds[0] - self.step)


def training_times(
    config: ModelConfig,
    plans: Mapping[str, BackendPlan],
    runtime: Runtime,
    batch_size: int,
    compiled: Collection[str] = (),
) -> dict[str, StepTimes]:
    """Times of a forward and a backward pass over random full-length rows, in turn under each plan.

    Those of the plans named in `compiled` go through torch.compile. Raises ConfigError where torch cannot compile.
    """
    threads, deterministic = kernel_threads(), is_deterministic()
    runtime.set_threads()
    device = torch.device(runtime.device)
    shared = Transformer(config).to(device).train()
    models = {name: Transformer(config).to(device).train() if name in compiled else shared for name in plans}
    for name in compiled:
        plans[name].apply(models[name])  # once, as a change of backends makes torch compile again
    forwards = {name: CompiledModel(model) if name in compiled else model for name, model in models.items()}
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(config.vocab_size, (batch_size, config.context_length), generator=generator).to(device)
    source = tokens if config.takes_source else None
    times = {name: StepTimes(tokens.numel()) for name in plans}
    try:
        for round_ in range(ROUNDS + WARMUP_ROUNDS):
            for name, plan in plans.items():
                model = models[name]
                if name not in compiled:
                    plan.apply(model)
                model.seed_dropout(0, round_)
                start = time.perf_counter()
                with torch.autocast(device.type, torch.bfloat16, enabled=runtime.precision == "bfloat16"):
                    loss = forwards[name](tokens, source=source).float().logsumexp(-1).mean()
                loss.backward()
                loss.item()  # waits for the device
                model.zero_grad(set_to_none=True)
                times[name].seconds.append(time.perf_counter() - start)
    finally:
        set_threads(threads, deterministic)
    return times
