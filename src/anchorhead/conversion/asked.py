"""What `ah.convert` is asked is looked at before anything is done."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from anchorhead.errors import DtypeError, InputError
from anchorhead.model.activation import Placed

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def check_flags(**flags: Any) -> None:
    """Switches are True or False."""
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise InputError(f"{name}={value!r:.60} is a switch; give True or False.")


def check_convertible(module: Any) -> None:
    """A module of Python, with its tensors in memory and in a dtype that heads have."""
    if not isinstance(module, nn.Module):
        raise InputError(f"convert takes a torch module, and got a {type(module).__name__}.")
    if any(isinstance(m, Placed) for m in module.modules()):
        raise InputError("This model is converted already; convert the original, with the tolerance that you want.")
    for name, part in module.named_modules():
        if isinstance(part, torch.jit.ScriptModule):
            raise InputError(
                f"{name or 'The model'} is scripted or traced by torch.jit, and has no forward of Python where heads "
                "could stand; convert the module that it was made of, and script the result."
            )
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
