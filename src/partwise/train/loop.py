"""Training as a generator: whoever iterates decides what happens between two updates."""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from partwise.data import IGNORED, Batch, Dataset, examples
from partwise.kernels.memory import keep_freed
from partwise.model import Transformer
from partwise.train.choices import Choices, choose
from partwise.train.cross_entropy import later, summed_cross_entropy
from partwise.train.forced import check_forced
from partwise.train.settings import RunConfig


@dataclass(frozen=True)
class Step:
    """One update: its number, from 1; the mean training loss in nats per token; the gradient's norm before clipping."""

    step: int
    loss: float
    grad_norm: float
    lr: float
    tokens: int
    seconds: float


class Diverged(Exception):
    """The loss or the gradient is not finite, and the weights are those from before the update.

    Also raised where an update leaves weights that are not finite, or fit for no evaluation: they are never saved.
    """

    def __init__(self, step: int, what: str) -> None:
        super().__init__(f"step {step}: {what}: lower train.lr, warm up (schedule.warmup), or clip (train.clip=1.0)")


class Losses(NamedTuple):
    """What an update learns from a micro-batch, in nats; of several seeds at once each is (S,)."""

    main: Tensor  # of the next tokens, summed over the targets: what is written down as the loss
    ahead: list[Tensor]  # of each token beyond the next, as much as it counts, summed as well
    layers: list[Tensor]  # what layers add, means over the micro-batch

    def share(self, targets: Tensor | int, parts: int) -> Tensor:
        """What a batch of so many targets in so many micro-batches gives to the gradient: means must not be averaged."""
        sums = (loss / targets for loss in (self.main, *self.ahead))
        return torch.stack([*sums, *(loss / parts for loss in self.layers)]).sum()


class Updater(Protocol):
    """What makes the updates of several runs at once."""

    seeds: int  # of how many

    def update(self, run: "Run") -> Step: ...


