"""What is public is documented: every name has a docstring with an example that runs, and a place in the reference."""

from __future__ import annotations

import doctest
import inspect
import re
import tomllib
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from wheel_checks import EXTRAS

import anchorhead as ah

ROOT = Path(__file__).parents[1]
MODULES = {
    "ah.": (ah, ah.__all__),
    "ah.theorems.": (ah.theorems, ah.theorems.__all__),
    "ah.row_maps.": (ah.row_maps, ah.row_maps.__all__),
    "ah.gallery.": (ah.gallery, ("Item", "load", "names", "write")),
    "ah.in_context.": (ah.in_context, (*ah.in_context.__all__, *ah.in_context.ESTIMATORS)),
}
NAMES = {
    prefix + name: getattr(module, name)
    for prefix, (module, names) in MODULES.items()
    for name in names
    if not inspect.ismodule(getattr(module, name)) and name != "__version__"
}
UNHAPPY = {"ah.ConversionError", "ah.DependencyError", "ah.to_bridge", "ah.to_hooked"}
"""What no example can show on a machine where all is well, or where TransformerLens is not."""


@pytest.mark.heavy
@pytest.mark.parametrize("name", sorted(NAMES))
def test_every_public_name_has_an_example_that_runs(name: str) -> None:
    """An example may use `ah` and `torch`. What a function returns may leave the example to the function, by name."""
    text = inspect.getdoc(NAMES[name]) or ""
    assert text, f"{name} has no docstring"
    made_by = [known for known in re.findall(r"`(?:ah\.)?(\w+)`", text) if f"ah.{known}" in NAMES]
    assert ">>> " in text or name in UNHAPPY or (inspect.isclass(NAMES[name]) and made_by), f"{name} has no example"
    test = doctest.DocTestParser().get_doctest(text + "\n", {"ah": ah, "torch": torch}, name, name, 0)
    said: list[str] = []
    torch.manual_seed(0)
    with warnings.catch_warnings():
        found = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS).run(
            test, out=said.append
        )
    assert not found.failed, "".join(said)


def test_every_public_name_stands_in_the_reference_once() -> None:
    """A failure names what is to be added to, or taken from, a page of docs/reference/."""
    pages = "".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs/reference").glob("*.md")))
    shown = re.findall(r"^      heading: (\S+)$", pages, flags=re.MULTILINE)
    assert sorted(shown) == sorted(NAMES)


def public_members(kind: type) -> dict[str, Any]:
    """What this package defines in a class, and in those that it derives from."""
    own = [base for base in kind.__mro__ if base.__module__.startswith("anchorhead")]
    return {name: member for base in own for name, member in vars(base).items() if not name.startswith("_")}


@pytest.mark.parametrize("name", sorted(name for name, kind in NAMES.items() if inspect.isclass(kind)))
def test_every_public_method_says_what_it_does(name: str) -> None:
    """Those of scikit-learn's interface are described there."""
    for member, value in public_members(NAMES[name]).items():
        inherited = member in ("fit", "predict", "predict_proba", "decision_function")
        if (inspect.isfunction(value) or isinstance(value, property)) and not inherited and member != "forward":
            documented = any(
                inspect.getdoc(vars(base).get(member)) for base in NAMES[name].__mro__ if member in vars(base)
            )
            assert documented or value.__name__ == "<lambda>", f"{name}.{member} has no docstring"


def test_what_is_published_names_one_version() -> None:
    """`ah.__version__` is the package's; the citation and the changes name it too."""
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {ah.__version__}\n" in citation
    number = ah.__version__.partition(".dev")[0]
    assert f"\n## {number}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_every_extra_is_described_and_tried() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = set(project["optional-dependencies"]) - {"dev", "docs", "all"}
    assert extras == {check.__name__ for check in EXTRAS}
    (everything,) = project["optional-dependencies"]["all"]
    assert set(re.findall(r"\w+", everything.partition("[")[2])) == extras
    page = (ROOT / "docs/command.md").read_text(encoding="utf-8")
    assert all(f'".[{name}]"' in page for name in (*extras, "all"))
