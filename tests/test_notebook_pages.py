"""Notebooks become pages of the site: text, code and what it showed, and nothing that runs or asks for something."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

NOTEBOOKS = Path(__file__).parents[1] / "docs" / "site" / "notebooks.py"


@pytest.fixture(scope="module")
def notebooks() -> ModuleType:
    pytest.importorskip("mkdocs")
    spec = importlib.util.spec_from_file_location("notebooks", NOTEBOOKS)
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def shown(notebooks: ModuleType, **data: Any) -> str:
    return notebooks.shown(
        {"output_type": "display_data", "data": {kind.replace("_", "/"): v for kind, v in data.items()}}
    )


def test_text_and_code_stand_in_their_order(notebooks: ModuleType) -> None:
    cells = [
        {"cell_type": "markdown", "source": ["# A title\n", "\n", "Words."]},
        {"cell_type": "code", "source": "print(1 < 2)", "outputs": [{"output_type": "stream", "text": ["True\n"]}]},
        {"cell_type": "code", "source": "", "outputs": []},
    ]
    page = notebooks.page({"cells": cells})
    assert notebooks.title({"cells": cells}) == "A title"
    assert page.index("Words.") < page.index("```python\nprint(1 < 2)\n```") < page.index("<pre>True</pre>")


def test_what_was_printed_is_no_markup(notebooks: ModuleType) -> None:
    printed = notebooks.shown({"output_type": "stream", "text": "\x1b[31m<b>&\x1b[0m\n\nnext"})
    assert "<pre>&lt;b&gt;&amp;\n" in printed
    assert "\n\n" not in printed  # Markdown would take up again after an empty line


def test_pictures_are_in_the_page_and_scripts_are_not(notebooks: ModuleType) -> None:
    assert 'src="data:image/png;base64,QUJD"' in shown(notebooks, image_png="QUJD\n", text_plain="<Figure>")
    assert "script" not in shown(notebooks, text_html=["<table></table>", "<script src='x'>1</script>"])
    assert "<table></table>" in shown(notebooks, text_html=["<table></table>"])
    assert "ValueError: no" in notebooks.shown({"output_type": "error", "ename": "ValueError", "evalue": "no"})
