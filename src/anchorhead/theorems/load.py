"""The network of a theorem back from its file: the numbers as they are stored, none derived (docs/format.md).

The construction is made again from what the record says of it, once the tensors have the sizes that this implies. Its
numbers are then replaced by the file's. Where those are the construction's, but for their last digits, which a cast
from a wider dtype may change, the theorem speaks for them; else the network counts as edited, whatever the file says.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from anchorhead.errors import AnchorheadError, FileError
from anchorhead.file.container import ModelFile, printable
from anchorhead.file.entries import count, flag, listed, number, one_of
from anchorhead.head.parameters import AsBuilt
from anchorhead.theorems.construction import Construction, file_name
from anchorhead.theorems.formulas import Formulas
from anchorhead.theorems.grid import Grid
from anchorhead.theorems.grid_network import GridNetwork, assembled
from anchorhead.theorems.multi_head import multi_head
from anchorhead.theorems.own_columns import OwnLookup, head_count
from anchorhead.theorems.precision import DTYPES
from anchorhead.theorems.ramps import Ramps
from anchorhead.theorems.single_head import single_head
from anchorhead.theorems.two_layer import tabulated

NARROW = ("bfloat16", "float16")
"""Stored as float32."""
UNITS = 4
"""How many units in the last place a number may be from the construction's."""
ROUNDED = 1024
"""How many units of the largest value those of formulas may be off."""
MOST = 1 << 26
"""Of anything that is counted: a file holds fewer numbers."""

Shapes = dict[str, tuple[int, ...]]


def load_theorem(found: ModelFile) -> Construction:
    """The network that a file of kind `theorem` holds."""
    record = found.record
    dtype = one_of(record, "dtype", [str(d).removeprefix("torch.") for d in DTYPES])
    theorem = one_of(record, "theorem", list(BUILD))
    built = flag(record, "built")
    try:
        model = BUILD[theorem](found, "float32" if dtype in NARROW else dtype, getattr(torch, dtype))
    except FileError:
        raise
    except AnchorheadError as error:
        raise FileError(f"The file's network cannot be built: {error}") from error
    _take(model, found, built=built)
    return model


def _ramps(found: ModelFile, stored: str, dtype: torch.dtype) -> Construction:
    record = found.record
    n, d, rows = (count(record, name, MOST) for name in ("tokens", "features", "output_features"))
    low, high = (number(record, name, negative=True) for name in ("low", "high"))
    single, beta = record["theorem"] == "single_head", number(record, "beta")
    causal, heads = flag(record, "causal"), 1 if single else count(record, "heads", MOST)
    anchors = len(found.numbers.get("rows", ()))
    shapes = _single_shapes(n, d, rows, anchors, causal) if single else _multi_shapes(n, d, rows, heads)
    _require(found, shapes, dict.fromkeys(shapes, stored) | {"anchors": "float64", "rows": "int32"})
    weights, bias = (torch.tensor(found.numbers[name], dtype=dtype) for name in ("weights", "bias"))
    choice: dict[str, Any] = {"output_features": rows, "output_row": found.integers("rows"), "beta": beta}
    if single:
        model: Ramps = single_head(weights.reshape(n, d), bias, low, high, anchors, causal=causal, **choice)
    else:
        model = multi_head(weights.reshape(n, d), bias, low, high, heads, **choice)
    places = torch.tensor(found.numbers["anchors"], dtype=torch.float64)
    as_built = near(places, model.anchors, dtype)
    model.anchors = places
    model.built() if as_built else model.forget()
    return model


def _single_shapes(n: int, d: int, rows: int, anchors: int, causal: bool) -> Shapes:
    width, more = 2 * d + rows + 2, n if causal else 0
    return {
        "stages.0.gain": (n, d),
        "stages.0.bias": (n, d),
        "stages.0.columns": (anchors if causal else anchors - n, d),
        "stages.0.rows": (anchors + more, width - d),
        "stages.1.query": (2, width),
        "stages.1.key": (2, width),
        "stages.1.value": (rows, width),
        **_target_shapes(n, d, anchors),
    }


def _multi_shapes(n: int, d: int, rows: int, heads: int) -> Shapes:
    return {
        "stages.0.gain": (n, d),
        "stages.0.rows": (n, n),
        "stages.1.query": (2, d + n),
        "stages.1.key": (heads, 2, d + n),
        "stages.1.value": (heads, rows, d + n),
        **_target_shapes(n, d, (n - 2) * heads),
    }


def _target_shapes(n: int, d: int, anchors: int) -> Shapes:
    return {"weights": (n, d), "bias": (n,), "anchors": (anchors,), "rows": (anchors,)}


