"""A torch module or function of one tensor, read as a circuit by torch.export; it is traced, never sampled.

torch records the operations, rewrites in-place ones as what they leave behind, and takes apart those that are not in
the table of `operations`. Walking the record, a tensor that depends on the input is an array of entries, one for each
number in it, and any other tensor is what torch computes for it, so that parameters are the exact numbers that they
are. The circuit is the function of real numbers that the callable stands for, without torch's rounding; its own
softmax attention stays attention. What jumps or is not known is refused with its place in the caller's source.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from anchorhead.circuit.circuit import Circuit
from anchorhead.circuit.line import Line
from anchorhead.circuit.lower import Builder
from anchorhead.errors import DiscontinuityError, ExpressionError
from anchorhead.tracing.aten import Comparison
from anchorhead.tracing.calling import (
    as_module,
    attempt,
    called,
    check_calls,
    definition,
    evaluation_mode,
    export,
    name_of,
)
from anchorhead.tracing.elements import Array, Context, shaped
from anchorhead.tracing.operations import KNOWN, OPERATIONS
from anchorhead.tracing.walk import Walk

BATCH = 129
"""Inputs in the batch on which it is seen whether a callable maps batches."""
CLOSE = {torch.float64: 1e-9, torch.float32: 1e-4}
COARSE = {torch.float64: 1e-6, torch.float32: 1e-3}
ADVICE = "write that part with linear maps, activations, products, sums, norms, maxima and softmax"


WIDTHS: dict[type[nn.Module], Callable[[Any], int]] = {
    nn.Linear: lambda layer: layer.in_features,
    nn.LayerNorm: lambda layer: layer.normalized_shape[-1],
    nn.RMSNorm: lambda layer: layer.normalized_shape[-1],
    nn.MultiheadAttention: lambda layer: layer.embed_dim,
    nn.BatchNorm1d: lambda layer: layer.num_features,
    nn.RNNBase: lambda layer: layer.input_size,
}
"""The number of features that layers take."""


class TensorFunction:
    """A callable that maps one tensor of a shape, or batches of them, to one tensor.

    Its dtype is float64 unless it runs in float32 only; `runs` says whether it takes that shape at all.
    """

    def __init__(self, function: Callable[..., Any], shape: tuple[int, ...]) -> None:
        self.function, self.shape = function, shape
        with called(function):
            for dtype in _dtypes(function):
                self.dtype, self.module = dtype, as_module(function, dtype)
                batched = self._maps_batches()
                if batched is not None:
                    break
            else:
                self.dtype, self.module = torch.float64, as_module(function)
        self.batched, self.runs = bool(batched), batched is not None

    @torch.no_grad()
    def circuit(self, fuse: bool = True) -> Circuit:
        """The circuit that it computes."""
        shape = (1, *self.shape) if self.batched else self.shape
        with called(self.function):
            program = export(self.module, (torch.full(shape, 0.5, dtype=self.dtype),), ADVICE, KNOWN)
        names = ["x" + "_".join(map(str, index)) for index in np.ndindex(*self.shape)]
        builder = Builder(names, fuse=fuse)
        inputs = shaped((Line({wire: 1}) for wire in range(len(names))), shape)
        result = TensorWalk(program, inputs, Context(builder), self.dtype, definition(self.function)).output()
        with called(self.function):
            first, second = self._inputs()[:2].split(1) if self.batched else self._inputs()[:2]
            fresh = as_module(self.function, self.dtype)
            check_calls(self.function, fresh, ((first,), (second,)), CLOSE[self.dtype])
        return builder.circuit(list(result.ravel()), self.shape, result.shape[1:] if self.batched else result.shape)

    def values(self, points: Tensor) -> tuple[Tensor | None, float]:
        """What the callable itself gives at points (N, *shape), None if it does not run, and how exact that is."""
        with called(self.function):
            given = points.to(self.dtype)
            found = [attempt(self.module, x) for x in (given.split(1) if self.batched else given)]
        made = [one.reshape(-1) for one in found if one is not None]
        return torch.stack(made) if len(made) == len(points) else None, COARSE[self.dtype]

    def assumptions(self) -> tuple[str, ...]:
        """What must be said about modes and batches: that only some of them give what was compiled.

        Of inputs with one dimension it is refused that a callable treats one and a batch differently.
        """
        inputs = self._inputs()
        said = evaluation_mode(self.function, self.dtype, inputs if self.batched else inputs[0])
        with called(self.function):
            together, alone = attempt(self.module, inputs), [attempt(self.module, x) for x in inputs]
        singles = [one for one in alone if one is not None]
        if together is None or len(singles) < BATCH or together.numel() != BATCH * singles[0].numel():
            return said
        if self._close(together.reshape(BATCH, -1), torch.stack([one.reshape(-1) for one in singles])):
            return said
        if self.batched and len(self.shape) == 1:
            raise ExpressionError(
                f"The target gives other results for one input {self.shape} than for a batch ({BATCH}, "
                f"{self.shape[0]}) that holds it, so that it is not clear which is meant; give a function that treats "
                "both alike, or takes one of them."
            )
        meant, other = ("batches of inputs", "a single input") if self.batched else ("single inputs", "a batch of them")
        return *said, f"the target is what it computes for {meant} of shape {self.shape}; {other} it treats differently"

    def _maps_batches(self) -> bool | None:
        """Whether a batch gives what each of its inputs gives as a batch of one; None if the callable does not run."""
        inputs = self._inputs()
        together = attempt(self.module, inputs)
        alone = [found for found in (attempt(self.module, part) for part in inputs.split(1)) if found is not None]
        if together is None or len(alone) < BATCH:
            return None if attempt(self.module, inputs[0]) is None else False
        if any(one.shape != (1, *together.shape[1:]) for one in alone) or together.shape[:1] != (BATCH,):
            return False
        return self._close(together, torch.cat(alone))

    def _inputs(self) -> Tensor:
        """A batch of inputs on which it is seen what a callable does."""
        draw = torch.Generator().manual_seed(0)
        return torch.rand((BATCH, *self.shape), generator=draw, dtype=self.dtype) / 2 + 0.25

    def _close(self, one: Tensor, other: Tensor) -> bool:
        return torch.allclose(one, other, rtol=CLOSE[self.dtype], atol=CLOSE[self.dtype], equal_nan=True)


def _dtypes(function: Callable[..., Any]) -> list[torch.dtype]:
    """Those that do not round the numbers of a module."""
    held = [*function.parameters(), *function.buffers()] if isinstance(function, nn.Module) else []
    return [torch.float64] if any(tensor.dtype == torch.float64 for tensor in held) else list(CLOSE)


def infer_width(module: nn.Module) -> int | None:
    """The number of features that a module's first layer with a fixed number of them takes, if there is one."""
    for part in module.modules():
        for kind, width in WIDTHS.items():
            if isinstance(part, kind):
                return width(part)
    return None


