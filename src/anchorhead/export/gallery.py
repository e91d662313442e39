"""Ten models whose mechanism is known exactly: ground truth for methods that look for mechanisms.

Each is compiled when it is asked for, in seconds, from a formula or a module that is written here, so that it is the
same on every machine; the numbers of the classifier are stored beside this file, as multiples of 1/32. What every head
of it computes, in words and as a program, is `model.mechanism`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from anchorhead.compiler.compile import compile
from anchorhead.display import page, sentence
from anchorhead.errors import FileError, InputError
from anchorhead.model.compiled import CompiledModel
from anchorhead.model.mechanism import Mechanism
from anchorhead.progress import Progress, telling


@dataclass(frozen=True)
class Item:
    """A model of the gallery.

    >>> sine = ah.gallery.load("sine")
    >>> sine.domain, sine.bound <= 1e-6, sine.model.certificate.level
    (((-1.0, 1.0),), True, 'proved')
    """

    name: str
    description: str
    model: CompiledModel

    @property
    def domain(self) -> tuple[tuple[float, float], ...]:
        """The interval of each input, as the certificate has it."""
        return self.model.certificate.domain

    @property
    def bound(self) -> float:
        """The error that the model keeps there."""
        return self.model.certificate.bound

    @property
    def mechanism(self) -> Mechanism:
        """What every head reads, computes and writes."""
        return self.model.mechanism

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return page(self.name, sentence(self.description), self.mechanism.html(), self.model._repr_html_())

    def as_dict(self) -> dict[str, Any]:
        """What is written beside the model's file."""
        certificate = self.model.certificate
        return {
            "name": self.name,
            "description": self.description,
            "target": certificate.expression,
            "domain": [list(pair) for pair in self.domain],
            "bound": self.bound,
            "input_shape": list(self.model.network.input_shape),
            "output_shape": list(self.model.network.output_shape),
            "mechanism": self.mechanism.as_dict(),
        }


def names() -> list[str]:
    """The names of the models, the simplest first.

    >>> ah.gallery.names()[:2]
    ['sine', 'gate']
    """
    return list(_MADE)


def load(name: str) -> Item:
    """A model of the gallery by its name, compiled and proved.

    >>> print(ah.gallery.load("sine").description)
    One head for sin(3x): softmax passes the query on from key to key.
    """
    if name not in _MADE:
        raise InputError(f"The gallery has no {name!r}; it has {', '.join(_MADE)}.")
    make = _MADE[name]
    return Item(name, " ".join((make.__doc__ or "").split()), make())


def write(folder: str | os.PathLike[str], *, progress: bool | Progress = True) -> list[Path]:
    """All models, each as NAME.safetensors and NAME.json, and index.json with their names and descriptions.

    progress: as for `ah.compile`.

    >>> import pathlib, tempfile
    >>> files = ah.gallery.write(pathlib.Path(tempfile.mkdtemp()))
    >>> len(files), files[-1].name
    (21, 'index.json')
    """
    if not isinstance(folder, str | os.PathLike):
        raise InputError(f"The gallery is written to a folder, and {folder!r:.60} is not the path of one.")
    place, found, index = Path(folder), [], {}
    try:
        place.mkdir(parents=True, exist_ok=True)
        with telling("writing the gallery", progress) as tell:
            for name in names():
                tell(name)
                item = load(name)
                item.model.save(place / f"{name}.safetensors")
                found += [place / f"{name}.safetensors", _written(place / f"{name}.json", item.as_dict())]
                index[name] = item.description
        return [*found, _written(place / "index.json", index)]
    except OSError as error:
        raise FileError(f"{folder} cannot be written: {error}.") from error


