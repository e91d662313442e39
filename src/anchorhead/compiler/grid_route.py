"""The route over the grid: one layer with p^m keys, proved for formulas, conditional or measured otherwise."""

from __future__ import annotations

import math

import numpy as np

from anchorhead.arithmetic import Array, power
from anchorhead.compiler.circuit_target import CircuitTarget
from anchorhead.compiler.method import Method, Progress, Wish
from anchorhead.digits import Up
from anchorhead.enclosure.arrays import sample
from anchorhead.errors import InputError, ToleranceError
from anchorhead.expression.graph import Expression, ordered
from anchorhead.head.grid_fit import MOST_KEYS, fit_grid, sampled_error, smallest_grid
from anchorhead.head.grid_head import GridFunction, GridHead
from anchorhead.head.grid_module import GridModule
from anchorhead.model.compiled import CompiledModel
from anchorhead.model.grid_core import GridCore
from anchorhead.progress import LOG
from anchorhead.proof.certificate import Certificate, sum_above
from anchorhead.proof.grid_lipschitz import conditional_bound, hold_against
from anchorhead.proof.grid_proof import GridProof, GridRefutation, prove_grid
from anchorhead.proof.grid_rounding import rounding_bound
from anchorhead.proof.rounding import ASSUMPTIONS
from anchorhead.tracing.opaque import Opaque

MOST_AXES = 3
MOST_OPERATIONS = 1_000
"""Of a formula that is evaluated at every point of a grid, and proved box by box."""
SAMPLES = 1 << 20
MOST_SAMPLES = 1 << 24
LIMIT = {"float64": 1e3, "float32": 4.0}
AGAIN = 1 + 1e-9
"""A checker may add up the rounding bound in another order, which moves its last digits."""


def over_grid(target: CircuitTarget) -> bool:
    """Whether a grid can be proved for the target at all."""
    if target.expression is None or len(target.box) > MOST_AXES or any(a >= b for a, b in target.box):
        return False
    return len(ordered(target.expression.outputs)) <= MOST_OPERATIONS


def worth_trying(target: CircuitTarget, tol: float, most: int) -> bool:
    """Whether a grid with so few keys comes near the tolerance, by a quick fit."""
    per_axis = math.floor(power(max(most, 1), 1 / len(target.box)) + 1e-9)
    if per_axis < 2 or target.expression is None:
        return False
    f = values_of(target.expression)
    head = fit_grid(f, target.box, per_axis, goal=tol / 4)
    return sampled_error(f, head, target.box, 1 << 12) <= 2 * tol


class Grid(Method):
    """One layer over a tensor grid of keys: proved for formulas, conditional or measured for what is sampled."""

    name = "grid"
    takes = ("several", "opaque")
    samples = True

    def __init__(self, most: int = MOST_KEYS) -> None:
        self.most = most

    def compile(self, target: CircuitTarget | Opaque, wish: Wish) -> CompiledModel:
        if isinstance(target, Opaque):
            return _sampled(target, wish.tolerance(1e-2), wish)
        return _proved(target, wish.tolerance(1e-6), wish, self.most)


def _proved(target: CircuitTarget, tol: float, wish: Wish, most: int) -> CompiledModel:
    """A formula in at most three variables as one layer of at most so many keys, proved by boxes."""
    expression = target.expression
    if expression is None or not over_grid(target):
        raise InputError(
            f"A tensor grid has p^m keys and is proved for formulas in at most {MOST_AXES} variables with at most "
            f"{MOST_OPERATIONS:,} operations; use method='graph', or for a function that cannot be looked into give "
            "lipschitz=."
        )
    name, progress = wish.dtype, wish.progress
    share = 0.8
    for _ in range(4):
        head = _fitted(values_of(expression), target.box, share * tol, tol, name, progress, most)
        rounding = AGAIN * rounding_bound(head, target.box, name).bound
        progress(f"grid: {' x '.join(map(str, head.counts))} keys, proving")
        proof = prove_grid(expression, target.box, head, tol - rounding) if rounding < tol else None
        if proof is not None and not isinstance(proof, GridRefutation):
            bound, boxes = _as_checked(expression, target.box, head, proof, tol - rounding)
            certificate = Certificate(target.name, target.box, name, "proved", bound, rounding, boxes,
                                      tuple(ASSUMPTIONS), (sum_above(bound, rounding),) * head.outputs,
                                      expression.variables)  # fmt: skip
            core = GridCore(GridModule.of(head, wish.torch_dtype), expression, (len(target.box),), (head.outputs,))
            return CompiledModel(core, certificate, "grid")
        if rounding >= tol:
            break
        share /= 2
    raise ToleranceError(
        f"tol={tol:g} for {target.name} could not be proved over a grid in {name}: {math.prod(head.counts)} keys were "
        f"not enough, or rounding, up to {Up(rounding):.3g}, is too much. Use method='graph', or a larger tol."
    )


