"""Training steps in float64 on one, two and four processes, for tests.

    torchrun --nproc-per-node 4 tests/data_parallel.py STEPS FOLDER CASE ...

The four processes train every case; then two of them, then one. Each number of processes saves checkpoints, and computes
the next two steps from those of the others, for the cases in RESHARDED: only the second depends on the optimizer's state.
Writes FOLDER/results.json: losses and gradient norms of each step, by number of processes, case and kind.
"""

import json
import os
import resource
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from partwise.compute.runtime import choose_runtime
from partwise.config import ConfigError
from partwise.train import run_folder
from partwise.train.config import RunConfig, run_config
from partwise.train.distributed.environment import STORE
from partwise.train.distributed.processes import EndedTogether, Processes, join
from partwise.train.loop import Run
from partwise.train.run_checkpoints import RunCheckpoints
from partwise.train.run_folder import RunFolder
from partwise.version import __version__

SMALL = (
    "d_model=16 n_layers=2 attention.n_heads=2 context_length=16 train.batch_size=8 train.steps=100 train.precision=float32 "
    "train.device=cpu data.train=2000 data.validation=50 data.test=50"
)
MOE = "ffn=moe ffn.n_experts=4 ffn.load_balancing"
CASES = {
    "plain": "",
    "uneven": "train.batch_size=10 train.grad_accumulation=2 train.grad_clip=0.5",
    "answers": "embed_dropout=0.1 context_length=40 data.aligned=true data.answer_only_loss=true",
    "pairs": "data=arithmetic_pairs encoder_layers=1 context_length=40",
    "aux_loss": f"{MOE}=aux_loss",
    "bias": f"{MOE}=bias",
    "checkpointed": f"embed_dropout=0.1 train.activation_checkpointing=true {MOE}=aux_loss",
    "mtp": "mtp=heads mtp.start_fraction=0.02",
    "fused": "attention.fused_qkv=true attention.n_kv_heads=1 ngram_lm=kneser_ney d_model=20",
    "muon": "optimizer=muon",
    "averaged": "averaging=ema averaging.decay=0.5 train.freeze=blocks.0.ffn",
    "lion": "optimizer=lion",
    "sgd": "optimizer=sgd",
}
OTHER_DATA = ("data.train=1000", "data.validation=50", "data.test=50")
KINDS = ("ddp", "fsdp")
SIZES = (4, 2, 1)
RESHARDED = {"plain", "fused", "bias", "muon", "averaged"}


def config(case: str, kind: str = "ddp") -> RunConfig:
    return run_config("mingpt", "data=arithmetic", *SMALL.split(), *CASES[case].split(), f"train.parallel={kind}")


def new_run(case: str, kind: str, processes: Processes) -> Run:
    run = Run(config(case, kind))
    run.model.double()
    run.distribute(processes)
    return run


def kinds(size: int) -> tuple[str, ...]:
    return KINDS if size > 1 else KINDS[:1]


def step(run: Run) -> list[float]:
    done = run.update()
    return [done.loss, done.grad_norm]


