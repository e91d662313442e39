"""A head for one variable: the numbers of softmax attention over a fixed set of keys, as one value.

    h(u) = sum over k of  softmax_k(slope_k u + intercept_k) · (constant_k + gain_k u)

The query is u, key k scores slope_k u + intercept_k, and its value is affine in the token's own u (the token
attends to copies of itself); a head with gains of zero has plain constant values.

A head may consist of several *pieces*, runs of keys whose scores are raised together by a steep gate,
gate_slope u + gate_level. The two parts of a score are stored apart: a gate may be a million times as steep as the
slopes within a piece, and their sum would lose the latter's digits.

The numbers are those of a dtype, and the head says how it is evaluated in it: with `horner`, slopes are evenly spaced
and it is a ratio of two polynomials in z = exp(step·u), by Horner's rule, or a tanh (`odd`); otherwise key by key,
piece by piece. This is the one place that holds a head's numbers. It can be balls for a proof (`balls.py`), arrays for
a fit, and a module (`module.py`), whose parameters are made of it and give it back; it needs neither NumPy nor torch.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from anchorhead.dtypes import LARGEST_FLOAT, NAMES
from anchorhead.errors import InputError

if TYPE_CHECKING:
    from anchorhead.arithmetic import Array
    from anchorhead.head.balls import HeadBalls
    from anchorhead.head.near_keys import NearKeys

NUMBERS = ("slopes", "intercepts", "constants", "gains", "gate_slopes", "gate_levels")
"""The names of a head's numbers, also in files."""
HORNER_DEPTH = {"float64": 500.0, "float32": 60.0}
"""How far intercepts may lie above those at the ends for exp of the difference to be a coefficient in the dtype."""
TOGETHER = 64
"""Neighbouring points at which a head of many keys is evaluated together."""


class Reflection(NamedTuple):
    """h(x) = shift - h(-x) if odd, h(x) = h(-x) + tilt·x if not; the other number is zero."""

    odd: bool
    shift: float
    tilt: float


EVEN = Reflection(False, 0.0, 0.0)


class Odd(NamedTuple):
    """h(x) = height·tanh(rate·x), times x if tilted."""

    rate: float
    height: float
    tilted: bool


class Switch(NamedTuple):
    """(constant + gain·u)/(1 + exp(-gate·u - level))."""

    gate: float
    level: float
    constant: float
    gain: float


