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

from anchorhead.circuit.circuit import Circuit
from anchorhead.circuit.lower import Builder
from anchorhead.errors import ExpressionError
from anchorhead.tracing.elements import shaped
from anchorhead.tracing.entries import Entries
from anchorhead.tracing.function import _definition, _quiet, _Wrapped, attempt
from anchorhead.tracing.operations import OPERATIONS, WHOLE
from anchorhead.tracing.steadiness import check_steady, left_alone
from anchorhead.tracing.walk import ADVICE, Walk, depending, name_of, writes_in_place

BATCH = 129
"""Inputs in the batch on which it is seen whether a callable maps batches."""
CLOSE = {torch.float64: 1e-9, torch.float32: 1e-4}
COARSE = {torch.float64: 1e-6, torch.float32: 1e-3}


@torch.no_grad()
def trace_tensors(function: Callable[..., Any], shape: tuple[int, ...], *, fuse: bool = True) -> Circuit:
    """The circuit of a callable that maps one tensor of the shape, or batches of them, to one tensor."""
    with left_alone(function), _attention_in_the_open():
        module, dtype, batched = _prepared(function, shape)
        program = _export(module, torch.full((1, *shape) if batched else shape, 0.5, dtype=dtype))
    names = ["x" + "_".join(map(str, index)) for index in np.ndindex(*shape)]
    builder = Builder(names, fuse=fuse)
    inputs = shaped((builder.input(i) for i in range(len(names))), (1, *shape) if batched else shape)
    result = Walk(program, inputs, Entries(builder), dtype, _definition(function)).read()
    result = result.reshape(result.shape[1:]) if batched else result
    with left_alone(function), _attention_in_the_open():
        _check_calls(function, shape, dtype, batched)
    made = builder.circuit(list(result.ravel()), shape, result.shape)
    return replace(made, output_shape=result.shape)


def _check_calls(function: Callable[..., Any], shape: tuple[int, ...], dtype: torch.dtype, batched: bool) -> None:
    """Refuses what is no function of its input."""
    fresh = _module(function, dtype)
    if fresh is not None:
        first, second = _inputs(shape, dtype)[:2].split(1) if batched else _inputs(shape, dtype)[:2]
        held = fresh if isinstance(function, nn.Module) else function
        check_steady(held, lambda x: attempt(fresh, x), (first, second), CLOSE[dtype])


@torch.no_grad()
def values(function: Callable[..., Any], shape: tuple[int, ...], points: Tensor) -> tuple[Tensor | None, float]:
    """What the callable itself gives at points (N, *shape), None if it does not run, and how exact that is."""
    with left_alone(function), _attention_in_the_open():
        module, dtype, batched = _prepared(function, shape)
        found = [attempt(module, x) for x in points.to(dtype).split(1)] if batched else [
            attempt(module, x) for x in points.to(dtype)
        ]  # fmt: skip
    made = [one.reshape(-1) for one in found if one is not None]
    return torch.stack(made) if len(made) == len(points) else None, COARSE[dtype]


@torch.no_grad()
def reading(function: Callable[..., Any], shape: tuple[int, ...]) -> tuple[str, ...]:
    """What must be said about batches: that only they, or only single inputs, give what was compiled.

    Of inputs with one dimension it is refused that a callable treats the two differently.
    """
    with left_alone(function), _attention_in_the_open():
        module, dtype, batched = _prepared(function, shape)
        inputs = _inputs(shape, dtype)
        together, alone = attempt(module, inputs), [attempt(module, x) for x in inputs]
    singles = [one for one in alone if one is not None]
    if together is None or len(singles) < BATCH or together.numel() != BATCH * singles[0].numel():
        return ()
    rows = torch.stack([one.reshape(-1) for one in singles])
    if torch.allclose(together.reshape(BATCH, -1), rows, rtol=CLOSE[dtype], atol=CLOSE[dtype], equal_nan=True):
        return ()
    if batched and len(shape) == 1:
        raise ExpressionError(
            f"The target gives other results for one input {shape} than for a batch ({BATCH}, {shape[0]}) that holds "
            "it, so that it is not clear which is meant; give a function that treats both alike, or takes one of them."
        )
    said, other = ("batches of inputs", "a single input") if batched else ("single inputs", "a batch of them")
    return (f"the target is what it computes for {said} of shape {shape}; {other} it treats differently",)


