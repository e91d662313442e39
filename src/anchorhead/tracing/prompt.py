"""A torch module or function of a prompt's tokens, read as a circuit: a set network, which treats all tokens alike.

torch records it for any number n of tokens, so that the record says of every tensor which of its axes is n. On the walk
a tensor of tokens is an array with one entry along that axis, what each token has. An operation that acts on every
token by itself does so on these entries, whatever n is; from all tokens to something else leads the mean alone, which
becomes a pool (`circuit/pool.py`). What could tell tokens apart, or count them, is refused with its place: sums, which
grow with n, and whatever picks, orders or mixes tokens or loses the axis.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from anchorhead.circuit.circuit import Circuit
from anchorhead.circuit.line import Line
from anchorhead.circuit.prompt import PromptBuilder
from anchorhead.errors import ExpressionError
from anchorhead.tracing import aten
from anchorhead.tracing.calling import as_module, attempt, called, definition, evaluation_mode, export, name_of
from anchorhead.tracing.elements import Array, Context, shaped
from anchorhead.tracing.module import TensorWalk
from anchorhead.tracing.operations import KNOWN

ADVICE = "write it with functions of every token by itself, and means over all tokens"
RESHAPES = frozenset("view _unsafe_view reshape flatten unflatten view_copy".split())
MOVES = RESHAPES | frozenset(
    """permute transpose t squeeze unsqueeze expand expand_as broadcast_to select slice narrow cat concat stack split
    split_with_sizes chunk unbind mT swapaxes movedim""".split()
)
BY_ITSELF = MOVES | aten.OPERATIONS.keys() | frozenset(
    """subtract rsub multiply divide true_divide maximum minimum linear matmul mm bmm addmm baddbmm layer_norm
    rms_norm""".split()
)  # fmt: skip
"""Operations that leave the axis of tokens alone, where their result has it."""
LENGTHS = (1, 2, 7)
"""Of prompts on which the circuit is compared with the target itself."""
CLOSE = 1e-6


class TokenFunction:
    """A callable that maps tokens (n, t), or batches (b, n, t), to one tensor, whatever n is."""

    def __init__(self, function: Callable[..., Any], names: tuple[str, ...]) -> None:
        self.function, self.names = function, names
        with called(function):
            self.module = as_module(function)
        self.batched = False

    @torch.no_grad()
    def circuit(self, fuse: bool = True) -> Circuit:
        """The circuit that it computes: of tokens as they are, or else of a batch of one prompt."""
        try:
            self.batched = False
            return self._circuit(fuse)
        except ExpressionError as refusal:
            self.batched = True
            try:
                return self._circuit(fuse)
            except ExpressionError:
                raise refusal from None

    def _circuit(self, fuse: bool) -> Circuit:
        axis = 1 if self.batched else 0
        example = self._prompt(torch.full((5, len(self.names)), 0.5, dtype=torch.float64))
        with called(self.function):
            any_length = ({axis: torch.export.Dim("n", min=2, max=1 << 30)},)
            shapes = any_length if isinstance(self.function, nn.Module) else (any_length,)
            program = export(self.module, (example,), ADVICE, KNOWN, shapes)
        builder = PromptBuilder(self.names, len(self.names), fuse=fuse)
        inputs = shaped((Line({wire: 1}) for wire in range(len(self.names))), (1,) * axis + (1, len(self.names)))
        walk = _Tokens(program, inputs, Context(builder), torch.float64, definition(self.function))
        result = walk.output()
        walk.require_pooled()
        return builder.circuit(list(result.ravel()), (len(self.names),), (result.size,))

    def _prompt(self, tokens: Tensor) -> Tensor:
        return tokens.unsqueeze(0) if self.batched else tokens

    def check(self, low: Tensor, high: Tensor, answer: Callable[[Tensor], Tensor]) -> tuple[str, ...]:
        """Compares the callable with what was read, `answer`, on prompts between these; what must be said of it."""
        draw = torch.Generator().manual_seed(0)
        for n in LENGTHS:
            tokens = low + (high - low) * torch.rand(n, len(low), generator=draw, dtype=torch.float64)
            with called(self.function):
                found = attempt(self.module, self._prompt(tokens))
            if found is None:
                continue  # it does not run on a prompt that short
            meant = answer(tokens)
            if not torch.allclose(found.reshape(-1).double(), meant, rtol=CLOSE, atol=CLOSE):
                raise ExpressionError(
                    f"What was read of the target is not what it gives for {n} tokens; {ADVICE}, so that every number "
                    "of tokens is treated alike."
                )
        return evaluation_mode(self.function, torch.float64, self._prompt(tokens))


class Length(int):
    """The number of tokens where a shape needs it: on the walk, one."""


class _Tokens(TensorWalk):
    """A walk on which tensors of tokens have one entry along the axis of tokens."""

    advice = ADVICE

    def __init__(self, program: Any, inputs: Array, context: Context, dtype: torch.dtype, place: str) -> None:
        super().__init__(program, inputs, context, dtype, place)
        [given] = [node for node in program.graph.nodes if node.name in program.graph_signature.user_inputs]
        [self.length] = [size.node.expr for size in given.meta["val"].shape if isinstance(size, torch.SymInt)]

    def operate(self, node: Any, given: dict[str, Any]) -> Any:
        name = name_of(node)
        if name == "sym_size":
            size = given["self"].shape[given["dim"]]
            return Length(size) if given["dim"] % given["self"].ndim in self._axes(node.args[0]) else size
        if any(map(_counts, given.values())) and name not in MOVES:
            raise ExpressionError("the number of tokens enters what is computed, and the target must not depend on it")
        sources = [source for source in node.all_input_nodes if self._axes(source)]
        if not sources:
            return super().operate(node, given)
        if name == "mean" and not given.get("dtype"):
            return self._mean(node, sources[0], given)
        if name not in BY_ITSELF:
            raise ExpressionError(f"torch's {name.strip('_')} may act on several tokens at once, and of all tokens "
                                  "only the mean is known")  # fmt: skip
        self._require_axis(node, sources, name)
        return super().operate(node, given)

    def _mean(self, node: Any, source: Any, given: dict[str, Any]) -> Any:
        """The mean over axes, that of the tokens by a pool."""
        array: Array = given["self"]
        dims = given.get("dim")
        axes = {k % array.ndim for k in (range(array.ndim) if dims in (None, []) else dims)}
        if set(self._axes(source)) <= axes:
            builder: Any = self.context.builder
            given = {**given, "self": shaped(map(builder.mean, self.context.operands(array.ravel())), array.shape)}
        return super().operate(node, given)

    def _axes(self, node: Any) -> list[int]:
        """The axes of a tensor along which its tokens lie."""
        value = getattr(node, "meta", {}).get("val")
        return self._axes_of(value) if isinstance(value, Tensor) else []

    def _axes_of(self, tensor: Tensor) -> list[int]:
        shape: list[Any] = list(tensor.shape)
        sizes = [(k, size.node.expr) for k, size in enumerate(shape) if isinstance(size, torch.SymInt)]
        if any(expr != self.length for _, expr in sizes) or len(sizes) > 1:
            raise ExpressionError("tokens are repeated, left out, paired or joined with their features")
        return [k for k, _ in sizes]

    def _require_axis(self, node: Any, sources: list[Any], name: str) -> None:
        """That every result has the axis of tokens, and a reshaped one as it was."""
        value = node.meta["val"]
        for part in value if isinstance(value, list | tuple) else [value]:
            axes = self._axes_of(part)
            if not axes:
                raise ExpressionError("single tokens are picked, or tokens are mixed; of all only the mean is known")
            if name in RESHAPES:
                before, [was] = sources[0].meta["val"].shape, self._axes(sources[0])
                if math.prod(before[:was]) != math.prod(part.shape[: axes[0]]):
                    raise ExpressionError("tokens are mixed with their features by a change of shape")

    def shape(self, tensor: Tensor) -> tuple[int, ...]:
        return tuple(1 if isinstance(size, torch.SymInt) else size for size in tensor.shape)

    def require_pooled(self) -> None:
        """That what is returned is one result for the whole prompt."""
        for result in self._results():
            if self._axes(result):
                raise ExpressionError(
                    f"The target returns something for every token{self.place}, and a function of a prompt has one "
                    f"answer; {ADVICE}, such as x.mean(-2) at the end."
                )


def _counts(value: Any) -> bool:
    return any(map(_counts, value)) if isinstance(value, list) else isinstance(value, Length)
