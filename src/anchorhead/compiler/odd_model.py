"""A product or a square as a model of its own: two keys on |u| <= R, their error relative to u or u² (`proof/odd.py`).

Scores ±u/c and values ±c, or ±cu, with c a power of two: 1/3(R/c)² is what they err by, relatively, for every |u| <= R
and every partner.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from anchorhead.arithmetic import binary_ceiling
from anchorhead.compiler.prove import certificate
from anchorhead.compiler.target import read_target
from anchorhead.expression.graph import Node
from anchorhead.head.head import Head
from anchorhead.model.compiled import CompiledModel
from anchorhead.model.head_core import HeadCore
from anchorhead.proof.head_claim import HeadClaim
from anchorhead.proof.odd import odd_bounds


def odd_claim(function: Node, variable: str, reach: float, error: float, dtype: str) -> HeadClaim:
    """Proved for u, or u², on [-reach, reach] with c as small as the error allows: that is best for a literal softmax.

    What evaluating it adds does not depend on c.
    """
    height = binary_ceiling(reach * math.sqrt(1 / (3 * error)))
    still, own = (0.0, 0.0), (-height, height)
    values = (own, still) if function.op == "variable" else (still, own)
    head = Head((-1 / height, 1 / height), still, *values, horner=True, dtype=dtype)
    claim = HeadClaim(function, variable, -reach, reach, head, "odd", (-reach, reach), relative=True,
                      evaluation="fast")  # fmt: skip
    approximation, rounding = odd_bounds(claim)
    return replace(claim, approximation=approximation, rounding=rounding)


def odd_model(formula: str, reach: float, error: float, dtype: torch.dtype) -> CompiledModel:
    """The model of "x", whose values carry a partner, or of "x**2", to a relative error on [-reach, reach]."""
    target = read_target(formula, (-reach, reach))
    claim = odd_claim(target.node, target.variable, reach, error, str(dtype).removeprefix("torch."))
    return CompiledModel(HeadCore(claim), certificate(target, claim), claim.method)
