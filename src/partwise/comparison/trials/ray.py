"""`compare --on ray`: trials on a Ray cluster. Its tasks are workers as `partwise work` starts them.

Ray places the workers, each with the resources of one trial, and starts them again elsewhere when their node is lost. Which
worker runs a trial is settled by claims in the comparison's folder, which every node must see.
"""

import contextlib
import os
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from partwise.comparison.trials.claims import EXPIRES
from partwise.comparison.trials.shared import SharedExecutor
from partwise.comparison.trials.trial import Trial
from partwise.comparison.trials.work import Work
from partwise.comparison.trials.workload import Resources
from partwise.config import ConfigError
from partwise.files import PACKAGE

ADDRESS = "ray://"
MAX_WORKERS = 10_000
PACKAGES = str(PACKAGE.resolve().parent.parent)
PLACEMENT_SECONDS = 5.0
"""Between two looks at whether the cluster has room for more workers."""


class RayExecutor(SharedExecutor):
    """Starts as many workers as the cluster has room for and there are trials, and ends them with the comparison.

    `place` is `ray`, for the cluster of the environment variable RAY_ADDRESS or else a local one, or `ray://HOST:PORT`.
    """

    def __init__(self, folder: Path, place: str, resources: Resources, expires: float = EXPIRES) -> None:
        super().__init__(folder.resolve())
        self.place, self.resources, self.expires = place, resources, expires
        self._workers: list[Any] = []
        self._looked = -PLACEMENT_SECONDS
        self._ray: Any = None
        self._owns_cluster = False

    def submit(self, trials: Sequence[Trial]) -> None:
        super().submit(trials)
        if trials:
            self._connect()
            self._place_workers()

    def watch(self, seconds: float) -> Sequence[Trial]:
        ended = super().watch(seconds)
        if self._waiting and time.monotonic() - self._looked >= PLACEMENT_SECONDS:
            self._place_workers()
        return ended

    def cancel(self) -> None:
        """Ask the workers to save and stop, and wait for them."""
        had_trials = bool(self._waiting)
        super().cancel()
        if self._ray is None:
            return
        if had_trials:
            for worker in self._workers:
                with contextlib.suppress(Exception):
                    self._ray.cancel(worker)
        if self._workers:
            self._ray.wait(self._workers, num_returns=len(self._workers), timeout=60)
        if self._owns_cluster:
            self._ray.shutdown()
        self._workers, self._ray = [], None

    def _connect(self) -> None:
        """Raises ConfigError without the package, and for an address that does not answer."""
        if self._ray is not None:
            return
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # a trial without GPUs still sees them
        try:
            import ray
        except ImportError:
            raise ConfigError(f"--on {self.place} needs Ray: `pip install 'partwise[ray]'`") from None
        self._owns_cluster = not ray.is_initialized()
        if self._owns_cluster:
            address = self.place if self.place.startswith(ADDRESS) else None
            options: dict[str, Any] = {"configure_logging": False, "log_to_driver": False}
            if address is None and "RAY_ADDRESS" not in os.environ:
                path = os.pathsep.join([PACKAGES, *filter(None, [os.environ.get("PYTHONPATH")])])
                # a local cluster finds the same package, however this process found it
                options |= {"include_dashboard": False, "runtime_env": {"env_vars": {"PYTHONPATH": path}}}
            try:
                with warnings.catch_warnings(action="ignore"):  # the error below says the same
                    ray.init(address=address, **options)
            except (ConnectionError, RuntimeError, ValueError, OSError) as error:
                raise ConfigError(
                    f"--on {self.place}: no Ray cluster answers ({' '.join(str(error).split())[:200]})"
                ) from None
        self._ray = ray

    def _place_workers(self) -> None:
        """Start workers where the cluster has room for them. Raises ConfigError if no node could ever run one."""
        self._looked = time.monotonic()
        alive = self._alive()
        free = min(len(self._waiting), self._room(), MAX_WORKERS) - alive
        remote = self._ray.remote(
            num_cpus=self.resources.cpus, num_gpus=self.resources.gpus, max_retries=-1, retry_exceptions=False
        )(run_worker)
        self._workers += [remote.remote(str(self.folder), self.expires) for _ in range(free)]

    def _alive(self) -> int:
        """The number of workers that run or wait for room."""
        if not self._workers:
            return 0
        ended, self._workers = self._ray.wait(self._workers, num_returns=len(self._workers), timeout=0)
        for each in ended:
            try:
                self._ray.get(each)
            except Exception as error:
                reason = (str(error).strip() or type(error).__name__).splitlines()[-1]
                raise ConfigError(
                    f"a worker on the Ray cluster failed: {reason}; each node needs this version of partwise and must see "
                    f"{self.folder}"
                ) from None
        return len(self._workers)

    def _room(self) -> int:
        """How many trials the nodes of the cluster have room for. Raises ConfigError if it is none."""
        room, sizes = 0, []
        for node in self._ray.nodes():
            if node["Alive"]:
                cpus, gpus = (node["Resources"].get(name, 0) for name in ("CPU", "GPU"))
                sizes.append(f"{cpus:g} CPUs and {gpus:g} GPUs")
                by_gpus = gpus // self.resources.gpus if self.resources.gpus else cpus
                room += int(min(cpus // self.resources.cpus, by_gpus))
        if not room:
            raise ConfigError(
                f"a trial needs {self.resources.cpus} CPUs and {self.resources.gpus} GPUs, but the nodes of the cluster have "
                f"{'; '.join(sizes) or 'gone'}: lower `trial: {{cpus: ..., gpus: ...}}` or train.threads"
            )
        return room


def run_worker(folder: str, expires: float) -> int:
    """Run trials of the comparison until none is left, as a task of Ray; returns how many this worker ran."""
    return Work(Path(folder), expires=expires, on_event=lambda text: None).run()