class Run:
    """A model in training. The same config, machine and thread count give the same numbers, bit by bit.

    Raises ConfigError where the choices cannot be followed here.
    """

    def __init__(self, config: RunConfig, dataset: Dataset | None = None, choices: Choices | None = None) -> None:
        self.config = config
        self.choices = choices or choose(config.train)
        self.choices.check()
        self.dataset = dataset or config.prepare()
        self.ids = self.dataset.split("train")
        self.examples = examples(self.dataset, "train", config.context, config.model.max_len)
        self.device = torch.device(self.choices.device)
        torch.set_num_threads(self.choices.threads)
        if self.device.type == "cpu":
            keep_freed()
        self.model = Transformer(config.model, config.train.seed, config.train.redraw).to(self.device)
        self.model.counts.count(self.ids)
        self.model.use_path(self.choices.attention_path, self.choices.ffn_path, self.choices.block_path)
        check_forced(config.train, self.model, self.choices.precision)
        self.parameters = list(self.model.parameters())
        self.optimizer = config.optimizer.build(self.model, config.train.lr)
        self.step = 0
        self.updater: Updater | None = None

    def steps(self) -> Iterator[Step]:
        """One record per update, until the configured number of steps. Raises Diverged before a poisoned update."""
        while self.step < self.config.train.steps:
            yield self.update()

    def update(self) -> Step:
        if self.updater:
            return self.updater.update(self)
        started, train = time.perf_counter(), self.config.train
        lr = train.lr * self.config.schedule.factor(self.step, train.steps)
        if not self.model.training:  # else it would tell every layer in every step
            self.model.train()
        losses = []
        batch = self.batch()
        count = batch.count
        targets = max(1, count)  # windows may hold none
        for number, micro in enumerate(batch.chunks(train.accumulate)):
            self.model.set_noise(train.seed, self.step, number, 0)
            found = self.losses(micro)
            found.share(targets, train.accumulate).backward()
            losses.append(found.main.detach() / targets)
        loss = torch.stack(losses).sum()
        norm = self.clip(train.clip)
        if not math.isfinite(loss.item()) or not math.isfinite(norm.item()):
            self.optimizer.zero_grad(set_to_none=True)
            raise Diverged(self.step + 1, f"loss {loss.item()}, gradient norm {norm.item()}")
        for group in self.optimizer.param_groups:
            group["lr"] = lr * group.get("factor", 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.model.after_step()
        self.step += 1
        return Step(self.step, loss.item(), norm.item(), lr, count, time.perf_counter() - started)

    def clip(self, limit: float | None) -> Tensor:
        """The norm of the whole gradient, which is then scaled down to `limit` where it is larger."""
        if limit is None:
            return torch.nn.utils.get_total_norm([p.grad for p in self.parameters if p.grad is not None])
        return torch.nn.utils.clip_grad_norm_(self.parameters, limit)

    def batch(self) -> Batch:
        """What the next update learns from, a pure function of (data, seed, step)."""
        train = self.config.train
        return self.examples.batch(self.dataset.hash, train.seed, self.step, train.batch_size)

    def loss(self, batch: Batch) -> Tensor:
        """Mean cross-entropy of a batch's targets, in nats, without anything that an update adds."""
        logits, targets = self.predict(batch)
        return self.cross_entropy(logits, targets) / batch.count

    def losses(self, batch: Batch) -> Losses:
        """What the next update learns from one of its micro-batches."""
        layers, logits_ahead, weight = list[Tensor](), list[Tensor](), self.weight_ahead
        logits, targets = self.predict(batch, losses=layers, ahead=logits_ahead if weight else None)
        ahead = [
            weight * self.cross_entropy(further, later(targets, places))
            for places, further in enumerate(logits_ahead, start=1)
        ]
        return Losses(self.cross_entropy(logits, targets), ahead, layers)

    @property
    def weight_ahead(self) -> float:
        """What a token beyond the next counts for in the next update."""
        return self.model.ahead.weight_at(self.step / self.config.train.steps)

    def predict(self, batch: Batch, **asked: Any) -> tuple[Tensor, Tensor]:
        """Logits (B, T, V) of a batch's targets, and these (B, T); what is `asked` for besides, the model says."""
        inputs, targets = (torch.from_numpy(ids).to(self.device) for ids in (batch.inputs, batch.targets))
        source = None if batch.source is None else torch.from_numpy(batch.source).to(self.device)
        with self.autocast():
            return self.model(inputs, source=source, **asked), targets

    def cross_entropy(self, logits: Tensor, targets: Tensor) -> Tensor:
        """(B, T, V), (B, T) -> the summed loss."""
        logits, targets, smoothing = logits.flatten(0, 1), targets.flatten(), self.config.train.label_smoothing
        if logits.dtype in (torch.bfloat16, torch.float16):
            return summed_cross_entropy(logits, targets, smoothing, self.choices.compiled)
        return F.cross_entropy(logits, targets, ignore_index=IGNORED, reduction="sum", label_smoothing=smoothing)

    def autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.choices.precision == "bfloat16")

    def optimizer_tensors(self) -> dict[str, Tensor]:
        """The optimizer's state under `parameter.key` names."""
        names = {id(parameter): name for name, parameter in self.model.named_parameters()}
        return {
            f"{names[id(parameter)]}.{key}": value
            for parameter, state in self.optimizer.state.items()
            for key, value in state.items()
        }

    def check_finite(self) -> None:
        """Raise Diverged where a weight, or what the optimizer remembers of it, is not finite."""
        for name, tensor in [*self.model.named_parameters(), *self.optimizer_tensors().items()]:
            if not tensor.isfinite().all():
                raise Diverged(self.step, f"{name} is not finite")

    def restore(self, step: int, weights: dict[str, Tensor], optimizer: dict[str, Tensor]) -> None:
        """Continue from a saved state. Raises Damaged where the tensors do not fit."""
        from partwise.checkpoint import Damaged, load_weights

        load_weights(self.model, weights)
        names = {id(parameter): name for name, parameter in self.model.named_parameters()}
        ordered = [names[id(parameter)] for group in self.optimizer.param_groups for parameter in group["params"]]
        numbers = {name: number for number, name in enumerate(ordered)}
        state: dict[int, dict[str, Tensor]] = {}
        for name, value in optimizer.items():
            owner, _, key = name.rpartition(".")
            if owner not in numbers:
                raise Damaged(f"the optimizer's state names an unknown parameter {owner!r}")
            state.setdefault(numbers[owner], {})[key] = value
        # torch's own way in knows where fused and plain optimizers keep a step counter
        self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": state})
        self.step = step
