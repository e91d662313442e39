"""Smooth heads: uniform anchors at a moderate β, constant values solved for (docs/mathematics.md 2.2).

On a bounded interval the error falls geometrically in the number of keys, where the paper's head, which reads
its values off f and selects one, falls like 1/p. A head with constant values reads the token only through its
query, so its keys can be shared by all tokens, and a value may carry a token's feature (products).
"""

from __future__ import annotations

import numpy as np

from anchorhead.arithmetic import Array
from anchorhead.head.head import Head
from anchorhead.head.solve import Function, Problem, samples
from anchorhead.head.uniform_keys import best_uniform
from anchorhead.head.warped_keys import best_warped


def smooth(f: Function, low: float, high: float, keys: int, *, side: int = 0, goal: float = 0.0, limit: float = 1e3,
           extra: Array | None = None) -> tuple[float, Head]:  # fmt: skip
    """The best head with that many keys and constant values on [low, high], and its error on the samples.

    side: 0 for evenly spaced keys, 1 or -1 for keys that crowd at the left or the right end (`warped_keys.py`).
    """
    u = samples(low, high, 16 * keys + 60, np.zeros(0) if extra is None else extra, flat_ends=False, side=side)
    target = f(u)
    goal = max(goal, 1e-15 * float(np.abs(target).max()), 1e-300)
    problem = Problem(u, target, None, None, False, goal, limit, (low + high) / 2)
    return best_warped(keys, problem, side) if side and keys > 1 else best_uniform(keys, problem)