def _grid_network(found: ModelFile, stored: str, dtype: torch.dtype) -> Construction:
    record, attention = found.record, found.record["theorem"] == "two_layer"
    n, d, levels, rows, p, shifts = (count(record, name, MOST) for name in (
        "tokens", "features", "levels", "output_features", "ramp_anchors", "shifts"))  # fmt: skip
    ends = (number(record, name, negative=True) for name in ("low", "high", "slope"))
    own = one_of(record, "columns", ["appended", "own"]) == "own"
    if own != (p == n) or p < n or p < 2 or n < (3 if own and attention else 1) or (shifts > 1 and not own):
        raise FileError(f"The file's {n} tokens, {p} anchors and {shifts} grids are not those of one network.")
    if shifts**2 > MOST or levels < 2 or n * d * math.log2(levels) > 26:
        raise FileError(f"The file's grid of {levels} levels in {n} x {d} coordinates has more points than any file.")
    grid = Grid(n, d, levels, *ends)
    grids = grid.shifted(shifts)
    shapes = _ramp_shapes(grids, p) | _lookup_shapes(grids, rows, own=own and attention, attention=attention)
    _require(found, shapes, dict.fromkeys(shapes, stored))
    texts = listed(record, "expressions") if "expressions" in record else None
    if texts is not None and (len(texts) != n * rows or not all(printable(text, 20_000) for text in texts)):
        raise FileError("The formulas in the file are not one for each output of its network.")
    f = None if texts is None else Formulas(texts, n, d)
    values = (
        torch.zeros(shifts, grids[0].points, n, rows, dtype=dtype) if f is None else tabulated(f, grid, grids, dtype)
    )
    return assembled(f, grid, grids, values, p, number(record, "beta"), number(record, "ramp_beta"),
                     attention=attention, own=own)  # fmt: skip


def _ramp_shapes(grids: list[Grid], p: int) -> Shapes:
    n, d, edges = grids[0].tokens, grids[0].features, grids[0].levels - 1
    return {
        "stages.0.columns": (p - n, d),
        "stages.0.rows": (p, 4),
        "stages.1.query": (len(grids) * d * edges, 2, d + 4),
        "stages.1.key": (2, d + 4),
        "stages.1.value": (d + 4,),
    }


def _lookup_shapes(grids: list[Grid], rows: int, *, own: bool, attention: bool) -> Shapes:
    grid, entries = grids[0], grids[0].tokens * rows
    if not own:
        second: Shapes = {"stages.3.sharpness": ()}
        if attention:
            second = {f"stages.3.second_{name}": (2 + entries,) for name in ("query", "key")}
            second |= {"stages.3.second_value": (entries, 2 + entries)}
        return {"stages.3.values": (grid.points, entries), **second}
    width, heads = len(grids) + grid.tokens, len(grids) * head_count(grid)
    return {
        "stages.3.digits": (len(grids), len(grids) * grid.coordinates, grid.levels),
        "stages.3.second_query": (heads, 2, width),
        "stages.3.second_key": (heads, 2, width),
        "stages.3.second_value": (heads, entries, width),
        "stages.3.parts_weight": (grid.tokens, rows, entries),
        "stages.3.parts_bias": (grid.tokens, rows),
    }


def _require(found: ModelFile, shapes: Shapes, dtypes: dict[str, str]) -> None:
    """The file holds these tensors, of these sizes: known before anything is built."""
    found.require(dtypes)
    for name, shape in shapes.items():
        if len(found.numbers[name]) != math.prod(shape):
            raise FileError(
                f"The tensor {name!r} in the file has {len(found.numbers[name])} numbers, and its network {shape}."
            )


def _take(model: Construction, found: ModelFile, *, built: bool) -> None:
    """Gives a network the file's numbers; built: whether the file says that they are the construction's."""
    state, edited = model.state_dict(), model.edited
    taken = {}
    for name, value in state.items():
        exact = torch.tensor(found.numbers[file_name(name)], dtype=torch.float64).reshape(value.shape)
        taken[name] = exact.to(value.dtype)
        if not torch.equal(taken[name].double(), exact):
            raise FileError(f"The tensor {file_name(name)!r} in the file holds numbers that {value.dtype} does not.")
    fixed = {name: value for name, value in state.items() if not _given(model, name)}
    apart = {name for name, value in fixed.items() if not near(taken[name], value, model.dtype)}
    lookup = model.stages[-1]
    meant = model.lookup.values.clone() if isinstance(model, GridNetwork) and model.f is not None else None
    model.load_state_dict(taken)
    if isinstance(lookup, OwnLookup) and not lookup.arranged():
        apart.add("stages.3.second.value")
    if isinstance(model, GridNetwork) and meant is not None and not _tells(model.lookup.values, meant):
        apart.add("the values of f")
    if isinstance(lookup, AsBuilt):
        lookup.forget() if any(name.startswith("stages.3.") for name in apart) else lookup.built()
    model.forget() if apart or not built or edited else model.built()


def _given(model: Construction, name: str) -> bool:
    """Whether numbers are values of f, which no construction fixes."""
    own = isinstance(model.stages[-1], OwnLookup)
    return name in (("stages.3.second.value", "stages.3.parts.bias") if own else ("stages.3.values",))


def _tells(values: Tensor, meant: Tensor) -> bool:
    """Whether values are those of the formulas, which other processors may round otherwise."""
    return bool((values - meant).abs().max() <= ROUNDED * torch.finfo(meant.dtype).eps * (1 + meant.abs().max()))


def near(a: Tensor, b: Tensor, dtype: torch.dtype) -> bool:
    """Whether numbers are the same but for their last digits; zeros are zeros."""
    return bool(((a - b).abs() <= UNITS * torch.finfo(dtype).eps * b.abs()).all())


BUILD = {
    "single_head": _ramps,
    "multi_head": _ramps,
    "two_layer": _grid_network,
    "attention_then_softmax": _grid_network,
}
