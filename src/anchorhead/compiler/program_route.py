"""Compiled model -> program: its circuit with heads of constant values, as instructions with a proved error.

Heads of the model itself may have values that are multiplied by what a token has, which no token of a program can do
(`circuit/constant_form.py`); so its circuit is composed anew, with heads whose values are constants, and small, since
the pointer's share of the scores rounds them more than a network's would be (`proof/interpretation.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from threadpoolctl import threadpool_limits

from anchorhead.circuit.apply import Apply, U
from anchorhead.circuit.circuit import Circuit
from anchorhead.circuit.line import Line
from anchorhead.circuit.step import OutsideDomain, Pair
from anchorhead.compiler.compose import compose
from anchorhead.compiler.method import check_tol
from anchorhead.errors import InputError, StructureError, ToleranceError
from anchorhead.expression.graph import substituted
from anchorhead.model.compiled import CompiledModel
from anchorhead.model.head_core import HeadCore
from anchorhead.model.program import Program, certificate_of
from anchorhead.progress import Progress, telling
from anchorhead.proof.instructions import instructions, laid_out
from anchorhead.proof.interpretation import Interpreted, LeakError, NoRoomError, network_circuit, output_bounds
from anchorhead.proof.turns import TurnsOutside

UNIT = 1e-13
"""About what the scores of a program round by: a few hundred units of float64, for the pointer's share of them."""
GAPS = tuple(2.0**k for k in range(6, 16))
USUAL = 1e-9
LARGER = tuple(10.0**k for k in range(-9, -3))
"""What is tried for an algorithm, from the usual tol on."""
ROUNDS = 6
MOST_TURNS = 100_000


class Repeated(Protocol):
    """An algorithm that makes a state anew from itself and the tokens of its prompt, so many times."""

    steps: int

    def turn(self) -> tuple[str, Circuit, tuple[Pair, ...]]:
        """The name, circuit and box of one step."""


def program(model: CompiledModel | Repeated, *, turns: int | None = None, tol: float | None = None,
            progress: bool | Progress = True) -> Program:  # fmt: skip
    """The program of a compiled model: tokens that `ah.interpreter(...)` runs.

    model: of formulas, modules, or functions of a prompt whose attention is means; or gradient descent in context, a
        turn for each step, whose tokens are (x, y) and whose state is w.
    turns: of a model with as many inputs as outputs, how often it is applied, each time to its own result.
    tol: how far from the target its heads may lead in exact arithmetic, all turns' own shares together; by default
        1e-9, or what the model keeps, if that is more; for an algorithm the least of 1e-9, 1e-8, ..., 1e-4 that can be
        had. What leaks and is rounded in an interpreter, and what turns make
        of it, is stated in the certificate. Products, squares and whatever else the model computes with values that
        depend on its inputs is composed anew with constant ones, which takes more keys.

    >>> program = ah.program(ah.compile("x*y", (-1, 1), tol=1e-4))
    >>> x = torch.tensor([0.5, 0.5], dtype=torch.float64)
    >>> (ah.interpreter()(program, x) - 0.25).abs().item() <= program.certificate.bound
    True
    """
    if not isinstance(model, CompiledModel) and not hasattr(model, "turn"):
        raise InputError(
            f"ah.program takes a compiled model or gradient descent in context, not a {type(model).__name__}."
        )
    if turns is not None and (type(turns) is not int or not 1 <= turns <= MOST_TURNS):
        raise InputError(f"turns={turns!r} must be a whole number from 1 to {MOST_TURNS:,}.")
    if isinstance(model, CompiledModel):
        name, circuit, box = model.claimed.expression, _target_circuit(model), model.claimed.domain
    elif turns is not None:
        raise InputError("The number of turns is that of the algorithm's steps; leave turns= out.")
    else:
        (name, circuit, box), turns = model.turn(), model.steps
    if not circuit.steps and turns is None:  # turns of one have heads, which carry the state over
        raise InputError(
            f"{name} is an affine map: it has no head, and so no instruction that a program could hold. With turns= it "
            "is applied again and again, and that is a program."
        )
    with telling(f"writing the program of {name}", progress) as tell, threadpool_limits(1):
        if tol is not None:
            found = _interpreted(circuit, box, check_tol(tol), turns, tell)
        elif isinstance(model, CompiledModel):
            found = _interpreted(circuit, box, max(USUAL, model.claimed.bound), turns, tell)
        else:
            found = _least(circuit, box, turns, tell)
    return Program(found, certificate_of(found, name + ("" if turns is None else f", {turns} times")))


