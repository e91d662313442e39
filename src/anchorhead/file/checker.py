"""The independent checker: a file in, a verdict out. It needs python-flint and the file, neither compiler nor torch.

It parses the stored target, takes the numbers that the model computes with as they are stored, and goes through the
proof. For every head the boxes must cover its domain without a gap, every box must keep the claimed approximation
(`proof/approximation.py`), on unbounded sides the asymptotes must take over where the boxes end (`proof/far.py`), and
rounding must be as claimed (`proof/rounding.py`). For a network of heads the bound must follow from them, and from the
stored affine maps, by composition (`proof/flow.py`). What the file says about itself is never trusted and never
repeated: the certificate that is returned is made from what was checked.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import replace

from anchorhead.circuit.circuit import Circuit
from anchorhead.circuit.pool import LENGTHS
from anchorhead.circuit.program import circuit_digest
from anchorhead.circuit.step import OutsideDomain
from anchorhead.digits import Up, above
from anchorhead.dtypes import LARGEST
from anchorhead.enclosure.precision import precision
from anchorhead.enclosure.singularities import singularities
from anchorhead.errors import AnchorheadError, DependencyError, VerificationError
from anchorhead.file.container import ModelFile, read
from anchorhead.file.distance import Distance, check_distance
from anchorhead.file.stored import (
    certificate_of,
    head_claim,
    shapes_text,
    stored_network,
    too_much,
)
from anchorhead.file.stored_mapped import check_mapped, stored_mapped
from anchorhead.file.stored_program import stored_program
from anchorhead.head.near_keys import MANY
from anchorhead.proof.approximation import MOST_WORK, box_error, box_work
from anchorhead.proof.certificate import Certificate, most_above
from anchorhead.proof.far import Far, far
from anchorhead.proof.head_claim import HeadClaim
from anchorhead.proof.interpretation import assumed, output_bounds
from anchorhead.proof.network_claim import NetworkClaim, output_errors
from anchorhead.proof.odd import is_odd, odd_bounds
from anchorhead.proof.rounding import ASSUMPTIONS, Rounding
from anchorhead.proof.rounding_on import rounding_on

Progress = Callable[[int, int], None]


def verify(path: str | os.PathLike[str], *, progress: Progress | None = None) -> Certificate | Distance:
    """Checks the proof in a saved model and returns its certificate, every part of which was checked.

    Raises `VerificationError` with the first claim that does not hold, or `FileError` if the file is damaged. A model
    whose numbers were changed before it was saved is checked like any other: if the claim still holds, it is proved.
    progress: called with boxes done and boxes in all.
    """
    found = read(path)
    if found.record["kind"] == "distance":
        return check_distance(found)
    return verify_model(found, path, progress)


def verify_model(found: ModelFile, path: object, progress: Progress | None) -> Certificate:
    """The certificate of a model that was read, checked."""
    if found.record["kind"] == "theorem":
        raise VerificationError(
            f"{path} holds a theorem's network, whose bound is proved on paper for all networks of its form "
            "(docs/mathematics.md): a file has no proof of it to go through. ah.load(path, verify=True) makes the "
            "construction again, and refuses numbers that are not its own."
        )
    claimed = certificate_of(found)
    if claimed.level not in ("proved", "unproved"):
        raise VerificationError(f"{path} is {claimed.level}, not proved: there is no proof to check.")
    _check_claim(claimed)
    for claim in (claimed.relative * "a relative error", (not claimed.bounded) * "an unbounded domain"):
        if claim and found.record["kind"] != "head":
            raise VerificationError(f"The file claims {claim}, which is proved of single heads only.")
    checked = CHECKS[found.record["kind"]](found, claimed, progress)
    if claimed.boxes != checked.boxes:
        raise VerificationError(f"The certificate counts {claimed.boxes} boxes, and the proof has {checked.boxes}.")
    return checked


def _check_claim(claimed: Certificate) -> None:
    """The claim says something: its bounds can be added in the dtype."""
    if not max(claimed.bound, claimed.rounding, *claimed.outputs) < LARGEST[claimed.dtype]:
        raise VerificationError(
            f"The file claims no more than {Up(claimed.bound):.3g}, which says nothing of its model."
        )


def _checked(claimed: Certificate, boxes: int) -> Certificate:
    """A certificate of the numbers that were checked, and of nothing else that the file says."""
    return replace(claimed, level="proved", boxes=boxes, assumptions=tuple(ASSUMPTIONS), source="")


def _check_head_file(found: ModelFile, claimed: Certificate, progress: Progress | None) -> Certificate:
    claim = head_claim(found)
    if not claim.telling:
        raise VerificationError(
            f"The file claims a rounding of {Up(claim.rounding):.3g} (1 + |x|), more than its head's values: that "
            "says nothing of what is far out."
        )
    _require_bounded_work([claim])
    check_head(claim, progress)
    if claimed.outputs:
        raise VerificationError("A head has one output, and the file claims bounds for several.")
    return replace(_checked(claimed, len(claim.edges) - 1), evaluation=claim.evaluation)


def _check_mapped_file(found: ModelFile, claimed: Certificate, progress: Progress | None) -> Certificate:
    claim, row_map = stored_mapped(found)
    _check_cover(claim)
    _check_defined(claim)
    check_mapped(claim, row_map)
    if claimed.outputs:
        raise VerificationError("A head has one output, and the file claims bounds for several.")
    return replace(_checked(claimed, len(claim.edges) - 1), assumptions=row_map.assumptions)


def _check_network_file(found: ModelFile, claimed: Certificate, progress: Progress | None) -> Certificate:
    claim = stored_network(found).claim
    _check_heads(claim, progress)
    _check_composition(claim, claimed)
    checked = replace(_checked(claimed, claim.boxes), evaluation=claim.evaluation)
    if claim.circuit.tokens:
        checked = replace(checked, assumptions=(*checked.assumptions, LENGTHS))
    if found.record.get("expressions") is not None:
        return checked
    return _named(checked, claim.circuit)


def _check_program_file(found: ModelFile, claimed: Certificate, progress: Progress | None) -> Certificate:
    program = stored_program(found)
    _check_heads(program.claim, progress)
    try:
        exact, total = (output_bounds(program, machine=on) for on in (False, True))
    except (AnchorheadError, OutsideDomain) as error:
        raise VerificationError(f"The program in the file has no bound: {error}") from error
    _check_outputs(exact, total, claimed)
    checked = _checked(claimed, program.claim.boxes)
    said = (*checked.assumptions, *assumed(program))
    checked = replace(checked, assumptions=said, evaluation=program.claim.evaluation)
    return _named(checked, program.target, "" if program.turns is None else f", {program.turns} times")


def _named(checked: Certificate, circuit: Circuit, more: str = "") -> Certificate:
    """A target without formulas goes by its digest."""
    digest = circuit_digest(circuit)
    return replace(checked, expression=f"circuit {digest[:12]} ({shapes_text(circuit)}){more}", circuit=digest)


def _check_heads(claim: NetworkClaim, progress: Progress | None) -> None:
    """All heads of a network."""
    _require_bounded_work(claim.heads)
    done = 0
    for head in claim.heads:

        def report(count: int, _: int, before: int = done) -> None:
            if progress is not None:
                progress(before + count, claim.boxes)

        check_head(head, report)
        done += len(head.edges) - 1


def _check_grid_file(found: ModelFile, claimed: Certificate, progress: Progress | None) -> Certificate:
    try:
        from anchorhead.file.stored_grid import check_grid  # which needs NumPy; the other kinds do not
    except ModuleNotFoundError as missing:
        raise DependencyError(f"The proof of a grid is checked with NumPy: pip install {missing.name}.") from None
    return _checked(claimed, check_grid(found, claimed))


def _refuse_file(found: ModelFile, claimed: Certificate, progress: Progress | None) -> Certificate:
    raise VerificationError(
        "The paper's two-layer network rests on a declared constant or on samples: nothing is proved."
    )


CHECKS: dict[str, Callable[[ModelFile, Certificate, Progress | None], Certificate]] = {
    "head": _check_head_file,
    "network": _check_network_file,
    "grid": _check_grid_file,
    "two_layer": _refuse_file,
    "program": _check_program_file,
    "row_map": _check_mapped_file,
}


def _require_bounded_work(heads: Sequence[HeadClaim]) -> None:
    """Counts the keys that matter on the boxes of large heads: where too many do, a proof would take hours."""
    work = 0
    for claim in heads:
        for low, high in itertools.pairwise(claim.edges) if claim.head.keys > MANY else ():
            work += box_work(claim, low, high)
            if work > MOST_WORK:
                raise too_much(claim.head.keys, len(claim.edges))


def check_head(claim: HeadClaim, progress: Progress | None = None) -> None:
    """Everything that is claimed of one head."""
    low, high = _check_cover(claim)
    if is_odd(claim):
        _check_odd(claim, progress)
        return
    _check_defined(claim)
    _check_boxes(claim, progress)
    _check_rounding(claim, _check_far(claim, low, high))


def _check_odd(claim: HeadClaim, progress: Progress | None) -> None:
    """The claim of an odd head, which needs no boxes."""
    approximation, rounding = odd_bounds(claim)
    if not approximation <= claim.approximation or not rounding <= claim.rounding:
        raise VerificationError(
            f"An odd head keeps {Up(approximation):.3g} and rounds by {Up(rounding):.3g}, relative to "
            f"{claim.function}, and {Up(claim.approximation):.3g} and {Up(claim.rounding):.3g} are claimed."
        )
    if progress is not None:
        progress(len(claim.edges) - 1, len(claim.edges) - 1)


def _check_composition(claim: NetworkClaim, certificate: Certificate) -> None:
    """The certificate's bounds follow from those of the heads."""
    try:
        exact, total = (output_errors(claim, rounding=on) for on in (False, True))
    except OutsideDomain as reached:
        label, (low, high) = claim.circuit.steps[reached.step].label[:80], reached.needed
        raise VerificationError(
            f"The argument of {label} may reach [{low:.6g}, {high:.6g}], beyond the domain of its head."
        ) from None
    except AnchorheadError as error:
        raise VerificationError(f"The stored target is not defined on the whole domain: {error}") from error
    _check_outputs(exact, total, certificate)


