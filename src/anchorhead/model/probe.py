"""Whether a run of a network keeps what was proved of it, layer by layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from torch import Tensor

from anchorhead.digits import Up
from anchorhead.display import shortened
from anchorhead.model.core import Core
from anchorhead.model.layered import exact_wires
from anchorhead.model.layered_core import LayeredCore
from anchorhead.proof.certificate import Certificate


@dataclass(frozen=True)
class LayerProbe:
    """One layer of a run, counted from 0: the node that errs most against what was proved for it."""

    layer: int
    label: str
    measured: float
    proved: float

    @property
    def exceeds(self) -> bool:
        """Whether the measured error is above the proved one (not a number counts as above)."""
        return not self.measured <= self.proved


@dataclass(frozen=True)
class Probe:
    """A run against the exact target, layer by layer."""

    layers: tuple[LayerProbe, ...]

    @property
    def first(self) -> LayerProbe | None:
        """The first layer whose measured error exceeds its share, or None."""
        return next((layer for layer in self.layers if layer.exceeds), None)

    def __str__(self) -> str:
        lines = [
            f"layer {p.layer}: measured {p.measured:.2e}, proved {Up(p.proved):.2e} at {shortened(p.label, 60)}"
            + ("  <- exceeds its share" if p is self.first else "")
            for p in self.layers
        ]
        return "\n".join(lines)

    __repr__ = __str__


def probe(core: Core, certificate: Certificate, x: Tensor) -> Probe:
    """Compares a run with the target in float64: every wire of a network, or the outputs of what is one layer."""
    if isinstance(core, LayeredCore):
        return _layers(core, certificate.outputs, x)
    exact = core.exact(x.double())
    error = (core(x).double() - exact).abs()
    bound = certificate.bound
    if certificate.relative:
        error = error / exact.abs()
    elif not certificate.bounded:
        bound += certificate.rounding * (1 + float(x.abs().max())) if x.numel() else 0.0
    measured = float(error.max()) if error.numel() else 0.0
    return Probe((LayerProbe(0, certificate.expression, measured, bound),))


def _layers(core: LayeredCore, output_errors: Sequence[float], x: Tensor) -> Probe:
    """The last layer is the output's affine map."""
    network, circuit, wire_errors = core.layered, core.circuit, core.report.wire_errors
    states = network.states(core.flat(x))
    wires, outputs = exact_wires(circuit, x.double())
    found = []
    for number, (layer, (_, state)) in enumerate(zip(network.sequence, pairwise(states), strict=True)):
        new = [circuit.starts[i] + k for i in layer.steps for k in range(circuit.steps[i].width)]
        errors = _largest(state[..., -len(new) :].double() - wires[..., new])
        names = [circuit.wire_name(w) for w in new]
        found.append(_worst(number, names, errors, [wire_errors[w] for w in new]))
    errors = _largest(network.last(states[-1]).double() - outputs)
    names = [f"output {i}" for i in range(len(errors))]
    found.append(_worst(len(network.sequence), names, errors, output_errors))
    return Probe(tuple(found))


def _largest(difference: Tensor) -> list[float]:
    """For each entry of the last dimension the largest absolute value, zero of an empty batch."""
    rows = difference.abs().reshape(-1, difference.shape[-1])
    return [float(v) for v in (rows.amax(0) if len(rows) else rows.new_zeros(rows.shape[1]))]


def _worst(layer: int, names: Sequence[str], errors: Sequence[float], proved: Sequence[float]) -> LayerProbe:
    ratios = [e / p if p > 0 else (0.0 if e == 0 else float("inf")) for e, p in zip(errors, proved, strict=True)]
    worst = max(range(len(ratios)), key=lambda i: (ratios[i] != ratios[i], ratios[i]))
    return LayerProbe(layer, names[worst], errors[worst], proved[worst])
