"""A torch module or function, read as an expression by torch.export; it is traced, never sampled.

The callable runs once on a dummy float64 tensor for each variable; torch records its operations before taking them
apart, and each is looked up in `aten`. In-place operations are read as what they leave behind: nodes stand for the
storage that their tensor shares, and writing replaces what the storage holds. Python numbers are the exact float64
numbers that they are. What is not elementwise or not known is refused with its place in the caller's source.
"""

from __future__ import annotations

import copy
import io
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any

import torch
from torch import Tensor, nn

from anchorhead.errors import DiscontinuityError, ExpressionError
from anchorhead.expression.graph import Expression, Node, constant, variable
from anchorhead.expression.tensors import evaluate
from anchorhead.tracing.aten import ALIAS, COPY, OPERATIONS, Comparison
from anchorhead.tracing.steadiness import check_agreement, check_steady, left_alone, points_in

ADVICE = "write the target as text, such as 'sin(3*x) + x**2'"
CLOSE, COARSE = 1e-9, 1e-6
SIZES = (7, 5)
"""Lengths of the dummy inputs: a target that reads them off is not a function of each element."""


class _Wrapped(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Tensor) -> Any:
        return self.function(*inputs)


def trace(function: Callable[..., Any], variables: Sequence[str] = ("x",)) -> Expression:
    """The expression that a callable of one tensor for each variable computes for each element."""
    names = (variables,) if isinstance(variables, str) else tuple(variables)
    with left_alone(function):
        found = [_Tracer(_export(function, len(names), size), names, _definition(function)).read() for size in SIZES]
    with left_alone(function):
        _check_calls(function, len(names))
    if found[0].outputs != found[1].outputs:
        raise ExpressionError(f"The target depends on the shape of its input, not on each element alone; {ADVICE}.")
    return found[0]


def check_traced(function: Callable[..., Any], traced: Expression, box: Sequence[tuple[float, float]]) -> None:
    """Refuses a trace that says something else than the callable itself, at points of the box."""
    points = torch.tensor(points_in(box), dtype=torch.float64)
    made = evaluate(traced, dict(zip(traced.variables, points.unbind(-1), strict=True)))
    if isinstance(made, Tensor):
        with left_alone(function):
            found = attempt(_module(function), *points.unbind(-1))
        check_agreement(found, made, points, COARSE)


def trained_differently(function: Callable[..., Any], count: int = 1) -> bool:
    """Whether a module is in training mode and computes something else there than in evaluation mode."""
    if not (isinstance(function, nn.Module) and function.training):
        return False
    inputs = _inputs(count)
    with left_alone(function):
        plain, trained = attempt(_module(function), *inputs), attempt(_module(function).train(), *inputs)
    return plain is None or trained is None or not torch.equal(plain, trained)


def attempt(module: nn.Module, *inputs: Tensor) -> Tensor | None:
    """What a callable returns, if it runs and returns a tensor."""
    try:
        with _quiet(), torch.no_grad():
            found = module(*(x.clone() for x in inputs))
    except Exception:
        return None
    if isinstance(found, list | tuple) and len(found) == 1:
        found = found[0]
    return found if isinstance(found, Tensor) else None


def _check_calls(function: Callable[..., Any], count: int) -> None:
    """Refuses what is no function of its input, or one that looks at how many dimensions the input has."""
    first, second = _inputs(count), [x.flip(0) for x in _inputs(count)]
    module = _module(function)
    held = module if isinstance(function, nn.Module) else function
    check_steady(held, lambda inputs: attempt(module, *inputs), (first, second), CLOSE)
    row = attempt(module, *first)
    for shape in ((2, 3), (6, 1)):
        other = attempt(module, *(x.reshape(shape) for x in first))
        if row is None or other is None or other.numel() != row.numel():
            continue
        if not torch.allclose(other.reshape(row.shape), row, rtol=CLOSE, atol=CLOSE, equal_nan=True):
            raise ExpressionError(
                f"The target gives other results for numbers in a tensor of shape {shape} than for the same numbers in "
                f"a row: it depends on the shape of its input, not on each element alone; {ADVICE}, or give the shape "
                "of one input with shape=."
            )


