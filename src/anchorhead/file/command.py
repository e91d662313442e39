"""`anchorhead verify` with what Python brings: it runs where python-flint and this package are all there is."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from anchorhead.file.folder import VerifiedFolder, reported, verify


def run(arguments: Sequence[str]) -> None:
    """The command, given what follows the word verify."""
    parser = argparse.ArgumentParser(
        prog="anchorhead verify",
        description="Check the proof in a saved model, or of every head of a converted one, from the numbers alone.",
    )
    parser.add_argument("file", help="a model saved by `anchorhead compile -o`, or a folder of `anchorhead convert -o`")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    given = parser.parse_args(arguments)
    print(verified(given.file, as_json=given.json))


def verified(file: str, *, as_json: bool) -> str:
    """Checks a file or a folder, and what there is to say of it; raises where its claim does not hold."""
    found = verify(file, progress=not as_json)
    if as_json:
        name = "heads" if isinstance(found, VerifiedFolder) else "certificate"
        return json.dumps({"file": file, "verified": True, name: found.as_dict()})
    assumed = [f"  assuming that {assumption}" for assumption in found.assumptions]
    return "\n".join([f"verified {file}", str(found), *assumed])


def shown(folder: Path, *, as_json: bool) -> str:
    """What was reported of a conversion."""
    report, text = reported(folder)
    return json.dumps(report) if as_json else text
