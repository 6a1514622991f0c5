"""Every command and every part on a pretended accelerator that refuses float64, as Apple's Metal does."""

import json
import os
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import partwise
from comparisons import last_of_each

DEVICE = Path(__file__).parents[1] / "pretended_device"
SMALL = (
    "d_model=16 n_layers=2 attention.n_heads=2 context_length=16 train.seq_len=16 train.batch_size=4 train.steps=4 "
    "train.eval_every=2"
)
PROBLEMS = "data.train=2000 data.validation=2 data.test=2"
OPTIONS = "optimizer=muon averaging=ema train.grad_accumulation=2 train.activation_checkpointing=true"
ALL_ARMS = " ".join(f"--common {word}" for word in SMALL.split())
COMMANDS = f"""
train mingpt --data text.txt {SMALL} --name text
eval text
eval text --json scores.json
generate text --prompt the --max-new-tokens 5
generate text --prompt the --max-new-tokens 5 --num-beams 2
report text
train mingpt data=arithmetic {PROBLEMS} {SMALL} head_bias=false --name problems
eval problems
calculate problems "1 + 2"
train from=runs/problems train.steps=2 --name more
train calculator {PROBLEMS} {SMALL} n_layers=1 context_length=256 train.seq_len=256 --name steps
calculate steps "1 + 2" --steps
train original {PROBLEMS} {SMALL} encoder_layers=1 context_length=64 train.seq_len=64 --name pairs
eval pairs
generate pairs --prompt 1+2 --num-beams 2
train mingpt data=arithmetic {PROBLEMS} {SMALL} {OPTIONS} train.precision=bfloat16 --name half
eval half
train mingpt data=arithmetic {PROBLEMS} {SMALL} ngram_lm=kneser_ney mtp=heads ffn=moe --name parts
eval parts
export problems folder
import folder --name imported
generate imported --prompt 1 --max-new-tokens 5
doctor mingpt
compare mingpt ffn=swiglu --data text.txt {ALL_ARMS} --seeds 2 --workers 1 --name two
compare mingpt ffn=swiglu --data text.txt {ALL_ARMS} --seeds 2 --seeds-per-process 2 --name together
calibrate mingpt --data text.txt {SMALL} --seeds 3
inspect text activations
inspect text attention
inspect text coordinates
inspect text cost
inspect text gradients
inspect text logit-lens
inspect text lr-transfer train.steps=2
inspect text memory
inspect text positions
inspect mingpt gradients --data text.txt {SMALL}
"""


def run_on_device(script: str, text: str = "") -> str:
    path = os.pathsep.join([str(DEVICE), str(Path(partwise.__file__).parents[1])])
    words = [sys.executable, str(DEVICE / script)]
    done = subprocess.run(
        words, input=text, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_command_runs_on_a_device_without_float64(here: Path) -> None:
    tasks = "eval problems --tasks arithmetic --max-problems 2" if find_spec("lm_eval") else ""
    lines = [shlex.join(last_of_each(shlex.split(line))) for line in f"{COMMANDS}{tasks}".splitlines()]
    assert json.loads(run_on_device("run_commands.py", "\n".join(lines))) == {}
    assert json.loads((here / "runs" / "text" / "run.json").read_text())["runtime"]["device"] == "pretended"
    assert all((here / "runs" / name / "results.json").exists() for name in ("two", "together"))


def test_every_part_trains_samples_and_is_inspected_on_a_device_without_float64() -> None:
    run_on_device("run_models.py")
