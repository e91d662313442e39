"""A compiled model in one figure: the function and its attention, the error under its proved bound, and who attends."""

from __future__ import annotations

import math
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import torch

from anchorhead.errors import FileError
from anchorhead.expression.parse import parse
from anchorhead.expression.tensors import evaluate
from anchorhead.network.compiled import CompiledModel

FAR = 8.0
"""How much of an unbounded domain is drawn."""


def portrait(model: CompiledModel, path: str | Path) -> None:
    """Draws the model to a PNG."""
    low, high = (min(max(end, -FAR), FAR) for end in model.certificate.domain[0])
    x = torch.linspace(low, high, 2001, dtype=torch.float64)
    exact = target_values(model, x)
    values = model(x.to(model.head.dtype)).double()
    weights = model.attention(x.to(model.head.dtype))[0][:, 0, :].double()
    figure, (top, middle, bottom) = plt.subplots(3, 1, figsize=(7.5, 9), sharex=True, layout="constrained")
    top.plot(x, exact, color="0.7", lw=4, label=model.certificate.expression)
    top.plot(x, values, color="C3", lw=1.2, label=f"attention, {model.head.keys} keys")
    top.legend(frameon=False)
    _error(middle, model, x, (values - exact).abs())
    order = torch.argsort(weights.argmax(0))
    image = bottom.pcolormesh(x[::4], np.arange(model.head.keys), weights[::4, order].T, cmap="magma_r", vmin=0, vmax=1,
                              shading="nearest", rasterized=True)  # fmt: skip
    bottom.set_yticks(range(0, model.head.keys, max(1, model.head.keys // 12)))
    bottom.set_ylabel("key")
    bottom.set_xlabel(model.record["variable"])
    figure.colorbar(image, ax=bottom, label="attention weight")
    try:
        figure.savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        raise FileError(f"{path} cannot be written: {error}.") from error
    finally:
        plt.close(figure)


def _error(axes: plt.Axes, model: CompiledModel, x: torch.Tensor, error: torch.Tensor) -> None:
    certificate = model.certificate
    allowed = certificate.approximation + certificate.rounding * (1 if certificate.bounded else 1 + x.abs())
    floor = max(float(allowed.min() if isinstance(allowed, torch.Tensor) else allowed) * 1e-4, 1e-17)
    axes.semilogy(x, error.clamp(min=floor), color="C0", lw=1, label="measured error")
    limit = allowed if isinstance(allowed, torch.Tensor) else torch.full_like(x, allowed)
    axes.semilogy(x, limit, color="C3", lw=1.2, ls="--", label=f"{certificate.level} bound")
    axes.set_ylim(floor, 10 ** math.ceil(math.log10(float(limit.max()) * 2)))
    axes.set_ylabel("|error|")
    axes.legend(frameon=False, loc="lower right")
    axes.grid(True, color="0.93")


def target_values(model: CompiledModel, x: torch.Tensor) -> torch.Tensor:
    """The model's target, from its certificate, at x."""
    found = evaluate(parse(model.certificate.expression), {model.record["variable"]: x})
    value = found[0] if isinstance(found, list) else found
    return value.expand_as(x)
