"""A torch module or function of one tensor, read as a circuit by torch.export; it is traced, never sampled.

torch records the operations, rewrites in-place ones as what they leave behind, and takes apart those that are not in
the table of `tensor_ops`. Walking the record, a tensor that depends on the input is an array of entries, one for each
number in it, and any other tensor is what torch computes for it, so that parameters are the exact numbers that they
are. The circuit is the function of real numbers that the callable stands for, without torch's rounding; its own
softmax attention stays attention. What jumps or is not known is refused with its place in the caller's source.
"""

from __future__ import annotations

import copy
import operator
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from anchorhead.errors import DiscontinuityError, ExpressionError
from anchorhead.expression.circuit import Circuit
from anchorhead.expression.forms import Builder
from anchorhead.expression.tensor_elements import Array, Context, Jumps, shaped
from anchorhead.expression.tensor_entries import Above, Entries
from anchorhead.expression.tensor_ops import OPERATIONS
from anchorhead.expression.trace import _definition, _place, _quiet, _Wrapped

ADVICE = "write that part with linear maps, activations, products, sums, norms, maxima and softmax"
BATCH = 5
"""Inputs in the batch on which it is seen whether a callable maps batches."""
CLOSE = {torch.float64: 1e-9, torch.float32: 1e-4}


def trace_tensors(function: Callable[..., Any], shape: tuple[int, ...], *, fuse: bool = True) -> Circuit:
    """The circuit of a callable that maps one tensor of the shape, or batches of them, to one tensor."""
    module, place = _prepared(function)
    with _attention_in_the_open():
        batched, dtype = _convention(module, shape)
        program = _export(module, torch.full((1, *shape) if batched else shape, 0.5, dtype=dtype))
    names = ["x" + "_".join(map(str, index)) for index in np.ndindex(*shape)]
    builder = Builder(names, fuse=fuse)
    inputs = shaped((builder.input(i) for i in range(len(names))), (1, *shape) if batched else shape)
    result = _Walk(program, inputs, Entries(builder), dtype, place).read()
    result = result[0] if batched else result
    made = builder.circuit(list(result.ravel()), shape, result.shape)
    return replace(made, output_shape=result.shape)


def infer_width(module: nn.Module) -> int | None:
    """The number of features that a module's first layer with a fixed number of them takes, if there is one."""
    for part in module.modules():
        if isinstance(part, nn.Linear):
            return part.in_features
        if isinstance(part, nn.LayerNorm):
            return part.normalized_shape[-1]
        if isinstance(part, nn.MultiheadAttention):
            return part.embed_dim
        if isinstance(part, nn.BatchNorm1d):
            return part.num_features
    return None


def _prepared(function: Callable[..., Any]) -> tuple[nn.Module, str]:
    """A module to export, and where it is defined. torch records lines of functions that are called forward only."""
    if isinstance(function, nn.Module):
        return copy.deepcopy(function).to(torch.float64).eval(), ""
    place = _definition(function)
    if isinstance(function, types.FunctionType):
        code = function.__code__.replace(co_name="forward")
        named = types.FunctionType(
            code, function.__globals__, function.__name__, function.__defaults__, function.__closure__
        )
        named.__kwdefaults__ = function.__kwdefaults__
        function = named
    return _Wrapped(function).eval(), place


