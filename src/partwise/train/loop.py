"""The training loop as a generator: the caller decides what happens between steps."""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from partwise.checks.finding import Finding
from partwise.compute.backend_plan import BackendPlan, check_requested, plan_backends
from partwise.compute.compilation import CompiledModel, is_small, replays_equal_steps, warm_up
from partwise.compute.runtime import Runtime, choose_runtime, requested
from partwise.data import Batch, Dataset, build_examples
from partwise.kernels.malloc import keep_freed_memory
from partwise.messages import quantity
from partwise.model import Transformer
from partwise.model.activation_checkpointing import checkpoint_activations
from partwise.model.freezing import freeze
from partwise.tensor_files import RowRange
from partwise.train.averaging import KEPT, WeightAverage
from partwise.train.batch_queue import BatchQueue, DeviceBatch, StepRows
from partwise.train.config import RunConfig
from partwise.train.cross_entropy import shift_targets, summed_loss
from partwise.train.distributed.data_parallel import DataParallel
from partwise.train.distributed.processes import SINGLE, Processes
from partwise.train.optimizer_steps import set_precision
from partwise.train.own_parts import check_own_parts, refuse_leaks
from partwise.train.source import load_initial_weights


@dataclass(frozen=True)
class Step:
    """Metrics of one step: its number, from 1; mean training loss in nats per token; gradient norm before clipping."""

    step: int
    loss: float
    grad_norm: float
    lr: float
    tokens: int
    seconds: float


class Diverged(Exception):
    """The loss or gradient is not finite; the weights are those before the step.

    Also raised if a step produces weights or a validation loss that are not finite; such weights are never saved.
    """

    before_step: bool
    """Whether the weights are still those before the step, which a checkpoint may hold."""

    def __init__(self, step: int, reason: str, before_step: bool = False) -> None:
        self.before_step = before_step
        super().__init__(
            f"step {step}: {reason}: lower train.lr, warm up (schedule.warmup), or clip (train.grad_clip=1.0)"
        )


class TrainingLosses(NamedTuple):
    """The losses of a micro-batch in nats; with multi-seed training each is (S,)."""

    next_token: Tensor  # summed over the targets; the loss that is logged
    mtp: list[Tensor]  # multi-token prediction, one per further token, weighted and summed over the targets
    auxiliary: list[Tensor]  # auxiliary losses of layers, such as load balancing; means over the micro-batch

    def total(self, n_targets: Tensor | int, n_micro_batches: int) -> Tensor:
        """The loss to backpropagate, for a batch of `n_targets`: micro-batches may differ in targets, so sums are divided."""
        sums = (loss / n_targets for loss in (self.next_token, *self.mtp))
        return torch.stack([*sums, *(loss / n_micro_batches for loss in self.auxiliary)]).sum()


class Updater(Protocol):
    """Computes the steps of several runs in one program."""

    n_seeds: int

    def update(self, run: "Run") -> Step: ...

    def is_ahead(self, run: "Run") -> bool: ...


