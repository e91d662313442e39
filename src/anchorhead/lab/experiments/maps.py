"""Attention maps for |b - a| in {0.5, 1.5, 3}: who attends to whom, constructed and trained.

Published: n = p = 30, so that there are no appended tokens at all, 100 epochs. The theorem needs anchors: 30 of them.
"""

from __future__ import annotations

import torch
from torch import Tensor

import anchorhead as ah
from anchorhead.lab.experiment import SEEDS, Finding, Row, Rows, Setting, Table, Task
from anchorhead.lab.figures import Figures
from anchorhead.lab.published import FEATURES, HELD_OUT, PublishedLayer, RampData, ramp_data, train_on_ramps

TITLE = "Attention maps"
ABOUT = (
    "Thirty tokens of one held-out sequence as queries, from the smallest u to the largest, and what each attends to. "
    "In the construction the keys are 30 anchors from a to b; in the trained layer they are the tokens themselves."
)
TOKENS, EPOCHS = 30, 100
WIDTHS = (0.5, 1.5, 3.0)


def tasks(quick: bool) -> list[Task]:
    return [Task({"how": how, "width": w}, SEEDS[0]) for how in ("trained", "constructed")
            for w in (WIDTHS[-1:] if quick and how == "trained" else WIDTHS)]  # fmt: skip


def run(setting: Setting, seed: int) -> list[Row]:
    """One row for each pair of query and key of one held-out sequence, queries in the order of their targets."""
    high = float(setting["width"]) / 2
    data = ramp_data(seed, TOKENS)
    target = data.target(-high, high)
    show = _constructed if setting["how"] == "constructed" else _trained
    outputs, weights = show(data, target, high, seed)
    truth = target[-HELD_OUT:]
    u = (data.inputs[-1] * data.weights).sum(-1) + data.bias
    numbers = {"mean_square": (outputs - truth).square().mean().item(),
               "of_the_mean": (truth - target[:-HELD_OUT].mean(0)).square().mean().item()}  # fmt: skip
    return [
        {"query": i, "key": k, "u": u[q].item(), "weight": weights[q, k].item(), **numbers}
        for i, q in enumerate(u.argsort().tolist())
        for k in range(weights.shape[1])
    ]


def _constructed(data: RampData, target: Tensor, high: float, seed: int) -> tuple[Tensor, Tensor]:
    model = ah.theorems.single_head(data.weights, data.bias, -high, high, anchors=TOKENS, causal=True)
    x = data.inputs[-HELD_OUT:]
    return model(x)[..., 0], model.attention_weights(x[-1])[0][0, -TOKENS:, :TOKENS]


def _trained(data: RampData, target: Tensor, high: float, seed: int) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    model = PublishedLayer(TOKENS, FEATURES, TOKENS, 1, draw)
    outputs = train_on_ramps(model, data, target, EPOCHS, draw)
    with torch.no_grad():
        return outputs.double(), model.weights(data.inputs[-1].float())[0].double()


def figures(rows: Rows) -> Figures:
    found = Figures()
    for how, width, part in rows.by("how", "width"):
        name, title = f"maps_{how}_{str(width).replace('.', '_')}", f"{how}, |b - a| = {width:g}"
        xlabel = "key" if how == "trained" else "anchor"
        with found.panel(name, title, xlabel, "query, by u", log="", height=3.0) as axes:
            axes.grid(False)
            grid = part.column("weight").reshape(TOKENS, -1)
            image = axes.imshow(grid, origin="lower", cmap="magma_r", vmin=0, vmax=1, aspect="auto")
            found[name].colorbar(image, ax=axes, label="attention weight", shrink=0.8)
    return found


def findings(rows: Rows) -> list[Finding]:
    table = []
    for how, width, part in rows.by("how", "width"):
        peak = part.column("weight").reshape(TOKENS, -1).max(1).mean()
        error, mean = part.one("mean_square"), part.one("of_the_mean")
        table.append([how, f"{width:g}", f"{error:.2g}", f"{mean:.2g}", f"{error / mean:.2g}", f"{peak:.2f}"])
    return [
        "Where softmax selects, a row has one dark cell or two. The trained layers have no anchors to select, since "
        "the published maps take p = n; a ratio near 1 means no better than predicting each position's mean.",
        Table(["how", "|b - a|", "mean square", "of the mean", "ratio", "mean largest weight"], table),
    ]
