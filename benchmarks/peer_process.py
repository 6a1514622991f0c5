"""A peer in its own process, with the C library's default memory settings, as its users run it.

Our memory settings apply to a whole process (`keep_freed_memory`) and must not affect a peer. The process runs `peers.py`.
"""

import argparse
import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from peers import Setting
from torch import Tensor

from partwise.compute.runtime import has_fast_bfloat16

COMPILE_SECONDS = 240  # the limit of compilation
SHAPE = ("layers", "width", "heads", "context", "vocab", "tie_embeddings")


def settings(tunable: bool) -> list[Setting]:
    """The settings to try for a peer, its default first; bfloat16 only if torch uses the CPU's instructions for it."""
    result = [Setting()]
    simulated = os.environ.get("ATEN_CPU_CAPABILITY") == "avx2"
    for bfloat16 in (False, True) if has_fast_bfloat16("cpu") and not simulated else (False,):
        result += [Setting(tunable, compiled, bfloat16) for compiled in (False, True)]
    return list(dict.fromkeys(result))


class PeerProcess:
    """A peer's training step, run in its own process. Raises ImportError if the peer is missing or cannot be built.

    Calls raise TimeoutError if compilation takes longer than COMPILE_SECONDS, and RuntimeError if a step fails.
    """

    def __init__(
        self,
        peer: str,
        options: argparse.Namespace,
        inputs: Tensor,
        targets: Tensor,
        setting: Setting,
        **parts: Any,
    ) -> None:
        python = options.litgpt if peer == "litgpt" else Path(sys.executable)
        if not python or not python.exists():
            raise ImportError(f"no Python executable with {peer} given (--{peer} FILE)")
        task = {
            "peer": peer,
            "options": {name: getattr(options, name) for name in SHAPE} | {"nanogpt": str(options.nanogpt or "")},
            "inputs": inputs.tolist(),
            "targets": targets.tolist(),
            "setting": asdict(setting),
            "parts": parts,
            "threads": torch.get_num_threads(),
        }
        self.stderr = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 - closed with the process
        self.process = subprocess.Popen(
            [python, str(Path(__file__).with_name("peers.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.stderr,
            text=True,
            start_new_session=True,  # so that its children, such as compilers, are killed with it
        )
        try:
            self.request(json.dumps(task))
        except (TimeoutError, RuntimeError) as error:
            self.close()
            raise ImportError(str(error)) from None

    def __call__(self, count: int = 1) -> float:
        return float(self.request(str(count))["loss"])

    def request(self, line: str) -> dict[str, Any]:
        assert self.process.stdin is not None and self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # it has exited; stderr may say why
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
        if not select.select([self.process.stdout], [], [], COMPILE_SECONDS)[0]:
            raise TimeoutError(f"took longer than {COMPILE_SECONDS} seconds")
        reply = self.process.stdout.readline()
        if not reply:
            status = self.process.wait()
            self.stderr.seek(0)
            last = self.stderr.read().splitlines()[-1:]
            raise RuntimeError(": ".join([f"its process exited with status {status}", *last]))
        result: dict[str, Any] = json.loads(reply)
        if "error" in result:
            raise RuntimeError(result["error"])
        return result

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()
        self.stderr.close()

    def __enter__(self) -> "PeerProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
