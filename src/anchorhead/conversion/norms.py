"""Which modules are norms, by what they compute: no name is believed.

A module without children, with at most a weight and a bias, whatever they are called, and a forward of one tensor, may
be one. A copy of it gets a weight and a bias that were drawn, and is run on drawn numbers x and -x, at scales where eps
matters and where it does not. What is even in x must be the bias; what is odd must be (x - mean, or x)·(mean square +
eps)^(-1/2), times the weight or one plus the weight, with an eps that the module holds, or a usual one. Whether it is
rounded before its weight is multiplied, a copy in bfloat16 shows. Whatever is none of these stays as it is, and is
named when the model runs.
"""

from __future__ import annotations

import copy
import inspect
import itertools
import math
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from anchorhead.model.norm import NormForm

WIDTH = 48
"""Of a norm that does not say how many numbers it takes."""
ANY = 1 << 14
"""The most numbers that one takes which does not say it."""
SCALES = (1.0, 40.0)
NEAR = 2e-6
LARGEST_EPS = 0.1
LAYER_NORM = ("input", "normalized_shape", "weight", "bias", "eps")
RMS_NORM = ("input", "normalized_shape", "weight", "eps")
CALLS: dict[Any, tuple[str, ...]] = {F.layer_norm: LAYER_NORM, torch.layer_norm: LAYER_NORM, F.rms_norm: RMS_NORM,
                                     torch.rms_norm: RMS_NORM}  # fmt: skip
"""Functions that are norms, and their arguments."""
NORM_NAMES = {"layer_norm", "rms_norm"}
SHIFTS = {"bias", "beta", "b", "b_2", "shift", "offset"}
"""What the bias of a norm is called."""
USUAL_EPS = (0.0, 1e-12, 1e-8, 1e-6, 1e-5)
"""For norms that do not hold theirs, but write it in their code."""
OF_CHANNELS = {nn.InstanceNorm1d: 1, nn.InstanceNorm2d: 2, nn.InstanceNorm3d: 3}
"""Norms of every channel by itself, and how many axes a channel has."""
ACROSS = (4, 3, 5)
"""Axes of what is normalised across channels: images, sequences, volumes."""
GROUPED = 1 << 18
"""The most numbers in a group of channels."""


class NormCall(NamedTuple):
    """A call of a norm in a traced forward: which, of how many numbers, and the nodes of its weight and bias."""

    form: NormForm
    width: int
    weight: fx.Node | None
    bias: fx.Node | None


def norm_call(node: fx.Node) -> NormCall | None:
    """What a node of a traced forward normalises, where that is constant; None for anything else."""
    names = CALLS.get(node.target) if node.op == "call_function" else None
    if names is None:
        return None
    given: dict[str, Any] = dict(zip(names, node.args, strict=False)) | node.kwargs
    shape, eps = given.get("normalized_shape"), given.get("eps", None if "bias" not in names else 1e-5)
    if not isinstance(shape, tuple | list) or not all(isinstance(n, int) for n in shape) or not isinstance(eps, float):
        return None
    form = NormForm("bias" in names, eps, axes=len(shape), rounds=True)
    return NormCall(form, math.prod(shape), given.get("weight"), given.get("bias"))


def norm_of(module: nn.Module) -> tuple[NormForm, int] | None:
    """Which norm a module is, and over how many numbers at most; None if it is none."""
    own = dict(module._parameters)
    held = any(buffer is not None for buffer in module._buffers.values())
    if module._modules or held or len(own) > 2 or not _takes_one(module):
        return None
    shape = _shape(module)
    if any(
        p is not None and (p.shape != shape or (p.dim() > 1 and not hasattr(module, "normalized_shape")))
        for p in own.values()
    ):
        return None
    bare = _bare(module)
    given = (
        getattr(module, "eps", 0.0) is not None
    )  # else that of the dtype in which torch computes: float32 for shorter
    dtype = torch.float64 if given or _dtype(module) == torch.float64 else torch.float32
    with torch.no_grad():
        form = next((f for f in _forms(module, shape, dtype) if _fits(f, bare.to(dtype), shape)), None)
        if form is None:
            return None
        form = _as_rounded(form, bare, shape)
    form = replace(form, biased=scale_and_shift(module)[1] is not None)
    sized = any(p is not None for p in own.values()) or hasattr(module, "normalized_shape")
    return form, GROUPED if form.groups or form.by_channel else shape.numel() if sized else ANY


def scale_and_shift(module: nn.Module) -> tuple[Any, Any]:
    """The weight and the bias of what may be a norm, by whatever name it has them; None for one that it has not."""
    weight, bias = (module._parameters.get(name) for name in names_of(module))
    return weight, bias


