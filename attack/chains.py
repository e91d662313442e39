"""The chains: from a drawn target through compile, save, verify and load to a run, compared with the oracle.

A chain ends in one of: `held`, `refused` (an AnchorheadError, with its reason), `slow`, or `violated` with its findings:
an error above what was proved, a claim that differs from what was asked, another exception than AnchorheadError.
"""

from __future__ import annotations

import contextlib
import math
import random
import signal
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import torch
from torch import nn

import anchorhead as ah
from attack import files, grammar, points
from attack.oracle import Formula, Module, Program, Undefined

mp = mpmath.mp
COMPILE, CHECK = 15, 10
"""Seconds for compiling, and for verifying or loading."""


@dataclass
class Result:
    """What became of a chain."""

    chain: str
    status: str = "held"
    call: str = ""
    reason: str = ""
    points: int = 0
    ratio: float = 0.0
    at: str = ""
    refused: int = 0
    true: int = 0
    lies: int = 0
    findings: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def violated(self, finding: str) -> None:
        self.status = "violated"
        self.findings.append(finding)

    def measured(self, found: Measured) -> None:
        self.points += found.points
        if found.ratio > self.ratio or not self.at:
            self.ratio, self.at = found.ratio, found.at


class TimeLimit(BaseException):
    """A step took too long; nothing in the library catches it."""


@contextlib.contextmanager
def limit(seconds: float) -> Iterator[None]:
    """Ends what runs longer, by a signal."""

    def ring(*_: object) -> None:
        raise TimeLimit

    if threading.current_thread() is not threading.main_thread():  # where no signal can be had
        yield
        return
    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@dataclass(frozen=True)
class Measured:
    """How many points were compared, the largest error over its bound, and where that is."""

    points: int
    ratio: float
    at: str


