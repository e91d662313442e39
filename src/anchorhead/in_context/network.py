"""A learning algorithm as softmax attention: fixed weights, the data in the prompt, every form from one description.

An algorithm is three functions of a `Reading` (`reading.py`): `begin` makes a state of the prompt, `step` a state of a
state, which is repeated `steps` times, and `end` reads the result off the last. A state is tensors by name; between
calls of heads everything is affine. From these follow the fast form, which has a certificate and checks its prompts,
the algorithm itself, the literal form, the attention weights and the matrices of self-attention (`matrices.py`).
"""

from __future__ import annotations

import copy
import os
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from anchorhead.display import facts, page, sentence
from anchorhead.errors import FileError, InputError, MissingPartError
from anchorhead.head.own_precision import in_own_precision
from anchorhead.in_context.reading import Exact, Literal, Reading
from anchorhead.model.compiled import fingerprint
from anchorhead.model.network import Resources
from anchorhead.proof.certificate import Certificate
from anchorhead.proof.rounding import ASSUMPTIONS

if TYPE_CHECKING:
    from anchorhead.in_context.matrices import SelfAttentionRun

State = dict[str, Tensor]
Layers = list[tuple[int, Sequence[Any]]]
"""Layers of heads, and how often each is run."""
INCLUDED = "rounding is included in the approximation"