class TensorWalk(Walk):
    """A walk whose values are arrays of entries where they depend on the input, and torch's own tensors elsewhere."""

    result = "a circuit"
    advice = ADVICE

    def __init__(self, program: Any, inputs: Array, context: Context, dtype: torch.dtype, place: str) -> None:
        super().__init__(program, [inputs], place)
        self.context = context
        self.dtype = dtype

    def output(self) -> Array:
        """The entries of the one tensor that is returned, worked out."""
        (node, value), *others = self.read()
        if others:
            raise ExpressionError(
                f"The target returns {1 + len(others)} values{self.place}, and a circuit has one output tensor; return "
                "one tensor, for example by torch.cat or by choosing one of them."
            )
        self.context.label = "output"
        array = self.context.array(value)
        if any(isinstance(entry, Comparison) for entry in array.ravel()):
            raise DiscontinuityError("The target returns a comparison, which jumps; return a continuous function.")
        try:
            return shaped(self.context.operands(array.ravel()), array.shape)
        except ExpressionError as error:
            raise self.refused(node, str(error).rstrip("."), type(error)) from None

    def stored(self, tensor: Any) -> Any:
        return tensor

    def operate(self, node: Any, given: dict[str, Any]) -> Any:
        name, path = name_of(node), self.path(node)
        self.context.label = f"{path}: {name.strip('_')}" if path else name.strip("_")
        self.context.target = node.target
        if not any(map(_moves, given.values())):
            return _constant(self.context, name, given)
        if name not in OPERATIONS:
            raise ExpressionError(f"torch's {name.strip('_')} is not an operation that is known")
        found = OPERATIONS[name](self.context, given)
        self._check(node, found)
        return found

    def shape(self, tensor: Tensor) -> tuple[int, ...]:
        """The shape of the array of entries that a tensor of torch's becomes."""
        return tuple(tensor.shape)

    def _check(self, node: Any, found: Any) -> None:
        """That the result has torch's shape, and is not rounded to another dtype than the input's."""
        expected = node.meta.get("val")
        if not (isinstance(expected, Tensor) and isinstance(found, np.ndarray)):
            return
        dtype = expected.dtype
        if found.shape != self.shape(expected) or dtype.is_complex:
            raise ValueError("another shape than torch's")
        compared = dtype == torch.bool  # looked at where it is used
        if not compared and not (dtype.is_floating_point and torch.finfo(dtype).eps <= torch.finfo(self.dtype).eps):
            raise DiscontinuityError(f"a conversion to {dtype} rounds, so it jumps")


def _moves(value: Any) -> bool:
    """Whether a value depends on the input."""
    return any(map(_moves, value)) if isinstance(value, list) else isinstance(value, np.ndarray)


def _constant(context: Context, name: str, given: dict[str, Any]) -> Any:
    known = name.endswith("dropout") and given.get("train") is False
    if torch.Tag.nondeterministic_seeded in getattr(context.target, "tags", ()) and not known:
        raise ExpressionError(f"torch's {name} is random")
    made = context.call(given)
    return torch.zeros_like(made) if name.startswith("empty") else made
