"""Send losses and rates of a run to TensorBoard or Weights & Biases (`train.log`). A failure never stops or changes a run."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from partwise.config import digest
from partwise.train.evaluation import Evaluation
from partwise.train.loop import Step


class Writer(Protocol):
    """Where values go."""

    def write(self, step: int, values: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


class TensorBoardWriter:
    """Event files in the folder `tensorboard` of a run."""

    def __init__(self, folder: Path, metadata: Mapping[str, Any]) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(str(folder / "tensorboard"))

    def write(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)
        self.writer.flush()

    def close(self) -> None:
        self.writer.close()


class WandbWriter:
    """A run of Weights & Biases; a resumed run continues its own. The variables of wandb, such as WANDB_MODE, apply."""

    def __init__(self, folder: Path, metadata: Mapping[str, Any]) -> None:
        import wandb

        self.run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "partwise"),
            name=run_name(folder),
            dir=str(folder),
            config=dict(metadata["config"]),
            id=digest([str(folder.resolve()), metadata["created"]])[:16],
            resume="allow",
            reinit="create_new",  # several seeds per process are several runs
            settings=wandb.Settings(silent=True, console="off", init_timeout=30, login_timeout=30),
        )

    def write(self, step: int, values: Mapping[str, float]) -> None:
        self.run.log(dict(values), step=step)

    def close(self) -> None:
        self.run.finish()


def run_name(folder: Path) -> str:
    """The path below the nearest folder `runs`: `mine`, or `1-ffn=swiglu/seed-3` in a comparison."""
    parts = folder.resolve().parts
    start = max((index + 1 for index, part in enumerate(parts[:-1]) if part == "runs"), default=len(parts) - 1)
    return "/".join(parts[start:])


WRITERS: dict[str, Callable[[Path, Mapping[str, Any]], Writer]] = {
    "tensorboard": TensorBoardWriter,
    "wandb": WandbWriter,
}


class ExperimentLog:
    """The log of one run. After the first failure it says so in one line, and writes nothing more."""

    def __init__(self, name: str, folder: Path, metadata: Mapping[str, Any], say: Callable[[str], None]) -> None:
        self.name, self.say = name, say
        self.writer: Writer | None = None
        if name in WRITERS:
            self._try(lambda: setattr(self, "writer", WRITERS[name](folder, metadata)))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.writer:
            self._try(self.writer.close)

    def write(self, step: Step, evaluation: Evaluation) -> None:
        """The losses of an evaluation, and the rates of the step before it."""
        values = {
            "loss/validation": evaluation.validation,
            "loss/training": evaluation.training,
            "lr": step.lr,
            "grad_norm": step.grad_norm,
            "tokens_per_second": step.tokens / step.seconds if step.seconds else 0.0,
        }
        if writer := self.writer:
            self._try(lambda: writer.write(evaluation.step, values))

    def _try(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:  # a log may be a full disk, a network, or a package of another version
            self.writer = None
            reason = " ".join(str(error).split())[:200] or type(error).__name__
            hint = f"; `pip install 'partwise[{self.name}]'`" if isinstance(error, ImportError) else ""
            self.say(f"train.log={self.name} failed ({reason}){hint}: the run continues without it")
