"""Chains of ah.compile: text or module, compile, save, verify, load, run in its dtype, compare with the oracle."""

from __future__ import annotations

import contextlib
import math
import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mpmath

import anchorhead as ah
from attack import files, grammar
from attack.measuring import CHECK, COMPILE, Result, limit, measure
from attack.oracle import Formula, Module, Undefined

mp = mpmath.mp


def compiled(kind: str, seed: int, result: Result, count: int = 450) -> tuple[Any, Any, bytes]:
    """One chain; returns the loaded model, its oracle and its file."""
    rng = random.Random(f"{kind}:{seed}")
    draw = {"heads": grammar.head, "networks": grammar.network, "modules": grammar.module}
    target = draw.get(kind, grammar.opaque if rng.random() < 0.25 else grammar.grid)(rng)
    result.call = target.call
    truth: Any = Module(target.text) if kind == "modules" else Formula(target.text, target.variables)
    with limit(COMPILE):
        text = _callable(truth) if "lipschitz" in target.options else target.text
        model = ah.compile(text, target.domain, **target.options)
    back, data = through_a_file(model, result)
    _claims(model.certificate, target, truth, result)
    edges = files.read(data).edges()
    some = rng.sample(edges, min(len(edges), 40))
    result.measured(measure(truth, back, model.certificate, seed, count, some), str(model.certificate))
    return back, truth, data


def through_a_file(model: Any, result: Result) -> tuple[Any, bytes]:
    """The model as saved and loaded, and its file, which must be verified with the same certificate."""
    with tempfile.TemporaryDirectory() as folder, limit(CHECK):
        path = Path(folder) / "model.safetensors"
        model.save(path)
        try:
            certificate = ah.verify(path)
            if claim_of(certificate) != claim_of(model.certificate):
                result.violated(f"verified another certificate: {certificate} for {model.certificate}")
        except ah.AnchorheadError as error:
            if model.certificate.level == "proved":
                result.violated(f"compiled and saved, but not verified: {error}")
        return ah.load(path), path.read_bytes()


def claim_of(certificate: Any) -> tuple[Any, ...]:
    """What is claimed of what: a traced module by its circuit's digest, which is all that a checker can name it by."""
    target = certificate.circuit or certificate.expression
    claimed = (certificate.approximation, certificate.rounding, certificate.outputs, certificate.boxes)
    return (target, certificate.domain, certificate.dtype, certificate.level, certificate.variables, *claimed)


def _callable(truth: Formula) -> Callable[..., float]:
    """The formula as a function of numbers that torch cannot look into."""
    names = ", ".join(truth.variables)
    made: Callable[..., float] = eval(
        f"lambda {names}: at([{names}])", {"at": lambda v: float(truth.at(map(float, v))[0])}
    )
    return made


def _claims(certificate: Any, target: grammar.Target, truth: Any, result: Result) -> None:
    """What the certificate says is what was asked."""
    wanted = target.domain.values() if isinstance(target.domain, dict) else target.domain
    if list(certificate.domain) != [tuple(pair) for pair in wanted]:
        result.violated(f"asked for the domain {list(wanted)}, proved on {certificate.domain}")
    if certificate.variables and target.variables and certificate.variables != target.variables:
        result.violated(f"asked for variables {target.variables}, proved for {certificate.variables}")
    if not certificate.bound <= target.options.get("tol", math.inf):
        result.violated(f"asked for {target.options['tol']}, got {certificate.bound}")
    if certificate.level != "proved" or not target.variables:
        return
    stated, place = Formula(certificate.expression, target.variables), [0.618 + i for i in range(len(wanted))]
    with contextlib.suppress(Undefined), mp.workdps(60):
        pairs = zip(stated.at(place), truth.at(place), strict=True)
        if any(abs(a - b) > mp.mpf(10) ** -30 * (1 + abs(b)) for a, b in pairs):
            result.violated(f"the certificate speaks of another function: {certificate.expression}")
