"""Trials on Ray: a stand-in for its few functions here; a cluster of three nodes, one killed, where Ray is installed."""

import html
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from partwise.comparison.results import Results
from partwise.comparison.trials import ray as module
from partwise.comparison.trials.ray import RayExecutor
from partwise.comparison.trials.workload import Resources
from partwise.config import ConfigError
from programs import ARMS, COMMAND, METRIC, comparison, write_program


class Task:
    """A task in a thread."""

    def __init__(self, function: Callable[..., Any], *words: Any) -> None:
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run, args=(function, *words), daemon=True)
        self.thread.start()

    def _run(self, function: Callable[..., Any], *words: Any) -> None:
        try:
            function(*words)
        except BaseException as error:
            self.error = error


class StandIn(SimpleNamespace):
    """The functions of Ray that the executor calls."""

    def __init__(self, nodes: list[dict[str, Any]]) -> None:
        super().__init__(started=False, options=[], tasks=[], cancelled=[], node_list=nodes, init_options=[])

    def is_initialized(self) -> bool:
        return bool(self.started)

    def init(self, **options: Any) -> None:
        self.started = True
        self.init_options.append(options)

    def shutdown(self) -> None:
        self.started = False

    def nodes(self) -> list[dict[str, Any]]:
        return list(self.node_list)

    def remote(self, **options: Any) -> Callable[[Callable[..., Any]], Any]:
        def wrap(function: Callable[..., Any]) -> Any:
            def start(*words: Any) -> Task:
                self.options.append(options)
                self.tasks.append(Task(function, *words))
                return self.tasks[-1]  # type: ignore[no-any-return]

            return SimpleNamespace(remote=start)

        return wrap

    def wait(self, tasks: list[Task], num_returns: int, timeout: float) -> tuple[list[Task], list[Task]]:
        end = time.monotonic() + timeout
        while any(task.thread.is_alive() for task in tasks) and time.monotonic() < end:
            time.sleep(0.02)
        return [t for t in tasks if not t.thread.is_alive()], [t for t in tasks if t.thread.is_alive()]

    def get(self, task: Task) -> None:
        if task.error:
            raise task.error

    def cancel(self, task: Task) -> None:
        self.cancelled.append(task)


def node(cpus: float, gpus: float = 0, alive: bool = True) -> dict[str, Any]:
    return {"Alive": alive, "Resources": {"CPU": cpus, "GPU": gpus}}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "shared folder"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    write_program(folder)
    return folder


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    standing_in = StandIn([node(4), node(1), node(8, alive=False)])
    monkeypatch.setitem(sys.modules, "ray", standing_in)
    yield standing_in
    for task in standing_in.tasks:
        task.thread.join(timeout=20)
        assert not task.thread.is_alive()


def test_trials_on_ray_have_the_verdict_of_local_ones(here: Path, ray: StandIn) -> None:
    spread = comparison(here, "spread", trial={"cpus": 2})
    spread.on = "ray"
    results, local = spread.run(), comparison(here, "local").run()
    assert results.claims == local.claims
    assert [options["num_cpus"] for options in ray.options] == [
        2,
        2,
    ]  # two fit on the node with 4 CPUs, none on that with 1
    assert not ray.started and not ray.cancelled
    assert [text.partition(": ")[2] for text in results.provenance.workers] == ["8 trials"]
    assert not local.provenance.workers
    page = (here / "runs/spread/report.html").read_text(encoding="utf-8")
    assert "always on the same kind of processor" in page and results.provenance.workers[0] in html.unescape(page)
    assert ray.init_options[0]["address"] is None and ray.init_options[0]["include_dashboard"] is False
    assert {host for arm in results.arms for host in (trial.seed for trial in arm.trials)} == {0, 1, 2, 3}


@pytest.mark.parametrize(
    ("nodes", "resources", "room"),
    [
        ([node(4), node(1)], Resources(2), 2),
        ([node(4, 2), node(8, 1)], Resources(1, 1), 3),
        ([node(4, 4), node(2, 2)], Resources(2, 2), 3),
        ([node(4, alive=False), node(3)], Resources(2), 1),
    ],
)
def test_the_room_of_a_cluster(nodes: list[dict[str, Any]], resources: Resources, room: int, tmp_path: Path) -> None:
    executor = RayExecutor(tmp_path, "ray", resources)
    executor._ray = StandIn(nodes)
    assert executor._room() == room


def test_a_trial_that_no_node_can_run_is_one_line(here: Path, ray: StandIn) -> None:
    large = comparison(here, "large", trial={"cpus": 16})
    large.on = "ray"
    with pytest.raises(
        ConfigError, match=r"a trial needs 16 CPUs and 0 GPUs, but the nodes .* have 4 CPUs and 0 GPUs; 1"
    ):
        large.run()
    assert not ray.started


def test_a_worker_that_fails_ends_the_comparison(here: Path, ray: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(folder: str, expires: float) -> int:
        raise RuntimeError("No module named 'partwise'")

    monkeypatch.setattr(module, "run_worker", fail)
    monkeypatch.setattr(module, "PLACEMENT_SECONDS", 0.0)
    broken = comparison(here, "broken")
    broken.on = "ray"
    with pytest.raises(ConfigError, match="a worker on the Ray cluster failed: No module named 'partwise'"):
        broken.run()


def test_without_ray_one_line_says_what_to_install(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    missing = comparison(here, "missing")
    missing.on = "ray://head:10001"
    with pytest.raises(ConfigError, match=r"--on ray://head:10001 needs Ray: `pip install 'partwise\[ray\]'`"):
        missing.run()


@pytest.mark.parametrize("place", ["rays", "ray://", "ray://a b:1", "ray://head"])
def test_an_unknown_place_is_one_line(here: Path, place: str) -> None:
    wrong = comparison(here, "wrong")
    wrong.on = place
    with pytest.raises(ConfigError, match="unknown place"):
        wrong.run()


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_cluster_of_three_nodes_of_which_one_is_killed(here: Path) -> None:
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    arms = {name: {"args": f"{spec.get('args', '')} --sleep=0.5"} for name, spec in ARMS.items()}
    (here / "e.yaml").write_text(yaml.safe_dump({"command": COMMAND, "arms": arms, "metric": METRIC}))
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    nodes = [cluster.add_node(num_cpus=2) for _ in range(2)]
    cluster.wait_for_nodes()
    ray.init(address=cluster.address, configure_logging=False, log_to_driver=False)
    try:
        spread = comparison(here, "spread", {"seeds": 20}, arms=arms)
        spread.on = "ray"

        def kill_one() -> None:
            while len(list(here.glob("runs/spread/runs/*/seed-*/result.json"))) < 8:
                time.sleep(0.1)
            cluster.remove_node(nodes[0], allow_graceful=False)

        killer = threading.Thread(target=kill_one)
        killer.start()
        results = spread.run()
        killer.join()
    finally:
        ray.shutdown()
        cluster.shutdown()
    local = comparison(here, "local", {"seeds": 20}, arms=arms).run()
    assert results.claims == local.claims
    assert Results.from_json(here / "runs/spread/results.json").claims == local.claims
    # what a killed trial wrote before is overwritten, so each log has one whole trial
    logs = [path.read_text().count("step 20") for path in here.glob("runs/spread/runs/*/seed-*/stdout.txt")]
    assert logs == [1] * 40
