"""What the networks of all theorems share: a lift, an attention layer, dtypes that can or cannot hold them, a file."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn, Self, cast

import numpy as np
import torch
from torch import Tensor, nn

from anchorhead.digits import Up
from anchorhead.display import beside, facts, page, sentence
from anchorhead.errors import InputError, MissingPartError, PrecisionError
from anchorhead.file.save import write
from anchorhead.head.head import Head
from anchorhead.head.parameters import AsBuilt, check_tensor
from anchorhead.model.attention import Attention
from anchorhead.model.network import Network, Resources
from anchorhead.model.stock import to_stock_attention
from anchorhead.theorems.precision import require_held

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EDITED = "The weights were changed since the network was built; the theorem says nothing of them."
WIDENED = (
    "The network was cast from {} to a dtype with more digits, where its numbers are not those that the construction "
    "has; the theorem says nothing of them. Build it in the dtype that is wanted, with dtype=."
)
FOLLOWED = (
    "The network's numbers require gradients, and in the form that has them the theorem does not count rounding; "
    "network.requires_grad_(False) gives the bound back."
)
WITHOUT = ("certificate", "report", "mechanism", "probe", "bound", "sum_bound", "bound_for")
"""What a theorem's network may be without, as `Construction.without` says."""


class Construction(Network, AsBuilt, ABC):
    """What every theorem's network is: stages that begin with the lift and the first attention layer, on sequences of
    one size. It prints, saves, plots and exports like any model.

    >>> head = ah.theorems.single_head(torch.ones(2, 3), torch.zeros(2), low=-1, high=1, anchors=16)
    >>> isinstance(head, ah.theorems.Construction), head.size
    (True, (2, 3))
    """

    theorem: str
    """The name of the function that builds it."""
    _widened = ""
    """Said of one that was cast to a dtype with more digits than its numbers have."""

    @property
    @abstractmethod
    def size(self) -> tuple[int, int]:
        """Tokens and features."""

    @property
    @abstractmethod
    def dtype(self) -> torch.dtype:
        """Of its numbers and inputs."""

    @property
    @abstractmethod
    def resources(self) -> Resources:
        """What this network costs. parameters: the numbers that are stored. They are the entries of `matrices()` but
        for W_O, which only keeps columns, constants between the layers, and zeros and copies that heads share."""

    @abstractmethod
    def require(self, dtype: torch.dtype) -> None:
        """Refuses a dtype that cannot hold the network."""

    @abstractmethod
    def described(self) -> dict[str, Any]:
        """What it was built from beside its numbers: sizes, range, β, as a file's record has them."""

    @abstractmethod
    def sentences(self) -> list[str]:
        """For people: what it computes, how far it is from that, which keys it has."""

    @abstractmethod
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of `matrices()`, none of which are made."""

    @abstractmethod
    def scalar_heads(self) -> list[Head]:
        """Heads of the first layer as functions of the one number u that they look at, in float64; those that have
        the same keys and values once."""

    @property
    def lift(self) -> nn.Sequential:
        """The affine map before the first layer."""
        return cast(nn.Sequential, self.stages[0])

    @property
    def attention(self) -> Attention:
        """The first attention layer."""
        return cast(Attention, self.stages[1])

    def lift_matrices(self) -> dict[str, Tensor]:
        """The lift, an affine map: lift.gain and lift.bias (n, d), which entries are multiplied by and what is
        added, lift.columns, constant tokens behind or before the sequence, and lift.rows, constant features below each;
        those that the network has."""
        return {f"lift.{name.rpartition('.')[2]}": value.detach() for name, value in self.lift.named_parameters()}

    def lift_shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of `lift_matrices()`."""
        return {name: tuple(value.shape) for name, value in self.lift_matrices().items()}

    def check(self, x: Tensor) -> None:
        check_tensor(x, self.dtype, self.size, what="network")

    def built(self) -> None:
        """From now on these are the numbers, all of which are finite."""
        for name, value in self.state_dict().items():
            if not value.isfinite().all():
                raise PrecisionError(
                    f"{self.dtype} cannot hold this network: {file_name(name)} would have numbers that are not finite. "
                    "Use a wider dtype, or scale weights, range or f."
                )
        super().built()

    def require_built(self) -> None:
        """Refuses to speak for numbers that are not the construction's."""
        if self.unproved:
            raise MissingPartError(self.unproved)

    @property
    def unproved(self) -> str:
        """Why the theorem says nothing of its numbers as they are; empty where it does."""
        if self.edited:
            return self._widened or EDITED
        return FOLLOWED if self.evaluated_literally else ""

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        """`.to(dtype)` and the like: refused where the new dtype cannot hold the network; in one with more digits it
        counts as edited, since the construction's numbers there are not rounded to the old one."""
        after = fn(self.attention.value[:0])
        if after.is_meta:
            raise InputError(
                f"On the meta device the network of {self.theorem} would have no numbers, and there would be nothing "
                "to bound. Keep it on a device with memory; its sizes are in .resources and .shapes()."
            )
        before = self.dtype
        if after.dtype != before:
            self.require(after.dtype)
        super()._apply(fn, recurse)
        if torch.finfo(after.dtype).eps < torch.finfo(before).eps and not self.edited:
            self.forget()
            self._widened = WIDENED.format(str(before).removeprefix("torch."))
        return self

    def plot(self, *, lipschitz: float | Callable[[float], float] | None = None) -> Figure:
        """A figure of the target, of the error under the theorem's bound and of the attention, with no file and no
        window. lipschitz: as `bound_for` takes it, where the bound depends on how fast f varies."""
        from anchorhead.theorems.portrait import view

        return view(self, lipschitz).figure()

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        from anchorhead.theorems.portrait import view
        from anchorhead.view import sketched

        cost, bound = self.resources, self.known_bound()
        rows = [
            ("tokens, features", f"{self.size[0]}, {self.size[1]}"),
            ("layers, heads", f"{cost.layers}, {cost.heads:,}"),
            ("keys", f"{cost.keys:,}"),
            ("parameters", f"{cost.parameters:,}"),
            *((name, f"{value:.6g}") for name, value in self.betas().items()),
            ("logit range", f"±{cost.logit_range:.4g}"),
            ("dtype", str(self.dtype).removeprefix("torch.")),
            *([] if bound is None else [("bound", f"{Up(bound):.6g}")]),
            *((name, str(shape)) for name, shape in self.shapes().items()),
        ]
        try:
            drawn = sketched(view(self))
        except InputError:
            drawn = ""
        told, *known = self.sentences()
        return page(told, sentence("\n".join(known)), beside(facts(rows), drawn))

    def betas(self) -> dict[str, float]:
        """Every β that it has, by what it is called."""
        return {"beta": self.resources.beta}

    def __getattr__(self, name: str) -> Any:
        if name in WITHOUT and name in self.without:
            raise MissingPartError(self.without[name])
        return super().__getattr__(name)

    @property
    def without(self) -> dict[str, str]:
        """What other models or networks have and this one has not, by name, and why."""
        why = (
            "what is known of it is proved on paper. Its bound is .bound, or .bound_for(lipschitz=L) of a look-up, and "
            "print(network) says what it is."
        )
        drawn = "its heads have no names. .matrices() has their weights by name, .plot() draws the first layer's."
        reasons = {"certificate": why, "report": why, "mechanism": drawn, "probe": why}
        return {name: f"A theorem's network has no {name}: {why}" for name, why in reasons.items()}

    def with_row_map(self, row_map: Any) -> NoReturn:
        """Refuses: the theorems are of softmax. Says which heads take other row maps."""
        raise InputError(
            "The theorems are of softmax, and nothing is known of their networks under another row map. The paper's "
            'head as a compiled model has one: ah.compile("clip(u, -1, 1)", (-2, 2), tol=0.1, method="nearest")'
            ".with_row_map(...), with a certificate of its own."
        )

    def to_stock_attention(self) -> nn.Module:
        """The same network as stock nn.MultiheadAttention and nn.Linear, on (batch, n, d)."""
        return to_stock_attention(self)

    def numbers(self) -> dict[str, Tensor]:
        """Every number that it computes with, by the name that a file has for it: stages.1.query, ..."""
        return {file_name(name): value.detach() for name, value in self.state_dict().items()}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes one safetensors file that holds all that `ah.load` needs."""
        name = str(self.dtype).removeprefix("torch.")
        record = {"kind": "theorem", "theorem": self.theorem, "dtype": name, "built": not self.edited}
        write(record | self.described(), {key: stored(value) for key, value in self.numbers().items()}, path)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON: what it was built from, what it costs, what is known of it."""
        known = {"theorem": self.theorem, "dtype": str(self.dtype).removeprefix("torch."), **self.described()}
        return known | {"bound": self.known_bound(), "resources": vars(self.resources)}

    @abstractmethod
    def known_bound(self) -> float | None:
        """The theorem's bound where it is a number, and None where it depends on what is not known, or is not its."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.sentences()[0]})"

    def __str__(self) -> str:
        cost = self.resources
        counted = f"layers {cost.layers}, heads {cost.heads:,}, keys {cost.keys:,}, parameters {cost.parameters:,}"
        counted += " (every stored number, those of the lift included)"
        shapes = ", ".join(f"{name} {shape}" for name, shape in self.shapes().items())
        return "\n".join([*self.sentences(), f"{counted}, logits up to {cost.logit_range:.4g}", shapes])


def file_name(name: str) -> str:
    """A name of the state as files have it: stages.3.second.query as stages.3.second_query, stages.0.1.rows as
    stages.0.rows."""
    first, stage, *rest = name.split(".")
    return f"{first}.{stage}.{'_'.join(part for part in rest if not part.isdigit())}"


def stored(value: Tensor) -> np.ndarray:
    """The numbers of a tensor as a file holds them, in one row: those of narrow dtypes as float32, which has them all,
    and whole numbers as int32."""
    if not value.is_floating_point():
        value = value.int()
    elif value.dtype not in (torch.float64, torch.float32):
        value = value.float()
    return value.detach().cpu().numpy().reshape(-1)


def _named(dtype: Any) -> str:
    """The floating dtype that a name is meant to be, or the usual one."""
    return dtype if isinstance(dtype, str) and dtype in ("float64", "float32", "float16", "bfloat16") else "float64"


def check_dtype(dtype: Any) -> torch.dtype:
    """A floating dtype that a head can be built in."""
    if not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise PrecisionError(f"dtype={dtype!r} must be a floating dtype of torch: write dtype=torch.{_named(dtype)}.")
    return require_held(dtype)
