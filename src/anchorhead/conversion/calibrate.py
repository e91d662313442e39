"""Ranges of activations' arguments on given inputs: every activation is replaced, in a copy, by one that watches."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from anchorhead.conversion.inputs import tried
from anchorhead.conversion.place_heads import put
from anchorhead.conversion.sites import Site, find_sites
from anchorhead.errors import InputError
from anchorhead.expression.parse import parse
from anchorhead.expression.tensors import evaluate

Range = tuple[float, float]
ROOM = 1.5
"""How much wider than what calibration has seen a range is made."""


class Watch(nn.Module):
    """phi(u), or phi(u)·v, computed plainly; remembers the smallest and the largest u."""

    def __init__(self, formula: str) -> None:
        super().__init__()
        self.expression = parse(formula, ("x",))
        self.seen: Range | None = None
        self.in_place = False

    def forward(self, u: Tensor, v: Tensor | None = None) -> Tensor:
        if u.numel():
            low, high = (float(e) for e in torch.aminmax(u.detach().float()))
            self.seen = (low, high) if self.seen is None else (min(low, self.seen[0]), max(high, self.seen[1]))
        found: Any = evaluate(self.expression, {"x": u})
        value: Tensor = (found[0] if isinstance(found, list | tuple) else found).to(u.dtype)
        if self.in_place:
            return u.copy_(value)
        return value if v is None else value * v


def calibrated(model: nn.Module, inputs: Iterable[Any]) -> dict[str, Range]:
    """The intervals that arguments take on the inputs, by place, with room on both sides."""
    twin = copy.deepcopy(model)
    sites, _, graphs = find_sites(twin)
    watches: list[tuple[Site, nn.Module]] = [(site, Watch(site.formula)) for site in sites]
    twin = put(twin, watches, graphs)
    given = list(inputs)
    with torch.no_grad():
        for item in given:
            tried(twin, item, "calibration input")
    if not given:
        raise InputError("calibration holds no inputs; give some, or leave it out.")
    return {site.place: _wider(watch.seen) for site, watch in watches if isinstance(watch, Watch) and watch.seen}


def _wider(pair: Range) -> Range:
    reach = ROOM * max(abs(pair[0]), abs(pair[1]), 1e-3)
    return -reach, reach
