"""One self-contained page: template, style, scripts and numbers in a single HTML file that needs no server."""

from __future__ import annotations

import html
import json
import re
from importlib import resources
from pathlib import Path
from typing import Any

from anchorhead.compiler.target import Domain
from anchorhead.errors import FileError, InputError
from anchorhead.explore.gallery import file_entries, formula_entry
from anchorhead.explore.presets import preset_entries
from anchorhead.progress import Progress, telling

SCRIPTS = ("head.js", "format.js", "chart.js", "view.js", "page.js")
"""Inlined in this order: the mathematics, texts of numbers, drawing, the four charts, the controls."""


def write_page(
    target: str | Path | None, path: str | Path, domain: Domain = None, progress: bool | Progress = True
) -> None:
    """Writes the page of a formula of one variable, of a saved model, or with None of the presets.

    domain: of a formula, as for `ah.compile`; without one, all of R, or a window where no head reaches that.
    progress: as for `ah.compile`; there is a line for each head.
    """
    path = Path(path)
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise FileError(
            f"{path} cannot be written: give the name of a file in a folder that exists, such as page.html."
        )
    with telling("compiling heads for a page", progress) as tell:
        text = page_text(page_entries(target, domain, tell))
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise FileError(f"{path} cannot be written: {error.strerror}.") from error


def page_entries(
    target: str | Path | None, domain: Domain = None, progress: Progress | None = None
) -> list[dict[str, Any]]:
    """What the page is about: one function, the heads of a saved model, or the presets."""
    if target is None:
        if domain is not None:
            raise InputError('The presets have domains of their own; give a formula with yours, such as "sin(3*x)".')
        return preset_entries()
    if _is_file(target):
        if domain is not None:
            raise InputError("A saved model has the domain that it was proved on; leave the domain out.")
        if not Path(target).is_file():
            raise InputError(
                f'{target} does not exist; save a model with anchorhead compile "gelu(x)" -o gelu.safetensors, or give '
                "a formula."
            )
        return file_entries(Path(target), progress)
    if Path(target).is_dir():
        raise InputError(f"{target} is a folder; give a saved model in it, or a formula.")
    return [formula_entry(str(target), domain, progress)]


def _is_file(target: str | Path) -> bool:
    if isinstance(target, Path) or target.endswith(".safetensors"):
        return True
    try:
        return Path(target).is_file()
    except (OSError, ValueError):  # a formula too long for a name, or with a character that no name has
        return False


def page_text(entries: list[dict[str, Any]]) -> str:
    """The whole page; every text of the entries is data to it, and never markup or code."""
    named = [entries[0].get("of", entries[0]["name"])] if len(entries) == 1 or "of" in entries[0] else ["Functions"]
    title = f"{named[0]} as attention"
    parts = {
        "title": html.escape(title),
        "how": _how({head["claim"]["level"] for entry in entries for head in entry["heads"]}),
        "style": _source("page.css"),
        "script": "\n".join(_source(name) for name in SCRIPTS),
        "data": _inert(json.dumps(entries, separators=(",", ":"), allow_nan=False)),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], _source("template.html"))


def _how(levels: set[str]) -> str:
    """Where bounds of these levels come from."""
    if levels == {"theorem"}:
        return "proved on paper, in the theorem"
    if levels == {"trivial"}:
        return "which is how far apart the least and the largest value are"
    return "found in ball arithmetic before this page was written"


def _inert(text: str) -> str:
    """JSON that cannot end the element it stands in: < and > only occur in its strings, as escapes."""
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _source(name: str) -> str:
    return resources.files("anchorhead.explore").joinpath(name).read_text(encoding="utf-8")
