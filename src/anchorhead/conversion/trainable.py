"""Converted models whose heads are trained, and proofs of what they have become.

What is trained of a head are its values: the constants of its keys, and their gains where the activation has any (a
head of constant values keeps none, so that it still carries a partner and stays bounded), but for those of the two end
keys, the slopes at infinity. Scores stay: they say where on the line each value counts. Every place has a head of its
own then. A gate's product is what it was.

After training a head is no longer near its formula to the tolerance of the conversion. `recertify` proves how near it
is: the same proof by boxes, asymptotes and rounding as at first, with the numbers as they are now and the smallest
bound that it finds. On an infinite side the end key's line counts: by how much its constant is off is part of the
error, and by how much its gain is off is multiplied by |x| and counts as rounding (`proof/far.py`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from anchorhead.compiler.prove import certificate, prove_head, sampled_error
from anchorhead.compiler.target import Target
from anchorhead.conversion.report import ConversionReport
from anchorhead.digits import Up
from anchorhead.errors import AnchorheadError, InputError
from anchorhead.expression.graph import Expression
from anchorhead.head.head import NUMBERS, Head
from anchorhead.head.module import HeadModule
from anchorhead.model.activation import Placed
from anchorhead.model.compiled import CompiledModel
from anchorhead.model.head_core import HeadCore
from anchorhead.progress import Progress, telling
from anchorhead.proof.head_claim import HeadClaim
from anchorhead.proof.norm_heads import share_of

TRAINED = "activation"
"""The role of the head that is trained."""
ROOM = (1.5, 3.0, 6.0, 12.0, 50.0)
"""Multiples of the error on samples that are tried to be proved, one after the other."""


@dataclass(frozen=True)
class Recertified:
    """A head after training: what was proved of it before, what is now; infinite, with the reason, where nothing is.

    share: of a norm, of what the errors are a share.
    """

    place: str
    formula: str
    before: float
    error: float
    rounding: float
    changed: bool
    problem: str = ""
    share: str = ""

    def __str__(self) -> str:
        if self.problem:
            return f"{self.place}: {self.formula}, not proved: {self.problem}"
        rounding = "included" if self.share else f"{Up(self.rounding):.3g}"
        before = f"before {Up(self.before):.3g}" if self.changed else "as it was"
        error = f"error {Up(self.error):.3g}{f' of {self.share}' if self.share else ''}"
        return f"{self.place}: {self.formula}, {error}, rounding {rounding}, {before}"

    __repr__ = __str__


@dataclass(frozen=True)
class RecertifiedReport:
    """Every head of a converted model, in the order of its report."""

    heads: tuple[Recertified, ...]

    @property
    def proved(self) -> bool:
        """Whether something is proved of every head."""
        return not any(head.problem for head in self.heads)

    @property
    def error(self) -> float:
        """The largest of all heads."""
        return max((head.error for head in self.heads), default=0.0)

    def __str__(self) -> str:
        count, unproved = len(self.heads), sum(bool(head.problem) for head in self.heads)
        proved = f"{unproved} of them NOT proved" if unproved else "all proved" if count > 1 else "proved"
        said = f"{count} head{'s' * (count != 1)}, {proved}, errors up to {Up(self.error):.3g}"
        return "\n".join([said, *(f"  {head}" for head in self.heads)])

    __repr__ = __str__


def make_trainable(model: nn.Module) -> None:
    """Gives every place a head of its own, whose values want gradients."""
    for module in list(model.modules()):
        if isinstance(module, Placed) and TRAINED in module.compiled:
            before = module.compiled[TRAINED]
            own = CompiledModel(HeadCore(before.claim), before.certificate, before.method)
            module.compiled[TRAINED], module.heads[TRAINED] = own, own.head
            own.head.train_values()


def recertify(model: nn.Module, *, progress: bool | Progress = True) -> RecertifiedReport:
    """Proves of every head of a converted model how far it is from its formula as its numbers are now.

    What is proved is what the heads, the model's report and folders claim from then on; a head of which nothing can be
    proved stays as it is, without a certificate, and is named with the reason. progress: as for `ah.compile`.

    >>> model = ah.convert(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU()), trainable=True)
    >>> print(str(ah.recertify(model)).splitlines()[0])
    1 head, proved, errors up to 2.38e-07
    """
    report: Any = getattr(model, "report", None)
    if not isinstance(report, ConversionReport):
        raise InputError("Only a model that ah.convert returned has heads to certify; it has a .report.")
    found = []
    with telling("proving the heads again", progress) as tell:
        for place in report.places:
            tell(f"{place.place}: {place.module.formula}")
            found.append(_recertified(place.place, place.module))
    if any(head.changed for head in found):  # what was compared with the original are other heads
        report.difference = report.size = math.nan
    return RecertifiedReport(tuple(found))


def _recertified(place: str, module: Placed) -> Recertified:
    if TRAINED not in module.compiled:
        return _of_norm(place, module)
    before = module.compiled[TRAINED]
    claim, head = before.claim, before.head
    if any(model.certificate.level != "proved" for role, model in module.compiled.items() if role != TRAINED):
        return _unproved(place, claim, "numbers of the product with a partner were changed, which are not trained")
    if before.certificate.level == "proved":
        return Recertified(place, module.formula, claim.approximation, claim.approximation, claim.rounding, False)
    try:
        found = _proved(claim, head.numbers)
    except AnchorheadError as error:
        return _unproved(place, claim, str(error))
    if isinstance(found, str):
        return _unproved(place, claim, found)
    target, proved = found
    module.compiled[TRAINED] = _with(head, proved, target, before)
    return Recertified(place, module.formula, claim.approximation, proved.approximation, proved.rounding, True)


def _of_norm(place: str, module: Placed) -> Recertified:
    """The heads of a norm are not trained: they are what they were, or nothing is known of them."""
    relative, changed = module.bound.relative, "" if module.proved else "numbers of a norm's heads were changed"
    share = share_of(module.formula)
    return Recertified(place, module.formula, relative, relative, 0.0, bool(changed), changed, share)


def _unproved(place: str, claim: HeadClaim, problem: str) -> Recertified:
    formula = str(Expression((claim.function,), (claim.variable,)))
    return Recertified(place, formula, claim.approximation, math.inf, math.inf, True, problem)


def _proved(claim: HeadClaim, head: Head) -> tuple[Target, HeadClaim] | str:
    """The claim of the numbers as they are, with the smallest bound that is proved; or why there is none."""
    wrong = [name for name in NUMBERS if not all(map(math.isfinite, getattr(head, name)))]
    if wrong:
        return f"its {wrong[0].replace('_', ' ')} are not all finite numbers"
    target = Target(Expression((claim.function,), (claim.variable,)), claim.low, claim.high, relative=claim.relative,
                    evaluation=claim.evaluation if head.odd is not None else "")  # fmt: skip
    shown = max(sampled_error(target, head, claim.edges, claim.approximation), 1e-14)
    for room in ROOM:
        found = prove_head(target, head, room * shown, claim.edges, claim.method)
        if isinstance(found, HeadClaim) and math.isfinite(found.rounding):
            return target, found
    return f"it errs by about {shown:.3g} on samples, and no bound near that was proved on all of its domain"


def _with(head: HeadModule, claim: HeadClaim, target: Target, before: CompiledModel) -> CompiledModel:
    """A model of the claim with the head as it is, so that an optimiser that knows its parameters goes on."""
    core = HeadCore(claim)
    core.head = head
    head.settle()
    return CompiledModel(core, replace(certificate(target, claim), source=before.certificate.source), before.method)
