"""Writes the runs and comparisons that tests/formats_on_disk keeps of every format: python tests/stored_formats.py FOLDER.

A new format gets a new folder, and the old ones stay: what this version reads must not depend on what it writes.
"""

import os
import shutil
import sys
from pathlib import Path

from partwise.cli import main

RUN = [
    "mingpt", "d_model=8", "n_layers=1", "attention.n_heads=2", "context_length=16", "train.batch_size=2", "train.steps=4",
    "train.eval_every=2", "train.save_every=2", "train.precision=float32", "train.threads=1", "train.device=cpu",
    "train.block_backend=eager", "train.attention_backend=eager", "train.ffn_backend=eager",
    "data=arithmetic", "data.train=50", "data.validation=10", "data.test=5",
]  # fmt: skip
TRAIN = ["train", *RUN, "--name", "run"]
COMPARE = [
    "compare", "mingpt", "norm=rmsnorm", "--seeds", "2", "--name", "comparison",
    *(word for override in RUN[1:] for word in ("--common", override)),
]  # fmt: skip


def write(folder: Path) -> None:
    folder.mkdir(parents=True)
    os.chdir(folder)
    for words in (TRAIN, COMPARE):
        sys.argv = ["partwise", *words]
        try:
            main()
        except SystemExit as stop:
            assert not stop.code, stop.code
    for path in [*Path("runs").rglob(".lock"), *Path("runs").rglob(".pid"), Path("runs/comparison/report.html")]:
        path.unlink()
    for path in Path("runs/comparison").rglob("checkpoints"):
        shutil.rmtree(path)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
