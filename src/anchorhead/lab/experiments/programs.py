"""Programs: several on one interpreter with fixed weights, and how their errors grow with the turns they take.

A formula of two variables, a tanh network 4-6-6-2, a statistic of a prompt and w <- cos(w) run on one interpreter of 24
registers. Errors are from the target itself, computed plainly. Maps that are repeated: one that contracts, w <- cos(w),
and a rotation by 0.3, which neither grows nor shrinks.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

import anchorhead as ah
from anchorhead.digits import Up
from anchorhead.lab.experiment import Finding, Row, Rows, Setting, Table, Task
from anchorhead.lab.figures import Figures, curve

TITLE = "Programs in the prompt"
ABOUT = (
    "One network with fixed weights runs compiled models that its prompt holds as tokens. Errors are from the target "
    "itself; dashed: the proved bounds, leak and rounding included."
)
TURNS = (1, 3, 10, 30, 100)
PROGRAMS = ("formula", "perceptron", "statistic")
MAPS = {"cosine": "#1f5fa8", "rotation": "#d1495b"}
ROTATION = ["cos(0.3)*x - sin(0.3)*y", "sin(0.3)*x + cos(0.3)*y"]
BOX = {"x": (-1.5, 1.5), "y": (-1.5, 1.5)}


def tasks(quick: bool) -> list[Task]:
    turns = TURNS[:3] if quick else TURNS
    found = [(what, t) for t in reversed(turns) for what in MAPS]
    return [Task({"what": what, "turns": t}, 0) for what, t in (*((p, 0) for p in PROGRAMS), *found)]


def run(setting: Setting, seed: int) -> list[Row]:
    """Tokens, instructions, registers and steps of a program, and its largest error beside its bound."""
    what, turns = str(setting["what"]), int(setting["turns"])
    draw = torch.Generator().manual_seed(seed)
    program, exact, prompt = {"formula": _formula, "perceptron": _perceptron, "statistic": _statistic,
                              "cosine": _cosine, "rotation": _rotation}[what](turns, draw)  # fmt: skip
    with torch.no_grad():
        error = (ah.interpreter(registers=24)(program, *prompt) - exact).abs().max().item()
    return [{"tokens": program.tokens, "instructions": program.instructions, "registers": program.registers,
             "steps": program.steps, "sup": error, "bound": program.certificate.bound}]  # fmt: skip


Made = tuple[ah.Program, Tensor, tuple[Tensor, ...]]


def _drawn(draw: torch.Generator, *shape: int) -> Tensor:
    return 2 * torch.rand(*shape, generator=draw, dtype=torch.float64) - 1


def _formula(turns: int, draw: torch.Generator) -> Made:
    model = ah.compile("sin(3*x*y) + exp(-x**2 + y/2)", {"x": (-1, 1), "y": (-1, 1)}, tol=1e-10)
    x = _drawn(draw, 500, 2)
    exact = torch.sin(3 * x[:, 0] * x[:, 1]) + torch.exp(-x[:, 0].square() + x[:, 1] / 2)
    return ah.program(model), exact.unsqueeze(-1), (x,)


def _perceptron(turns: int, draw: torch.Generator) -> Made:
    net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 2)).double()
    for parameter in net.parameters():
        parameter.data = _drawn(draw, *parameter.shape)
    x = _drawn(draw, 500, 4)
    return ah.program(ah.compile(net, (-1, 1), tol=1e-10)), net(x), (x,)


def _statistic(turns: int, draw: torch.Generator) -> Made:
    tokens, query = {"x": (-1, 1), "y": (-1, 1)}, {"q": (-1, 1)}
    model = ah.in_context.compile("q*cov(x, y)/(var(x) + 0.2)", tokens=tokens, query=query, tol=1e-9)
    prompt, asked = _drawn(draw, 20, 100, 2), _drawn(draw, 20, 5, 1)
    x, y = (column - column.mean(-1, keepdim=True) for column in prompt.unbind(-1))
    slope = (x * y).mean(-1) / (x.square().mean(-1) + 0.2)
    return ah.program(model), asked * slope[:, None, None], (prompt, asked)


def _cosine(turns: int, draw: torch.Generator) -> Made:
    w = _drawn(draw, 500)
    program = ah.program(ah.compile("cos(w)", (-1.125, 1.125), tol=1e-10), turns=turns)
    return program, _repeated(torch.cos, w, turns), (w,)


def _rotation(turns: int, draw: torch.Generator) -> Made:
    angle = torch.tensor(0.3, dtype=torch.float64)
    matrix = torch.stack([torch.stack([angle.cos(), -angle.sin()]), torch.stack([angle.sin(), angle.cos()])])
    start = _drawn(draw, 500, 2) * 0.9
    program = ah.program(ah.compile(ROTATION, BOX, tol=1e-9, method="graph"), turns=turns)
    return program, _repeated(lambda x: x @ matrix.T, start, turns), (start,)


def _repeated(step: Callable[[Tensor], Tensor], x: Tensor, turns: int) -> Tensor:
    for _ in range(turns):
        x = step(x)
    return x


def figures(rows: Rows) -> Figures:
    found = Figures()
    with found.panel("programs_turns", "Error of a repeated map, bounds dashed", "turns", "sup error") as axes:
        for what, hue in MAPS.items():
            mine = rows.where(what=what).ordered("turns")
            curve(axes, mine, "turns", "sup", "o-", floor=1e-17, ms=3.5, lw=1.4, color=hue, label=what)
            curve(axes, mine, "turns", "bound", "--", lw=1, color=hue)
    return found


def findings(rows: Rows) -> list[Finding]:
    table = [
        [str(row["what"]), str(row["turns"] or "once"), *(str(row[name]) for name in SHOWN), f"{row['sup']:.1e}",
         f"{Up(row['bound']):.1e}"]
        for row in rows.ordered("turns")
    ]  # fmt: skip
    return [
        f"Every bound {'was kept' if rows.within_bounds() else 'WAS NOT KEPT'}. All programs ran on one interpreter of "
        "24 registers, whose weights are selectors. Errors of a map that contracts do not grow with the turns; for the "
        "rotation, whose entries are bounded one by one, the bound grows by a factor each turn, the error does not.",
        Table(["program", "turns", *SHOWN, "sup error", "proved"], table),
    ]


SHOWN = ("tokens", "instructions", "registers", "steps")
