"""The functions of the default page, compiled beforehand: `python -m anchorhead.explore.presets` writes presets.json.

It takes a few minutes and is run again when the compiler finds other heads than the stored ones.
"""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import Any

from anchorhead.compiler.target import Domain
from anchorhead.explore.gallery import formula_entry

PRESETS: tuple[tuple[str, Domain], ...] = (
    ("gelu(x)", None),
    ("sin(3*x)", (-1.0, 1.0)),
    ("relu(x)", None),
    ("clip(x, -1, 1)", None),
    ("1/(1 + 25*x**2)", (-1.0, 1.0)),
    ("softplus(x)", None),
    ("tanh(x)", None),
    ("abs(x)", None),
)


def preset_entries() -> list[dict[str, Any]]:
    """The stored entries."""
    text = resources.files("anchorhead.explore").joinpath("presets.json").read_text(encoding="utf-8")
    found: list[dict[str, Any]] = json.loads(text)
    return found


def main() -> None:
    """Compiles every preset and writes the file beside this one."""
    entries = [formula_entry(formula, domain, print) for formula, domain in PRESETS]
    text = ",\n".join(json.dumps(each, separators=(",", ":"), allow_nan=False) for each in entries)
    Path(__file__).with_name("presets.json").write_text(f"[\n{text}\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
