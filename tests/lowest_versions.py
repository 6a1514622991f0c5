"""Print the lower bounds of the package's dependencies as pins, `scipy==1.13`, for `make test-lowest`.

With the names of extras as arguments, those of the extras alone.

The bound of torch is not proven there, since the older version is several gigabytes: torch is the version in
constraints.txt.
"""

import re
import sys
import tomllib
from pathlib import Path


def lowest_versions(pyproject: str, extras: list[str]) -> list[str]:
    """The pins of the extras, or else of the dependencies and of the extras `torch` and `frames`, without torch itself."""
    project = tomllib.loads(pyproject)["project"]
    pins = []
    requirements = [] if extras else list(project["dependencies"])
    for extra in extras or ["torch", "frames"]:
        requirements += project["optional-dependencies"][extra]
    for requirement in requirements:
        name, bound = re.match(r"([\w-]+)(?:\[torch\])?(?:>=([\d.]+))?", requirement).groups()  # type: ignore[union-attr]
        if name not in ("torch", "partwise"):
            pins.append(f"{name}=={bound}")
    return pins


if __name__ == "__main__":
    print("\n".join(lowest_versions((Path(__file__).parent.parent / "pyproject.toml").read_text(), sys.argv[1:])))
