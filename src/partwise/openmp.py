"""How long threads without work wait busily, which OpenMP runtimes read from the environment once torch loads them.

A thread that spins beside other busy processes takes the core that a thread with work waits for. The runtimes' own defaults
spin for milliseconds; most gaps between two parallel loops of a step end within microseconds.
"""

import os
from collections.abc import Mapping, MutableMapping

WAITING = {"GOMP_SPINCOUNT": "5000", "KMP_BLOCKTIME": "0"}
"""For GNU's runtime, torch's on Linux, and for LLVM's and Intel's, on macOS and Windows. Results do not depend on them."""

POLICY = "OMP_WAIT_POLICY"
"""The variable of the OpenMP standard, whose user has chosen."""


def limit_spinning(environment: MutableMapping[str, str] = os.environ) -> None:
    """Let threads sleep after a short time without work, unless the user has chosen how they wait."""
    if not any(name in environment for name in (POLICY, *WAITING)):
        environment.update(WAITING)


def without_limit(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of programs that are not ours: without what `limit_spinning` has added."""
    added = WAITING.items() <= environment.items()
    return {name: value for name, value in environment.items() if not (added and name in WAITING)}
