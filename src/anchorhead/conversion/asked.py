"""What `ah.convert` is asked is looked at before anything is done."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from anchorhead.errors import DtypeError, InputError
from anchorhead.model.activation import Placed
from anchorhead.model.compiled import CompiledModel

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def check_flags(**flags: Any) -> None:
    """Switches are True or False."""
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise InputError(f"{name}={value!r:.60} is a switch; give True or False.")


def check_convertible(module: Any) -> None:
    """A module of Python, with its tensors in memory and in a dtype that heads have."""
    if not isinstance(module, nn.Module):
        kind = isinstance(module, type)
        got = f"the class {module.__name__}; give an instance of it" if kind else f"a {type(module).__name__}"
        raise InputError(f"convert takes a torch module, and got {got}.")
    if isinstance(getattr(type(module), "report", None), property):
        what = (
            "is attention already, with a report of its own; convert takes the original"
            if isinstance(module, CompiledModel)
            else "has a property of the name report, where conversion puts its own; rename it"
        )
        raise InputError(f"A {type(module).__name__} {what}.")
    if any(isinstance(m, Placed) for m in module.modules()):
        raise InputError("This model is converted already; convert the original, with the tolerance that you want.")
    for name, part in module.named_modules():
        if isinstance(part, torch.jit.ScriptModule):
            raise InputError(
                f"{name or 'The model'} is scripted or traced by torch.jit, and has no forward of Python where heads "
                "could stand; convert the module that it was made of, and use torch.jit.trace on the result."
            )
    for name, value in _attributes(module):
        if _circular(value, set(), set()):
            raise InputError(f"{name} contains itself, so that what it holds has no end; keep it apart from the model.")
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if isinstance(tensor, nn.UninitializedParameter | nn.UninitializedBuffer):
            raise InputError(
                f"{name} has no shape yet, as in nn.LazyLinear before its first call; run the model once on an input, "
                "and convert it then."
            )
        if tensor.is_meta:
            raise InputError(
                f"{name} is on the meta device and has no numbers; load the weights, or use to_empty(device='cpu') and "
                "initialise them, and convert the model then."
            )
        if tensor.is_floating_point() and tensor.dtype not in DTYPES:
            raise DtypeError(
                f"{name} is {str(tensor.dtype).removeprefix('torch.')}, in which torch computes nothing; convert the "
                "model in bfloat16, float16, float32 or float64."
            )


def copied(module: nn.Module) -> nn.Module:
    """A copy; what cannot be copied is named."""
    try:
        return copy.deepcopy(module)
    except Exception as error:  # whatever an attribute makes of that
        why = f"{type(error).__name__}: {error}"
        for name, value in _attributes(module):
            if not isinstance(value, nn.Module) and not _copies(value):
                raise InputError(
                    f"{name} cannot be copied ({why}), and conversion changes a copy of the model; keep it apart from "
                    "the model, or give its class a __deepcopy__."
                ) from error
        raise InputError(f"The model cannot be copied ({why}), and conversion changes a copy of it.") from error


def _copies(value: Any) -> bool:
    try:
        copy.deepcopy(value)
    except Exception:  # as above
        return False
    return True


def _attributes(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """All attributes by path, but for what torch registers."""
    for path, part in module.named_modules():
        own = ((name, value) for name, value in vars(part).items() if name != "_modules")
        yield from ((f"{path}.{name}" if path else name, value) for name, value in own)


def _circular(value: Any, above: set[int], done: set[int]) -> bool:
    """Whether a container holds itself; above: those that hold this one, done: those that were looked at."""
    if isinstance(value, Mapping):
        parts: Any = value.values()
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = [getattr(value, part.name, None) for part in dataclasses.fields(value)]
    elif isinstance(value, list | tuple):
        parts = value
    else:
        return False
    if id(value) in above:
        return True
    if id(value) in done:
        return False
    done.add(id(value))
    above.add(id(value))
    found = any(_circular(part, above, done) for part in parts)
    above.discard(id(value))
    return found
