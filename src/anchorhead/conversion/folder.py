"""Models in folders: those of the transformers library, and converted ones; nothing in them is executed or fetched.

Of a converted model `weights.safetensors` holds every tensor but those of heads, `heads/` one model file for each
distinct head, `anchorhead.json` where they belong, the report and a digest of every file, `README.md` the report for
people, and for models of the transformers library `config.json` says which class to build. That library finds no
weights in such a folder under the names that it knows, so that it cannot load the model without its heads. Loading
builds the original model, fills in the weights, puts the stored heads where the record says, without compiling them
again, and computes the report's bounds from what was loaded.
"""

from __future__ import annotations

import os
import shutil
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from anchorhead.compiler.load import load_compiled
from anchorhead.compiler.method import check_tol
from anchorhead.conversion.asked import check_convertible, copied
from anchorhead.conversion.code_digest import changed, code_digests
from anchorhead.conversion.configured import as_converted, built_with, other_values, own_values, switch, switched
from anchorhead.conversion.convert import convert, placed
from anchorhead.conversion.holdings import grow, grown, require_all_held, tensors, weights
from anchorhead.conversion.makeup import changes
from anchorhead.conversion.place_heads import put
from anchorhead.conversion.pretrained import forbid_saving, from_config, load_pretrained
from anchorhead.conversion.report import ConversionReport
from anchorhead.conversion.sites import find_sites
from anchorhead.conversion.trainable import make_trainable
from anchorhead.errors import FileError, InputError
from anchorhead.file.folder import (
    FORMAT,
    RECORD,
    computes,
    file_digest,
    head_file,
    read_folder,
    record_bytes,
    record_digest,
)
from anchorhead.file.mode import usual_mode
from anchorhead.model.outside import check_policy
from anchorhead.progress import Progress, telling

WEIGHTS, CARD = "weights.safetensors", "README.md"
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "vocab.json", "merges.txt",
             "special_tokens_map.json")  # fmt: skip


def convert_folder(
    source: Path,
    target: Path,
    tol: float | None,
    progress: bool | Progress = True,
    *,
    pure: bool = False,
    accept: bool = False,
) -> ConversionReport:
    """Converts a model folder, or a GGUF file, into a folder, tokenizer included, and returns the report."""
    if target.resolve() == source.resolve():
        raise FileError(f"{target} is the original; give another folder for the converted model.")
    tol = None if tol is None else check_tol(tol)
    _require_free(target)
    with telling(f"converting {source}", progress) as tell:
        tell("loading")
        made = convert(load_folder(source), tol, pure=pure, accept=accept)
        tell("writing")
        _write(made, target, [source / name for name in TOKENIZER if (source / name).is_file()])
    report: Any = made.report
    return report


def load_folder(folder: Path) -> nn.Module:
    """The model in a folder, original or converted, in the class that its configuration names."""
    if not folder.exists():
        raise FileError(f"{folder} does not exist.")
    return load_converted(folder) if (folder / RECORD).is_file() else load_pretrained(folder)


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
    _write(model, _folder(folder), [])


def _write(model: Any, where: Path, beside: list[Path]) -> None:
    _require_unchanged(model)
    require_all_held(model)
    stored, same = weights(model)
    heads, entries = _heads(model)
    trainable = any(place.module.head.trains for place in model.report.places)
    record: dict[str, Any] = {"format": FORMAT, "report": model.report.as_dict(), "heads": entries, "same": same,
                              "trainable": trainable, "code": model.report.code,
                              "grown": grown(model, model.report.made.tensors), **_configured(model)}  # fmt: skip
    try:
        _emptied(where)
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
    except (OSError, SafetensorError, RuntimeError, ValueError) as error:
        raise FileError(f"{where} cannot be written: {error}.") from error


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


def _require_free(where: Path) -> None:
    """Refuses, before a model is loaded, what is no folder or holds something else than an earlier conversion."""
    if where.exists() and not where.is_dir():
        raise FileError(f"{where} is a file; give an empty folder.")
    if where.is_dir() and not (where / RECORD).is_file():
        _require_empty(where)


def _require_empty(where: Path) -> None:
    for rest in where.iterdir():
        raise FileError(f"{where} holds {rest.name!r}, which is not of an earlier conversion; give an empty folder.")


def _emptied(where: Path) -> None:
    """An empty folder; an earlier conversion in it goes, anything else is left alone and refused."""
    try:
        where.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"{where} is no folder that can be written: {error}.") from error
    if (where / RECORD).is_file():
        for name in read_folder(where)["files"]:
            (where / name).unlink()
        (where / RECORD).unlink()
        (where / "heads").rmdir()
    _require_empty(where)


