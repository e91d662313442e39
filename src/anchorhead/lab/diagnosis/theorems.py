"""The paper's networks of ramps, examined.

Every token of every sequence is a query with its own u = w_i·x_i + t_i. It is held to the theorem's bound at
the default selection error, whatever β the network was built with: its own `bound`, which a diagnosis states, grows as
β falls, and is kept at every β. A query is looked at in the head whose anchors hold it. For u in the range
z = 1 - 2e/h, with e the distance from the nearest anchor (`theorems/anchors.py`).
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from anchorhead.digits import Down
from anchorhead.lab.diagnosis.examined import SELECTION_ERROR, Examined, Snap, derived
from anchorhead.model.network import Network
from anchorhead.theorems.anchors import beta_for
from anchorhead.theorems.precision import AnchorHead
from anchorhead.theorems.ramps import Ramps


class ExaminedRamps(Examined):
    """A ramp network on sequences (..., n, d)."""

    def __init__(self, model: Ramps, x: Tensor, dtype: torch.dtype, score_factor: float) -> None:
        super().__init__(x.detach().reshape(-1, *x.shape[-2:]), dtype, score_factor)
        self.model, self.intact, low, high = model, not model.edited, model.low, model.high
        self.points = len(model.anchors) + 2 * model.sentinels
        """Anchors on the range, with the two sentinels that carry its ends."""
        self.keys = model.keys
        self.per_row = model.heads * model.tokens * (model.keys + model.tokens)
        self.derived = beta_for(SELECTION_ERROR, model.losers, model.spacing)
        self.u = u = self._argument(self.x).reshape(-1)
        size = max(abs(low), abs(high)) * SELECTION_ERROR + model.resolution + (model.seam_cost or 0.0)
        self.bound = torch.full_like(u, size)
        own = model.known_bound()
        if own is not None and not math.isclose(own, size, rel_tol=1e-5):
            self.standard = "bound at the derived β"
        band = min(model.spacing, (high - low) / 20)
        self.ends = (u < low + band) | (u > high - band)
        self.seams = self._near_seams()
        self.logits = model.precision.logit_range
        off = (u.clamp(low, high) - low) / model.spacing
        z = 1 - 2 * (off - off.round()).abs()
        self.snap = Snap(z, (u >= low) & (u <= high), self.derived * model.spacing**2)

    def promised(self) -> float:
        own = self.model.known_bound()
        return super().promised() if own is None else own

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

    def allows(self, dtype: torch.dtype, factor: float = 1.0) -> bool:
        return replace(self.model.precision, beta=factor * self.model.beta).holds(dtype)

    def rescale(self, factor: float) -> str:
        return derived(factor, self.derived, "")

    def otherwise(self) -> tuple[str, str]:
        if not self.intact:
            return super().otherwise()
        model, middle = self.model, (self.model.low + self.model.high) / 2
        terms = (self.x.double() * model.weights.double()).abs().sum(-1) + (model.bias.double() - middle).abs()
        limit = model.precision.summand_limit(torch.float64, model.features)
        why = (
            f"and the stored numbers are those built: |w_1 x_1| + ... + |t - middle| is up to {float(terms.max()):.3g}"
            f" here, and up to {Down(limit):.3g} the rounding of that sum stays below the bound"
        )
        return why, "Keep the inputs within that, or build it with fewer anchors."

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
