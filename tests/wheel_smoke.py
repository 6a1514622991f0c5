"""Try an installed wheel: train, evaluate, sample, compare, open the report. Run by `make test-wheel` and `test-lowest`.

It runs in the environment of the wheel, in a folder outside the checkout. With CXX=/nonexistent there is no compiler, so
training must fall back to torch with one line of warning. `wheel_smoke.py instrument` tries the wheel where torch is
missing: all that judges commands, functions and values works, and all else says what to install.
"""

import html.parser
import json
import os
import subprocess
import sys
import sysconfig
import tempfile
from importlib.util import find_spec
from pathlib import Path

MODEL = [
    "d_model=16",
    "n_layers=2",
    "attention.n_heads=2",
    "train.batch_size=4",
    "train.steps=12",
    "train.eval_every=12",
]
TINY = [*MODEL, "data.train=300", "data.validation=20", "data.test=20"]
SCRIPT = f"""
import partwise
comparison = partwise.compare("mingpt", "ffn=swiglu", seeds=2, name="c", data="arithmetic", common={TINY!r})
print(repr(comparison), len(comparison.plot().axes))
try:
    frame = comparison.to_frame()
    print("frame:", type(frame).__module__.split(".")[0], *frame["arm"], *frame["n"])
except partwise.ConfigError as error:
    print("no frame:", error)
"""


VALUES = "arm,seed,value\n" + "".join(
    f"{arm},{seed},{value}{seed}\n" for arm, value in (("base", "1.0"), ("new", "0.")) for seed in range(4)
)
EXPERIMENT = r"""
command: '"PYTHON" -c "print(''loss {value}{seed}'')"'
arms:
  small: {value: "1.0"}
  large: {value: "2."}
metric: {name: validation loss, margin: 0.5, pattern: 'loss (\S+)'}
"""
FUNCTION = """
def train(seed, report, level):
    return level * (1 + seed / 100)
"""
FUNCTION_SCRIPT = """
import partwise, sys
from own import train
comparison = partwise.compare_function(
    train, {"a": {"level": 1.0}, "b": {"level": 0.5}}, margin=0.01, seeds=3, name="f", workers=2
)
assert isinstance(comparison, partwise.Comparison) and comparison.verdicts == {"b": "better"}, comparison.verdicts
assert partwise.part and partwise.verdict and "torch" not in sys.modules
"""
NEEDS_TORCH = ("train mingpt", "demo", "compare mingpt ffn=swiglu", "study list", "verify runs/e --rerun 1")
NAMES = ("Run", "Transformer", "preset", "load")
NAMES_SCRIPT = f"""
import partwise
for name in {NAMES}:
    try:
        getattr(partwise, name)
    except ImportError as error:
        print(error)
"""


def run(*command: str, status: int = 0) -> subprocess.CompletedProcess[str]:
    print("$", *(word if len(word) < 60 else "..." for word in command), flush=True)
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=300)
    assert done.returncode == status, done.stdout + done.stderr
    return done


def partwise(*words: str, status: int = 0) -> subprocess.CompletedProcess[str]:
    return run("-m", "partwise", *words, status=status)


def check_instrument() -> None:
    """Judge values, commands and functions in the current folder, where torch cannot be imported."""
    for name, text in (("v.csv", VALUES), ("e.yaml", EXPERIMENT), ("own.py", FUNCTION)):
        Path(name).write_text(text.replace("PYTHON", Path(sys.executable).as_posix()), encoding="utf-8")
    assert "new is better than base" in partwise("verdict", "v.csv", "--margin", "0.01").stdout
    assert "MDE" in partwise("plan", "--sd", "0.01", "--margin", "0.02").stdout
    assert "large is worse than small" in partwise("compare", "e.yaml", "--seeds", "4").stdout
    assert "MDE" in partwise("plan", "e.yaml", "--sd", "0.1").stdout
    assert "large worse" in partwise("ledger").stdout
    assert "large against small: worse" in partwise("verify", "runs/e").stdout
    assert "large worse" in partwise("runs").stdout
    partwise("report", "e")
    run("-c", FUNCTION_SCRIPT)
    for command in NEEDS_TORCH:
        check_missing(partwise(*command.split(), status=2).stderr, "error: this command")
    names = run("-c", NAMES_SCRIPT).stdout.splitlines()
    for name, line in zip(NAMES, names, strict=True):
        check_missing(line, f"partwise.{name}")


def check_missing(message: str, what: str) -> None:
    """One line names what is missing, the extra, and the index of torch's builds for CPUs."""
    assert message.startswith(f"{what} needs torch: `pip install 'partwise[torch]'`"), message
    assert len(message.splitlines()) == 1 and "https://download.pytorch.org/whl/cpu" in message, message


def main(without_torch: bool) -> None:
    assert (find_spec("torch") is None) == without_torch
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        os.environ["PARTWISE_CACHE"] = f"{folder}/cache"
        if without_torch:
            check_instrument()
            print(f"passed without torch, with Python {sys.version.split()[0]}")
            return
        origin = run("-c", "import partwise; print(partwise.__file__)").stdout.strip()
        assert Path(origin).is_relative_to(sysconfig.get_path("purelib")), origin
        package = Path(origin).parent
        for pattern in (
            "py.typed",
            "kernels/*.cpp",
            "kernels/*.h",
            "**/*.html.jinja",
            "studio/templates/screen.html.jinja",
            "studio/static/*.js",
            "studio/static/*.css",
            "studio/static/uplot-LICENSE.txt",
            "data/texts/*.bz2",
            "studies/library/*.yaml",
        ):
            assert list(package.glob(pattern)), f"the wheel lacks {pattern}"
        described = run(
            "-c", "from importlib.metadata import metadata; print(metadata('partwise').get_payload())"
        ).stdout
        assert described.startswith("# partwise") and "](docs/" not in described, described[:200]
        trained = partwise("train", "mingpt", "ffn=swiglu", *TINY, "--data", "arithmetic", "--name", "r")
        missing = [line for line in trained.stderr.splitlines() if "C++ kernel" in line]
        assert len(missing) == (os.environ.get("CXX") == "/nonexistent"), trained.stderr
        assert "--seeds" in partwise("compare", "--help").stdout
        partwise("eval", "r")
        partwise("generate", "r", "--prompt", "1+1=", "--max-new-tokens", "5")
        partwise("inspect", "r", "attention")
        partwise("show", "mingpt", "--data", "shakespeare")
        assert "swiglu" in partwise("study", "list").stdout
        assert '"name": "r"' in partwise("runs", "--json").stdout
        compared = run("-c", SCRIPT)
        assert "Does ffn=swiglu change" in compared.stdout and "4 of 4 runs" in compared.stdout, compared.stdout
        frames = "pandas" if find_spec("pandas") else None  # the extra frames, in `make test-lowest`
        expected = f"frame: {frames} ffn=swiglu 2" if frames else "no frame: to_frame needs narwhals and pandas"
        assert expected in compared.stdout, compared.stdout
        page = Path("runs/c/report.html").read_text(encoding="utf-8")
        html.parser.HTMLParser().feed(page)
        assert "<svg" in page and "ffn=swiglu" in page
        assert {entry["name"] for entry in json.loads(partwise("runs", "--json").stdout)} >= {"r", "c"}
        claims = partwise("study", "list").stdout
        assert "answer-loss" in claims and "seen here" in claims, claims
    print(f"passed with Python {sys.version.split()[0]}: {origin}")


if __name__ == "__main__":
    main(without_torch=sys.argv[1:] == ["instrument"])
