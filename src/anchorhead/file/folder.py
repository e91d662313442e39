"""The folder of a converted model, read without trust and checked: every file by its digest, every head by its proof.

`anchorhead.json` says what is in the folder, where each head belongs, and what was reported of the conversion. Each
distinct head is a model file of its own (`checker.py`), so that its proof is checked like any other; what the report
says of a head must be what its certificate says. Digests guard against accidents, not against forgers. Neither torch
nor the model's class is needed. docs/format.md describes the folder.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anchorhead.errors import AnchorheadError, FileError, VerificationError
from anchorhead.expression.parse import parse
from anchorhead.file import checker
from anchorhead.file.container import parsed, printable
from anchorhead.proof.certificate import Certificate, end_text

RECORD = "anchorhead.json"
FORMAT = 2
MOST_RECORD = 1 << 26
FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)?")


@dataclass(frozen=True)
class VerifiedFolder:
    """The certificates of a converted model's heads, each checked, by the places where the heads stand.

    bound: the largest of theirs; boxes: of all distinct ones together.
    """

    heads: dict[str, Certificate]
    level: str = "proved"

    @property
    def bound(self) -> float:
        return max((certificate.bound for certificate in self.heads.values()), default=0.0)

    @property
    def boxes(self) -> int:
        return sum(certificate.boxes for certificate in set(self.heads.values()))

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {place: certificate.as_dict() for place, certificate in self.heads.items()}

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What all the proofs assume."""
        return tuple(dict.fromkeys(a for certificate in self.heads.values() for a in certificate.assumptions))

    def __str__(self) -> str:
        lines = [f"{len(self.heads)} heads of a converted model; what lies between them is not proved"]
        return "\n".join(lines + [f"  {place}: {certificate}" for place, certificate in self.heads.items()])


def verify(path: str | os.PathLike[str], *, progress: checker.Progress | None = None) -> Certificate | VerifiedFolder:
    """Checks the proof in a saved model, or in every head of a converted model's folder, and returns what was checked.

    Raises `VerificationError` with the first claim that does not hold, or `FileError` if something is damaged or was
    changed. A model whose numbers were changed before it was saved is checked like any other: if the claim still holds,
    it is proved. progress: called with boxes done and boxes in all, for each head.
    """
    if not (isinstance(path, str | os.PathLike) and Path(path).is_dir()):
        return checker.verify(path, progress=progress)
    where = Path(path)
    record = read_folder(where)
    certificates: dict[int, Certificate] = {}
    found: dict[str, Certificate] = {}
    for row, entry in zip(record["report"]["replaced"], record["heads"], strict=True):
        index, place = entry["head"], entry["place"]
        if index not in certificates:
            certificates[index] = checker.verify(where / head_file(index), progress=progress)
        _require_the_same(row, place, certificates[index])
        found[place] = certificates[index]
    return VerifiedFolder(found)


def head_file(index: int) -> str:
    """Where in the folder a head is."""
    return f"heads/{index}.safetensors"


def read_folder(where: Path) -> dict[str, Any]:
    """The record of a folder, once every file is the one that was written, and the record is one."""
    try:
        if (where / RECORD).stat().st_size > MOST_RECORD:
            raise FileError(f"{where / RECORD} is larger than any record of a conversion.")
        record = parsed((where / RECORD).read_bytes())
        if not isinstance(record, dict) or record.get("format") != FORMAT:
            raise FileError(f"{where} is not a converted model of format {FORMAT}; convert the original again.")
        if record.get("digest") != record_digest(record):
            raise FileError(f"{where / RECORD} is not the file that was saved; convert again.")
        _check_files(where, record["files"])
        _check_heads(record, where)
    except (OSError, ValueError, RecursionError, KeyError, TypeError) as error:
        raise FileError(f"{where} is not a converted model that can be read: {error}.") from error
    return record


def _check_files(where: Path, files: Any) -> None:
    """All files that are listed are as they were, and there are no others, but for hidden ones."""
    there = {p.relative_to(where).as_posix() for p in where.rglob("*") if p.is_file()} - {RECORD}
    added = sorted(name for name in there - set(files) if not any(part.startswith(".") for part in name.split("/")))
    if added:
        raise FileError(f"{where} holds {added[0][:80]!r}, which was not saved with it; remove it, or convert again.")
    for name, digest in files.items():
        if not FILE.fullmatch(name):
            raise FileError(f"{where / RECORD} lists {name[:80]!r}, which is no file of a converted model.")
        if name not in there or file_digest(where / name) != digest:
            raise FileError(
                f"{where / name} is not the file that was saved, so what is reported of the model does not hold; "
                "convert again."
            )


def _check_heads(record: dict[str, Any], where: Path) -> None:
    rows, heads = record["report"]["replaced"], record["heads"]
    fits = len(rows) == len(heads) and all(
        type(e["head"]) is int and type(e["gate"]) is bool and head_file(e["head"]) in record["files"]
        and printable(e["place"]) and e["place"] == r["place"] for r, e in zip(rows, heads, strict=False)
    )  # fmt: skip
    if not fits or len({e["place"] for e in heads}) < len(heads):
        raise FileError(f"{where / RECORD} does not say which head stands at each place of its report.")


def _require_the_same(row: dict[str, Any], place: str, checked: Certificate) -> None:
    """What the report says of a head is what was checked of it."""
    try:
        formula = str(parse(row["formula"], ("x",)))
    except (AnchorheadError, KeyError, TypeError) as error:
        raise VerificationError(f"The report does not say what the head at {place} computes.") from error
    said = (formula, row.get("dtype"), row.get("error"), row.get("rounding"), row.get("domain"))
    ends = [end_text(end) for end in checked.domain[0]]
    if said != (checked.expression, checked.dtype, checked.approximation, checked.rounding, ends):
        raise VerificationError(
            f"The report says something else of the head at {place} than its certificate: {said!r}."
        )


def record_digest(record: dict[str, Any]) -> str:
    """SHA-256 over the record without its own digest."""
    text = json.dumps({k: v for k, v in record.items() if k != "digest"}, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def file_digest(path: Path) -> str:
    """SHA-256 over a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
