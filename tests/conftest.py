"""What tests share: a cache of their own, one thread per process, no more processes than cores, and a tiny run."""

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from partwise.train.config import RunConfig

# read when torch is first imported, here and in every process that a test starts: most tests never import it
for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[_name] = "1"

# the same examples in every run, so that a failure is the change's and not the day's; for others:
# pytest --hypothesis-profile=other_examples, and `make test-combinations` for the contract
settings.register_profile("same_examples", deadline=None, derandomize=True, database=None)
settings.register_profile("other_examples", deadline=None, database=None)
settings.load_profile("same_examples")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """`-n auto`: one worker per core that this process may really use, as containers often hide how few these are."""
    cores = float(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        cores = min(cores, int(quota) / int(period))
    except (OSError, ValueError):  # no control groups, or no limit: "max"
        pass
    return max(1, round(cores))


@pytest.fixture(autouse=True, scope="session")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """PARTWISE_CACHE: prepared data are shared by the tests of one process, and never by those of the user."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("cache")
        patch.setenv("PARTWISE_CACHE", str(folder))
        yield folder


@pytest.fixture(autouse=True)
def own_parts_alone() -> Iterator[None]:
    """What a test registers is gone after it: its names are free again, and no test of every part meets it."""
    yield
    if "partwise.config" in sys.modules:
        registry = sys.modules["partwise.config"].REGISTRY
        for family, known in registry.items():
            registry[family] = {name: kind for name, kind in known.items() if kind.__module__.startswith("partwise.")}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Two workers with all cores each would be slower than one: each test starts and ends with one thread."""
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
    yield
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


@pytest.fixture(scope="session")
def tiny() -> "Callable[..., RunConfig]":
    """`tiny("schedule=cosine")`: a run of six steps of a few milliseconds each, changed by overrides."""
    from partwise.train.config import run_config

    small = (
        "d_model=16 n_layers=2 attention.n_heads=2 context_length=16 train.batch_size=4 train.steps=6 train.eval_every=3 "
        "train.precision=float32 train.device=cpu data.train=2000 data.validation=50 data.test=50"
    )
    return lambda *overrides, preset="mingpt": run_config(preset, "data=arithmetic", *small.split(), *overrides)
