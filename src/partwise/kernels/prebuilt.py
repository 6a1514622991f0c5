"""The kernels that a wheel brings, compiled for several instruction sets (wheels.py); a checkout compiles its own."""

import ctypes
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from partwise.files import file_sha256

FOLDER = Path(__file__).with_name("built")
MANIFEST = "kernels.json"


class PrebuiltError(Exception):
    """Why the wheel's kernels cannot be used, in one line."""


@dataclass(frozen=True)
class Variant:
    """The kernels for one instruction set: `level` as cpu.cpp counts, `build` their hash, `files` kernel -> SHA-256."""

    name: str
    level: int
    build: str
    files: dict[str, str]


@dataclass(frozen=True)
class Wheel:
    """The kernels of this installation; without variants, it has none and compiles none."""

    folder: Path
    platform: str
    suffix: str
    files: dict[str, str]
    variants: Sequence[Variant]

    def load(self, variant: str, name: str, sha256: str) -> ctypes.CDLL:
        """A library, if its content is what was compiled. Raises PrebuiltError."""
        path = self.folder / variant / f"{name}{self.suffix}"
        try:
            if file_sha256(path) != sha256:
                raise PrebuiltError(f"{path} is damaged: install partwise again")
            return ctypes.CDLL(str(path))
        except OSError as error:
            raise PrebuiltError(f"{path}: {' '.join(str(error).split())[:200]}") from None

    def usable(self) -> list[Variant]:
        """The variants that this CPU can run, the best first. Raises PrebuiltError if there is none."""
        if not self.variants:
            raise PrebuiltError("this wheel has no kernels; those for Linux, macOS on arm64 and Windows on x86-64 have")
        level = self.load("", "cpu", self.files["cpu"]).instruction_level()
        found = sorted((each for each in self.variants if each.level <= level), key=lambda each: -each.level)
        if not found:
            raise PrebuiltError(f"the kernels need a CPU with {self.variants[0].name.upper()}")
        return found


@lru_cache
def wheel() -> Wheel | None:
    """What this installation brings; None in a checkout, which compiles."""
    path = FOLDER / MANIFEST
    if not path.exists():
        return None
    values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    variants = [Variant(**each) for each in values["variants"]]
    return Wheel(FOLDER, values["platform"], values["suffix"], values["files"], variants)


@lru_cache
def variant() -> Variant:
    """The best for this CPU, or the one that PARTWISE_KERNELS names, such as avx2. Raises PrebuiltError."""
    found = wheel()
    assert found is not None
    usable = found.usable()
    if name := os.environ.get("PARTWISE_KERNELS"):
        known = [each.name for each in usable]
        if name not in known:
            raise PrebuiltError(f"PARTWISE_KERNELS={name}: this CPU runs {', '.join(known)}")
        return usable[known.index(name)]
    return usable[0]


def load(name: str) -> ctypes.CDLL:
    """A kernel of the chosen variant, or a library without variants, such as `openmp`. Raises PrebuiltError."""
    found = wheel()
    assert found is not None
    if name in found.files:
        return found.load("", name, found.files[name])
    return found.load(variant().name, name, variant().files[name])


def named_build(build: str) -> str:
    """The name of the variant with this build; '' if this installation has none that this CPU can run."""
    found = wheel()
    usable = found.usable() if found is not None and found.variants else []
    return next((each.name for each in usable if each.build == build), "")
