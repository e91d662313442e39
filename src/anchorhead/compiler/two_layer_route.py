"""The paper's two-layer network (Theorem 3.3) for a function that cannot be looked into, on any box.

The box is mapped to the unit cube, x = low + w·t. If |f(x) - f(y)| <= L|x - y| in the Euclidean metric, then f as a
function of t has the modulus of continuity L |w| r for points whose coordinates differ by at most r, and the theorem's
bound applies (`theorems/grid.py`). Levels are doubled until the bound, or without a constant the error on samples,
keeps the tolerance.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from anchorhead.circuit.step import Pair
from anchorhead.compiler.method import Method, Wish
from anchorhead.errors import FileError, InputError
from anchorhead.head.parameters import check_tensor
from anchorhead.model.affine import PositionGain
from anchorhead.model.compiled import CompiledModel
from anchorhead.model.form import Form, require_tokens
from anchorhead.model.network import Literal, Network
from anchorhead.model.resources import Resources
from anchorhead.proof.certificate import Certificate, sum_above
from anchorhead.proof.rounding import ASSUMPTIONS
from anchorhead.theorems.grid import require_memory
from anchorhead.theorems.two_layer import GridNetwork, two_layer
from anchorhead.tracing.opaque import Opaque

SAMPLES = 20_000


class TwoLayerForm(Form):
    """The paper's network behind a map of the box to the unit cube: (..., *input_shape) to (..., *output_shape)."""

    kind = "two_layer"

    def __init__(
        self, network: GridNetwork, box: Sequence[Pair], input_shape: tuple[int, ...], output_shape: tuple[int, ...]
    ) -> None:
        super().__init__()
        self.network = network
        self.input_shape, self.output_shape = input_shape, output_shape
        low, high = torch.tensor(box, dtype=torch.float64).T
        gain = 1 / (high - low)
        self.scale = PositionGain(gain[None].to(network.dtype), (-low * gain)[None].to(network.dtype))

    @property
    def dtype(self) -> torch.dtype:
        return self.network.dtype

    def check(self, x: Tensor) -> None:
        check_tensor(x, self.dtype, self.input_shape)

    def forward(self, x: Tensor) -> Tensor:
        return self.shaped(self.network(self.scaled(x)).squeeze(-2))

    def literal(self) -> nn.Module:
        return copy.deepcopy(_Literal(self))

    def scaled(self, x: Tensor) -> Tensor:
        """The inputs as one token each, on the unit cube."""
        self.check(x)
        return self.scale(x.flatten(-len(self.input_shape)).unsqueeze(-2))

    def attention(self, x: Tensor) -> list[Tensor]:
        """The weights of both layers, (..., heads, keys)."""
        return [weights.squeeze(-2) for weights in self.network.attention_weights(self.scaled(x))]

    def on_sequences(self, tokens: int) -> Network:
        """The map to the unit cube and the network behind it, which is matrices on one token already."""
        if require_tokens(tokens) != 1:
            raise InputError(f"tokens={tokens!r} was asked for, and this network is built for sequences of 1.")
        return Network([self.scale, *self.network.stages], self.network.size)

    def resources(self, certificate: Certificate) -> Resources:
        return self.network.resources

    @property
    def largest_value(self) -> float:
        return self.network.lookup.values.abs().max().item()

    def payload(self, certificate: Certificate) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        record = {
            "kind": self.kind,
            "name": certificate.expression[:200],
            "outputs": self.network.lookup.values.shape[-1],
            "levels": self.network.grid.levels,
            "input_shape": list(self.input_shape),
            "output_shape": list(self.output_shape),
        }
        state = [value.detach().cpu().numpy().reshape(-1) for value in self.state_dict().values()]
        return record, {f"state.{i}.numbers": numbers for i, numbers in enumerate(state)}

    def __repr__(self) -> str:
        return f"two_layer, {self.network.grid.levels} levels"


class _Literal(nn.Module):
    def __init__(self, form: TwoLayerForm) -> None:
        super().__init__()
        self.network = Literal(form.network)
        self.scaled, self.shaped = form.scaled, form.shaped

    def forward(self, x: Tensor) -> Tensor:
        return self.shaped(self.network(self.scaled(x)).squeeze(-2))