def _inputs(count: int) -> list[Tensor]:
    draw = torch.Generator().manual_seed(0)
    return [torch.rand(6, generator=draw, dtype=torch.float64) / 2 + 0.25 for _ in range(count)]


def _module(function: Callable[..., Any]) -> nn.Module:
    if isinstance(function, nn.Module):
        return copy.deepcopy(function).to(torch.float64).eval()
    return _Wrapped(function).eval()


def _export(function: Callable[..., Any], count: int, size: int) -> Any:
    module = _module(function)
    inputs = tuple(torch.full((size,), 0.5, dtype=torch.float64) for _ in range(count))
    try:
        with _quiet():
            return torch.export.export(module, inputs, strict=False)
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ExpressionError(
            f"torch could not trace the target ({reason[:200]}); {ADVICE}, or have it sampled: lipschitz=L, or "
            "method='grid'."
        ) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Without torch.export's own notices and printing: a failure is reported by the exception alone."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    unheard = io.StringIO()
    try:
        with warnings.catch_warnings(), redirect_stdout(unheard), redirect_stderr(unheard):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


class _Tracer:
    """Walks the exported graph once; `storage` says which storage a torch node shares, `held` what it holds."""

    def __init__(self, program: Any, names: tuple[str, ...], definition: str) -> None:
        self.program = program
        self.names = names
        self.definition = definition
        self.storage: dict[Any, Any] = {}
        self.held: dict[Any, Node | Comparison] = {}

    def read(self) -> Expression:
        remaining = iter(self.names)
        inputs = self._stored_inputs()
        for node in self.program.graph.nodes:
            if node.op == "placeholder":
                stored = inputs.get(node.name)
                self._hold(node, variable(next(remaining)) if stored is None else self._number(stored, node))
            elif node.op == "call_function":
                self._operation(node)
            elif node.op == "output":
                return Expression([self._output(out) for out in self._results(node)], self.names)
            else:
                raise self._refused(node, f"the operation {node.op} of {node.target} is not elementwise")
        raise ExpressionError(f"The traced target returns nothing; {ADVICE}.")

    def _stored_inputs(self) -> dict[str, Tensor]:
        """Parameters, buffers and constants that torch turned into inputs."""
        stored = {}
        for spec in self.program.graph_signature.input_specs:
            if spec.target is not None:
                for pool in (self.program.state_dict, self.program.constants):
                    if spec.target in pool:
                        stored[spec.arg.name] = pool[spec.target]
        return stored

    def _results(self, node: Any) -> list[Any]:
        """What the callable returned, without the inputs that it overwrote and torch returns as well."""
        specs = self.program.graph_signature.output_specs
        kept = [out for out, spec in zip(node.args[0], specs, strict=True) if spec.kind.name == "USER_OUTPUT"]
        if not kept:
            raise ExpressionError(f"The traced target returns nothing; {ADVICE}.")
        return kept

    def _output(self, out: Any) -> Node:
        result = self._value(out, out)
        if result is None:
            raise ExpressionError(f"The target returns nothing; {ADVICE}.")
        if not isinstance(result, Node):
            raise DiscontinuityError("The target returns a comparison, which jumps; return a continuous function.")
        return result

    def _hold(self, node: Any, value: Node | Comparison) -> None:
        self.storage[node] = node
        self.held[node] = value

    def _operation(self, node: Any) -> None:
        schema = getattr(node.target, "_schema", None)
        if schema is None:
            raise self._refused(node, f"{node.target} is not an operation on elements")
        name = schema.name.rpartition("::")[2]
        if name == "_assert_tensor_metadata":
            return
        given = {argument.name: value for argument, value in zip(schema.arguments, node.args, strict=False)}
        given.update(node.kwargs)
        if name in ALIAS or name in COPY:
            self._pass_on(node, name, given)
            return
        writes = name.endswith("_") and not name.endswith("__")
        base = name.rstrip("_") if writes else name.strip("_")
        if base not in OPERATIONS or given.get("dim") is not None:
            raise self._refused(node, f"torch's {name} is not an elementwise operation that is known")
        result = self._apply(node, base, given)
        if writes:
            self.storage[node] = self.storage[node.args[0]]
            self.held[self.storage[node]] = result
        else:
            self._hold(node, result)

    def _apply(self, node: Any, base: str, given: dict[str, Any]) -> Node | Comparison:
        values = {key: self._value(value, node) for key, value in given.items() if value is not None}
        try:
            for key, value in values.items():
                if isinstance(value, Comparison) and (base, key) != ("where", "condition"):
                    raise DiscontinuityError("A comparison is used as a number, which jumps.")
            if values.get("training") is True:
                raise ExpressionError(f"torch's {base} in training is random")
            found = OPERATIONS[base](values)
            if not isinstance(found, Node | Comparison):
                raise ExpressionError(f"torch's {base} does not give a number for each element")
            return found
        except ExpressionError as error:
            raise self._refused(node, str(error).rstrip("."), type(error)) from None
        except (KeyError, AttributeError, TypeError):
            raise self._refused(node, f"this form of torch's {base} is not elementwise") from None

    def _pass_on(self, node: Any, name: str, given: dict[str, Any]) -> None:
        source = node.args[0]
        wanted = [value for value in given.values() if isinstance(value, torch.dtype)]
        if any(dtype != torch.float64 for dtype in wanted):
            raise self._refused(node, f"a conversion to {wanted[0]} rounds, so it jumps", DiscontinuityError)
        if name == "dropout" and given.get("train"):
            raise self._refused(node, "dropout in training is random")
        if name in COPY or given.get("copy"):
            self._hold(node, self.held[self.storage[source]])
        else:
            self.storage[node] = self.storage[source]

    def _value(self, value: Any, node: Any) -> Any:
        """A torch node's meaning, a number as a constant, and anything else (a string, a dtype) as it is."""
        if isinstance(value, torch.fx.Node):
            if value not in self.storage:
                raise self._refused(node, f"{value} is not a tensor of elements")
            return self.held[self.storage[value]]
        if isinstance(value, int | float) and not isinstance(value, bool):
            return constant(value)
        if isinstance(value, bool | complex):
            return value
        if isinstance(value, list | tuple):
            raise self._refused(node, "an operation on several tensors or axes is not elementwise")
        return value

    def _number(self, tensor: Tensor, node: Any) -> Node:
        if tensor.numel() != 1:
            raise ExpressionError(
                f"The target uses a tensor of shape {tuple(tensor.shape)}, and an elementwise function can use single "
                f"numbers only; {ADVICE}."
            )
        return constant(tensor.detach().to(torch.float64).item())

    def _refused(self, node: Any, why: str, kind: type[ExpressionError] = ExpressionError) -> ExpressionError:
        place = _place(node) or self.definition
        return kind(f"The target cannot be read as an expression: {why}{place}. To go on, {ADVICE}.")


def _definition(function: Callable[..., Any]) -> str:
    """Where the callable itself is defined, for operations whose own place torch did not record."""
    code = getattr(function, "__code__", None)
    return f' (in {code.co_name}, "{code.co_filename}", line {code.co_firstlineno})' if code else ""


def _place(node: Any) -> str:
    """Where in a module's source the operation stands, from torch's record of it."""
    recorded = getattr(node, "meta", {}).get("stack_trace") or ""
    lines = [line.strip() for line in recorded.strip().splitlines() if line.strip()]
    found = [place for place, line in enumerate(lines) if line.startswith("File ") and __file__ not in line]
    if not found:
        return ""
    where = lines[found[-1]].removeprefix("File ")
    code = " ".join(lines[found[-1] + 1 :][:1])
    return f" ({where}: {code})" if code else f" ({where})"
