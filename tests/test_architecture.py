"""Data flows one way through the folders: a folder imports only from those above it in the README's tree."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "anchorhead"
GROUND = ("errors", "warned", "dtypes", "digits", "arithmetic", "linear_algebra", "descent", "progress", "display",
          "drawing", "view")  # fmt: skip
"""Beneath everything; files, not folders."""
SURFACE = ("tables", "options", "cli", "__main__", "__init__")
"""On top of everything."""


def folders() -> list[str]:
    """The tree of the README, from the top down."""
    tree = (ROOT / "README.md").read_text(encoding="utf-8").partition("src/anchorhead/\n")[2].partition("```")[0]
    return re.findall(r"^  ([a-z_]+)/", tree, flags=re.MULTILINE)


def imported(path: Path) -> set[str]:
    """The parts of this package that a file imports, also inside functions; the package itself as an empty name."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{a.name}" for a in node.names] if node.module == "anchorhead" else [node.module]
        else:
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        found |= {f"{name}..".split(".")[1] for name in names if (name or "").split(".")[0] == "anchorhead"}
    return found


def test_the_readme_shows_every_folder() -> None:
    assert sorted(folders()) == sorted(p.name for p in SOURCE.iterdir() if (p / "__init__.py").exists())


@pytest.mark.parametrize("folder", [*folders(), *GROUND])
def test_imports_go_one_way(folder: str) -> None:
    order = [*GROUND, *folders()]
    paths = (SOURCE / folder).rglob("*.py") if folder in folders() else [SOURCE / f"{folder}.py"]
    below = set(order[: order.index(folder) + 1])
    if folder in ("lab", "explore"):
        below.add("")  # they use the library as its users do
    for path in paths:
        upward = imported(path) - below
        assert not upward, f"{path.relative_to(SOURCE)} imports {', '.join(sorted(upward))}"
