"""What the site has beyond the pages of docs/, and how pages written for a reader of the repository become pages of it.

- The README is the first page; CHANGELOG.md, CONTRIBUTING.md and SECURITY.md are pages too.
- A link that leaves docs/ leads to the page made of that file: a source file becomes a page of its text.
- Examples are highlighted as sessions, and a bar inside code in a table needs no backslash here.
- The report (`anchorhead reproduce -o build/report`), the interactive page (`anchorhead explore -o build/explore.html`)
  and the notebooks are taken from where mkdocs.yml says, and each gets a page.
"""

from __future__ import annotations

import posixpath
import re
import sys
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(Path(__file__).parent))

import notebooks  # noqa: E402

PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
}
"""Pages of the repository's root, and where they stand in the site."""

LINK = re.compile(r'(?<=\]\()(?!https?:|#|mailto:)([^)#\s]+)|(?<=<img src=")([^"]+)')


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """The files of docs/, and what is made for the site."""
    for name, place in PAGES.items():
        files.append(File.generated(config, place, content=(ROOT / name).read_text(encoding="utf-8")))
    linked = {target for file in list(files) if file.src_uri.endswith(".md") for target in outside(file)}
    for name in sorted(linked - set(PAGES)):
        text = (ROOT / name).read_text(encoding="utf-8")
        page = (
            f"---\nsearch: {{exclude: true}}\n---\n\n# {name}\n\n```{Path(name).suffix.removeprefix('.')}\n{text}```\n"
        )
        files.append(File.generated(config, source_page(name), content=page))
    for file in (*report(config), *explore(config), *notebooks.files(config)):
        if file.src_uri not in files.src_uris:  # as the notebooks of docs/ themselves are
            files.append(file)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """The page's text with links and examples as the site has them."""
    at = written_at(page.file)

    def link(found: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(at), found[0]))
        if at.startswith("docs/") and target.startswith("docs/"):
            return found[0]
        return posixpath.relpath(placed(target), posixpath.dirname(page.file.src_uri) or ".")

    if at:
        markdown = LINK.sub(link, markdown)
    markdown = re.sub(r"^```python\n(?=>>> )", "```pycon\n", markdown, flags=re.MULTILINE)
    return re.sub(r"^\|.*\|$", lambda row: re.sub(r"`[^`]*`", unbarred, row[0]), markdown, flags=re.MULTILINE)


def on_post_build(config: MkDocsConfig) -> None:
    """A page for addresses that lead nowhere is a server's, and there is none."""
    (Path(config.site_dir) / "404.html").unlink()


def unbarred(code: re.Match[str]) -> str:
    return code[0].replace(r"\|", "|")


def written_at(file: File) -> str:
    """The path from the root of the file that a page was written as; nothing of a page made here."""
    for name, place in PAGES.items():
        if file.src_uri == place:
            return name
    return "" if file.generated_by else f"docs/{file.src_uri}"


def outside(file: File) -> set[str]:
    """The files outside docs/, by their paths from the root, that a page links to."""
    at = written_at(file)
    found = {match[0] for match in LINK.finditer(file.content_string)} if at else set()
    targets = {posixpath.normpath(posixpath.join(posixpath.dirname(at), target)) for target in found}
    return {target for target in targets if not target.startswith("docs") and (ROOT / target).is_file()}


def placed(target: str) -> str:
    """Where the site has a file of the repository."""
    if target in PAGES:
        return PAGES[target]
    return target.removeprefix("docs/") if target.startswith("docs/") else source_page(target)


def source_page(name: str) -> str:
    return f"source/{name}.md"


def report(config: MkDocsConfig) -> list[File]:
    """The report with its figures and tables, and a page that leads there."""
    folder = ROOT / config.extra["report"]
    if not (folder / "report.html").exists():
        raise PluginError(f"There is no report in {folder}: `anchorhead reproduce --quick -o {folder}` makes one.")
    shown = [path for path in sorted(folder.iterdir()) if path.is_file() and not path.name.startswith(".")]
    beside = ", ".join(f"[{p.name}]({p.name})" for p in shown if p.suffix in (".csv", ".json"))
    text = (
        "# The report of a run\n\n`anchorhead reproduce` ran the experiments of [the laboratory](../laboratory.md) "
        "when this site was built, and wrote [its report](report.html){ .md-button }\n\n"
        f"What it was made from: {beside}.\n\n"
        '<iframe class="whole" src="report.html" title="The report" loading="lazy"></iframe>\n'
    )
    found = [File.generated(config, "report/index.md", content=text)]
    return found + [File.generated(config, f"report/{path.name}", abs_src_path=str(path)) for path in shown]


def explore(config: MkDocsConfig) -> list[File]:
    """The interactive page, and a page that leads there."""
    path = ROOT / config.extra["explore"]
    if not path.exists():
        raise PluginError(f"There is no interactive page at {path}: `anchorhead explore -o {path}` makes one.")
    text = (
        "# The interactive page\n\nEight compiled heads, to be moved: what `anchorhead explore` writes "
        "([more](../laboratory.md#explore)). [Open it alone](explore.html){ .md-button }\n\n"
        '<iframe class="whole" src="explore.html" title="The interactive page" loading="lazy"></iframe>\n'
    )
    page = File.generated(config, "explore/index.md", content=text)
    return [page, File.generated(config, "explore/explore.html", abs_src_path=str(path))]
