"""Splitting a tolerance over the heads of a circuit so that the total number of keys is least.

To first order output o errs by  sum over heads g of S_og e_g, where e_g is what head g keeps and S_og how much of it
arrives, summed over the steps that use g. The number of keys grows like κ_g log(1/e_g), in n_g steps, so

    minimise  sum n_g κ_g log(1/e_g)   subject to  sum S_og e_g <= tol for all o

and where one output binds, Lagrange's condition reads  S_og e_g proportional to n_g κ_g: each head may spend in
proportion to what a digit costs it. Heads whose size does not depend on their error (a ReLU has two keys however sharp
it is) get a token share.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from anchorhead.arithmetic import Array

TOKEN = 0.02


def shares(arrives: Array, costs: Sequence[float], budget: float, fixed: dict[int, float]) -> dict[int, float]:
    """e_g for every head that matters; `fixed` are heads whose error is given. Empty if those leave nothing."""
    taken = sum((arrives[:, g] * e for g, e in fixed.items()), np.zeros(len(arrives)))
    rest = budget - taken
    if rest.min() <= 0:
        return {}
    free = [g for g in range(arrives.shape[1]) if g not in fixed and arrives[:, g].max() > 1e-250]
    if not free:
        return dict(fixed)
    weights = {g: max(costs[g], TOKEN) for g in free}
    wanted = {g: weights[g] / arrives[:, g].max() for g in free}
    total = sum((arrives[:, g] * wanted[g] for g in free), np.zeros(len(arrives)))
    factor = float((rest / np.maximum(total, 1e-300)).min())
    return fixed | {g: factor * wanted[g] for g in free}
