"""Kernels are compiled once per machine and cached; without a compiler torch computes."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from partwise.kernels import build
from partwise.machine import cache_folder
from users import IS_ROOT

KERNEL = "cross_entropy"  # the smallest


@pytest.mark.usefixtures("compiler")
def test_a_kernel_is_compiled_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    build.load(KERNEL, tmp_path / "a")
    assert capfd.readouterr().err == f"compiling {KERNEL}.cpp (only once)\n"
    (compiled,) = (tmp_path / "a").iterdir()
    build.load.cache_clear()
    build.load(KERNEL, tmp_path / "a")
    assert capfd.readouterr().err == ""
    assert [compiled] == list((tmp_path / "a").iterdir())


@pytest.mark.usefixtures("compiler")
def test_another_cpu_or_other_flags_compile_another_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build.load(KERNEL, tmp_path)
    monkeypatch.setattr(build, "cpu_features", lambda: ["another CPU"])
    build.load.cache_clear()
    build.load(KERNEL, tmp_path)
    monkeypatch.setattr(build, "FLAGS", [*build.FLAGS, "-g0"])
    build.load.cache_clear()
    build.load(KERNEL, tmp_path)
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.usefixtures("compiler")
def test_two_processes_may_compile_at_the_same_time(tmp_path: Path) -> None:
    code = (
        f"from pathlib import Path; from partwise.kernels import build; build.load({KERNEL!r}, Path({str(tmp_path)!r}))"
    )
    processes = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(2)]
    assert [process.wait(timeout=120) for process in processes] == [0, 0]
    assert [path.suffix for path in tmp_path.iterdir()] == [".so"]


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize(
    ("compiler", "reason"),
    [
        ("/bin/false", "/bin/false failed with exit status 1: no reason given"),
        ("no-such-compiler -O2", "no C++ compiler: CXX=no-such-compiler not found"),
        ("c++ -Dfloat=%", "error"),
    ],
)
def test_a_failing_compiler_gives_its_reason_in_one_line(
    compiler: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", compiler)
    with pytest.raises(build.BuildError) as caught:
        build.load(KERNEL, tmp_path)
    assert reason in str(caught.value) and "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def damage(path: Path, kind: str) -> None:
    content = bytearray(path.read_bytes())
    if kind == "cut in half":
        content = content[: len(content) // 2]
    elif kind == "zeroed":
        content = bytearray(len(content))
    elif kind == "empty":
        content = bytearray()
    elif kind == "one bit":
        content[len(content) // 3] ^= 4
    elif kind == "the last byte":
        content[-1] ^= 1
    path.unlink()  # this process has mapped the old file
    path.write_bytes(content)


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize("kind", ["cut in half", "zeroed", "empty", "one bit", "the last byte", "another's", "open"])
def test_a_library_that_cannot_be_trusted_is_compiled_again(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Loaded, a damaged one ends the process or computes something else, and another user's runs that user's code."""
    build.load(KERNEL, tmp_path)
    (compiled,) = tmp_path.iterdir()
    sound = compiled.read_bytes()
    if kind == "open":
        compiled.chmod(0o777)
    elif kind == "another's":
        if not IS_ROOT:
            pytest.skip("giving a file away needs privileges")
        os.chown(compiled, 12345, 12345)
    else:
        damage(compiled, kind)
    loaded: list[bytes] = []
    original = build.ctypes.CDLL
    monkeypatch.setattr(build.ctypes, "CDLL", lambda path: loaded.append(Path(path).read_bytes()) or original(path))
    capfd.readouterr()
    build.load.cache_clear()
    build.load(KERNEL, tmp_path)
    reason = "another user could have changed it" if kind in ("open", "another's") else "it is damaged"
    assert capfd.readouterr().err == (
        f"{compiled} is not loaded, since {reason}: compiling again\ncompiling {KERNEL}.cpp (only once)\n"
    )
    (again,) = tmp_path.iterdir()
    assert loaded == [again.read_bytes()] and len(sound) == len(loaded[0])
    assert again.stat().st_uid == os.geteuid() and again.stat().st_mode & 0o777 == 0o700


