"""A function that cannot be looked into: what it takes, and its values at any points of a box.

It may be called with a batch of points, with one number for each variable, or with a point at a time; which of them it
means is found out by trying, in that order, and checked: a batch must give what its points give one by one. Of one
point a number and an array of one number say the same. A module is called in evaluation mode, as a copy; what is
changed by being called is refused.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from anchorhead.arithmetic import Array
from anchorhead.errors import AnchorheadError, ExpressionError, InputError, ShapeError
from anchorhead.expression.domain import Pair, read_box
from anchorhead.tracing.steadiness import check_steady, left_alone

MOST_VARIABLES = 4
CLOSE = 1e-9


@dataclass(frozen=True)
class Opaque:
    """A callable on a box. `values` maps points (N, m) to (N, q)."""

    name: str
    box: tuple[Pair, ...]
    values: Callable[[Array], Array]
    input_shape: tuple[int, ...]
    output_shape: tuple[int, ...]


def read_opaque(
    function: Callable[..., Any], domain: Any, names: tuple[str, ...], shape: tuple[int, ...] | None
) -> Opaque:
    """The callable with its box; refused where it has too many variables, or gives no finite numbers."""
    several = len(names) > 1
    shape = (len(names),) if several or shape is None else shape
    count = math.prod(shape)
    if count > MOST_VARIABLES:
        raise InputError(
            f"An opaque function of {count} variables would need a grid of keys in all of them, p^{count}; at most "
            f"{MOST_VARIABLES} are possible. Give a formula or a torch module, whose structure can be used."
        )
    box = read_box(domain, names if several else [f"x{i}" for i in range(count)])
    if any(low == high for low, high in box):
        raise InputError("An opaque function needs a box with sides of positive length; fix that variable inside it.")
    if isinstance(function, nn.Module):
        function = copy.deepcopy(function).eval()
    with left_alone(function):
        call = _calling(function, several, shape, box)
        first = call(_middle(box))
    label = getattr(function, "__name__", type(function).__name__)

    def values(points: Array) -> Array:
        with left_alone(function):
            return _checked(call, points)

    return Opaque(label, box, values, shape, tuple(first.shape[1:]) or (1,))


def _middle(box: tuple[Pair, ...]) -> Array:
    """A few points inside the box, none of them special."""
    shares = np.array([[0.5, 0.31, 0.77, 0.13][: len(box)], [0.29, 0.83, 0.41, 0.6][: len(box)], [0.71] * len(box)])
    low, high = np.array(box).T
    return np.asarray(low + shares * (high - low))


def _calling(
    function: Callable[..., Any], several: bool, shape: tuple[int, ...], box: tuple[Pair, ...]
) -> Callable[[Array], Array]:
    """The way of calling that works."""

    def batch(points: Any) -> Any:
        return function(*points.T) if several else function(points.reshape(len(points), *shape))

    trials: list[Callable[[Array], Array]] = [
        lambda points: _array(batch(torch.as_tensor(points)), len(points)),
        lambda points: _array(batch(points), len(points)),
    ]
    if several or shape == (1,):
        trials.append(lambda points: _one_by_one(lambda p: function(*p.tolist()), points))
    if not several:
        trials.append(lambda points: _one_by_one(lambda p: function(torch.as_tensor(p.reshape(shape))), points))
    points = _middle(box)
    reason: Exception | None = None
    for trial in trials:
        try:
            if _agrees(function, trial, points):
                return trial
        except ExpressionError:
            raise
        except Exception as error:  # whatever the caller's own code raises: another way may work
            reason = error
    raise ShapeError(
        "The function could not be called: it must map a tensor (points, variables) to (points, outputs), or one "
        f"point, or one number for each variable, to numbers, as many at every point. The last attempt said: {reason}"
    )


def _agrees(function: Callable[..., Any], trial: Callable[[Array], Array], points: Array) -> bool:
    """Whether a batch gives what its points give one by one."""
    found = trial(points)
    check_steady(function, lambda given: torch.as_tensor(trial(given)), (points, points[::-1].copy()), CLOSE)
    alone = np.concatenate([trial(points[i : i + 1]) for i in range(len(points))])
    return found.shape == alone.shape and np.allclose(found, alone, rtol=1e-6, atol=1e-9, equal_nan=True)


def _one_by_one(call: Callable[[Array], Any], points: Array) -> Array:
    """What a function gives at each point: as many numbers at every one."""
    found = [np.atleast_1d(_array([call(point)], 1)[0]) for point in points]
    shapes = {value.shape for value in found}
    if len(shapes) > 1:
        raise ShapeError(f"the function returned shape {' and '.join(map(str, sorted(shapes)))} for single points")
    return np.stack(found)


def _array(values: Any, count: int) -> Array:
    """What was returned for so many points; tensors, and lists of what was returned for each."""
    values = [_plain(value) for value in values] if isinstance(values, list) else _plain(values)
    if values is None or (isinstance(values, list) and any(v is None for v in values)):
        raise ShapeError("the function returned nothing")
    found = np.asarray(values, dtype=np.float64)
    if found.ndim == 0 or len(found) != count:
        raise ShapeError(f"the function returned shape {found.shape} for {count} points")
    return found


def _plain(value: Any) -> Any:
    return value.detach().cpu().double().numpy() if isinstance(value, torch.Tensor) else value


def _checked(call: Callable[[Array], Array], points: Array) -> Array:
    parts = np.array_split(points, len(points) // 65536 + 1)
    try:
        found = np.concatenate([call(part).reshape(len(part), -1) for part in parts])
    except AnchorheadError:
        raise
    except Exception as error:  # whatever the caller's own code raises
        raise InputError(
            f"The function raised {type(error).__name__} at a point of its box, which says: {error}. Choose a box on "
            "which it gives as many finite numbers everywhere."
        ) from error
    if not np.isfinite(found).all():
        bad = points[np.nonzero(~np.isfinite(found).all(1))[0][0]]
        raise InputError(
            f"The function is not finite at {', '.join(f'{v:.6g}' for v in bad)}; choose a box on which it is finite."
        )
    return found
