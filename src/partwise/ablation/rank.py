"""`python -m partwise.ablation.rank FOLDER`: one of the processes that train the run of a trial together."""

import signal
import sys
import traceback
from pathlib import Path

from partwise.comparison.trials.job import JOB
from partwise.compute.backend_plan import BackendPlan
from partwise.compute.runtime import Runtime
from partwise.config import ConfigError, import_parts
from partwise.messages import print_message
from partwise.processes import ASKING
from partwise.records import read_record
from partwise.train.config import RunConfig
from partwise.train.distributed.launcher import LOST, TOGETHER, end_now, end_with_launcher
from partwise.train.distributed.processes import EndedTogether, Processes, ProcessLost, explain_lost, join
from partwise.train.loop import Diverged
from partwise.train.run_folder import Interrupted, RunFolder

DONE, FAILED, DIVERGED, INTERRUPTED = 0, 2, 3, 4
"""Exit statuses."""


def train(folder: Path, processes: Processes) -> int:
    """Train the run of `job.json` with the other processes, until it ends or SIGTERM has come to one of them."""
    job = read_record(folder / JOB)
    for source in job.texts("imports"):
        import_parts(source)
    with processes.patient():
        run = RunFolder(
            folder,
            RunConfig.from_stored(job["config"]),
            runtime=Runtime(**job["runtime"]),
            plan=BackendPlan.from_dict(job["plan"]),
            command=job["command"],
            processes=processes,
            check_parts=False,  # the comparison has
        )

    def stop(*_: object) -> None:
        run.stop_requested = True

    for number in ASKING:
        signal.signal(number, stop)
    status = DONE
    try:
        for _ in run.events():
            pass
    except Interrupted:
        status = INTERRUPTED
    except Diverged:
        status = DIVERGED
    processes.leave()
    return status


def main() -> None:
    end_with_launcher()
    try:
        with explain_lost():
            status = train(Path(sys.argv[1]), join())
    except EndedTogether:
        status = TOGETHER
    except ProcessLost:
        status = LOST
    except ConfigError as error:
        print_message(str(error))
        status = FAILED
    except Exception:
        traceback.print_exc()
        status = FAILED
    end_now(status)


if __name__ == "__main__":
    main()
