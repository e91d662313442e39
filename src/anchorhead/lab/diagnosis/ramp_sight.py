"""The two ramp theorems as a sight: every token of every sequence is a query with its own u = w_i·x_i + t_i.

Promised is the theorem's bound at the default selection error, whatever β the network was built with (its
own `bound` grows as β falls, and is kept at every β). A query is looked at in the head whose
anchors hold it. For u in the range z = 1 - 2e/h, with e the distance from the nearest anchor (`theorems/anchors.py`).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from anchorhead.lab.diagnosis.recast import recast
from anchorhead.lab.diagnosis.sight import Run, Sight, Snap, joined, observe
from anchorhead.model.network import Network
from anchorhead.theorems.anchors import beta_for
from anchorhead.theorems.multi_head import MultiHead
from anchorhead.theorems.precision import AnchorHead
from anchorhead.theorems.ramps import Ramps

SELECTION_ERROR = 1e-6
"""The default of `single_head` and `multi_head`."""
CHUNK = 1 << 22
"""Attention weights at a time."""


class RampView:
    """A ramp network and the sequences (rows, n, d) that it is examined on."""

    def __init__(self, model: Ramps, x: Tensor) -> None:
        self.model = model
        self.x = x.detach().reshape(-1, *x.shape[-2:])
        self.multi = isinstance(model, MultiHead)
        self.points = len(model.anchors) + 2 * self.multi
        """Anchors on the range, with the two sentinels that carry its ends."""
        self.spacing = (model.high - model.low) / (self.points - 1)
        self.heads = model.heads if isinstance(model, MultiHead) else 1
        self.keys = model.tokens if self.multi else len(model.anchors)

    def u(self, x: Tensor) -> Tensor:
        """(rows, n), in float64."""
        return (x.double() * self.model.weights.double()).sum(-1) + self.model.bias.double()

    def nearest(self, u: Tensor) -> Tensor:
        """The number of the nearest anchor, sentinels at the ends of the range included."""
        steps = (u.clamp(self.model.low, self.model.high) - self.model.low) / self.spacing
        return steps.round().long().clamp(0, self.points - 1)

    def holder(self, u: Tensor) -> Tensor:
        """The head whose anchors hold u."""
        if not self.multi:
            return torch.zeros_like(u, dtype=torch.long)
        return ((self.nearest(u) - 1).clamp(0, self.points - 3) // (self.model.tokens - 2)).clamp(max=self.heads - 1)

    def error(self, out: Tensor, x: Tensor) -> Tensor:
        """The largest of the output rows' distances from clip(u, low, high) in row G(nearest)."""
        model, u = self.model, self.u(x)
        index = self.nearest(u) - int(self.multi)
        rows = model.rows[index.clamp(0, len(model.anchors) - 1)]
        target = out.new_zeros(out.shape, dtype=torch.float64)
        target.scatter_(-1, rows.unsqueeze(-1), u.clamp(model.low, model.high).unsqueeze(-1))
        return (out.double() - target).abs().amax(-1)

    def run(self, dtype: torch.dtype, scale: float, stride: int) -> Run:
        """Every stride-th sequence, in a dtype and with scores times a factor."""
        literal: Network = recast(self.model.literal(), dtype, scale)
        x = self.x[::stride].to(dtype)
        per = max(1, CHUNK // (self.heads * self.model.tokens * (self.keys + self.model.tokens)))
        return joined([self._part(literal, part) for part in x.split(per)])

    def _part(self, literal: Network, x: Tensor) -> Run:
        lift, layer = literal.stages[:-1], literal.stages[-1]
        z = x
        for stage in lift:
            z = stage(z)
        out, weights = layer(z, return_weights=True)
        holder = self.holder(self.u(x))[:, None, :, None].expand(-1, 1, -1, weights.shape[-1])
        return observe(self.error(out, x), weights.gather(1, holder).squeeze(1))


def ramp_sight(model: Ramps, x: Tensor, dtype: torch.dtype, beta: float) -> Sight:
    """What is to be seen of a ramp network on sequences (..., n, d)."""
    view = RampView(model, x)
    u = view.u(view.x).reshape(-1)
    losers = 2 * view.heads * (model.tokens - 1) if view.multi else view.points - 1
    derived = beta_for(SELECTION_ERROR, losers, view.spacing)
    band = min(view.spacing, (model.high - model.low) / 20)
    off = (u.clamp(model.low, model.high) - model.low) / view.spacing
    z = 1 - 2 * (off - off.round()).abs()
    snap = Snap(z, (u >= model.low) & (u <= model.high), derived * view.spacing**2, derived)

    def rescale(factor: float) -> str:
        return (
            f"Multiply the scores by {factor:.6g}: the β for a selection error of {SELECTION_ERROR:g} is "
            f"{derived:.6g}, which is derived where beta= is left out."
        )

    return Sight(
        where=lambda i: _head_name(view, u[i]),
        run=view.run,
        rows=len(view.x),
        dtype=dtype,
        beta=beta,
        allows=model.precision.holds,
        bound=torch.full_like(u, promised(model)),
        ends=(u < model.low + band) | (u > model.high - band),
        seams=_near_seams(view, u),
        logits=model.precision.logit_range,
        keys=view.keys,
        place=lambda i: f"token {i % model.tokens}, u = {u[i].item():.4g}",
        rescale=rescale,
        smaller=lambda narrow: _fewer(view, narrow),
        snap=snap,
    )


def promised(model: Ramps) -> float:
    """The theorem's bound at the default selection error; see `Ramps.bound` for the last term."""
    size = model.anchors.abs()
    largest = torch.maximum(size[1:], size[:-1])[model.rows[1:] != model.rows[:-1]]
    seams = largest.max().item() / 2 if len(largest) else 0.0
    return max(abs(model.low), abs(model.high)) * SELECTION_ERROR + model.resolution + seams


def _head_name(view: RampView, u: Tensor) -> str:
    return f"worst in head {int(view.holder(u)) + 1} of {view.heads}" if view.multi else "the head"


def _near_seams(view: RampView, u: Tensor) -> Tensor:
    """Queries within one spacing of the two anchors at which one head ends and the next one begins."""
    if view.heads == 1:
        return torch.zeros_like(u, dtype=torch.bool)
    per = view.model.tokens - 2
    steps = (u - view.model.low) / view.spacing - 0.5
    index = (steps / per).round()
    return (index >= 1) & (index <= view.heads - 1) & ((steps - per * index).abs() <= 1.5)


def _fewer(view: RampView, dtype: torch.dtype) -> str:
    """The most anchors, in halvings, that a dtype holds at the derived β."""
    model, count = view.model, len(view.model.anchors)
    offset = model.precision.offset
    while count > 3:
        count //= 2
        spacing = (model.high - model.low) / (count + (1 if view.multi else -1))
        beta = beta_for(SELECTION_ERROR, 2 * count if view.multi else count - 1, spacing)
        resolution = (model.high - model.low) / count
        if math.isfinite(beta) and AnchorHead(model.low, model.high, spacing, beta, resolution, offset).holds(dtype):
            what = f"{count} anchors" if not view.multi else f"{count} anchors in all heads"
            return f"{str(dtype).removeprefix('torch.')} holds {what} on this range."
    return ""
