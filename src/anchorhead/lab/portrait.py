"""A compiled model in one figure: the function and its attention, the error under its proved bound, and who attends.

A function of several variables is drawn along the diagonal of its box, from the lowest inputs to the highest.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import Tensor

from anchorhead.errors import FileError
from anchorhead.model.compiled import CompiledModel
from anchorhead.model.core import shaped
from anchorhead.model.report import shortened

FAR = 8.0
"""How much of an unbounded domain is drawn."""
POINTS = 2001
CURVES = 4
"""How many outputs are drawn, the first ones."""


@dataclass(frozen=True)
class _Drawn:
    """What is drawn: places, target and model (points, outputs), attention weights (points, keys), and names."""

    x: Tensor
    exact: Tensor
    values: Tensor
    weights: Tensor
    edges: list[int]
    xlabel: str
    label: str


def portrait(model: CompiledModel, path: str | Path) -> None:
    """Draws the model to a PNG."""
    drawn = _head(model) if model.network.kind == "head" else _network(model)
    figure, (top, middle, bottom) = plt.subplots(3, 1, figsize=(4.6, 7), sharex=True, layout="constrained")
    _curves(top, drawn, model)
    _error(middle, model, drawn.x, (drawn.values - drawn.exact).abs().amax(-1))
    image = bottom.pcolormesh(drawn.x[::4], np.arange(drawn.weights.shape[1]), drawn.weights[::4].T, cmap="magma_r",
                              vmin=0, vmax=1, shading="nearest", rasterized=True)  # fmt: skip
    for edge in drawn.edges:
        bottom.axhline(edge - 0.5, color="0.6", lw=0.6)
    count = drawn.weights.shape[1]
    bottom.set_yticks(range(0, count, max(1, count // 12)))
    bottom.set_ylabel("key")
    bottom.set_xlabel(drawn.xlabel)
    figure.colorbar(image, ax=bottom, label="attention weight", location="bottom", aspect=40)
    try:
        figure.savefig(path, dpi=200)
    except (OSError, ValueError) as error:
        raise FileError(f"{path} cannot be written: {error}.") from error
    finally:
        plt.close(figure)


def _head(model: CompiledModel) -> _Drawn:
    low, high = (min(max(end, -FAR), FAR) for end in model.certificate.domain[0])
    x = torch.linspace(low, high, POINTS, dtype=torch.float64)
    weights = model.attention(x.to(model.head.dtype))[0][:, 0, :].double()
    order = torch.argsort(weights.argmax(0))
    values = model(x.to(model.head.dtype)).double()
    label = f"attention, {model.head.keys} keys"
    return _Drawn(x, model.exact(x).expand_as(x)[:, None], values[:, None], weights[:, order], [],
                  model.certificate.variables[0], label)  # fmt: skip


def _network(model: CompiledModel) -> _Drawn:
    t = torch.linspace(0, 1, POINTS, dtype=torch.float64)
    low, high = torch.tensor(model.certificate.domain, dtype=torch.float64).T
    inputs = shaped(low + t[:, None] * (high - low), model.input_shape)
    x = inputs.to(next(model.parameters()).dtype)
    model.network.check(x)
    weights, edges = [], []
    for layer in model.attention(x):
        for head in layer.double().unbind(-2)[:12]:
            used = head[:, head.amax(0) > 0]
            weights.append(used[:, torch.argsort(used.argmax(0))])
            edges.append(sum(w.shape[1] for w in weights))
    cost = model.resources
    label = f"attention, {cost.layers} layers, {cost.keys} keys"
    exact, values = (v.double().reshape(POINTS, -1) for v in (model.exact(inputs.to(x.dtype).double()), model(x)))
    return _Drawn(t, exact, values, torch.cat(weights, dim=1) if weights else torch.zeros(POINTS, 1), edges[:-1],
                  "along the diagonal of the box", label)  # fmt: skip


def _curves(axes: plt.Axes, drawn: _Drawn, model: CompiledModel) -> None:
    name = model.certificate.expression
    for i in range(min(drawn.exact.shape[1], CURVES)):
        first = i == 0
        axes.plot(drawn.x, drawn.exact[:, i], color="0.75", lw=4, label=shortened(name, 36) if first else None)
        axes.plot(drawn.x, drawn.values[:, i], color="C3", lw=1.2, label=drawn.label if first else None)
    axes.legend(frameon=False)


def _error(axes: plt.Axes, model: CompiledModel, x: Tensor, error: Tensor) -> None:
    certificate = model.certificate
    allowed = certificate.allowed(x, model.exact(x) if certificate.relative else None)
    floor = max(float(allowed.min() if isinstance(allowed, Tensor) else allowed) * 1e-4, 1e-17)
    axes.semilogy(x, error.clamp(min=floor), color="C0", lw=1, label="measured error")
    limit = allowed if isinstance(allowed, Tensor) else torch.full_like(x, allowed)
    axes.semilogy(x, limit, color="C3", lw=1.2, ls="--", label=f"{certificate.level} bound")
    axes.set_ylim(floor, 30 * max(float(limit.max()), floor))  # room for the names above
    axes.set_ylabel("|error|")
    axes.legend(frameon=False, loc="upper center", ncols=2)
    axes.grid(True, color="0.93")
