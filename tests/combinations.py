"""The contract over many random models: `python tests/combinations.py N`. An interrupted run resumes.

Results are stored in `.combinations.json` with a digest of the sources; a changed source discards them.
"""

import hashlib
import json
import sys
import traceback
from concurrent.futures import ProcessPoolExecutor, as_completed
from os import environ, sched_getaffinity
from pathlib import Path

HERE = Path(__file__).parent
RESULTS = HERE.parent / ".combinations.json"
PER_SEED = 20
FIRST_SEED = 1000  # `make test` uses lower seeds


def sources_digest() -> str:
    files = sorted(
        [
            *(HERE.parent / "src").rglob("*.py"),
            HERE / "recipes.py",
            HERE / "conftest.py",
            HERE / "parts/test_contract.py",
        ]
    )
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def check_models(number: int) -> str:
    """The traceback of a failure, or an empty string."""
    environ["OMP_NUM_THREADS"] = "1"
    sys.path[:0] = [str(HERE), str(HERE / "parts")]
    import torch
    from test_contract import run_checks

    import conftest  # noqa: F401 - the test settings

    torch.set_num_threads(1)
    try:
        run_checks(number, PER_SEED)
    except BaseException:
        return traceback.format_exc()
    return ""


def main() -> int:
    n_seeds = -(-int(sys.argv[1] if len(sys.argv) > 1 else 10_000) // PER_SEED)
    state = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    if state.get("sources") != sources_digest():
        state = {"sources": sources_digest(), "seeds": {}}
    remaining = [number for number in range(FIRST_SEED, FIRST_SEED + n_seeds) if str(number) not in state["seeds"]]
    print(
        f"{n_seeds * PER_SEED:,} random models, {(n_seeds - len(remaining)) * PER_SEED:,} of them already checked",
        flush=True,
    )
    with ProcessPoolExecutor(max(1, len(sched_getaffinity(0)))) as pool:
        jobs = {pool.submit(check_models, number): number for number in remaining}
        try:
            for done, job in enumerate(as_completed(jobs), start=1):
                state["seeds"][str(jobs[job])] = job.result()
                RESULTS.write_text(json.dumps(state))
                failed = sum(bool(text) for text in state["seeds"].values())
                print(
                    f"\r{(n_seeds - len(remaining) + done) * PER_SEED:,} models, {failed} seeds with a failure",
                    end="",
                    flush=True,
                )
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            print("\ninterrupted; run the same command again to resume")
            return 130
    print()
    failures = {number: text for number, text in state["seeds"].items() if text}
    for number, text in failures.items():
        print(f"--- seed {number}\n{text}")
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
