"""Measures on a box by a lattice of weighted nodes: what the network of `universal.py` selects from, and its bound.

Tokens lie in a box of diameter D, cut into cells with centres c_1, ..., c_N. A lattice measure puts masses r_j/M, whole
numbers over M, on the nodes; there are K = C(M + N - 1, N - 1). The nodes are numbered along a *path* whose steps go to
a neighbouring cell, of lengths l_1, ..., l_{N-1} (row by row, to and fro). A measure m on the nodes is read by its
cumulative sums S_j = m_1 + ... + m_j. Transport along the path gives

    W_1(m, m') <= sum of l_j |S_j - S'_j|

*Rounding S.* The lattice measures are, in these coordinates, all k/M with whole 0 <= k_1 <= ... <= k_{N-1} <= M. To the
nearest multiples of 1/M every S_j is rounded by at most 1/(2M), and rounding keeps order: so the nearest lattice point
is this one, and it is within P/(2M) of m in W_1, P the length of the path. (Largest remainders in the masses themselves
give D N/(4M), which is larger by half the number of cells to a side.)

*Softmax of -β|S - k/M|².* Keys that are further than the nearest by t in square have together at most K e^{-βt} of the
weight, and W_1 <= D. Of the others every coordinate exceeds its nearest by some t_j >= 0 in square, in all at most t;
sqrt(a² + t_j) <= 1/(2M) + M t_j for a <= 1/(2M), so they are within P/(2M) + M l t of m, l the longest step.

*Cells.* A token z is blended from nodes by softmax with scores -sum over coordinates of Λ((z - c)/w)², w the width of a
cell, a product over coordinates. Of the two nearest centres of a coordinate, at distances e and w - e, the second
moment is at most w²/4 if Λ >= 1.1, and the others weigh at most (cells - 1)e^-Λ (docs/mathematics.md 1.2). So z is
moved by at most ρ = sqrt(sum of w²/4 + (cells - 1)e^-Λ side²) in the mean, and so is the mean of all tokens in W_1.

**Bound.** For F with |F(μ) - F(ν)| <= L W_1(μ, ν), every n and every prompt:

    |network - F| <= L [ρ + P/(2M) + M l t + D K e^{-βt}]        for any t > 0

*Rounding.* Scores of the first head off by δ_1 move the mean distance by at most D tanh(δ_1/2); scores of the second
off by δ_2 multiply far weights by e^{2δ_2}; a mean of n that is off by σ in every S moves differences of scores by
2β(N - 1)σ; values up to V lose γ_{2K+6} V. Nodes are floats, some 2^-52 of their size from the centres.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import combinations_with_replacement
from typing import Any

import numpy as np
from flint import arb

from anchorhead.arithmetic import binary_ceiling
from anchorhead.digits import Up
from anchorhead.display import facts, page
from anchorhead.dtypes import UNIT
from anchorhead.enclosure.precision import precision, upper
from anchorhead.errors import InputError, SizeError
from anchorhead.in_context.bounds import counts, is_number, positive
from anchorhead.in_context.stability import gamma

CHOICE = 40.0
"""Λ."""
SHARE = 64
"""β is so large that what softmax adds is half this many times smaller than P/(2M). A larger one would leave less, and
let the rounding of S move more of an output halfway between two lattice measures, by as many times as it is larger."""
MOST_KEYS = 4_000_000
MOST_NODES = 100_000

Ranges = tuple[tuple[float, float], ...]


def read_ranges(tokens: Any) -> tuple[tuple[str, ...], Ranges]:
    """Names and ranges of a token's coordinates, from a dictionary such as {"x": (-1, 1)}."""
    if not isinstance(tokens, Mapping) or not tokens:
        raise InputError(f'tokens={tokens!r} must be a dictionary of ranges, such as {{"x": (-1, 1), "y": (0, 2)}}.')
    found = []
    for name, pair in tokens.items():
        if not (isinstance(pair, Sequence) and len(pair) == 2 and all(map(is_number, pair)) and pair[0] < pair[1]):
            raise InputError(f"tokens[{name!r}]={pair!r} must be two finite numbers, the lower first.")
        found.append((float(pair[0]), float(pair[1])))
    return tuple(map(str, tokens)), tuple(found)


