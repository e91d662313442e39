"""A converted model is tried out: watched while it runs, and compared with its original on the same inputs.

How far apart may they be? The heads' proofs bound what each head may add to each number that it returns: its error,
the rounding of its evaluation, and that of the model's dtype. How far such additions move the outputs is measured: the
converted model runs once more with additions of just that size and of random sign. To first order an output moves by
sum_j s_j e_j for additions e_j = ±r_j, whose root mean square over the signs is (sum_j s_j² r_j²)^(1/2); any additions
|e_j| <= r_j move it by sum_j |s_j| r_j at most, by Cauchy and Schwarz the square root of their number N times as much.
`MARGIN` sqrt(N) times what was measured, and the roundings of the outputs themselves, is what the difference may be.
What is beyond that, and as far from what the original computes in float64, since that may round more than heads do, is
not the heads' proved error but a mistake of the conversion, or an argument outside the interval of a head, and is an
error.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from anchorhead.conversion.activations import PASSIVE
from anchorhead.conversion.configured import configured, functions_named
from anchorhead.conversion.inputs import example, run, tried
from anchorhead.conversion.makeup import dtypes
from anchorhead.conversion.report import ConversionReport
from anchorhead.conversion.rows import some
from anchorhead.conversion.states import Event, storage_of, tensors_in
from anchorhead.conversion.watch import Watched, watch_twice
from anchorhead.digits import Up
from anchorhead.errors import ConversionError, InputError
from anchorhead.model.activation import Placed
from anchorhead.model.fused import unfused
from anchorhead.proof.composed import Bound

MARGIN = 4
ROUNDINGS = 64
WRITES = "its forward writes to its own parameters, which watching must not change"
NONE_KNOWN = "No inputs are known that this model takes; give some: report.watch(inputs)."


def try_out(original: nn.Module, converted: nn.Module, inputs: Any, report: ConversionReport) -> set[tuple[str, str]]:
    """Completes the report by a run of the model, and returns which guessed layers were seen to follow which place."""
    given = inputs is not None
    with torch.compiler.set_stance("force_eager"), _Untouched(original) as guard:
        compute = lambda item: _outputs(original, item)
        found = (inputs, compute(inputs)) if given else example(original, compute)
    if found is None:
        report.unwatched = WRITES if guard.refused else report.unwatched
        return set()
    (item, expected), twin = found, _twin(converted)
    if not any(bool(t.isfinite().any()) for t in expected if t.numel() and _is_real(t)):
        report.unwatched = f"on {_described(item)} it returns no tensor with a finite number"
        return set()
    _watched(converted, twin, item, report)
    returned = _outputs(converted, item)
    report.inputs, report.item = _described(item), _fresh(item)
    fed = _take_what_ran(converted, item)
    report.outside = [place.place for place in twin.report.places if place.module.outside_count]
    pairs = _apart(expected, returned, converted)
    report.difference, report.size = (max(column, default=0.0) for column in zip(*pairs, strict=True))
    allowed = _allowed(converted, item, returned)
    wrong = _beyond(pairs, allowed)
    if wrong and (exact := _in_float64(original, item)):
        wrong = wrong if _beyond(_apart(exact, returned, converted), allowed) else []
    for difference, most in wrong[:1]:
        left = f" Arguments left the intervals of {some(report.outside)}." if report.outside else ""
        raise ConversionError(
            f"The converted model differs from the original by {difference:.3g} on {report.inputs}, where the "
            f"proved errors of its heads explain {Up(most):.2g}.{left} Give inputs= like those that the model is "
            "for; else its forward does something that conversion misunderstands."
        )
    return fed


def _beyond(pairs: list[tuple[float, float]], allowed: list[float]) -> list[tuple[float, float]]:
    """The differences of outputs that are larger than allowed, with that."""
    return [(far, most) for (far, _), most in zip(pairs, allowed, strict=True) if not far <= most]


def _in_float64(original: nn.Module, item: Any) -> list[Tensor]:
    """What the original computes with float64 numbers and inputs, from which it may round further than heads do;
    nothing where it does not run so."""
    try:
        twin = copy.deepcopy(original).double()
        return _outputs(twin, _each(item, lambda t: t.double() if t.is_floating_point() else t))
    except Exception:  # whatever a model does in a dtype that is not its own
        return []


def watch_again(report: ConversionReport, inputs: Any) -> None:
    """Watches the model of a report as it is now; it must be made of what it was, and compute attention by any of the
    functions that the library has for that."""
    model = report.model
    if model is None or report.changed:
        why = "This report is of no model" if model is None else f"The model was changed ({report.changed[0]})"
        raise InputError(f"{why}, so that there is nothing to watch; convert the original again.")
    item = report.item if inputs is None else inputs
    with _Untouched(model) as guard:
        found = (item, None) if item is not None else example(model, lambda item: _outputs(model, item))
        if found is None:
            why = f"The model was not watched, since {WRITES}." if guard.refused else NONE_KNOWN
            raise InputError(why)
        item = _where(found[0], model)
        _outputs(model, item)  # inputs that it does not take are named
    before = report.unwatched
    _watched(model, _twin(model), item, report)
    if report.unwatched:
        why, report.unwatched = report.unwatched, before
        raise InputError(f"The model was not watched, since {why}.")
    report.computed_by, report.dtypes = functions_named(configured(model)), dtypes(model)
    report.item, said = _fresh(item), _described(item)
    report.seen_on = "" if said == report.inputs else said


def _where(item: Any, model: nn.Module) -> Any:
    """The same inputs on the device where the model is now, and those of a floating dtype in its dtype."""
    first = next((p for p in model.parameters() if p.is_floating_point()), None)
    if first is None:
        return item
    device, dtype = first.device, first.dtype
    return _each(item, lambda t: t.to(device, dtype if t.is_floating_point() else t.dtype))


def _each(item: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Inputs with each of their tensors changed."""
    if isinstance(item, Tensor):
        return change(item)
    if isinstance(item, Mapping):
        return {name: _each(value, change) for name, value in item.items()}
    return type(item)(_each(part, change) for part in item) if type(item) in (list, tuple) else item


