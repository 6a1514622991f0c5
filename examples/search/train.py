"""A stand-in for a training program: `python train.py --seed 3 --change 12` prints a loss within milliseconds.

Of the changes 1 to 40, those of `REAL` lower the expected loss, those of `HARMFUL` raise it, and those of `CRASHING` end
without a loss; the others do nothing. Change 0 is the baseline.
Two arms with the same seed share most of their noise, as paired training runs do.
"""

import argparse
import random
import sys

REAL = {7: 0.010, 16: 0.008, 25: 0.012, 34: 0.009}
HARMFUL = dict.fromkeys(range(3, 41, 3), 0.006)
CRASHING = (2, 14, 23, 32)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int)
    parser.add_argument("--change", type=int)
    options = parser.parse_args()
    if options.change in CRASHING:
        sys.exit("the loss is not a number")
    shared = random.Random(f"seed {options.seed}").gauss(0, 0.010)
    own = random.Random(f"seed {options.seed}, change {options.change}").gauss(0, 0.003)
    effect = HARMFUL.get(options.change, 0.0) - REAL.get(options.change, 0.0)
    print(f"validation loss {1.5 + effect + shared + own:.6f}")


if __name__ == "__main__":
    main()
