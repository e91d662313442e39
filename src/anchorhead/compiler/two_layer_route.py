"""The paper's two-layer network (Theorem 3.3) for a function that cannot be looked into, on any box.

The box is mapped to the unit cube, x = low + w·t. If |f(x) - f(y)| <= L|x - y| in the Euclidean metric, then f as a
function of t has the modulus of continuity L |w| r for points whose coordinates differ by at most r, and the theorem's
bound applies (`theorems/grid.py`). Levels are doubled until the bound, or without a constant the error on samples,
keeps the tolerance.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from anchorhead.compiler.method import Method, Wish
from anchorhead.errors import FileError
from anchorhead.model.compiled import CompiledModel
from anchorhead.model.two_layer_core import TwoLayerCore
from anchorhead.proof.certificate import Certificate, sum_above
from anchorhead.proof.rounding import ASSUMPTIONS
from anchorhead.theorems.declared import hold_against
from anchorhead.theorems.grid import require_memory
from anchorhead.theorems.grid_network import GridNetwork
from anchorhead.theorems.two_layer import two_layer
from anchorhead.tracing.opaque import Opaque

SAMPLES = 20_000


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
                core = TwoLayerCore(network, target.box, target.input_shape, target.output_shape)
                return CompiledModel(core, certificate, self.name)
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
    network.f = None
    core = TwoLayerCore(network, certificate.domain, *shapes)
    found = core.state_dict()
    if [v.numel() for v in found.values()] != [len(numbers) for numbers in state]:
        raise FileError("The numbers in the file are not those of a two-layer network of its size.")
    stored = zip(found.items(), state, strict=True)
    core.load_state_dict({name: torch.tensor(n, dtype=v.dtype).reshape(v.shape) for (name, v), n in stored})
    return CompiledModel(core, certificate, core.kind)


def _on_cube(target: Opaque) -> Callable[[Tensor], Tensor]:
    low, high = np.array(target.box).T

    def f(t: Tensor) -> Tensor:
        points = low + t.detach().double().numpy().reshape(-1, len(low)) * (high - low)
        values = target.values(points)
        return torch.as_tensor(values).reshape(*t.shape[:-2], 1, values.shape[1]).to(t.dtype)

    return f


def _certificate(target: Opaque, network: GridNetwork, lipschitz: float | None, dtype: str) -> Certificate:
    values = network.lookup.values
    rounding = network.rounding
    condition = ""
    if lipschitz is None:
        draw = torch.Generator().manual_seed(0)
        t = torch.rand(SAMPLES, 1, len(target.box), generator=draw, dtype=torch.float64).to(network.dtype)
        error = (network(t) - network.exact(t)).abs().max().item()
        level, said = "measured", [f"nothing: the target was compared at {SAMPLES:,} random points only"]
    else:
        widths = [high - low for low, high in target.box]
        centres = network.grid.centres()
        axes = [low + width * centres for (low, _), width in zip(target.box, widths, strict=True)]
        hold_against(values, axes, lipschitz, "euclidean")
        error = network.bound_for(lipschitz=lipschitz * math.sqrt(sum(w * w for w in widths)), metric="sup") - rounding
        declared = f"the target's Lipschitz constant in the Euclidean metric is at most {lipschitz:g}, as declared"
        level, said, condition = "conditional", [declared, *ASSUMPTIONS], declared
    return Certificate(target.name, target.box, dtype, level, error, rounding, 0, tuple(said),
                       outputs=(sum_above(error, rounding),) * values.shape[-1], condition=condition)  # fmt: skip