def _check_outputs(exact: Sequence[float], total: Sequence[float], certificate: Certificate) -> None:
    """What follows for the outputs is what is claimed, or less."""
    if not max(exact) <= certificate.approximation:
        raise VerificationError(f"The heads' errors compose to {above(max(exact), certificate.approximation)}.")
    if not max(total) <= certificate.bound:
        raise VerificationError(f"With rounding the outputs may err by {above(max(total), certificate.bound)}.")
    if not most_above(total, exact) <= certificate.rounding:
        raise VerificationError(f"Rounding may reach {above(most_above(total, exact), certificate.rounding)}.")
    if len(certificate.outputs) != len(total):
        raise VerificationError(
            f"The certificate bounds {len(certificate.outputs)} outputs, and there are {len(total)}."
        )
    for i, (found, claimed) in enumerate(zip(total, certificate.outputs, strict=True)):
        if not found <= claimed:
            raise VerificationError(f"Output {i} may err by {above(found, claimed)}.")


def _check_cover(claim: HeadClaim) -> tuple[float, float]:
    """The boxes run from end to end of the domain, or on unbounded sides out to where the asymptotes begin."""
    edges = claim.edges
    if len(edges) < 2 or any(not a < b for a, b in itertools.pairwise(edges)):
        raise VerificationError("The boxes of the proof are not in order.")
    low, high = edges[0], edges[-1]
    for name, edge, end, sign in (("lower", low, claim.low, -1), ("upper", high, claim.high, 1)):
        if math.isfinite(end) and edge != end:
            raise VerificationError(f"The boxes end at {edge:g}, and the {name} end of the domain is {end:g}.")
        if math.isinf(end) and sign * edge < 1:
            raise VerificationError(f"The boxes end at {edge:g}, too near for asymptotes to take over.")
    return low, high


