"""A stand-in for a training program: `python train.py --seed 3 --change 12` prints a loss within milliseconds.

Of the changes 1 to 40, those of `REAL` lower the expected loss; the others do nothing. Change 0 is the baseline.
Two arms with the same seed share most of their noise, as paired training runs do.
"""

import argparse
import random

REAL = {7: 0.010, 16: 0.008, 25: 0.012, 34: 0.009}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int)
    parser.add_argument("--change", type=int)
    options = parser.parse_args()
    shared = random.Random(f"seed {options.seed}").gauss(0, 0.010)
    own = random.Random(f"seed {options.seed}, change {options.change}").gauss(0, 0.003)
    print(f"validation loss {1.5 - REAL.get(options.change, 0.0) + shared + own:.6f}")


if __name__ == "__main__":
    main()
