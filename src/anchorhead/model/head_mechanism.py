"""One head of a model: the lines that it reads, what it computes of them, and how far it may be from that."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from anchorhead.circuit.line import Line
from anchorhead.circuit.program import number_out
from anchorhead.circuit.step import Pair
from anchorhead.digits import Up
from anchorhead.model.stated import number
from anchorhead.proof.certificate import end_text

MOST_SAID = 6
"""Terms of a line that words say, and names that an error does."""


@dataclass(frozen=True)
class Stated:
    """bias + sum of coefficient · name, exactly; numbers as a file writes them: "1/3", "=sqrt(2)"."""

    bias: float | int | str
    terms: dict[str, float | int | str]

    @classmethod
    def of(cls, line: Line, names: Sequence[str]) -> Stated:
        return cls(number_out(line.bias), {names[wire]: number_out(c) for wire, c in line.terms.items()})

    def words(self) -> str:
        """Numbers to four digits, and minus a name that has a minus as what it is."""
        parts = []
        for name, c in list(self.terms.items())[:MOST_SAID]:
            rest = name.removeprefix("-")
            falls = rest != name and _bracketed(rest) == rest
            parts.append((-number(c) if falls else number(c), f"*{rest if falls else _bracketed(name)}"))
        if self.bias != 0 or not parts:
            parts.append((number(self.bias), ""))
        terms = [f"{'-' if c < 0 else '+'} {abs(c):.4g}{name}".replace(" 1*", " ") for c, name in parts]
        if len(self.terms) > MOST_SAID:
            terms.insert(MOST_SAID, f"+ ... ({len(self.terms)} terms)")
        text = " ".join(terms)
        return text[2:] if text.startswith("+") else f"-{text[2:]}"


@dataclass(frozen=True)
class HeadMechanism:
    """One head. layer and head count from 0; kind is that of the circuit's step, or `carry`.

    function: in u, times v where the step is a product; empty for what is none. reads: the lines by their roles. where:
    what part of the target it comes from. keys: that it attends to. error: proved, of the number that it writes, at
    every input of the domain, times that number's absolute value where it is `relative`; `rounding`·(1 + |u|) is added
    where u may be any number, and zero elsewhere. ranges: where inputs of the domain lead each line that it reads;
    beyond that nothing is known. patched_error: as error, wherever the lines are in their ranges, in any company, as
    they may be once numbers are patched. An error is infinite, in JSON null, where it is not known, or once the model's
    numbers are not those that were proved. attention: which entry of `model.attention(...)` has its weights, and which
    head of that entry; None, in JSON null, of a head that carries. place: of a model of a prompt, whether each token,
    the prompt or each query has such a number; empty for others. entry: of the values of an attention, which of their
    numbers it writes; 0 for all else.
    """

    layer: int
    head: int
    kind: str
    name: str
    words: str
    function: str
    reads: dict[str, Stated]
    where: str
    keys: int
    error: float
    patched_error: float
    ranges: dict[str, Pair] = field(default_factory=dict)
    attention: tuple[int, int] | None = None
    place: str = ""
    entry: int = 0
    relative: bool = False
    rounding: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        errors = {name: value if math.isfinite(value := getattr(self, name)) else None
                  for name in ("error", "patched_error", "rounding")}  # fmt: skip
        ranges = {role: [end_text(end) for end in ends] for role, ends in self.ranges.items()}
        return vars(self) | errors | {
            "reads": {role: vars(line) for role, line in self.reads.items()},
            "ranges": ranges,
            "proved_for": ranges.get("u"),
            "attention": None if self.attention is None else list(self.attention),
        }  # fmt: skip

    @property
    def proved_for(self) -> Pair | None:
        """Where u may be for these errors, its range; None of a head that reads no u."""
        return self.ranges.get("u")

    @property
    def addresses(self) -> tuple[str, str]:
        """The part of the target that it is of, and which of its entries."""
        return self.where, f"{self.where}, entry {self.entry}"

    @property
    def kept(self) -> str:
        """The error in words."""
        grows = f" + {Up(self.rounding):.2e} (1 + |u|)" if self.rounding else ""
        return f"{Up(self.error):.2e}{' |number|' if self.relative else ''}{grows}"


def _bracketed(name: str) -> str:
    """A name as a factor: in brackets where it has a sign outside of brackets of its own."""
    depth, plain = 0, True
    for letter in name:
        depth += (letter == "(") - (letter == ")")
        plain = plain and (depth > 0 or letter not in "+-")
    return name if plain else f"({name})"
