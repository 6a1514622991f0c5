"""The rows of each step, on CUDA made and moved to the device while it computes the step before."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from partwise.data import Batch


class DeviceBatch(NamedTuple):
    """A `Batch` on a device."""

    inputs: Tensor
    targets: Tensor
    source: Tensor | None


class StepRows(NamedTuple):
    """This process's rows of one step, by micro-batch, each with the index of its first row in the step's batch."""

    n_targets: int  # of all processes
    micro_batches: list[tuple[int, Any]]  # Batch, or DeviceBatch if they were moved ahead


class BatchQueue:
    """The rows of steps, which may be asked for in any order; `prepare` moves those of a coming step ahead.

    They are copied from pinned memory on a stream of their own, so that neither the host nor the device waits.
    """

    def __init__(self, make: Callable[[int], StepRows], device: torch.device) -> None:
        self.make, self.device = make, device
        self.ahead: dict[int, StepRows] = {}
        self.moves = device.type != "cpu"
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def prepare(self, step: int) -> None:
        """Begin to move the rows of a coming step. Does nothing if the rows are already on the device."""
        if self.moves:
            made = self.make(step)
            with nullcontext() if self.stream is None else torch.cuda.stream(self.stream):
                moved = [(first_row, self.move(batch)) for first_row, batch in made.micro_batches]
            self.ahead = {step: StepRows(made.n_targets, moved)}

    def take(self, step: int) -> StepRows:
        """The rows of a step."""
        rows = self.ahead.pop(step, None)
        if rows is None:
            return self.make(step)
        if self.stream is not None:
            current = torch.cuda.current_stream(self.device)
            current.wait_stream(self.stream)
            for tensor in (tensor for _, batch in rows.micro_batches for tensor in batch if tensor is not None):
                tensor.record_stream(current)  # its memory is not used again before the step has read it
        return rows

    def move(self, batch: Batch) -> DeviceBatch:
        source = None if batch.source is None else self.move_ids(batch.source)
        return DeviceBatch(self.move_ids(batch.inputs), self.move_ids(batch.targets), source)

    def move_ids(self, ids: np.ndarray) -> Tensor:
        pinned = self.device.type == "cuda"
        tensor = torch.from_numpy(ids)
        return (tensor.pin_memory() if pinned else tensor).to(self.device, non_blocking=pinned)
