"""A mechanism run as the program that it states: plainly in float64, without heads, with any of its numbers patched.

So a method that patches a network has the truth beside it: what the target, taken as these steps, gives with that
number in that place. A layer reads what the layers before it wrote, as the network's do. Of a prompt every number has
an entry for each position, the n tokens and behind them the m queries, and is zero where its place has none; a token
that the mask hides stands wherever it is, and no attention sees it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache, reduce
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from anchorhead.circuit.places import Place
from anchorhead.enclosure.exact import as_float
from anchorhead.errors import InputError, ShapeError
from anchorhead.expression.parse import parse
from anchorhead.expression.tensors import evaluate

if TYPE_CHECKING:
    from anchorhead.model.head_mechanism import HeadMechanism, Stated
    from anchorhead.model.mechanism import Mechanism

ROUNDED = 2.0**-40
"""Of the size of a line's terms, what float64 may make of it where it is told whether it left its range."""
Patches = Mapping[str | tuple[str, int], float | Tensor]


class ByHead(dict[tuple[str, int], Tensor]):
    """Something of heads, by name and layer. A name may be written otherwise, and alone it is the head that computes;
    where a head writes minus what the name says, its number is that of the name."""

    def __init__(self, mechanism: Mechanism, found: Mapping[tuple[str, int], Tensor]) -> None:
        super().__init__(found)
        self._mechanism = mechanism

    def __missing__(self, where: Any) -> Tensor:
        head, sign = _asked(self._mechanism, where)
        found = self.get((head.name, head.layer))
        if found is None:
            raise InputError(f"There is nothing here of the head called {head.name!r:.80} in layer {head.layer}: no "
                             "line that it reads left its range.")  # fmt: skip
        return found if sign > 0 or found.dtype == torch.bool else -found


class Run(NamedTuple):
    """outputs (..., outputs), of a prompt with queries (..., m, outputs); written: what each head wrote, by its name
    and layer, (...), of a prompt (..., positions); outside: of each head for which a line left its range, where."""

    outputs: Tensor
    written: ByHead
    outside: ByHead


class Positions(NamedTuple):
    """Of a prompt: which positions are tokens, which of them count, (..., positions), and how many tokens there are."""

    token: Tensor
    counts: Tensor
    tokens: int


def run(mechanism: Mechanism, x: Tensor, query: Tensor | None, mask: Tensor | None, patched: Patches) -> Run:
    """See `Mechanism.run`."""
    others = [None if part is None else _tensor(part) for part in (query, mask)]
    at, wires = _begun(mechanism, _tensor(x), *others)
    put = _put(mechanism, patched)
    written: dict[tuple[str, int], Tensor] = {}
    outside: dict[tuple[str, int], Tensor] = {}
    for layer in range(len(mechanism.states)):
        before = dict(wires)
        for head in (head for head in mechanism.heads if head.layer == layer):
            reads, like = _reads(head, before), next(iter(before.values()))
            found = put.get((layer, head.head), _computed(head, reads, at))
            if head.ranges and (layer, head.head) not in put:
                outside[head.name, layer] = _left(head, before, at)
            found = torch.as_tensor(found, dtype=torch.float64, device=like.device)
            found = found if at is None else at_positions(head, found, at.tokens, like.shape)
            try:
                wires[head.name] = written[head.name, layer] = found.expand(like.shape)
            except RuntimeError:
                raise ShapeError(f"What is patched in for {head.name!r} has shape {tuple(found.shape)}, and a number, "
                                 f"or one for each of {tuple(like.shape)}, is needed.{positions_said(head)}"
                                 ) from None  # fmt: skip
    outputs = torch.stack([_line(stated, wires) for stated in mechanism.outputs], -1)
    if at is not None:
        outputs = outputs[..., -1, :] if query is None else outputs[..., at.tokens :, :]
    left = {name: where for name, where in outside.items() if where.any()}
    return Run(outputs, ByHead(mechanism, written), ByHead(mechanism, left))


def positions_said(head: HeadMechanism) -> str:
    """Of a head of a prompt, what its positions are."""
    shapes = {Place.TOKEN.value: "(..., n) of its tokens", Place.PROMPT.value: "(..., 1) of each prompt",
              Place.QUERY.value: "(..., m) of its queries"}  # fmt: skip
    return head.place and (" Positions are the n tokens and, behind them, the m queries, or one where the model "
                           f"answers; for this head {shapes[head.place]} are enough.")  # fmt: skip


