"""Heads that carry a gate's partner: constant values, so that phi(u)·v is phi's head with every value times v.

In float32 what limits them is rounding: keys must tell u from its neighbours, so scores are large and lose digits,
about a millionth of the range. Values are therefore kept close to those of phi itself, keys are added until the
approximation is below that or the tolerance, and the certificate says both, approximation and rounding.
"""

from __future__ import annotations

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from anchorhead.certify.approximation import Refutation
from anchorhead.compiler.assembling import attention_of
from anchorhead.compiler.fits import fit_for
from anchorhead.compiler.piece import Goal
from anchorhead.compiler.proving import prove_head, sampled_error, statement
from anchorhead.compiler.search import NUMPY, UNIT
from anchorhead.compiler.target import read_target
from anchorhead.errors import ToleranceError
from anchorhead.network.compiled_head import CompiledHead

SIZES = (8, 12, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96)
LARGEST = 1.5
"""Values, in units of the largest that phi takes on the range."""
UNITS = 16


def gate_model(formula: str, declared: tuple[float, float], tol: float, dtype: torch.dtype) -> CompiledHead:
    """The smallest head with constant values whose approximation keeps tol, or what the dtype can tell apart."""
    name = str(dtype).removeprefix("torch.")
    target = read_target(formula, declared)
    fit = fit_for(target, "smooth")
    scale = float(np.abs(target.function()(np.linspace(*declared, 2001))).max())
    goal = max(tol, UNITS * UNIT[name] * scale)
    with threadpool_limits(1):
        for keys in SIZES:
            head = fit.build(keys, Goal(goal / 2, LARGEST * scale)).rounded(NUMPY[name])
            error = sampled_error(target, head, [])
            if error > 0.9 * goal:
                continue
            proved = prove_head(target, head, name, goal, [])
            if not isinstance(proved, Refutation):
                record = {"variable": target.variable, "edges": proved.edges}
                layer = attention_of(statement(target, proved.head, name), dtype)
                return CompiledHead(layer, proved.certificate, "smooth", record)
    raise ToleranceError(
        f"{formula} on [{declared[0]:.4g}, {declared[1]:.4g}] needs more than {SIZES[-1]} keys with constant values "
        "for "
        f"{goal:.2g}; calibrate or declare a smaller range, or use a larger tol."
    )
