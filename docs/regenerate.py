"""Puts the numbers of the documentation right: `python docs/regenerate.py [FILE ...]`, README.md and docs/ by default.

Examples: each block of `>>>` lines is run, and where it prints something else than the text says, the text is changed.
Tables: what stands between `<!-- numbers: NAME -->` and `<!-- end -->` is written anew by the function NAME of
`docs/tables.py`. `tests/test_docs.py` fails if this would change a file.
Notebooks: every cell is run, and what it gave is stored. Whether a notebook changed is told by its text, since the
bytes of pictures depend on the machine; one that is named is stored in any case.
"""

from __future__ import annotations

import doctest
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(Path(__file__).parent))

import tables  # noqa: E402


class _Recorder(doctest.DocTestRunner):
    """Runs examples and keeps what they printed where it was not what was expected."""

    def __init__(self) -> None:
        super().__init__(optionflags=doctest.NORMALIZE_WHITESPACE, verbose=False)
        self.printed: list[tuple[doctest.Example, str]] = []

    def report_failure(self, out: object, test: object, example: doctest.Example, got: str) -> None:
        self.printed.append((example, got))

    def report_unexpected_exception(self, out: object, test: object, example: doctest.Example, exc_info: tuple) -> None:
        kind, error, _ = exc_info
        name = f"{kind.__module__}.{kind.__name__}".removeprefix("builtins.")
        self.printed.append((example, f"Traceback (most recent call last):\n{name}: {error}\n"))


def with_examples_run(text: str, name: str) -> str:
    """The text with every example's output as it is."""
    recorder = _Recorder()
    recorder.run(doctest.DocTestParser().get_doctest(text, {"__name__": "__main__"}, name, name, 0))
    lines = text.splitlines(keepends=True)
    for example, got in reversed(recorder.printed):
        start = example.lineno + example.source.count("\n")
        end = start + example.want.count("\n")
        indent = " " * example.indent
        lines[start:end] = [indent + line for line in got.splitlines(keepends=True)]
    return "".join(lines)


def with_tables(text: str) -> str:
    """The text with every table written anew."""
    pattern = re.compile(r"(<!-- numbers: (\w+) -->\n\n).*?(<!-- end -->)", re.S)
    return pattern.sub(lambda m: m[1] + getattr(tables, m[2])() + "\n" + m[3], text)


def regenerated(path: Path) -> str:
    """What the file should say."""
    return with_examples_run(with_tables(path.read_text(encoding="utf-8")), path.name)


def run_notebook(path: Path) -> tuple[Any, Any]:
    """The notebook as it is stored, and as it is when it has been run from top to bottom."""
    import nbformat
    from nbclient import NotebookClient

    stored, again = nbformat.read(path, 4), nbformat.read(path, 4)
    NotebookClient(again, timeout=600, kernel_name="python3", store_widget_state=False, record_timing=False).execute()
    for cell in again.cells:
        shown = [output for output in cell.get("outputs", []) if output.get("name") != "stderr"]  # is of the machine
        cell.get("outputs", [])[:] = _joined(shown)
    return stored, again


def _joined(outputs: list[Any]) -> list[Any]:
    """Outputs with the parts of one stream together, without those that a call wiped when it ended: how a stream is
    cut, and whether a call took long enough to show its progress, depends on the machine."""
    found: list[Any] = []
    for output in outputs:
        if output.get("data") == {"text/plain": ""}:
            continue
        if found and output.output_type == "stream" == found[-1].output_type and output.name == found[-1].name:
            found[-1].text += output.text
        else:
            found.append(output)
    return found


def said(notebook: Any) -> list[list[str]]:
    """What the cells print, and return: as text, and of pages all words and numbers outside of drawings."""
    return [[_said(output) for output in cell.get("outputs", [])] for cell in notebook.cells]


def _said(output: Any) -> str:
    if output.output_type == "stream":
        return str(output.text)
    data = output.get("data", {})
    plain = re.sub(r" at 0x[0-9a-f]+", "", str(data.get("text/plain", output)))
    page = re.sub(r"<svg.*?</svg>(<div[^>]*>.*?</div>)?", " ", str(data.get("text/html", "")), flags=re.DOTALL)
    return f"{plain}\n{' '.join(re.sub('<[^>]*>', ' ', page).split())}".rstrip()


def regenerate_notebook(path: Path, always: bool = False) -> bool:
    """Runs a notebook and stores it if it said something else than before, or always; whether it was stored."""
    import nbformat

    stored, again = run_notebook(path)
    if always or said(stored) != said(again):
        nbformat.write(again, path)
        return True
    return False


def documents() -> list[Path]:
    """The README, every page of docs/ and every notebook."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "docs").rglob("*.ipynb"))]


def regenerate(path: Path, always: bool = False) -> bool:
    """Puts a file right; whether that changed it."""
    if path.suffix == ".ipynb":
        return regenerate_notebook(path, always)
    text = regenerated(path)
    if text == path.read_text(encoding="utf-8"):
        return False
    path.write_text(text, encoding="utf-8")
    return True


def main() -> None:
    named = [Path(name) for name in sys.argv[1:]]
    for path in named or documents():
        if regenerate(path, bool(named)):
            print(f"{path}: changed")


if __name__ == "__main__":
    main()
