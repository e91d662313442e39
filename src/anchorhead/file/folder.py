"""The folder of a converted model, read without trust and checked: every file by its digest, every head by its proof.

`anchorhead.json` says what is in the folder, where each head belongs, and what was reported of the conversion. Each
distinct head is a model file of its own (`checker.py`), so that its proof is checked like any other; what the report
says of a place must be what follows from its heads (`proof/composed.py`). Digests guard against accidents, not
against forgers. Neither torch nor the model's class is needed. docs/format.md describes the folder.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from anchorhead.errors import AnchorheadError, FileError, VerificationError
from anchorhead.expression.parse import parse
from anchorhead.file import checker
from anchorhead.file.container import parsed, printable, read
from anchorhead.file.distance import Distance
from anchorhead.file.stored import head_claim
from anchorhead.progress import LOG, Progress, telling
from anchorhead.proof.certificate import Certificate, end_text
from anchorhead.proof.composed import composed, heads_of
from anchorhead.proof.head_claim import HeadClaim

RECORD, CARD = "anchorhead.json", "README.md"
FORMAT = 4
MOST_RECORD = 1 << 26
MOST_ALIKE = 8
"""Places with the same head that are printed one by one."""
NORM = re.compile(r"(layer|rms|group|instance)_norm\(x, eps=[^()]*\)")
FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)?")


@dataclass(frozen=True)
class VerifiedFolder:
    """The certificates of a converted model's heads, each checked, by the places where the heads stand and their roles.

    bound: the largest of theirs; boxes: of all distinct ones together.
    """

    heads: dict[str, dict[str, Certificate]]
    level: str = "proved"

    @property
    def certificates(self) -> list[Certificate]:
        """All of them, each once."""
        return list(dict.fromkeys(certificate for roles in self.heads.values() for certificate in roles.values()))

    @property
    def bound(self) -> float:
        return max((certificate.bound for certificate in self.certificates), default=0.0)

    @property
    def boxes(self) -> int:
        return sum(certificate.boxes for certificate in self.certificates)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {place: {role: c.as_dict() for role, c in roles.items()} for place, roles in self.heads.items()}

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What all the proofs assume."""
        return tuple(dict.fromkeys(a for certificate in self.certificates for a in certificate.assumptions))

    def __str__(self) -> str:
        count = sum(map(len, self.heads.values()))
        lines = [f"{count} heads of a converted model; what lies between them is not proved"]
        alike: dict[tuple[str, Certificate], list[str]] = {}
        for place, roles in self.heads.items():
            for row in roles.items():
                alike.setdefault(row, []).append(place)
        for (role, certificate), places in alike.items():
            if len(places) > MOST_ALIKE:
                places = [f"{', '.join(places[:3])} and {len(places) - 3} more"]
            lines += [f"  {place or 'the model'}, {role}: {certificate}" for place in places]
        return "\n".join(lines)

    __repr__ = __str__


def verify(
    path: str | os.PathLike[str], *, progress: bool | Progress = True
) -> Certificate | Distance | VerifiedFolder:
    """Checks the proof in a saved model or distance, or in every head of a converted model's folder; returns what was
    checked.

    Raises `VerificationError` with the first claim that does not hold, or `FileError` if something is damaged or was
    changed. A model whose numbers were changed before it was saved is checked like any other: if the claim still holds,
    it is proved. progress: as for `ah.compile`; a function is told how many boxes of how many are done.

    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "tanh.safetensors"
    >>> ah.compile("tanh(x)").save(path)
    >>> ah.verify(path).level
    'proved'
    """
    with telling(f"verifying {path}", progress) as tell:

        def boxes(done: int, count: int) -> None:
            tell(f"{done} of {count} boxes")

        if isinstance(path, str | os.PathLike) and Path(path).is_dir():
            return _verified_folder(Path(path), boxes)
        found = checker.verify(path, progress=boxes)
        LOG.info("verified %s: %s", path, found)
        return found


def _verified_folder(where: Path, progress: checker.Progress) -> VerifiedFolder:
    """Every head of a folder, checked."""
    record = read_folder(where)
    checked: dict[int, tuple[Certificate, HeadClaim]] = {}
    found: dict[str, dict[str, Certificate]] = {}
    for row, entry in zip(record["report"]["replaced"], record["heads"], strict=True):
        for index in entry["heads"].values():
            if index not in checked:
                file = where / head_file(index)
                stored = read(file)
                checked[index] = checker.verify_model(stored, file, progress), head_claim(stored)
        claims = {role: checked[index][1] for role, index in entry["heads"].items()}
        _require_the_same(row, entry, claims)
        found[entry["place"]] = {role: checked[index][0] for role, index in entry["heads"].items()}
    return VerifiedFolder(found)


def head_file(index: int) -> str:
    """Where in the folder a head is."""
    return f"heads/{index}.safetensors"