@dataclass(frozen=True)
class Lattice:
    """Nodes and masses; see the top."""

    ranges: Ranges
    cells: tuple[int, ...]
    masses: int

    @classmethod
    def read(cls, ranges: Ranges, cells: Any, masses: Any) -> Lattice:
        """From what a caller gives: cells for every coordinate, or one number for all."""
        each = [cells] * len(ranges) if not isinstance(cells, Sequence) else list(cells)
        if len(each) != len(ranges):
            raise InputError(f"cells has {len(each)} entries for {len(ranges)} coordinates; give one number, or each.")
        sizes = [counts(cells=c)[0] for c in each]
        found = cls(ranges, tuple(sizes), counts(masses=masses)[0])
        if found.nodes < 2:
            raise InputError("cells=1 leaves one node, and nothing to tell measures apart by; use at least 2.")
        if found.nodes > MOST_NODES or found.keys > MOST_KEYS:
            raise SizeError(
                f"{found.nodes:,} nodes with masses in {found.masses:,}ths make {_short(found.keys)} keys, above "
                f"{MOST_KEYS:,}. Take fewer cells or masses: for an arbitrary function of a prompt this cost cannot be "
                "avoided."
            )
        return found

    @property
    def nodes(self) -> int:
        """N."""
        return math.prod(self.cells)

    @property
    def keys(self) -> int:
        """K."""
        return math.comb(self.masses + self.nodes - 1, self.nodes - 1) if self.nodes <= MOST_NODES else MOST_KEYS + 1

    @property
    def widths(self) -> tuple[float, ...]:
        return tuple((high - low) / g for (low, high), g in zip(self.ranges, self.cells, strict=True))

    @property
    def diameter(self) -> float:
        return math.hypot(*(high - low for low, high in self.ranges))

    def points(self) -> np.ndarray:
        """The nodes along the path, (N, coordinates), in float64."""
        return np.array([low for low, _ in self.ranges]) + (_path(self.cells, self.widths) + 0.5) * np.array(
            self.widths
        )

    def steps(self) -> list[float]:
        """l_1, ..., l_{N-1}."""
        return (np.abs(np.diff(_path(self.cells, self.widths), axis=0)) @ np.array(self.widths)).tolist()

    def sums(self) -> np.ndarray:
        """k of all keys, (K, N - 1)."""
        found = combinations_with_replacement(range(self.masses + 1), self.nodes - 1)
        flat = (k for key in found for k in key)
        return np.fromiter(flat, np.int64, self.keys * (self.nodes - 1)).reshape(self.keys, self.nodes - 1)

    def length(self) -> arb:
        """P."""
        steps = self.steps()
        return sum((steps.count(width) * arb(width) for width in set(self.widths)), arb(0))

    def beta(self) -> float:
        """Of the second head: a power of two at which softmax adds at most a 64th of P/(2M) twice over."""
        with precision():
            length, longest = self.length(), arb(max(self.steps()))
            t = length / (2 * SHARE * self.masses**2 * longest)
            leak = 2 * SHARE * self.masses * arb(self.diameter) * self.keys / length
            return binary_ceiling(upper(leak.log().max(arb(1)) / t))

    def logits(self) -> tuple[float, float]:
        """The largest absolute scores of the two heads."""
        first = CHOICE * sum(3 * (g / 2) ** 2 for g in self.cells)
        return first, self.beta() * (self.nodes - 1) * 0.75

    def error(self, beta: float, examples: int, unit: float, size: float = 0.0) -> arb:
        """The bound in units of L, and γ_{2K+6} of `size`, the largest value over L; unit 0 for exact arithmetic."""
        with precision():
            keys, nodes, far = arb(self.keys), self.nodes, arb(self.diameter) * (1 + arb(2.0**-50))
            sides = [(arb(high) - low, g) for (low, high), g in zip(self.ranges, self.cells, strict=True)]
            moved = sum((w * w * (1 / arb(4 * g * g) + (g - 1) * arb(-CHOICE).exp()) for w, g in sides), arb(0)).sqrt()
            first, second = (arb(v) for v in self.logits())
            off = gamma(len(sides) + 8, unit) * first * 4 + 6 * arb(unit)
            sums = gamma(examples + 2 * nodes + 16, unit)
            wrong = 2 * (gamma(nodes + 8, unit) * second * 4 + 6 * arb(unit) + arb(beta) * (nodes - 1) * sums)
            longest, length = arb(max(self.steps())), self.length() * (1 + arb(2.0**-50))
            t = (wrong + (far * keys * beta / (self.masses * longest)).log().max(arb(0))) / beta
            spread = self.masses * longest * t + far * keys * (wrong - beta * t).exp()
            placed = arb(2.0**-50) * sum(abs(low) + abs(high) for low, high in self.ranges)
            rounded = far * (off / 2).tanh() + placed + (gamma(2 * self.keys + 6, unit) * size if size else 0)
            return arb(upper(moved + length / (2 * self.masses) + spread.min(far) + rounded))