def names_of(module: nn.Module) -> tuple[str, str]:
    """What the weight and the bias of a norm are called."""
    own = list(module._parameters)
    shift = next((name for name in own if name in SHIFTS), own[1] if len(own) == 2 else "bias")
    return next((name for name in own if name != shift), "weight"), shift


def _takes_one(module: nn.Module) -> bool:
    """Whether its forward takes one argument, and no other."""
    try:
        return len(inspect.signature(module.forward).parameters) == 1
    except (TypeError, ValueError):
        return False


def _shape(module: nn.Module) -> torch.Size:
    """Of what is normalised together, or of the channels of a group norm."""
    weight: Any = next((p for p in module._parameters.values() if p is not None), None)
    given: Any = getattr(module, "normalized_shape", None)
    if weight is not None:
        return torch.Size(weight.shape)
    channels: Any = getattr(module, "num_channels", getattr(module, "num_features", None))
    if isinstance(channels, int):
        return torch.Size([channels])
    return torch.Size(given) if given is not None else torch.Size([WIDTH])


def _dtype(module: nn.Module) -> torch.dtype:
    return next((p.dtype for p in module.parameters() if p.is_floating_point()), torch.float32)


def _bare(module: nn.Module) -> Any:
    """A copy without hooks, with a weight and a bias that were drawn."""
    found = copy.deepcopy(module).eval()
    found._forward_hooks, found._forward_pre_hooks = OrderedDict(), OrderedDict()
    draw = torch.Generator().manual_seed(0)
    for name, held in found._parameters.items():
        if held is not None:
            found._parameters[name] = nn.Parameter(0.5 + torch.rand(held.shape, generator=draw), requires_grad=False)
    return found


def _forms(module: nn.Module, shape: torch.Size, dtype: torch.dtype) -> Iterator[NormForm]:
    """Every norm that it might be."""
    held = {v for v in vars(module).values() if isinstance(v, float) and 0 <= v <= LARGEST_EPS} | set(USUAL_EPS)
    if getattr(module, "eps", 0.0) is None:
        held = {torch.finfo(dtype).eps}
    groups = module.num_groups if isinstance(module, nn.GroupNorm) else 0
    spatial = next((n for kind, n in OF_CHANNELS.items() if isinstance(module, kind)), 0)
    acrosses = (0,) if groups or spatial or len(shape) > 1 else (0, *ACROSS)
    for across, eps, centred, shift in itertools.product(acrosses, sorted(held), (True, False), (0.0, 1.0)):
        if not (shift and scale_and_shift(module)[0] is None):
            yield NormForm(centred, eps, axes=spatial or len(shape), groups=groups, shift=shift, across=across,
                           by_channel=spatial > 0)  # fmt: skip


def _drawn(form: NormForm, shape: torch.Size, scale: float, dtype: torch.dtype) -> Tensor:
    draw = torch.Generator().manual_seed(1)
    size: tuple[int, ...] = (2, *shape, 3) if form.groups else (2, 3, *shape)
    size = (2, *shape, 3, *[2] * (form.across - 3)) if form.across else size
    size = (2, *shape, 5, *[3] * (form.axes - 1)) if form.by_channel else size
    return (scale * (0.7 + torch.randn(*size, generator=draw, dtype=torch.float64))).to(dtype)


def _computed(form: NormForm, module: nn.Module, x: Tensor) -> Tensor:
    """The norm with the module's weight and bias."""
    v = form.centre(form.rows(x))
    y = v * ((v * v).mean(-1, keepdim=True) + form.eps).rsqrt()
    weight, bias = (form.beside(part, x) for part in scale_and_shift(module))
    return form.back(form.scaled(y, weight, bias, x.dtype), x)


def _fits(form: NormForm, module: nn.Module, shape: torch.Size) -> bool:
    """Whether the module computes it, to what float32 can tell."""
    dtype = _dtype(module) if list(module.parameters()) else torch.float64
    for scale in (*SCALES, max(form.eps, 1e-16) ** 0.5):
        x = _drawn(form, shape, scale, dtype)
        for given in (x, -x):
            try:
                found, expected = module(given), _computed(form, module, given)
            except Exception:  # whatever a module does with numbers that are not its own
                return False
            if not isinstance(found, Tensor) or found.shape != expected.shape:
                return False
            if not torch.allclose(found.double(), expected.double(), rtol=NEAR, atol=NEAR):
                return False
    return True


def _as_rounded(form: NormForm, module: Any, shape: torch.Size) -> NormForm:
    """The norm with the rounding that the module has in bfloat16, where it can be told."""
    short, draws = module.to(torch.bfloat16), _drawn(form, shape, 1.0, torch.bfloat16)
    ways = [form, NormForm(**vars(form) | {"rounds": True})]
    found = short(draws)
    same = [int((_computed(way, short, draws) == found).sum()) for way in ways]
    return ways[1] if same[1] > same[0] else ways[0]
