"""The walker: proves from the exported graph that a network is affine maps and softmax attention, nothing else.

`torch.export` turns the network into a list of primitive operations. Each value is given one of four kinds:

    CONSTANT   does not depend on the input
    SIGNAL     an affine function of the input and of earlier attention outputs
    SCORES     products of two signals, as in (W_K Z)^T (W_Q Z); they may only go into a softmax
    WEIGHTS    a softmax over its last axis

and each operation is allowed only between kinds for which the result is again one of them: sums of signals,
signals times constants, matrix products of two signals (scores), softmax, weights times signals. The first
node that fits none of these is named. If the walk reaches the output with a signal, the claim holds for
every input, since the graph is the whole computation.
"""

from __future__ import annotations

import operator
import warnings
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import torch
from torch import Tensor, fx, nn

from anchorhead.errors import StructureError


class Kind(IntEnum):
    """What a value in the graph is; see the top of this file."""

    CONSTANT = 0
    SIGNAL = 1
    WEIGHTS = 2
    SCORES = 3


REARRANGE = {
    "alias", "cat", "clone", "constant_pad_nd", "detach", "expand", "flip", "gather", "index", "index_select",
    "lift_fresh_copy", "permute", "repeat", "reshape", "roll", "select", "slice", "split", "split_with_sizes",
    "squeeze", "stack", "t", "transpose", "unbind", "unsqueeze", "view", "_unsafe_view", "_to_copy",
}  # fmt: skip
SUMS = {"add", "addmm", "baddbmm", "masked_fill", "mean", "neg", "sub", "rsub", "sum", "where"}
MATRIX_PRODUCTS = {"addmm", "baddbmm", "bmm", "dot", "linear", "matmul", "mm", "mv"}
SOFTMAX = {"softmax", "_softmax"}
FUSED = {"scaled_dot_product_attention"}


@dataclass(frozen=True)
class Walk:
    """What the walker found: operations on signals that are affine, softmaxes, and matrix products of two
    signals (scores)."""

    affine: int
    softmax: int
    scores: int


def walk(network: nn.Module, *inputs: Tensor) -> Walk:
    """Proves that `network` on inputs like these is affine maps and softmax attention only.

    Raises `StructureError` naming the first operation that is neither, and where it stands in the source.
    A network with two evaluations is walked in its literal one.
    """
    literal: Any = getattr(network, "literal", None)
    module = network if literal is None else literal()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # torch.export's own use of its deprecated names
        program = torch.export.export(module, inputs, strict=False)
        table = torch.export.default_decompositions()
        table.pop(torch.ops.aten.scaled_dot_product_attention.default, None)
        program = program.run_decompositions(table)
    users = set(program.graph_signature.user_inputs)
    return _Walker(users).run(program.graph)