def _written(path: Path, data: dict[str, Any]) -> Path:
    path.write_text(json.dumps(data, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    return path


def _sine() -> CompiledModel:
    """One head for sin(3x): softmax passes the query on from key to key."""
    return compile("sin(3*x)", (-1, 1), tol=1e-6)


def _formula() -> CompiledModel:
    """sin(3xy) + exp(-x²): a product, then a sine of it; the exponential is carried past it."""
    return compile("sin(3*x*y) + exp(-x**2)", {"x": (-1, 1), "y": (-1, 1)}, tol=1e-5, method="graph")


def _distance() -> CompiledModel:
    """The distance of two points of the plane, rounded off at 0: squares, and the root of their sum."""
    square = {name: (-1, 1) for name in ("x1", "y1", "x2", "y2")}
    return compile("sqrt((x1 - x2)**2 + (y1 - y2)**2 + 0.01)", square, tol=1e-4)


def _gate() -> CompiledModel:
    """A gated unit, silu(2a)·b: one head whose values carry the partner b."""
    return compile("silu(2*a)*b", {"a": (-2, 2), "b": (-1, 1)}, tol=1e-5, method="graph")


def _parity() -> CompiledModel:
    """The product of four numbers, which at ±1 is their parity: products in a balanced tree."""
    return compile("a*b*c*d", {name: (-1, 1) for name in "abcd"}, tol=1e-6)


def _sorting() -> CompiledModel:
    """Four numbers in increasing order: a network of five comparators, each a maximum and a minimum."""

    def sort(x: Tensor) -> Tensor:
        return torch.sort(x).values

    return compile(sort, (-1, 1), tol=1e-3, shape=(4,))


def _recall() -> CompiledModel:
    """Two values x6, x7, blended by how well their keys (x2, x3), (x4, x5) fit the query (x0, x1): one softmax
    attention, the target's own."""

    def recall(x: Tensor) -> Tensor:
        query, keys, values = x[..., :2, None], x[..., 2:6].unflatten(-1, (2, 2)), x[..., 6:]
        return ((keys @ (8 * query)).squeeze(-1).softmax(-1) * values).sum(-1)

    return compile(recall, (-1, 1), tol=1e-6, shape=(8,))


def _layer_norm() -> CompiledModel:
    """A layer norm of four numbers: squares of deviations, the root of their mean in one head, products with it."""
    return compile(nn.LayerNorm(4, eps=0.1, elementwise_affine=False), (-1, 1), tol=1e-3)


def _gradient_descent() -> CompiledModel:
    """Two steps of gradient descent on the examples (x1, y1) and (x2, y2) in context, and what they predict at q."""
    rate = 0.5

    def predicted(x1: Tensor, y1: Tensor, x2: Tensor, y2: Tensor, q: Tensor) -> Tensor:
        first = rate / 2 * (x1 * y1 + x2 * y2)
        return q * (first + rate / 2 * ((y1 - first * x1) * x1 + (y2 - first * x2) * x2))

    return compile(predicted, (-1, 1), tol=1e-5)


def _digits() -> CompiledModel:
    """A classifier of scikit-learn's 8 x 8 digits, pixels over 16, by 12 neurons: 96.9% of digits held out, by
    `train_test_split(X / 16, y, test_size=0.3, random_state=0, stratify=y)`."""
    stored = json.loads(Path(__file__).with_name("digits.json").read_text(encoding="utf-8"))
    unit = stored.pop("unit")
    module = nn.Sequential(nn.Linear(64, 12), nn.ReLU(), nn.Linear(12, 10)).double()
    module.load_state_dict({name: torch.tensor(v, dtype=torch.float64) / unit for name, v in stored.items()})
    return compile(module, (0, 1), tol=1e-4)


_MADE: dict[str, Callable[[], CompiledModel]] = {
    "sine": _sine,
    "gate": _gate,
    "parity": _parity,
    "formula": _formula,
    "distance": _distance,
    "sorting": _sorting,
    "recall": _recall,
    "layer_norm": _layer_norm,
    "gradient_descent": _gradient_descent,
    "digits": _digits,
}
