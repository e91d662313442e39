"""Keys and time for the same error: the compiled head, the paper's construction, and Adam training of the same head."""

import time

import torch

import anchorhead as ah
from anchorhead.digits import Up
from anchorhead.head.module import LiteralHead

CASES = [("sin(3*x)", (-1.0, 1.0), 1e-4), ("sin(3*x)", (-1.0, 1.0), 1e-8), ("exp(x)", (-1.0, 1.0), 1e-8)]


def seconds(run):
    start = time.perf_counter()
    return run(), time.perf_counter() - start


def trained(model: ah.CompiledModel, steps: int) -> tuple[float, float]:
    """Adam on every number of a head of the same size, from a spread-out start: sup error and time."""
    torch.manual_seed(0)
    head: LiteralHead = model.literal()
    keys = len(head.slopes)
    low, high = model.certificate.domain[0]
    x = torch.linspace(low, high, 512, dtype=torch.float64)
    target = model(x)
    numbers = [torch.linspace(-3, 3, keys), -(torch.linspace(-1, 1, keys) ** 2), torch.zeros(keys), torch.zeros(keys)]
    slopes, intercepts, constants, gains = (n.double().requires_grad_() for n in numbers)
    optimiser = torch.optim.Adam([slopes, intercepts, constants, gains], lr=1e-2)

    def run() -> float:
        for _ in range(steps):
            weights = (x[:, None] * slopes + intercepts).softmax(-1)
            loss = ((weights * (constants + x[:, None] * gains)).sum(-1) - target).square().mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        weights = (x[:, None] * slopes + intercepts).softmax(-1)
        return ((weights * (constants + x[:, None] * gains)).sum(-1) - target).abs().max().item()

    return seconds(run)


def main(tiny: bool = False) -> None:
    steps = 50 if tiny else 5000
    for expression, domain, tol in CASES[:1] if tiny else CASES:
        model, took = seconds(lambda e=expression, d=domain, t=tol: ah.compile(e, d, tol=t))
        keys = next(o.keys for o in ah.plan(expression, domain, tol=tol).options if o.method == "nearest") or 0
        error, training = trained(model, steps)
        print(
            f"{expression} to {tol:g}: {model.head.keys} keys, "
            f"proved {Up(model.certificate.bound):.1e}, in {took:.2f} s"
        )
        print(f"  the paper's head: {keys:,} keys, {keys / model.head.keys:,.0f} times as many")
        worse, slower = error / model.certificate.bound, training / took
        print(
            f"  Adam, as many keys, {steps:,} steps: {error:.1e}, {worse:,.0f} times the error, {slower:.0f} times "
            "the time"
        )
