"""The cache folder."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from partwise.config import ConfigError
from partwise.data import prepare
from partwise.data.corpora import Arithmetic
from partwise.machine import cache_root, is_alive
from partwise.tokenizers import Characters
from users import IS_ROOT


def test_a_process_is_alive_until_it_has_ended() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert is_alive(process.pid) and is_alive(os.getppid())
    process.communicate(b"\n")
    assert not is_alive(process.pid) and not is_alive(2**70)


def test_the_cache_is_partwise_cache_or_below_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOME", "USERPROFILE"):  # the second on Windows
        monkeypatch.setenv(name, str(tmp_path / "home"))
    for value, expected in ((str(tmp_path), tmp_path), ("", tmp_path / "home" / ".cache" / "partwise")):
        monkeypatch.setenv("PARTWISE_CACHE", value)
        assert cache_root() == expected


def test_without_a_home_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container may run as a user that the system does not know."""

    def home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", home)
    monkeypatch.delenv("PARTWISE_CACHE", raising=False)
    with pytest.raises(ConfigError, match="set PARTWISE_CACHE"):
        prepare(Arithmetic(train=4, validation=2, test=2), Characters())


@pytest.mark.skipif(not IS_ROOT, reason="giving files away needs privileges")
def test_data_of_another_user_are_not_read(tmp_path: Path) -> None:
    """Prepared data vouch for themselves by hashes that lie beside them, which their owner can write as well."""
    code = """
import os, sys
from pathlib import Path
from partwise.data import prepare
from partwise.data.corpora import Arithmetic
from partwise.tokenizers import TokenizerRecipe
corpus, recipe = Arithmetic(train=50, validation=5, test=6), TokenizerRecipe.resolve("characters")
prepare(corpus, recipe, Path(sys.argv[3]))  # imports all it needs: Python itself may lie where only root can read
os.setuid(int(sys.argv[2]))
print(prepare(corpus, recipe, Path(sys.argv[1])).folder.parent.name)
"""

    def run(user: int) -> str:
        environment = {**os.environ, "HOME": str(tmp_path)}
        words = [sys.executable, "-c", code, str(tmp_path / "shared"), str(user), str(tmp_path / "first")]
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
        return done.stdout.strip() or done.stderr.strip().splitlines()[-1]

    below = Path(tempfile.gettempdir())
    private = [path for path in (tmp_path, *tmp_path.parents) if path.is_relative_to(below) and path != below]
    for path in private:  # pytest's folders, which other users may not enter
        path.chmod(path.stat().st_mode | 0o055)
    (tmp_path / "shared").mkdir()
    os.chown(tmp_path / "shared", 12345, 12345)
    (tmp_path / "shared").chmod(0o777)
    assert run(12345) == "data"
    assert run(23456) == "data-23456"
    (folder,) = (tmp_path / "shared/data-23456").iterdir()
    folder.chmod(0o777)
    assert "could be another user's data: delete it, or set PARTWISE_CACHE" in run(23456)


@pytest.mark.parametrize("home", [True, False])
def test_without_a_writable_cache_torch_computes_and_one_line_says_why(tmp_path: Path, home: bool) -> None:
    """The cache lies below a file, since modes do not stop root. All kernels fail for one reason, which is printed once."""
    (tmp_path / "file").write_text("")
    code = """
import pathlib, sys
from partwise.kernels.library import kernels_available, load_library
if sys.argv[1] == "False":
    def home(): raise RuntimeError("no home")
    pathlib.Path.home = home
assert not kernels_available() and load_library("mlp") is None
"""
    environment = {**os.environ, "PARTWISE_CACHE": str(tmp_path / "file" / "cache") if home else ""}
    command = [sys.executable, "-c", code, str(home)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert (
        done.stderr.count("\n") == 1 and "falling back to torch" in done.stderr and "set PARTWISE_CACHE" in done.stderr
    )
