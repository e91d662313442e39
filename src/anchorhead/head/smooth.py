"""Smooth heads: uniform anchors at a moderate β, constant values solved for (docs/mathematics.md 2.2).

On a bounded interval the error falls geometrically in the number of keys, where the paper's head, which reads
its values off f and selects one, falls like 1/p. A head with constant values reads the token only through its
query, so its keys can be shared by all tokens, and a value may carry a token's feature (products).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from anchorhead.arithmetic import Array
from anchorhead.head.solve import Crowd, Function, Problem, sample_count, samples
from anchorhead.head.uniform_keys import Uniform
from anchorhead.head.warped_keys import Warped


def smooth(f: Function, low: float, high: float, keys: int, *, crowds: Sequence[Crowd] = (), goal: float = 0.0,
           limit: float = 1e3, extra: Array | None = None, relative: bool = False) -> Uniform | Warped:  # fmt: skip
    """Heads with that many keys and constant values on [low, high]; `best()` is the best of them, and its error.

    crowds: where keys crowd (`warped_keys.py`); none for evenly spaced keys. relative: errors in units of |f|.
    """
    u = samples(low, high, sample_count(keys), np.zeros(0) if extra is None else extra, flat_ends=False, crowds=crowds)
    target = f(u)
    goal = max(goal, 1e-15 * (1.0 if relative else float(np.abs(target).max())), 1e-300)
    problem = Problem(u, target, None, None, False, goal, limit, (low + high) / 2, relative)
    return Uniform(keys, problem) if not crowds or keys == 1 else Warped(keys, problem, crowds)
