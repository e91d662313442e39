"""Compiles examples of every kind and prints a digest of each one's file; `test_every_machine.py` runs it."""

from __future__ import annotations

import hashlib
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

import anchorhead as ah


def perceptron() -> nn.Module:
    """Two layers of plain numbers: torch's own initialisation is a matter of the processor."""
    module = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1)).double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(((torch.arange(parameter.numel()) * 5) % 7 - 3).reshape(parameter.shape) / 4)
    return module


SQUARE = {"x": (-1, 1), "y": (-1, 1)}
CASES: dict[str, Callable[[], ah.CompiledModel]] = {
    "gelu on R": lambda: ah.compile("gelu(x)", tol=1e-7),
    "sin(3x)": lambda: ah.compile("sin(3*x)", (-1, 1), tol=1e-6),
    "1/(1+25x²)": lambda: ah.compile("1/(1 + 25*x**2)", (-1, 1), tol=1e-5),
    "1/x, keys crowded": lambda: ah.compile("1/x", (0.1, 10), tol=1e-4),
    "angles doubled": lambda: ah.compile("sin(50*x)", (-1, 1), tol=1e-6),
    "a kink without a jump of slope": lambda: ah.compile("abs(x)**3", (-1, 1), tol=1e-6),
    "a step": lambda: ah.compile("atan(30*x)", (-1, 1), tol=1e-10),
    "relative, over decades": lambda: ah.compile("x**-0.5", (1e-3, 1e3), tol=1e-4, relative=True),
    "kinked": lambda: ah.compile("max(sin(x), x**2 - 1)", (-2, 2), tol=1e-4),
    "the paper's": lambda: ah.compile("sin(x)", (-1, 1), tol=0.05, method="nearest"),
    "many anchors": lambda: ah.compile("sqrt(x)", (0, 1), tol=0.03, method="nearest"),
    "float32": lambda: ah.compile("gelu(x)", tol=1e-4, dtype=torch.float32),
    "a network": lambda: ah.compile("sin(x)*exp(-y**2) + max(x, y)/2", (-1, 1), tol=1e-4, method="graph"),
    "a perceptron": lambda: ah.compile(perceptron(), (-1, 1), tol=1e-4),
    "of a prompt": lambda: ah.in_context.compile("q*cov(x, y)/(var(x) + 0.5)", SQUARE, {"q": (-1, 1)}, tol=1e-4),
    "of the gallery": lambda: ah.gallery.load("digits").model,
    "a grid": lambda: ah.compile("sin(x + y)", (-1, 1), tol=1e-3, method="grid"),
}


def of_file(model: ah.CompiledModel) -> str:
    """The digest of what it is saved as."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        model.save(path)
        return hashlib.sha256(path.read_bytes()).hexdigest()


def of_numbers(module: nn.Module) -> str:
    """The digest of its parameters and buffers."""
    found = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        found.update(name.encode() + tensor.detach().contiguous().numpy().tobytes())
    return found.hexdigest()


def main() -> None:
    for name, make in CASES.items():
        print(f"{of_file(make())}  {name}")
    learner = ah.in_context.gradient_descent("logistic", features=2, examples=8, steps=3, learning_rate=0.5)
    print(f"{of_numbers(learner)}  a learner in context")


if __name__ == "__main__":
    sys.exit(main())
