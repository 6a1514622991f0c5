"""What partwise asks of Windows, by functions of its library that stand on processes of this system."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from emulated_windows.kernel32 import ACCESS_DENIED, Kernel32
from partwise import files, machine, processes, windows
from partwise.config import ConfigError
from partwise.run_names import check_run_name, explain_write_errors
from processes import gone

SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Kernel32:
    found = Kernel32()
    monkeypatch.setattr(windows, "kernel32", lambda: found)
    monkeypatch.setattr(windows, "last_error", lambda: found.error)
    return found


@pytest.fixture
def sleeper() -> Iterator["subprocess.Popen[bytes]"]:
    process = subprocess.Popen(SLEEP, process_group=0)
    yield process
    process.kill()
    process.wait()


def test_a_process_is_alive_until_it_has_ended(
    library: Kernel32, sleeper: "subprocess.Popen[bytes]", monkeypatch: pytest.MonkeyPatch
) -> None:
    assert windows.is_alive(sleeper.pid)
    sleeper.kill()
    assert gone(sleeper.pid) and not windows.is_alive(
        sleeper.pid
    )  # this process has its handle: it is in the table still
    sleeper.wait()
    assert not windows.is_alive(sleeper.pid) and not windows.is_alive(2**32 + os.getpid())
    assert not library.handles, "every handle is closed"

    def deny(*_: object) -> int:
        library.error = ACCESS_DENIED
        return 0

    monkeypatch.setattr(library, "OpenProcess", deny)
    assert windows.is_alive(4)  # another user's
    with monkeypatch.context() as patch:
        patch.setattr(sys, "platform", "win32")
        patch.setattr(os, "kill", None)  # which would end the process there
        assert machine.is_alive(4) and not machine.is_alive(0)


def test_the_processes_of_a_job_end_with_it(library: Kernel32, sleeper: "subprocess.Popen[bytes]") -> None:
    job = windows.Job()
    assert job.add(sleeper.pid)
    job.end()
    assert gone(sleeper.pid) and not library.handles
    sleeper.wait()
    job.end()  # again, which is nothing
    ended = windows.Job()
    assert not ended.add(sleeper.pid)
    ended.end()


def test_a_job_that_cannot_be_made_is_an_error_of_the_system(
    library: Kernel32, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library, "CreateJobObjectW", lambda *_: 0)
    with pytest.raises(OSError, match="made no job"):
        windows.Job()


def test_structures_have_the_sizes_of_windows() -> None:
    """On 64-bit Windows; its calls refuse another size."""
    import ctypes

    assert [ctypes.sizeof(each) for each in (windows.JobLimits, windows.Memory, windows.Counters)] == [144, 64, 72]
    assert windows.JobLimits.flags.offset == 16 and windows.Memory.available.offset == 16
    assert windows.Counters.peak_working_set.offset == 8


def test_memory_is_the_least_of_what_is_free_and_promised(library: Kernel32) -> None:
    assert windows.available_memory() == 4 << 30
    assert windows.peak_memory() > 1 << 20


def test_a_status_names_the_exception_that_ended_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    assert processes.ended_by(-9) == "SIGKILL" and processes.ended_by(-99) == "signal 99"
    assert processes.ended_by(0) is processes.ended_by(1) is processes.ended_by(0xC0000005) is None
    monkeypatch.setattr(sys, "platform", "win32")
    assert processes.ended_by(0xC0000005) == "exception 0xC0000005" and processes.ended_by(1) is None
    assert processes.ended_by(0xFFFFFFFF) is None  # `sys.exit(-1)`


def test_where_no_console_takes_the_signal_python_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = []

    def send_signal(number: int) -> None:
        sent.append(number)
        raise SystemError(
            "kill returned a result with an exception set"
        )  # as CPython does, once it has ended the process

    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(signal, "CTRL_BREAK_EVENT", 1, raising=False)
    processes.send(SimpleNamespace(poll=lambda: None, send_signal=send_signal))  # type: ignore[arg-type]
    assert sent == [1]


def test_a_group_ends_with_what_it_has_left_behind() -> None:
    code = "import subprocess, sys; print(subprocess.Popen(['sleep', '60']).pid, flush=True); sys.stdout.close()"
    group = processes.ProcessGroup([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert group.process.stdout
    child = int(group.process.stdout.readline())
    group.process.wait(20)
    assert not gone_now(child)
    group.kill()
    group.process.stdout.close()
    assert gone(child)


def gone_now(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_a_busy_file_is_waited_for_on_windows_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_text("new")
    (tmp_path / "b").write_text("old")
    replace, calls = os.replace, []

    def busy(source: Path, target: Path) -> None:
        calls.append(source)
        if len(calls) < 4:
            raise PermissionError(13, "The process cannot access the file because it is being used by another process")
        replace(source, target)

    monkeypatch.setattr(os, "replace", busy)
    with pytest.raises(PermissionError):
        files.patiently(os.replace, tmp_path / "a", tmp_path / "b")
    assert len(calls) == 1
    monkeypatch.setattr(sys, "platform", "win32")
    files.rename(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "b").read_text() == "new" and len(calls) == 4
    calls.clear()
    monkeypatch.setattr(files, "BUSY_SECONDS", 0.01)
    (tmp_path / "a").write_text("new")
    began = time.monotonic()
    with pytest.raises(PermissionError):
        files.rename(tmp_path / "a", tmp_path / "b")
    assert time.monotonic() - began < 2


def test_a_folder_replaces_an_empty_one_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    for name in ("new", "empty", "full"):
        (tmp_path / name).mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(OSError, match="not empty"):
        files.rename(tmp_path / "new", tmp_path / "full")
    files.rename(tmp_path / "new", tmp_path / "empty")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "full"]


def test_names_of_devices_are_no_names_of_runs_on_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("nul", "Com1.txt", "ends."):
        check_run_name(name)
        with monkeypatch.context() as patch, pytest.raises(ConfigError, match="Windows has no folder of this name"):
            patch.setattr(sys, "platform", "win32")
            check_run_name(name)
    monkeypatch.setattr(sys, "platform", "win32")
    assert check_run_name("null") == "null"


def test_a_path_that_is_too_long_is_told_from_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / ("x" * 240)
    for platform, remedy in (("linux", "check disk space"), ("win32", "use a folder with a shorter path")):
        monkeypatch.setattr(sys, "platform", platform)
        with pytest.raises(ConfigError, match=remedy), explain_write_errors(path):
            raise FileNotFoundError(2, "No such file or directory", str(path))


def test_the_signals_that_end_a_trial_from_outside_are_known_on_every_system() -> None:
    from partwise.comparison.trials.stored import OUTSIDE_SIGNALS

    names = ("SIGHUP", "SIGINT", "SIGQUIT", "SIGKILL", "SIGTERM", "SIGBUS")
    assert tuple(signal.Signals[name] for name in names) == OUTSIDE_SIGNALS


STATISTICS = """\
Mach Virtual Memory Statistics: (page size of 16384 bytes)
Pages free:                               10000.
Pages active:                            200000.
Pages inactive:                            3000.
Pages speculative:                          400.
Pages purgeable:                             50.
"""


def test_memory_of_macos_is_what_it_can_give() -> None:
    assert machine.macos_memory(STATISTICS) == 16384 * 13450
    assert machine.macos_memory("") is None


def test_names_and_keys_do_not_depend_on_the_platform_module(monkeypatch: pytest.MonkeyPatch) -> None:
    """`platform.processor()` runs a program that may be missing, and is `arm` on every Apple chip."""
    from partwise.kernels.build import cpu_features

    before = cpu_features()
    monkeypatch.setattr("platform.processor", lambda: pytest.fail("it was asked"))
    machine.hardware()
    assert cpu_features() == before and any(line.startswith(("flags", "Features")) for line in before)

    asked: list[Any] = []

    def sysctl(words: list[str]) -> str:
        asked.append(words)
        if "hw.optional" in words:
            return "hw.optional.arm.FEAT_BF16: 1\nhw.optional.arm.FEAT_I8MM: 1"
        return "Apple M2" if words[0].endswith("sysctl") else STATISTICS

    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(machine, "printed", sysctl)
    assert machine.hardware()["cpu"] == "Apple M2" and machine.available_memory() == 16384 * 13450
    assert cpu_features()[2:] == ["Apple M2", "hw.optional.arm.FEAT_BF16: 1", "hw.optional.arm.FEAT_I8MM: 1"]


def test_a_shared_folder_outlives_the_junction_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Internal:
        CreateJunction = staticmethod(os.symlink)

    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "kept.txt").write_text("kept")
    (tmp_path / "worktree" / "deep").mkdir(parents=True)
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setitem(sys.modules, "_winapi", Internal)  # type: ignore[arg-type]
    files.link_to(tmp_path / "data", tmp_path / "worktree" / "deep" / "data")
    files.link_to(tmp_path / "data" / "kept.txt", tmp_path / "worktree" / "kept.txt")
    assert (tmp_path / "worktree/deep/data/kept.txt").read_text() == "kept"
    monkeypatch.setattr(windows, "is_junction", os.DirEntry.is_symlink)
    monkeypatch.setattr(os, "rmdir", os.unlink)  # which removes a link here, as `rmdir` a junction there
    windows.remove_junctions(tmp_path / "worktree")
    windows.remove_junctions(tmp_path / "missing")
    assert [path.name for path in (tmp_path / "worktree" / "deep").iterdir()] == []
    assert (tmp_path / "data" / "kept.txt").samefile(tmp_path / "worktree" / "kept.txt")


def test_a_command_for_a_shell_needs_the_one_of_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from partwise.git import shell

    assert shell() == "/bin/sh"
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setenv("PATHEXT", ".exe")
    for name in ("cmd/git.exe", "bin/sh.exe"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "cmd"))
    assert Path(shell()) == tmp_path / "bin" / "sh.exe"
    (tmp_path / "bin" / "sh.exe").unlink()
    with pytest.raises(ConfigError, match="needs `sh`: install Git for Windows"):
        shell()
