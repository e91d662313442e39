"""A callable as torch runs it: a module in evaluation mode, its results, and the record of it by torch.export."""

from __future__ import annotations

import copy
import io
import logging
import operator
import types
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any

import torch
from torch import Tensor, nn

from anchorhead.errors import ExpressionError
from anchorhead.tracing.steadiness import EVALUATION, check_steady, left_alone

HIDING = {"_DisableTorchDispatch", "no_dispatch"}
"""What hides operations from torch's own record, which then computes with memory that is not there."""


class _Wrapped(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Tensor) -> Any:
        return self.function(*inputs)


def as_module(function: Callable[..., Any], dtype: torch.dtype = torch.float64) -> nn.Module:
    """The callable in this dtype and in evaluation mode, a module as a copy."""
    if isinstance(function, nn.Module):
        return copy.deepcopy(function).to(dtype).eval()
    if isinstance(function, types.FunctionType):  # torch records the lines of functions that are called forward only
        code, outer = function.__code__.replace(co_name="forward"), function
        function = types.FunctionType(code, outer.__globals__, outer.__name__, outer.__defaults__, outer.__closure__)
        function.__kwdefaults__ = outer.__kwdefaults__
    return _Wrapped(function).eval()


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


@contextmanager
def called(function: Callable[..., Any]) -> Iterator[None]:
    """While a callable is called: it is left as it was, and torch's fast path, which hides attention, is off."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with left_alone(function):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


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


def require_instance(target: Any) -> None:
    """Refuses a class, which is called to make something and is no function of numbers."""
    if isinstance(target, type):
        name = target.__name__
        what = f"an instance of it, {name}(...)" if issubclass(target, nn.Module) else "a function"
        raise ExpressionError(f"The target is the class {name}, and no function of numbers; give {what}.")


def check_calls(
    function: Callable[..., Any], module: nn.Module, inputs: Sequence[Sequence[Tensor]], close: float
) -> None:
    """Refuses what is no function of its input; two inputs are tried, each a tensor for each argument."""
    held = module if isinstance(function, nn.Module) else function
    check_steady(held, lambda given: attempt(module, *given), inputs, close)


def evaluation_mode(function: Callable[..., Any], dtype: torch.dtype, *inputs: Tensor) -> tuple[str, ...]:
    """What must be said of a module that is in training mode and computes something else there."""
    if not (isinstance(function, nn.Module) and function.training):
        return ()
    with called(function):
        plain = attempt(as_module(function, dtype), *inputs)
        trained = attempt(as_module(function, dtype).train(), *inputs)
    same = plain is not None and trained is not None and torch.equal(plain, trained)
    return () if same else (EVALUATION,)


def export(module: nn.Module, inputs: tuple[Tensor, ...], advice: str, known: Collection[str] = (),
           shapes: tuple[Any, ...] | None = None) -> Any:  # fmt: skip
    """torch's record of the module, with in-place operations as what they leave behind.

    Where there are operations that are `known`, torch takes apart the others. shapes: which sizes may be any.
    """
    if hidden := _hidden(module):
        raise ExpressionError(f"The target hides operations from torch ({hidden}), which records none then; {advice}.")
    try:
        with _quiet():
            program = torch.export.export(module, inputs, dynamic_shapes=shapes, strict=False)
            program = program.run_decompositions({}) if any(map(_writes, calls(program))) else program
            return _taken_apart(program, known) if known else program
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
        reason = f"torch could not trace the target ({lines[0][:200]}){_raised(lines)}"
        raise ExpressionError(f"{reason}; {advice}.") from error


def _hidden(module: nn.Module) -> str:
    """By what a forward hides operations; nothing where none says that it does."""
    run = [part.function if isinstance(part, _Wrapped) else part.forward for part in module.modules()]
    names = {name for function in run for name in getattr(getattr(function, "__code__", None), "co_names", ())}
    return ", ".join(sorted(names & HIDING))


def calls(program: Any) -> list[Any]:
    """The operations of a program."""
    nodes = [node for node in program.graph.nodes if node.op == "call_function"]
    return [node for node in nodes if node.target is not operator.getitem]


def name_of(node: Any) -> str:
    """What torch calls an operation."""
    schema = getattr(node.target, "_schema", None)
    return str(node.target) if schema is None else schema.name.rpartition("::")[2]


def draws(node: Any) -> bool:
    """Whether an operation is random whatever it is given, as rand is; dropout and its like are in training alone."""
    schema = getattr(node.target, "_schema", None)
    random = torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
    names = {argument.name for argument in getattr(schema, "arguments", ())}
    return random and not names & {"train", "training", "dropout_p"}


def _writes(node: Any) -> bool:
    """Whether an operation changes a tensor in place; torch rewrites those by others, which takes it some time."""
    schema = getattr(node.target, "_schema", None)
    return schema is not None and schema.is_mutable and name_of(node) != "detach_"


def depending(program: Any) -> set[Any]:
    """The nodes of a program that depend on the input."""
    inputs = set(program.graph_signature.user_inputs)
    found: set[Any] = set()
    for node in program.graph.nodes:
        if node.name in inputs or any(source in found for source in node.all_input_nodes):
            found.add(node)
    return found


def _taken_apart(program: Any, known: Collection[str]) -> Any:
    """The program without operations that are not known, where torch can write them by others."""
    for _ in range(4):
        moving = depending(program)
        unknown = {node.target for node in calls(program) if node in moving and name_of(node) not in known}
        table = torch.export.default_decompositions() if unknown else {}
        parts = {target: table[target] for target in unknown if target in table}
        if not parts:
            return program
        program = program.run_decompositions(parts)
    return program


def _raised(lines: list[str]) -> str:
    """The caller's line at which torch gave up, where its message names one."""
    found = [i for i, line in enumerate(lines) if line.startswith("The following call raised")]
    where = [line for i in found for line in lines[i + 1 : i + 3] if not line.startswith("The error above")]
    return " at " + " ".join(where).replace("File ", "").replace(", in forward", ":") if where else ""


def definition(function: Callable[..., Any]) -> str:
    """Where the callable itself is defined, for operations whose own place torch did not record."""
    code = getattr(function, "__code__", None)
    return f' (in {code.co_name}, "{code.co_filename}", line {code.co_firstlineno})' if code else ""


def place_of(node: Any) -> str:
    """Where in a module's source the operation stands, from torch's record of it."""
    recorded = getattr(node, "meta", {}).get("stack_trace") or ""
    lines = [line.strip() for line in recorded.strip().splitlines() if line.strip()]
    found = [place for place, line in enumerate(lines) if line.startswith("File ") and __file__ not in line]
    if not found:
        return ""
    where = lines[found[-1]].removeprefix("File ").replace(", in forward", "")
    code = " ".join(lines[found[-1] + 1 :][:1])
    return f" ({where}: {code})" if code else f" ({where})"
