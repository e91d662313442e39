"""Models in folders: those of the transformers library, and converted ones; nothing in them is executed or fetched.

Of a converted model `model.safetensors` holds the weights, `heads.safetensors` the numbers of the heads,
`anchorhead.json` where they belong and the report, and for models of the transformers library `config.json` says which
class to build. Loading builds the original model from its configuration, puts the stored heads where the file says,
without compiling them again, and fills in the weights.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import nn

from anchorhead.conversion.convert import convert
from anchorhead.conversion.place_heads import put
from anchorhead.conversion.report import ConversionReport, Replaced
from anchorhead.conversion.sites import find_sites
from anchorhead.errors import FileError, InputError
from anchorhead.head.head import NUMBERS, Head
from anchorhead.head.module import HeadModule
from anchorhead.model.activation import ActivationHead, GateHead
from anchorhead.model.outside import check_policy

WEIGHTS, HEADS, RECORD = "model.safetensors", "heads.safetensors", "anchorhead.json"
FORMAT = 1
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "vocab.json", "merges.txt",
             "special_tokens_map.json")  # fmt: skip


def convert_folder(
    source: Path, target: Path, tol: float, ranges: tuple[float, float], progress: Callable[[str], None] | None
) -> ConversionReport:
    """Converts a model folder into another, tokenizer included, and returns the report."""
    if target.resolve() == source.resolve():
        raise FileError(f"{target} is the original; give another folder for the converted model.")
    model = load_folder(source)
    made = convert(model, tol, ranges=ranges, progress=progress)
    save_converted(made, target)
    for name in TOKENIZER:
        if (source / name).is_file():
            shutil.copy2(source / name, target / name)
    report: Any = made.report
    return report


def load_folder(folder: Path) -> nn.Module:
    """The model in a folder, original or converted, in the class that its configuration names."""
    if (folder / RECORD).is_file():
        return load_converted(folder)
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FileError(f"{folder} is not a model of the transformers library: {error}.") from error
    if not list(folder.glob("*.safetensors")):
        raise FileError(f"{folder} has no safetensors file; other formats can hold code and are not read.")
    import transformers

    names = config.get("architectures") or ["AutoModel"]
    made: Any = getattr(transformers, str(names[0]), transformers.AutoModel)
    asked = {"local_files_only": True, "use_safetensors": True, "output_loading_info": True}
    try:
        model, info = made.from_pretrained(folder, **asked)
    except Exception as error:  # whatever the library finds wrong with the folder
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise FileError(f"{folder} cannot be loaded as {made.__name__}: {reason[:200]}.") from error
    missing = sorted(set(info["missing_keys"]) | {str(row[0]) for row in info.get("mismatched_keys", ())})
    if missing:
        raise FileError(
            f"The weights in {folder} do not fit {made.__name__}: {len(missing)} tensors are missing or of another "
            "shape, "
            f"{', '.join(missing[:3])} among them, and would be random. Give a complete model."
        )
    loaded: nn.Module = model.eval()
    return loaded


def save_converted(model: nn.Module, folder: str | os.PathLike[str]) -> None:
    """Writes a model that `ah.convert` returned to a folder."""
    report = getattr(model, "report", None)
    if not isinstance(report, ConversionReport):
        raise InputError("Only a model that ah.convert returned can be saved this way; it has a .report.")
    where = _folder(folder)
    try:
        where.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"{where} is no folder that can be written: {error}.") from error
    heads, placed = _heads(model)
    weights = {n: t.contiguous() for n, t in _weights(model).items()}
    record: dict[str, Any] = {"format": FORMAT, "report": report.as_dict(), "heads": placed}
    config: Any = getattr(model, "config", None)
    if hasattr(config, "save_pretrained"):
        record["class"] = type(model).__name__
        config.save_pretrained(where)
        generation: Any = getattr(model, "generation_config", None)
        if generation is not None:
            generation.save_pretrained(where)
    try:
        save_file(weights, where / WEIGHTS, metadata={"format": "pt"})
        save_file(heads, where / HEADS)
        record["digest"] = _digest(where)
        (where / RECORD).write_text(json.dumps(record, indent=1), encoding="utf-8")
    except (OSError, SafetensorError) as error:
        raise FileError(f"{where} cannot be written: {error}.") from error


def load_converted(
    folder: str | os.PathLike[str], module: nn.Module | None = None, *, outside: str = "warn"
) -> nn.Module:
    """A converted model from a folder.

    module: for a model that is not of the transformers library, an instance of the original class, with any weights.
    outside: what an argument outside a head's interval does, "warn", "error" or "ignore", as for `ah.convert`.
    """
    check_policy(outside)
    where = _folder(folder)
    try:
        record = json.loads((where / RECORD).read_text(encoding="utf-8"))
        numbers = load_file(where / HEADS)
        if record["format"] != FORMAT:
            raise FileError(f"{where} has format {record['format']}, and this version reads {FORMAT}.")
        if record["digest"] != _digest(where):
            raise FileError(
                f"{where / HEADS} is not the file that was saved, so its proofs do not hold; convert again."
            )
        model: Any = copy.deepcopy(module) if module is not None else _from_config(where, record)
        report = _report(record["report"])
        placed = {
            (r.place): _head(entry, numbers, r.domain)
            for r, entry in zip(report.replaced, record["heads"], strict=True)
        }
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise FileError(f"{where} is not a converted model that can be read: {error}.") from error
    for head in placed.values():
        head.outside = outside
    sites, _, graphs = find_sites(model)
    missing = set(placed) - {site.place for site in sites}
    if missing:
        raise FileError(
            f"The model has no activation at {', '.join(sorted(missing)[:3])}; give the class that was saved."
        )
    model = put(model, [(site, placed[site.place]) for site in sites if site.place in placed], graphs)
    if module is not None:
        _fill(model, where)
    model.report = report
    model.eval()
    found_model: nn.Module = model
    return found_model


def _folder(folder: str | os.PathLike[str]) -> Path:
    if not isinstance(folder, str | os.PathLike):
        raise InputError(f"A folder is a path, not {folder!r}.")
    return Path(folder)


def _digest(where: Path) -> str:
    """Of the heads' numbers, which the report's proofs speak of."""
    return hashlib.sha256((where / HEADS).read_bytes()).hexdigest()


def _fill(model: Any, where: Path) -> None:
    """The stored weights, one tensor at a time, so that there are never two copies of all of them."""
    held = model.state_dict(keep_vars=True)
    try:
        stored = safe_open(where / WEIGHTS, framework="pt")
    except (OSError, SafetensorError) as error:
        raise FileError(f"{where / WEIGHTS} cannot be read: {error}.") from error
    with stored, torch.no_grad():
        names = list(stored.keys())
        filled = {id(held[name]) for name in names if name in held}  # tied weights are stored once
        lost = [n for n in held if n not in names and ".head." not in n and id(held[n]) not in filled]
        wrong = [n for n in names if n not in held or tuple(held[n].shape) != tuple(stored.get_slice(n).get_shape())]
        if lost or wrong:
            raise FileError(f"The weights in {where} do not fit the model ({', '.join((*lost, *wrong)[:3])}).")
        for name in names:
            held[name].data = stored.get_tensor(name).to(held[name].device)  # and its dtype


def _from_config(where: Path, record: dict[str, Any]) -> nn.Module:
    name = record.get("class")
    if name is None:
        raise InputError(
            f"{where} holds a model of a class of yours; give an instance of it: load_converted(path, module)."
        )
    import transformers

    made = getattr(transformers, str(name), None)
    if not (isinstance(made, type) and issubclass(made, transformers.PreTrainedModel)):
        raise FileError(f"{where} names the class {name!r}, which the transformers library does not have.")
    made_any: Any = made
    try:
        model, found = made_any.from_pretrained(
            where, use_safetensors=True, local_files_only=True, dtype="auto", output_loading_info=True
        )
    except Exception as error:  # the library raises whatever its parts raise
        raise FileError(f"{where} cannot be loaded as a {name}: {error}") from error
    wrong = [*found["missing_keys"], *found["unexpected_keys"], *(m[0] for m in found["mismatched_keys"])]
    if wrong:
        raise FileError(f"The weights in {where} do not fit the model ({', '.join(map(str, wrong[:3]))}).")
    loaded: nn.Module = model
    return loaded


def _heads(model: Any) -> tuple[dict[str, torch.Tensor], list[dict[str, Any]]]:
    """The numbers of the distinct heads, and for each replaced activation which one it uses."""
    tensors: dict[str, torch.Tensor] = {}
    known: dict[int, int] = {}
    placed = []
    for replaced in model.report.replaced:
        module = _at(model, replaced)
        index, head = known.setdefault(id(module.head), len(known)), module.head.numbers
        for name in NUMBERS:
            tensors[f"{index}.{name}"] = getattr(module.head, name).detach().clone()
        placed.append({"head": index, "formula": module.formula, "uniform": head.horner, "sizes": list(head.sizes),
                       "gate": isinstance(module, GateHead)})  # fmt: skip
    return tensors, placed


def _at(model: nn.Module, replaced: Replaced) -> Any:
    for path in (replaced.place, f"{replaced.place}_head"):
        try:
            return model.get_submodule(path)
        except AttributeError:
            continue
    raise InputError(f"The model has no head at {replaced.place} any more; convert it again.")


def _head(
    entry: dict[str, Any], numbers: dict[str, torch.Tensor], domain: tuple[float, float]
) -> ActivationHead | GateHead:
    tensors: dict[str, Any] = {name: numbers[f"{entry['head']}.{name}"] for name in NUMBERS}
    dtype = str(tensors["slopes"].dtype).removeprefix("torch.")
    head = Head.of(**tensors, horner=bool(entry["uniform"]), sizes=[int(n) for n in entry["sizes"]], dtype=dtype)
    return (GateHead if entry["gate"] else ActivationHead)(HeadModule(head), str(entry["formula"]), *domain)


def _weights(model: nn.Module) -> dict[str, torch.Tensor]:
    """All tensors but those of heads, each stored once."""
    seen: set[int] = set()
    found = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if ".head." in name or id(tensor) in seen:
            continue
        seen.add(id(tensor))
        found[name] = tensor.detach()
    return found


def _report(data: dict[str, Any]) -> ConversionReport:
    rows = [
        Replaced(**(row | {"domain": (float(row["domain"][0]), float(row["domain"][1]))})) for row in data["replaced"]
    ]
    return ConversionReport.from_dict(data, rows)
