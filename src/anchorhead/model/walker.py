"""The walker: proves from the exported graph that a network is affine maps and softmax attention only.

`torch.export` turns the network into a list of primitive operations. Each value is given one of four kinds:

    CONSTANT   does not depend on the input
    SIGNAL     an affine function of the input and of earlier attention outputs
    SCORES     products of two signals, as in (W_K Z)^T (W_Q Z); they may only go into a softmax
    WEIGHTS    a softmax over an axis that is followed through rearrangements

and each operation is allowed only between kinds for which the result is again one of them: sums of signals,
signals times constants, matrix products of two signals (scores), softmax, and weights times signals summed over
the softmax axis. The first node that fits none of these is named. If the walk reaches the output with a signal,
the claim holds for every input of that shape, since the graph is the whole computation.
"""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import torch
from torch import Tensor, fx, nn

from anchorhead.errors import StructureError
from anchorhead.model.compiled import CompiledModel
from anchorhead.model.exported import exported, literal_form, taken


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
SUMS = {"add", "cumsum", "masked_fill", "mean", "neg", "sub", "rsub", "sum", "where"}
MATRIX_PRODUCTS = {"addmm", "baddbmm", "bmm", "convolution", "dot", "linear", "matmul", "mm", "mv"}
SHAPE_ONLY = {"empty_like", "full_like", "new_full", "new_ones", "new_zeros", "ones_like", "sym_size", "zeros_like"}
SOFTMAX = {"softmax", "_softmax"}
FUSED = {"scaled_dot_product_attention"}


@dataclass(frozen=True)
class Walk:
    """What `walk` found: operations on signals that are affine, softmaxes, and matrix products of two
    signals (scores)."""

    affine: int
    softmax: int
    scores: int


def walk(network: nn.Module, *inputs: Tensor) -> Walk:
    """Proves that `network` on inputs like these is affine maps and softmax attention only.

    Raises `StructureError` naming the first operation that is neither, and where it stands in the source.
    Networks of this library, alone or inside another module, are walked in their literal evaluation, and the
    outputs of the two evaluations are compared on these inputs.
    """
    module = literal_form(network)
    if module is not network:
        _require_agreement(network, module, inputs)
    program = exported(module, inputs, basic=True)
    if program.graph_signature.buffers_to_mutate or getattr(program.graph_signature, "user_inputs_to_mutate", None):
        raise StructureError("The network changes its own state when called, so its graph is not all that it computes.")
    given = [t.dtype for t in (*inputs, *module.parameters()) if isinstance(t, Tensor) and t.is_floating_point()]
    shortest = max((torch.finfo(dtype).eps for dtype in given), default=0.0)
    return _Walker(set(program.graph_signature.user_inputs), shortest).run(program.graph)


