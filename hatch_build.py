"""Run by hatchling when it builds: the description for a package index, and the kernels of a wheel.

The description is README.md. An index knows no other file of the project, so that a relative link is dead on it. `pages` and
`images` of pyproject.toml are the public addresses of the source tree for reading and for raw files; each ends with a slash.
While they are empty, a link becomes its text, a picture becomes its caption, and a last line says where both are.
"""

import json
import os
import re
from pathlib import Path
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
    from hatchling.metadata.plugin.interface import MetadataHookInterface
except ImportError:  # the tests have no hatchling
    MetadataHookInterface = BuildHookInterface = object  # type: ignore[assignment,misc]

LINK = re.compile(r"^```.*?^```|(!?)\[([^\]]*)\]\((?!https?://|#)([^)\s]+)\)", re.DOTALL | re.MULTILINE)
"""A relative link or picture; a fenced block matches whole, without groups, and stays."""

IN_THE_SOURCES = "\nThe pages and figures that this text names are in `docs/` of the source distribution.\n"


def description(readme: str, pages: str, images: str) -> str:
    """README for a package index: relative links below `pages`, pictures below `images`, or plain text without both."""
    if bool(pages) != bool(images):
        raise ValueError(f"pages = {pages!r} and images = {images!r}: give both addresses, or neither")
    for address in (pages, images):
        if address and not (address.startswith("https://") and address.endswith("/")):
            raise ValueError(f"address {address!r}: it must begin with https:// and end with /")

    def rewritten(match: re.Match[str]) -> str:
        picture, text, target = match.groups()
        if target is None:
            return match[0]
        if not pages:
            return f"*Figure: {text}*" if picture else text
        return f"{picture}[{text}]({images if picture else pages}{target})"

    text = LINK.sub(rewritten, readme)
    return text if pages else text + IN_THE_SOURCES


class IndexDescription(MetadataHookInterface):
    def update(self, metadata: dict[str, Any]) -> None:
        readme = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        text = description(readme, self.config["pages"], self.config["images"])
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


class Kernels(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """With PARTWISE_WHEEL=FOLDER, add the kernels that wheels.py has compiled, for the platform that its file names."""
        if (folder := os.environ.get("PARTWISE_WHEEL")) and version == "standard":
            manifest = json.loads((Path(folder) / "kernels.json").read_text(encoding="utf-8"))
            build_data["force_include"][folder] = "partwise/kernels/built"
            build_data["tag"] = f"py3-none-{manifest['platform']}"
            build_data["pure_python"] = manifest["platform"] == "any"