@lru_cache(maxsize=100)
def _path(cells: tuple[int, ...], widths: tuple[float, ...]) -> np.ndarray:
    """The cells' indices along the path, (N, coordinates): the narrowest cells are gone through fastest."""
    order = np.argsort([-w for w in widths], kind="stable")
    rows = np.zeros((1, 0), dtype=np.int64)
    for axis in order:
        forth = np.arange(cells[axis])
        turns = [forth if i % 2 == 0 else forth[::-1] for i in range(len(rows))]
        rows = np.column_stack([np.repeat(rows, cells[axis], 0), np.concatenate(turns)])
    return rows[:, np.argsort(order)]


@dataclass(frozen=True)
class UniversalPlan:
    """What a network of `universal` needs for an error: cells for each coordinate, masses, and what follows. bound: for
    the declared constant, but for the rounding of F's own values.

    >>> plan = ah.in_context.plan_universal(0.5, {"x": (0, 1)}, lipschitz=1.0)
    >>> plan.cells, plan.masses
    ((2,), 2)
    """

    tol: float
    lipschitz: float
    cells: tuple[int, ...]
    masses: int
    nodes: int
    keys: int
    beta: float
    bound: float

    def __str__(self) -> str:
        return (
            f"universal to within {self.tol:g} for L = {self.lipschitz:g}: {' x '.join(map(str, self.cells))} cells, "
            f"masses in {self.masses}ths, {_short(self.keys)} keys, β = {self.beta:.6g}, bound {Up(self.bound):.4g}"
            + f"; more keys than the {MOST_KEYS:,} that `universal` builds"
            * (self.keys > MOST_KEYS)
        )

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        rows = [
            ("Lipschitz constant, as declared", f"{self.lipschitz:g}"),
            ("bound", f"{Up(self.bound):.4g}"),
            ("cells of each coordinate", " x ".join(map(str, self.cells))),
            ("masses in parts of", f"{self.masses:,}"),
            ("keys", f"{self.keys:,}" + f", above the {MOST_KEYS:,} that are built" * (self.keys > MOST_KEYS)),
            ("β", f"{self.beta:,.6g}"),
        ]
        return page(f"Plan: universal to within {self.tol:g}", facts(rows))

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers, for JSON."""
        return asdict(self)


def plan_universal(
    tol: float, tokens: Mapping[str, tuple[float, float]], *, lipschitz: float, examples: int = 1_000_000
) -> UniversalPlan:
    """The network of `universal` with the fewest keys whose bound, at the β that it takes, is at most `tol`; nothing is
    built.

    lipschitz: L with |F(μ) - F(ν)| <= L W_1(μ, ν). examples: the longest prompt.

    >>> ah.in_context.plan_universal(0.5, {"x": (0, 1)}, lipschitz=1.0).bound <= 0.5
    True
    """
    wanted, constant = positive("tol", tol), positive("lipschitz", lipschitz)
    (most,) = counts(examples=examples)
    _, ranges = read_ranges(tokens)
    share, widest = wanted / constant, max(high - low for low, high in ranges)
    best: tuple[int, Lattice] | None = None
    for finest in range(2, 1 + 4 * math.ceil(2 + widest * math.sqrt(len(ranges)) / share)):
        cells = tuple(math.ceil(finest * (high - low) / widest - 1e-9) for low, high in ranges)
        if math.prod(cells) > MOST_NODES:
            break
        found = _fewest_masses(ranges, cells, share, most)
        if found is not None and (best is None or found.keys < best[0]):
            best = found.keys, found
        if best is not None and found is not None and found.keys > 2**20 * best[0]:
            break
    if best is None:
        raise InputError(
            f"tol={tol:g} with lipschitz={lipschitz:g} on these ranges needs more than {MOST_NODES:,} nodes; take a "
            "larger tol: for an arbitrary function of a prompt the number of keys grows exponentially in nodes."
        )
    lattice = best[1]
    beta = lattice.beta()
    with precision():
        bound = upper(constant * lattice.error(beta, most, UNIT["float64"]))
    return UniversalPlan(wanted, constant, lattice.cells, lattice.masses, lattice.nodes, lattice.keys, beta, bound)


def _fewest_masses(ranges: Ranges, cells: tuple[int, ...], share: float, examples: int) -> Lattice | None:
    """The lattice with these cells and the fewest masses whose bound is at most `share`; None if there is none."""
    first = Lattice(ranges, cells, 1)
    moved = math.hypot(*(w / 2 for w in first.widths))
    if moved >= share or first.nodes < 2:
        return None
    masses = max(1, math.ceil(float(first.length()) / (2 * (share - moved))))
    for _ in range(64):
        lattice = Lattice(ranges, cells, masses)
        if lattice.error(lattice.beta(), examples, UNIT["float64"]) <= share:
            return lattice
        masses += max(1, masses // 64)
    return None


def _short(count: int) -> str:
    return f"{count:,}" if count < 10**9 else f"about 10^{len(str(count)) - 1}"
