"""Which modules and functions are pointwise nonlinearities, and what each computes, as a formula in x.

Names that torch and the transformers library use are known; any other elementwise module is traced
(`tracing/function.py`), so that a class nobody has heard of is read from what it does.
"""

from __future__ import annotations

import copy
import inspect
import re
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from anchorhead.errors import AnchorheadError, DiscontinuityError, ExpressionError
from anchorhead.expression.parse import parse
from anchorhead.tracing.function import trace

GELU_TANH = "gelu_tanh(x)"
BY_CLASS = {
    "GELUActivation": "gelu(x)",
    "NewGELUActivation": GELU_TANH,
    "GELUTanh": GELU_TANH,
    "PytorchGELUTanh": GELU_TANH,
    "AccurateGELUActivation": GELU_TANH,
    "FastGELUActivation": GELU_TANH,
    "SiLUActivation": "silu(x)",
    "MishActivation": "mish(x)",
    "QuickGELUActivation": "x*sigmoid(1.702*x)",
    "ReLUSquaredActivation": "relu(x)**2",
    "ReLU": "relu(x)",
    "SiLU": "silu(x)",
    "Mish": "mish(x)",
    "Tanh": "tanh(x)",
    "Sigmoid": "sigmoid(x)",
}
"""Classes of torch and of the transformers library; FastGELU rounds sqrt(2/pi) to ten digits, below float32."""

FUNCTIONS: dict[Callable[..., Any], str] = {
    F.gelu: "gelu", F.relu: "relu", torch.relu: "relu", F.silu: "silu", F.mish: "mish", F.elu: "elu", F.selu: "selu",
    F.celu: "celu", F.softplus: "softplus", F.leaky_relu: "leaky_relu", F.relu6: "relu6", F.hardswish: "hardswish",
    F.hardsigmoid: "hardsigmoid", F.hardtanh: "hardtanh", F.softsign: "softsign", F.tanhshrink: "tanhshrink",
    F.logsigmoid: "logsigmoid", torch.tanh: "tanh", F.tanh: "tanh", torch.sigmoid: "sigmoid", F.sigmoid: "sigmoid",
    F.softshrink: "softshrink", F.threshold: "threshold", torch.threshold: "threshold", torch.selu: "selu",
    torch.celu: "celu",
}  # fmt: skip
METHODS = {"relu": "relu", "tanh": "tanh", "sigmoid": "sigmoid"}
"""Methods of a tensor that are activations."""

MODULES = {name.lower(): name for name in nn.modules.activation.__all__}
READ_IF_PURE = (
    "a function of each number, and no activation that is known; pure=True reads it, and has a head for it if it is "
    "finite everywhere and nears straight lines on both sides"
)
JUMPS = "jumps, and heads are continuous, so that none is near it everywhere"

PASSIVE = (nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout)


def modules_for(names: Iterable[str]) -> str:
    """The modules that compute what activation functions of these names do."""
    return ", ".join(f"nn.{MODULES[name.replace('_', '')]}()" for name in sorted(names))


def is_activation(module: nn.Module) -> bool:
    """Whether a module is a pointwise nonlinearity: of torch.nn.modules.activation, or of an `activations` file."""
    where = type(module).__module__
    if isinstance(module, nn.MultiheadAttention | nn.Softmax | nn.LogSoftmax | nn.Softmax2d | nn.Softmin | nn.GLU):
        return False
    ours = where == "torch.nn.modules.activation" or where.endswith("transformers.activations")
    return ours and type(module).__name__ != "LinearActivation"


def is_elementwise(module: nn.Module) -> bool:
    """Whether a module of anybody else's, without parameters and parts, is a nonlinear function of every element that
    can be read."""
    return _bends(module) and formula_of(module) is not None


def why_not_elementwise(module: nn.Module) -> str | None:
    """Why such a module has no formula; None for what is no such module, and for what has one."""
    if not _bends(module, alone=True) or formula_of(module) is not None:
        return None
    try:
        trace(module)
    except ExpressionError as error:
        return f"{type(module).__name__} cannot be read as a function of each number{': ' * bool(error.why)}{error.why}"
    except AnchorheadError:
        pass
    return why_unread(module)


def _bends(module: nn.Module, *, alone: bool = False) -> bool:
    """Whether a module without parameters and parts is nonlinear in an argument of its shape; alone: and gives the same
    for every number by itself."""
    parts = [*module.parameters(), *module.buffers(), *module.children()]
    if parts or isinstance(module, PASSIVE) or type(module).__module__.startswith(("torch.", "anchorhead.")):
        return False
    try:
        if len(inspect.signature(module.forward).parameters) != 1:
            return False
        with torch.no_grad():
            x = torch.arange(-8.0, 8.0, dtype=torch.float64) * torch.tensor([[1.0], [64.0]])  # bends lie near or far
            y = module(x)
            one = module(x.reshape(-1, 1)).reshape(x.shape) if alone else y
        bent = isinstance(y, torch.Tensor) and y.shape == x.shape and bool((y.diff(n=2).abs() > 1e-6).any())
    except Exception:  # whatever a module does with numbers that are not its own
        return False
    return bent and torch.allclose(one, y, equal_nan=True)


def formula_of(module: nn.Module) -> str | None:
    """The formula of an activation module, or None where it is not an elementwise function."""
    if "forward" in vars(module) or any(True for _ in module.parameters()):
        return None
    known = BY_CLASS.get(type(module).__name__)
    if known is not None and is_activation(module):
        return known
    bare = copy.copy(module)
    bare._forward_hooks, bare._forward_pre_hooks = OrderedDict(), OrderedDict()  # which the head will have
    try:
        return _short(trace(bare).text[0])
    except AnchorheadError:
        return None


def why_unread(module: nn.Module) -> str:
    """Why a module that has no formula has none."""
    said = type(module).__name__
    if any(True for _ in module.parameters()):
        return f"{said} has parameters of its own, which would be constants of a head"
    try:
        trace(module)
    except DiscontinuityError:
        return f"{str(module).splitlines()[0]} {JUMPS}"
    except AnchorheadError:
        pass
    return f"{said} is not an elementwise function that can be read"


def _short(text: str) -> str:
    """Constants as they are written, 0.3, and not as a double of that name has it, 0.29999999999999998889776975...;
    they differ by less than torch's own rounding of a product with it."""
    return re.sub(r"\d+\.\d{17,}", lambda found: repr(float(found[0])), text)


def formula_of_call(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """The formula of a call of an activation function with constants beside its input, or None."""

    try:
        text = _short(trace(_called(target, args, kwargs)).text[0])
        parse(text)
        return text
    except AnchorheadError:
        return None


def why_unread_call(name: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Why a call that has no formula has none."""
    try:
        trace(_called(target, args, kwargs))
    except DiscontinuityError:
        return f"its forward calls {name}, which, with what it is given beside its argument, {JUMPS}"
    except AnchorheadError:
        pass
    return f"a call of {name} inside forward is not an elementwise function"


def _called(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[[torch.Tensor], torch.Tensor]:
    given = {k: v for k, v in kwargs.items() if k not in ("inplace", "training")}

    def called(x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = (
            getattr(x, target)(*args, **given) if isinstance(target, str) else target(x, *args, **given)
        )
        return found

    return called