@dataclass(frozen=True)
class Head:
    """slopes, intercepts, constants, gains: one for each key. sizes: keys of each piece, all in one unless given.

    gate_slopes, gate_levels: one for each piece. horner: evaluated by Horner's rule. dtype: that of the numbers.

    >>> ah.Head.of(slopes=[-1.0, 1.0], intercepts=[0.0, 0.0], constants=[-1.0, 1.0], horner=True).keys     # tanh
    2
    """

    slopes: tuple[float, ...]
    intercepts: tuple[float, ...]
    constants: tuple[float, ...]
    gains: tuple[float, ...]
    horner: bool
    sizes: tuple[int, ...] = ()
    gate_slopes: tuple[float, ...] = (0.0,)
    gate_levels: tuple[float, ...] = (0.0,)
    dtype: str = "float64"

    def __post_init__(self) -> None:
        if not self.sizes:
            object.__setattr__(self, "sizes", (len(self.slopes),))
        lengths = [len(getattr(self, name)) for name in NUMBERS]
        if lengths != [self.keys] * 4 + [len(self.sizes)] * 2 or sum(self.sizes) != self.keys or min(self.sizes) < 1:
            raise InputError(
                f"A head of {self.keys} slopes needs as many intercepts, constants and gains, and pieces of one key or "
                f"more with a gate each; {dict(zip(NUMBERS, lengths, strict=True))} in pieces of {self.sizes} is none."
            )

    @classmethod
    def of(cls, *, horner: bool, sizes: Sequence[int] = (), dtype: str = "float64", **numbers: Any) -> Head:
        """A head of arrays, tensors or lists, by the names in `NUMBERS`; gains and gates may be left out."""
        try:
            found = {name: tuple(map(float, getattr(v, "tolist", lambda v=v: v)())) for name, v in numbers.items()}
        except (TypeError, ValueError, OverflowError) as error:
            raise InputError(f"A head is made of lists or arrays of numbers, one row each: {error}.") from None
        if set(found) - set(NUMBERS) or not {"slopes", "intercepts", "constants"} <= set(found) or dtype not in NAMES:
            raise InputError(f"A head has {', '.join(NUMBERS)}, the first three always, in {' or '.join(NAMES)}.")
        found.setdefault("gains", (0.0,) * len(found["slopes"]))
        return cls(horner=horner, sizes=tuple(sizes), dtype=dtype, **found)

    def __str__(self) -> str:
        pieces = f" in {len(self.sizes)} pieces" if len(self.sizes) > 1 else ""
        values = f"constants from {min(self.constants):.4g} to {max(self.constants):.4g}"
        gains = f", gains from {min(self.gains):.4g} to {max(self.gains):.4g}" if any(self.gains) else ""
        slopes = f"slopes from {min(self.slopes):.4g} to {max(self.slopes):.4g}"
        return f"head of {self.keys:,} keys{pieces}, {slopes}, {values}{gains}, {self.dtype}"

    @property
    def keys(self) -> int:
        """How many keys there are."""
        return len(self.slopes)

    @property
    def pieces(self) -> list[range]:
        """The keys of each piece."""
        return [range(a, b) for a, b in itertools.pairwise(itertools.accumulate(self.sizes, initial=0))]

    @property
    def gates(self) -> list[tuple[float, float]]:
        """For each key the slope and level of its piece's gate."""
        pairs = zip(self.gate_slopes, self.gate_levels, self.sizes, strict=True)
        return [(slope, level) for slope, level, size in pairs for _ in range(size)]

    @property
    def joined(self) -> bool:
        """Whether keys have scores of their own beside their piece's gate, to which the literal form adds them."""
        return len(self.sizes) > 1 and any((*self.slopes, *self.intercepts))

    @property
    def beta(self) -> float:
        """The steepest difference of slopes between neighbouring keys: how sharply the head selects."""
        slopes = sorted(slope + gate for slope, (gate, _) in zip(self.slopes, self.gates, strict=True))
        return max((b - a for a, b in itertools.pairwise(slopes)), default=0.0)

    @property
    def largest_value(self) -> float:
        """The largest |constant| or |gain|, which decides how much rounding costs."""
        return max(abs(v) for v in (*self.constants, *self.gains))

    @property
    def depth(self) -> float:
        """How far intercepts lie above the lower of those at the ends."""
        return max(self.intercepts) - min(self.intercepts[0], self.intercepts[-1])

    @property
    def evenly_spaced(self) -> bool:
        """Whether Horner's rule applies: one piece, equal steps upwards, coefficients that do not overflow."""
        steps = {b - a for a, b in itertools.pairwise(self.slopes)}
        even = len(self.sizes) == 1 and len(steps) == 1 and min(steps) > 0
        return even and self.depth < HORNER_DEPTH[self.dtype]

    @property
    def reach(self) -> float:
        """Up to which |u| it is evaluated as it is; beyond, where products might overflow, its end line is continued.

        A proof by boxes is of no use beyond half of it (`proof/rounding.py`): not every head has one line there.
        """
        top = LARGEST_FLOAT[self.dtype] / 16
        pairs = zip(self.intercepts, self.gates, strict=True)
        fixed = max(max(abs(c) + abs(b) for c, (_, b) in pairs), max(abs(c) for c in self.constants))
        if not self.keys * fixed < top:
            return 0.0
        steep = max(abs(v) for v in (*self.slopes, *self.gains)) + max(abs(g) for g in self.gate_slopes)
        found = top / (self.keys * (1 + steep))
        if self.horner:
            coefficient = (1 + self.largest_value) * 2.0 ** math.ceil(1.5 * min(self.depth, 600.0))  # e < 2^1.5
            found = min(found, top / (self.keys * (1 + coefficient)))
        return found

    def logit_range(self, low: float, high: float) -> float:
        """The largest absolute score for u in [low, high]."""
        lines = [(s + g, c + b) for s, c, (g, b) in zip(self.slopes, self.intercepts, self.gates, strict=True)]
        return max(abs(slope * u + level) for slope, level in lines for u in (low, high))

    @property
    def reflection(self) -> Reflection | None:
        """How the head's right half follows exactly from its left one, if it does.

        Only where the left end is the smaller one: mirroring a large value into a small one would lose its digits.
        The intercepts' mirror image is enough, since slopes are evenly spaced where this is used.
        """
        constants, gains = self.constants, self.gains
        if self.intercepts != self.intercepts[::-1]:
            return None
        tilts = {a + b for a, b in zip(gains, reversed(gains), strict=True)}
        if constants == constants[::-1] and len(tilts) == 1 and abs(gains[0]) <= abs(gains[-1]):
            return Reflection(False, 0.0, tilts.pop())
        shifts = {a + b for a, b in zip(constants, reversed(constants), strict=True)}
        if gains == gains[::-1] and len(shifts) == 1 and abs(constants[0]) <= abs(constants[-1]):
            return Reflection(True, shifts.pop(), 0.0)
        return None

    @property
    def odd(self) -> Odd | None:
        """What an odd head is, two keys that mirror each other with opposite values: a tanh, and evaluated as one."""
        if not self.horner or self.keys != 2 or self.intercepts[0] != self.intercepts[1]:
            return None
        (left, rate), (low, high), (falling, rising) = self.slopes, self.constants, self.gains
        if left != -rate or low != -high or falling != -rising or (high and rising):
            return None
        return Odd(rate, high or rising, bool(rising))

    @property
    def switch(self) -> Switch | None:
        """What a head of two keys, a piece each, is where one of them has nothing but zeros: the other, switched."""
        if self.sizes != (1, 1) or any((*self.slopes, *self.intercepts)):
            return None
        for silent, sign in ((0, 1.0), (1, -1.0)):
            own, other = silent, 1 - silent
            if any((self.constants[own], self.gains[own], *(part[0] for part in (self.gate_slopes, self.gate_levels)))):
                continue
            return Switch(sign * self.gate_slopes[1], sign * self.gate_levels[1], self.constants[other],
                          self.gains[other])  # fmt: skip
        return None

    @cached_property
    def balls(self) -> HeadBalls:
        """The numbers as balls."""
        from anchorhead.head.balls import HeadBalls

        return HeadBalls(self)

    @cached_property
    def near(self) -> NearKeys:
        """Which keys matter on an interval."""
        from anchorhead.head.near_keys import NearKeys

        pairs = zip(self.slopes, self.intercepts, self.gates, strict=True)
        return NearKeys([(s + g, c + b) for s, c, (g, b) in pairs])

    @cached_property
    def arrays(self) -> dict[str, Array]:
        """The numbers as arrays, by name."""
        import numpy as np

        found = {name: np.array(getattr(self, name)) for name in NUMBERS}
        for array in found.values():
            array.flags.writeable = False
        return found

    def __getstate__(self) -> dict[str, Any]:
        """Without balls, which cannot be copied, and what else can be made anew."""
        return {name: value for name, value in self.__dict__.items() if name not in ("balls", "near", "arrays")}

    def rounded(self, dtype: str) -> Head:
        """The same head with every number rounded to the dtype; without Horner's rule where that does not apply."""
        found: dict[str, Any] = {name: tuple(part.astype(dtype).tolist()) for name, part in self.arrays.items()}
        head = replace(self, dtype=dtype, **found)
        return replace(head, horner=head.horner and head.evenly_spaced)

    def times(self, factor: float) -> Head:
        """The head of so many times the function."""
        values: dict[str, Any] = {
            name: tuple(factor * v for v in getattr(self, name)) for name in ("constants", "gains")
        }
        return replace(self, **values)

    def weights(self, u: Array) -> Array:
        """Attention weights at points (n,), in float64, as (keys, n); the same bits on every machine."""
        import numpy as np

        from anchorhead.arithmetic import exp, log, softmax

        slopes, intercepts, _, _, gate_slopes, gate_levels = (n[:, None] for n in self.arrays.values())
        scores = slopes * u + intercepts
        if len(self.sizes) == 1:
            return softmax(scores)
        tops, parts = [], []
        for keys in self.pieces:  # a gate is far steeper than the slopes in a piece, and would swallow their digits
            part = scores[keys.start : keys.stop]
            top = part.max(0)
            parts.append(exp(part - top))
            tops.append(top)
        sums = [np.add.reduce(part, 0) for part in parts]
        heights = np.array([top + log(total) for top, total in zip(tops, sums, strict=True)])
        shares = softmax(gate_slopes * u + gate_levels + heights)
        return np.concatenate([part * (share / s) for part, share, s in zip(parts, shares, sums, strict=True)])

    def __call__(self, u: Array) -> Array:
        """h(u) in float64, literally; the same bits on every machine.

        Of many keys only those that are near are summed, which floats cannot tell from all (`near_keys.py`).
        """
        import numpy as np

        from anchorhead.head.near_keys import MANY

        flat = np.asarray(u, dtype=np.float64).reshape(-1)
        if self.keys <= MANY or not np.isfinite(flat).all():
            return self._blend(flat).reshape(np.shape(u))
        order, found = np.argsort(flat, kind="stable"), np.empty_like(flat)
        for part in np.array_split(order, 1 + len(flat) // TOGETHER):
            if len(part):
                near = self.near.of(float(flat[part[0]]), float(flat[part[-1]]))
                found[part] = self.only(near)._blend(flat[part])
        return found.reshape(np.shape(u))

    def _blend(self, u: Array) -> Array:
        import numpy as np

        values = self.arrays["constants"][:, None] + self.arrays["gains"][:, None] * u
        return np.add.reduce(self.weights(u) * values, 0)

    def only(self, keys: Sequence[int]) -> Head:
        """The head of some of the keys."""
        chosen = sorted(keys)
        ends = list(itertools.accumulate(self.sizes))
        sizes = Counter(bisect_right(ends, k) for k in chosen)
        own: dict[str, Any] = {name: tuple(getattr(self, name)[k] for k in chosen) for name in NUMBERS[:4]}
        gates: dict[str, Any] = {name: tuple(getattr(self, name)[i] for i in sizes) for name in NUMBERS[4:]}
        return replace(self, horner=False, sizes=tuple(sizes.values()), **own, **gates)
