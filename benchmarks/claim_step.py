"""Training steps of the claims' baseline (protocol decoder-1m) on one core, in bfloat16 and float32 in turn.

    python benchmarks/claim_step.py [--rounds 21] [--steps 28000] [--json FILE]

The data is arithmetic, so that nothing is downloaded. `--steps` is the number of steps whose minutes are printed: those of an
arm, 28,000, by default.
"""

import argparse
import statistics
from pathlib import Path

from block_options import updates
from measuring import ratios, time_alternating, write_rows

from partwise.studies.study import find_study


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--steps", type=int, default=28_000)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    words = [*find_study("tying").common, "train.threads=1"]
    steps = {
        precision: updates("llama", [*words, f"train.precision={precision}"]) for precision in ("bfloat16", "float32")
    }
    seconds = time_alternating(steps, options.rounds)
    medians = {precision: statistics.median(values) for precision, values in seconds.items()}
    for precision, median in medians.items():
        print(f"{precision}: {1000 * median:.1f} ms per step, {options.steps * median / 60:.0f} minutes")
    ratio = ratios(seconds["float32"], seconds["bfloat16"])
    print(f"float32 takes {ratio['ratio']:.2f} times as long ({ratio['low']:.2f} to {ratio['high']:.2f})")
    ours, theirs = 1 / medians["bfloat16"], {"float32": 1 / medians["float32"]}
    row = {
        "goal": "claims",
        "what": "decoder-1m",
        "ours": ours,
        "unit": "steps/s",
        "peers": theirs,
        **ratio,
        "wanted": None,
    }
    write_rows(options.json, [row], rounds=options.rounds, threads=1)


if __name__ == "__main__":
    main()
