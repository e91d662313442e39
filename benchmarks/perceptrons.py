"""Compiled perceptrons against the perceptrons themselves, a batch of 2,000, and how long compiling them takes."""

from __future__ import annotations

import time

import torch
from torch import nn

import anchorhead as ah
from benchmarks.clock import medians

TOLERANCES = {torch.float64: 1e-4, torch.float32: 1e-1}


def perceptron(width: int, activation: type[nn.Module], dtype: torch.dtype) -> nn.Module:
    """32-width-width-10."""
    torch.manual_seed(0)
    layers = [nn.Linear(32, width), activation(), nn.Linear(width, width), activation(), nn.Linear(width, 10)]
    return nn.Sequential(*layers).to(dtype)


def compare(width: int, activation: type[nn.Module], dtype: torch.dtype, tiny: bool) -> str:
    """How long compiling takes, and the model's time as a part of the original's."""
    original = perceptron(width, activation, dtype)
    start = time.perf_counter()
    model = ah.compile(original, [(-1, 1)] * 32, tol=TOLERANCES[dtype], dtype=dtype)
    seconds = time.perf_counter() - start
    x = 2 * torch.rand(20 if tiny else 2_000, 32, dtype=dtype) - 1
    with torch.no_grad():
        before, after = medians(lambda: original(x), lambda: model(x), repeats=3 if tiny else 31)
    name = f"32-{width}-{width}-10 {activation.__name__} {str(dtype)[6:]}"
    return f"{name}: {after / before:.2f} of the original's {1e3 * before:.2f} ms, compiled in {seconds:.1f} s"


def main(tiny: bool = False) -> None:
    """Prints a line a perceptron."""
    for width in (8,) if tiny else (128, 512):
        for dtype in TOLERANCES:
            for activation in (nn.GELU, nn.Tanh, nn.ReLU):
                print(f"  {compare(width, activation, dtype, tiny)}", flush=True)


if __name__ == "__main__":
    main()