def _check_defined(claim: HeadClaim) -> None:
    """The target is defined on the whole domain: balls speak only of points where it is."""
    try:
        singularities(claim.function, claim.variable, claim.low, claim.high)
    except AnchorheadError as error:
        raise VerificationError(f"The stored expression is not defined on the whole domain: {error}") from error


def _check_boxes(claim: HeadClaim, progress: Progress | None) -> None:
    edges, bound = claim.edges, claim.approximation
    with precision():
        for i, (a, b) in enumerate(itertools.pairwise(edges)):
            error = box_error(claim, a, b, bound)
            if not error <= bound:
                raise VerificationError(f"On the box [{a:.17g}, {b:.17g}] the error may be {above(error, bound)}.")
            if progress is not None:
                progress(i + 1, len(edges) - 1)


def _check_far(claim: HeadClaim, low: float, high: float) -> list[tuple[int, float, Far]]:
    found, bound = [], claim.approximation
    for sign, end, start in ((-1, claim.low, -low), (1, claim.high, high)):
        if math.isinf(end):
            distant = far(claim, sign, start)
            if not distant.error <= bound:
                side = "right" if sign > 0 else "left"
                raise VerificationError(
                    f"Far out on the {side}, beyond {start:g}, the error may be {above(distant.error, bound)}."
                )
            found.append((sign, start, distant))
    return found


def _check_rounding(claim: HeadClaim, distant: list[tuple[int, float, Far]]) -> None:
    with precision():
        rounding = rounding_on(claim, claim.edges)
        for sign, start, found in distant:
            rounding = max(rounding, Rounding(claim).beyond(sign, start) + found.drift)
    if not rounding <= claim.rounding:
        raise VerificationError(f"Rounding in {claim.head.dtype} may reach {above(rounding, claim.rounding)}.")
