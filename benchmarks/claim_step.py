"""Training steps of the claims' baseline (protocol decoder-1m) on one core, in bfloat16 and float32 in turn.

    python benchmarks/claim_step.py [--rounds 21] [--steps 28000] [--json FILE]

The data is arithmetic, so that nothing is downloaded. `--steps` is the number of steps whose minutes are printed: those of an
arm, 28,000, by default.
"""

from block_options import updates
from measuring import benchmark_parser, rate_row, spread, time_alternating, write_rows

from partwise.studies.study import find_study


def main() -> None:
    parser = benchmark_parser(__doc__, rounds=21)
    parser.add_argument("--steps", type=int, default=28_000)
    options = parser.parse_args()
    words = [*find_study("tying").common, "train.threads=1"]
    steps = {
        precision: updates("llama", [*words, f"train.precision={precision}"]) for precision in ("bfloat16", "float32")
    }
    seconds = time_alternating(steps, options.rounds)
    row = rate_row("claims", "decoder-1m", "steps/s", seconds)
    for precision, rate in (("bfloat16", row["ours"]), ("float32", row["peers"]["float32"])):
        print(f"{precision}: {1000 / rate:.1f} ms per step, {options.steps / rate / 60:.0f} minutes")
    print(f"float32 takes {spread(row, 'times as long')}")
    write_rows(options.json, [row], rounds=options.rounds, threads=1)


if __name__ == "__main__":
    main()