def _watched(model: nn.Module, twin: nn.Module, item: Any, report: ConversionReport) -> None:
    """Puts what is seen while the model runs into the report, or why it cannot be watched."""
    try:
        with _same_numbers():
            seen = watch_twice(lambda: _twin(model), twin, run, lambda: _fresh(item))
    except Exception as error:  # what torch does not do while it is watched; if it is the model's, it fails again
        report.unwatched = f"it does not run while it is watched ({type(error).__name__}: {str(error)[:200]})"
        return
    report.unwatched = ""
    report.remaining, report.attention, report.idle = _rows(seen), seen.attention, _idle(twin, seen)


def _twin(model: nn.Module) -> Any:
    """A copy to run, with the same parameters, so that whatever a forward changes stays in it."""
    memo: dict[int, Any] = {id(p): p for p in model.parameters()}
    twin = copy.deepcopy(model, memo).eval()
    if "report" in vars(model):  # which copies of some modules, as of torch.fx, do not have
        vars(twin)["report"] = copy.deepcopy(vars(model)["report"], memo)
    for module in twin.modules():
        if isinstance(module, Placed):
            module.__dict__["_outside"] = "warn"  # it counts
    return twin


def _outputs(model: nn.Module, item: Any) -> list[Tensor]:
    """All tensors that a model returns, or rather a copy of it, and those of a second run, which a state may change."""
    twin = _twin(model)
    with _same_numbers():
        return [t for _ in range(2) for t in tensors_in(tried(twin, _fresh(item), "input"))]


class _Untouched(TorchDispatchMode):
    """Copies share the model's parameters, so a forward that writes to its own is refused before it does."""

    supports_higher_order_operators = True

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.own, self.refused = {storage_of(p)[0] for p in model.parameters()}, False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        schema = getattr(func, "_schema", None)
        for argument, value in zip(schema.arguments if schema else (), args, strict=False):
            written = argument.alias_info and argument.alias_info.is_write
            if written and any(storage_of(t)[0] in self.own for t in tensors_in(value)):
                self.refused = True
                raise InputError(
                    f"The model cannot be watched, since {WRITES}; keep in buffers what a forward changes."
                )
        return func(*args, **(kwargs or {}))


