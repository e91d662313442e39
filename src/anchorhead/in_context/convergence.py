"""A run beside the algorithm it stands for: how far apart they are, how far they may be, and how far is left to go."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from anchorhead.digits import Up
from anchorhead.display import BLUE, GREY, RED, page, sentence, sketch
from anchorhead.in_context.bounds import largest_curvature, mean_weights
from anchorhead.in_context.certificate import proved_for
from anchorhead.in_context.network import in_double
from anchorhead.in_context.reading import Exact

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from anchorhead.in_context.gradient_descent import GradientDescent

ROUNDS, ROUND = 60, 200
"""Of plain steps."""
MOVING = 1e-6
"""A run that moves by more in a round, relatively, is not at its end."""
DRAWN = {"measured": "measured", "proved": "proved", "to_optimum": "to the optimum", "gradient_norm": "gradient"}
"""What is drawn by step, and its name."""


@dataclass(frozen=True, repr=False)
class Convergence:
    """For w_0, ..., w_T, each (..., T + 1).

    measured: distance of the network's iterate from the algorithm's, which is computed in float64.
    proved: what that distance is proved to stay below, for this prompt's own curvature.
    to_optimum: distance of the network's iterate from a minimiser, found by a long plain run from the last iterate;
        NaN where that still moves at its end, as where labels can be separated and the minimiser is at infinity.
    gradient_norm: of the objective at the network's iterate (with an l1 penalty, the length of the proximal step over
        the learning rate), which is zero at a minimiser.

    >>> X = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [1.0, -1.0]], dtype=torch.float64)
    >>> y = X @ torch.tensor([1.0, 2.0], dtype=torch.float64)
    >>> descent = ah.in_context.gradient_descent("squared", features=2, examples=4, steps=100, learning_rate=0.5)
    >>> found = descent.convergence(X, y)
    >>> found.measured.shape, bool((found.measured <= found.proved).all())
    (torch.Size([101]), True)
    """

    measured: Tensor
    proved: Tensor
    to_optimum: Tensor
    gradient_norm: Tensor

    def __str__(self) -> str:
        last = {name: getattr(self, name)[..., -1].max().item() for name in self.__dataclass_fields__}
        optimum = f"distance to the optimum {last['to_optimum']:.3g}"
        if math.isnan(last["to_optimum"]):
            optimum = f"no optimum within {ROUNDS * ROUND:,} more plain steps, which may be at infinity"
        return (
            f"after {self.measured.shape[-1] - 1} steps: measured deviation {last['measured']:.3g}, proved "
            f"{Up(last['proved']):.3g}, {optimum}, gradient {last['gradient_norm']:.3g}"
        )

    def __repr__(self) -> str:
        return f"Convergence({self})"

    def _curves(self) -> list[tuple[str, np.ndarray]]:
        """By step, the largest over all prompts of a batch; zeros, which have no logarithm, are left out, and where
        all are, the name says so."""
        found = []
        for name, said in DRAWN.items():
            curve = getattr(self, name).detach().cpu().reshape(-1, self.measured.shape[-1]).amax(0).numpy()
            least = "none found" if np.isnan(curve).all() else "" if curve.any() else "0"
            found.append((f"{said}: {least}" if least else said, np.where(curve > 0, curve, math.nan)))
        return found

    def plot(self) -> Figure:
        """The distances by step, on a logarithmic axis: a figure with no file and no window. Of a batch the largest."""
        from anchorhead.drawing import CYCLE, ERROR, NETWORK, TARGET, Drawing, dress, legend

        figure = Drawing(2.3)
        axes = figure.subplots()
        dress(axes, xlabel="step", ylabel="distance")
        for (said, curve), colour in zip(self._curves(), (ERROR, NETWORK, CYCLE[2], TARGET), strict=True):
            axes.semilogy(curve, color=colour, lw=1.1, ls="--" if said.startswith("proved") else "-", label=said)
        axes.grid(True, color="0.93", lw=0.6)
        legend(axes)
        return figure

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        curves = [
            (colour, curve.tolist()) for colour, (_, curve) in zip((BLUE, RED, GREY), self._curves(), strict=False)
        ]
        said = "by step: the measured distance (blue) under the proved one (red), and that to the optimum (grey)"
        drawn = sketch(range(self.measured.shape[-1]), curves, f"{said}, on a logarithmic scale", sys.float_info.min)
        return page("Convergence", sentence(str(self)), drawn)


def converge(model: GradientDescent, X: Tensor, y: Tensor, w0: Tensor | None, mask: Tensor | None) -> Convergence:
    """See `Convergence`."""
    iterates, exact = model.trajectory(X, y, w0, mask).double(), model.exact(X, y, w0, mask)
    prompt = in_double(model.checked(X, y, w0, mask))
    state = model.begin(Exact(), *prompt)

    def step(w: Tensor) -> Tensor:
        """A plain step without momentum."""
        return model.step(Exact(), state | {"w": w, "before": w})["w"]

    measured = (iterates - exact).norm(dim=-1)
    moved = torch.stack([step(w) - w for w in iterates.unbind(-2)], -2)
    curvature = min(largest_curvature(prompt[0], mean_weights(prompt[0], mask)), model.bounds.curvature)
    return Convergence(
        measured,
        measured.new_tensor(proved_for(model.proof, model.algorithm, model.gradient, curvature)).expand_as(measured),
        (iterates - minimiser(step, iterates[..., -1, :]).unsqueeze(-2)).norm(dim=-1),
        moved.norm(dim=-1) / model.algorithm.rate,
    )


def minimiser(step: Callable[[Tensor], Tensor], start: Tensor) -> Tensor:
    """A minimiser near the start: plain steps, accelerated and restarted, until they no longer move; NaN where they
    still do."""
    w = before = start
    for _ in range(ROUNDS):
        previous = w
        for k in range(ROUND):
            before, w = w, step(w + k / (k + 3) * (w - before))
        before = w
        moved = (w - previous).norm(dim=-1, keepdim=True) / (1 + w.norm(dim=-1, keepdim=True))
        if (moved <= 1e-13).all():
            break
    return torch.where(moved <= MOVING, w, math.nan)
