"""The published ramps, the network that the paper's authors train on them, and how (docs/mathematics.md 1.9).

The ramps have n tokens of d features, w_i and t_i standard normal, inputs uniform on [-5, 5], 800 + 200 sequences.

A layer lifts tokens by a linear map to 32 features times a learnable gain for each position and feature, appends p - n
learnable tokens that start evenly spaced on [-1, 1], and applies multi-head attention of width 32, whatever the number
of heads: query, key, value and output projections with bias, scores over the root of the head size. Adam at 1e-3,
batches of 32, mean squared error over all output coordinates.

*The theorem's network is one of these.* The lift writes w_i * x_i and t_i through its gains, and with a bias of one in
further features any constants into any column; appended tokens hold constants too. So all p columns can be anchors:
features 0..d hold w_i * x_i and t_i, then a one, the anchor L_k and -L_k²; `start_at_anchors` writes those numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

WIDTH = 32
RATE = 1e-3
BATCH = 32
TOKENS, FEATURES, SEQUENCES, HELD_OUT = 50, 10, 1000, 200


@dataclass(frozen=True)
class RampData:
    """weights (n, d), bias (n,), inputs (sequences, n, d), all float64; the last 200 sequences are for testing."""

    weights: Tensor
    bias: Tensor
    inputs: Tensor

    def target(self, low: float, high: float) -> Tensor:
        """clip(w_i·x_i + t_i, low, high), (sequences, n)."""
        return ((self.inputs * self.weights).sum(-1) + self.bias).clamp(low, high)


def ramp_data(seed: int, tokens: int = TOKENS, features: int = FEATURES, sequences: int = SEQUENCES) -> RampData:
    """The data of one seed."""
    draw = torch.Generator().manual_seed(seed)
    weights = torch.randn(tokens, features, generator=draw, dtype=torch.float64)
    bias = torch.randn(tokens, generator=draw, dtype=torch.float64)
    inputs = 10 * torch.rand(sequences, tokens, features, generator=draw, dtype=torch.float64) - 5
    return RampData(weights, bias, inputs)


class PublishedLayer(nn.Module):
    """(..., n, features) to (..., n, 32); columns is p, at least n."""

    def __init__(self, tokens: int, features: int, columns: int, heads: int, draw: torch.Generator) -> None:
        super().__init__()
        self.tokens, self.features, self.heads = tokens, features, heads
        self.lift = _linear(features, WIDTH, draw)
        self.gain = nn.Parameter(torch.ones(tokens, WIDTH))
        spread = torch.linspace(-1, 1, columns - tokens) if columns > tokens else torch.zeros(0)
        self.appended = nn.Parameter(spread[:, None].repeat(1, WIDTH))
        self.query, self.key, self.value, self.output = (_linear(WIDTH, WIDTH, draw) for _ in range(4))

    def _projected(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries of the tokens, keys and values of all columns, each (..., heads, columns, size)."""
        lifted = self.lift(x) * self.gain
        columns = torch.cat([lifted, self.appended.expand(*x.shape[:-2], -1, -1)], -2)
        found = self.query(lifted), self.key(columns), self.value(columns)
        query, key, value = (y.unflatten(-1, (self.heads, WIDTH // self.heads)).transpose(-2, -3) for y in found)
        return query / math.sqrt(WIDTH // self.heads), key, value

    def weights(self, x: Tensor) -> Tensor:
        """(..., heads, n, columns)."""
        query, key, _ = self._projected(x)
        return (query @ key.mT).softmax(-1)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self._projected(x)
        blended = (query @ key.mT).softmax(-1) @ value
        return self.output(blended.transpose(-2, -3).flatten(-2))

    def start_at_anchors(self, weights: Tensor, bias: Tensor, anchors: Tensor, beta: float) -> None:
        """Writes the theorem's numbers, for one head: clip(w_i·x_i + t_i) over anchors centred on zero."""
        n, d = weights.shape
        one, place, square = d + 1, d + 2, d + 3
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.zero_()
            self.lift.weight[:d] = torch.eye(d)
            self.lift.bias[d : square + 1] = 1
            self.gain[:, :d], self.gain[:, d], self.gain[:, one] = weights, bias, 1
            self.gain[:, place], self.gain[:, square] = anchors[:n], -(anchors[:n] ** 2)
            self.appended[:, place], self.appended[:, square] = anchors[n:], -(anchors[n:] ** 2)
            scale = beta * math.sqrt(WIDTH)
            self.query.weight[0, : d + 1], self.query.weight[1, one] = scale, scale
            self.key.weight[0, place], self.key.weight[1, square] = 2, 1
            self.value.weight[0, place] = 1
            self.output.weight[0, 0] = 1


class PublishedSequences(nn.Module):
    """Two such layers without appended tokens, and a linear read-out: (..., n, features) to (..., n, features)."""

    def __init__(self, tokens: int, features: int, heads: int, draw: torch.Generator) -> None:
        super().__init__()
        self.first = PublishedLayer(tokens, features, tokens, heads, draw)
        self.second = PublishedLayer(tokens, WIDTH, tokens, heads, draw)
        self.read_out = _linear(WIDTH, features, draw)

    def forward(self, x: Tensor) -> Tensor:
        return self.read_out(self.second(self.first(x)))


def train(model: nn.Module, inputs: Tensor, targets: Tensor, epochs: int, draw: torch.Generator) -> None:
    """Adam on mean squared error, the order of samples drawn anew for each epoch."""
    optimiser = torch.optim.Adam(model.parameters(), lr=RATE, fused=True)
    for _ in range(epochs):
        for batch in torch.randperm(len(inputs), generator=draw).split(BATCH):
            optimiser.zero_grad()
            (model(inputs[batch]) - targets[batch]).square().mean().backward()
            optimiser.step()


def train_on_ramps(model: PublishedLayer, data: RampData, target: Tensor, epochs: int, draw: torch.Generator) -> Tensor:
    """Trains towards a target (sequences, n), and returns the outputs on the held-out sequences, in float32."""
    x, y = data.inputs.float(), in_first_feature(target.float())
    train(model, x[:-HELD_OUT], y[:-HELD_OUT], epochs, draw)
    with torch.no_grad():
        return model(x[-HELD_OUT:])[..., 0]


def in_first_feature(target: Tensor) -> Tensor:
    """What the layer is trained towards: the target in the first of 32 coordinates, zero in the others."""
    return torch.cat([target[..., None], target.new_zeros(*target.shape, WIDTH - 1)], -1)


def _linear(inputs: int, outputs: int, draw: torch.Generator) -> nn.Linear:
    """torch's initialisation of nn.Linear, from a generator of our own."""
    layer = nn.utils.skip_init(nn.Linear, inputs, outputs)
    limit = inputs**-0.5
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.uniform_(-limit, limit, generator=draw)
    return layer
