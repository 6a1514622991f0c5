"""The overhead of `partwise compare`: the time of the demo's command against the time in which its runs train.

    python benchmarks/overhead.py [--steps 201] [--rounds 1] [--json FILE]

The command is timed from start to end, its runs from the first run.json to the last status.json; the difference is
imports, planning, timing of each arm, collecting results, verdicts and the report.
"""

import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from measuring import Row, benchmark_parser, median_and_range, write_rows

TARGET = 0.03
NAME = "overhead"


def main() -> None:
    parser = benchmark_parser(__doc__, rounds=1)
    parser.add_argument("--steps", type=int, default=201)
    options = parser.parse_args()
    rows: list[Row] = []
    for _ in range(options.rounds):
        total, training = measure(options.steps)
        overhead = 1 - training / total
        print(f"{total:.1f} s, the runs alone {training:.1f}: {overhead:.1%} overhead, target: at most {TARGET:.0%}")
        rows.append({"seconds": total, "training": training, "overhead": overhead})
    ratio = median_and_range([TARGET / row["overhead"] for row in rows])
    row: Row = {
        "goal": "comparison",
        "what": f"2 arms x 3 seeds x {options.steps} steps: overhead of the command over its runs",
        "ours": 100 * TARGET / ratio["ratio"],
        "unit": "% overhead",
        "peers": {"limit": 100 * TARGET},
        "target": 1.0,
        **ratio,
    }
    write_rows(options.json, [row], rounds=rows)


def measure(steps: int) -> tuple[float, float]:
    """Seconds of the command, and of its runs."""
    common = [
        f"train.steps={steps}",
        f"train.eval_every={max(1, steps // 3)}",
        "data.validation=1000",
        "data.test=1000",
    ]
    words = [word for option in common for word in ("--common", option)]
    command = [sys.executable, "-m", "partwise", "compare", "mingpt", "ffn=swiglu", "--data", "arithmetic"]
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        subprocess.run([*command, "--seeds", "3", "--name", NAME, *words], cwd=folder, check=True, capture_output=True)
        total = time.perf_counter() - began
        runs = Path(folder) / "runs" / NAME / "runs"
        starts = [path.stat().st_mtime for path in runs.rglob("run.json")]
        ends = [path.stat().st_mtime for path in runs.rglob("status.json")]
        assert len(starts) == len(ends) == 6
        shutil.rmtree(runs)
    return total, max(ends) - min(starts)


if __name__ == "__main__":
    main()
