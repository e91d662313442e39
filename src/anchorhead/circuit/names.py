"""What the wires of a circuit are called, so that a person can read it off a cache: by the formulas that they carry.

The name of a wire is its formula in the inputs, `sin(3*x)`, where that is short, and else what its step computes with
a number, `relu_7`; names of later wires are formulas in both. They are made of the circuit alone, which is stored in
every file, so that a model has the same names before and after, and a wire carries what its name says: labels, which
say what a step comes from, may be those of a whole of which it is a part.
"""

from __future__ import annotations

from collections import Counter

from anchorhead.circuit.circuit import Circuit
from anchorhead.circuit.line import Line
from anchorhead.circuit.operands import written_length
from anchorhead.enclosure.exact import as_node, times
from anchorhead.expression.graph import Node, number_of, variable
from anchorhead.expression.primitives import minus, mul

LONGEST = 40
"""Letters of a formula that is a name."""


def wire_names(circuit: Circuit) -> tuple[list[str], list[Node]]:
    """A name for each wire, no two of them the same, and as a formula of inputs and of names with a number."""
    names, nodes = list(circuit.inputs), [variable(name) for name in circuit.inputs]
    used, counts = set(names), Counter[str]()
    for step in circuit.steps:
        small = all(len(line.terms) <= LONGEST // 4 for line in step.lines())
        node = step.formula(lambda line: line_node(line, nodes)) if small else None
        text = "" if node is None or written_length(node) > LONGEST else str(node)
        for _ in range(step.width):
            if not text or len(text) > LONGEST or text in used:
                falls = node is not None and node.op == "neg"
                symbol = f"minus_{node.args[0].op}" if node is not None and falls else step.symbol
                text, node = _numbered(symbol, counts, used), None
            used.add(text)
            names.append(text)
            nodes.append(variable(text) if node is None else node)
            text = ""
    return names, nodes


def line_node(line: Line, nodes: list[Node]) -> Node:
    """A line as a formula, given those of its wires."""
    parts = [(c, nodes[wire]) for wire, c in line.terms.items()]
    if line.bias != 0 or not parts:
        parts.append((1, as_node(line.bias)))
    found: Node | None = None
    for c, node in parts:
        falls = not isinstance(c, Node) and c < 0
        term = mul(as_node(times(-1, c) if falls else c), node)
        if term.op == "neg" or (term.op == "constant" and number_of(term) < 0):
            falls, term = not falls, minus(term)
        if found is None:
            found = minus(term) if falls else term
        else:
            found = Node("sub" if falls else "add", (found, term))
    return as_node(0) if found is None else found


def _numbered(symbol: str, counts: Counter[str], used: set[str]) -> str:
    while True:
        text = f"{symbol}_{counts[symbol]}"
        counts[symbol] += 1
        if text not in used:
            return text
