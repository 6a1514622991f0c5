"""The processes that train one model together: which rows each computes, sums over all of them, and words between them."""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from partwise.config import ConfigError
from partwise.data import Batch
from partwise.train.distributed.environment import LAUNCHED, STORE, timeout_seconds

PATIENCE = timedelta(days=7)
"""The timeout during work that may take long on one process, such as preparing data; one that ends is noticed at once."""

Result = TypeVar("Result")


class ProcessLost(Exception):
    """Another process has ended or does not answer; the last checkpoint is intact."""


class EndedTogether(Exception):
    """This process ends because another one failed, which reports the reason."""


class Processes:
    """This process, number `rank` of `size`. A single process needs no process group and communicates nothing."""

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        self.rank, self.size = rank, size
        self.group: dist.ProcessGroup | None = None  # None: all processes, with the timeout of steps

    @property
    def first(self) -> bool:
        """Whether this process writes the run's files and shows its progress."""
        return self.rank == 0

    def rows(self, batch: Batch) -> tuple[int, Batch]:
        """This process's consecutive rows of a micro-batch, and the index of the first; sizes differ by at most one."""
        n_rows = len(batch.inputs)
        start, end = (n_rows * rank // self.size for rank in (self.rank, self.rank + 1))
        source = None if batch.source is None else batch.source[start:end]
        return start, replace(batch, inputs=batch.inputs[start:end], targets=batch.targets[start:end], source=source)

    def check_rows(self, batch_size: int, grad_accumulation: int) -> None:
        """Raise ConfigError if a micro-batch has fewer rows than there are processes."""
        n_rows = batch_size // grad_accumulation
        if n_rows < self.size:
            raise ConfigError(
                f"{self.size} processes need at least {self.size} rows per micro-batch, but train.batch_size={batch_size} "
                f"with train.grad_accumulation={grad_accumulation} gives {n_rows}: start fewer processes or raise "
                "train.batch_size"
            )

    def check_device(self, device: str) -> None:
        """Raise ConfigError if this torch cannot connect processes on a kind of device."""
        if self.size > 1 and device == "cuda" and not dist.is_nccl_available():
            raise ConfigError(f"this torch has no nccl, which {self.size} processes on CUDA need: set train.device=cpu")
        if self.size > 1 and device not in ("cpu", "cuda"):
            raise ConfigError(f"{self.size} processes cannot share a model on {device}: set train.device=cpu")

    def sum(self, values: Tensor) -> Tensor:
        """The sum of a tensor over the processes."""
        if self.size == 1:
            return values
        total = values.detach().clone()
        with explain_lost():
            dist.all_reduce(total)
        return total

    def maximum(self, value: int) -> int:
        """The largest value of any process."""
        if self.size == 1:
            return value
        largest = torch.tensor(value, dtype=torch.int64)
        with explain_lost():
            dist.all_reduce(largest, op=dist.ReduceOp.MAX)
        return int(largest)

    def gather(self, value: Any) -> list[Any]:
        """The JSON value of every process, in the order of their ranks."""
        if self.size == 1:
            return [value]
        # as JSON, since torch's functions for objects exchange pickles
        content = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        with explain_lost():
            dist.all_gather(sizes, torch.tensor([len(content)]), group=self.group)
            padded = torch.zeros(int(torch.stack(sizes).max()), dtype=torch.uint8)
            padded[: len(content)] = content
            contents = [torch.zeros_like(padded) for _ in range(self.size)]
            dist.all_gather(contents, padded, group=self.group)
        return [json.loads(bytes(each[: int(n)].tolist())) for each, n in zip(contents, sizes, strict=True)]

    def on_first(self, action: Callable[[], Result]) -> Result:
        """Run `action` on the first process and return its JSON value on each; if it raises, every process ends."""
        result: Any = None
        with self.together():
            if self.first:
                result = action()
        return self.gather(result)[0] if self.size > 1 else result

    @contextmanager
    def patient(self) -> Iterator[None]:
        """Wait for other processes as long as their work takes."""
        if self.size > 1:
            self.group = dist.new_group(backend="gloo", timeout=PATIENCE)
        try:
            yield
        finally:
            self.group = None

    @contextmanager
    def together(self) -> Iterator[None]:
        """A step that must succeed on every process. If it raises on one, all end: the first raises its error or, as a
        ConfigError that names the rank, the error of another; the others raise EndedTogether."""
        error: Exception | None = None
        try:
            yield
        except (ProcessLost, EndedTogether):
            raise
        except Exception as raised:
            error = raised
        if self.size == 1:
            if error is not None:
                raise error
            return
        messages = self.gather(None if error is None else describe_error(error))
        failed = [rank for rank, message in enumerate(messages) if message is not None]
        if not failed:
            return
        if self.first and error is None:
            raise ConfigError(f"rank {failed[0]}: {messages[failed[0]]}")
        if error is None or (not self.first and isinstance(error, ConfigError)):
            raise EndedTogether
        raise error

    def check_equal(self, facts: dict[str, str]) -> None:
        """Raise ConfigError on the first process, and EndedTogether elsewhere, if a fact differs between processes."""
        everyone = self.gather(facts)
        with self.together():
            for rank, other in enumerate(everyone if self.first else []):
                for key, value in facts.items():
                    if other.get(key) != value:
                        raise ConfigError(
                            f"rank {rank} has {key} {other.get(key)}, but rank 0 has {value}: start every process with "
                            "the same command, versions, data and kind of device"
                        )

    def leave(self) -> None:
        """End the process group, once every process is here: torchrun ends the others as soon as one has failed."""
        if self.size > 1 and dist.is_initialized():
            with explain_lost():
                dist.barrier()
            dist.destroy_process_group()


SINGLE = Processes()


def describe_error(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if isinstance(error, ConfigError) else f"{type(error).__name__}: {text}"


@contextmanager
def explain_lost() -> Iterator[None]:
    """Turn torch's error for a lost connection or a timeout into ProcessLost."""
    try:
        yield
    except RuntimeError as error:
        if not is_connection_error(error):
            raise
        raise ProcessLost(
            "another process has ended or has not answered in time: run the same command again to resume from the last "
            "checkpoint"
        ) from None


def is_connection_error(error: RuntimeError) -> bool:
    text = str(error).lower()
    return isinstance(error, dist.DistError) or any(
        word in text for word in ("gloo", "nccl", "connection closed", "connection reset", "timed out", "broken pipe")
    )


def join() -> Processes:
    """Join the processes that were launched with this one; on CUDA, each takes the device of its local rank.

    Raises ConfigError.
    """
    store = os.environ.get(STORE)
    names = LAUNCHED[:2] if store else LAUNCHED
    values = {name: os.environ.get(name, "") for name in names}
    try:
        rank, size = int(values["RANK"]), int(values["WORLD_SIZE"])
        port = int(values.get("MASTER_PORT", 0))
    except ValueError:
        raise ConfigError(
            f"RANK, WORLD_SIZE and MASTER_PORT must be numbers, not {values}: start with torchrun"
        ) from None
    if not 0 <= rank < size:
        raise ConfigError(f"RANK={rank} is outside WORLD_SIZE={size}: ranks count from 0")
    if size == 1:
        return SINGLE
    if not dist.is_available() or not dist.is_gloo_available():
        raise ConfigError(f"this torch has no gloo, which {size} processes need: start one process")
    backend = "gloo"
    if torch.cuda.is_available() and dist.is_nccl_available():
        backend = "cpu:gloo,cuda:nccl"
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", rank)) % torch.cuda.device_count())
    # no quoting, as `as_uri` does: torch opens the file by the text after file://
    method, limit = f"file://{Path(store)}" if store else "env://", timedelta(seconds=timeout_seconds())
    try:
        found, _, _ = next(dist.rendezvous(method, rank, size, timeout=limit))
        # torchrun may keep the store for the next attempt, with the addresses of processes that have ended
        attempt = dist.PrefixStore(f"attempt {os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}", found)
        dist.init_process_group(backend, store=attempt, rank=rank, world_size=size, timeout=limit)
    except (RuntimeError, ValueError) as error:
        if "EADDRINUSE" in str(error) or "address already in use" in str(error).lower():
            raise ConfigError(f"port {port} is in use: set another MASTER_PORT, or --master-port of torchrun") from None
        reason = " ".join(str(error).split())[:200]
        place = store or f"{values['MASTER_ADDR']}:{port}"
        raise ConfigError(
            f"rank {rank} of {size} cannot reach {place} ({reason}): start all processes within "
            f"{limit.total_seconds():.0f} s"
        ) from None
    return Processes(rank, size)
