"""The compiled model: softmax attention with a certificate, whatever it was compiled from."""

from __future__ import annotations

import hashlib
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from anchorhead.circuit.circuit import Circuit
from anchorhead.digits import Up, counted
from anchorhead.display import beside, facts, page, sentence
from anchorhead.errors import MissingPartError, PrecisionError, VerificationError
from anchorhead.expression.graph import Expression
from anchorhead.file.save import save
from anchorhead.head.module import HeadModule
from anchorhead.model.core import Core
from anchorhead.model.mapped_core import MappedCore, mapped
from anchorhead.model.mechanism import Mechanism
from anchorhead.model.network import Network, Resources
from anchorhead.model.outside import Watched
from anchorhead.model.probe import Probe, probe
from anchorhead.model.report import Report
from anchorhead.model.stock import to_stock_attention
from anchorhead.proof.certificate import Certificate
from anchorhead.proof.head_claim import HeadClaim
from anchorhead.row_maps import RowMap

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ADVICE = "Compile it on a domain that holds the inputs, or clip them to it"


def fingerprint(module: nn.Module) -> bytes:
    """A digest of all numbers that a module holds; on the meta device it holds none."""
    total = hashlib.blake2b()
    for name, value in module.state_dict().items():
        numbers = b"" if value.is_meta else value.detach().cpu().contiguous().numpy().tobytes()
        total.update(name.encode() + b"\0" + numbers)
    return total.digest()