def load_converted(
    folder: str | os.PathLike[str], module: nn.Module | None = None, *, outside: str = "warn"
) -> nn.Module:
    """A converted model from a folder.

    module: for a model that is not of the transformers library, an instance of the original class, with any weights.
    outside: what an argument outside a head's interval does, "warn", "error" or "ignore", as for `ah.convert`.

    >>> import tempfile
    >>> folder, block = tempfile.mkdtemp(), torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU())
    >>> ah.save_converted(ah.convert(block), folder)
    >>> ah.load_converted(folder, block)(torch.ones(4)).shape
    torch.Size([4])
    """
    check_policy(outside)
    where = _folder(folder)
    record = read_folder(where)
    if module is None and record.get("class") is None:
        raise InputError(
            f"{where} holds a model of a class of yours; give an instance of it: load_converted(path, module)."
        )
    if module is not None:
        check_convertible(module)
    model: Any = copied(module) if module is not None else _built(where, record)
    code = code_digests(model)
    sites, _, graphs = find_sites(model, pure=True)
    kinds = {entry["place"]: entry["kind"] for entry in record["heads"]}
    at = {site.place: site.as_saved(kinds.get(site.place, "")) for site in sites}
    files = {index for entry in record["heads"] for index in entry["heads"].values()}
    heads = {index: load_compiled(where / head_file(index)) for index in files}
    _fill(model, where, record, list(at))
    made, places = [], []
    for entry, row in zip(record["heads"], record["report"]["replaced"], strict=True):
        site = at.get(entry["place"])
        if site is None or site.operation != entry["kind"] or (site.norm and site.formula != row.get("formula")):
            raise _absent(entry)
        roles = {role: heads[index] for role, index in entry["heads"].items()}
        place = placed(model, site, roles, graphs.get(site.owner), outside)
        if not computes(site.formula, place.module.bound.function):
            raise _absent(entry)
        places.append(place)
        made.append((site, place.module))
    model = put(model, made, graphs)
    forbid_saving(model)
    try:
        model.report = ConversionReport.from_dict(record["report"], places)
    except (KeyError, TypeError, ValueError) as error:
        raise FileError(f"{where / RECORD} has no report that can be read: {error}.") from error
    model.report.code = code
    _compare_code(model.report, record, other_values(record.get("configured", {}), model), where)
    if record.get("trainable"):
        make_trainable(model)
    model.report.settle(model)
    model.report.made = replace(model.report.made, tensors=model.report.made.tensors - set(record.get("grown", {})))
    switch(model, record.get("switched", {}))
    found: nn.Module = model.eval()
    return found


def _built(where: Path, record: dict[str, Any]) -> nn.Module:
    """The model as it was when it was converted; with the functions for attention that are there, if its are not."""
    named = record.get("built_with", {})
    try:
        return from_config(where, str(record["class"]), named)
    except FileError as error:
        model = from_config(where, str(record["class"]))
        functions = ", ".join(dict.fromkeys(named.values()))
        warnings.warn(f"The model was converted with {functions}, which is not here ({error.__cause__}); its attention "
                      "is computed by what its library takes instead.", stacklevel=3)  # fmt: skip
        return model


def _compare_code(report: ConversionReport, record: dict[str, Any], values: list[str], where: Path) -> None:
    """What was seen of other code is not claimed of this; values: those of configurations that are others."""
    before = record.get("code")
    others = (changed(before, report.code) if isinstance(before, dict) else ["all classes"]) + values
    if others and report.watched:
        report.unwatched = f"the code or the settings of {', '.join(others[:3])} are not those that were converted"
        report.inputs, report.remaining, report.attention, report.idle, report.outside = "", [], [], [], []
        warnings.warn(
            f"{where} was loaded into other code than was converted ({', '.join(others[:3])}): its weights and heads "
            "are in place, but what the report said of a run is left out. Convert again to have that.",
            stacklevel=3,
        )


def _absent(entry: dict[str, Any]) -> FileError:
    what = "norm" if entry["kind"] == "norm" else "activation"
    return FileError(f"The model has no such {what} at {entry['place']}; give the class that was saved.")


def _folder(folder: str | os.PathLike[str]) -> Path:
    if not isinstance(folder, str | os.PathLike):
        raise InputError(f"A folder is a path, not {folder!r}.")
    return Path(folder)


def _fill(model: Any, where: Path, record: dict[str, Any], places: list[str]) -> None:
    """Every stored tensor, one at a time, so that there are never two copies of all of them; none may be left over."""
    made = record.get("grown", {})
    gone = {e["place"] for e in record["heads"] if e["kind"] != "norm"}
    try:
        grow(model, made)
    except AttributeError as error:
        raise FileError(f"The weights in {where} do not fit the model: {error}.") from error
    held = tensors(model, tuple(place for place in places if place in gone))
    try:
        stored = safe_open(where / WEIGHTS, framework="pt")
    except (OSError, SafetensorError) as error:
        raise FileError(f"{where / WEIGHTS} cannot be read: {error}.") from error
    with stored, torch.no_grad():
        names = {name: name for name in stored.keys()} | record["same"]  # noqa: SIM118
        shapes = {name: tuple(stored.get_slice(name).get_shape()) for name in stored.keys()}  # noqa: SIM118
        wrong = sorted(set(names) ^ set(held)) or [
            n for n, of in names.items() if shapes.get(of) != held[n][2].shape and n not in made
        ]
        if wrong:
            raise FileError(
                f"The weights in {where} do not fit the model ({', '.join(wrong[:3])}). If the original had been "
                "changed after it was built, give an instance that is like it: load_converted(path, module)."
            )
        for name, of in names.items():
            module, attribute, tensor = held[name]
            value = stored.get_tensor(of).to(tensor.device)
            if isinstance(vars(module).get(attribute), Tensor):
                vars(module)[attribute] = value
            else:
                tensor.data = value  # and its dtype
    if hasattr(model, "tie_weights"):
        model.tie_weights()


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
