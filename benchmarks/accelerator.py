"""Everything that is claimed of one GPU, in pieces: `PYTHONPATH=src python3 benchmarks/accelerator.py --out FOLDER`.

    ... [--nanogpt FOLDER] [--only PIECE ...] [--minutes N] [--rehearse]
    python benchmarks/accelerator.py --page FOLDER      writes docs/accelerator.md and its JSON from a folder's results

Made for a machine without a network and without an environment of ours: only torch, NumPy, pydantic and PyYAML are needed,
and whole commands need their packages. FOLDER gets three files: `accelerator.json`, the results so far, written after every
piece; `accelerator.md`, the table; `accelerator.log`, what the pieces printed. The same command resumes where it stopped and
repeats what failed. `--minutes` starts no piece that takes longer on an H200 than what is left, and ends the last one.
`--rehearse` runs all of it on the CPU at small shapes and measures nothing.
"""

import argparse
import contextlib
import importlib
import importlib.util
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accelerator_plan import LOG, PAGE, PIECES, RESULTS, Piece, finished, page, read

ROOT = Path(__file__).parent.parent
NEEDED = ("torch", "numpy", "pydantic", "yaml", "typing_extensions")
DOCS = ROOT / "docs"


@dataclass(frozen=True)
class Place:
    """Where a piece runs, and at which shapes."""

    device: str
    small: bool
    nanogpt: Path | None
    folder: Path  # for files of this piece alone

    def synchronize(self) -> None:
        if self.device == "cuda":
            import torch

            torch.cuda.synchronize()


def main() -> int:
    options = parse_options()
    if options.page:
        return write_docs(options.page)
    if options.piece:
        return run_piece(options)
    reason = unusable(options)
    if reason:
        print(reason, file=sys.stderr)
        return 2
    options.out.mkdir(parents=True, exist_ok=True)
    results = read(options.out)
    here = describe_machine(options.rehearse)
    if results["machine"] not in ({}, here):
        print(
            f"{options.out / RESULTS} is of another machine ({', '.join(results['machine'].values())}): name another --out",
            file=sys.stderr,
        )
        return 2
    results |= {"machine": here, "rehearsal": options.rehearse}
    started = time.monotonic()
    for piece in PIECES:
        if finished(results, piece) or (options.only and piece.name not in options.only):
            continue
        left = options.minutes * 60 - (time.monotonic() - started) if options.minutes else float("inf")
        if left < piece.typical:
            print(f"{piece.name}: not started: it takes about {piece.typical} s, and {left:.0f} s are left", flush=True)
            continue
        results["pieces"][piece.name] = result = measure(piece, options, min(piece.seconds, left))
        write(options.out, results)
        print(f"{piece.name}: {result.get('error') or result['values']} ({result['seconds']:.0f} s)", flush=True)
    write(options.out, results)
    print(f"written to {options.out / PAGE}")
    return 0


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("build/accelerator"))
    parser.add_argument("--nanogpt", type=Path, help="folder of a nanoGPT checkout, with model.py")
    parser.add_argument("--only", nargs="+", choices=[piece.name for piece in PIECES], metavar="PIECE")
    parser.add_argument("--minutes", type=float, help="start no piece that would take longer, and end the last one")
    parser.add_argument("--rehearse", action="store_true", help="on the CPU at small shapes; measures nothing")
    parser.add_argument(
        "--page", type=Path, metavar="FOLDER", help="write docs/accelerator.md from this folder's results"
    )
    parser.add_argument("--piece", choices=[piece.name for piece in PIECES], help=argparse.SUPPRESS)
    parser.add_argument("--to", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def unusable(options: argparse.Namespace) -> str | None:
    """Why this machine cannot run anything, as one line, or None."""
    if options.nanogpt and not (options.nanogpt / "model.py").is_file():
        return f"--nanogpt {options.nanogpt}: no model.py there; give the folder of a nanoGPT checkout"
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        packages = " ".join(name.replace("yaml", "pyyaml") for name in missing if name != "torch")
        version = f"{sys.version_info[0]}.{sys.version_info[1]}"
        return (
            f"missing here: {', '.join(missing)}; where there is a network, run `python3 -m pip download "
            f"--only-binary=:all: --python-version {version} --platform manylinux_2_17_x86_64 --dest wheels {packages}`, and "
            f"here `python3 -m pip install --no-index --find-links wheels --target build/packages {packages}`, then add "
            "build/packages to PYTHONPATH"
        )
    if importlib.util.find_spec("partwise") is None:
        return "partwise is not found: run from its folder with PYTHONPATH=src"
    import torch

    if not options.rehearse and not torch.cuda.is_available():
        return "torch finds no CUDA device here: run on a machine with one, or try everything out with --rehearse"
    return None


def describe_machine(rehearse: bool) -> dict[str, str]:
    import torch

    device = platform.processor() or platform.machine() if rehearse else torch.cuda.get_device_name()
    return {"device": device, "torch": f"torch {torch.__version__}", "python": f"Python {platform.python_version()}"}


def measure(piece: Piece, options: argparse.Namespace, limit: float) -> dict[str, Any]:
    """Run a piece in its own process, for at most `limit` seconds; returns its result, with an error if it failed."""
    missing = [name for name in piece.packages if importlib.util.find_spec(name) is None]
    if missing:
        return {"values": {}, "error": f"not run: {', '.join(missing)} missing", "seconds": 0.0}
    began = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="accelerator-"))
    command = [sys.executable, str(Path(__file__)), "--piece", piece.name, "--to", str(folder)]
    command += ["--rehearse"] if options.rehearse else []
    command += ["--nanogpt", str(options.nanogpt)] if options.nanogpt else []
    result: dict[str, Any] = {}
    with (options.out / LOG).open("a", encoding="utf-8") as log:
        log.write(f"\n== {piece.name}\n")
        log.flush()
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        try:
            status = process.wait(limit)
            error = f"its process ended with status {status}, see {LOG}" if status else None
        except subprocess.TimeoutExpired:
            error = f"ended after {limit:.0f} s"
        finally:
            with contextlib.suppress(ProcessLookupError):  # the piece and all that it started
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    with contextlib.suppress(OSError, ValueError):
        result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    shutil.rmtree(folder, ignore_errors=True)
    seconds = round(time.monotonic() - began, 1)
    return {"values": {}, **result, **({"error": error} if error else {}), "seconds": seconds}


