"""The paper's networks, examined.

*Ramps.* Every token of every sequence is a query with its own u = w_i·x_i + t_i. It is held to the theorem's bound at
the default selection error, whatever β the network was built with: its own `bound`, which a diagnosis states, grows as
β falls, and is kept at every β. A query is looked at in the head whose anchors hold it. For u in the range
z = 1 - 2e/h, with e the distance from the nearest anchor (`theorems/anchors.py`).

*Universal networks* (Theorem 3.3) look up f at the centre of x's cell, and between two cells on the slope between them.
How fast f varies is not known, so what they are held to is the look-up itself: the output lies between the values of
the cells that x touches, but for the default selection error's share of the spread of all values, and rounding.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch
from torch import Tensor, nn

from anchorhead.errors import StructureError
from anchorhead.lab.diagnosis.compiled import point
from anchorhead.lab.diagnosis.examined import SELECTION_ERROR, Examined, Snap, derived
from anchorhead.model.attention import LiteralAttention
from anchorhead.model.compiled import CompiledModel
from anchorhead.model.network import Network
from anchorhead.theorems.anchors import beta_for
from anchorhead.theorems.grid import WIDENED, saturation
from anchorhead.theorems.grid_network import GridNetwork
from anchorhead.theorems.lookup import SoftmaxReadOut
from anchorhead.theorems.precision import AnchorHead
from anchorhead.theorems.ramps import Ramps


class ExaminedRamps(Examined):
    """A ramp network on sequences (..., n, d)."""

    def __init__(self, model: Ramps, x: Tensor, dtype: torch.dtype, score_factor: float) -> None:
        super().__init__(x.detach().reshape(-1, *x.shape[-2:]), dtype, score_factor)
        self.model, low, high = model, model.low, model.high
        self.points = len(model.anchors) + 2 * model.sentinels
        """Anchors on the range, with the two sentinels that carry its ends."""
        self.keys = model.keys
        self.per_row = model.heads * model.tokens * (model.keys + model.tokens)
        self.derived = beta_for(SELECTION_ERROR, model.losers, model.spacing)
        self.u = u = self._argument(self.x).reshape(-1)
        size = max(abs(low), abs(high)) * SELECTION_ERROR + model.resolution + (model.seam_cost or 0.0)
        self.bound = torch.full_like(u, size)
        if not model.edited and not math.isclose(model.bound, size, rel_tol=1e-5):
            self.standard = "bound at the derived β"
        band = min(model.spacing, (high - low) / 20)
        self.ends = (u < low + band) | (u > high - band)
        self.seams = self._near_seams()
        self.logits = model.precision.logit_range
        off = (u.clamp(low, high) - low) / model.spacing
        z = 1 - 2 * (off - off.round()).abs()
        self.snap = Snap(z, (u >= low) & (u <= high), self.derived * model.spacing**2)

    def promised(self) -> float:
        return super().promised() if self.model.edited else self.model.bound

    def _argument(self, x: Tensor) -> Tensor:
        """u, (rows, n), in float64."""
        return (x.double() * self.model.weights.double()).sum(-1) + self.model.bias.double()

    def _nearest(self, u: Tensor) -> Tensor:
        """The number of the nearest anchor, sentinels at the ends of the range included."""
        steps = (u.clamp(self.model.low, self.model.high) - self.model.low) / self.model.spacing
        return steps.round().long().clamp(0, self.points - 1)

    def _holder(self, u: Tensor) -> Tensor:
        """The head whose anchors hold u."""
        if self.model.heads == 1:
            return torch.zeros_like(u, dtype=torch.long)
        inner = (self._nearest(u) - 1).clamp(0, self.points - 3)
        return (inner // (self.model.tokens - 2)).clamp(max=self.model.heads - 1)

    def _near_seams(self) -> Tensor:
        """Queries within one spacing of the two anchors at which one head ends and the next one begins."""
        if self.model.heads == 1:
            return torch.zeros_like(self.u, dtype=torch.bool)
        per = self.model.tokens - 2
        steps = (self.u - self.model.low) / self.model.spacing - 0.5
        index = (steps / per).round()
        return (index >= 1) & (index <= self.model.heads - 1) & ((steps - per * index).abs() <= 1.5)

    def _error(self, out: Tensor, u: Tensor) -> Tensor:
        """The largest of the output rows' distances from clip(u, low, high) in row G(nearest)."""
        model = self.model
        rows = model.rows[(self._nearest(u) - model.sentinels).clamp(0, len(model.anchors) - 1)]
        target = out.new_zeros(out.shape, dtype=torch.float64)
        target.scatter_(-1, rows.unsqueeze(-1), u.clamp(model.low, model.high).unsqueeze(-1))
        return (out.double() - target).abs().amax(-1)

    def literal(self) -> Network:
        return self.model.literal()

    def look(self, literal: Network, x: Tensor) -> tuple[Tensor, Tensor]:
        z = x
        for stage in literal.stages[:-1]:
            z = stage(z)
        out, weights = literal.stages[-1](z, return_weights=True)
        u = self._argument(x)
        holder = self._holder(u)[:, None, :, None].expand(-1, 1, -1, weights.shape[-1])
        return self._error(out, u), weights.gather(1, holder).squeeze(1)

    def where(self, i: int) -> str:
        if not self.model.sentinels:
            return self.name
        return f"worst in head {int(self._holder(self.u[i])) + 1} of {self.model.heads}"

    def place(self, i: int) -> str:
        return f"token {i % self.model.tokens}, u = {self.u[i].item():.4g}"

    def allows(self, dtype: torch.dtype) -> bool:
        return self.model.precision.holds(dtype)

    def rescale(self, factor: float) -> str:
        return derived(factor, self.derived, "")

    def smaller(self, dtype: torch.dtype) -> str:
        """The most anchors, in halvings, that a dtype holds at the derived β."""
        model, count, many = self.model, len(self.model.anchors), self.model.sentinels
        while count > 3:
            count //= 2
            spacing = (model.high - model.low) / (count + 2 * many - 1)
            beta = beta_for(SELECTION_ERROR, 2 * count if many else count - 1, spacing)
            resolution = (model.high - model.low) / count
            head = AnchorHead(model.low, model.high, spacing, beta, resolution, model.precision.offset)
            if math.isfinite(beta) and head.holds(dtype):
                what = f"{count} anchors in all heads" if many else f"{count} anchors"
                return f"{str(dtype).removeprefix('torch.')} holds {what} on this range."
        return ""


