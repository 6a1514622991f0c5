"""`work`: run trials of a comparison beside other workers."""

from collections.abc import Sequence
from pathlib import Path

from partwise.cli.terminal import console
from partwise.comparison.plan_file import PLAN_FILE
from partwise.comparison.trials.work import Work
from partwise.config import ConfigError
from partwise.messages import quantity


def work_on(name: str, parallel: int, imports: Sequence[str]) -> None:
    """Run trials until none is left. Raises ConfigError if the folder is not a comparison."""
    folder = next((each for each in (Path(name), Path("runs") / name) if (each / PLAN_FILE).exists()), None)
    if folder is None:
        raise ConfigError(f"{name} is not a comparison: start `partwise compare ... --on workers` first")
    try:
        work = Work(
            folder.resolve(), parallel, imports=imports, on_event=lambda text: console.print(text, markup=False)
        )
        done = work.run()
    except KeyboardInterrupt:
        console.print("stopped; other workers will take over the unfinished trials", markup=False)
        raise
    console.print(f"ran {quantity(done, 'trial')} here; none are left", markup=False)