class TwoLayer(Method):
    """The paper's two layers over a grid of levels, for a function that is sampled."""

    name = "two_layer"
    takes = ("opaque",)
    samples = True

    def compile(self, target: Opaque, wish: Wish) -> CompiledModel:
        """Levels doubled until the tolerance is kept; SizeError where the memory does not allow that many."""
        levels, tol, dtype = 2, wish.tolerance(1e-2), wish.torch_dtype
        while True:
            wish.progress(f"two_layer: {levels} levels a coordinate, {levels ** len(target.box):,} keys")
            network = two_layer(_on_cube(target), tokens=1, features=len(target.box), levels=levels, dtype=dtype)
            certificate = _certificate(target, network, wish.lipschitz, wish.dtype)
            if certificate.bound <= tol:
                form = TwoLayerForm(network, target.box, target.input_shape, target.output_shape)
                return CompiledModel(form, certificate, self.name)
            _require_room(network, certificate.bound / tol, dtype)
            levels *= 2


def _require_room(network: GridNetwork, factor: float, dtype: torch.dtype) -> None:
    """The error falls like 1/levels at best: refuses at once what would end in more memory than there is."""
    if network.grid.levels >= 8:
        wanted = replace(network.grid, levels=math.ceil(network.grid.levels * factor / 4))
        if wanted.levels > network.grid.levels:
            require_memory(wanted, network.lookup.values.shape[-1], dtype)


def stored_two_layer(
    state: Sequence[tuple[float, ...]],
    levels: int,
    outputs: int,
    certificate: Certificate,
    shapes: tuple[tuple[int, ...], tuple[int, ...]],
    dtype: torch.dtype,
) -> CompiledModel:
    """The network from its stored numbers, in the order of its state."""
    features = len(certificate.domain)
    nothing = torch.zeros(1, outputs, dtype=dtype)
    network = two_layer(lambda t: nothing.expand(*t.shape[:-2], 1, outputs), tokens=1, features=features,
                        levels=levels, dtype=dtype)  # fmt: skip
    form = TwoLayerForm(network, certificate.domain, *shapes)
    found = form.state_dict()
    if [v.numel() for v in found.values()] != [len(numbers) for numbers in state]:
        raise FileError("The numbers in the file are not those of a two-layer network of its size.")
    stored = zip(found.items(), state, strict=True)
    form.load_state_dict({name: torch.tensor(n, dtype=v.dtype).reshape(v.shape) for (name, v), n in stored})
    return CompiledModel(form, certificate, form.kind)


def _on_cube(target: Opaque) -> Callable[[Tensor], Tensor]:
    low, high = np.array(target.box).T

    def f(t: Tensor) -> Tensor:
        points = low + t.detach().double().numpy().reshape(-1, len(low)) * (high - low)
        values = target.values(points)
        return torch.as_tensor(values).reshape(*t.shape[:-2], 1, values.shape[1]).to(t.dtype)

    return f


def _certificate(target: Opaque, network: GridNetwork, lipschitz: float | None, dtype: str) -> Certificate:
    values = network.lookup.values
    unit = torch.finfo(network.dtype).eps / 2
    rounding = 8 * (len(target.box) + 1) * unit * values.abs().max().item()
    if lipschitz is None:
        draw = torch.Generator().manual_seed(0)
        t = torch.rand(SAMPLES, 1, len(target.box), generator=draw, dtype=torch.float64).to(network.dtype)
        error = (network(t) - network.exact(t)).abs().max().item()
        level, said = "measured", [f"nothing: the target was compared at {SAMPLES:,} random points only"]
    else:
        widths = [high - low for low, high in target.box]
        error = network.bound_for(lipschitz=lipschitz * math.sqrt(sum(w * w for w in widths)), metric="sup") - rounding
        declared = f"the target's Lipschitz constant in the Euclidean metric is at most {lipschitz:g}, as declared"
        level, said = "conditional", [declared, *ASSUMPTIONS]
    return Certificate(target.name, target.box, dtype, level, error, rounding, 0, tuple(said),
                       outputs=(sum_above(error, rounding),) * values.shape[-1])  # fmt: skip
