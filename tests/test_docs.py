"""The documentation says what the software does."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from anchorhead.lab.experiment import Rows
from anchorhead.lab.experiments import rates

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
NOTEBOOKS = sorted((ROOT / "docs/notebooks").glob("*.ipynb"))
PLAIN = [ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md"]
"""Pages without examples."""
SOURCES = sorted((ROOT / "src").rglob("*.py"))
SECTIONS = r"\d+(?:\.\d+)?(?:,\s+\d+(?:\.\d+)?)*"
"""Numbers of sections, as 2.3 or 1.5, 1.6."""


def module(name: str) -> ModuleType:
    """A script of docs/."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    sys.modules[name] = found
    spec.loader.exec_module(found)
    return found


@pytest.mark.heavy
@pytest.mark.processor
@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_numbers_are_what_the_software_gives(path: Path) -> None:
    """A failure means that an example prints, or a table holds, something else than the page says. See whether the
    change is meant; if so `python docs/regenerate.py` writes the page anew, to be read and committed."""
    assert module("regenerate").regenerated(path) == path.read_text(encoding="utf-8")


@pytest.mark.heavy
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_notebooks_say_what_they_say(path: Path) -> None:
    """Each is run as it stands, in a kernel of its own. A failure means that a cell fails, or gives another text than
    the one stored; if that is meant, `python docs/regenerate.py docs/notebooks/*.ipynb` stores the new one."""
    stored, again = module("regenerate").run_notebook(path)
    assert module("regenerate").said(again) == module("regenerate").said(stored)


def test_what_notebooks_show_as_pages_counts_as_said() -> None:
    """Numbers of what is shown as HTML are compared as those of text are; pictures, and where objects lie, are not."""
    nbformat = pytest.importorskip("nbformat.v4")

    def said(plain: str, page: str) -> list[list[str]]:
        output = nbformat.new_output("execute_result", {"text/plain": plain, "text/html": page})
        found: list[list[str]] = module("regenerate").said(
            nbformat.new_notebook(cells=[nbformat.new_code_cell("model", outputs=[output])])
        )
        return found

    page = "<div>bound 7e-08<svg>{}</svg><div class='said'>{}</div></div>"
    assert said("Model(<= 1e-07)", page) != said("Model(<= 7e-08)", page)
    assert said("Model", page) != said("Model", page.replace("7e-08", "1e-07"))
    assert said("<A at 0x7f00>", page.format(1, 2)) == said("<A at 0x8f11>", page.format(3, 4))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_notebooks_are_stored_with_their_pictures_and_nothing_of_a_machine(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    outputs = [output for cell in json.loads(text)["cells"] for output in cell.get("outputs", [])]
    assert len(text) < 600_000
    assert not [output for output in outputs if output.get("name") == "stderr" or output["output_type"] == "error"]
    assert sum("image/png" in output.get("data", {}) for output in outputs) >= 3
    assert sum("text/html" in output.get("data", {}) for output in outputs) >= 1
    assert not re.search(r"/(?:home|work|root|tmp|usr)/", re.sub(r'"image/png": "[^"]*"', "", text))


def test_readme_and_tutorial_have_examples() -> None:
    for name in ("README.md", "docs/tutorial.md", "docs/theorems/single_head.md"):
        assert (ROOT / name).read_text().count(">>> ") > 8


@pytest.mark.parametrize("path", [*DOCUMENTS, *PLAIN], ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(path: Path) -> None:
    """To a file that is there, and where it is a page and a section is named, to a heading of it."""
    text = path.read_text(encoding="utf-8")
    for target, section in re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)", text):
        page = path.parent / target if target else path
        assert page.exists(), f"{path.name} links to {target}, which is not there"
        assert not section or section in headings(page), f"{path.name} links to {target}#{section}, which is not there"
    for picture in re.findall(r'<img src="([^"]+)"', text):
        assert (path.parent / picture).stat().st_size < 150_000


def headings(page: Path) -> set[str]:
    """The names by which a page's headings are linked to."""
    found = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found}


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150


def test_named_files_exist() -> None:
    """Of what the pages call `folder/file.py`, with folders of the package or of the repository."""
    for path in DOCUMENTS:
        for name in re.findall(r"`((?:\w+/)+\w+\.(?:py|csv|md))`", path.read_text(encoding="utf-8")):
            there = [ROOT / name, ROOT / "src/anchorhead" / name, path.parent / name]
            assert name.endswith("NAME.py") or any(p.exists() for p in there), f"{path.name} names {name}"


def test_sections_that_files_cite_exist() -> None:
    """A failure means that a section of docs/mathematics.md was renumbered, and a file still names the old one."""
    text = (ROOT / "docs/mathematics.md").read_text(encoding="utf-8")
    sections = set(re.findall(r"^#{2,3} (\d+(?:\.\d+)?) ", text, flags=re.MULTILINE))
    cited = {
        (path.relative_to(ROOT).as_posix(), section)
        for path in SOURCES
        for found in re.findall(rf"docs/mathematics\.md\s+({SECTIONS})", path.read_text(encoding="utf-8"))
        for section in re.split(r",\s+", found)
    }
    assert len(cited) > 15
    assert not {(path, section) for path, section in cited if section not in sections}


@pytest.mark.parametrize("folder", ["src", "tests", "benchmarks", "attack"])
def test_documents_that_files_cite_exist(folder: str) -> None:
    """A page is cited by its path from the root, and a section by page and number: (docs/mathematics.md 2.3)."""
    for path in sorted((ROOT / folder).rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        for page in re.findall(r"[\w./-]+\.md\b", text):
            assert (ROOT / page).exists(), f"{path.name} cites {page}, which is not there"
        for page in re.findall(r"[(;] ?([a-z][a-z_./]*) \d+\.\d+(?:, \d+\.\d+)*\)", text):
            assert (ROOT / page).exists(), f"{path.name} cites sections of {page}, which is not there"


@pytest.mark.heavy
def test_stored_results_are_what_the_experiments_give() -> None:
    """A failure means that docs/results/rates.csv is of other code. Run `anchorhead reproduce --only rates -o out`,
    copy out/rates.csv there and regenerate the pages. Training is compared loosely: processors round differently."""
    stored: Rows = module("tables").reference()
    for row in stored.where(seed=1234):
        setting = {name: row[name] for name in ("how", "p", "H", "width")}
        if row["how"] in rates.TRAINED:
            continue
        (again,) = rates.run(setting, 1234)
        assert again["mean_square"] == pytest.approx(row["mean_square"], rel=1e-6, abs=1e-20), setting
    (trained,) = stored.where(seed=1234, how="trained", p=120, H=1, width=50)
    (again,) = rates.run({"how": "trained", "p": 120, "H": 1, "width": 50}, 1234)
    assert 0.5 < float(again["mean_square"]) / float(trained["mean_square"]) < 2
