"""A pretrained model with attention in the place of every pointwise nonlinearity; the original is not touched.

For each distinct activation one head is compiled and proved on all of R. A gate, phi(u)·v, is the same head with two
channels of values, and a product of two keys (`proof/composed.py`): no interval is declared or calibrated. Heads are of
float64 in a model of that dtype, and else of float32, their results rounded to the model's. At the end the converted
model runs once: what else in it is nonlinear is listed (`watch.py`), and its outputs are held against the original's
(`trial.py`).
"""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any

import torch
from torch import fx, nn

from anchorhead.compiler.compile import compile_formula
from anchorhead.compiler.method import check_tol
from anchorhead.compiler.norm_models import norm_models
from anchorhead.compiler.odd_model import odd_model
from anchorhead.compiler.piece import BOUNDED
from anchorhead.compiler.refusals import BelowDtype
from anchorhead.conversion.asked import check_convertible, check_flags, copied
from anchorhead.conversion.code_digest import code_digests
from anchorhead.conversion.held_functions import put_modules
from anchorhead.conversion.linear import Around, around
from anchorhead.conversion.norms import names_of, scale_and_shift
from anchorhead.conversion.place_heads import PLACED, put
from anchorhead.conversion.pretrained import forbid_saving
from anchorhead.conversion.report import ConversionReport
from anchorhead.conversion.rows import Place, said
from anchorhead.conversion.sharing import shared
from anchorhead.conversion.sites import Site, find_sites
from anchorhead.conversion.sloped_ramp import put_ramps
from anchorhead.conversion.states import tensors_in
from anchorhead.conversion.trainable import make_trainable
from anchorhead.conversion.trial import try_out
from anchorhead.errors import InputError, PrecisionError, SingularityError, ToleranceError
from anchorhead.model.activation import Placed
from anchorhead.model.compiled import CompiledModel
from anchorhead.model.fused import warm as make_kernels
from anchorhead.model.norm import NormHead
from anchorhead.model.outside import check_policy
from anchorhead.progress import LOG, Progress, telling
from anchorhead.proof.composed import PRODUCT, RAMP

Roles = dict[str, CompiledModel]
TOL, WIDER = 1e-6, (1, 4, 16, 64)
REACH = 2.0**15
"""Up to which |u| the product of a gate is proved as a softmax; what it computes is as near for every u."""


def convert(
    module: nn.Module,
    tol: float | None = None,
    *,
    pure: bool = False,
    inputs: Any = None,
    accept: bool = False,
    outside: str = "warn",
    warm: bool = False,
    trainable: bool = False,
    progress: bool | Progress = True,
) -> nn.Module:
    """A copy of the module in which every pointwise nonlinearity is softmax attention, with `.report`.

    tol: the error of an activation, half of which its approximation gets. One that cannot be had raises
        `ToleranceError`. Without it 1e-6, or, where the dtype does not hold that for a function, as float32 does not
        for SELU, the next of 4e-6, 1.6e-5 and 6.4e-5.
    pure: whether norms become heads too (layer, RMS and group norms, by what they compute), so that affine maps and
        softmax attention are left and nothing else; `report.pure` says whether that is so, and `ah.walk` confirms it.
    inputs: an example of what the model takes: a tensor, a tuple of arguments, or a dictionary of keyword arguments.
        Without it one is built from the model's configuration or drawn from its forward's signature and its layers;
        where that fails the report says that the model was not watched. A model that differs from its original on them
        by more than the proved errors explain raises `ConversionError`.
    accept: whether activations for which tol cannot be had are left as they were and listed.
    outside: what an argument outside the interval of a head does when the model is run: "warn", once for each head,
        "error" or "ignore". Activations and gates are proved on all of R and have none; norms for mean squares from
        6e-14 to 1.7e10.
    warm: whether the kernels of the heads are made now, and not by the first forward of a large input.
    trainable: whether the values of the heads want gradients, so that an optimiser moves them; every place has a head
        of its own then, and `ah.recertify` proves what they have become.
    progress: as for `ah.compile`. Ctrl-C ends in a KeyboardInterrupt that says what was being done.

    >>> block = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 4))
    >>> converted = ah.convert(block, tol=1e-4)
    >>> len(converted.report.blocks), (converted(torch.ones(4)) - block(torch.ones(4))).abs().max().item() < 1e-3
    (1, True)
    """
    check_policy(outside)
    check_flags(pure=pure, accept=accept, warm=warm, trainable=trainable)
    check_convertible(module)
    wished = [TOL * factor for factor in WIDER] if tol is None else [check_tol(tol)]
    with telling(f"converting {type(module).__name__}", progress) as tell:
        model = _converted(module, wished, tell, inputs, outside, pure=pure, accept=accept)
        if trainable:
            make_trainable(model)
        report: Any = model.report
        report.settle(model)
        if warm:
            tell("making kernels")
            make_kernels(model)
    return model


def _converted(module: nn.Module, wished: list[float], tell: Progress, inputs: Any, outside: str, *, pure: bool,
               accept: bool) -> nn.Module:  # fmt: skip
    """The copy with heads in all places, tried out."""
    model: Any = put_ramps(copied(module))
    put_modules(model)
    sites, refused, graphs = find_sites(model, pure=pure)
    found = ConversionReport(wished[0], refused=list(refused), code=code_digests(module), shared=shared(module))
    heads, made = _Heads(wished, tell), []
    for site in sites:
        dtype = _dtype_at(model, site, inputs)
        roles = _heads_for(site, heads, dtype, found, accept=accept)
        if roles is not None:
            place = placed(model, site, roles, dtype, graphs.get(site.owner), outside)
            found.places.append(place)
            made.append((site, place.module))
            LOG.info("%s: %s by %d keys", site.place, site.formula or "norm", place.module.keys)
    for where, why in found.refused:
        LOG.info("%s: refused: %s", where, why)
    model = put(model, made, graphs)
    forbid_saving(model)
    model.report = found
    tell("watching it run")
    fed = try_out(module, model, inputs, found)
    found.places = [place.seen(fed) for place in found.places]
    converted: nn.Module = model
    return converted


