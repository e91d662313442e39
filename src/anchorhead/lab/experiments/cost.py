"""The cost of accuracy: keys and parameters against error, for each kind of head, a ReLU network and a trained layer.

*Nearest* is the paper's head, *smooth*, *gated* and *kinked* are compiled with that many keys, all proved. A *ReLU
network* of k units interpolates at k + 1 even places (3k + 1 numbers), which for these targets is within a constant of
the best. *Trained* is a head of k keys with affine values, every number of it fitted by Adam for 5,000 steps from a
spread-out start.

Then the other way round: a hundred functions that a grammar writes, each to a millionth of its size (keys = 0: as many
as that takes), beside Chebyshev coefficients and the nodes of AAA.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

import anchorhead as ah
from anchorhead.digits import Up
from anchorhead.lab.experiment import Finding, Row, Rows, Setting, Table, Task, known
from anchorhead.lab.figures import COLOURS, MARKS, Figures, curve
from anchorhead.lab.grammar import aaa_count, cases, chebyshev_count

TITLE = "The cost of accuracy"
ABOUT = (
    "How many keys, and how many numbers, does an error cost? A smooth function, an activation, and a function with "
    "kinks, each by every way of making it. And how many keys do functions take that nobody chose?"
)
TARGETS = {"sin(3*x)": (-1.0, 1.0), "gelu(x)": (-6.0, 6.0), "clip(x, -1, 1)": (-2.0, 2.0)}
SIZES = {
    "trained": (2, 4, 8, 16),
    "gated": (2, 3, 4, 6, 8, 10, 12),
    "smooth": (2, 4, 8, 12, 16, 24, 32),
    "nearest": (4, 8, 16, 32, 64),
    "kinked": (3,),
    "ReLU network": (4, 8, 16, 32, 64, 128, 256),
}
QUICK = {"trained": (4,), "gated": (2, 4, 8), "smooth": (4, 8, 16), "nearest": (4, 16, 64), "kinked": (3,),
         "ReLU network": (4, 16, 64)}  # fmt: skip
STEPS = 5000
POINTS = 8001
FUNCTIONS, FEW = 100, 8
ERROR = 1e-6
COUNTED = ("keys", "Chebyshev coefficients", "AAA nodes")


def tasks(quick: bool) -> list[Task]:
    unchosen = [Task({"target": f"function {i + 1}", "how": how, "keys": 0}, 0)
                for i in range(FEW if quick else FUNCTIONS) for how in COUNTED]  # fmt: skip
    sized = [Task({"target": target, "how": how, "keys": k}, 0) for how, sizes in (QUICK if quick else SIZES).items()
             for target in TARGETS for k in sizes if how != "kinked" or "clip" in target]  # fmt: skip
    return sized + unchosen


def run(setting: Setting, seed: int) -> list[Row]:
    """Sup error on a fine grid, and the proved bound where there is one; nan where the method refuses."""
    text, how, keys = str(setting["target"]), str(setting["how"]), int(setting["keys"])
    if how in COUNTED:
        return [_counted(int(text.split()[1]), how)]
    low, high = TARGETS[text]
    x = torch.linspace(low, high, POINTS, dtype=torch.float64)
    if how in ("trained", "ReLU network"):
        y = _exact(text, x)
        error = _trained(x, y, keys) if how == "trained" else _interpolated(text, x, keys) - y
        size = 4 * keys if how == "trained" else 3 * keys + 1
        return [{"parameters": size, "sup": error.abs().max().item(), "bound": math.nan}]
    try:
        model = ah.compile(text, (low, high), method=how, keys=keys)
    except ah.ToleranceError:
        return [{"parameters": 4 * keys, "sup": math.nan, "bound": math.nan}]
    error = model(x) - model.exact(x)
    return [
        {"parameters": model.resources.parameters, "sup": error.abs().max().item(), "bound": model.certificate.bound}
    ]


def _counted(number: int, how: str) -> Row:
    """How many a function of the grammar takes; nan where it is refused, or the peer does not reach the error."""
    *_, case = cases(number)
    bound, count = ERROR * case.scale, None
    if how == COUNTED[0]:
        try:
            model = ah.compile(case.text, (case.low, case.high), tol=bound)
            count, bound = model.resources.keys, model.certificate.bound
        except ah.AnchorheadError:
            pass
    else:
        count = (chebyshev_count if how == COUNTED[1] else aaa_count)(case, bound)
    return {"parameters": math.nan if count is None else count, "sup": math.nan, "bound": bound}


def _exact(text: str, x: Tensor) -> Tensor:
    from anchorhead.expression.parse import parse
    from anchorhead.expression.tensors import evaluate

    found: Tensor = evaluate(parse(text, ["x"]), {"x": x})
    return found


def _interpolated(text: str, x: Tensor, units: int) -> Tensor:
    knots = torch.linspace(x[0].item(), x[-1].item(), units + 1, dtype=torch.float64)
    return torch.from_numpy(np.interp(x.numpy(), knots.numpy(), _exact(text, knots).numpy()))


def _trained(x: Tensor, y: Tensor, keys: int) -> Tensor:
    """Adam on slopes, intercepts, constants and gains; the input scaled to [-1, 1]."""
    u, at = x / x[-1], slice(None, None, 16)
    spread = torch.linspace(-1, 1, keys, dtype=torch.float64)
    numbers = [z.clone().requires_grad_() for z in (3 * spread, -(spread**2), 0 * spread, 0 * spread)]
    optimiser = torch.optim.Adam(numbers, lr=1e-2, fused=True)

    def head(u: Tensor) -> Tensor:
        slopes, intercepts, constants, gains = numbers
        weights = (u[:, None] * slopes + intercepts).softmax(-1)
        return (weights * (constants + u[:, None] * gains)).sum(-1)

    for _ in range(STEPS):
        optimiser.zero_grad()
        (head(u[at]) - y[at]).square().mean().backward()
        optimiser.step()
    with torch.no_grad():
        return head(u) - y


def figures(rows: Rows) -> Figures:
    found = Figures()
    unchosen, chosen = _parted(rows)
    for i, (target, mine) in enumerate(chosen.by("target"), 1):
        for size, said, ticks in (
            ("keys", "keys, or units", (2, 4, 8, 16, 32, 64, 128, 256)),
            ("parameters", "parameters", (10, 30, 100, 300, 1000)),
        ):
            with found.panel(f"cost_{i}_{size}", target, said, "sup error", ticks=ticks) as axes:
                for mark, (how, part) in zip(MARKS, mine.by("how"), strict=False):
                    style = {"ms": 4, "lw": 1.3, "color": COLOURS[how], "label": how}
                    curve(axes, part, size, "sup", mark + "-", floor=1e-16, **style)
    with found.panel("cost_unchosen", f"Functions that nobody chose, to {ERROR:g} of their size",
                     "functions, each curve in its own order", "how many", log="y") as axes:  # fmt: skip
        for how, part in unchosen.by("how"):
            counts = np.sort(part.column("parameters"))
            axes.plot(range(1, len(counts) + 1), counts, lw=1.6, label=how)
    return found


def _parted(rows: Rows) -> tuple[Rows, Rows]:
    """The functions that nobody chose, and the others."""
    return Rows(r for r in rows if r["how"] in COUNTED), Rows(r for r in rows if r["how"] not in COUNTED)


def findings(rows: Rows) -> list[Finding]:
    table = []
    unchosen, chosen = _parted(rows)
    counts = {how: part.column("parameters") for how, part in unchosen.by("how")}
    for target, how, part in chosen.by("target", "how"):
        best = min((r for r in part if r["sup"] == r["sup"]), key=lambda r: float(r["sup"]), default=None)
        if best is None:
            table.append([target, how, "", "", "refused", ""])
        else:
            table.append([target, how, f"{best['keys']}", f"{best['parameters']}", f"{best['sup']:.1e}",
                          known(Up(best["bound"]))])  # fmt: skip
    return [
        "For a smooth target gated and smooth heads converge geometrically; the paper's head gains a factor of two, "
        "and the ReLU network of four, for twice the size. Training the same head stalls: its error is that of the "
        "optimiser. The best of each:",
        Table(["target", "how", "keys", "parameters", "sup error", "proved"], table),
        f"Of {len(counts[COUNTED[0]])} functions that a grammar wrote, at scales from 1e-3 to 1e3 and with kinks, to "
        f"{ERROR:g} of their size: " + "; ".join(_told(how, found) for how, found in counts.items()) + ".",
    ]


def _told(how: str, counts: np.ndarray) -> str:
    """The median, where what is not reached counts as more than any number, and how many are not reached."""
    missing = int(np.isnan(counts).sum())
    return f"{np.median(np.nan_to_num(counts, nan=np.inf)):g} {how} in the median, {missing} not reached"
