"""Sphinx: `make docs` builds these pages and the API reference into build/site, without a network."""

from partwise import __version__

project = "partwise"
author = "the partwise authors"
copyright = "the partwise authors, Apache-2.0"
release = version = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
html_title = "partwise"
html_static_path = ["static"]
html_css_files = ["site.css"]
myst_heading_anchors = 3
autodoc_typehints = "description"
autodoc_member_order = "bysource"
exclude_patterns = ["images", "static"]
