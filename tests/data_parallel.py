"""Training steps in float64 over several processes, for tests: python tests/data_parallel.py STEPS FOLDER CASE ...

Writes FOLDER/SIZE.json, losses and gradient norms, and the state after the last step as safetensors. Continues from
FOLDER/start-CASE.safetensors if it exists.
"""

import json
import os
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from partwise.train.config import RunConfig, run_config
from partwise.train.distributed.environment import launched
from partwise.train.distributed.processes import SINGLE, Processes, join
from partwise.train.loop import Run

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
    "muon": "optimizer=muon",
    "lion": "optimizer=lion",
    "sgd": "optimizer=sgd",
}
KINDS = ("ddp", "fsdp")


def config(case: str, kind: str = "ddp") -> RunConfig:
    return run_config("mingpt", "data=arithmetic", *SMALL.split(), *CASES[case].split(), f"train.parallel={kind}")


def new_run(case: str, kind: str, processes: Processes) -> Run:
    run = Run(config(case, kind))
    run.model.double()
    run.distribute(processes)
    return run


def state(run: Run) -> dict[str, Tensor]:
    """The whole state of a run; every process must call it."""
    tensors = {f"model {name}": value for name, value in run.parallel.weights().items()}
    tensors |= {f"optimizer {name}": value for name, value in run.optimizer_tensors().items()}
    return {name: value.detach().clone().contiguous() for name, value in tensors.items()}


def restore(run: Run, step: int, tensors: dict[str, Tensor]) -> None:
    parts = [
        {name.removeprefix(f"{kind} "): value for name, value in tensors.items() if name.startswith(f"{kind} ")}
        for kind in ("model", "optimizer")
    ]
    run.restore(step, *parts)


def main(n_steps: int, folder: Path, cases: list[str]) -> None:
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    processes = join() if launched() else SINGLE
    results = {}
    for case in cases:
        for kind in KINDS if processes.size > 1 else KINDS[:1]:
            run, start = new_run(case, kind, processes), folder / f"start-{case}.safetensors"
            if start.exists():
                restore(run, n_steps, load_file(start))
            losses = [[step.loss, step.grad_norm] for step in (run.update() for _ in range(n_steps))]
            results[f"{case} {kind}"] = {"steps": losses, "bytes": run.parallel.bytes_reduced}
            tensors = state(run)
            if processes.first:
                save_file(tensors, folder / f"{processes.size}-{case}-{kind}.safetensors")
    if processes.first:
        (folder / f"{processes.size}.json").write_text(json.dumps(results))
    processes.leave()
    if processes.size > 1:
        os._exit(0)  # as the command does: threads of torch's may abort a process while Python ends


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
