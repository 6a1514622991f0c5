"""The contract over many random models: `python tests/combinations.py N`. Stopped, it goes on where it was.

What was found is kept in `.combinations.json`, beside the digest of the sources it was found in: a change starts anew.
"""

import hashlib
import json
import sys
import traceback
from concurrent.futures import ProcessPoolExecutor, as_completed
from os import environ, sched_getaffinity
from pathlib import Path

HERE = Path(__file__).parent
KEPT = HERE.parent / ".combinations.json"
PER_PART = 20
FIRST = 1000  # `make test` has the seeds below


def sources() -> str:
    files = sorted(
        [*(HERE.parent / "src").rglob("*.py"), HERE / "recipes.py", HERE / "conftest.py", HERE / "test_contract.py"]
    )
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def work(number: int) -> str:
    """An empty text, or what failed."""
    environ["OMP_NUM_THREADS"] = "1"
    sys.path.insert(0, str(HERE))
    import torch

    import conftest  # noqa: F401 - the settings of the tests
    from test_contract import run_checks

    torch.set_num_threads(1)
    try:
        run_checks(number, PER_PART)
    except BaseException:
        return traceback.format_exc()
    return ""


def main() -> int:
    wanted = -(-int(sys.argv[1] if len(sys.argv) > 1 else 10_000) // PER_PART)
    state = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    if state.get("sources") != sources():
        state = {"sources": sources(), "parts": {}}
    left = [number for number in range(FIRST, FIRST + wanted) if str(number) not in state["parts"]]
    print(f"{wanted * PER_PART:,} random models, {(wanted - len(left)) * PER_PART:,} of them done before", flush=True)
    with ProcessPoolExecutor(max(1, len(sched_getaffinity(0)))) as pool:
        jobs = {pool.submit(work, number): number for number in left}
        try:
            for done, job in enumerate(as_completed(jobs), start=1):
                state["parts"][str(jobs[job])] = job.result()
                KEPT.write_text(json.dumps(state))
                failed = sum(bool(text) for text in state["parts"].values())
                print(
                    f"\r{(wanted - len(left) + done) * PER_PART:,} models, {failed} parts with a failure",
                    end="",
                    flush=True,
                )
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            print("\nstopped; the same command goes on from here")
            return 130
    print()
    failures = {number: text for number, text in state["parts"].items() if text}
    for number, text in failures.items():
        print(f"--- seed {number}\n{text}")
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
