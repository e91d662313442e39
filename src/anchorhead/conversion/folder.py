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
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from anchorhead.compiler.load import load_compiled
from anchorhead.compiler.method import check_tol
from anchorhead.conversion.asked import check_convertible, copied
from anchorhead.conversion.code_digest import changed, code_digests
from anchorhead.conversion.configured import other_values, switch
from anchorhead.conversion.convert import convert, placed
from anchorhead.conversion.held_functions import put_modules
from anchorhead.conversion.holdings import grow, tensors
from anchorhead.conversion.place_heads import put
from anchorhead.conversion.plain_state import set_state
from anchorhead.conversion.pretrained import forbid_saving, from_config, load_pretrained
from anchorhead.conversion.report import ConversionReport
from anchorhead.conversion.save_folder import WEIGHTS, path_of, require_free, write
from anchorhead.conversion.sharing import share, shared
from anchorhead.conversion.sites import find_sites
from anchorhead.conversion.sloped_ramp import put_ramps
from anchorhead.conversion.trainable import make_trainable
from anchorhead.dtypes import UNIT
from anchorhead.errors import FileError, InputError
from anchorhead.file.entries import one_of
from anchorhead.file.folder import RECORD, computes, head_file, read_folder
from anchorhead.model.outside import check_policy
from anchorhead.progress import Progress, telling

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
    require_free(target)
    with telling(f"converting {source}", progress) as tell:
        tell("loading")
        made = convert(load_folder(source), tol, pure=pure, accept=accept)
        tell("writing")
        write(made, target, [source / name for name in TOKENIZER if (source / name).is_file()])
    report: Any = made.report
    return report


def load_folder(folder: Path) -> nn.Module:
    """The model in a folder, original or converted, in the class that its configuration names."""
    require_there(folder)
    return load_converted(folder) if (folder / RECORD).is_file() else load_pretrained(folder)


def require_there(folder: Path) -> None:
    """Refuses a folder, or a file, that does not exist."""
    if not folder.exists():
        raise FileError(f"{folder} does not exist.")


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
    where = path_of(folder)
    record = read_folder(where)
    if module is None and record.get("class") is None:
        raise InputError(
            f"{where} holds a model of a class of yours; give an instance of it: load_converted(path, module)."
        )
    if module is not None:
        check_convertible(module)
    model: Any = copied(module) if module is not None else _built(where, record)
    share(model, record.get("shared", shared(model)))
    code, alike = code_digests(model), shared(model)
    model = put_ramps(model)
    put_modules(model)
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
        dtype = getattr(torch, one_of(row, "dtype", list(UNIT)))
        place = placed(model, site, roles, dtype, graphs.get(site.owner), outside)
        place.module.seen_in(dtype)
        if not computes(site.formula, place.module.bound.function):
            raise _absent(entry)
        places.append(place.seen({(site.place, path) for path in str(row.get("feeds")).split(", ")}))
        made.append((site, place.module))
    model = put(model, made, graphs)
    forbid_saving(model)
    try:
        model.report = ConversionReport.from_dict(record["report"], places)
    except (KeyError, TypeError, ValueError) as error:
        raise FileError(f"{where / RECORD} has no report that can be read: {error}.") from error
    model.report.code, model.report.shared = code, alike
    _compare_code(model.report, record, other_values(record.get("configured", {}), model), where)
    if record.get("trainable"):
        make_trainable(model)
    model.report.settle(model)
    model.report.made = replace(model.report.made, tensors=model.report.made.tensors - set(record.get("grown", {})))
    set_state(model, record.get("state", {}))
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
            n for n, of in names.items() if of not in shapes or (shapes[of] != held[n][2].shape and n not in made)
        ]
        if wrong:
            raise FileError(
                f"The weights in {where} do not fit the model ({', '.join(wrong[:3])}). If the original had been "
                "changed after it was built, give an instance that is like it: load_converted(path, module)."
            )
        kept: dict[str, Tensor] = {}
        for name, of in names.items():
            module, attribute, tensor = held[name]
            if name == of:
                others = any(tensor is other for other in kept.values())  # which this one was not when it was saved
                kept[name] = _with(tensor, stored.get_tensor(name).to(tensor.device), alone=not others)
            _hold(module, attribute, tensor, kept[of])


def _with(tensor: Tensor, value: Tensor, *, alone: bool) -> Tensor:
    """The same parameter with another value and its dtype, or another one; what is no parameter is the value."""
    if not isinstance(tensor, nn.Parameter):
        return value
    if not alone:
        return nn.Parameter(value, tensor.requires_grad)
    tensor.data = value
    return tensor


def _hold(module: nn.Module, attribute: str, before: Tensor, tensor: Tensor) -> None:
    """Puts a tensor where another was; into that one, where it is in a list or a dictionary."""
    holders: tuple[dict[str, Any], ...] = (module._parameters, module._buffers, vars(module))
    for holder in holders:
        if holder.get(attribute) is before:
            holder[attribute] = tensor
            return
    before.data = tensor.data
