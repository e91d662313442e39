"""The walker on whole models: the exported graph of a converted model, operation by operation.

The model is taken with every head written out as scores, softmax and values. Of that form `torch.export` makes one
graph, which is all that it computes on inputs of that shape. It is run node by node, and every operation that torch
dispatches for a node is shown to `operations.py`, as when a model is watched: so there is one notion of what is affine,
what is a constant of tokens and positions, and what is softmax attention. The first that is none of these is named.

*Fast and literal.* Both are run on the inputs and must agree. Heads of float32 are written out in float64: squares and
products have weights near 1/2, and values that cancel (`proof/odd.py`), which costs a softmax in float32 all its digits
and one in float64 about half of them. So what must agree is half of the digits of the model's dtype, or of float32.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from anchorhead.conversion.lines import traced_line
from anchorhead.conversion.operations import Operations
from anchorhead.conversion.place_heads import keep_hooks
from anchorhead.conversion.report import ConversionReport
from anchorhead.conversion.states import Event, tensors_in
from anchorhead.conversion.substance import moved
from anchorhead.errors import InputError, StructureError
from anchorhead.model.activation import Placed
from anchorhead.model.exported import exported, literal_form, taken
from anchorhead.model.fused import unfused
from anchorhead.model.walker import Walk
from anchorhead.model.walker import walk as walk_network


def walk(network: nn.Module, *inputs: Any, **named: Any) -> Walk:
    """Proves that `network` on inputs like these is affine maps and softmax attention only.

    Raises `StructureError` naming the first operation that is neither, and where it stands in the source. Networks of
    this library, alone or inside another module, are walked in their literal evaluation, and the outputs of the two
    evaluations are compared on these inputs. A model that `ah.convert` returned takes what it takes, by name too; what
    is computed from tokens and positions alone, as masks and rotary factors are, is a constant there.

    >>> ah.walk(ah.compile("tanh(x)"), torch.zeros(3, dtype=torch.float64)).softmax
    1
    """
    if not isinstance(network, nn.Module):
        raise InputError(f"walk takes a torch module, and got a {type(network).__name__}.")
    heads = any(isinstance(module, Placed) for module in network.modules())
    if heads or isinstance(getattr(network, "report", None), ConversionReport):
        return _walk_converted(network, inputs, named)
    if named:
        raise InputError("Inputs by name are for models that ah.convert returned; give tensors, in order.")
    return walk_network(network, *inputs)


class _Tensors(nn.Module):
    """A model whose output is the list of its tensors, whatever holds them."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *inputs: Any, **named: Any) -> list[Tensor]:
        return tensors_in(self.model(*inputs, **named))


class _Wide(nn.Module):
    """What stands in a place, written out, with its numbers and what it computes in float64."""

    def __init__(self, placed: Any) -> None:
        super().__init__()
        self.placed, self.in_place = placed.literal().to(torch.float64), placed.in_place
        keep_hooks(placed, self)

    def forward(self, x: Tensor, *partner: Tensor) -> Tensor:
        found: Tensor = self.placed(*(t.to(torch.float64) for t in (x, *partner))).to(x.dtype)
        return x.copy_(found) if self.in_place else found


def _walk_converted(model: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> Walk:
    fast, literal = _Tensors(model).eval(), _Tensors(literal_form(model, _Wide)).eval()
    with torch.no_grad(), unfused():
        _require_agreement(taken(fast, inputs, named), literal(*inputs, **named))
        graph = _exported(model, literal, inputs, named)
        given = pytree.tree_leaves((inputs, named))
        operations = _walked(graph, given, None)
        left = list(operations.left)
        draw = torch.Generator().manual_seed(0)
        other = lambda v: moved(v, draw) if isinstance(v, Tensor) and v.is_floating_point() else v
        others = lambda: _walked(graph, [other(v) for v in given], draw)
        left += operations.without_substance(others) if operations.records else []
    if left:
        event = left[0]
        raise StructureError(
            f"{event.place} ({event.module}) computes {event}, which is neither affine nor softmax attention. A "
            "network may hold only these; report.remaining lists what conversion left."
        )
    counts = operations.counts
    return Walk(counts["affine"], counts["softmax"], counts["scores"])


def _exported(model: Any, literal: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """The graph; where there is none, what is left in the model may be why."""
    try:
        return exported(literal, inputs, named).module()
    except StructureError as error:
        left = [f"{place} ({what.partition(' (')[0]})" for place, what in model.report.remaining]
        if not left:
            raise
        raise StructureError(
            f"This model is not affine maps and softmax attention alone: {', '.join(left[:3])} and what else "
            f"report.remaining lists was left by conversion; and it cannot be exported as one graph. {error}"
        ) from error


def _walked(graph: nn.Module, given: list[Any], other: torch.Generator | None) -> Operations:
    """What the operations of a graph are, on these inputs."""
    found = _Classified(graph, [v for v in given if isinstance(v, Tensor)], other)
    with _Dispatched(found.operations):
        output = found.run(*given, enable_io_processing=False)
    found.env.clear()  # what is left of it does not outlive the run
    found.operations.finish(output)
    return found.operations


def _require_agreement(fast: list[Tensor], literal: list[Tensor]) -> None:
    for a, b in zip(fast, literal, strict=True):
        if not a.is_floating_point() or not a.numel():
            continue
        scale = 1 + a.double().nan_to_num(0.0, 0.0, 0.0).abs().max().item()
        allowed = scale * math.sqrt(max(torch.finfo(a.dtype).eps, torch.finfo(torch.float32).eps))
        if not torch.allclose(a.double(), b.double(), rtol=0, atol=allowed, equal_nan=True):
            raise StructureError(
                "The model's two evaluations disagree on these inputs, so its literal form says nothing about what it "
                "computes: numbers are too small for squares that are written out. Walk it on other inputs."
            )


class _Dispatched(TorchDispatchMode):
    """Shows every operation to `Operations`."""

    def __init__(self, operations: Operations) -> None:
        super().__init__()
        self.operations = operations

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        self.operations.see(func, args, kwargs or {}, found)
        return found


class _Classified(fx.Interpreter):
    """Runs a graph, and knows which node is running."""

    def __init__(self, graph: Any, inputs: list[Tensor], other: torch.Generator | None) -> None:
        super().__init__(graph)
        self.operations = Operations(graph, inputs, self._event, other)
        self.operations.making = 1  # fresh tensors of a graph are its constants
        self.node: fx.Node | None = None

    def run_node(self, n: fx.Node) -> Any:
        self.node = n
        return super().run_node(n)

    def _event(self, operation: str) -> Event:
        meta: dict[str, Any] = {} if self.node is None else self.node.meta
        stack = list((meta.get("nn_module_stack") or {"": ("", "")}).values())
        place, kind = stack[-1]
        in_head = any("_Wide" in str(kind) for _, kind in stack)
        source = traced_line(meta.get("stack_trace") or "")
        name = kind if isinstance(kind, str) else kind.__name__
        where = str(place).removeprefix("model.") or "the model"
        return Event(where, name.rpartition(".")[2], operation, source, in_head)
