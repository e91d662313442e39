"""Mutated files: each is refused with an AnchorheadError, in time, or what is then called proved is true."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from typing import Any

import anchorhead as ah
from attack import files, points
from attack.beside import row_maps
from attack.compiling import compiled
from attack.measuring import CHECK, Result, TimeLimit, limit, measure, run
from attack.opening import opened
from attack.oracle import Formula, Module, Program

FILES = 40


def mutated_files(seed: int, result: Result, report: Callable[[str], None]) -> None:
    """Forty mutations of one model's file."""
    rng = random.Random(f"files:{seed}")
    kind, base = rng.choice(("heads", "heads", "networks", "networks", "modules", "grids", "row_maps")), Result("")
    for other in range(20):  # the first that compiles
        with contextlib.suppress(ah.AnchorheadError, TimeLimit):
            number = 10**9 + 20 * seed + other
            made = row_maps(number, base, 60) if kind == "row_maps" else compiled(kind, number, base, 60)
            model, truth, data = made
            if model.certificate.level == "proved":
                break
    else:
        result.status, result.reason = "refused", "nothing to mutate"
        return
    result.call = f"files of {base.call}"
    for index in range(FILES):
        said, changed = files.mutated(rng, data)
        report(f"{index}: {said}")
        judge(changed, truth, model.certificate, f"{index}: {said}", result)


def judge(data: bytes, truth: Any, original: Any, said: str, result: Result) -> Any:
    """One file; returns its certificate if it was accepted. A lie, another exception or a hang is a finding."""
    certificate, model = opened(data, said, result)
    if certificate is None or model is None:
        result.refused += 1
        return None
    try:
        with limit(CHECK):
            lie = lied(data, truth, original, certificate, model, result)
    except (TimeLimit, Exception) as error:
        lie = f"it cannot be run or read: {type(error).__name__}: {error}"[:300]
    result.lies += bool(lie)
    result.true += not lie
    if lie:
        result.violated(f"{said}: accepted as {str(certificate)!r}: {lie}")
    return certificate


def lied(data: bytes, truth: Any, original: Any, certificate: Any, model: Any, result: Result) -> str:
    """Why a verified certificate is not true of the loaded model, or an empty text."""
    words = " ".join((certificate.expression, *certificate.variables, *certificate.assumptions, certificate.dtype))
    if files.MARK in words or not all(c.isprintable() for c in words):
        return "it says what was put into it"
    if isinstance(truth, Module):  # what has the traced circuit's digest must be it, and what has another its own
        same = certificate.circuit == original.circuit
        stated: Any = truth if same else Program(files.read(data).record["program"])
    else:
        stated = Formula(certificate.expression, certificate.variables or None)
        stated.variables = stated.variables or ("x",)
        if len(stated.variables) != len(certificate.domain):
            return f"{len(certificate.domain)} intervals for the variables {stated.variables}"
    box = points.Box(certificate.domain, certificate.dtype)
    outputs = 0 if box.empty else run(model, box.low[None]).shape[1]
    if outputs and certificate.outputs and len(certificate.outputs) != outputs:
        return f"{len(certificate.outputs)} bounds for {outputs} outputs"
    found = measure(stated, model, certificate, 0, 60, search=False)
    result.measured(found)
    return f"error {found.ratio:.4g} times the bound: {found.at}" if found.ratio > 1 else ""