class CompiledModel(Watched):
    """A function as softmax attention: (..., inputs) to (..., outputs), differentiable and batched.

    `certificate` says how far it is from the target; `resources` what it costs; `method` how it was built; `network`
    what it computes with (`core.py`); `outside` what an input outside the domain does: "warn", once, unless it is set
    to "error" or "ignore".

    >>> model = ah.compile("tanh(x)")
    >>> model.resources.keys, model.certificate.level
    (2, 'proved')
    >>> model.attention(torch.zeros(1, dtype=torch.float64))[0].sum().item()
    1.0
    """

    def __init__(self, network: Core, certificate: Certificate, method: str) -> None:
        super().__init__()
        self.network, self.method = network, method
        self._claimed = certificate
        self.watch(certificate.domain, f"the model of {certificate.expression}", ADVICE)
        self._sealed = fingerprint(self)

    @property
    def claimed(self) -> Certificate:
        """The certificate of the numbers that were proved, whatever has become of them; diagnoses hold them to it."""
        return self._claimed

    @property
    def certificate(self) -> Certificate:
        """How far the model is from its target; `unproved` once its numbers are not those that were proved."""
        kept = self._claimed.level != "unproved" and fingerprint(self) == self._sealed
        return self._claimed if kept else self._claimed.unproved()

    @property
    def _edited(self) -> bool:
        """Whether the numbers are not those that were proved."""
        return self.certificate.level == "unproved"

    def __getattr__(self, name: str) -> Any:
        """What is not there; a part that models of other kinds have says so in its own sentence."""
        part = getattr(type(self), name, None)
        if isinstance(part, property) and part.fget is not None:
            return part.fget(self)
        return super().__getattr__(name)

    def forward(self, x: Tensor) -> Tensor:
        self.look(x)
        return self.network(x)

    def literal(self) -> nn.Module:
        """The same network as scores, softmax and values: what export and the walker see."""
        return self.network.literal()

    def literal_certificate(self) -> Certificate:
        """What `literal()` and the exports in that form keep: the same bounds, unless they are of the fast evaluation.

        Products and squares are heads whose large values cancel in a softmax and not in a tanh; what that costs is
        counted here. `ah.compile(..., evaluation="literal")` builds them for the softmax.
        """
        return self.network.literal_certificate(self.certificate)

    def attention(self, x: Tensor) -> list[Tensor]:
        """The attention weights, one entry a layer: (..., heads, keys), summing to one over keys."""
        return self.network.attention(x)

    def with_row_map(self, row_map: RowMap) -> CompiledModel:
        """The same head with another map from scores to weights than softmax (`ah.row_maps`), on its bounded domain.

        Its certificate is proved where the map has a proof; otherwise it is measured, and says why. The values stay
        those that were solved for softmax: `ah.compile(..., row_map=)` solves them for the map.
        """
        if isinstance(self.network, MappedCore):
            head, target = self.network.numbers, self.network.target
        else:
            head, target = self.head.numbers, Expression((self.claim.function,), (self.claim.variable,))
        core, certificate = mapped(head, row_map, target, self._claimed.domain[0])
        return CompiledModel(core, certificate, self.method)

    def as_self_attention(self, tokens: int) -> Network:
        """The same function of every token of a sequence, as literal W_Q, W_K, W_V, W_O matrices."""
        return self.network.on_sequences(tokens)

    def to_stock_attention(self, tokens: int | None = None) -> nn.Module:
        """The same function of every token, (batch, tokens, inputs), as stock nn.MultiheadAttention and nn.Linear."""
        return to_stock_attention(self, tokens)

    @property
    def resources(self) -> Resources:
        """What this model costs; the logit range is over the domain, or |x| <= 100 where it is unbounded."""
        return self.network.resources(self._claimed)

    @property
    def largest_value(self) -> float:
        """The largest |constant| or |gain| of any key, as `literal()` has them. Rounding grows with it.

        A key's value is constant + gain·t, t the query, and constant·v where the head carries a partner v, as those for
        products do; in a network the constants are those of a head times the step's scale. It is zero where all values
        are numbers that heads read, as of maxima; of a grid or of sampled points it is the largest value itself.

        >>> ah.compile("x*y", (-1, 1), tol=1e-6).largest_value
        2048.0
        """
        return self.network.largest_value

    @property
    def head(self) -> HeadModule:
        """The one head of a function of one variable."""
        found: Any = getattr(self.network, "head", None)
        if found is None:
            raise MissingPartError("This model is not one head of one variable; model.network has its parts.")
        return found

    @property
    def claim(self) -> HeadClaim:
        """What is claimed of that head."""
        found: Any = getattr(self.network, "claim", None)
        if not isinstance(found, HeadClaim):
            raise MissingPartError("This model is not one head of one variable, of which something is claimed.")
        return found

    @property
    def circuit(self) -> Circuit:
        """The target of a network of heads, step by step."""
        found: Any = getattr(self.network, "circuit", None)
        if found is None:
            raise MissingPartError("This model is one layer: it has no circuit of several steps.")
        return found

    @property
    def report(self) -> Report | None:
        """Layers, heads, keys and errors, node by node, of a network of heads; `print(model)` shows it."""
        found = self.network.report
        return found.unproved() if found is not None and self._edited else found

    def _told(self) -> Report | None:
        """The same, where it can be told."""
        try:
            return self.report
        except VerificationError:
            return None

    @property
    def mechanism(self) -> Mechanism:
        """What every head reads, computes and writes, by name: to print, or `.as_dict()` for JSON."""
        found = self.network.mechanism(self.certificate)
        return found.unproved() if self._edited else found

    def literal_mechanism(self) -> Mechanism:
        """The same of `literal()`, stock attention and hook points: with the errors of a softmax that is written out,
        infinite for a head that rounding may lead out of its range, and for those that depend on it."""
        found = self.network.mechanism(self.literal_certificate())
        return found.unproved() if self._edited else found

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one input; empty for a function of one variable, which takes every element."""
        return self.network.input_shape

    def exact(self, x: Tensor) -> Tensor:
        """The target itself, in torch, at the same inputs, in their dtype or in float64: no heads, no approximation."""
        return self.network.exact(x)

    def probe(self, x: Tensor) -> Probe:
        """Measures every layer's error on x against the target; `.first` is the first that exceeds its share."""
        return probe(self.network, self.certificate, x)

    def _apply(self, fn: Any, recurse: bool = True) -> CompiledModel:
        """`.to(device)` and the like; another dtype is refused, since the numbers would no longer be those proved."""
        for parameter in self.parameters():
            if fn(parameter.detach()[..., :0].clone()).dtype != parameter.dtype:
                raise PrecisionError(
                    f"This model was proved for {parameter.dtype}, and rounding its numbers would break the proof. "
                    "Compile it again with the dtype that you want, dtype=torch.float32 or torch.float64."
                )
        super()._apply(fn, recurse)
        return self

    def widen(self) -> None:
        """One head of float32 in float64 from now on, with what was proved of it; `HeadCore.widen` says why it holds.

        The head stays the same object, so that places of a converted model that share it still do.
        """
        certificate = self.certificate
        core: Any = self.network
        core.widen()
        self._claimed, self._sealed = replace(certificate, dtype="float64"), fingerprint(self)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes one safetensors file that holds all that `ah.load` and `ah.verify` need."""
        record, arrays = self.network.payload(self._claimed)
        claimed = replace(self._claimed, level=self.certificate.level)
        save(record | {"method": self.method}, arrays, claimed, path)

    def plot(self) -> Figure:
        """A figure of the function, of the error under its bound and of the attention, with no file and no window.

        Of two inputs both are maps, of more slices through the domain. `.savefig(path)` writes it.
        """
        from anchorhead.model.portrait import view

        return view(self).figure()

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        from anchorhead.model.portrait import view
        from anchorhead.view import sketched

        certificate = self.certificate
        report = self._told()
        nodes = "" if report is None else report.html()
        return page(f"{certificate.expression} as attention", sentence(str(certificate)),
                    beside(facts(self.facts()), sketched(view(self))), nodes)  # fmt: skip

    def facts(self) -> list[tuple[str, str]]:
        """What it is, costs and keeps, as names and values for tables."""
        certificate, cost = self.certificate, self.resources
        scale = " |target|" if certificate.relative else "" if certificate.bounded else " (1 + |x|)"
        whole = scale if certificate.relative else ""
        found = [
            ("method", self.method),
            ("layers, heads", f"{cost.layers}, {cost.heads}"),
            ("keys", f"{cost.keys}"),
            ("parameters", f"{cost.parameters}"),
            ("beta", f"{cost.beta:.6g}"),
            ("logit range" + ("" if certificate.bounded else ", |x| <= 100"), cost.logits),
            ("largest value", f"{self.largest_value:.4g}"),
            ("dtype", certificate.dtype),
            ("approximation", f"{certificate.in_digits(certificate.approximation, '.3e')}{whole}"),
            ("rounding", f"{Up(certificate.rounding):.3e}{scale}"),
            ("bound", f"{certificate.in_digits(certificate.bound, '.3e')}{whole}"),
            ("level", f"{certificate.level}, {counted(certificate.boxes, 'box')}"),
        ]
        literal = f"{Up(self.literal_certificate().bound):.3e}"
        return found + [("bound of the literal form", literal)] * bool(certificate.evaluation)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.network!r}; {self.certificate})"

    def __str__(self) -> str:
        cost = self.resources
        certificate, other = self.certificate, self.literal_certificate()
        kept = f"<= {Up(other.bound):.3g}" if other.level == "proved" else "no bound is known"
        literal = "" if other.evaluation == certificate.evaluation else f"\nas a literal softmax: {kept}"
        shown = (
            f"{certificate}{literal}\n{counted(cost.layers, 'layer')}, {counted(cost.heads, 'head')}, "
            f"{counted(cost.keys, 'key')}, {cost.parameters} parameters, beta {cost.beta:.4g}, "
            f"logits {cost.logits.replace('±', 'up to ')}"
        )
        report = self._told()
        return shown if report is None else f"{shown}\n{report}"
