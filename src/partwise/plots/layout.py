"""Report pages: sections of tables, figures and paragraphs as one HTML file that opens offline."""

import base64
import hashlib
import re
from collections.abc import Callable, Mapping
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from partwise.files import replace_file
from partwise.plots.colors import DARK_COLORS, VERDICT_COLORS
from partwise.plots.downloads import csv_link, file_link, file_name, svg_link

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup


def template_environment(finalize: Callable[[Any], Any] | None = None) -> "Environment":
    """Templates by their path in the package; text is escaped for HTML, or by `finalize` if it is given."""
    from jinja2 import ChainableUndefined, Environment, PackageLoader

    return Environment(
        loader=PackageLoader("partwise", "."),
        autoescape=finalize is None,
        finalize=finalize,
        undefined=ChainableUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def render_page(template: str, values: Mapping[str, Any]) -> str:
    """The page of a template that extends `plots/layout.html.jinja`; `values` include its `title` and `sections`."""
    colors = {"verdict_colors": VERDICT_COLORS, "dark_colors": DARK_COLORS}
    environment = template_environment()
    environment.filters |= {"csv_link": csv_link, "svg_link": svg_link, "file_name": file_name, "file_link": file_link}
    environment.filters |= {"code_spans": code_spans, "whole_options": whole_options, "sha256_source": sha256_source}
    folder = resources.files("partwise.plots")
    script = "\n".join(folder.joinpath(name).read_text("utf-8") for name in ("hover.js", "png.js"))
    return environment.get_template(template).render({**colors, **values, "script": script})


def sha256_source(script: str) -> str:
    """The source expression that lets a Content-Security-Policy allow this script, and no other."""
    return f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}"


def code_spans(text: str) -> "Markup":
    """Text for HTML whose `names between backticks` are code; what else stands there may be anyone's, and stays text."""
    from markupsafe import Markup, escape

    return Markup(re.sub(r"`([\w.,:=/+*() -]+)`", r"<code>\g<1></code>", str(escape(text))))


def whole_options(text: str) -> "Markup":
    """Text for HTML whose options, such as `--seeds`, no browser breaks after their hyphens."""
    from markupsafe import Markup, escape

    return Markup(re.sub(r"(?<!\S)--?[A-Za-z][\w-]*", r"<span class='option'>\g<0></span>", str(escape(text))))


def write_text(path: Path, text: str) -> None:
    """Write a file atomically."""
    replace_file(path, text.encode("utf-8", errors="replace"))