@contextmanager
def _same_numbers() -> Iterator[None]:
    """Without gradients, kernels of heads and warnings, and with the same random numbers every time."""
    with torch.no_grad(), unfused(), torch.random.fork_rng(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        yield


def _fresh(item: Any) -> Any:
    """The same inputs again, since a forward may change them."""
    if isinstance(item, Tensor):
        return item.detach().clone()
    if isinstance(item, Mapping):
        return {name: _fresh(value) for name, value in item.items()}
    if type(item) in (list, tuple):
        return type(item)(map(_fresh, item))
    return copy.deepcopy(item) if tensors_in(item) else item


def _is_real(t: Tensor) -> bool:
    return t.is_floating_point() or t.is_complex()


def _apart(first: list[Tensor], second: list[Tensor], model: nn.Module) -> list[tuple[float, float]]:
    """For each output the largest difference, infinite where only one of two is a number, and the largest entry."""
    if [t.shape for t in first] != [t.shape for t in second]:
        raise ConversionError(
            f"The converted {type(model).__name__} returns tensors of other shapes than the original; its forward does "
            "something that conversion does not understand."
        )
    found = []
    for a, b in zip(first, second, strict=True):
        far = size = 0.0
        if a.numel() and _is_real(a):
            x, y = (
                torch.view_as_real(t).double().flatten() if t.is_complex() else t.double().flatten() for t in (a, b)
            )
            far, size = float(apart(x, y).max()), float(x.nan_to_num(0.0, 0.0, 0.0).abs().max())
        found.append((far, size))
    return found


def apart(a: Tensor, b: Tensor) -> Tensor:
    """How far numbers are from each other, infinitely where only one of two is a number."""
    return torch.where((a == b) | (a.isnan() & b.isnan()), 0.0, (a - b).abs()).nan_to_num(nan=math.inf, posinf=math.inf)


def _take_what_ran(model: Any, item: Any) -> set[tuple[str, str]]:
    """Claims at every place are of the dtype that was seen there, of arguments or results, the shortest where there
    were several; a model that mixes dtypes has others there than its parameters near by. Returns places with layers
    that took what they made, of those that were guessed to do so."""
    twin, seen, made, fed = _twin(model), dict[str, list[torch.dtype]](), dict[int, str](), set[tuple[str, str]]()
    kept = []  # so that no other tensor gets their memory

    def note(place: str, args: tuple[Any, ...], out: Any) -> None:
        seen.setdefault(place, []).extend(t.dtype for t in tensors_in((args, out)) if t.is_floating_point())
        if isinstance(out, Tensor) and out.is_floating_point():
            name, held = storage_of(out)
            made[name] = place
            kept.append(held)

    def take(path: str, args: tuple[Any, ...]) -> None:
        fed.update((made[name], path) for t in tensors_in(args) if (name := storage_of(t)[0]) in made)

    for place in twin.report.places:
        place.module.register_forward_hook(lambda m, a, out, place=place.place: note(place, a, out))
        for path, layer in place.near.feeds if place.near.guessed else ():
            layer.register_forward_pre_hook(lambda m, args, path=path: take(path, args))
    with _same_numbers():
        run(twin, _fresh(item))
    for place in model.report.places:
        if found := seen.get(place.place):
            place.module.seen_in(max(found, key=lambda dtype: torch.finfo(dtype).eps))
    return fed


def _allowed(model: nn.Module, item: Any, plain: list[Tensor]) -> list[float]:
    """What the proved errors explain of each output, as the top of this file says."""
    twin, count = _twin(model), [0]
    draw = np.random.default_rng(1)

    def signs(like: Tensor) -> Tensor:
        """One for every number, also of tensors that torch.func batches, where torch draws none."""
        functorch = torch._C._functorch
        if functorch.is_functorch_wrapped_tensor(like):
            found = signs(functorch.get_unwrapped(like))
            dim = functorch.maybe_get_bdim(like)
            return found if dim < 0 else functorch._add_batch_dim(found, dim, functorch.maybe_get_level(like))
        count[0] += like.numel()
        return torch.as_tensor(draw.integers(0, 2, tuple(like.shape)) * 2 - 1).to(like.device, like.dtype)

    def disturb(row: Bound, head: Any, args: tuple[Any, ...], out: Tensor) -> Tensor:
        u, v = head.arguments(*args)
        own = row.relative + torch.finfo(out.dtype).eps
        room = (row.error + row.rounding * (1 + u.abs())) * v.abs() + own * head.carried(out) + row.least
        moved = out + room * signs(out)
        return out.copy_(moved) if getattr(head, "in_place", False) else moved

    for place in twin.report.places:
        place.module.register_forward_hook(lambda m, a, out, row=place.module.bound: disturb(row, m, a, out))
    with _same_numbers():
        disturbed = [t for _ in range(2) for t in tensors_in(run(twin, _fresh(item)))]
    pairs = _apart(plain, disturbed, model)
    digits = max((torch.finfo(t.dtype).eps for t in plain if _is_real(t)), default=0.0)
    return [MARGIN * math.sqrt(count[0]) * moved + ROUNDINGS * digits * size for moved, size in pairs]


def _rows(seen: Watched) -> list[tuple[str, str]]:
    """One row a module: what is nonlinear in it, with the lines."""
    by_place: dict[tuple[str, str], list[Event]] = {}
    for event in seen.left:
        by_place.setdefault((event.place, event.module), []).append(event)
    return [(place, f"{kind} ({', '.join(map(str, events))})") for (place, kind), events in by_place.items()]


def _idle(model: Any, seen: Watched) -> list[str]:
    """Modules of which nothing ran, each with all that it holds, heads by their place; parts of torch's attention run
    without a call, and heads for other places, which share them."""
    found: list[str] = []
    places = {id(place.module): place.place for place in model.report.places}
    parts_of_heads = {id(p) for m in model.modules() if isinstance(m, Placed) for p in m.modules() if p is not m}
    ran = seen.ran - parts_of_heads
    for name, module in model.named_modules():
        if isinstance(module, PASSIVE) or any(id(m) in ran for m in module.modules()):
            continue
        parts = name.split(".")
        around = (model.get_submodule(".".join(parts[:i])) for i in range(len(parts)))
        inside = any(isinstance(m, Placed | nn.MultiheadAttention) for m in around)
        if not inside and not any(name.startswith(f"{other}.") for other in found):
            found.append(places.get(id(module), name))
    return found


def _described(item: Any) -> str:
    """input_ids (2, 12), or the shapes of what is given by position."""
    named = item.items() if isinstance(item, Mapping) else enumerate(item if isinstance(item, tuple | list) else [item])
    shapes = [(name, tuple(v.shape)) for name, v in named if isinstance(v, Tensor)]
    return (
        ", ".join(f"{name} {shape}" if isinstance(name, str) else f"{shape}" for name, shape in shapes) or "its inputs"
    )
