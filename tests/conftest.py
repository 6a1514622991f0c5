"""Shared fixtures: a separate cache, one thread per process, at most one process per core, and a tiny run."""

import gc
import importlib
import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

import tiers
from emulated_windows.left_out import LEFT_OUT, ON_WINDOWS_ITSELF
from tiers import pytest_runtest_setup  # noqa: F401  a hook

if TYPE_CHECKING:
    from partwise.train.config import RunConfig

# read when torch is first imported, here and in subprocesses of tests; many tests never import it
for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[_name] = "1"

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # of tests with more threads than cores, which would wait busily

# the same examples in every run, so that failures are reproducible; for others use
# pytest --hypothesis-profile=other_examples, and `make test-combinations` for the contract test
settings.register_profile("same_examples", deadline=None, derandomize=True, database=None)
settings.register_profile("other_examples", deadline=None, database=None)
settings.load_profile("same_examples")


def pytest_addoption(parser: pytest.Parser) -> None:
    tiers.pytest_addoption(parser)
    parser.addoption("--without-posix", action="store_true", help="as on Windows: see tests/emulated_windows")


def pytest_configure(config: pytest.Config) -> None:
    tiers.pytest_configure(config)
    if config.getoption("--without-posix"):
        sys.path.insert(0, str(Path(__file__).with_name("emulated_windows")))
        importlib.import_module("emulation").install()


if sys.platform == "win32":

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call() -> Iterator[None]:
        """Skip a test where a link needs a privilege, or where wine only says that it has made one."""
        make_link = os.symlink

        def symlink(target: Any, link: Any, target_is_directory: bool = False) -> None:
            with suppress(OSError):
                make_link(target, link, target_is_directory)
            if not os.path.islink(link):
                pytest.skip("this system makes no symbolic links")

        os.symlink = symlink
        try:
            return (yield)
        finally:
            os.symlink = make_link


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    return True if left_out(str(collection_path), config) else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items[:] = [item for item in items if not left_out(tiers.key_of(item.nodeid), config)]


def left_out(test: str, config: pytest.Config) -> bool:
    """Whether a file or a test says nothing about Windows, there or where that is asked for."""
    name = test.replace(os.sep, "/").rpartition("/tests/")[2]
    emulated = config.getoption("--without-posix")
    return (name in LEFT_OUT and (emulated or sys.platform == "win32")) or (
        name in ON_WINDOWS_ITSELF and sys.platform == "win32"
    )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """`-n auto`: one worker per core available to this process, including container CPU limits."""
    cores = float(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        cores = min(cores, int(quota) / int(period))
    except (OSError, ValueError):  # no cgroups, or no limit ("max")
        pass
    return max(1, round(cores))


# collected tests and imported modules are never garbage: a full collection would visit them all, again and again


def pytest_collection() -> None:
    gc.disable()


def pytest_collection_finish() -> None:
    gc.enable()
    gc.collect()
    gc.freeze()


COMPILED_KERNELS = Path(__file__).parents[1] / "build" / "test-kernels"
"""Kept between sessions: the name of a compiled kernel contains a hash of all that it depends on."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes() -> None:
    """Compile the kernels before the workers start: each would compile all of them, at the same time."""
    from partwise.kernels import build

    def compile_kernel(name: str) -> None:
        with suppress(build.BuildError):  # the workers skip the tests that need them
            build.load(name, COMPILED_KERNELS)

    with ThreadPoolExecutor() as pool:
        list(pool.map(compile_kernel, [path.stem for path in Path(build.__file__).parent.glob("*.cpp")]))


@pytest.fixture(autouse=True, scope="session")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Set PARTWISE_CACHE: prepared data are shared by the tests of one process, but not with the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("cache")
        COMPILED_KERNELS.mkdir(parents=True, exist_ok=True)
        if sys.platform != "win32":  # where a link needs a privilege, and kernels a compiler that is seldom there
            (folder / "kernels").symlink_to(COMPILED_KERNELS, target_is_directory=True)
        patch.setenv("PARTWISE_CACHE", str(folder))
        yield folder


@pytest.fixture(autouse=True, scope="session")
def ledger_of_this_checkout() -> Iterator[None]:
    """Fail if the ledger of the checkout has changed: a developer's comparisons are counted there, not those of tests."""
    ledger = Path(__file__).parents[1] / "runs" / "ledger.sqlite"

    def modified() -> int | None:
        return ledger.stat().st_mtime_ns if ledger.exists() else None

    before = modified()
    yield
    assert modified() == before, f"{ledger} has changed: a test did not call monkeypatch.chdir, or you ran a comparison"


@pytest.fixture(autouse=True)
def unregister_test_parts() -> Iterator[None]:
    """Unregister the parts that a test registers, so that other tests do not see them."""
    yield
    if "partwise.config" in sys.modules:
        registry = sys.modules["partwise.config"].REGISTRY
        for family, parts in registry.items():
            registry[family] = {name: kind for name, kind in parts.items() if kind.__module__.startswith("partwise.")}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Start and end each test with one thread, since several workers with all cores each would be slower than one."""
    use_one_thread()
    yield
    use_one_thread()


def use_one_thread() -> None:
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
    if "partwise.kernels.threads" in sys.modules:
        sys.modules["partwise.kernels.threads"].set_threads(1)


@pytest.fixture(scope="session")
def tiny() -> "Callable[..., RunConfig]":
    """`tiny("schedule=cosine")`: the config of a run of six steps of a few milliseconds each, with overrides."""
    from partwise.train.config import run_config

    small = (
        "d_model=16 n_layers=2 attention.n_heads=2 context_length=16 train.batch_size=4 train.steps=6 train.eval_every=3 "
        "train.precision=float32 train.device=cpu data.train=2000 data.validation=50 data.test=50"
    )
    return lambda *overrides, preset="mingpt": run_config(
        preset, *overrides, common=["data=arithmetic", *small.split()]
    )


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A temporary working folder with a small text file."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("the quick brown fox jumps over the lazy dog. " * 60)
    return tmp_path
