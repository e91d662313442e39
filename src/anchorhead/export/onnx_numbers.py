"""Numbers of an exported program: those in the graph become tensors, since float64 would lose digits in ONNX, and for
bfloat16 there is a word, since onnxruntime does not compute with it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn

from anchorhead.errors import InputError, PrecisionError

aten: Any = torch.ops.aten
BFLOAT16 = ("The model is bfloat16, in which onnxruntime has hardly an operation on a CPU: export model.float() or "
            "model.half() to have a file that runs there.")  # fmt: skip


def no_runtime(model: nn.Module) -> str:
    """What keeps onnxruntime from running a model's file, and what to do; empty if nothing is known."""
    return BFLOAT16 if any(t.dtype == torch.bfloat16 for t in (*model.parameters(), *model.buffers())) else ""


def difference(found: Tensor, wanted: Tensor) -> float:
    """The largest difference between what a file and its model return, relative to 1 + |wanted|."""
    if found.shape != wanted.shape:
        raise InputError(f"The file returns {tuple(found.shape)} where the model returns {tuple(wanted.shape)}.")
    a, b = found.double(), wanted.detach().cpu().double()
    lost = b.isfinite() & ~a.isfinite()
    if lost.any():
        raise PrecisionError(
            f"In onnxruntime {int(lost.sum())} of {lost.numel()} outputs are not finite where the model's are: the "
            f"file has the literal form, of which something overflows in {wanted.dtype}. Check it on smaller inputs, "
            "or export a model of a wider dtype."
        )
    apart = torch.where((a == b) | (a.isnan() & b.isnan()), 0.0, (a - b).abs() / (1 + b.abs()))
    return apart.nan_to_num(nan=math.inf, posinf=math.inf).max().item() if apart.numel() else 0.0


def stored_numbers(call: nn.Module, tensors: tuple[Tensor, ...], free: Any) -> fx.GraphModule:
    """The graph of a call with every number that a float32 does not hold as a tensor; attention and norms in parts."""
    table = torch.export.default_decompositions()
    table.update(torch._decomp.get_decompositions([aten.native_layer_norm, aten.native_group_norm]))
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        program = torch.export.export(call, tensors, dynamic_shapes=free, strict=False)
        module: Any = program.run_decompositions(table).module(check_guards=False)
    for node in list(module.graph.nodes):
        if node.op == "call_function":
            _store(module, node)
    module.recompile()
    return module


FILLED = {aten.full.default, aten.full_like.default, aten.scalar_tensor.default}


TENSOR_FORMS = {
    getattr(packet, overload): packet.Tensor
    for packet in (aten.add, aten.sub, aten.mul, aten.div, aten.eq, aten.ne, aten.lt, aten.le, aten.gt, aten.ge)
    for overload in ("Tensor", "Scalar")
} | {
    aten.clamp.default: aten.clamp.Tensor,
    aten.clamp_min.default: aten.clamp_min.Tensor,
    aten.clamp_max.default: aten.clamp_max.Tensor,
    aten.pow.Tensor_Scalar: aten.pow.Tensor_Tensor,
    aten.pow.Scalar: aten.pow.Tensor_Tensor,
}
"""Operations that take numbers, as they are with tensors."""


def _store(module: fx.GraphModule, node: fx.Node) -> None:
    """Gives an operation in float64 its numbers as tensors."""
    known = [node.meta.get("val"), *(n.meta.get("val") for n in node.all_input_nodes)]
    double = any(isinstance(v, Tensor) and v.dtype == torch.float64 for v in known)
    rounded = any(isinstance(a, float) and not math.isnan(a) and _float32(a) != a for a in node.args)
    target: Any = node.target
    if not (double and rounded and (target in FILLED or target in TENSOR_FORMS)):
        return
    with module.graph.inserting_before(node):
        args = [_buffer(module, a) if isinstance(a, int | float) else a for a in node.args]
        if target in FILLED:
            node.replace_all_uses_with(_filled(module.graph, node, args))
            module.graph.erase_node(node)
            return
    node.target, node.args = TENSOR_FORMS[target], tuple(args)


def _filled(graph: fx.Graph, node: fx.Node, args: Sequence[Any]) -> Any:
    """The number args[-1] in the node's shape."""
    if node.target is aten.scalar_tensor.default:
        return args[0]
    if node.target is aten.full_like.default:
        return graph.call_function(aten.expand_as.default, (args[1], args[0]))
    return graph.call_function(aten.expand.default, (args[1], args[0]))


def _buffer(module: fx.GraphModule, value: float) -> fx.Node:
    name = f"number_{len(list(module.buffers(recurse=False)))}"
    while hasattr(module, name):
        name += "_"
    module.register_buffer(name, torch.tensor(value, dtype=torch.float64))
    return module.graph.get_attr(name)


def _float32(value: float) -> float:
    with np.errstate(over="ignore"):
        return float(np.float32(value))
