"""The graph of an exported program, walked operation by operation on arrays of entries."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anchorhead.errors import DiscontinuityError, ExpressionError
from anchorhead.tracing.elements import Array, Context, Jumps, shaped
from anchorhead.tracing.entries import Above, Entries
from anchorhead.tracing.function import _place
from anchorhead.tracing.operations import OPERATIONS


def writes_in_place(node: Any) -> bool:
    """Whether an operation changes a tensor in place; torch rewrites those by others, which takes it some time."""
    schema = getattr(node.target, "_schema", None)
    return schema is not None and schema.is_mutable and name_of(node) != "detach_"


def name_of(node: Any) -> str:
    schema = getattr(node.target, "_schema", None)
    return str(node.target) if schema is None else schema.name.rpartition("::")[2]


def _moves(value: Any) -> bool:
    """Whether a value depends on the input."""
    return any(map(_moves, value)) if isinstance(value, list) else isinstance(value, np.ndarray)


ADVICE = "write that part with linear maps, activations, products, sums, norms, maxima and softmax"


class Walk:
    """Walks the exported program once; `values` holds what each of its nodes is."""

    def __init__(self, program: Any, inputs: Array, entries: Entries, dtype: torch.dtype, place: str) -> None:
        self.program = program
        self.inputs = inputs
        self.entries = entries
        self.dtype = dtype
        self.place = place
        self.moving = depending(program)
        self.values: dict[Any, Any] = {}

    def read(self) -> Array:
        [returned] = [node for node in self.program.graph.nodes if node.op == "output"]
        result = self._result(returned)
        stored = self._stored()
        for node in self._needed(result):
            if node.op == "placeholder":
                self.values[node] = self.inputs if node in self.moving else stored[node.name]
            elif node.op == "call_function":
                self.values[node] = self._operation(node)
            else:
                raise self._refused(node, f"the operation {node.op} of {node.target} is not known")
        array = Context(self.entries, "output").array(self._value(result))
        if any(isinstance(entry, Above) for entry in array.ravel()):
            raise DiscontinuityError("The target returns a comparison, which jumps; return a continuous function.")
        try:
            return shaped(self.entries.forms(array.ravel(), "output"), array.shape)
        except ExpressionError as error:
            raise self._refused(result, str(error).rstrip("."), type(error)) from None

    def _result(self, node: Any) -> Any:
        specs = self.program.graph_signature.output_specs
        kept = [out for out, spec in zip(node.args[0], specs, strict=True) if spec.kind.name == "USER_OUTPUT"]
        if not kept or kept == [None]:
            raise ExpressionError("The target returns nothing; return one tensor.")
        if len(kept) > 1:
            raise ExpressionError(
                f"The target returns {len(kept)} values{self.place}, and a circuit has one output tensor; return one "
                "tensor, for example by torch.cat or by choosing one of them."
            )
        return kept[0]

    def _needed(self, result: Any) -> list[Any]:
        wanted: set[Any] = set()
        stack = [result] if isinstance(result, torch.fx.Node) else []
        while stack:
            node = stack.pop()
            if node not in wanted:
                wanted.add(node)
                stack += node.all_input_nodes
        return [node for node in self.program.graph.nodes if node in wanted]

    def _stored(self) -> dict[str, Tensor]:
        """Parameters, buffers and constants that torch turned into inputs."""
        pools = (self.program.state_dict, self.program.constants)
        specs = self.program.graph_signature.input_specs
        found = {spec.arg.name: pool[spec.target] for spec in specs for pool in pools if spec.target in pool}
        return {name: value.detach() if isinstance(value, Tensor) else value for name, value in found.items()}

    def _operation(self, node: Any) -> Any:
        args, kwargs = self._value(node.args), {key: self._value(value) for key, value in node.kwargs.items()}
        if node.target is operator.getitem:
            return args[0][args[1]]
        if not any(_moves(value) for value in [*args, *kwargs.values()]):
            return self._constant(node, args, kwargs)
        name = name_of(node)
        if name not in OPERATIONS:
            raise self._refused(node, f"torch's {name.strip('_')} is not an operation that is known")
        given = {argument.name: value for argument, value in zip(node.target._schema.arguments, args, strict=False)}
        try:
            found = OPERATIONS[name](Context(self.entries, self._label(node), node.target), given | kwargs)
        except ExpressionError as error:
            raise self._refused(node, str(error).rstrip("."), type(error)) from None
        except (KeyError, IndexError, AttributeError, TypeError, ValueError) as error:
            raise self._refused(node, f"this form of torch's {name.strip('_')} is not known") from error
        self._check(node, found)
        return found

    def _check(self, node: Any, found: Any) -> None:
        """That the result has torch's shape, and is not rounded to another dtype than the input's."""
        expected = node.meta.get("val")
        if not (isinstance(expected, Tensor) and isinstance(found, np.ndarray)):
            return
        dtype = expected.dtype
        if found.shape != expected.shape or dtype.is_complex:
            raise self._refused(node, f"this form of torch's {name_of(node).strip('_')} is not known")
        compared = dtype == torch.bool  # looked at where it is used
        if not compared and not (dtype.is_floating_point and torch.finfo(dtype).eps <= torch.finfo(self.dtype).eps):
            raise self._refused(node, f"a conversion to {dtype} rounds, so it jumps", DiscontinuityError)

    def _constant(self, node: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        name = name_of(node)
        known = name.endswith("dropout") and args[-1] is False
        if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()) and not known:
            raise self._refused(node, f"torch's {name} is random")
        made = node.target(*args, **kwargs)
        return torch.zeros_like(made) if name.startswith("empty") else made

    def _value(self, value: Any) -> Any:
        if isinstance(value, torch.fx.Node):
            found = self.values[value]
            if isinstance(found, Jumps):
                raise self._refused(value, found.why, DiscontinuityError)
            return found
        return [self._value(part) for part in value] if isinstance(value, list | tuple) else value

    def _label(self, node: Any) -> str:
        """The operation and the module that it belongs to, as in "encoder.0: gelu"."""
        path, name = self._path(node), name_of(node).strip("_")
        return f"{path}: {name}" if path else name

    def _path(self, node: Any) -> str:
        stack = list((node.meta.get("nn_module_stack") or {}).values())
        return stack[-1][0] if stack else ""

    def _refused(self, node: Any, why: str, kind: type[ExpressionError] = ExpressionError) -> ExpressionError:
        path = self._path(node) if isinstance(node, torch.fx.Node) else ""
        place = (f" in the module {path}" if path else "") + (_place(node).replace(", in forward", "") or self.place)
        return kind(f"The target cannot be read as a circuit: {why}{place}. To go on, {ADVICE}.")


def depending(program: Any) -> set[Any]:
    """The nodes of a program that depend on the input."""
    inputs = set(program.graph_signature.user_inputs)
    found: set[Any] = set()
    for node in program.graph.nodes:
        if node.name in inputs or any(source in found for source in node.all_input_nodes):
            found.add(node)
    return found
