"""Where the wires of a prompt's circuit live: each token has its own, the prompt has one, or each query has its own.

A step of a token's wires is computed once for each token, one of a query's once for each query, and one of neither
once for the prompt. What the prompt has can be read everywhere; what a token and what a query has meet nowhere but in
the scores of a pool (`pool.py`), which is also the one step that leads from tokens to something else. A circuit without
tokens is one of a query alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from anchorhead.circuit.step import Step


class Place(StrEnum):
    """Of a wire."""

    TOKEN = "token"
    PROMPT = "prompt"
    QUERY = "query"


class Misplaced(ValueError):
    """Wires meet that are not in one place."""


def joined(places: Iterable[Place]) -> Place:
    """Where something is computed that reads wires in these places."""
    found = set(places) - {Place.PROMPT}
    if len(found) > 1:
        raise Misplaced("a number of a token and one of a query meet outside of scores")
    return found.pop() if found else Place.PROMPT


def places_of(inputs: int, tokens: int, steps: Sequence[Step], state: int = 0) -> tuple[Place, ...]:
    """The place of every wire, where the first inputs are a token's and the next, so many, the prompt's.

    `Misplaced` where there is none.
    """
    if not tokens:
        return (Place.QUERY,) * (inputs + sum(step.width for step in steps))
    found = [Place.TOKEN] * tokens + [Place.PROMPT] * state + [Place.QUERY] * (inputs - tokens - state)
    for step in steps:
        lines = [joined(found[wire] for wire in line.terms) for line in step.lines()]
        found += [step.place(lines)] * step.width
    return tuple(found)
