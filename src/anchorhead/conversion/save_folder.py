"""A converted model is written to a folder (`folder.py`): into a hidden one within it first, so that an earlier
conversion is still there if this one cannot be written."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn

from anchorhead.conversion.configured import as_converted, built_with, own_values, switched
from anchorhead.conversion.holdings import grown, require_all_held, weights
from anchorhead.conversion.makeup import changes, plain_now
from anchorhead.conversion.report import ConversionReport
from anchorhead.errors import FileError, InputError
from anchorhead.file.folder import (
    CARD,
    FORMAT,
    RECORD,
    file_digest,
    head_file,
    read_folder,
    record_bytes,
    record_digest,
)
from anchorhead.file.mode import usual_mode

WEIGHTS = "weights.safetensors"


def save_converted(model: nn.Module, folder: str | os.PathLike[str]) -> None:
    """Writes a model that `ah.convert` returned to a folder that is empty, or holds an earlier conversion.

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> ah.save_converted(ah.convert(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU())), folder)
    >>> ah.verify(folder).level
    'proved'
    """
    for around in ("_orig_mod", "module"):  # of torch.compile, and of what runs a model on several devices
        model = getattr(model, around, model) if hasattr(getattr(model, around, None), "report") else model
    if not isinstance(getattr(model, "report", None), ConversionReport):
        raise InputError("Only a model that ah.convert returned can be saved this way; it has a .report.")
    write(model, path_of(folder), [])


def write(model: Any, where: Path, beside: list[Path]) -> None:
    """Writes a converted model, and some files beside it."""
    _require_unchanged(model)
    require_all_held(model)
    stored, same = weights(model)
    heads, entries = _heads(model)
    trainable = any(place.module.head.trains for place in model.report.places)
    record: dict[str, Any] = {"format": FORMAT, "report": model.report.as_dict(), "heads": entries, "same": same,
                              "trainable": trainable, "code": model.report.code, "shared": model.report.shared,
                              "grown": grown(model, model.report.made.tensors),
                              "state": plain_now(model, model.report.made), **_configured(model)}  # fmt: skip
    require_free(where)
    there = where.exists()
    try:
        where.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=where, prefix=".") as beneath:
            _fill_folder(model, Path(beneath), record, stored, heads, beside)
            _emptied(where, Path(beneath))
            for path in Path(beneath).iterdir():
                path.rename(where / path.name)
    except (OSError, SafetensorError, RuntimeError, ValueError) as error:
        if not there:
            with suppress(OSError):
                where.rmdir()
        raise FileError(f"{where} cannot be written: {error}.") from error


def _fill_folder(model: Any, where: Path, record: dict[str, Any], stored: dict[str, Tensor], heads: list[Any],
                 beside: list[Path]) -> None:  # fmt: skip
    """Everything into an empty folder, the record last; it takes its place when all of it is there."""
    config: Any = getattr(model, "config", None)
    if hasattr(config, "save_pretrained"):
        record["class"] = type(model).__name__
        as_converted(model, model.report.made.configured).save_pretrained(where)
        generation: Any = getattr(model, "generation_config", None)
        if generation is not None:
            generation.save_pretrained(where)
    for path in beside:
        shutil.copyfile(path, where / path.name)
    with usual_mode(where / WEIGHTS):
        save_file(stored, where / WEIGHTS, metadata={"format": "pt"})
    (where / "heads").mkdir()
    for index, compiled in enumerate(heads):
        compiled.save(where / head_file(index))
    (where / CARD).write_text(_card(model.report, type(model).__name__), encoding="utf-8")
    written = [p for p in where.rglob("*") if p.is_file()]
    record["files"] = {p.relative_to(where).as_posix(): file_digest(p) for p in sorted(written)}
    record["digest"] = record_digest(record)
    (where / RECORD).write_bytes(record_bytes(record))


def _configured(model: Any) -> dict[str, Any]:
    """What the record has of configurations: the model's own values, how it was built, what was switched since."""
    noted = model.report.made.configured
    return {"configured": own_values(noted, model), "built_with": built_with(noted), "switched": switched(model, noted)}


def _require_unchanged(model: Any) -> None:
    """What is loaded is built anew, so that a change of anything but weights and heads would be lost."""
    found = changes(model, model.report.places, model.report.made)
    if found:
        raise InputError(
            f"The model was changed after it was converted ({', '.join(found[:3])}), and a folder does not hold that; "
            "change the original instead, and convert it."
        )


def require_free(where: Path) -> None:
    """Refuses, before a model is loaded, what is no folder or holds something else than an earlier conversion."""
    if where.exists() and not where.is_dir():
        raise FileError(f"{where} is a file, no folder; give the name of a folder that is empty or not there yet.")
    if where.is_dir() and not (where / RECORD).is_file():
        _require_empty(where)


def _require_empty(where: Path, but: Path | None = None) -> None:
    for rest in where.iterdir():
        if rest != but:
            raise FileError(
                f"{where} holds {rest.name!r}, which is not of an earlier conversion; give an empty folder."
            )


def _emptied(where: Path, but: Path) -> None:
    """An earlier conversion goes; anything else is left alone and refused."""
    if (where / RECORD).is_file():
        for name in read_folder(where)["files"]:
            (where / name).unlink()
        (where / RECORD).unlink()
        (where / "heads").rmdir()
    _require_empty(where, but)


def path_of(folder: str | os.PathLike[str]) -> Path:
    """A folder's path."""
    if not isinstance(folder, str | os.PathLike):
        raise InputError(f"A folder is a path, not {folder!r}.")
    return Path(folder)


def _heads(model: Any) -> tuple[list[Any], list[dict[str, Any]]]:
    """The distinct compiled heads, and for each place which ones stand there."""
    known: dict[Any, tuple[int, Any]] = {}
    entries = []
    for place in model.report.places:
        module = place.module
        if not module.proved:
            raise InputError(
                f"The numbers of a head at {place.place} were changed after their proof; if they were trained, "
                "ah.recertify(model) proves what they are now, else convert again."
            )
        heads = {role: known.setdefault(c.claim, (len(known), c))[0] for role, c in module.compiled.items()}
        entries.append({"place": place.place, "kind": module.kind, "heads": heads})
    return [compiled for _, compiled in known.values()], entries


def _card(report: ConversionReport, kind: str) -> str:
    """The report for people who find the folder."""
    return f"""---
library_name: anchorhead
---

# {kind}, converted by anchorhead

Its activations are softmax attention over fixed keys, each with a proved error. It is loaded by
`anchorhead.load_converted(folder)`; the transformers library, which has no such heads, finds no weights here.
`anchorhead verify folder` checks every proof, without torch.

```
{report}
```
"""