def test_a_library_is_found_while_it_has_the_content_of_its_name(tmp_path: Path) -> None:
    path = tmp_path / f"kernel.{hashlib.sha256(b'compiled').hexdigest()}.so"
    for content in (b"compiled", b"damaged!"):
        path.write_bytes(content)
        path.chmod(0o700)
        assert build.find_library(tmp_path, "kernel") == (path if content == b"compiled" else None)
    assert not path.exists()


@pytest.mark.usefixtures("compiler")
def test_the_folder_is_closed_to_others(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir(mode=0o777)
    (tmp_path / "open").chmod(0o777)
    for name in ("open", "new"):
        build.load.cache_clear()
        build.load(KERNEL, tmp_path / name)
        assert (tmp_path / name).stat().st_mode & 0o077 == 0
    (tmp_path / "c").write_text("a file instead of a folder")
    with pytest.raises(build.BuildError, match=f"cannot use {tmp_path / 'c'}: File exists; set PARTWISE_CACHE to"):
        build.load(KERNEL, tmp_path / "c")


@pytest.mark.skipif(not IS_ROOT, reason="giving a folder away needs privileges")
def test_a_folder_of_another_user_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "theirs").mkdir()
    os.chown(tmp_path / "theirs", 12345, 12345)
    with pytest.raises(build.BuildError, match="theirs: another user owns it; set PARTWISE_CACHE to a folder of your"):
        build.load(KERNEL, tmp_path / "theirs")
    monkeypatch.setenv("PARTWISE_CACHE", str(tmp_path / "theirs"))
    assert cache_folder("kernels") == tmp_path / "theirs" / f"kernels-{os.geteuid()}"
    monkeypatch.setenv("PARTWISE_CACHE", str(tmp_path))
    assert cache_folder("kernels") == tmp_path / "kernels"


@pytest.mark.usefixtures("compiler")
def test_flags_in_cxx_compile_another_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for flags in ("", " -DNOTHING"):
        monkeypatch.setenv("CXX", f"c++{flags}")
        build.load.cache_clear()
        build.load(KERNEL, tmp_path)
    assert len(list(tmp_path.iterdir())) == 2


def test_a_slow_compiler_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = tmp_path / "slow"
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(0o755)
    monkeypatch.setenv("CXX", str(slow))
    monkeypatch.setattr(build, "TIMEOUT", 0.2)
    with pytest.raises(build.BuildError, match="took more than"):
        build.load(KERNEL, tmp_path / "cache")


def test_the_compiler_runs_in_its_own_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise Ctrl-C in the first seconds would look like a failing compiler, and the run would use another backend."""
    fake = tmp_path / "fake"
    code = "import os, sys; sys.exit('own session' if os.getsid(0) == os.getpid() else 'shared session')"
    fake.write_text(f'#!/bin/sh\nexec "{sys.executable}" -c "{code}"\n')
    fake.chmod(0o755)
    monkeypatch.setenv("CXX", str(fake))
    with pytest.raises(build.BuildError, match="own session"):
        build.load(KERNEL, tmp_path / "cache")


def test_without_a_compiler_torch_computes_the_same(tmp_path: Path) -> None:
    """The results are equal up to rounding, and stderr has one line."""
    code = """
import torch
from partwise.kernels.attention import attention, packed_attention
from partwise.kernels.library import kernels_available
torch.manual_seed(0)
qkv = torch.randn(2, 9, 24, requires_grad=True)
out = packed_attention(qkv, 2, 2, 0.5)
q, k, v = (x.unflatten(2, (2, 4)).transpose(1, 2) for x in qkv.split(8, dim=2))
expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.5).transpose(1, 2).flatten(2)
grad = torch.randn(2, 9, 16)[..., 8:].repeat(1, 1, 1)
torch.testing.assert_close(out, expected)
for x, y in zip(torch.autograd.grad(out, qkv, grad), torch.autograd.grad(expected, qkv, grad)):
    torch.testing.assert_close(x, y)
assert not kernels_available() and not kernels_available()
"""
    environment = {**os.environ, "CXX": "/bin/false", "PARTWISE_CACHE": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    unavailable = "C++ kernel attention is unavailable, falling back to torch"
    assert done.stderr == f"{unavailable}: /bin/false failed with exit status 1: no reason given\n"