class ExaminedLookup(Examined):
    """`two_layer` or `attention_then_softmax` on inputs (..., n, d)."""

    name = "the look-up"

    def __init__(self, model: GridNetwork, x: Tensor, dtype: torch.dtype, score_factor: float) -> None:
        super().__init__(x.detach().reshape(-1, *x.shape[-2:]), dtype, score_factor)
        self.model, self.grid = model, model.grid
        self.values, p = model.lookup.values.detach().double(), model.ramp_anchors
        first, last = self._cells(self.x)
        self.derived = self.grid.beta(SELECTION_ERROR, saturation(p, math.log((p - 1) / SELECTION_ERROR)))
        spread = (self.values.amax(0) - self.values.amin(0)).max().item()
        promised = SELECTION_ERROR * spread + model.rounding
        self.bound = torch.full((len(self.x),), promised, dtype=torch.float64)
        self.ends, self.seams = torch.zeros_like(self.bound, dtype=torch.bool), (first != last).any(-1)
        self.logits = model.resources.logit_range
        self.keys, self.per_row = self.grid.points, max(self.grid.points, p)
        self.snap = Snap(torch.ones_like(self.bound), (first == last).all(-1), self.derived)

    def _cells(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The first and last cell that every coordinate touches, (rows, nd)."""
        grid = self.grid
        flat = x.reshape(len(x), -1).double()
        reach = WIDENED * grid.slope * grid.cell / 2
        places = ((flat + side * reach - grid.low) / grid.cell for side in (-1, 1))
        first, last = (c.floor().long().clamp(0, grid.levels - 1) for c in places)
        return first, last

    def _error(self, out: Tensor, x: Tensor) -> Tensor:
        """How far the output is from lying between the values of the cells that x touches."""
        first, last = self._cells(x)
        digits = self.grid.levels ** torch.arange(self.grid.coordinates - 1, -1, -1)
        split = (first != last).any(0)
        choices = [(0, 1) if both else (0,) for both in split.tolist()]
        least = most = self.values[(first * digits).sum(-1)]
        for choice in itertools.islice(itertools.product(*choices), 1 << 12):
            found = self.values[(torch.where(torch.tensor(choice) == 1, last, first) * digits).sum(-1)]
            least, most = torch.minimum(least, found), torch.maximum(most, found)
        out = out.double().reshape(len(x), -1)
        return torch.where(out.isnan(), out, (least - out).clamp(min=0).maximum(out - most)).amax(-1)

    def literal(self) -> Network:
        return self.model.literal()

    def look(self, literal: Network, x: Tensor) -> tuple[Tensor, Tensor]:
        z, weights = x, None
        for stage in literal.stages:
            weights = _weights(stage, z, weights)
            z = stage(z)
        if weights is None:
            raise StructureError("A network that looks values up has no softmax, so that nothing can be seen of it.")
        return self._error(z, x), weights

    def place(self, i: int) -> str:
        return point(self.x[i].flatten())

    def rescale(self, factor: float) -> str:
        return derived(factor, self.derived, "of the look-up ")

    def smaller(self, dtype: torch.dtype) -> str:
        return "Or take fewer levels." if not self.grid.resolves(dtype) else ""

    @staticmethod
    def against(part: Any) -> str:
        return "the values of the cells around each input, not with the function between them"


class ExaminedTwoLayer(ExaminedLookup):
    """The same network behind a map of a compiled model's box to the unit cube."""

    def __init__(self, model: CompiledModel, x: Tensor, dtype: torch.dtype, score_factor: float) -> None:
        core: Any = model.network
        super().__init__(core.network, core.scaled(x), dtype, score_factor)


def _weights(stage: nn.Module, z: Tensor, before: Tensor | None) -> Tensor | None:
    """The weights of the last softmax so far."""
    if isinstance(stage, LiteralAttention):
        return stage.weights(z)[:, 0, 0]
    return (z * stage.beta).softmax(-1) if isinstance(stage, SoftmaxReadOut) else before
