"""The processes that train one model together: which rows each computes, sums over all of them, and words between them."""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from partwise.config import ConfigError
from partwise.data import Batch

TIMEOUT = "PARTWISE_PROCESS_TIMEOUT"
"""The environment variable with the seconds after which a process that does not answer counts as lost."""
TIMEOUT_SECONDS = 600.0
LAUNCHED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""The environment variables by which torchrun tells a process its place."""


Result = TypeVar("Result")


class ProcessLost(Exception):
    """Another process has ended or does not answer; the last checkpoint is intact."""


class EndedTogether(Exception):
    """This process ends because another one failed, which reports the reason."""


class Processes:
    """`size` processes of which this is number `rank`. A single one needs no process group and communicates nothing."""

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        self.rank, self.size = rank, size

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
                f"{self.size} processes need as many rows, but train.batch_size={batch_size} in "
                f"train.grad_accumulation={grad_accumulation} micro-batches has {n_rows} each: start fewer processes or "
                "raise train.batch_size"
            )

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
            dist.all_gather(sizes, torch.tensor([len(content)]))
            padded = torch.zeros(int(torch.stack(sizes).max()), dtype=torch.uint8)
            padded[: len(content)] = content
            contents = [torch.zeros_like(padded) for _ in range(self.size)]
            dist.all_gather(contents, padded)
        return [json.loads(bytes(each[: int(n)].tolist())) for each, n in zip(contents, sizes, strict=True)]

    def on_first(self, action: Callable[[], Result]) -> Result:
        """Run `action` on the first process and return its JSON value on each; if it raises, every process ends."""
        result: Any = None
        with self.together():
            if self.first:
                result = action()
        return self.gather(result)[0] if self.size > 1 else result

    @contextmanager
    def together(self) -> Iterator[None]:
        """A step that must succeed on every process: where one raises, the others raise EndedTogether."""
        error: Exception | None = None
        try:
            yield
        except ProcessLost:
            raise
        except Exception as raised:
            error = raised
        if self.size > 1 and any(self.gather(error is not None)) and error is None:
            raise EndedTogether
        if error is not None:
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


def launched() -> bool:
    """Whether torchrun or `--processes` has started this process."""
    return all(name in os.environ for name in LAUNCHED)


def timeout() -> timedelta:
    """Raises ConfigError for an invalid PARTWISE_PROCESS_TIMEOUT."""
    text = os.environ.get(TIMEOUT, str(TIMEOUT_SECONDS))
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 1 <= seconds <= 86400:
        raise ConfigError(f"{TIMEOUT}={text}: set it to 1 to 86400 seconds")
    return timedelta(seconds=seconds)


def join(device: str) -> Processes:
    """Join the processes that were launched with this one. Raises ConfigError."""
    values = {name: os.environ[name] for name in LAUNCHED}
    try:
        rank, size, port = (int(values[name]) for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"))
    except ValueError:
        raise ConfigError(
            f"RANK, WORLD_SIZE and MASTER_PORT must be numbers, not {values}: start with torchrun"
        ) from None
    if not 0 <= rank < size:
        raise ConfigError(f"RANK={rank} is outside WORLD_SIZE={size}: ranks count from 0")
    if size == 1:
        return SINGLE
    backend = "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"
    for name in ("nccl", "gloo") if device == "cuda" else ("gloo",):
        if not dist.is_backend_available(name):
            raise ConfigError(f"torch has no {name} here, which {size} processes on {device} need: start one process")
    if device not in ("cpu", "cuda"):
        raise ConfigError(f"several processes need train.device=cpu or cuda, not {device}: start one process")
    try:
        dist.init_process_group(backend, rank=rank, world_size=size, timeout=timeout())
    except (RuntimeError, ValueError) as error:
        if "EADDRINUSE" in str(error) or "address already in use" in str(error).lower():
            raise ConfigError(f"port {port} is in use: set another MASTER_PORT, or --master-port of torchrun") from None
        reason = " ".join(str(error).split())[:200]
        raise ConfigError(
            f"rank {rank} of {size} cannot reach {values['MASTER_ADDR']}:{port} ({reason}): start all processes within "
            f"{timeout().total_seconds():.0f} s"
        ) from None
    return Processes(rank, size)
