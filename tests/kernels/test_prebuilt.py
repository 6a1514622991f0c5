"""The kernels of a wheel: the best variant that the CPU runs, the same build on request, threads without GOMP_parallel."""

import ctypes
import hashlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from partwise.compute.backends import decoding
from partwise.kernels import build, library, prebuilt

FLAGS = {1: ("avx2", "fma", "f16c", "bmi1", "bmi2"), 2: ("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")}
FLAGS |= {3: ("avx512_bf16",), 4: ("amx_tile", "amx_bf16")}
KERNEL = "cross_entropy"

pytestmark = pytest.mark.usefixtures("compiler")


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An installation with a variant for every CPU and one for none, in place of the checkout's compiler."""
    folder, files = tmp_path / "built", {}
    for place, name in (("", "cpu"), ("plain", KERNEL), ("future", KERNEL)):
        build.load.cache_clear()
        build.load(name, tmp_path / "compiled")
        (compiled,) = (tmp_path / "compiled").glob(f"{name}-*.so")
        (folder / place).mkdir(parents=True, exist_ok=True)
        shutil.copy(compiled, folder / place / f"{name}.so")
        files[place, name] = hashlib.sha256(compiled.read_bytes()).hexdigest()
    variants = [
        {"name": name, "level": level, "build": name * 2, "files": {KERNEL: files[name, KERNEL]}}
        for name, level in (("plain", 0), ("future", 9))
    ]
    manifest = {"platform": "here", "suffix": ".so", "files": {"cpu": files["", "cpu"]}, "variants": variants}
    (folder / "kernels.json").write_text(json.dumps(manifest))
    monkeypatch.setattr(prebuilt, "FOLDER", folder)
    clear()
    yield folder
    clear()


def clear() -> None:
    for cached in (prebuilt.wheel, prebuilt.variant, build.load):
        cached.cache_clear()


def test_the_instruction_sets_are_those_that_the_system_lists(tmp_path: Path) -> None:
    listed = set(Path("/proc/cpuinfo").read_text().partition("flags")[2].partition("\n")[0].split())
    expected = 0
    while expected < 4 and set(FLAGS[expected + 1]) <= listed:
        expected += 1
    assert build.load("cpu", tmp_path).instruction_level() == expected


def test_a_wheel_loads_the_best_variant_that_the_cpu_runs(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert prebuilt.load(KERNEL).cross_entropy_backward
    assert prebuilt.variant().name == "plain" and library.prebuilt.named_build("plainplain") == "plain"
    assert prebuilt.named_build("futurefuture") == "" and prebuilt.named_build("other") == ""
    monkeypatch.setenv("PARTWISE_KERNELS", "future")
    prebuilt.variant.cache_clear()
    with pytest.raises(prebuilt.PrebuiltError, match="PARTWISE_KERNELS=future: this CPU runs plain"):
        prebuilt.variant()


def test_a_damaged_kernel_of_a_wheel_is_not_loaded(wheel: Path) -> None:
    with (wheel / "plain" / f"{KERNEL}.so").open("ab") as file:
        file.write(b"\0")
    with pytest.raises(prebuilt.PrebuiltError, match=r"cross_entropy.so is damaged: install partwise again"):
        prebuilt.load(KERNEL)


def test_a_wheel_without_kernels_compiles_none(wheel: Path) -> None:
    manifest = json.loads((wheel / "kernels.json").read_text())
    (wheel / "kernels.json").write_text(json.dumps({**manifest, "platform": "any", "variants": [], "files": {}}))
    clear()
    with pytest.raises(prebuilt.PrebuiltError, match="this wheel has no kernels"):
        prebuilt.load(KERNEL)
    assert prebuilt.named_build("plainplain") == ""


class Runtime:
    """torch's OpenMP runtime for Windows, loaded by its path."""

    def __init__(self, path: str) -> None:
        assert Path(path) == Path(torch.__file__).parent / "lib" / "libiomp5md.dll"
        self.omp_get_thread_num = ctypes.CFUNCTYPE(ctypes.c_int)(lambda: 0)
        self.omp_get_num_threads = ctypes.CFUNCTYPE(ctypes.c_int)(lambda: 1)
        found.append(self)


found: list[Runtime] = []


@pytest.fixture
def windows(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    functions = (library.openmp_parallel, library.openmp_functions)
    for each in functions:
        each.cache_clear()
    monkeypatch.setattr(library, "sys", SimpleNamespace(platform="win32"))
    monkeypatch.setattr(library, "ctypes", SimpleNamespace(**{**vars(ctypes), "CDLL": Runtime}))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    yield
    for each in functions:
        each.cache_clear()


def test_on_windows_decoding_asks_the_same_runtime_which_thread_it_is(windows: None) -> None:
    addresses = decoding.openmp_functions()
    runtime = found[-1]
    assert addresses == (library.address(runtime.omp_get_thread_num), library.address(runtime.omp_get_num_threads))


def test_one_thread_never_happens_without_a_word(windows: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert library.openmp_parallel() is None  # this runtime has no functions for threads
    assert "the C++ kernels run on one thread: torch's OpenMP runtime is not found" in capsys.readouterr().err
    library.ctypes.CDLL = refuse
    assert decoding.openmp_functions() == (None, None)
    assert "the C++ kernels run on one thread: torch's OpenMP runtime is not found" in capsys.readouterr().err


def refuse(path: str) -> Runtime:
    raise OSError("no such file")


def test_threads_by_the_interface_of_llvms_runtime(tmp_path: Path) -> None:
    """The number of threads is pushed for the caller's, then each thread runs the body with its data."""
    called = []
    body = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda data: called.append(("body", data)))
    task = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)

    @ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
    def fork(location: int, count: int, microtask: int, function: int, data: int) -> None:
        assert location and count == 2
        for _ in range(3):
            task(microtask)(None, None, function, data)

    @ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int32, ctypes.c_int32)
    def push(location: int, thread: int, threads: int) -> None:
        called.append(("push", thread, threads))

    thread = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)(lambda location: 7)
    openmp = build.load("openmp", tmp_path)
    openmp.set_runtime(*(ctypes.cast(each, ctypes.c_void_p) for each in (fork, push, thread)))
    openmp.parallel(body, ctypes.c_void_p(5), 3, 0)
    assert called == [("push", 7, 3), *[("body", 5)] * 3]
