"""Long sequences: time per token of one head from n = 1,000 to 100,000, and memory at p = 16,384 anchors."""

import subprocess
import sys

import torch

import anchorhead as ah
from anchorhead.digits import Up
from benchmarks.clock import medians

MEMORY = """
import resource, sys, torch, anchorhead as ah
n, anchors = map(int, sys.argv[1:])
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
w, t, x = torch.randn(n, 10).double(), torch.randn(n).double(), torch.randn(n, 10).double()
model = ah.theorems.single_head(w, t, -25, 25, anchors=anchors)
ah.theorems.single_head(w[:10], t[:10], -25, 25, anchors=64)(x[:10])  # load the kernels
before = peak()
error = (model(x) - model.exact(x)).abs().max().item()
print(peak() - before, error, model.bound)
"""


def flat_time_per_token(most: int) -> float:
    """Seconds per token at n = most over those at n = 1,000."""

    def network(n: int) -> tuple[ah.theorems.SingleHead, torch.Tensor]:
        draw = torch.Generator().manual_seed(n)
        w, t, x = (torch.randn(*s, generator=draw, dtype=torch.float64) for s in ((n, 10), (n,), (n, 10)))
        return ah.theorems.single_head(w, t, -25, 25, anchors=2048, causal=True), x

    (short, x), (long, y) = network(1_000), network(most)
    seconds = medians(lambda: [short(x) for _ in range(20)], lambda: long(y), repeats=5)
    return (seconds[1] / most) / (seconds[0] / 20_000)


def extra_memory(n: int, anchors: int) -> tuple[float, float, float]:
    """GB that one forward pass adds to a fresh process; its error and bound."""
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, str(n), str(anchors)], capture_output=True, text=True, check=True
    )
    added, error, bound = map(float, done.stdout.split())
    return added, error, bound


def main(tiny: bool = False) -> None:
    most, n, anchors = (2_000, 200, 512) if tiny else (100_000, 10_000, 16_384)
    ratio = flat_time_per_token(most)
    print(f"time per token, n = {most:,} over n = 1,000 (2,048 anchors): {ratio:.2f} (at most 1.3)")
    added, error, bound = extra_memory(n, anchors)
    print(
        f"n = {n:,}, p = {anchors:,}, float64: {added:.2f} GB more (under 1), error {error:.2e}, bound {Up(bound):.2e}"
    )
