"""What a trial of a trivial command costs beyond the command: `python benchmarks/trial_overhead.py [--on ray]`.

Prints the seconds of a comparison of `echo`, of the bare command, and the peak memory of the process that waits.
"""

import argparse
import os
import resource
import subprocess
import tempfile
import time
from pathlib import Path

from measuring import write_result

from partwise.any_code.command_comparison import make_command_comparison
from partwise.any_code.experiment_file import parse_experiment

SCRIPT = 'echo "value $(({seed} * 7919 % 1000)).{arm}"'


def measure(trials: int, on: str) -> dict[str, float]:
    """Seconds of all trials, of the bare commands one after the other, and of the difference per trial and worker."""
    values = {
        "command": SCRIPT.replace("{", "{{")
        .replace("}", "}}")
        .replace("{{seed}}", "{seed}")
        .replace("{{arm}}", "{arm}"),
        "shell": True,
        "arms": {"1": {}, "2": {"env": {"OTHER": "1"}}},
        "metric": {"name": "value", "margin": 1.0, "pattern": r"value (\S+)"},
    }
    comparison = make_command_comparison(parse_experiment(values, "benchmark"), Path(), "overhead", seeds=trials // 2)
    comparison.on = on
    start = time.perf_counter()
    comparison.run()
    total = time.perf_counter() - start
    start = time.perf_counter()
    for seed in range(100):
        subprocess.run(["/bin/sh", "-c", f"echo value {seed}"], capture_output=True, check=True)
    bare = (time.perf_counter() - start) / 100
    workers = os.cpu_count() or 1
    return {
        "on": on,
        "trials": trials,
        "seconds": total,
        "bare seconds per command": bare,
        "seconds added per trial": total * workers / trials - bare,
        "peak MiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--on", default="local", help="local, or ray")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        rows = [measure(options.trials, options.on)]
    write_result(options.json, rows)


if __name__ == "__main__":
    main()