@torch.no_grad()
def trained_differently(function: Callable[..., Any], shape: tuple[int, ...]) -> bool:
    """Whether a module is in training mode and computes something else there than in evaluation mode."""
    if not (isinstance(function, nn.Module) and function.training):
        return False
    with left_alone(function), _attention_in_the_open():
        module, dtype, batched = _prepared(function, shape)
        inputs = _inputs(shape, dtype) if batched else _inputs(shape, dtype)[0]
        plain, trained = attempt(module, inputs), attempt(copy.deepcopy(module).train(), inputs)
    return plain is None or trained is None or not torch.equal(plain, trained)


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
        if isinstance(part, nn.RNNBase):
            return part.input_size
    return None


def _prepared(function: Callable[..., Any], shape: tuple[int, ...]) -> tuple[nn.Module, torch.dtype, bool]:
    """A module to export, a dtype in which it runs, and whether it maps batches; float64 unless only float32 runs."""
    made = []
    for dtype, close in CLOSE.items():
        module = _module(function, dtype)
        if module is not None:
            made.append((module, dtype))
            batched = _maps_batches(module, shape, dtype, close)
            if batched is not None:
                return module, dtype, batched
    return *made[0], False


def _module(function: Callable[..., Any], dtype: torch.dtype) -> nn.Module | None:
    """The callable in this dtype, if that does not round its numbers."""
    if isinstance(function, nn.Module):
        held = [*function.parameters(), *function.buffers()]
        wide = any(tensor.is_floating_point() and tensor.dtype == torch.float64 for tensor in held)
        return None if wide and dtype != torch.float64 else copy.deepcopy(function).to(dtype).eval()
    if isinstance(function, types.FunctionType):  # torch records the lines of functions that are called forward only
        named = types.FunctionType(
            function.__code__.replace(co_name="forward"),
            function.__globals__,
            function.__name__,
            function.__defaults__,
            function.__closure__,
        )
        named.__kwdefaults__ = function.__kwdefaults__
        function = named
    return _Wrapped(function).eval()


@contextmanager
def _attention_in_the_open() -> Iterator[None]:
    """torch's fast path for inference is one operation that hides the attention."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def _maps_batches(module: nn.Module, shape: tuple[int, ...], dtype: torch.dtype, close: float) -> bool | None:
    """Whether a batch gives what each of its inputs gives as a batch of one; None if the callable does not run."""
    inputs = _inputs(shape, dtype)
    together = attempt(module, inputs)
    alone = [found for found in (attempt(module, part) for part in inputs.split(1)) if found is not None]
    if together is None or len(alone) < BATCH:
        return None if attempt(module, inputs[0]) is None else False
    if any(one.shape != (1, *together.shape[1:]) for one in alone) or together.shape[:1] != (BATCH,):
        return False
    return torch.allclose(together, torch.cat(alone), rtol=close, atol=close, equal_nan=True)


def _inputs(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A batch of inputs on which it is seen what a callable does."""
    return torch.rand((BATCH, *shape), generator=torch.Generator().manual_seed(0), dtype=dtype) / 2 + 0.25


def _export(module: nn.Module, example: Tensor) -> Any:
    try:
        with _quiet():
            program = torch.export.export(module, (example,), strict=False)
            writes = any(node.op == "call_function" and writes_in_place(node) for node in program.graph.nodes)
            return _taken_apart(program.run_decompositions({}) if writes else program)
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
        reason = f"torch could not trace the target ({lines[0][:200]}){_raised(lines)}"
        raise ExpressionError(f"{reason}; {ADVICE}.") from error


def _raised(lines: list[str]) -> str:
    """The caller's line at which torch gave up, where its message names one."""
    found = [i for i, line in enumerate(lines) if line.startswith("The following call raised")]
    where = [line for i in found for line in lines[i + 1 : i + 3] if not line.startswith("The error above")]
    return " at " + " ".join(where).replace("File ", "").replace(", in forward", ":") if where else ""


def _taken_apart(program: Any) -> Any:
    """The program without operations that are not known, where torch can write them by others."""
    for _ in range(4):
        moving = depending(program)
        called = [node for node in moving if node.op == "call_function" and node.target is not operator.getitem]
        unknown = {node.target for node in called if name_of(node) not in OPERATIONS and name_of(node) not in WHOLE}
        table = torch.export.default_decompositions() if unknown else {}
        parts = {target: table[target] for target in unknown if target in table}
        if not parts:
            return program
        program = program.run_decompositions(parts)
    return program