def _heads_for(
    site: Site, heads: _Heads, dtype: torch.dtype, report: ConversionReport, *, accept: bool
) -> Roles | None:
    """The heads for a site, or None where there are none, with the reason in the report."""
    if dtype.is_complex:
        name = str(dtype).removeprefix("torch.")
        report.refused.append((said(site.place), f"the model computes in {name}, and heads are of real numbers"))
        return None
    try:
        return heads.at(site, dtype)
    except ToleranceError as error:
        why = _beyond(site, heads.tols[-1], dtype, error)
        if not accept:
            advice = "Use a larger tol, or accept=True (--accept), which leaves it as it was, and lists it."
            refusal = ToleranceError(f"{said(site.place)}: {why} {advice}")
            refusal.best = error.best
            raise refusal from None  # the cause names another number, half of tol
    except (InputError, SingularityError, PrecisionError) as error:
        why = f"{site.formula} has no head on all of R: {error.why or str(error).partition(BOUNDED)[0]}"
    report.refused.append((said(site.place), why))
    return None


def _beyond(site: Site, tol: float, dtype: torch.dtype, error: ToleranceError) -> str:
    """That a tolerance cannot be had, and what can."""
    own = "float64" if dtype == torch.float64 else "float32"
    best = f"the best that was found errs by {error.best:.3g}" if error.best < math.inf else "no head came near it"
    rounds = ", where evaluating a head rounds by more than is left" if isinstance(error, BelowDtype) else ""
    return f"tol={tol:g}, half of it for the head's error, cannot be had for {site.formula} in {own}{rounds}; {best}."


def placed(model: nn.Module, site: Site, roles: Roles, dtype: torch.dtype, graph: fx.Graph | None,
           outside: str) -> Place:  # fmt: skip
    """Heads for a site as they stand in the model, which computes in that dtype there, and what is around them."""
    module, near = _placed(model, site, roles, dtype), Around(None) if site.norm else around(model, site, graph)
    module.outside = outside
    return Place(site.place, module, near)


def _placed(model: nn.Module, site: Site, roles: Roles, dtype: torch.dtype) -> Placed:
    if site.norm is None:
        return PLACED[site.operation](site.formula, roles, dtype)
    if site.kind != "module":
        return NormHead(site.norm[0], roles, dtype)
    norm = model.get_submodule(site.place)
    return NormHead(site.norm[0], roles, dtype, *scale_and_shift(norm), names_of(norm))


def _dtype_at(model: nn.Module, site: Site, inputs: Any) -> torch.dtype:
    """The dtype in which the model computes at a site, as far as is known before it runs: that of the parameters
    nearby, or of all, and without any that of what it is given; complex where none are real."""
    near = [p for m in (model.get_submodule(site.owner), model) for p in m.parameters()]
    for held in (near, tensors_in(inputs)):
        found = [t.dtype for t in held if t.is_floating_point()] or [t.dtype for t in held if t.is_complex()]
        if found:
            return found[0]
    return torch.get_default_dtype()


class _Heads:
    """Heads by formula and dtype, each compiled once."""

    def __init__(self, tols: list[float], progress: Progress) -> None:
        self.tols, self.progress = tols, progress
        self.known: dict[tuple[str, torch.dtype], CompiledModel] = {}
        self.norms: dict[int, Roles] = {}

    def at(self, site: Site, dtype: torch.dtype) -> Roles:
        """By role: the activation's, and for a gate whose activation is not bounded a product; or those of a norm."""
        if site.norm is not None:
            return self._of_norm(site.norm[1])
        own = dtype if dtype == torch.float64 else torch.float32
        roles = {"activation": self._known(RAMP if site.operation == "square" else site.formula, own)}
        if site.operation != "activation" and any(roles["activation"].claim.head.gains):
            roles["product"] = self._known("", own)
        return roles

    def _of_norm(self, width: int) -> Roles:
        """The heads of a norm; all norms share those that do not depend on how many numbers there are."""
        if width not in self.norms:
            self.progress(f"norms of up to {width:,} numbers: compiling")
            shared = next(iter(self.norms.values()), {})
            found = norm_models(width) | {role: shared[role] for role in ("coarse", "fine") if role in shared}
            alike = (n for n in self.norms.values() if n["square"].claim == found["square"].claim)
            self.norms[width] = next(alike, found)
        return self.norms[width]

    def _known(self, formula: str, dtype: torch.dtype) -> CompiledModel:
        """The head of a formula on all of R, or of a product."""
        if (formula, dtype) not in self.known:
            self.progress(f"{formula or 'a product'}: compiling")
            if formula:
                self.known[formula, dtype] = self._of(formula, dtype)
            else:
                self.known[formula, dtype] = odd_model("x", REACH, min(PRODUCT, self.tols[0] / 8), dtype)
        return self.known[formula, dtype]

    def _of(self, formula: str, dtype: torch.dtype) -> CompiledModel:
        """With the first of the tolerances that can be had."""
        for tol in self.tols[:-1]:
            with suppress(ToleranceError):
                return compile_formula(formula, None, tol=tol / 2, dtype=dtype)
        return compile_formula(formula, None, tol=self.tols[-1] / 2, dtype=dtype)
