"""Print the lower bounds of the package's dependencies as pins, `scipy==1.13`, for `make test-lowest`.

The bound of torch is not proven there, since the older version is several gigabytes: torch is the version in
constraints.txt.
"""

import re
import tomllib
from pathlib import Path


def lowest_versions(pyproject: str) -> list[str]:
    """The pins of the dependencies and of the extra `frames`, without torch."""
    project = tomllib.loads(pyproject)["project"]
    pins = []
    for requirement in [*project["dependencies"], *project["optional-dependencies"]["frames"]]:
        name, bound = re.match(r"([\w-]+)>=([\d.]+)", requirement).groups()  # type: ignore[union-attr]
        if name != "torch":
            pins.append(f"{name}=={bound}")
    return pins


if __name__ == "__main__":
    print("\n".join(lowest_versions((Path(__file__).parent.parent / "pyproject.toml").read_text())))
