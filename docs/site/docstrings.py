"""Docstrings of this package as Markdown: a paragraph of `name: what it is` lines becomes a list of names.

In the source a parameter is `name: text`, or `name, other: text`, at the beginning of a line, and what continues it is
indented; a short one may follow the sentence before it. Markdown would run them all together.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

NAMED = re.compile(r"^((?:`?\w+`?)(?:, `?\w+`?)*): ")


class NamedLines(griffe.Extension):
    """Rewrites the docstrings of all objects when they were read."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring is not None:
            parameters = obj.parameters if isinstance(obj, griffe.Function | griffe.Class) else ()
            names = {parameter.name for parameter in parameters} | set(obj.members)
            obj.docstring.value = listed(obj.docstring.value, names)


def listed(text: str, names: set[str]) -> str:
    """The docstring with every paragraph that begins with a name as a list; sessions as code."""
    return "\n\n".join(paragraph(part, names) for part in re.split(r"\n\s*\n", text))


def paragraph(text: str, names: set[str]) -> str:
    """One paragraph of a docstring."""
    if text.startswith(">>> "):
        return f"```pycon\n{text}\n```"
    if not NAMED.match(text):
        return text
    items: list[str] = []
    for line in apart(text, names).split("\n"):
        if NAMED.match(line):
            items.append(NAMED.sub(marked, line))
        else:
            items[-1] += f"\n    {line.strip()}"
    return "\n".join(f"- {item}" for item in items)


def apart(text: str, names: set[str]) -> str:
    """A line for each name, also for those that follow another's sentence."""
    known = "|".join(sorted(map(re.escape, names)))
    return re.sub(rf"(?<=[.;])\s+(?=(?:{known})(?:, (?:{known}))*: )", "\n", text) if known else text


def marked(found: re.Match[str]) -> str:
    return ", ".join(f"`{name.strip('`')}`" for name in found[1].split(", ")) + ": "
