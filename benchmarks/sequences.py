"""The paper's sequence experiment: its trained network, linear regression, and the target compiled through its graph.

X is uniform on [0, 1]^(20 x 5), the target a ReLU network of width 10 on the flattened sequence with standard normal
weights. Trained as the paper's script does: each of two layers is a linear map to 32 features times a gain for each
position, then multi-head attention; Adam, 1e-3, batches of 32, mean squared error.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

import anchorhead as ah

TOKENS, FEATURES, WIDTH, HIDDEN = 20, 5, 10, 32


class Trained(nn.Module):
    """Two attention layers with the paper's lift, and a linear read-out."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.lifts = nn.ModuleList([nn.Linear(FEATURES, HIDDEN), nn.Linear(HIDDEN, HIDDEN)])
        self.gains = nn.ParameterList([nn.Parameter(torch.ones(TOKENS, 1)) for _ in range(2)])
        self.attention = nn.ModuleList([nn.MultiheadAttention(HIDDEN, heads, batch_first=True) for _ in range(2)])
        self.read_out = nn.Linear(HIDDEN, FEATURES)

    def forward(self, x: Tensor) -> Tensor:
        for lift, gain, attention in zip(self.lifts, self.gains, self.attention, strict=True):
            x = lift(x) * gain
            x = attention(x, x, x, need_weights=False)[0]
        return self.read_out(x)


def target(seed: int) -> nn.Module:
    """The ReLU network on the flattened sequence."""
    draw = torch.Generator().manual_seed(seed)
    first, last = nn.Linear(TOKENS * FEATURES, WIDTH), nn.Linear(WIDTH, TOKENS * FEATURES)
    for layer in (first, last):
        for parameter in layer.parameters():
            parameter.data = torch.randn(parameter.shape, generator=draw)
    return nn.Sequential(nn.Flatten(), first, nn.ReLU(), last, nn.Unflatten(1, (TOKENS, FEATURES)))


def trained_error(f: nn.Module, seed: int, samples: int = 50_000, epochs: int = 3) -> float:
    """Mean squared error on fresh sequences, after training as published."""
    torch.manual_seed(seed)
    model, x = Trained(heads=4), torch.rand(samples, TOKENS, FEATURES)
    with torch.no_grad():
        y = f(x)
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(epochs):
        for batch in torch.randperm(samples).split(32):
            optimiser.zero_grad()
            (model(x[batch]) - y[batch]).square().mean().backward()
            optimiser.step()
    fresh = torch.rand(5000, TOKENS, FEATURES)
    with torch.no_grad():
        return (model(fresh) - f(fresh)).square().mean().item()


def regression_error(f: nn.Module, seed: int, samples: int = 20_000) -> float:
    """Mean squared error of linear regression on the flattened sequence."""
    torch.manual_seed(seed)
    x, fresh = torch.rand(samples, TOKENS, FEATURES), torch.rand(5000, TOKENS, FEATURES)
    with torch.no_grad():
        design, test = (torch.cat([z.flatten(1), torch.ones(len(z), 1)], 1) for z in (x, fresh))
        found = torch.linalg.lstsq(design, f(x).flatten(1)).solution
        return (test @ found - f(fresh).flatten(1)).square().mean().item()


def main() -> None:
    f = target(1234)
    model = ah.compile(f, (0, 1), tol=1e-5, shape=(TOKENS, FEATURES))
    x = torch.rand(5000, TOKENS, FEATURES, dtype=torch.float64)
    with torch.no_grad():
        error = model(x) - f.double()(x)
    f.float()
    print(f"compiled: proved sup error {model.certificate.bound:.1e}, measured {error.abs().max():.1e}, mean square "
          f"{error.square().mean():.1e}; {model.resources.keys} keys")  # fmt: skip
    print(f"linear regression: mean square {regression_error(f, 1):.3g}")
    print(f"two attention layers trained as published: mean square {trained_error(f, 1):.3g}")


if __name__ == "__main__":
    main()
