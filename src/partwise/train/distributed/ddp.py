"""Data parallelism by torch's DistributedDataParallel: every process holds the model."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from partwise.data import Batch
from partwise.model import Transformer
from partwise.train.distributed.data_parallel import DataParallel, connect_statistics
from partwise.train.distributed.processes import Processes


class Replicated(DataParallel):
    """DistributedDataParallel, Li et al. 2020, arXiv:2006.15704: every process holds the model."""

    kind = "ddp"

    def __init__(self, model: Transformer, losses: Callable[[Batch], Any], processes: Processes) -> None:
        super().__init__(model, losses)
        connect_statistics(model, processes)
        # layers of multi-token prediction are unused while their loss has the weight zero
        self.module = DistributedDataParallel(
            TrainingForward(model, losses),
            forward_sync_buffers=False,
            gradient_as_bucket_view=True,
            find_unused_parameters=model.config.mtp.name != "none" and not model.ahead.loss_weight_at(0.0),
        )
        self.module.register_comm_hook(None, sum_gradients)
        self.losses = self.module

    def synchronize(self, last: bool) -> AbstractContextManager[None]:
        return nullcontext() if last else self.module.no_sync()


class TrainingForward(nn.Module):
    """The losses of a micro-batch as the output of a module, which DDP requires."""

    def __init__(self, model: Transformer, losses: Callable[[Batch], Any]) -> None:
        super().__init__()
        self.model, self.losses = model, losses

    def forward(self, batch: Batch) -> Any:
        return self.losses(batch)


def sum_gradients(state: None, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    """Sum a bucket where DDP would average: losses are already divided by the targets of the global batch."""
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    assert work is not None
    return work.get_future().then(lambda future: future.value()[0])
