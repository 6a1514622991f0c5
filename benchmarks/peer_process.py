"""A peer in a process of its own, under the C library's own memory settings, as its users run it.

Ours are for a whole process (`keep_freed_memory`), and must neither serve nor disturb a peer. `peers.py` is what runs there.
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

COMPILE_SECONDS = 240  # longer than this, and a peer counts as not compiled
SHAPE = ("layers", "width", "heads", "context", "vocab", "tied")


def settings(tunable: bool) -> list[Setting]:
    """What is tried for a peer, its default first; bfloat16 only where the processor has products of its own for it."""
    tried = [Setting()]
    for bfloat16 in (False, True) if has_fast_bfloat16("cpu") else (False,):
        tried += [Setting(tunable, compiled, bfloat16) for compiled in (False, True)]
    return list(dict.fromkeys(tried))


class PeerProcess:
    """A peer's training step, taken elsewhere. Raises ImportError where the peer is missing, or cannot be built.

    Called, it raises TimeoutError if compiling takes longer than COMPILE_SECONDS, RuntimeError if a step fails.
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
            raise ImportError(f"no Python with {peer} was named (--{peer} FILE)")
        task = {
            "peer": peer,
            "options": {name: getattr(options, name) for name in SHAPE} | {"nanogpt": str(options.nanogpt or "")},
            "inputs": inputs.tolist(),
            "targets": targets.tolist(),
            "setting": asdict(setting),
            "parts": parts,
            "threads": torch.get_num_threads(),
        }
        self.said = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 - closed with the process
        self.process = subprocess.Popen(
            [python, str(Path(__file__).with_name("peers.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.said,
            text=True,
            start_new_session=True,  # it ends with all that it has started, such as compilers
        )
        try:
            self.ask(json.dumps(task))
        except (TimeoutError, RuntimeError) as error:
            self.close()
            raise ImportError(str(error)) from None

    def __call__(self, count: int = 1) -> float:
        return float(self.ask(str(count))["loss"])

    def ask(self, line: str) -> dict[str, Any]:
        assert self.process.stdin is not None and self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended, and may have said why
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
        if not select.select([self.process.stdout], [], [], COMPILE_SECONDS)[0]:
            raise TimeoutError(f"took longer than {COMPILE_SECONDS} seconds")
        answer = self.process.stdout.readline()
        if not answer:
            status = self.process.wait()
            self.said.seek(0)
            last = self.said.read().splitlines()[-1:]
            raise RuntimeError(": ".join([f"its process ended with status {status}", *last]))
        found: dict[str, Any] = json.loads(answer)
        if "error" in found:
            raise RuntimeError(found["error"])
        return found

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()
        self.said.close()

    def __enter__(self) -> "PeerProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