class InContextNetwork(nn.Module):
    """See the file. A call takes a prompt, refuses what is outside the declared bounds, and runs the fast form."""

    steps = 0
    dtype: torch.dtype

    @abstractmethod
    def checked(self, *prompt: Any, **named: Any) -> tuple[Any, ...]:
        """The prompt, checked against shapes and bounds, as `begin` takes it."""

    @abstractmethod
    def begin(self, how: Reading, *prompt: Any) -> State:
        """The first state."""

    def __getattr__(self, name: str) -> Any:
        """What is not there; a mechanism, in a sentence."""
        if name == "mechanism":
            raise MissingPartError(
                f"A {type(self).__name__} is an algorithm, and has no mechanism head by head: model.exact(...) runs it "
                "without heads, and ah.to_hooked(model) has hook points at every softmax and every state."
            )
        return super().__getattr__(name)

    def step(self, how: Reading, state: State) -> State:
        """The next state."""
        return state

    @abstractmethod
    def end(self, how: Reading, state: State) -> Any:
        """The result."""

    @abstractmethod
    def layers(self) -> Layers:
        """The attention layers of the literal form."""

    @abstractmethod
    def shapes(self, examples: int) -> dict[str, tuple[int, ...]]:
        """The shape of every tensor of a prompt, by name."""

    def states(self, how: Reading, *prompt: Any) -> Iterator[State]:
        """The first state and that after every step."""
        state = self.begin(how, *prompt)
        yield state
        for _ in range(self.steps):
            state = self.step(how, state)
            yield state

    def run(self, how: Reading, *prompt: Any) -> Any:
        """The whole algorithm."""
        (last,) = deque(self.states(how, *prompt), maxlen=1)
        return self.end(how, last)

    def check_run(self, states: Sequence[State], result: Tensor) -> None:
        """Refuses a run whose states, the first and that after every step, or result left the declared bounds."""

    def joined(self, result: Any) -> Tensor:
        """The result as one tensor."""
        found: Tensor = result
        return found

    @in_own_precision
    def fast(self, *prompt: Any) -> Any:
        """The result, by the fast form."""
        return self.run(Reading(), *self.looked_at(*prompt))

    @torch.compiler.disable
    def looked_at(self, *prompt: Any) -> tuple[Any, ...]:
        """The prompt, checked; outside of what torch.compile compiles."""
        return self.checked(*prompt)

    def exact(self, *prompt: Any, **named: Any) -> Any:
        """The algorithm itself at a prompt, plainly in float64: no heads."""
        return self.run(Exact(), *in_double(self.checked(*prompt, **named)))

    def literal(self) -> LiteralRun:
        """The same network with every softmax as written, as one tensor; prompts are not checked."""
        return LiteralRun(self)

    def attention(self, *prompt: Any, **named: Any) -> list[Tensor]:
        """The attention weights of every softmax, in order: (..., keys), summing to one over keys."""
        return LiteralRun(self).attention(*self.checked(*prompt, **named))

    def as_self_attention(self, examples: int) -> SelfAttentionRun:
        """The same network as self-attention with its matrices, for a small fixed number of examples."""
        from anchorhead.in_context.matrices import SelfAttentionRun

        return SelfAttentionRun(self, examples)

    @property
    def resources(self) -> Resources:
        """What the literal form costs; weights that steps share count once, logits are those within the bounds."""
        layers = self.layers()
        heads = [head for _, part in layers for head in part]
        return Resources(
            layers=sum(times for times, _ in layers),
            heads=sum(times * len(part) for times, part in layers),
            keys=sum(times * head.keys for times, part in layers for head in part),
            parameters=sum(p.numel() for p in self.parameters()),
            beta=max((head.beta for head in heads), default=0.0),
            logit_range=max((head.logit_range for head in heads), default=0.0),
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Refused: an algorithm has no file with a proof, but where a subclass says otherwise."""
        raise no_file(type(self).__name__)

    def claim(self, certificate: Certificate) -> None:
        """Remembers the numbers as those that the certificate is about; the making of a network ends so."""
        self._claimed, self._sealed = certificate, fingerprint(self)

    @property
    def certificate(self) -> Certificate:
        """What is proved of the network; `unproved` once its numbers are not those that were proved."""
        return self._claimed if fingerprint(self) == self._sealed else self._claimed.unproved()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> InContextNetwork:
        """`.to(device)` and the like; the dtype stays, since the numbers are proved in that."""
        super()._apply(lambda t: t.to(fn(t).device), recurse)
        return self

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        cost = self.resources
        rows = [("steps", self.steps), ("layers, heads", f"{cost.layers:,}, {cost.heads:,}"),
                ("keys", f"{cost.keys:,}"), ("parameters", f"{cost.parameters:,}"), ("beta", f"{cost.beta:.6g}"),
                ("logit range", f"±{cost.logit_range:.4g}")]  # fmt: skip
        return page(f"{type(self).__name__}({self.extra_repr()})", sentence(str(self.certificate)), facts(rows))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.extra_repr()}; {self.certificate})"


class LiteralRun(nn.Module):
    """An algorithm with every softmax as written, in float64: what export and the walker see."""

    def __init__(self, model: InContextNetwork) -> None:
        super().__init__()
        self.model = copy.deepcopy(model)

    def literal(self) -> LiteralRun:
        """This is it."""
        return self

    def forward(self, *prompt: Any) -> Tensor:
        return self._run(Literal(), prompt)

    def attention(self, *prompt: Any) -> list[Tensor]:
        """The attention weights of every softmax, in order: (..., keys), summing to one over keys."""
        how = Literal()
        self._run(how, prompt)
        return how.weights

    def _run(self, how: Literal, prompt: tuple[Any, ...]) -> Tensor:
        require_tensors(prompt)
        return self.model.joined(self.model.run(how, *in_double(prompt)))


def no_file(name: str) -> FileError:
    """Why something has no file with a proof, and how to keep it."""
    return FileError(
        f"{name} has no file with a proof: only models of ah.in_context.compile and ah.in_context.universal do. Keep "
        "it by pickle or joblib, which keep its numbers and its certificate, and load only what you trust; or make it "
        "again from the same arguments."
    )


def in_double(prompt: Sequence[Any]) -> list[Any]:
    """The prompt in float64; masks and what is not given stay."""
    return [v.double() if isinstance(v, Tensor) and v.is_floating_point() else v for v in prompt]


def require_tensors(prompt: Sequence[Any]) -> None:
    """Refuses what is not a tensor; what is not given is None."""
    if not all(v is None or isinstance(v, Tensor) for v in prompt):
        raise InputError("A prompt is torch tensors; use torch.as_tensor.")


def stated(expression: str, sizes: Mapping[str, float], dtype: str, approximation: float, rounding: float,
           assumptions: Sequence[str] = (), level: str = "proved") -> Certificate:  # fmt: skip
    """A certificate for prompts of these sizes, the largest absolute entries by name."""
    return Certificate(
        expression=expression,
        domain=tuple((-size, size) for size in sizes.values()),
        dtype=dtype,
        level=level,
        approximation=approximation,
        rounding=rounding,
        boxes=0,
        assumptions=(*ASSUMPTIONS, *assumptions),
        variables=tuple(sizes),
    )
