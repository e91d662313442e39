"""GELU by a 12-key head against torch's own, both under torch.compile, 10 million numbers in float32."""

import torch

import anchorhead as ah
from anchorhead.digits import Up
from benchmarks.clock import medians


def main(tiny: bool = False) -> None:
    model = ah.compile("gelu(x)", keys=12, dtype=torch.float32)
    x = 3 * torch.randn(100_000 if tiny else 10_000_000, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        head, gelu = torch.compile(model), torch.compile(torch.nn.functional.gelu)
        ours, theirs = medians(lambda: head(x), lambda: gelu(x), repeats=2 if tiny else 15)
        worst = (head(x).double() - torch.nn.functional.gelu(x.double())).abs().max().item()
        part = x[: len(x) // 10]
        literal = medians(lambda: model.literal()(part), repeats=3)[0] * 10
    print(f"12-key head over gelu: {ours / theirs:.2f} (at most 1.5); {ours * 1e3:.0f} ms and {theirs * 1e3:.0f} ms")
    print(f"largest difference {worst:.1e}, proved {Up(model.certificate.approximation):.1e} for the stored numbers")
    print(f"the literal softmax, eager: {literal / ours:.0f} times the head's time")
