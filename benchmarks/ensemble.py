"""Several seeds of one configuration as one program, against one of them alone: `python benchmarks/ensemble.py PRESET ...`.

Prints how many times as long an update of all takes as one run's, in turn in one process, and what that is a seed.
"""

import argparse
import json
import platform
import statistics
import time
from pathlib import Path

import torch

from partwise.train.ensemble import Ensemble
from partwise.train.loop import Run
from partwise.train.settings import run_config


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("preset", nargs="?", default="mingpt")
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--seeds", type=int, nargs="*", default=[1, 2, 4, 8])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    plain = [f"train.threads={given.threads}"]
    joint = [*plain, "train.ffn_path=torch"]
    if not torch.cuda.is_available():
        joint.append("train.attention_path=products")

    def run(seed: int, words: list[str]) -> Run:
        return Run(run_config(given.preset, *given.overrides, *words, f"train.seed={seed}"))

    alone = run(0, plain)
    ensembles = {seeds: [run(seed, joint) for seed in range(seeds)] for seeds in given.seeds}
    for runs in ensembles.values():
        Ensemble(runs)
    times: dict[int, list[float]] = {0: [], **{seeds: [] for seeds in ensembles}}
    for round_ in range(given.rounds + 3):
        for seeds, runs in {0: [alone], **ensembles}.items():
            began = time.perf_counter()
            for each in runs:
                each.update()  # reads its loss back, and so waits for the device
            if round_ >= 3:
                times[seeds].append(time.perf_counter() - began)
    rows = []
    for seeds in ensembles:
        ratios = sorted(one / other for one, other in zip(times[seeds], times[0], strict=True))
        rows.append(
            {"seeds": seeds, "times_one": statistics.median(ratios), "low": ratios[0], "high": ratios[-1]}
            | {"milliseconds": 1e3 * statistics.median(times[seeds])}
        )
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.machine()
    print(
        f"{given.preset} {' '.join(given.overrides)}: one run alone {1e3 * statistics.median(times[0]):.1f} ms on {device}"
    )
    for row in rows:
        print(
            f"{row['seeds']} seeds as one program: {row['milliseconds']:.1f} ms, {row['times_one']:.2f} times one run "
            f"({row['low']:.2f} to {row['high']:.2f}), {row['times_one'] / row['seeds']:.2f} a seed"
        )
    if given.json:
        given.json.parent.mkdir(parents=True, exist_ok=True)
        given.json.write_text(json.dumps({"alone": statistics.median(times[0]), "device": device, "rows": rows}))


if __name__ == "__main__":
    main()
