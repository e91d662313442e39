"""In-context gradient descent in one figure: deviation from the algorithm by steps, and distance to the optimum."""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from torch import Tensor

from anchorhead.in_context import gradient_descent
from anchorhead.in_context.paper import with_paper_heads


def problem(loss: str, examples: int = 64, features: int = 8, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Standard normal examples with labels that suit the loss."""
    draw = torch.Generator().manual_seed(seed)
    X = torch.randn(examples, features, generator=draw, dtype=torch.float64)
    w = torch.randn(features, generator=draw, dtype=torch.float64)
    noise = torch.randn(examples, generator=draw, dtype=torch.float64)
    if loss == "logistic":
        return X, (X @ w + noise > 0).double()
    return X, X @ w + 0.3 * noise


def deviation_figure(
    path: Path, steps: int = 100, losses: tuple[str, ...] = ("squared", "logistic", "huber")
) -> dict[str, float]:
    """Draws deviation over the steps for our heads and the paper's with as many keys; returns the ratio at the end."""
    figure, axes = plt.subplots(1, len(losses), figsize=(4 * len(losses), 3.6), sharey=True, layout="constrained")
    ratios = {}
    for axis, loss in zip(axes, losses, strict=True):
        X, y = problem(loss)
        model = gradient_descent(loss, features=8, examples=64, steps=steps, learning_rate=0.1)
        ours = model.convergence(X, y)
        exact = model.exact(X, y)
        paper = (with_paper_heads(model).trajectory(X, y) - exact).norm(dim=-1)
        ratios[loss] = float(paper[-1] / ours.measured[-1].clamp(min=1e-16))
        t = range(steps + 1)
        axis.semilogy(t, ours.to_optimum, color="0.6", label="distance to the optimum")
        axis.semilogy(t[1:], paper[1:], color="#c44e52", label="the paper's heads")
        axis.semilogy(t[1:], ours.proved[1:], "--", color="#4c72b0", label="proved")
        axis.semilogy(t[1:], ours.measured[1:].clamp(min=1e-17), color="#4c72b0", label="these heads")
        axis.set_title(f"{loss}, {model.keys} keys: {ratios[loss]:.0e} times closer", fontsize=10)
        axis.set_xlabel("step")
    axes[0].set_ylabel("distance of w from the algorithm's")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=9)
    figure.savefig(path, dpi=150)
    plt.close(figure)
    return ratios
