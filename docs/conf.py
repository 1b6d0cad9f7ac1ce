"""How Sphinx builds the site; `make docs` runs it."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from generated import fill

from moontide import __version__

project = "Moontide"
author = "the Moontide authors"
copyright = author
version = release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"Moontide {release}"
html_copy_source = False

smartquotes = False  # "--flag" has two dashes
myst_heading_anchors = 3
# In docstrings `x` is code, wherever it may be defined.
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_type_aliases = {"Entry": "Entry", "Key": "Key", "Trace": "Trace", "Local": "Local", "Part": "Part"}
autodoc_preserve_defaults = True


# Made by an engine, a peer or a directory, never by a user's call.
_MADE_BY_OTHERS = {"Arena", "Operation", "Peer", "Prepared", "Publication", "Region", "Transfer"}


def _signature(
    app: Any, what: str, name: str, thing: Any, options: Any, signature: str | None, returns: str | None
) -> tuple[str | None, str | None]:
    if what == "class" and name.rpartition(".")[2] in _MADE_BY_OTHERS:
        return "", None
    return re.sub(r"TypeAliasForwardRef\('(\w+)'\)", r"\1", signature or "") or None, returns


def _fill(app: Any, page: str, source: list[str]) -> None:
    source[0] = fill(source[0])


def setup(app: Any) -> dict[str, bool]:
    """Called by Sphinx."""
    app.connect("source-read", _fill)
    app.connect("autodoc-process-signature", _signature)
    return {"parallel_read_safe": True}
