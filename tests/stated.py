"""A mechanism as its JSON states it, run as a program that shares no code with the library: mpmath, and Python."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import mpmath as mp

NAMES: dict[str, Any] = {
    "sin": mp.sin, "cos": mp.cos, "exp": mp.exp, "sqrt": mp.sqrt, "rsqrt": lambda u: 1 / mp.sqrt(u),
    "relu": lambda u: max(u, mp.mpf(0)), "silu": lambda u: u / (1 + mp.exp(-u)), "tanh": mp.tanh,
    "max": max, "min": min, "gelu": lambda u: u * mp.ncdf(u),
}  # fmt: skip


def number(value: float | int | str) -> mp.mpf:
    """A number as files write it."""
    if isinstance(value, str) and value.startswith("="):
        return mp.mpf(eval(value[1:], {"__builtins__": {}}, NAMES))
    exact = Fraction(value)
    return mp.mpf(exact.numerator) / exact.denominator


def line(stated: Mapping[str, Any], wires: Mapping[str, Any]) -> mp.mpf:
    return number(stated["bias"]) + sum(number(c) * wires[name] for name, c in stated["terms"].items())


def applied(function: str, u: mp.mpf) -> mp.mpf:
    return mp.mpf(eval(function, {"__builtins__": {}}, NAMES | {"u": u}))


def attended(reads: Mapping[str, mp.mpf], entry: int) -> mp.mpf:
    """sum of softmax(query · key + offset) value, from lines by their roles."""
    keys = sorted({int(role[7:-1]) for role in reads if role.startswith("offset")})
    size = sum(role.startswith("query") for role in reads)
    scores = [sum(reads[f"query[{i}]"] * reads[f"key[{j}][{i}]"] for i in range(size)) + reads[f"offset[{j}]"]
              for j in keys]  # fmt: skip
    weights = [mp.exp(score - max(scores)) for score in scores]
    return sum(w * reads[f"value[{j}][{entry}]"] for w, j in zip(weights, keys, strict=True)) / sum(weights)


KINDS: dict[str, Callable[[dict[str, Any], dict[str, mp.mpf]], mp.mpf]] = {
    "carry": lambda head, reads: reads["v"],
    "apply": lambda head, reads: applied(head["function"], reads["u"]),
    "times": lambda head, reads: applied(head["function"], reads["u"]) * reads["v"],
    "largest": lambda head, reads: max(reads.values()),
    "attend": lambda head, reads: attended(reads, _entry(head["words"])),
}


def _entry(words: str) -> int:
    found = re.search(r"entry (\d+) of its values", words)
    return int(found.group(1)) if found else 0


def run(mechanism: Mapping[str, Any], x: Sequence[float],
        patched: Mapping[str, Any] | None = None) -> tuple[dict[str, mp.mpf], list[mp.mpf]]:  # fmt: skip
    """All wires by name, and the outputs; `patched` are put in the place of what the heads that compute them write."""
    wires = {name: mp.mpf(v) for name, v in zip(mechanism["inputs"], x, strict=True)}
    for head in mechanism["heads"]:
        reads = {role: line(stated, wires) for role, stated in head["reads"].items()}
        value = KINDS[head["kind"]](head, reads)
        wires[head["name"]] = (patched or {}).get(head["name"], value) if head["kind"] != "carry" else value
    return wires, [line(stated, wires) for stated in mechanism["outputs"]]
