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


def _read(head: Mapping[str, Any], roles: Sequence[str], wires: Mapping[str, Any]) -> dict[str, mp.mpf]:
    return {role: line(head["reads"][role], wires) for role in roles}


def pooled(asked: Mapping[str, mp.mpf], found: Sequence[Mapping[str, mp.mpf]]) -> mp.mpf:
    """sum over tokens of softmax(query · key + offset) value: the query of who asks, the rest of each token."""
    size = sum(role.startswith("query") for role in asked)
    scores = [sum(asked[f"query[{i}]"] * token[f"key[{i}]"] for i in range(size)) + token["offset"] for token in found]
    weights = [mp.exp(score - max(scores)) for score in scores]
    return sum(w * token["value"] for w, token in zip(weights, found, strict=True)) / sum(weights)


def run_prompt(mechanism: Mapping[str, Any], tokens: Sequence[Sequence[float]], queries: Sequence[Sequence[float]],
               counted: Sequence[bool], patched: Mapping[tuple[str, int], Sequence[float]] | None = None,
               ) -> tuple[list[dict[tuple[str, int], mp.mpf]], list[list[mp.mpf]]]:  # fmt: skip
    """What is written at every position, tokens first and then queries, by name and layer, and the queries' outputs.

    A layer reads what is there before it. patched: numbers for all positions in the place of what a layer writes.
    """
    own, names, n = len(tokens[0]), mechanism["inputs"], len(tokens)
    states = [dict(zip(names[:own], map(mp.mpf, token), strict=True)) for token in tokens]
    states += [dict(zip(names[own:], map(mp.mpf, query), strict=True)) for query in queries]
    written: list[dict[tuple[str, int], mp.mpf]] = [{} for _ in states]
    homes = {"token": range(n), "query": range(n, len(states)), "prompt": range(len(states))}
    for layer in range(len(mechanism["states"])):
        before = [dict(state) for state in states]
        for head in (head for head in mechanism["heads"] if head["layer"] == layer):
            key = head["name"], layer
            roles = [role for role in head["reads"] if head["kind"] != "pool" or role.startswith("query")]
            rest = [role for role in head["reads"] if role not in roles]
            tokens_read = [_read(head, rest, before[t]) for t in range(n) if counted[t]] if rest else []
            for p in homes[head["place"]]:
                reads = _read(head, roles, before[p])
                value = pooled(reads, tokens_read) if rest else KINDS[head["kind"]](head, reads)
                states[p][head["name"]] = written[p][key] = mp.mpf((patched or {}).get(key, {p: value})[p])
    return written, [[line(stated, state) for stated in mechanism["outputs"]] for state in states[n:]]


def run(mechanism: Mapping[str, Any], x: Sequence[float],
        patched: Mapping[str, Any] | None = None) -> tuple[dict[str, mp.mpf], list[mp.mpf]]:  # fmt: skip
    """All wires by name, and the outputs; `patched` are put in the place of what the heads that compute them write."""
    wires = {name: mp.mpf(v) for name, v in zip(mechanism["inputs"], x, strict=True)}
    for head in mechanism["heads"]:
        reads = {role: line(stated, wires) for role, stated in head["reads"].items()}
        value = KINDS[head["kind"]](head, reads)
        wires[head["name"]] = (patched or {}).get(head["name"], value) if head["kind"] != "carry" else value
    return wires, [line(stated, wires) for stated in mechanism["outputs"]]
