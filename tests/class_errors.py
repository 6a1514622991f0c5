"""How many false verdicts a class of students expects, by simulation: `python tests/class_errors.py`.

It shares no code with the package. Each student has `seeds` paired differences, normal with the SD 1; the change does
nothing, or is worth exactly the margin. With one set of seeds for all, the runs of the baseline are the same ones, so the
differences of two students correlate; `collect` gives each number seeds of its own.
"""

import argparse

import numpy as np
from scipy import stats

CLASSES = 20_000


def differences(rng: np.random.Generator, students: int, seeds: int, shared: float) -> np.ndarray:
    """(classes, students, seeds): normal with the variance 1, of which `shared` is the same for all students of a class."""
    own = rng.standard_normal((CLASSES, students, seeds)) * np.sqrt(1 - shared)
    return own + rng.standard_normal((CLASSES, 1, seeds)) * np.sqrt(shared)


def p_values(x: np.ndarray, margin: float) -> tuple[np.ndarray, np.ndarray]:
    """(classes, students): two-sided p of no difference; p of two one-sided tests of a difference of at least the margin."""
    n = x.shape[-1]
    mean, error = x.mean(-1), x.std(-1, ddof=1) / np.sqrt(n)
    different = 2 * stats.t.sf(np.abs(mean) / error, n - 1)
    equivalent = stats.t.sf((margin - np.abs(mean)) / error, n - 1)
    return different, equivalent


def any_by_holm(p: np.ndarray, alpha: float) -> np.ndarray:
    """(classes,): whether Holm's method rejects any hypothesis, which it does if it rejects the one with the smallest p."""
    return p.min(-1) <= alpha / p.shape[-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--students", type=int, default=30)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--margin", type=float, default=2.0, help="In SDs of a difference.")
    parser.add_argument("--alpha", type=float, default=0.05)
    given = parser.parse_args()
    rng = np.random.default_rng(0)
    for name, shared in (("seeds of their own", 0.0), ("one set of seeds for all", 0.5)):
        null = differences(rng, given.students, given.seeds, shared)
        different, _ = p_values(null, given.margin)
        _, equivalent = p_values(null + given.margin, given.margin)
        false = (different <= given.alpha).sum(-1)
        same = (equivalent <= given.alpha).sum(-1)
        print(
            f"{given.students} students with {name}, {given.seeds} seeds each, alpha {given.alpha:g}, {CLASSES:,} classes:"
        )
        print(f"  changes that do nothing: {false.mean():.2f} better or worse, SD {false.std():.2f}; ", end="")
        print(", ".join(f"{k} or more in {100 * (false >= k).mean():.1f}%" for k in (1, 4, 5, 8)))
        print(f"  judged together by Holm's method, any in {100 * any_by_holm(different, given.alpha).mean():.1f}%")
        print(f"  changes worth exactly the margin: {same.mean():.2f} equivalent, SD {same.std():.2f}")


if __name__ == "__main__":
    main()
