"""Try an installed wheel: train, evaluate, sample, compare, open the report. Run by `make test-wheel` and `test-lowest`.

It runs in the environment of the wheel, in a folder outside the checkout. With CXX=/nonexistent there is no compiler, so
training must fall back to torch with one line of warning.
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


def run(*command: str) -> subprocess.CompletedProcess[str]:
    print("$", *(word if len(word) < 60 else "..." for word in command), flush=True)
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def partwise(*words: str) -> subprocess.CompletedProcess[str]:
    return run("-m", "partwise", *words)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        os.environ["PARTWISE_CACHE"] = f"{folder}/cache"
        origin = run("-c", "import partwise; print(partwise.__file__)").stdout.strip()
        assert Path(origin).is_relative_to(sysconfig.get_path("purelib")), origin
        package = Path(origin).parent
        for pattern in (
            "py.typed",
            "kernels/*.cpp",
            "kernels/*.h",
            "**/*.html.jinja",
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
    main()