class Communication(TorchDispatchMode):
    """Counts the bytes that this process gives to collective operations, by operation; the larger side of each."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "c10d":
            tensors = [leaf for leaf in tree_leaves(args) if isinstance(leaf, Tensor)]
            self.bytes[func.name().removeprefix("c10d::")] += max(tensor.nbytes for tensor in tensors)
        return func(*args, **(kwargs or {}))


def checkpoints(folder: Path, run: Run, case: str, kind: str, size: int) -> RunCheckpoints:
    return RunCheckpoints(folder / f"{size} {case} {kind}" / "checkpoints", run, print)


def train(n_steps: int, folder: Path, cases: list[str], processes: Processes) -> dict[str, Any]:
    """The first steps of every case; a checkpoint after them, and the next step, where it will be resumed."""
    results: dict[str, Any] = {}
    for case in cases:
        for kind in kinds(processes.size):
            run = new_run(case, kind, processes)
            with Communication() as communication:
                losses = [step(run) for _ in range(n_steps)]
            result: dict[str, Any] = {"steps": losses, "bytes": communication.bytes}
            if case in RESHARDED:
                saved = checkpoints(folder, run, case, kind, processes.size)
                saved.save()
                result["next"] = [step(run), step(run)]
                if (case, kind, processes.size) == ("plain", "fsdp", 4):
                    result |= save_on_a_full_disk(saved)
            results[f"{processes.size} {case} {kind}"] = result
    return results


def save_on_a_full_disk(saved: RunCheckpoints) -> dict[str, Any]:
    """Save while rank 2 can write no file; returns the message of the first process and the checkpoints that are left."""
    processes, limits = saved.run.processes, resource.getrlimit(resource.RLIMIT_FSIZE)
    if processes.rank == 2:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        saved.save()
        message = "saved"
    except (ConfigError, EndedTogether) as error:
        message = f"{type(error).__name__} {error}"
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    left = sorted(path.name for path in saved.folder.iterdir())
    return {"full disk": processes.gather(message), "left": left}


def refusals(folder: Path, processes: Processes) -> dict[str, Any]:
    """The messages of all processes if one of them has another version, device, precision or data."""
    case, first = config("plain"), processes.first
    runtime = choose_runtime(case.train)
    other = {"device": "cuda", "precision": "bfloat16"}
    messages = {}
    for what in ("versions", "device", "precision", "data"):
        odd = processes.rank == 2
        changed = replace(runtime, **{what: other[what]}) if odd and what in other else runtime
        dataset = run_config("mingpt", "data=arithmetic", *OTHER_DATA).prepare() if odd and what == "data" else None
        try:
            with patch.object(run_folder, "__version__", "0.0" if odd and what == "versions" else __version__):
                RunFolder(folder / "refused", case, runtime=changed, dataset=dataset, processes=processes)
            message = "accepted"
        except (ConfigError, EndedTogether) as error:
            message = f"{type(error).__name__} {error}"
        messages[what] = processes.gather(message)
    return {"refused": messages, "written": (folder / "refused").exists() and first}


def measured_memory(processes: Processes) -> dict[str, Any]:
    """Bytes of weights, gradients and optimizer states in each process under FSDP2, after a step."""
    run = new_run("plain", "fsdp", processes)
    gradients = []
    original = run.optimizer.step

    def step_and_measure() -> None:
        gradients.append(sum(p.grad.nbytes for p in run.parallel.parameters().values() if p.grad is not None))
        original()

    run.optimizer.step = step_and_measure  # type: ignore[method-assign,assignment]
    run.update()
    weights = sum(parameter.nbytes for parameter in run.parallel.parameters().values())
    return {
        "memory": processes.gather([weights, gradients[0], sum(t.nbytes for t in run.optimizer_tensors().values())])
    }


def resume(folder: Path, cases: list[str], processes: Processes) -> dict[str, Any]:
    """The next two steps from the checkpoints of every number of processes."""
    results = {}
    for case in [case for case in cases if case in RESHARDED]:
        for source in SIZES:
            for kind in kinds(source):
                for own in kinds(processes.size):
                    run = new_run(case, own, processes)
                    if checkpoints(folder, run, case, kind, source).restore() is None:
                        raise ConfigError(f"no checkpoint of {case} by {source} processes")
                    results[f"{source} {kind} -> {processes.size} {own}: {case}"] = [step(run), step(run)]
    return results


def join_some(size: int, turn: int, folder: Path) -> Processes | None:
    """The first `size` of the processes that torchrun has started; None in the others."""
    rank = int(os.environ["LOCAL_RANK"])
    if rank >= size:
        return None
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size), STORE: str(folder / f"store-{turn}")}
    return join()


def main(n_steps: int, folder: Path, cases: list[str]) -> None:
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    results: dict[str, Any] = {}
    # sizes go down, then up again: those that rest wait for the others where they next join
    for turn, size in enumerate([*SIZES, *SIZES[::-1]]):
        processes = join_some(size, turn, folder)
        if processes is None:
            continue
        done = train(n_steps, folder, cases, processes) if turn < len(SIZES) else resume(folder, cases, processes)
        results |= done
        if turn == 0:
            results |= refusals(folder, processes) | measured_memory(processes)
        processes.leave()
    if os.environ["LOCAL_RANK"] == "0":
        (folder / "results.json").write_text(json.dumps(results))
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(0)  # as the command does: threads of torch's may abort a process while Python ends


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
