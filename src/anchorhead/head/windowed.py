"""The fast evaluation of a staircase: of many keys in one piece only those that matter where x is.

The line is cut where scores of neighbouring slopes meet. For every cell there is a *window*, a run of keys in the order
of slopes that holds all which are not far there (`near_keys.py`); all windows have the same length. So a number x takes
one search among the cells and a softmax over its window, a handful of keys in place of thousands. What is left out is
below 2e-35 for each key, and part of the rounding that is proved (`proof/rounding.py`, far keys).

Left of all cells the key of least slope leads if it does so in the first cell, since every other score falls faster to
the left: what is far in the first cell stays far. Likewise on the right. A head where few keys are ever far, or whose
end keys do not lead in the end cells, has no windows.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from anchorhead.head.head import NUMBERS, Head
from anchorhead.head.near_keys import MANY

LONGEST = 32
"""Windows with more keys are no gain."""


class Windowed:
    """h by windows. cells: ends of cells. starts: for each cell, and beyond, the first place of its window."""

    def __init__(self, head: Head, cells: list[float], starts: list[int], length: int) -> None:
        dtype = getattr(torch, head.dtype)
        numbers = ([getattr(head, name)[k] for k in head.near.all] for name in NUMBERS[:4])
        self.cells, self.numbers = torch.tensor(cells, dtype=dtype), [torch.tensor(n, dtype=dtype) for n in numbers]
        self.starts, self.window = torch.tensor(starts), torch.arange(length)

    def __call__(self, x: Tensor) -> Tensor:
        cell = torch.bucketize(x.detach(), self.cells.to(x.device))
        places = self.starts.to(x.device)[cell].unsqueeze(-1) + self.window.to(x.device)
        slopes, intercepts, constants, gains = (part.to(x.device)[places] for part in self.numbers)
        x = x.unsqueeze(-1)
        scores = x * slopes + intercepts
        weights = torch.exp(scores - scores.amax(-1, keepdim=True))
        return (weights * (x * gains + constants)).sum(-1) / weights.sum(-1)


def windowed(head: Head) -> Windowed | None:
    """The evaluation by windows; None for a head that is no staircase."""
    if head.keys <= MANY or len(head.sizes) > 1:
        return None
    near = head.near
    lines = [(near.slopes[k], near.levels[k]) for k in near.all]
    meetings = sorted({-(c - b) / (s - a) for (a, b), (s, c) in itertools.pairwise(lines) if s > a})
    meetings = [float(torch.tensor(place, dtype=getattr(torch, head.dtype))) for place in meetings]
    if len(meetings) < 2:
        return None
    cells = [2 * meetings[0] - meetings[1], *meetings, 2 * meetings[-1] - meetings[-2]]
    if not all(a < b for a, b in itertools.pairwise(cells)):
        return None
    if near.leader(cells[0], cells[1]) != near.all[0] or near.leader(cells[-2], cells[-1]) != near.all[-1]:
        return None
    rank, runs = {k: i for i, k in enumerate(near.all)}, []
    for a, b in itertools.pairwise(cells):
        keys = near.of(a, b)
        runs.append((rank[keys[0]], rank[keys[-1]] + 1))
        if runs[-1][1] - runs[-1][0] > LONGEST:
            return None
    length = max(end - start for start, end in runs)
    return Windowed(head, cells[1:-1], [min(start, head.keys - length) for start, _ in runs], length)
