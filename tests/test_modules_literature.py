"""Modules as the literature has them compile as they are: sine networks, positional encodings, encoder layers."""

import itertools
import math
from functools import cache

import pytest
import torch
from torch import nn

import anchorhead as ah

pytestmark = pytest.mark.heavy
POINTS = 300


class Siren(nn.Module):
    """sin(30(Wx + b)) in every hidden layer, with the usual initialisation (Sitzmann et al., arXiv 2006.09661)."""

    def __init__(self, *sizes: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(*pair) for pair in itertools.pairwise(sizes))
        for i, layer in enumerate(self.layers):
            reach = 1 / layer.in_features if i == 0 else math.sqrt(6 / layer.in_features) / 30
            nn.init.uniform_(layer.weight, -reach, reach)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers[:-1]:
            x = torch.sin(30 * layer(x))
        return self.layers[-1](x)


class Encoded(nn.Module):
    """Sines and cosines of so many octaves, and a perceptron (Tancik et al., arXiv 2006.10739)."""

    def __init__(self, inputs: int, octaves: int) -> None:
        super().__init__()
        self.octaves = octaves
        self.perceptron = nn.Sequential(nn.Linear(2 * octaves * inputs, 16), nn.Tanh(), nn.Linear(16, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        angles = [2**k * math.pi * x for k in range(self.octaves)]
        return self.perceptron(torch.cat([f(angle) for angle in angles for f in (torch.sin, torch.cos)], -1))


class RMS(nn.Module):
    """Two layers, each with a norm before it and what was there added to it (Zhang and Sennrich, arXiv 1910.07467)."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.RMSNorm(4) for _ in range(2))
        self.inner, self.outer = (nn.ModuleList(nn.Linear(*sizes) for _ in range(2)) for sizes in ((4, 6), (6, 4)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for norm, inner, outer in zip(self.norms, self.inner, self.outer, strict=True):
            x = x + outer(nn.functional.silu(inner(norm(x))))
        return x


def box_around_a_point(radius: float) -> tuple[torch.Tensor, torch.Tensor]:
    point = torch.randn(3, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return point - radius, point + radius


def case(name: str) -> tuple[nn.Module, dict[str, object]]:
    torch.manual_seed(0)
    if name == "siren":
        return Siren(2, 16, 16, 1).double(), {"domain": (-1, 1), "tol": 1e-3}
    if name == "encoded":
        return Encoded(2, 6).double(), {"domain": (-1, 1), "shape": (2,), "tol": 1e-3}
    box = box_around_a_point(float(name.rpartition(" ")[2]))
    if name.startswith("rms"):
        return RMS().double(), {"domain": box, "tol": 1e-2}
    return nn.TransformerEncoderLayer(4, 2, 8).double().eval(), {"domain": box, "tol": 1e-2}


NAMES = ("siren", "encoded", "encoder layer 0.005", "encoder layer 0.05", "rms 0.1")


@cache
def made(name: str) -> tuple[nn.Module, ah.CompiledModel, float]:
    module, arguments = case(name)
    return module, ah.compile(module, **arguments), float(arguments["tol"])


def exact(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """The module at one input after the other: stock attention takes its first dimension for tokens."""
    with torch.no_grad():
        return torch.stack([module(one) for one in x])


def inputs(model: ah.CompiledModel, shape: tuple[int, ...], seed: int) -> torch.Tensor:
    """Points of the domain: anywhere in it, and corners."""
    low, high = torch.tensor(model.certificate.domain, dtype=torch.float64).T
    part = torch.rand(POINTS, len(low), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    part[: POINTS // 3] = part[: POINTS // 3].round()
    return (low + (high - low) * part).clamp(low, high).reshape(POINTS, *shape)


@pytest.mark.parametrize("name", NAMES)
def test_the_proved_bound_holds_against_the_module(name):
    module, model, tol = made(name)
    assert model.certificate.level == "proved"
    assert model.certificate.bound <= tol
    x = inputs(model, model.input_shape, 0)
    with torch.no_grad():
        error = (model(x) - exact(module, x)).abs()
    assert error.max() <= model.certificate.bound
    assert (error.flatten(1).amax(0) <= torch.tensor(model.certificate.outputs)).all()


@pytest.mark.parametrize("name", NAMES)
def test_the_file_is_verified_and_gives_the_same_model(name, tmp_path):
    _, model, _ = made(name)
    model.save(tmp_path / "model.safetensors")
    checked = ah.verify(tmp_path / "model.safetensors")
    assert (checked.bound, checked.outputs) == (model.certificate.bound, model.certificate.outputs)
    x = inputs(model, model.input_shape, 1)
    assert torch.equal(ah.load(tmp_path / "model.safetensors")(x), model(x))


def test_a_shape_that_the_module_does_not_take_is_refused():
    with pytest.raises(ah.ShapeError, match="takes 3 inputs, and the domain or shape= says 2"):
        ah.compile(nn.Linear(3, 1).double(), (-1, 1), shape=(2,))
