"""Keys on a grid as a sight: compiled tensor grids, and the paper's universal networks (Theorem 3.3).

*A compiled grid* is one softmax over p_1·…·p_m keys, promised to keep its certificate. Where its target cannot be
looked into, its own numbers in float64 stand for it: a dtype or a β can be judged so, an edit cannot.

*The paper's networks* look up f at the centre of x's cell, and between two cells on the slope between them. How fast f
varies is not known, so what they are held to is the look-up itself: the output lies between the values of the cells
that x touches, but for the default selection error's share of the spread of all values, and rounding.
"""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor, nn

from anchorhead.errors import InputError, StructureError
from anchorhead.lab.diagnosis.head_sight import CHUNK, SELECTION_ERROR, coarser, solved_for
from anchorhead.lab.diagnosis.recast import recast
from anchorhead.lab.diagnosis.sight import Run, Sight, Snap, joined, observe
from anchorhead.model.attention import LiteralAttention
from anchorhead.model.compiled import CompiledModel
from anchorhead.model.grid_core import GridCore
from anchorhead.model.network import Network
from anchorhead.theorems.grid import WIDENED, saturation
from anchorhead.theorems.lookup import SoftmaxReadOut
from anchorhead.theorems.two_layer import GridNetwork


def grid_sight(model: CompiledModel, part: GridCore, x: Tensor, dtype: torch.dtype, beta: float) -> Sight:
    """What is to be seen of a compiled grid on inputs (..., *input_shape)."""
    x = x.detach().reshape(-1, *model.input_shape)
    flat = x.reshape(len(x), -1)
    low, high = torch.tensor(model.claimed.domain, dtype=torch.float64).T
    edge = torch.minimum(flat.double() - low, high - flat.double()) / (high - low)
    own = recast(part.grid.literal(), torch.float64, 1.0)

    def target(points: Tensor) -> Tensor:
        shaped = points.double().reshape(-1, *model.input_shape)
        try:
            return model.exact(shaped).reshape(len(points), -1)
        except InputError:
            return own(points.double())

    def run(kind: torch.dtype, scale: float, stride: int) -> Run:
        layer = recast(part.grid.literal(), kind, scale)
        parts = flat[::stride].to(kind).split(max(1, CHUNK // part.grid.keys))
        return joined([observe((layer(p).double() - target(p)).abs().amax(-1), layer.weights(p)) for p in parts])

    return Sight(
        where=lambda i: "the grid of keys",
        run=run,
        rows=len(x),
        dtype=dtype,
        beta=beta,
        bound=torch.full((len(x),), model.claimed.bound * (1 + 2**-40), dtype=torch.float64),
        ends=(edge <= 1 / 20).any(-1),
        seams=torch.zeros(len(x), dtype=torch.bool),
        logits=model.resources.logit_range,
        keys=part.grid.keys,
        place=lambda i: _point(flat[i]),
        rescale=lambda factor: solved_for(factor, beta),
        smaller=coarser,
    )


class LookupView:
    """One of the paper's universal networks, and the inputs (rows, n, d) that it is examined on."""

    def __init__(self, model: GridNetwork, x: Tensor) -> None:
        self.model, self.grid = model, model.grid
        self.x = x.detach().reshape(-1, *x.shape[-2:])
        self.values = model.lookup.values.detach().double()

    def cells(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The first and last cell that every coordinate touches, (rows, nd)."""
        grid = self.grid
        flat = x.reshape(len(x), -1).double()
        reach = WIDENED * grid.slope * grid.cell / 2
        places = ((flat + side * reach - grid.low) / grid.cell for side in (-1, 1))
        first, last = (c.floor().long().clamp(0, grid.levels - 1) for c in places)
        return first, last

    def error(self, out: Tensor, x: Tensor) -> Tensor:
        """How far the output is from lying between the values of the cells that x touches."""
        first, last = self.cells(x)
        digits = self.grid.levels ** torch.arange(self.grid.coordinates - 1, -1, -1)
        split = (first != last).any(0)
        choices = [(0, 1) if both else (0,) for both in split.tolist()]
        least = most = self.values[(first * digits).sum(-1)]
        for choice in itertools.islice(itertools.product(*choices), 1 << 12):
            found = self.values[(torch.where(torch.tensor(choice) == 1, last, first) * digits).sum(-1)]
            least, most = torch.minimum(least, found), torch.maximum(most, found)
        out = out.double().reshape(len(x), -1)
        return torch.where(out.isnan(), out, (least - out).clamp(min=0).maximum(out - most)).amax(-1)

    def run(self, dtype: torch.dtype, scale: float, stride: int) -> Run:
        """Every stride-th input, in a dtype and with the scores of both stages times a factor."""
        literal: Network = recast(self.model.literal(), dtype, scale)
        parts = self.x[::stride].to(dtype).split(max(1, CHUNK // max(self.grid.points, self.model.ramp_anchors)))
        return joined([self._part(literal, part) for part in parts])

    def _part(self, literal: Network, x: Tensor) -> Run:
        z, weights = x, None
        for stage in literal.stages:
            weights = _weights(stage, z, weights)
            z = stage(z)
        if weights is None:
            raise StructureError("A network that looks values up has no softmax, so that nothing can be seen of it.")
        return observe(self.error(z, x), weights)


def _weights(stage: nn.Module, z: Tensor, before: Tensor | None) -> Tensor | None:
    """The weights of the last softmax so far."""
    if isinstance(stage, LiteralAttention):
        return stage.weights(z)[:, 0, 0]
    return (z * stage.beta).softmax(-1) if isinstance(stage, SoftmaxReadOut) else before


def lookup_sight(model: GridNetwork, x: Tensor, dtype: torch.dtype, beta: float) -> Sight:
    """What is to be seen of `two_layer` or `attention_then_softmax` on inputs (..., n, d)."""
    view, grid = LookupView(model, x), model.grid
    first, last = view.cells(view.x)
    p = model.ramp_anchors
    derived = grid.beta(SELECTION_ERROR, saturation(p, math.log((p - 1) / SELECTION_ERROR)))
    spread = (view.values.amax(0) - view.values.amin(0)).max().item()
    unit = torch.finfo(model.dtype).eps / 2
    rounding = 8 * (grid.coordinates + 1) * unit * view.values.abs().max().item()
    flat = view.x.reshape(len(view.x), -1)
    nowhere = torch.zeros(len(flat), dtype=torch.bool)

    def rescale(factor: float) -> str:
        return (
            f"Multiply the scores by {factor:.6g}: the β of the look-up for a selection error of "
            f"{SELECTION_ERROR:g} is {derived:.6g}, which is derived where beta= is left out."
        )

    return Sight(
        where=lambda i: "the look-up",
        run=view.run,
        rows=len(view.x),
        dtype=dtype,
        beta=beta,
        bound=torch.full((len(flat),), SELECTION_ERROR * spread + rounding, dtype=torch.float64),
        ends=nowhere,
        seams=(first != last).any(-1),
        logits=max(model.resources.logit_range, model.ramp_beta * grid.levels / grid.slope),
        keys=grid.points,
        place=lambda i: _point(flat[i]),
        rescale=rescale,
        smaller=lambda narrow: "Or take fewer levels." if not grid.resolves(narrow) else "",
        snap=Snap(torch.ones(len(flat), dtype=torch.float64), (first == last).all(-1), derived, derived),
    )


def _point(x: Tensor) -> str:
    shown = ", ".join(f"{v:.4g}" for v in x[:4].tolist()) + (", ..." if len(x) > 4 else "")
    return f"x = ({shown})"
