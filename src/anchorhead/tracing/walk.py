"""The graph of an exported program, walked operation by operation: what each of its nodes is, from what it is made of.

A walk is on numbers (`function`) or on tensors of entries (`module`); which operations it knows, and what it makes of
tensors that do not depend on the input, is its own.
"""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from anchorhead.errors import DiscontinuityError, ExpressionError
from anchorhead.tracing.calling import draws, name_of, place_of
from anchorhead.tracing.elements import Jumps


class Walk(ABC):
    """Walks the exported program once; `values` holds what each of its nodes is."""

    result: str
    """What the target is read as."""
    advice: str

    def __init__(self, program: Any, inputs: Sequence[Any], place: str) -> None:
        self.program = program
        self.inputs = dict(zip(program.graph_signature.user_inputs, inputs, strict=True))
        self.place = place
        self.values: dict[Any, Any] = {}

    @abstractmethod
    def stored(self, tensor: Any) -> Any:
        """A parameter, a buffer or a constant."""

    @abstractmethod
    def operate(self, node: Any, given: dict[str, Any]) -> Any:
        """What an operation makes of its arguments, by their names."""

    def read(self) -> list[tuple[Any, Any]]:
        """What the callable returned, as nodes of the program and what they are."""
        results = self._results()
        stored = self._stored()
        for node in self._needed(results):
            if node.op == "placeholder":
                given = self.inputs.get(node.name)
                self.values[node] = self.stored(stored[node.name]) if given is None else given
            elif node.op == "call_function":
                self.values[node] = self._operation(node)
            else:
                raise self.refused(node, f"the operation {node.op} of {node.target} is not known")
        return [(result, self.value(result)) for result in results]

    def _results(self) -> list[Any]:
        """Without the inputs that it overwrote, which torch returns as well."""
        [returned] = [node for node in self.program.graph.nodes if node.op == "output"]
        specs = self.program.graph_signature.output_specs
        kept = [out for out, spec in zip(returned.args[0], specs, strict=True) if spec.kind.name == "USER_OUTPUT"]
        if not kept or None in kept:
            raise ExpressionError("The target returns nothing; return one tensor.")
        return kept

    def _needed(self, results: list[Any]) -> list[Any]:
        wanted: set[Any] = set()
        stack = [result for result in results if isinstance(result, torch.fx.Node)]
        while stack:
            node = stack.pop()
            if node not in wanted:
                wanted.add(node)
                stack += node.all_input_nodes
        return [node for node in self.program.graph.nodes if node in wanted]

    def _stored(self) -> dict[str, Any]:
        """Parameters, buffers and constants that torch turned into inputs."""
        pools = (self.program.state_dict, self.program.constants)
        specs = self.program.graph_signature.input_specs
        found = {spec.arg.name: pool[spec.target] for spec in specs for pool in pools if spec.target in pool}
        return {name: value.detach() if isinstance(value, Tensor) else value for name, value in found.items()}

    def _operation(self, node: Any) -> Any:
        args, kwargs = self.value(node.args), {key: self.value(value) for key, value in node.kwargs.items()}
        if node.target is operator.getitem:
            return args[0][args[1]]
        schema = getattr(node.target, "_schema", None)
        names = [argument.name for argument in schema.arguments] if schema is not None else map(str, range(len(args)))
        if draws(node):
            raise self.refused(node, f"torch's {name_of(node)} is random, and a target gives the same at every call")
        try:
            return self.operate(node, dict(zip(names, args, strict=False)) | kwargs)
        except ExpressionError as error:
            raise self.refused(node, str(error).rstrip("."), type(error)) from None
        except (KeyError, IndexError, AttributeError, TypeError, ValueError, ZeroDivisionError) as error:
            raise self.refused(node, f"this form of torch's {name_of(node).strip('_')} is not known") from error

    def value(self, value: Any) -> Any:
        """What a node is, or an argument that holds nodes."""
        if isinstance(value, torch.fx.Node):
            found = self.values[value]
            if isinstance(found, Jumps):
                raise self.refused(value, found.why, DiscontinuityError)
            return found
        return [self.value(part) for part in value] if isinstance(value, list | tuple) else value

    def path(self, node: Any) -> str:
        """The module that an operation belongs to."""
        stack = list((getattr(node, "meta", {}).get("nn_module_stack") or {}).values())
        return stack[-1][0] if stack else ""

    def refused(self, node: Any, why: str, kind: type[ExpressionError] = ExpressionError) -> ExpressionError:
        path = self.path(node)
        place = (f" in the module {path}" if path else "") + (place_of(node) or self.place)
        found = kind(f"The target cannot be read as {self.result}: {why}{place}. To go on, {self.advice}.")
        found.why = why
        return found