def _require_agreement(network: nn.Module, literal: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    with torch.no_grad():
        fast, slow = taken(network, inputs, {}), literal(*inputs)
        slow = slow.to(fast.dtype)
    lost = fast.isfinite() & ~slow.isfinite() if fast.shape == slow.shape else slow.new_zeros((), dtype=torch.bool)
    if lost.any():
        raise StructureError(
            f"On these inputs the network's literal form is not finite in {int(lost.sum())} of {lost.numel()} outputs, "
            f"and its fast evaluation is: something overflows in {slow.dtype} that the latter does without. Walk it on "
            "smaller inputs, or take a wider dtype."
        )
    scale = 1 + slow[slow.isfinite()].abs().max().item() if slow.isfinite().any() else 1.0
    allowed = max(scale * math.sqrt(torch.finfo(slow.dtype).eps), _promised(network))
    if fast.shape != slow.shape or not torch.allclose(fast, slow, rtol=0, atol=allowed, equal_nan=True):
        raise StructureError(
            "The network's two evaluations disagree, so its literal form says nothing about what it computes. Walk "
            'network.literal() to look at that form alone, or compile products for it, evaluation="literal".'
        )


def _promised(network: nn.Module) -> float:
    """How far apart the two evaluations may be by their certificates."""
    bounds = [m.literal_certificate().bound for m in network.modules() if isinstance(m, CompiledModel)]
    return 2 * max((bound for bound in bounds if math.isfinite(bound)), default=0.0)


class _Walker:
    def __init__(self, user_inputs: set[str], shortest: float) -> None:
        self.user_inputs, self.shortest = user_inputs, shortest
        self.kinds: dict[fx.Node, Kind] = {}
        self.axes: dict[fx.Node, int] = {}
        """For WEIGHTS: the axis over which they sum to one."""
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
        name = _name(node)
        if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()) and not _is_fused_without_dropout(
            node
        ):
            raise _offence(node, "is random")
        if all(k is Kind.CONSTANT for k in kinds) or name in SHAPE_ONLY or name == "_assert_tensor_metadata":
            return Kind.CONSTANT
        self._require_digits(node)
        if name in SOFTMAX:
            return self._softmax(node)
        if name in FUSED:
            return self._fused(node, kinds)
        if name in MATRIX_PRODUCTS:
            return self._matrix_product(node, name)
        self.affine += 1
        if name in REARRANGE or node.target is operator.getitem:
            return self._rearranged(node, kinds)
        if name in ("mul", "div"):
            return self._scaled(node, name)
        if name in SUMS:
            return self._sum(node, name)
        raise _offence(node, "is neither affine nor softmax attention")

    def _require_digits(self, node: fx.Node) -> None:
        """A signal stays a floating number, with no fewer digits than it had, or than inputs and parameters have."""
        after = node.meta.get("val")
        for result in after if isinstance(after, list | tuple) else [after]:
            if not isinstance(result, Tensor):
                continue
            if not result.is_floating_point():
                raise _offence(node, "turns a signal into something other than floating numbers")
            for source in node.all_input_nodes:
                before = source.meta.get("val")
                if self.kinds[source] is Kind.CONSTANT or not isinstance(before, Tensor):
                    continue
                if torch.finfo(result.dtype).eps > max(torch.finfo(before.dtype).eps, self.shortest):
                    raise _offence(node, f"rounds a signal from {before.dtype} to {result.dtype}")

    def _fused(self, node: fx.Node, kinds: list[Kind]) -> Kind:
        self.softmax += 1
        self.scores += 1
        if Kind.SCORES in kinds:
            raise _offence(node, "takes scores that have not passed a softmax")
        mask = node.args[3] if len(node.args) > 3 else node.kwargs.get("attn_mask")
        if isinstance(mask, fx.Node) and self.kinds[mask] is not Kind.CONSTANT:
            raise _offence(node, "has a mask that depends on the input")
        return Kind.SIGNAL

    def _softmax(self, node: fx.Node) -> Kind:
        axis: Any = node.args[1]
        self.softmax += 1
        self.axes[node] = axis % len(_shape(node))
        return Kind.WEIGHTS

    def _matrix_product(self, node: fx.Node, name: str) -> Kind:
        operands = [a for a in node.args if isinstance(a, fx.Node)]
        bias = None
        if name in ("addmm", "baddbmm"):
            bias = operands.pop(0)
        elif name in ("linear", "convolution") and len(operands) == 3:
            bias = operands.pop()
        left, right = operands
        result = self._product_kind(node, name, left, right)
        return result if bias is None else max(result, _plain(self.kinds[bias]))

    def _product_kind(self, node: fx.Node, name: str, left: fx.Node, right: fx.Node) -> Kind:
        kinds = self.kinds[left], self.kinds[right]
        if Kind.CONSTANT in kinds:
            self.affine += 1
            return _plain(max(kinds))
        if Kind.SCORES in kinds:
            raise _offence(node, "multiplies scores that have not passed a softmax by a signal")
        rows, columns = len(_shape(left)) - 1, max(len(_shape(right)) - 2, 0)
        over_left = kinds[0] is Kind.WEIGHTS and self.axes[left] == rows
        over_right = kinds[1] is Kind.WEIGHTS and self.axes[right] == columns
        if name in ("bmm", "mm", "matmul", "mv", "addmm", "baddbmm") and (over_left or over_right):
            return Kind.SIGNAL
        self.scores += 1
        return Kind.SCORES

    def _rearranged(self, node: fx.Node, kinds: list[Kind]) -> Kind:
        name = _name(node)
        if name not in ("cat", "stack") and any(k is not Kind.CONSTANT for k in kinds[1:]):
            raise _offence(node, "picks positions that depend on the input")
        source, value = node.all_input_nodes[0], node.meta.get("val")
        before = source.meta.get("val")
        if (
            name != "_to_copy"
            and isinstance(value, Tensor)
            and isinstance(before, Tensor)
            and value.dtype != before.dtype
        ):
            raise _offence(node, "reads the bits of a signal as another dtype")
        kind = max(kinds)
        if kind is Kind.WEIGHTS:
            axis = _followed(node, source, self.axes[source]) if len(kinds) == 1 and source in self.axes else None
            if axis is None:
                return Kind.SIGNAL
            self.axes[node] = axis
        return kind

    def _scaled(self, node: fx.Node, name: str) -> Kind:
        left, right = (self.kinds[a] if isinstance(a, fx.Node) else Kind.CONSTANT for a in node.args[:2])
        if name == "div" and right is not Kind.CONSTANT:
            raise _offence(node, "divides by a signal")
        if node.kwargs.get("rounding_mode") is not None:
            raise _offence(node, "rounds to whole numbers")
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


def _followed(node: fx.Node, source: fx.Node, axis: int) -> int | None:
    """Where the softmax axis is after a rearrangement; None if it is cut, merged or lost."""
    before, after, name = _shape(source), _shape(node), _name(node)
    args: Any = node.args
    rank = len(before)
    if name == "permute":
        return [i % rank for i in args[1]].index(axis)
    if name == "transpose":
        first, second = args[1] % rank, args[2] % rank
        return {first: second, second: first}.get(axis, axis)
    if name == "t":
        return 1 - axis
    if name == "select":
        cut = args[1] % rank
        return None if cut == axis else axis - (cut < axis)
    if name == "unsqueeze":
        return axis + (args[1] % (rank + 1) <= axis)
    if name == "slice":
        return axis if before[axis] == after[axis] else None
    if name == "expand":
        return axis + len(after) - rank
    if name in ("alias", "clone", "detach", "lift_fresh_copy", "_to_copy"):
        return axis
    if name in ("view", "reshape", "_unsafe_view", "squeeze"):
        places = [
            i for i, n in enumerate(after) if n == before[axis] and math.prod(after[:i]) == math.prod(before[:axis])
        ]
        return places[-1] if places else None
    return None


def _shape(node: fx.Node) -> tuple[int, ...]:
    value = node.meta.get("val")
    return tuple(value.shape) if isinstance(value, Tensor) else ()


def _name(node: fx.Node) -> str:
    """The operation's name in torch's own library; with its namespace in any other."""
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return getattr(node.target, "__name__", str(node.target))
    return str(schema.name).removeprefix("aten::")


def _offence(node: fx.Node, why: str) -> StructureError:
    lines = [line.strip() for line in (node.meta.get("stack_trace") or "").splitlines() if line.strip()]
    where = f", written as `{lines[-1]}` in {lines[-2]}" if len(lines) >= 2 else ""
    return StructureError(
        f"The node '{node.name}' ({node.target}) {why}{where}. "
        "A network may hold only affine maps and softmax attention."
    )