def at_positions(head: HeadMechanism, value: Tensor, tokens: int, shape: Sequence[int]) -> Tensor:
    """A value at all positions, (..., n + m), where it is given for those of the head's place alone; else as it is."""
    *batch, positions = shape
    if head.place == Place.TOKEN.value and value.shape == (*batch, tokens):
        return torch.nn.functional.pad(value, (0, positions - tokens))
    if head.place == Place.QUERY.value and value.shape == (*batch, positions - tokens):
        return torch.nn.functional.pad(value, (tokens, 0))
    return value.expand(*shape) if head.place == Place.PROMPT.value and value.shape == (*batch, 1) else value


def _tensor(given: Any) -> Tensor:
    try:
        return torch.as_tensor(given)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"Inputs are tensors or lists of numbers, and {given!r:.60} is neither.") from error


def _begun(mechanism: Mechanism, x: Tensor, query: Tensor | None, mask: Tensor | None
           ) -> tuple[Positions | None, dict[str, Tensor]]:  # fmt: skip
    """The inputs by name."""
    if mechanism.tokens:
        _check_prompt(mechanism, x, query)
    parts = [x] if query is None else [x, query]
    count, given = len(mechanism.inputs), sum(part.shape[-1] if part.ndim else 1 for part in parts)
    if given != count or not x.ndim:
        flat = x.numel() and query is None and not x.numel() % count
        raise ShapeError(f"The inputs are {', '.join(mechanism.inputs)}, and one number for each is needed, where "
                         f"{given} were given{f': x.reshape(-1, {count}) has as many' if flat else ''}.")  # fmt: skip
    if not mechanism.tokens:
        if query is not None or mask is not None:
            raise InputError("query= and mask= are for models of a prompt, and this is none.")
        return None, dict(zip(mechanism.inputs, x.double().unbind(-1), strict=True))
    n, m = x.shape[-2], 1 if query is None else query.shape[-2]
    token = torch.arange(n + m, device=x.device) < n
    counts = torch.ones_like(x[..., 0], dtype=torch.bool) if mask is None else mask.bool()
    counts = torch.cat([counts, counts.new_zeros(*counts.shape[:-1], m)], -1)
    own = torch.nn.functional.pad(x.double(), (0, 0, 0, m)).unbind(-1)
    theirs = () if query is None else torch.nn.functional.pad(query.double(), (0, 0, n, 0)).unbind(-1)
    return Positions(token, counts, n), dict(zip(mechanism.inputs, (*own, *theirs), strict=True))


def _check_prompt(mechanism: Mechanism, x: Tensor, query: Tensor | None) -> None:
    """Refuses tokens and queries that are not those of the mechanism's prompt."""
    own, asked = mechanism.inputs[: mechanism.tokens], mechanism.inputs[mechanism.tokens :]
    if query is None and asked:
        raise InputError(f"The mechanism of {', '.join(mechanism.inputs)} needs query=, (..., m, {len(asked)}), for "
                         f"{', '.join(asked)}.")  # fmt: skip
    if query is not None and not asked:
        raise InputError(f"The mechanism of {', '.join(mechanism.inputs)} takes no query.")
    for part, names, what, many in ((x, own, "tokens", "n"), (query, asked, "query", "m")):
        if part is not None and (part.ndim < 2 or part.shape[-1] != len(names)):
            raise ShapeError(f"{what} must be (..., {many}, {len(names)}), the numbers {', '.join(names)} of each, and "
                             f"has shape {tuple(part.shape)}.")  # fmt: skip


def _put(mechanism: Mechanism, patched: Patches) -> dict[tuple[int, int], Any]:
    """What heads are to write, by layer and number, of names, or names and layers."""
    put: dict[tuple[int, int], Any] = {}
    if not isinstance(patched, Mapping):
        raise InputError(
            f"patched= takes numbers by the names of heads, such as {{'x*y': 0.5}}, and is {patched!r:.60}."
        )
    for where, value in patched.items():
        found, sign = _asked(mechanism, where)
        try:
            numbers = torch.as_tensor(value, dtype=torch.float64)
        except (TypeError, ValueError, RuntimeError):
            raise InputError(f"A head writes numbers, and {value!r:.60}, given for {where!r:.80}, is neither a number "
                             "nor a tensor of them.") from None  # fmt: skip
        if (found.layer, found.head) in put:
            raise InputError(f"{where!r:.80} is the head called {found.name!r:.80}, for which another patch was given: "
                             "give one for each head.")  # fmt: skip
        put[found.layer, found.head] = sign * numbers
    return put


