"""A step of in-context gradient descent against the same step in plain torch: n=1,000, d=64, batch 16."""

import torch

from anchorhead.digits import Up
from anchorhead.in_context import gradient_descent
from anchorhead.lab.experiments.in_context import problem
from benchmarks.clock import medians


def plain(loss: str, X: torch.Tensor, y: torch.Tensor, rate: float, steps: int) -> torch.Tensor:
    w = X.new_zeros(X.shape[0], X.shape[2])
    for _ in range(steps):
        s = (X @ w.unsqueeze(-1)).squeeze(-1)
        if loss == "squared":
            r = s - y
        elif loss == "logistic":
            r = torch.sigmoid(s) - y
        else:
            r = (s - y).clamp(-1.35, 1.35)
        w = w - rate * (r.unsqueeze(-2) @ X).squeeze(-2) / X.shape[1]
    return w


def compare(loss: str, dtype: torch.dtype, steps: int) -> None:
    X = torch.randn(16, 1000, 64, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)
    y = (X[..., 0] > 0).to(dtype) if loss == "logistic" else X[..., 0] + X[..., 1]
    model = gradient_descent(loss, features=64, examples=1000, steps=steps, learning_rate=0.05, dtype=dtype)
    with torch.no_grad():
        ours, theirs = medians(lambda: model(X, y), lambda: plain(loss, X, y, 0.05, steps), repeats=5)
    print(f"{loss}, {dtype}: {ours / theirs:.2f} of plain torch ({theirs / steps * 1e3:.2f} ms a step, at most 3)")


def deviation(loss: str, dtype: torch.dtype, steps: int) -> None:
    """How far any iterate is from the algorithm in float64, n=64, d=8, default bounds."""
    X, y = (v.to(dtype) for v in problem(loss, seed=0))
    model = gradient_descent(loss, features=8, examples=64, steps=steps, learning_rate=0.1, dtype=dtype)
    apart = (model.trajectory(X, y).double() - model.exact(X, y)).norm(dim=-1).max()
    print(
        f"{loss}, {dtype}: {steps:,} iterates within {apart:.1e} of the algorithm, "
        f"proved {Up(model.certificate.bound):.1e}"
    )


def main(tiny: bool = False) -> None:
    for dtype in (torch.float64, torch.float32):
        for loss in ("logistic",) if tiny else ("squared", "logistic", "huber"):
            compare(loss, dtype, 3 if tiny else 100)
            deviation(loss, dtype, 10 if tiny else 1000)