class Run:
    """A model in training. Equal config, machine and thread count give bitwise equal results.

    Raises ConfigError if this machine does not support the runtime settings.
    """

    def __init__(
        self,
        config: RunConfig,
        dataset: Dataset | None = None,
        runtime: Runtime | None = None,
        plan: BackendPlan | None = None,
    ) -> None:
        self.config = config
        self.runtime = runtime or choose_runtime(config.train)
        self.runtime.check()
        self.dataset = dataset or config.prepare()
        self.ids = self.dataset.split("train")
        self.examples = build_examples(self.dataset, "train", config.seq_len, config.model.context_length)
        self.device = torch.device(self.runtime.device)
        self.runtime.set_threads()
        if self.device.type == "cpu":
            keep_freed_memory()
        self.model = Transformer(config.model, config.train.weights_seed, config.train.reinitialize).to(self.device)
        self.model.fit(self.ids)
        self.new_tensors = (
            load_initial_weights(self.model, config.initial_weights) if config.initial_weights else list[str]()
        )
        if config.train.freeze is not None:
            freeze(self.model, config.train.freeze)
        if config.train.activation_checkpointing:
            checkpoint_activations(self.model)
        self.plan = plan or plan_run(config, self.model, self.runtime)
        self.plan.apply(self.model)
        self.forward: Callable[..., Tensor] = CompiledModel(self.model) if self.runtime.compile else self.model
        self.optimizer = config.optimizer.build(self.model, config.train.lr)
        set_precision(self.optimizer, self.runtime.precision)
        self.average = WeightAverage(config.averaging)
        self.findings: list[Finding] | None = None  # of `check_parts`
        self.step = 0
        self.queue = BatchQueue(self.step_rows, self.device)
        self.updater: Updater | None = None
        self.processes = SINGLE
        self.parallel = DataParallel(self.model, lambda batch: self.training_losses(batch))

    def distribute(self, processes: Processes) -> None:
        """Share a new model with other processes, as `train.parallel` says. Raises ConfigError."""
        train = self.config.train
        processes.check_rows(train.batch_size, train.grad_accumulation)
        self.processes = processes
        if processes.size == 1:
            return
        if train.parallel == "ddp":
            from partwise.train.distributed.ddp import Replicated

            self.parallel = Replicated(self.model, self.training_losses, processes)
        else:
            from partwise.train.distributed.fsdp import Sharded

            bfloat16 = self.runtime.precision == "bfloat16"
            self.parallel = Sharded(self.model, self.training_losses, processes, self.optimizer, bfloat16)

    def __repr__(self) -> str:
        size = self.config.count_parameters()
        total, data, runtime = self.config.train.steps, self.config.data.label, self.runtime
        machine = f"{runtime.device} {runtime.precision}"
        return f"Run(step {self.step:,} of {total:,}, {size}, {data}, {machine})"

    def check_parts(self, allow_leak: bool = False) -> None:
        """Check the parts that are not of this package. Raises ConfigError for a leak, unless it is allowed."""
        self.findings = check_own_parts(self.config, self.model, self.dataset, self.plan)
        if not allow_leak:
            refuse_leaks(self.config, self.findings, self.plan)

    def steps(self) -> Iterator[Step]:
        """Yield the metrics of each step until `train.steps`. Raises Diverged instead of a non-finite step."""
        if self.findings is None:
            self.check_parts()
        while self.step < self.config.train.steps:
            yield self.update()

    def update(self) -> Step:
        """Compute the next step. Raises Diverged instead of a non-finite step."""
        self.runtime.set_threads()  # another run of this process may have others
        if self.updater:
            return self.updater.update(self)
        started, train = time.perf_counter(), self.config.train
        lr = train.lr * self.config.schedule.factor(self.step, train.steps)
        if not self.model.training:  # train() visits every module: skip it in most steps
            self.model.train()
        next_token_losses = []
        count, micro_batches = self.queue.take(self.step)
        n_targets = max(1, count)  # sequences may have none
        for index, (first_row, own_rows) in enumerate(micro_batches, start=1):
            self.model.seed_dropout(train.seed, self.step, first_row)
            with self.parallel.synchronize(last=index == len(micro_batches)):
                losses = self.parallel.losses(own_rows)
                losses.total(n_targets, train.grad_accumulation).backward()
            next_token_losses.append(losses.next_token.detach() / n_targets)
        self.parallel.finish_gradients()
        if self.step + 1 < train.steps:
            self.queue.prepare(self.step + 1)  # before the loss is read, which waits for the device
        loss = self.processes.sum(torch.stack(next_token_losses).sum())
        norm = self.parallel.total_norm()
        if not math.isfinite(loss.item()) or not math.isfinite(norm.item()):
            where = self.non_finite_gradients()
            self.optimizer.zero_grad(set_to_none=True)
            reason = f"loss {loss.item()}, gradient norm {norm.item()}{where}"
            raise Diverged(self.step + 1, reason, before_step=True)
        self.clip_gradients(train.grad_clip, norm)
        for group in self.optimizer.param_groups:
            group["lr"] = lr * group.get("lr_factor", 1.0)
        try:
            self.optimizer.step()
        except RuntimeError as error:
            if "without overflow" not in str(error):
                raise
            raise Diverged(self.step + 1, "an optimizer setting or train.lr overflows float32") from None
        self.optimizer.zero_grad(set_to_none=True)
        self.model.after_step()
        self.average.update(self.parallel.parameters().values(), self.step, train.steps)
        self.step += 1
        return Step(self.step, loss.item(), norm.item(), lr, count, time.perf_counter() - started)

    def compile(self) -> float:
        """Compile the model now instead of in the next step, if the runtime says so; returns the seconds that it took."""
        if not self.runtime.compile:
            return 0.0
        started, train = time.perf_counter(), self.config.train
        micro_batch = self.batch().micro_batches(train.grad_accumulation)[0]
        self.model.train().seed_dropout(train.seed, self.step)

        def step() -> Tensor:
            return self.training_losses(micro_batch).total(1, 1)

        flops = self.config.flops_per_token() * micro_batch.inputs.size
        if is_small(flops, self.device.type, train.grad_accumulation):
            self.forward = CompiledModel(self.model, cuda_graphs=True)
            if replays_equal_steps(step, self.model):
                return time.perf_counter() - started
            self.forward = CompiledModel(self.model)
        warm_up(step, self.model)
        return time.perf_counter() - started

    def clip_gradients(self, max_norm: float | None, norm: Tensor) -> None:
        """Scale the gradients down to `max_norm` if their total norm `norm` is larger."""
        if max_norm is not None and norm + 1e-6 > max_norm:  # torch adds 1e-6, and else multiplies every gradient by 1
            torch.nn.utils.clip_grads_with_norm_(self.parallel.parameters().values(), max_norm, norm)

    def non_finite_gradients(self) -> str:
        """The first parameter of this process whose gradient is not finite, and the number of others."""
        parameters = self.parallel.parameters().items()
        names = [name for name, each in parameters if each.grad is not None and not each.grad.isfinite().all()]
        rest = f" and {quantity(len(names) - 1, 'other')}" if len(names) > 1 else ""
        return f", in the gradient of {names[0]}{rest}" if names else ""

    def batch(self, step: int | None = None) -> Batch:
        """The batch of a step, by default the next one: a pure function of (data, seed, step)."""
        train = self.config.train
        return self.examples.batch(self.dataset.hash, train.seed, self.step if step is None else step, train.batch_size)

    def step_rows(self, step: int) -> StepRows:
        """This process's rows of a step, by micro-batch."""
        batch, first_row = self.batch(step), 0
        rows = []
        for micro_batch in batch.micro_batches(self.config.train.grad_accumulation):
            start, own_rows = self.processes.rows(micro_batch)
            rows.append((first_row + start, own_rows))
            first_row += len(micro_batch.inputs)
        return StepRows(batch.n_targets, rows)

    def loss(self, batch: Batch) -> Tensor:
        """Mean next-token cross-entropy over a batch's targets in nats, without the other training losses."""
        logits, targets = self.predict(batch)
        return self.cross_entropy(logits, targets) / batch.n_targets

    def training_losses(self, batch: Batch | DeviceBatch) -> TrainingLosses:
        """The losses of a micro-batch of the next step."""
        auxiliary, mtp_logits, weight = list[Tensor](), list[Tensor](), self.mtp_loss_weight
        logits, targets = self.predict(batch, aux_losses=auxiliary, mtp_logits=mtp_logits if weight else None)
        mtp = [
            weight * self.cross_entropy(logits_k, shift_targets(targets, k))
            for k, logits_k in enumerate(mtp_logits, start=1)
        ]
        return TrainingLosses(self.cross_entropy(logits, targets), mtp, auxiliary)

    @property
    def mtp_loss_weight(self) -> float:
        """The weight of each multi-token prediction loss in the next step."""
        return self.model.ahead.loss_weight_at(self.step / self.config.train.steps)

    def predict(self, batch: Batch | DeviceBatch, **forward_kwargs: Any) -> tuple[Tensor, Tensor]:
        """A batch's logits (B, T, V) and targets (B, T); `forward_kwargs` go to the model."""
        inputs, targets = (torch.as_tensor(ids, device=self.device) for ids in (batch.inputs, batch.targets))
        source = None if batch.source is None else torch.as_tensor(batch.source, device=self.device)
        with self.autocast():
            return self.forward(inputs, source=source, **forward_kwargs), targets

    def cross_entropy(self, logits: Tensor, targets: Tensor) -> Tensor:
        """(B, T, V), (B, T) -> the loss summed over the targets."""
        runtime, compiled = self.runtime, self.runtime.compile and torch.is_grad_enabled()
        return summed_loss(logits, targets, self.config.train.label_smoothing, runtime.kernels, compiled)

    def autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.runtime.precision == "bfloat16")

    def optimizer_tensors(self) -> dict[str, Tensor]:
        """The optimizer's state in this process and what `averaging` keeps, by `parameter.key` names."""
        return {f"{name}.{key}": value for name, key, value in self.optimizer_states()}

    def optimizer_rows(self) -> dict[str, RowRange]:
        """This process's part of the optimizer's state."""
        found = {f"{name}.{key}": self.parallel.state_rows(name, value) for name, key, value in self.optimizer_states()}
        return {name: rows for name, rows in found.items() if rows is not None}

    def optimizer_states(self) -> Iterator[tuple[str, str, Tensor]]:
        """The optimizer's state in this process and what `averaging` keeps: parameter, key and tensor."""
        for name, parameter in self.parallel.parameters().items():
            state = self.optimizer.state.get(parameter, {})
            for key in sorted(state):
                yield name, key, state[key]
            if parameter in self.average.tensors:
                yield name, self.average.kept, self.average.tensors[parameter]

    def check_finite(self) -> None:
        """Raise Diverged, in every process, if a parameter or a tensor of the optimizer's state is not finite."""
        tensors = {**self.parallel.parameters(), **self.optimizer_tensors()}
        bad = next((name for name, tensor in tensors.items() if not tensor.isfinite().all()), None)
        for name in self.processes.gather(bad):
            if name is not None:
                raise Diverged(self.step, f"{name} is not finite")

    def restore(self, step: int, weights: Mapping[str, Tensor], optimizer: Mapping[str, Tensor]) -> None:
        """Load a saved state. Raises DamagedFileError if the tensors do not match the model."""
        from partwise.checkpoint import DamagedFileError

        self.parallel.load(weights)
        self.average.load(step, self.parallel.parameters(), optimizer, self.parallel.load_state)
        names = {id(parameter): name for name, parameter in self.parallel.parameters().items()}
        ordered = [names[id(parameter)] for group in self.optimizer.param_groups for parameter in group["params"]]
        indices = {name: index for index, name in enumerate(ordered)}
        state: dict[int, dict[str, Tensor]] = {}
        for name in optimizer:
            parameter_name, _, key = name.rpartition(".")
            if key in KEPT:
                continue
            if parameter_name not in indices:
                raise DamagedFileError(f"the optimizer's state names an unknown parameter {parameter_name!r}")
            state.setdefault(indices[parameter_name], {})[key] = self.parallel.load_state(
                parameter_name, key, optimizer
            )
        # load_state_dict knows on which device fused and other optimizers keep the step counter
        self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": state})
        self.step = step


def plan_run(config: RunConfig, model: Transformer, runtime: Runtime) -> BackendPlan:
    """The plan of a run on its own. Raises ConfigError if a backend that the settings name computes no layer."""
    backends = requested(config.train)
    plan = plan_backends(model, runtime, backends, config.seq_len)
    check_requested([plan], backends)
    return plan