def compare(target: Any, outputs: np.ndarray, places: np.ndarray, limits: np.ndarray) -> Measured:
    """The largest |target - output| over its limit; with more digits until those found do not depend on them."""
    for more in (1, 2, 4, 8):
        ratios = [_ratio(target, *row, more=more) for row in zip(places, outputs, limits, strict=True)]
        known = [i for i, ratio in enumerate(ratios) if ratio is not None]
        if not known:
            return Measured(0, 0.0, "")
        worst = sorted(known, key=lambda i: -ratios[i])[:4]  # type: ignore[operator]
        checked = {
            i: _ratio(target, places[i], outputs[i], limits[i], more=2 * more)
            for i in [*worst, *known[:: max(1, len(known) // 4)]]
        }
        if all(
            v is not None and (v == ratios[i] or abs(v - ratios[i]) <= 1e-3 * max(1, v)) for i, v in checked.items()
        ):  # type: ignore[operator]
            top = worst[0]
            return Measured(len(known), float(checked[top]), _place(places[top], outputs[top]))  # type: ignore[arg-type]
    return Measured(0, 0.0, "")


def _ratio(target: Any, place: np.ndarray, output: np.ndarray, limits: np.ndarray, more: int) -> float | None:
    try:
        exact = target.at(map(float, place), more)
    except Undefined:
        return None
    if not np.isfinite(output).all() or len(exact) != len(output):
        return math.inf
    with mp.workdps(40 + 340 * bool(np.abs(place).max(initial=0) > 1e20)):
        errors = [(abs(mp.mpf(float(o)) - e), mp.mpf(float(b))) for o, e, b in zip(output, exact, limits, strict=True)]
        return max(float(e / b) if b else (math.inf if e else 0.0) for e, b in errors)


def _place(place: np.ndarray, output: np.ndarray) -> str:
    return f"x={[float(v) for v in place]!r} gives {[float(v) for v in output]!r}"


def run(model: Any, places: np.ndarray) -> np.ndarray:
    """A model of m numbers on rows (n, m), as (n, outputs)."""
    x = torch.from_numpy(np.ascontiguousarray(places))
    shape = getattr(model, "input_shape", None)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        out = model(x[:, 0] if shape is None else x.reshape(len(x), *shape))
    return out.reshape(len(x), -1).double().numpy()


def allowed(certificate: Any, places: np.ndarray, outputs: int) -> np.ndarray:
    """What is claimed at each point for each output, (n, outputs)."""
    if certificate.bounded:
        return np.broadcast_to(np.array(certificate.outputs or [certificate.bound] * outputs), (len(places), outputs))
    size = np.abs(places.astype(np.longdouble)).max(-1, keepdims=True)
    claimed = (certificate.approximation + certificate.rounding * (1 + size)).astype(np.float64)
    return np.broadcast_to(np.nextafter(claimed, np.inf), (len(places), outputs))


def measure(target: Any, model: Any, certificate: Any, seed: int, count: int, edges: Sequence[float] = ()) -> Measured:
    """A model against its certificate at points of every kind."""
    box = points.Box(certificate.domain, certificate.dtype)
    if box.empty:
        return Measured(0, 0.0, "")
    places = points.chosen(box, target, seed, count, edges)

    def estimate(rows: np.ndarray) -> np.ndarray:
        out = run(model, rows)
        return (np.abs(out - target.fast(rows)) / np.maximum(allowed(certificate, rows, out.shape[1]), 1e-300)).max(-1)

    places = np.concatenate([places, points.uphill(box, estimate, seed)])
    outputs = run(model, places)
    return compare(target, outputs, places, allowed(certificate, places, outputs.shape[1]))


def compiled(kind: str, seed: int, result: Result, count: int = 450) -> tuple[Any, Any, bytes]:
    """A chain of ah.compile; returns the model, its oracle and its file where it got as far."""
    rng = random.Random(f"{kind}:{seed}")
    draw = {"heads": grammar.head, "networks": grammar.network, "modules": grammar.module}
    target = draw.get(kind, grammar.opaque if rng.random() < 0.25 else grammar.grid)(rng)
    result.call = target.call if kind != "modules" else f"module {kind}:{seed} {target.domain} {target.options}"
    text, variables = target.text, target.variables
    truth: Any = Module(text) if kind == "modules" else Formula(text, variables)
    if "lipschitz" in target.options:
        text = _callable(truth)
    with limit(COMPILE):
        model = ah.compile(text, target.domain, **target.options)
    with tempfile.TemporaryDirectory() as folder, limit(CHECK):
        path = Path(folder) / "model.safetensors"
        model.save(path)
        _verified(model, path, result)
        back = ah.load(path)
        data = path.read_bytes()
    _claims(model.certificate, target, truth, result)
    edges = files.read(data).edges()
    found = measure(truth, back, model.certificate, seed, count, random.Random(seed).sample(edges, min(len(edges), 40)))
    result.measured(found)
    if found.ratio > 1:
        result.violated(f"error {found.ratio:.6g} times the bound: {model.certificate}: {found.at}")
    return back, truth, data


def _callable(truth: Formula) -> Callable[..., float]:
    """The formula as a function of numbers that torch cannot look into."""
    names = ", ".join(truth.variables)
    return eval(f"lambda {names}: at([{names}])", {"at": lambda v: float(truth.at(map(float, v))[0])})


def _verified(model: Any, path: Path, result: Result) -> None:
    try:
        certificate = ah.verify(path)
    except ah.AnchorheadError as error:
        if model.certificate.level == "proved":
            result.violated(f"compiled and saved, but not verified: {error}")
        return
    if certificate != model.certificate:
        result.violated(f"verified another certificate: {certificate} for {model.certificate}")


def _claims(certificate: Any, target: grammar.Target, truth: Any, result: Result) -> None:
    """What the certificate says is what was asked."""
    wanted = list(target.domain.values() if isinstance(target.domain, dict) else target.domain)
    if list(certificate.domain) != [tuple(pair) for pair in wanted]:
        result.violated(f"asked for the domain {wanted}, proved on {certificate.domain}")
    if certificate.variables and target.variables and certificate.variables != target.variables:
        result.violated(f"asked for variables {target.variables}, proved for {certificate.variables}")
    if not certificate.bound <= target.options.get("tol", math.inf):
        result.violated(f"asked for {target.options['tol']}, got {certificate.bound}")
    if certificate.level == "proved" and target.variables:
        stated, place = (
            Formula(certificate.expression, target.variables),
            [0.6180339887 + i for i in range(len(target.variables))],
        )
        with contextlib.suppress(Undefined), mp.workdps(60):
            pairs = zip(stated.at(place), truth.at(place), strict=True)
            if any(abs(a - b) > mp.mpf(10) ** -30 * (1 + abs(b)) for a, b in pairs):
                result.violated(f"the certificate speaks of another function: {certificate.expression}")


def in_context(seed: int, result: Result) -> None:
    """Gradient descent on prompts, against the algorithm iterated in mpmath."""
    rng = random.Random(f"in_context:{seed}")
    draw = np.random.default_rng(seed)
    kind, text, slope = grammar.loss(rng)
    features, examples = rng.randint(1, 4), rng.randint(1, 8)
    bounds = {"x": rng.choice((1.0, 2.0, 3.0)), "y": rng.choice((1.0, 2.0, 5.0)), "w": rng.choice((2.0, 5.0, 10.0))}
    options = dict(features=features, examples=examples, steps=rng.randint(1, 12), learning_rate=rng.choice((0.01, 0.05, 0.1, 0.25, 1 / 3)),
                   bounds=bounds, dtype=rng.choice((torch.float64, torch.float64, torch.float32)))  # fmt: skip
    options |= {"l2": rng.choice((0.01, 0.1))} if rng.random() < 0.3 else {}
    options |= {"l1": rng.choice((0.01, 0.1))} if rng.random() < 0.3 else {}
    options |= {"momentum": 0.5} if rng.random() < 0.15 else {}
    result.call = f"gradient_descent({kind} {text!r}, {options})"
    with limit(COMPILE):
        made = ah.in_context.Loss(gradient=text) if kind == "gradient" else text
        model = ah.in_context.gradient_descent(made, **options)  # type: ignore[arg-type]
    formula, dtype = Formula(slope, ("s", "y")), np.float32 if options["dtype"] is torch.float32 else np.float64
    for attempt in range(6):
        size = rng.choice((1.0, 1.0, 0.5, 0.1))
        X = (size * bounds["x"] * draw.choice([-1, 1, 0, draw.uniform(-1, 1)], (examples, features))).astype(dtype)
        X = X if rng.random() < 0.4 else (size * bounds["x"] * draw.uniform(-1, 1, X.shape)).astype(dtype)
        y = (bounds["y"] * size * draw.uniform(-1, 1, examples)).astype(dtype)
        y = {"logistic": (y > 0).astype(dtype), "poisson": abs(y)}.get(text, y)
        w0 = (rng.choice((0, 0, 0.5)) * draw.uniform(-1, 1, features)).astype(dtype)
        try:
            found = model.trajectory(*map(torch.from_numpy, (X, y, w0))).double().numpy()
        except ah.AnchorheadError as error:
            result.reason = _sentence(error)
            continue
        exact = _descent(formula, X, y, w0, options)
        for step, (mine, theirs) in enumerate(zip(found, exact, strict=True)):
            with mp.workdps(50):
                distance = mpmath.sqrt(sum((mp.mpf(float(a)) - b) ** 2 for a, b in zip(mine, theirs, strict=True)))
                bound = (
                    model.deviation_bounds[step]
                    if step < len(found) - 1
                    else min(model.deviation_bounds[-1], model.certificate.bound)
                )
                ratio = float(distance / mp.mpf(bound)) if bound else (math.inf if distance else 0.0)
            at = f"prompt {attempt}, step {step}: error {float(distance):.3g}, proved {bound:.3g}"
            result.measured(Measured(features, ratio if math.isfinite(mine.sum()) else math.inf, at))
    if result.ratio > 1:
        result.violated(f"{result.ratio:.6g} times the bound: {result.at}")
    if not result.points:
        result.status = "refused"


def _descent(slope: Formula, X: Any, y: Any, w0: Any, options: dict[str, Any]) -> list[list[Any]]:
    """The iterates of w' = prox(w - rate (mean of l'(w·x, y) x + l2 w) + momentum (w - before))."""
    rate, l2, l1, momentum = (mp.mpf(options.get(k, 0.0)) for k in ("learning_rate", "l2", "l1", "momentum"))
    with mp.workdps(50):
        rows = [([mp.mpf(float(v)) for v in row], mp.mpf(float(label))) for row, label in zip(X, y, strict=True)]
        before = w = [mp.mpf(float(v)) for v in w0]
        kept = [w]
        for _ in range(options["steps"]):
            slopes = [slope.at([mpmath.fdot(zip(w, row, strict=True)), label])[0] for row, label in rows]
            gradient = [
                sum(g * row[j] for g, (row, _) in zip(slopes, rows, strict=True)) / len(rows) for j in range(len(w))
            ]
            v = [a - rate * (g + l2 * a) + momentum * (a - b) for a, g, b in zip(w, gradient, before, strict=True)]
            before, w = w, [a - max(-rate * l1, min(rate * l1, a)) for a in v]
            kept.append(w)
    return kept


def theorems(seed: int, result: Result) -> None:
    """The paper's constructions against clip(w·x + t) or a function with a known Lipschitz constant."""
    rng = random.Random(f"theorems:{seed}")
    draw = np.random.default_rng(seed)
    dtype = rng.choice((torch.float64, torch.float32))
    kind = np.dtype("float32" if dtype is torch.float32 else "float64")
    if rng.random() < 0.3:
        return _grid_theorem(rng, draw, dtype, kind, result)
    n, d = rng.randint(3, 6), rng.randint(1, 4)
    weights, bias = draw.normal(size=(n, d)).astype(kind), (rng.choice((0, 1, 10)) * draw.normal(size=n)).astype(kind)
    low = rng.choice((-1.0, 0.0, -25.0, 2.0, -0.3))
    options: dict[str, Any] = {
        "low": low,
        "high": low + rng.choice((1.0, 5.0, 50.0)),
        "temperature": rng.choice((None, None, 0.1, 3.0, 100.0, 1e4)),
    }
    name = rng.choice(("single_head", "multi_head"))
    options |= {"anchors": rng.choice((n + 1, 16, 64))} if name == "single_head" else {"heads": rng.randint(1, 6)}
    result.call = f"{name}, theorems:{seed}: {options}"
    with limit(COMPILE):
        model = getattr(ah.theorems, name)(torch.from_numpy(weights), torch.from_numpy(bias), **options)
        bound = model.bound
    x = (10.0 ** draw.uniform(-3, 2, (120, 1, 1)) * draw.normal(size=(120, n, d))).astype(kind)
    x[:40] *= (
        (low + draw.random((40, n, 1)) * (options["high"] - low) - bias[:, None])
        / ((x[:40] * weights).sum(-1, keepdims=True))
    ).astype(kind)
    terms = np.abs(x * weights).sum(-1) + np.abs(bias - (low + options["high"]) / 2)
    x = x[(terms <= model.summand_limit).all(-1)]
    if not len(x):
        result.status, result.reason = "refused", "no input within the summand limit"
        return None
    with torch.no_grad():
        out = model(torch.from_numpy(x)).double().numpy()[..., 0]
    for i in range(n):
        ramp = nn.Sequential(nn.Linear(d, 1), nn.Hardtanh(low, options["high"])).to(dtype)
        with torch.no_grad():
            ramp[0].weight.copy_(torch.from_numpy(weights[i : i + 1]))
            ramp[0].bias.copy_(torch.from_numpy(bias[i : i + 1]))
        found = compare(Module(ramp), out[:, i : i + 1], x[:, i], np.full((len(x), 1), bound))
        result.measured(found)
        if found.ratio > 1:
            result.violated(f"{found.ratio:.6g} times the bound {bound:.6g}: token {i}, {found.at}")
    return None


def _grid_theorem(rng: random.Random, draw: Any, dtype: Any, kind: Any, result: Result) -> None:
    d = rng.randint(1, 2)
    a, c = [round(rng.uniform(-2, 2), 3) for _ in range(d)], round(rng.uniform(-2, 2), 3)
    lipschitz = abs(c) * sum(map(abs, a)) * 1.000001 + 1e-12
    options = {
        "levels": rng.choice((4, 8, 16)),
        "selection_error": rng.choice((1e-6, 1e-3)),
        "temperature": rng.choice((None, None, 50.0)),
    }
    result.call = f"two_layer of {c}*sin({a}·x), {options}"
    waves = torch.tensor(a, dtype=torch.float64)
    with limit(COMPILE):
        model = ah.theorems.two_layer(
            lambda X: (c * torch.sin(X.double() @ waves)).to(X.dtype).unsqueeze(-1), 1, d, dtype=dtype, **options
        )
        bound = model.bound_for(lipschitz=lipschitz, metric="sup")
    x = draw.random((200, 1, d)).astype(kind)
    with torch.no_grad():
        out = model(torch.from_numpy(x)).double().numpy()[:, 0]
    names = tuple(f"x{i}" for i in range(d))
    text = f"({c})*sin({' + '.join(f'({v})*{n}' for v, n in zip(a, names, strict=True))})"
    found = compare(Formula(text, names), out, x[:, 0], np.full((len(x), 1), bound))
    result.measured(found)
    if found.ratio > 1:
        result.violated(f"{found.ratio:.6g} times the bound {bound:.6g}: {found.at}")


FILES = 40


def mutated_files(seed: int, result: Result, report: Callable[[str], None]) -> None:
    """Mutations of one model's file: each is refused, or what is proved of it is true."""
    rng = random.Random(f"files:{seed}")
    kind = rng.choice(("heads", "heads", "networks", "networks", "modules", "grids"))
    base = Result("")
    for other in range(20):  # the first that compiles
        with contextlib.suppress(ah.AnchorheadError, TimeLimit):
            made = compiled(kind, 10**9 + 20 * seed + other, base, 60)
            if made[0].certificate.level == "proved":
                break
    else:
        result.status, result.reason = "refused", "nothing to mutate"
        return
    model, truth, data = made
    result.call = f"files of {base.call}"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        for index in range(FILES):
            said, changed = files.mutated(rng, data)
            report(f"{index}: {said}")
            path.write_bytes(changed)
            judge(path, changed, truth, model.certificate, f"{index}: {said}", result)


def judge(path: Path, data: bytes, truth: Any, original: Any, said: str, result: Result) -> None:
    """One file: verify and load raise nothing but AnchorheadError in time, and what is verified is true."""
    found = []
    for what in (ah.verify, ah.load):
        try:
            with limit(CHECK):
                found.append(what(path))
        except ah.AnchorheadError:
            found.append(None)
        except (TimeLimit, Exception) as error:
            result.violated(f"{said}: {what.__name__} raised {_sentence(error)}")
            found.append(None)
    certificate, model = found
    if certificate is None or model is None:
        result.refused += 1
        return
    try:
        with limit(CHECK):
            lie = lied(data, truth, original, certificate, model, result)
    except (TimeLimit, Exception) as error:
        lie = f"it could not be run: {_sentence(error)}"
    if lie:
        result.lies += 1
        result.violated(f"{said}: accepted as {str(certificate)!r}: {lie}")
    else:
        result.true += 1


def lied(data: bytes, truth: Any, original: Any, certificate: Any, model: Any, result: Result) -> str:
    """Why a verified certificate is not true of the loaded model, or an empty text."""
    words = " ".join((certificate.expression, *certificate.variables, *certificate.assumptions, certificate.dtype))
    if files.MARK in words or not all(c.isprintable() for c in words):
        return "it says what was put into it"
    if isinstance(truth, Module):
        if certificate.expression != original.expression:
            return f"it speaks of {certificate.expression}"
        program = files.read(data).record.get("program")
        stated: Any = truth if program is None else Program(program)
    else:
        stated = Formula(certificate.expression, certificate.variables or None)
        if not stated.variables:
            stated.variables = ("x",)
    if len(stated.variables) != len(certificate.domain):
        return f"{len(certificate.domain)} intervals for the variables {stated.variables}"
    box = points.Box(certificate.domain, certificate.dtype)
    if box.empty:
        return ""
    places = points.chosen(box, stated, 0, 60)
    outputs = run(model, places)
    if certificate.outputs and len(certificate.outputs) != outputs.shape[1]:
        return f"{len(certificate.outputs)} bounds for {outputs.shape[1]} outputs"
    limits = allowed(certificate, places, outputs.shape[1])
    if certificate.outputs:  # a head's own bound counts beside that of its outputs
        limits = np.minimum(limits, np.array(certificate.outputs))
    measured = compare(stated, outputs, places, limits)
    result.measured(measured)
    return f"error {measured.ratio:.4g} times the bound: {measured.at}" if measured.ratio > 1 else ""


def _sentence(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:300]


KINDS = {"heads": 6, "networks": 6, "modules": 3, "grids": 3, "in_context": 2, "theorems": 2, "files": 3}
"""The kinds, and how many of each come before the next round."""


def chain(name: str, report: Callable[[str], None] = lambda step: None) -> Result:
    """Runs one chain by its name, KIND:SEED; whatever is raised ends up in the result."""
    kind, _, seed = name.partition(":")
    result, start = Result(name), time.monotonic()
    try:
        if kind == "files":
            mutated_files(int(seed), result, report)
        elif kind in ("in_context", "theorems"):
            {"in_context": in_context, "theorems": theorems}[kind](int(seed), result)
        else:
            compiled(kind, int(seed), result)
    except ah.AnchorheadError as error:
        result.status, result.reason = ("refused" if result.status == "held" else result.status), _sentence(error)
    except TimeLimit:
        result.status, result.reason = ("slow" if result.status == "held" else result.status), "took too long"
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        result.violated(f"{_sentence(error)} at {Path(where.filename).name}:{where.lineno}")
    result.seconds = round(time.monotonic() - start, 3)
    return result


def record(result: Result) -> dict[str, Any]:
    """A result as plain data."""
    return asdict(result)
