"""A file back to whatever it holds: a compiled model, or the network of a theorem. No number is derived."""

from __future__ import annotations

import os

import torch

from anchorhead.compiler.load import LOADED, compiled
from anchorhead.dtypes import NAMES, UNIT
from anchorhead.errors import AnchorheadError, FileError, InputError, VerificationError
from anchorhead.file.checker import verify_model
from anchorhead.file.container import ModelFile, printable, read
from anchorhead.file.entries import count, flag, listed, number, one_of, real
from anchorhead.in_context.lattice import Lattice
from anchorhead.in_context.universal import Universal
from anchorhead.model.compiled import CompiledModel
from anchorhead.model.outside import Watched, check_policy
from anchorhead.theorems.construction import Construction
from anchorhead.theorems.load import MOST, load_theorem, near

TENSORS = (
    "middle",
    *(f"{head}_{name}" for head in ("cells", "measures") for name in ("slopes", "levels", "constants")),
)


def load(
    path: str | os.PathLike[str], *, outside: str = "warn", verify: bool = False
) -> CompiledModel | Construction | Universal:
    """A saved model. The file's form and digest are checked; verify=True checks what it claims, as `ah.verify` does.

    outside: what an input outside the domain of a compiled model, or the box of a theorem's grid, does: "warn", "error"
        or "ignore", as for `ah.compile`.
    verify: of a compiled model, whether its certificate is the file's claim, or what the checker proved of the file: a
        claim that does not hold is a `VerificationError` then. So is a theorem's network whose numbers are not those of
        the construction, which is made again from its sizes; without verify it counts as edited.

    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "tanh.safetensors"
    >>> ah.compile("tanh(x)").save(path)
    >>> ah.load(path, verify=True).certificate.level
    'proved'
    """
    check_policy(outside)
    if type(verify) is not bool:
        raise InputError(f"verify={verify!r:.40} must be True or False.")
    found = read(path)
    if found.record["kind"] != "theorem":
        checked = verify_model(found, path, None) if verify and found.record["kind"] in LOADED else None
        return compiled(found, path, outside, checked)
    model = _universal(found) if found.record.get("theorem") == "universal" else load_theorem(found)
    if verify and (model.certificate.level == "unproved" if isinstance(model, Universal) else model.edited):
        raise VerificationError(
            f"The numbers in {path} are not those of its theorem's construction, made again from its sizes: no bound "
            "is known of its network. ah.load(path) without verify=True gives the network as it is."
        )
    if isinstance(model, Watched):
        model.outside = outside
    return model


def _universal(found: ModelFile) -> Universal:
    record = found.record
    dtype, built = one_of(record, "dtype", NAMES), flag(record, "built")
    found.require(dict.fromkeys(TENSORS, dtype))
    names, values = listed(record, "variables"), found.numbers["measures_constants"]
    if not (names and len(set(map(str, names))) == len(names) and all(printable(name) for name in names)):
        raise FileError("The file does not name the coordinates of a token.")
    try:
        lattice = _lattice(found, len(names))
        if not values or len(values) % lattice.keys:
            raise FileError(f"The file has {len(values)} values for {lattice.keys} lattice measures.")
        told = number(record, "lipschitz"), count(record, "examples", 2**40)
        rows = torch.tensor(values, dtype=torch.float64).reshape(lattice.keys, -1)
        model = Universal(None, tuple(names), lattice, rows, *told, getattr(torch, dtype), UNIT[dtype])
    except FileError:
        raise
    except AnchorheadError as error:
        raise FileError(f"The file's network cannot be built: {error}") from error
    _take(model, found, built=built)
    return model


def _lattice(found: ModelFile, coordinates: int) -> Lattice:
    """The lattice of the record, of the sizes that the tensors have."""
    record = found.record
    pairs, cells = listed(record, "ranges"), listed(record, "cells")
    if len(pairs) != coordinates or not all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
        raise FileError("The file does not have a range for each coordinate of a token.")
    ends = [[real(end, "An end of a range in the file", negative=True) for end in pair] for pair in pairs]
    ranges = tuple((low, high) for low, high in ends)
    if not all(low < high for low, high in ranges):
        raise FileError("A range in the file is empty.")
    sizes = [count({"number of cells": each}, "number of cells", MOST) for each in cells]
    lattice = Lattice.read(ranges, sizes, count(record, "masses", MOST))
    nodes, keys = lattice.nodes, lattice.keys
    wanted = (coordinates, coordinates * nodes, nodes, nodes * (nodes - 1), (nodes - 1) * keys, keys)
    if [len(found.numbers[name]) for name in TENSORS[:-1]] != list(wanted):
        raise FileError(f"The tensors in the file are not those of {nodes} nodes and {keys:,} lattice measures.")
    return lattice


def _take(model: Universal, found: ModelFile, *, built: bool) -> None:
    """Gives a network the file's numbers; built: whether the file says that they are the construction's."""
    state = model.state_dict()
    taken = {
        name: torch.tensor(found.numbers[name.replace(".", "_")], dtype=value.dtype).reshape(value.shape)
        for name, value in state.items()
    }
    same = built and all(near(taken[name], value, value.dtype) for name, value in state.items())
    claimed = model.certificate
    model.load_state_dict(taken)
    model.claim(claimed if same else claimed.unproved())