def _asked(mechanism: Mechanism, where: Any) -> tuple[HeadMechanism, int]:
    """The head that a name means, or a name and a layer, and the sign of what it writes."""
    if not isinstance(where, str) and not (isinstance(where, tuple) and len(where) == 2):
        raise InputError(f"A head is called by a name, or a name and a layer, and {where!r:.60} is neither.")
    return mechanism.signed(where) if isinstance(where, str) else mechanism.signed(*where)


def _reads(head: HeadMechanism, wires: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {role: _line(stated, wires) for role, stated in head.reads.items()}


def _computed(head: HeadMechanism, reads: Mapping[str, Tensor], at: Positions | None) -> Tensor:
    return _placed(head, KINDS[head.kind](head, reads, at), at)


def _placed(head: HeadMechanism, found: Tensor, at: Positions | None) -> Tensor:
    """Zero where the place of a head has no number."""
    if at is None or head.place == Place.PROMPT.value:
        return found
    return torch.where(at.token if head.place == Place.TOKEN.value else ~at.token, found, 0.0)


def _left(head: HeadMechanism, wires: Mapping[str, Tensor], at: Positions | None) -> Tensor:
    """Where a line, that counts, is not in its range; by more than rounding here may make of it."""
    left = torch.zeros_like(next(iter(wires.values())), dtype=torch.bool)
    for role, (low, high) in head.ranges.items():
        stated = head.reads[role]
        value, room = _line(stated, wires), ROUNDED * _line(stated, wires, size=True)
        found = ~((value >= low - room) & (value <= high + room))
        if at is not None and head.kind == "pool" and not role.startswith("query"):
            found &= at.counts
        elif at is not None:
            found = _placed(head, found, at).bool() & (at.counts | ~at.token)
        left = left | found
    return left


def _line(stated: Stated, wires: Mapping[str, Tensor], *, size: bool = False) -> Tensor:
    """The line; or the sum of its terms' absolute values."""
    like = next(iter(wires.values()))
    change = abs if size else lambda value: value
    terms = (change(number(c) * wires[name]) for name, c in stated.terms.items())
    return reduce(torch.add, terms, torch.full_like(like, change(number(stated.bias))))


@cache
def number(value: float | int | str) -> float:
    """Of a coefficient as files write it."""
    return as_float(parse(value.removeprefix("=")).outputs[0]) if isinstance(value, str) else float(value)


def _applied(head: HeadMechanism, reads: Mapping[str, Tensor], at: Any) -> Tensor:
    found: Tensor = evaluate(parse(head.function, ["u"]), {"u": reads["u"]})
    return found


def _attended(head: HeadMechanism, reads: Mapping[str, Tensor], at: Any) -> Tensor:
    keys, size = (sum(role.startswith(part) for role in reads) for part in ("offset", "query"))
    scores = [reduce(torch.add, (reads[f"query[{i}]"] * reads[f"key[{j}][{i}]"] for i in range(size)),
                     reads[f"offset[{j}]"]) for j in range(keys)]  # fmt: skip
    values = torch.stack([reads[f"value[{j}][{head.entry}]"] for j in range(keys)], -1)
    return (torch.stack(scores, -1).softmax(-1) * values).sum(-1)


def _pooled(head: HeadMechanism, reads: Mapping[str, Tensor], at: Positions) -> Tensor:
    size = sum(role.startswith("query") for role in reads)
    scores = reads["offset"].unsqueeze(-2).expand(*reads["offset"].shape, reads["offset"].shape[-1])
    for i in range(size):
        scores = scores + reads[f"query[{i}]"].unsqueeze(-1) * reads[f"key[{i}]"].unsqueeze(-2)
    weights = scores.masked_fill(~at.counts.unsqueeze(-2), -math.inf).softmax(-1)
    return (weights @ reads["value"].unsqueeze(-1)).squeeze(-1)


KINDS: dict[str, Any] = {
    "carry": lambda head, reads, at: reads["v"],
    "apply": _applied,
    "times": lambda head, reads, at: _applied(head, reads, at) * reads["v"],
    "largest": lambda head, reads, at: reduce(torch.maximum, reads.values()),
    "attend": _attended,
    "pool": _pooled,
}