class _Walker:
    def __init__(self, user_inputs: set[str]) -> None:
        self.user_inputs = user_inputs
        self.kinds: dict[fx.Node, Kind] = {}
        self.affine = self.softmax = self.scores = 0

    def run(self, graph: fx.Graph) -> Walk:
        for node in graph.nodes:
            if node.op == "placeholder":
                self.kinds[node] = Kind.SIGNAL if node.name in self.user_inputs else Kind.CONSTANT
            elif node.op == "get_attr":
                self.kinds[node] = Kind.CONSTANT
            elif node.op == "output":
                self._output(node)
            else:
                self.kinds[node] = self._call(node)
        return Walk(self.affine, self.softmax, self.scores)

    def _output(self, node: fx.Node) -> None:
        for value in node.all_input_nodes:
            if self.kinds[value] is Kind.SCORES:
                raise _offence(self._product(value), "multiplies two signals, and the product meets no softmax")

    def _product(self, node: fx.Node) -> fx.Node:
        """The first product of two signals that these scores come from."""
        before = [n for n in node.all_input_nodes if self.kinds[n] is Kind.SCORES]
        return self._product(before[0]) if before else node

    def _call(self, node: fx.Node) -> Kind:
        kinds = [self.kinds[n] for n in node.all_input_nodes]
        if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()) and not _is_fused_without_dropout(
            node
        ):
            raise _offence(node, "is random")
        if all(k is Kind.CONSTANT for k in kinds):
            return Kind.CONSTANT
        name = _name(node)
        if name in SOFTMAX:
            return self._softmax(node)
        if name in FUSED:
            self.softmax += 1
            self.scores += 1
            return self._require(node, kinds, below=Kind.SCORES, result=Kind.SIGNAL)
        if name in MATRIX_PRODUCTS:
            return self._matrix_product(node)
        self.affine += 1
        if name in REARRANGE or node.target is operator.getitem:
            return self._rearranged(node, kinds)
        if name in ("mul", "div"):
            return self._scaled(node)
        if name in SUMS:
            return self._sum(node, name)
        raise _offence(node, "is neither affine nor softmax attention")

    def _require(self, node: fx.Node, kinds: list[Kind], *, below: Kind, result: Kind) -> Kind:
        if any(k >= below for k in kinds):
            raise _offence(node, "takes scores that have not passed a softmax")
        return result

    def _softmax(self, node: fx.Node) -> Kind:
        source, axis = node.args[0], node.args[1]
        assert isinstance(source, fx.Node)
        assert isinstance(axis, int)
        self.softmax += 1
        rank = _shape(source)
        return Kind.WEIGHTS if axis % len(rank) == len(rank) - 1 else Kind.SIGNAL

    def _matrix_product(self, node: fx.Node) -> Kind:
        operands = [a for a in node.args if isinstance(a, fx.Node)]
        bias = operands.pop(0) if _name(node) in ("addmm", "baddbmm") else None
        if _name(node) == "linear" and len(operands) == 3:
            bias = operands.pop()
        left, right = (self.kinds[n] for n in operands)
        if left is Kind.WEIGHTS and right is not Kind.SCORES:
            result = Kind.SIGNAL
        elif Kind.CONSTANT in (left, right):
            self.affine += 1
            result = _plain(max(left, right))
        elif Kind.SCORES in (left, right):
            raise _offence(node, "multiplies scores that have not passed a softmax by a signal")
        else:
            self.scores += 1
            result = Kind.SCORES
        return result if bias is None else max(result, _plain(self.kinds[bias]))

    def _rearranged(self, node: fx.Node, kinds: list[Kind]) -> Kind:
        if _name(node) not in ("cat", "stack") and any(k is not Kind.CONSTANT for k in kinds[1:]):
            raise _offence(node, "picks positions that depend on the input")
        value = node.meta.get("val")
        if isinstance(value, Tensor) and not value.is_floating_point():
            raise _offence(node, "rounds a signal to whole numbers")
        kind = max(kinds)
        source = node.all_input_nodes[0]
        if kind is Kind.WEIGHTS and not _keeps_last_axis(node, source):
            return Kind.SIGNAL
        return kind

    def _scaled(self, node: fx.Node) -> Kind:
        left, right = (self.kinds[a] if isinstance(a, fx.Node) else Kind.CONSTANT for a in node.args[:2])
        if _name(node) == "div" and right is not Kind.CONSTANT:
            raise _offence(node, "divides by a signal")
        if Kind.CONSTANT not in (left, right):
            raise _offence(node, "multiplies two signals elementwise")
        return _plain(max(left, right))

    def _sum(self, node: fx.Node, name: str) -> Kind:
        terms = list(node.args)
        if name in ("where", "masked_fill"):
            condition = terms.pop(0 if name == "where" else 1)
            if isinstance(condition, fx.Node) and self.kinds[condition] is not Kind.CONSTANT:
                raise _offence(node, "chooses by a condition that depends on the input")
        return _plain(max(self.kinds[a] for a in terms if isinstance(a, fx.Node)))


def _is_fused_without_dropout(node: fx.Node) -> bool:
    dropout: Any = node.args[4] if len(node.args) > 4 else node.kwargs.get("dropout_p", 0.0)
    return _name(node) in FUSED and dropout == 0.0


def _plain(kind: Kind) -> Kind:
    """After arithmetic, attention weights are a signal like any other."""
    return Kind.SIGNAL if kind is Kind.WEIGHTS else kind


def _keeps_last_axis(node: fx.Node, source: fx.Node) -> bool:
    before, after = _shape(source), _shape(node)
    if not before or not after or before[-1] != after[-1]:
        return False
    name, args = _name(node), node.args
    if name == "permute":
        order: Any = args[1]
        return bool(order[-1] % len(before) == len(before) - 1)
    if name == "transpose":
        axes: Any = args[1:3]
        return all(axis % len(before) != len(before) - 1 for axis in axes)
    if name == "select":
        axis: Any = args[1]
        return bool(axis % len(before) != len(before) - 1)
    return name in ("alias", "clone", "detach", "expand", "lift_fresh_copy", "reshape", "unsqueeze", "view",
                    "_unsafe_view", "_to_copy", "slice")  # fmt: skip


def _shape(node: fx.Node) -> tuple[int, ...]:
    value = node.meta.get("val")
    return tuple(value.shape) if isinstance(value, Tensor) else ()


def _name(node: fx.Node) -> str:
    packet = getattr(node.target, "_schema", None)
    return packet.name.split("::")[-1] if packet is not None else getattr(node.target, "__name__", str(node.target))


def _offence(node: fx.Node, why: str) -> StructureError:
    lines = [line.strip() for line in (node.meta.get("stack_trace") or "").splitlines() if line.strip()]
    where = f", written as `{lines[-1]}` in {lines[-2]}" if len(lines) >= 2 else ""
    return StructureError(
        f"The node '{node.name}' ({node.target}) {why}{where}. "
        "A network may hold only affine maps and softmax attention."
    )