@contextmanager
def _attention_in_the_open() -> Iterator[None]:
    """torch's fast path for inference is one operation that hides the attention."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def _convention(module: nn.Module, shape: tuple[int, ...]) -> tuple[bool, torch.dtype]:
    """Whether the callable maps batches, seen on one, and the dtype in which it runs."""
    for dtype, close in CLOSE.items():
        inputs = torch.rand((BATCH, *shape), generator=torch.Generator().manual_seed(0), dtype=dtype) / 2 + 0.25
        together = _run(module, inputs)
        alone = [_run(module, part) for part in inputs.split(1)]
        if together is None or any(one is None for one in alone):
            if _run(module, inputs[0]) is not None:
                return False, dtype
            continue
        joined = [one for one in alone if one is not None and one.shape[:1] == (1,)]
        if len(joined) < BATCH or together.shape != (BATCH, *joined[0].shape[1:]):
            return False, dtype
        if any(one.shape != joined[0].shape for one in joined):
            return False, dtype
        return torch.allclose(together, torch.cat(joined), rtol=close, atol=close, equal_nan=True), dtype
    return False, torch.float64


def _run(module: nn.Module, inputs: Tensor) -> Tensor | None:
    """What the callable returns, if it runs and returns a tensor."""
    try:
        with _quiet(), torch.no_grad(), torch.random.fork_rng(devices=[]):
            found = module(inputs.clone())
    except Exception:
        return None
    if isinstance(found, list | tuple) and len(found) == 1:
        found = found[0]
    return found if isinstance(found, Tensor) else None


def _export(module: nn.Module, example: Tensor) -> Any:
    try:
        with _quiet():
            program = torch.export.export(module, (example,), strict=False).run_decompositions({})
            return _taken_apart(program)
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
        raised = [i for i, line in enumerate(lines) if line.startswith("The following call raised")]
        where = f" at {' '.join(lines[raised[0] + 1 : raised[0] + 3])}".removesuffix(" ") if raised else ""
        where = where.replace(", in forward", ":").replace("File ", "")
        raise ExpressionError(f"torch could not trace the target ({lines[0][:200]}){where}; {ADVICE}.") from error


def _taken_apart(program: Any) -> Any:
    """The program without operations that are not known, where torch can write them by others."""
    for _ in range(4):
        moving = _depending(program)
        unknown = {node.target for node in moving if node.op == "call_function" and _name(node) not in OPERATIONS}
        unknown.discard(operator.getitem)
        table = torch.export.default_decompositions() if unknown else {}
        parts = {target: table[target] for target in unknown if target in table}
        if not parts:
            return program
        program = program.run_decompositions(parts)
    return program


def _depending(program: Any) -> set[Any]:
    """The nodes of a program that depend on the input."""
    inputs = set(program.graph_signature.user_inputs)
    found: set[Any] = set()
    for node in program.graph.nodes:
        if node.name in inputs or any(source in found for source in node.all_input_nodes):
            found.add(node)
    return found


def _name(node: Any) -> str:
    schema = getattr(node.target, "_schema", None)
    return str(node.target) if schema is None else schema.name.rpartition("::")[2]


class _Walk:
    """Walks the exported program once; `values` holds what each of its nodes is."""

    def __init__(self, program: Any, inputs: Array, entries: Entries, dtype: torch.dtype, place: str) -> None:
        self.program = program
        self.inputs = inputs
        self.entries = entries
        self.dtype = dtype
        self.place = place
        self.moving = _depending(program)
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
        value = self._value(result, returned)
        context = Context(self.entries, "output")
        array = context.array(value)
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
        if node.target is operator.getitem:
            return self._value(node.args[0], node)[node.args[1]]
        if node not in self.moving:
            return self._constant(node)
        operation = OPERATIONS.get(_name(node))
        if operation is None:
            raise self._refused(node, f"torch's {_name(node).strip('_')} is not an operation that is known")
        arguments = node.target._schema.arguments
        given = {argument.name: value for argument, value in zip(arguments, node.args, strict=False)} | node.kwargs
        given = {key: self._value(value, node) for key, value in given.items()}
        self._check_dtype(node)
        try:
            with torch.no_grad():
                found = operation(Context(self.entries, self._label(node), node.target), given)
        except ExpressionError as error:
            raise self._refused(node, str(error).rstrip("."), type(error)) from None
        expected = node.meta.get("val")
        if isinstance(expected, Tensor) and isinstance(found, np.ndarray) and found.shape != expected.shape:
            raise self._refused(node, f"this form of torch's {_name(node).strip('_')} is not known")
        return found

    def _check_dtype(self, node: Any) -> None:
        """A result of another dtype than the input's would be rounded; comparisons are looked at where they are used."""
        value = node.meta.get("val")
        dtype = value.dtype if isinstance(value, Tensor) else None
        if dtype is None or dtype == torch.bool or _name(node) in ("argmax", "argmin"):
            return
        if dtype.is_complex:
            raise self._refused(node, f"torch's {_name(node).strip('_')} makes complex numbers")
        if not dtype.is_floating_point or torch.finfo(dtype).eps > torch.finfo(self.dtype).eps:
            raise self._refused(node, f"a conversion to {dtype} rounds, so it jumps", DiscontinuityError)

    def _constant(self, node: Any) -> Any:
        name = _name(node)
        args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), lambda arg: self._value(arg, node))
        if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()) and not name.endswith("dropout"):
            raise self._refused(node, f"torch's {name} is random")
        with torch.no_grad():
            made = node.target(*args, **kwargs)
        return torch.zeros_like(made) if name.startswith("empty") else made

    def _value(self, value: Any, node: Any) -> Any:
        if isinstance(value, torch.fx.Node):
            found = self.values[value]
            if isinstance(found, Jumps):
                raise self._refused(value, found.why, DiscontinuityError)
            return found
        return [self._value(part, node) for part in value] if isinstance(value, list | tuple) else value

    def _label(self, node: Any) -> str:
        """The operation and the module that it belongs to, as in "encoder.0: gelu"."""
        stack = list((node.meta.get("nn_module_stack") or {}).values())
        path = stack[-1][0] if stack else ""
        name = _name(node).strip("_")
        return f"{path}: {name}" if path else name

    def _refused(self, node: Any, why: str, kind: type[ExpressionError] = ExpressionError) -> ExpressionError:
        place = _place(node) or self.place
        return kind(f"The target cannot be read as a circuit: {why}{place}. To go on, {ADVICE}.")