def _least(target: Circuit, box: Sequence[Pair], turns: int | None, progress: Progress) -> Interpreted:
    """The program of an algorithm at the least power of ten, from the usual tol on, that is reached."""
    for tol in LARGER:
        try:
            return _interpreted(target, box, tol, turns, progress)
        except ToleranceError as error:
            refusal = error
    raise refusal


def _interpreted(target: Circuit, box: Sequence[Pair], tol: float, turns: int | None,
                 progress: Progress) -> Interpreted:  # fmt: skip
    """The program of a circuit, or of `turns` applications of it, whose outputs keep tol; ToleranceError if none is."""
    if turns is not None and len(target.outputs) != len(target.inputs) - target.tokens:
        raise InputError(
            f"turns={turns} applies a map again and again, and this model has {len(target.inputs)} inputs and "
            f"{len(target.outputs)} outputs; it needs as many of both."
        )
    aim = tol / (turns or 1)
    for _ in range(ROUNDS):
        try:
            found = _attempt(target, box, aim, turns, progress)
            if turns is not None or max(output_bounds(found, machine=False)) <= tol:
                return found
        except (OutsideDomain, NoRoomError):  # smaller errors fit
            pass
        except ToleranceError as error:
            each = f", {aim:g} in each of {turns} turns," if turns is not None else ""
            raise ToleranceError(f"A program with tol={tol:g}{each} cannot be made: {error}") from error
        aim /= 4
    raise ToleranceError(
        f"tol={tol:g} is not reached by a program of this target. Use a larger tol or a smaller domain."
    )


def _target_circuit(model: CompiledModel) -> Circuit:
    """What a model computes, step by step; of one head, one step."""
    core = model.network
    if isinstance(core, HeadCore):
        claim = core.claim
        if not claim.bounded:
            raise InputError("A program's heads have constant values, which need a bounded domain; compile with one.")
        step = Apply(substituted(claim.function, {claim.variable: U}), Line({0: 1}), str(claim.function))
        return Circuit((claim.variable,), (step,), (Line({1: 1}),), (), ())
    found = getattr(core, "circuit", None)
    if not isinstance(found, Circuit):
        raise StructureError(
            f"This model is {core.kind.replace('_', ' ')}, not a graph of heads; compile it with method='graph'."
        )
    return found


def _attempt(target: Circuit, box: Sequence[Pair], aim: float, turns: int | None, progress: Progress) -> Interpreted:
    """Heads of constant values that keep `aim`, as instructions with the least gap that tells them apart."""
    circuit = network_circuit(target, box, turning=turns is not None)
    claim = compose(circuit, box, aim, "float64", progress, literal=True, constant=UNIT).claim
    layout = laid_out(circuit, claim.wiring, turning=turns is not None)
    code = instructions(layout, claim.wiring, claim.heads)
    for gap in GAPS:
        found = Interpreted(target, claim, layout, code, gap, turns)
        try:
            output_bounds(found)
        except LeakError:
            continue
        except TurnsOutside:
            return replace(found, watched=True)
        return found
    raise ToleranceError(
        f"The scores of this program are so large that a gap of {GAPS[-1]:g} does not tell its instructions apart: it "
        "has kinks that are too sharp for a program. Use a larger tol."
    )
