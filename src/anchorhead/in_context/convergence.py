"""A run beside the algorithm it stands for: how far apart they are, how far they may be, and how far is left to go."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from anchorhead.in_context.bounds import largest_curvature
from anchorhead.in_context.certificate import proved_for
from anchorhead.in_context.reference import plain_iterates, slope

if TYPE_CHECKING:
    from anchorhead.in_context.gradient_descent import GradientDescent, Prompt

ROUNDS = 60


@dataclass(frozen=True)
class Convergence:
    """For w_0, ..., w_T, each (..., T + 1).

    measured: distance of the network's iterate from the algorithm's, which is computed in float64.
    proved: what that distance is proved to stay below, for this prompt's own curvature.
    to_optimum: distance of the network's iterate from a minimiser, found by a long plain run from the last iterate.
    gradient_norm: of the objective at the network's iterate (with an l1 penalty, the length of the proximal step over
        the learning rate), which is zero at a minimiser.
    """

    measured: Tensor
    proved: Tensor
    to_optimum: Tensor
    gradient_norm: Tensor

    def __str__(self) -> str:
        last = {name: getattr(self, name)[..., -1].max().item() for name in self.__dataclass_fields__}
        return (
            f"after {self.measured.shape[-1] - 1} steps: measured deviation {last['measured']:.3g}, proved "
            f"{last['proved']:.3g}, distance to the optimum {last['to_optimum']:.3g}, gradient "
            f"{last['gradient_norm']:.3g}"
        )


def converge(model: GradientDescent, X: Tensor, y: Tensor, w0: Tensor | None, mask: Tensor | None) -> Convergence:
    """See `Convergence`."""
    iterates = model.trajectory(X, y, w0, mask).double()
    prompt = model.prompt(X, y, w0, mask)
    measured = (iterates - plain_iterates(model.algorithm, prompt)).norm(dim=-1)
    optimum = minimiser(model, prompt, iterates[..., -1, :])
    steps = torch.stack([_moved(model, prompt, w) for w in iterates.unbind(-2)], -2)
    curvature = min(largest_curvature(prompt.X, prompt.weights), model.bounds.curvature)
    bounds = proved_for(model.proof, model.algorithm, model.gradient, curvature)
    return Convergence(
        measured,
        torch.tensor(bounds, dtype=torch.float64).expand_as(measured),
        (iterates - optimum.unsqueeze(-2)).norm(dim=-1),
        steps.norm(dim=-1) / model.algorithm.rate,
    )


def minimiser(model: GradientDescent, prompt: Prompt, start: Tensor) -> Tensor:
    """A minimiser near the start: plain steps, accelerated and restarted, until they no longer move."""
    w = before = start
    for _ in range(ROUNDS):
        previous = w
        for k in range(200):
            ahead = w + k / (k + 3) * (w - before)
            before, w = w, ahead + _moved(model, prompt, ahead)
        before = w
        if ((w - previous).norm(dim=-1) <= 1e-13 * (1 + w.norm(dim=-1))).all():
            break
    return w


def _moved(model: GradientDescent, prompt: Prompt, w: Tensor) -> Tensor:
    """What a plain step without momentum adds to w."""
    algorithm = model.algorithm
    X, y, weights = prompt.X.double(), prompt.y.double(), prompt.weights.double()
    s = (X @ w.unsqueeze(-1)).squeeze(-1)
    gradient = ((slope(algorithm.loss, s, y) * weights).unsqueeze(-2) @ X).squeeze(-2)
    v = w - algorithm.rate * (gradient + torch.tensor(algorithm.l2, dtype=torch.float64) * w)
    shrink = algorithm.rate * torch.tensor(algorithm.l1, dtype=torch.float64)
    return v - torch.maximum(torch.minimum(v, shrink), -shrink) - w
