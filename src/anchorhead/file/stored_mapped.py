"""A head under another row map than softmax, read without trust and checked."""

from __future__ import annotations

from anchorhead.digits import Up
from anchorhead.errors import FileError, VerificationError
from anchorhead.file.container import ModelFile
from anchorhead.file.stored import head_claim
from anchorhead.proof.curve import Formula
from anchorhead.proof.head_claim import HeadClaim
from anchorhead.proof.mapped import worst_error, worst_rounding
from anchorhead.row_maps import RowMap, row_map_of


def stored_mapped(found: ModelFile) -> tuple[HeadClaim, RowMap]:
    """What a file claims of the head, and the map."""
    claim = head_claim(found)
    if claim.relative or (claim.evaluation and not claim.head.joined) or not claim.bounded:
        raise FileError("A head under another row map has an absolute bound on a bounded domain, and the file another.")
    return claim, row_map_of(found.record.get("row_map"))


def check_mapped(claim: HeadClaim, row_map: RowMap) -> None:
    """The bounds, on the boxes of the claim, which cover its domain."""
    curve = row_map.curve(claim.head)
    if curve is None:
        raise VerificationError(f"Nothing is proved of heads under {row_map.name}.")
    exact = worst_error(curve, Formula(claim.function, claim.variable), claim.edges)
    rounding = worst_rounding(curve.rounding, claim.edges)
    if not (exact <= claim.approximation and rounding <= claim.rounding):
        raise VerificationError(
            f"Under {row_map.name} the error may be {Up(exact):.3g} and rounding {Up(rounding):.3g}, above the claimed "
            f"{Up(claim.approximation):.3g} and {Up(claim.rounding):.3g}."
        )
