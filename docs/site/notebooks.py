"""Notebooks as pages: text as it is, code as sessions, outputs below it; nothing of a notebook is run here.

Of what a cell printed or showed the first form is taken that a page can hold: a picture, HTML, Markdown or plain text.
Scripts in a notebook's HTML are left out: a page asks nothing of the outside, and shows what was computed.
"""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File

ROOT = Path(__file__).parents[2]


def files(config: MkDocsConfig) -> list[File]:
    """A page for each notebook, the notebooks themselves, and a page that lists them."""
    paths = sorted((ROOT / config.extra["notebooks"]).glob("*.ipynb"))
    books = [(path, json.loads(path.read_text(encoding="utf-8"))) for path in paths]
    lines = [f"- [{title(book)}]({path.stem}.md) ([{path.name}]({path.name}))\n" for path, book in books]
    text = "# Notebooks\n\n" + ("".join(lines) or "There are none yet; the [tutorial](../tutorial.md) is the place.\n")
    found = [File.generated(config, "notebooks/index.md", content=text)]
    for path, book in books:
        found.append(File.generated(config, f"notebooks/{path.stem}.md", content=page(book)))
        found.append(File.generated(config, f"notebooks/{path.name}", abs_src_path=str(path)))
    return found


def title(book: dict[str, Any]) -> str:
    """The first heading."""
    headings = re.findall(r"^# (.*)$", "\n".join(map(source, book["cells"])), flags=re.MULTILINE)
    return headings[0] if headings else "A notebook"


def source(cell: dict[str, Any]) -> str:
    return whole(cell["source"])


def whole(text: str | list[str]) -> str:
    """Notebooks keep a text as one string or as a list of lines."""
    return text if isinstance(text, str) else "".join(text)


def page(book: dict[str, Any]) -> str:
    """The notebook as Markdown."""
    parts = []
    for cell in book["cells"]:
        if cell["cell_type"] == "markdown":
            parts.append(source(cell))
        elif cell["cell_type"] == "code" and source(cell).strip():
            parts.append(f"```python\n{source(cell).strip()}\n```")
            parts += [shown(output) for output in cell.get("outputs", ())]
    return "\n\n".join(part for part in parts if part) + "\n"


def shown(output: dict[str, Any]) -> str:
    """One output of a cell."""
    if output["output_type"] == "stream":
        return plain(whole(output["text"]))
    if output["output_type"] == "error":
        return plain(f"{output['ename']}: {output['evalue']}")
    data = output.get("data", {})
    if "image/svg+xml" in data:
        return boxed(whole(data["image/svg+xml"]))
    if "image/png" in data:
        return boxed(f'<img src="data:image/png;base64,{whole(data["image/png"]).strip()}" alt="a figure">')
    if "text/html" in data:
        return boxed(re.sub(r"<script\b.*?</script>", "", whole(data["text/html"]), flags=re.S | re.I))
    if "text/markdown" in data:
        return whole(data["text/markdown"])
    return plain(whole(data.get("text/plain", "")))


def plain(text: str) -> str:
    """Text as it was printed, without the colours of a terminal."""
    bare = re.sub(r"\x1b\[[0-9;]*m", "", text).strip("\n")
    return boxed(f"<pre>{html.escape(bare)}</pre>") if bare else ""


def boxed(inner: str) -> str:
    """HTML that Markdown leaves alone: no blank line ends it."""
    return '<div class="output">' + re.sub(r"\n\s*\n", "\n&#8203;\n", inner) + "</div>"
