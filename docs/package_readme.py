"""The README as a package index shows it: hatchling calls this when it builds the package.

A package index has the README and nothing beside it, so a link to a file of the repository would lead nowhere there.
Where pyproject.toml knows the project's address (`[project.urls]`, `Source`, the folder that holds README.md in a
browser), such links lead to it. Where it knows none, a link becomes its text, with the path of the file behind it,
which the source distribution has; and a picture becomes its description.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK = re.compile(r"\[([^\]]*)\]\((?!https?:|#)([^)]+)\)")
PICTURE = re.compile(r'<img src="(?!https?:)([^"]+)"[^>]*alt="([^"]*)"[^>]*>')


class Readme(MetadataHookInterface):
    """Sets the package's long description."""

    def update(self, metadata: dict[str, Any]) -> None:
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        address = metadata.get("urls", {}).get("Source")
        metadata["readme"] = {"content-type": "text/markdown", "text": portable(text, address)}


def portable(text: str, address: str | None = None) -> str:
    """The README without a link or a picture that needs the repository."""
    if address is not None:
        base = address.rstrip("/")
        text = LINK.sub(lambda m: f"[{m[1]}]({base}/{m[2]})", text)
        return PICTURE.sub(lambda m: m[0].replace(f'src="{m[1]}"', f'src="{base}/{m[1]}"'), text)
    text = LINK.sub(lambda m: f"{m[1]} (`{m[2].partition('#')[0]}`)", text)
    return PICTURE.sub(lambda m: f"*Picture: {m[2]}.*", text)