def _as_checked(expression: Expression, box: tuple[tuple[float, float], ...], head: GridHead, proof: GridProof,
                goal: float) -> tuple[float, int]:  # fmt: skip
    """The bound to claim, and the boxes that a checker, which aims at that bound and no other, will count."""
    again = prove_grid(expression, box, head, proof.bound)
    return (goal, len(proof.boxes)) if isinstance(again, GridRefutation) else (proof.bound, len(again.boxes))


def _sampled(target: Opaque, tol: float, wish: Wish) -> CompiledModel:
    """A function that cannot be looked into, over the grid; conditional with a Lipschitz constant, else measured."""
    name, lipschitz, progress = wish.dtype, wish.lipschitz, wish.progress
    share = 0.5 if lipschitz is not None else 0.8
    if lipschitz is not None:
        _check_constant(target, lipschitz)  # before a grid is fitted to what has no such constant
    head = _fitted(target.values, target.box, share * tol, tol, name, progress)
    rounding = rounding_bound(head, target.box, name).bound
    if lipschitz is None:
        certificate = _measured(target, head, rounding, name)
        if certificate.bound > tol:
            raise ToleranceError(
                f"tol={tol:g} for {target.name}: a grid of {head.keys} keys kept it where it was fitted, but errs by "
                f"{Up(certificate.bound):.3g} between. Use a larger tol."
            )
    else:
        certificate = _conditional(target, head, rounding, name, lipschitz, tol, progress)
    core = GridCore(GridModule.of(head, wish.torch_dtype), None, target.input_shape, target.output_shape)
    return CompiledModel(core, certificate, "grid")


def _fitted(f: GridFunction, box: tuple[tuple[float, float], ...], goal: float, tol: float, dtype: str,
            progress: Progress, most: int = MOST_KEYS) -> GridHead:  # fmt: skip
    LOG.info("over a grid of keys, to within %.3g", goal)
    progress(f"grid: fitting to {goal:.2g}")
    head = smallest_grid(f, box, goal, limit=LIMIT[dtype], most=most)
    if head is None:
        raise ToleranceError(
            f"tol={tol:g} would need more than {most:,} keys, the most that a grid in {len(box)} variables can have "
            "here: its size is a power of that number. Use a larger tol, or a formula, whose structure costs far less."
        )
    return head.rounded(dtype)


def _measured(target: Opaque, head: GridHead, rounding: float, dtype: str) -> Certificate:
    error = sampled_error(target.values, head, target.box, SAMPLES)
    assumption = f"nothing: the target was compared at about {SAMPLES:,} points, and between them it may be anything"
    return Certificate(target.name, target.box, dtype, "measured", error, rounding, 0, (assumption,),
                       outputs=(sum_above(error, rounding),) * head.outputs)  # fmt: skip


def _conditional(target: Opaque, head: GridHead, rounding: float, dtype: str, lipschitz: float, tol: float,
                 progress: Progress) -> Certificate:  # fmt: skip
    samples = 1 << 16
    while True:
        progress(f"grid: {head.keys} keys, comparing at {samples:,} points")
        found = conditional_bound(target.values, head, target.box, lipschitz, samples=samples)
        nearest = found.radius * (samples / MOST_SAMPLES) ** (1 / len(target.box)) / 2  # not reached with the most
        hopeless = (lipschitz + found.lipschitz_head) * nearest > tol
        if found.bound + rounding <= tol or samples >= MOST_SAMPLES or hopeless or found.measured + rounding > tol:
            break
        samples *= 4
    if found.bound + rounding > tol:
        raise ToleranceError(
            f"tol={tol:g} for {target.name} cannot be concluded from a Lipschitz constant of {lipschitz:g}: with "
            f"{head.keys} keys the error is at most {found.measured:.3g} at {found.samples:,} points, but between them "
            f"it could be {Up(found.bound):.3g}. Use a larger tol, or leave lipschitz out for a measured certificate."
        )
    declared = f"the target's Lipschitz constant in the Euclidean metric is at most {lipschitz:g}, as declared"
    outputs = (sum_above(found.bound, rounding),) * head.outputs
    return Certificate(target.name, target.box, dtype, "conditional", found.bound, rounding, 0,
                       (declared, *ASSUMPTIONS), outputs, condition=declared)  # fmt: skip


def _check_constant(target: Opaque, lipschitz: float) -> None:
    """Refuses a declared constant that two neighbouring points of a lattice contradict."""
    low, high = np.array(target.box).T
    count = max(3, round(power(4000, 1 / len(low))))
    axes = list(np.linspace(low, high, count).T)
    mesh = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1)
    values = target.values(mesh.reshape(-1, len(low))).reshape(*mesh.shape[:-1], -1)
    hold_against(values, axes, lipschitz)


def values_of(expression: Expression) -> GridFunction:
    """The outputs of an expression at points (N, m), as (N, q)."""

    def f(points: Array) -> Array:
        columns = {name: points[:, i].copy() for i, name in enumerate(expression.variables)}
        return np.stack(sample(expression, columns), axis=1)

    return f
