"""Sequence to sequence: a ReLU target by levels, by heads, through its graph, and trained as published.

*By heads.* X in [0, 1]^(20 x 5), a ReLU network of width 10 on the flattened sequence (docs/mathematics.md 1.8): each
hidden unit is a ramp clip(w·x + t, 0, top), so a lift that gives each of 10 tokens the whole sequence, `multi_head`,
and an affine read-out compute it; |error| <= (row sums of |W_2|) times the theorem's bound.
*By levels.* The two-layer theorem on a ReLU network of two coordinates: its grid has levels^2 points, and for the 100
coordinates above it would have levels^100.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn

import anchorhead as ah
from anchorhead.digits import Up
from anchorhead.lab.experiment import SEEDS, Finding, Row, Rows, Setting, Table, Task, known, measured
from anchorhead.lab.figures import COLOURS, Figures, curve
from anchorhead.lab.published import PublishedSequences, train

TITLE = "Sequence to sequence"
ABOUT = (
    "A ReLU network of width 10, with standard normal weights, on sequences of 20 tokens with 5 features. *Heads*: its "
    "units as ramps, by Theorem 3.2. *Compiled*: through its graph, at three tolerances. *Trained*: two attention "
    "layers as published, 3 epochs of 50,000 samples (not in the quick "
    "form). *Levels*: the universal two-layer theorem, on two coordinates."
)
TOKENS, FEATURES, WIDTH = 20, 5, 10
SAMPLES, EPOCHS, FRESH = 50_000, 3, 2000


def tasks(quick: bool) -> list[Task]:
    seeds = SEEDS[:1] if quick else SEEDS[:3]
    sizes = {
        "trained": () if quick else (1, 4, 16),
        "levels": (4, 8, 16, 32, 64),
        "heads": (1, 2, 4, 8, 16, 32),
        "compiled": (1e-2, 1e-4, 1e-6),
        "regression": (0,),
    }
    return [Task({"how": how, "size": size}, seed) for how, many in sizes.items() for size in many for seed in seeds]


def run(setting: Setting, seed: int) -> list[Row]:
    how, size = str(setting["how"]), setting["size"]
    if how == "levels":
        return [_by_levels(int(size), seed)]
    f = relu_network(TOKENS * FEATURES, WIDTH, TOKENS * FEATURES, seed)
    draw = torch.Generator().manual_seed(seed + 1)
    x = torch.rand(FRESH, TOKENS, FEATURES, generator=draw, dtype=torch.float64)
    ways = {"heads": _by_heads, "compiled": _compiled, "regression": _regression, "trained": _trained}
    outputs, bound, keys = ways[how](f, x, float(size), draw)
    return [measured(outputs - f(x.flatten(1)), bound, keys)]


def relu_network(inputs: int, hidden: int, outputs: int, seed: int) -> nn.Sequential:
    """One hidden layer, every number standard normal."""
    draw = torch.Generator().manual_seed(seed)
    layers = [
        nn.utils.skip_init(nn.Linear, i, o, dtype=torch.float64) for i, o in ((inputs, hidden), (hidden, outputs))
    ]
    for parameter in (p for layer in layers for p in layer.parameters()):
        parameter.data = torch.randn(parameter.shape, generator=draw, dtype=torch.float64)
    return nn.Sequential(layers[0], nn.ReLU(), layers[1]).requires_grad_(False)


def linear_layers(f: nn.Sequential) -> tuple[nn.Linear, nn.Linear]:
    """The two linear layers around the ReLU."""
    first, last = (layer for layer in f if isinstance(layer, nn.Linear))
    return first, last


def _by_heads(f: nn.Sequential, x: Tensor, size: float, draw: torch.Generator) -> tuple[Tensor, float, int]:
    first, last = linear_layers(f)
    top = (first.weight.clamp(min=0).sum(1) + first.bias).max().item()  # the largest that a unit can be on [0, 1]^100
    model = ah.theorems.multi_head(first.weight, first.bias, 0, top, heads=int(size))
    hidden = model(x.flatten(1)[:, None, :].expand(-1, WIDTH, -1))[..., 0]
    bound = last.weight.abs().sum(1).max().item() * model.bound
    return last(hidden), bound, model.resources.keys


def _compiled(f: nn.Sequential, x: Tensor, size: float, draw: torch.Generator) -> tuple[Tensor, float, int]:
    model = ah.compile(f, (0, 1), tol=size, shape=(TOKENS * FEATURES,))
    return model(x.flatten(1)), model.certificate.bound, model.resources.keys


def _regression(f: nn.Sequential, x: Tensor, size: float, draw: torch.Generator) -> tuple[Tensor, float, int]:
    """Linear regression on the flattened sequence, which the trained layers should beat."""
    seen = torch.rand(20_000, TOKENS * FEATURES, generator=draw, dtype=torch.float64)
    design, test = (torch.cat([z, torch.ones(len(z), 1, dtype=z.dtype)], 1) for z in (seen, x.flatten(1)))
    found = np.linalg.lstsq(design.numpy(), f(seen).numpy())[0]  # torch's differs in the last bit from run to run
    return test @ torch.from_numpy(found), math.nan, 0


def _trained(f: nn.Sequential, x: Tensor, size: float, draw: torch.Generator) -> tuple[Tensor, float, int]:
    model = PublishedSequences(TOKENS, FEATURES, int(size), draw)
    seen = torch.rand(SAMPLES, TOKENS, FEATURES, generator=draw)
    target = f(seen.double().flatten(1)).float().unflatten(1, (TOKENS, FEATURES))
    train(model, seen, target, EPOCHS, draw)
    with torch.no_grad():
        return model(x.float()).double().flatten(1), math.nan, TOKENS


def _by_levels(levels: int, seed: int) -> Row:
    """The two-layer theorem on two coordinates; the Lipschitz constant in the sup norm is that of the matrices."""
    f = relu_network(2, WIDTH, 2, seed)
    first, last = linear_layers(f)
    lipschitz = (last.weight.abs() @ first.weight.abs()).sum(1).max().item()
    model = ah.theorems.two_layer(lambda z: f(z.flatten(-2)).unflatten(-1, (1, 2)), tokens=1, features=2, levels=levels)
    x = torch.rand(FRESH, 1, 2, generator=torch.Generator().manual_seed(seed + 1), dtype=torch.float64)
    bound = model.bound_for(lipschitz=lipschitz, metric="sup")
    return measured(model(x) - model.exact(x), bound, model.resources.keys)


def figures(rows: Rows) -> Figures:
    found = Figures()
    for how, xlabel, title in (
        ("heads", "heads H", "20 x 5, the theorem's heads"),
        ("levels", "levels g of a coordinate", "two coordinates, by levels"),
        ("compiled", "tolerance asked for", "20 x 5, compiled through its graph"),
    ):
        mine = rows.where(how=how)
        ticks = () if how == "compiled" else mine.values("size")
        with found.panel(f"sequences_{how}", title, xlabel, "sup error", ticks=ticks) as axes:
            for i, (_, part) in enumerate(mine.by("seed")):
                names = (None, None) if i else ("measured", "bound")
                curve(axes, part, "size", "sup", "o-", color=COLOURS["constructed"], ms=3.5, label=names[0])
                curve(axes, part, "size", "bound", "--", color="0.45", lw=1, label=names[1])
    return found


def findings(rows: Rows) -> list[Finding]:
    table = []
    for how, size, part in rows.by("how", "size"):
        errors = (f"{part.median(name):.2g}" for name in ("sup", "mean_square"))
        sizes = f"{size:g}" if size else "", f"{part.one('keys') or ''}"
        table.append([how, *sizes, *errors, known(Up(part.largest("bound")), ".2g")])
    return [
        f"Every bound {'was kept' if rows.within_bounds() else 'WAS NOT KEPT'}. The grid of the two-layer theorem "
        "grows like a power of the number of coordinates; by heads, or compiled, 100 coordinates cost no more "
        "than their affine map. "
        "*Regression* is linear regression on 20,000 samples, to compare the trained layers with.",
        Table(["how", "size", "keys", "sup error (median)", "mean square (median)", "largest bound"], table),
    ]