def read_folder(where: Path) -> dict[str, Any]:
    """The record of a folder, once every file is the one that was written, and the record is one."""
    if not where.is_dir():
        raise FileError(f"{where} {'is no folder' if where.exists() else 'does not exist'}.")
    if (where / "config.json").is_file() and not (where / RECORD).is_file():
        raise FileError(f"{where} holds a model that is not converted; anchorhead convert {where} -o OUT converts it.")
    if not (where / RECORD).exists():
        raise FileError(f"{where} holds no converted model: it has no {RECORD}. Give the path of a saved model's file.")
    try:
        if (where / RECORD).stat().st_size > MOST_RECORD:
            raise FileError(f"{where / RECORD} is larger than any record of a conversion.")
        written = (where / RECORD).read_bytes()
        record = parsed(written)
        if not isinstance(record, dict) or type(record.get("format")) is not int or record["format"] != FORMAT:
            raise FileError(f"{where} is not a converted model of format {FORMAT}; convert the original again.")
        if record.get("digest") != record_digest(record) or written != record_bytes(record):
            raise FileError(f"{where / RECORD} is not the file that was saved; convert again.")
        _check_files(where, record["files"])
        _check_heads(record, where)
    except (OSError, ValueError, RecursionError, KeyError, TypeError) as error:
        raise FileError(f"{where} is not a converted model that can be read: {error}.") from error
    return record


def reported(where: Path) -> tuple[dict[str, Any], str]:
    """What was reported of a conversion, as values and as the text in its card; nothing is proved anew."""
    record = read_folder(where)
    report: dict[str, Any] = record["report"]
    if CARD not in record["files"]:
        raise FileError(f"{where} has no {CARD} with a report; convert again.")
    text = (where / CARD).read_text(encoding="utf-8")
    return report, text.partition("```\n")[2].rpartition("\n```")[0]


def _check_files(where: Path, files: Any) -> None:
    """All files that are listed are as they were, and there are no others, but for hidden ones."""
    there = {p.relative_to(where).as_posix() for p in where.rglob("*") if p.is_file()} - {RECORD}
    added = sorted(name for name in there - set(files) if not any(part.startswith(".") for part in name.split("/")))
    if added:
        raise FileError(f"{where} holds {added[0][:80]!r}, which was not saved with it; remove it, or convert again.")
    for name, digest in files.items():
        if not FILE.fullmatch(name):
            raise FileError(f"{where / RECORD} lists {name[:80]!r}, which is no file of a converted model.")
        if name not in there:
            raise FileError(f"{where / name} is missing, which was saved with the model; convert again.")
        if file_digest(where / name) != digest:
            raise FileError(
                f"{where / name} is not the file that was saved, so what is reported of the model does not hold; "
                "convert again."
            )


def _check_heads(record: dict[str, Any], where: Path) -> None:
    rows, entries = record["report"]["replaced"], record["heads"]
    fits = len(rows) == len(entries) and all(
        printable(e["place"]) and e["place"] == r["place"] and printable(e["kind"]) and e["heads"]
        and all(printable(role) and type(i) is int and head_file(i) in record["files"]
                for role, i in e["heads"].items())
        for r, e in zip(rows, entries, strict=False)
    )  # fmt: skip
    if not fits or len({e["place"] for e in entries}) < len(entries):
        raise FileError(f"{where / RECORD} does not say which heads stand at each place of its report.")


def _require_the_same(row: dict[str, Any], entry: dict[str, Any], claims: dict[str, HeadClaim]) -> None:
    """What the report says of the heads at a place is what was checked of them, and what follows for the place."""
    place, kind, dtype = entry["place"], entry["kind"], row.get("dtype")
    try:
        formula = str(row["formula"])
        bound = composed(kind, claims, str(dtype), formula)
    except (AnchorheadError, KeyError) as error:
        raise VerificationError(f"The report does not say what the heads at {place} keep: {error}") from error
    meant = asdict(bound) | {"domain": list(map(end_text, bound.domain)), "kind": kind,
                             "heads": [asdict(head) for head in heads_of(claims)]}  # fmt: skip
    wrong = [name for name, value in meant.items() if name != "function" and row.get(name) != value]
    wrong += [] if computes(formula, bound.function) else ["formula"]
    if wrong:
        raise VerificationError(
            f"The report says something else of the heads at {place} than their certificates: {', '.join(wrong)}."
        )


def computes(formula: str, function: str) -> bool:
    """Whether what is said of a place, a formula in x or a norm with its eps, is the function that heads are proved
    for."""
    if function == "norm":
        return NORM.fullmatch(formula) is not None
    try:
        return str(parse(formula, ("x",))) == function
    except AnchorheadError:
        return False


def record_digest(record: dict[str, Any]) -> str:
    """SHA-256 over the record without its own digest."""
    text = json.dumps({k: v for k, v in record.items() if k != "digest"}, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def record_bytes(record: dict[str, Any]) -> bytes:
    """The record as it is written: any other text of the same record is not the file that was saved."""
    return json.dumps(record, indent=1).encode()


def file_digest(path: Path) -> str:
    """SHA-256 over a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