def run_piece(options: argparse.Namespace) -> int:
    """Measure one piece in this process and write its result to the folder `to`."""
    piece = next(piece for piece in PIECES if piece.name == options.piece)
    os.environ["PARTWISE_CACHE"] = str(options.to / "cache")
    place = Place("cpu" if options.rehearse else "cuda", options.rehearse, options.nanogpt, options.to)
    function = getattr(importlib.import_module(piece.module), piece.name.replace("-", "_"))
    if options.rehearse:
        from partwise.compute import compilation

        compilation.COMPILER = "aot_eager"  # traces what inductor would compile, in seconds
    notes: list[str] = []
    values = {key: value for key, value in function(place, notes).items() if value is not None}
    unknown = values.keys() - {row.key for row in piece.rows}
    assert not unknown, f"{piece.name} has no row {unknown}"
    text = json.dumps({"values": values, "notes": notes}, allow_nan=False)
    (options.to / "result.json").write_text(text, encoding="utf-8")
    return 0


def write(folder: Path, results: dict[str, Any]) -> None:
    """Write the results and their table, each whole or not at all."""
    for name, text in ((RESULTS, json.dumps(results, indent=1) + "\n"), (PAGE, page(results))):
        (folder / f"{name}.new").write_text(text, encoding="utf-8")
        os.replace(folder / f"{name}.new", folder / name)


def write_docs(folder: Path) -> int:
    """Write docs/accelerator.md and its JSON. Refuses a rehearsal, which measures nothing."""
    if not folder.is_dir():
        print(f"{folder}: no such folder", file=sys.stderr)
        return 2
    results = read(folder)
    if results.get("rehearsal"):
        print(f"{folder} holds a rehearsal, which measures nothing: run make accelerator on a GPU", file=sys.stderr)
        return 2
    write(DOCS, results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
