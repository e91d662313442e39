"""What evaluating a head in floating point may add, for any order of summation (docs/mathematics.md 5).

Let ρ be the unit roundoff. Meant are the literal evaluation (scores, maximum subtracted, exp, sum, quotient,
values) of a head of one piece, and the fast ones: Horner's rule in z = exp(-step·|x|) for evenly spaced slopes, and
key by key, piece by piece otherwise. To first order in ρ, with h = sum W_k v_k, v_k = constant_k + gain_k x:

*Weights.* A score s_k = slope_k x + intercept_k is rounded three times, by e_k <= 2ρ(|slope_k x| + |intercept_k|) in
all. From it the largest computed score is taken, a float that all keys have in common, whatever it errs by; the
difference is rounded once, and exp errs by 2 ulp (assumed). With `ref` the key that leads in the middle of a box, and λ
the largest s_j - s_ref + e_j on the box, that difference is at most |s_k - s_ref| + λ + e_k: scores of size 10^10 that
nearly agree lose nothing by it. ρe_k is of second order. So

    ε_k = ρ(2|slope_k x| + 2|intercept_k| + 2|s_k - s_ref| + 2λ + 10);

where Horner's rule is used too, what it gives below counts if it is larger. A relative error ε_k of W_k moves h by
W_k ε_k |v_k - h|, since an error common to all weights cancels; and with l the leading key, |v_k - h| is at most
|v_k - v_l| + |v_l - h|, where values that grow alike cancel. |v_l - h| is at most sum W_j |v_j - v_l|; or
|sum W_j (v_j - v_l)|, which takes small boxes, and is far less where large values of keys with little weight cancel, as
at an end where the target is like a square root.

A claim that is of the fast evaluation alone (`HeadClaim.evaluation`) need not count the literal one. In Horner's rule,
from the end key on x's side, `ref`, with j_k the distance from it, numerator and denominator share z and z², whose
errors are those of weights: step·|x| is rounded once, or twice where the step is no number of the dtype, exp errs by
4ρ, z² is rounded, and a coefficient errs as an exponential does:

    ε_k = ρ(|(slope_k - slope_ref) x| + |intercept_k - intercept_ref| + 4 + 9/2 j_k)

And each of the two multiplies by z² or z at most j/2 + 1 times, and by a coefficient, by itself: (j_k/2 + 2)ρ of
W_k|v_k| in the one, and of W_k|h| in the other; the end key's own term, whose coefficient is 1, by nothing.

*Pieces.* In a head of several pieces all this is said of each piece by itself, with blend g_i and weights within
the piece. Between pieces the share P_i of a piece errs by its gate's rounding, ρ(|gate x| + 3|gate x + level| + 10),
by that of adding its largest score t, ρ|t|, and by the error of its normaliser, sum W_k ε_k; relative to the leading
piece, whose errors are added to the others': it moves h by P_i ε_i |g_i - h|, bounded like |v_k - h| above. Where
two pieces meet g_i and g_j nearly agree; |g_i - g_j| is taken at the middle of the box and carried to its ends by
the slopes |g'| <= sum W_k(|gain_k| + |slope_k - slope_l||v_k - v_l|) + the same spread once more.

*Values* are formed, and multiplied by weights or coefficients, with three roundings: 3ρ W_k(|constant_k| + |gain_k x|).

*Sums.* Adding b to a errs by at most ρ|a + b|, and by at most |b|, since a is itself a float. So beside the
leading term each term adds at most min(ρ S, 2|term|) to a sum of absolute value S, in whatever order. The
quotient and the last store add 2ρ|h|.

*As a tanh.* An odd head's fast evaluation is another (`proof/odd.py`): the larger of both bounds is stated, so that it
holds for its literal evaluation too.

*As a switch.* v/(1 + exp(-s)) with s = gate x + level, where the other key has neither score nor value (`Head.switch`):
s errs by ρ(|gate x| + |s|) and exp by 4ρ, which moves P = 1/(1 + exp(-s)) by P(1 - P) times both, less than a piece's
share is given above; v is formed with two roundings, the sum and the quotient have one each. Below exp(-708), or
exp(-87) in float32, which is less than 2τ, P is taken for zero: that is what underflow is counted for.

*Folding.* A symmetric head in one piece is evaluated at -|x| and mirrored (`Head.reflection`): what holds at -x holds
at x with two more roundings.

*Underflow.* What is smaller than the least normal number τ may become zero, and exp below 3τ/2 may in Horner's rule,
where processors would be slow: counted is 4τ for each value, and in Horner's rule,
where powers of z underflow before a coefficient exp(intercept_j - intercept_end) lifts them, τ exp(depth) with depth
the largest such difference.

*Clamped queries.* Past `Head.reach` products might overflow, and the end key's line is continued from there. On boxes
that would be another function, so a box that comes near has no bound; beyond all boxes the end key leads, and its line
is what the far side's proof is about.

*Overflow.* A coefficient of Horner's rule is at most exp(depth) times the largest value, and sums have as many terms as
there are keys: a head for which that is too large for the dtype has no bound.

Where ε_k is not small, exp(ε_k) - 1 takes its place. The weights are normalised again, which divides what they
move by 1 - sum W_k ε_k at worst; other terms of second order are covered by a factor 1 + 1/1000.

*Many keys.* Of a large head the sums above run over the keys that are near on the box, or over the pieces that have
one; all others have a weight of at most η together (`head/near_keys.py`). Let S bound |values|, A and C slopes and
levels of scores, and E = exp(ρ(24(A|x| + C) + 6K + 40) + ε) - 1, K the number of keys, ε what the leading piece's
normaliser errs by: no relative error of a far weight, or of a far piece's share, is larger. Far keys move h by
4ηES at most as terms of a blend, and as much as shares; their values err by 3ρS and their terms in sums by 2(S + |h|),
those of pieces by 4(S + |h|) more: 16η(1 + E)(S + |h|) is above all of it. To this comes underflow, 4τ for each value.

A staircase, many keys of constant values in one piece, has a bound for boxes with many steps too. With V the spread of
the near keys' values, n their number and ε the largest of their ε_k, weights move h by εV/(1 - ε), values err by 3ρS,
sums by 2nρS, quotient and store by 2ρS.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from flint import arb

from anchorhead.dtypes import BITS, LARGEST, LEAST_NORMAL
from anchorhead.enclosure.precision import ball, precision, upper
from anchorhead.head.head import Odd
from anchorhead.head.near_keys import MANY
from anchorhead.proof.far import decreasing
from anchorhead.proof.head_claim import HeadClaim
from anchorhead.proof.odd import relative_rounding
from anchorhead.proof.rounding_piece import Part, grown, smaller

ROUNDING_PRECISION = 64
SECOND_ORDER = arb(1001) / 1000

ASSUMPTIONS = [
    "additions, multiplications and divisions round to nearest (IEEE 754), fused or not, in any order",
    "no float32 product is shortened to bfloat16 or TF32 (models see to it; compiled and exported programs cannot)",
    "exp and tanh are accurate to 2 units in the last place",
    "no score overflows in the literal evaluation (the fast one cannot overflow)",
    "the target's own values are numbers of the dtype (where they are larger, the model gives an infinity)",
]


class Rounding:
    """Bounds |computed - exact| of a claim's head. signed: |v_l - h| is taken with signs, for boxes that are small."""

    def __init__(self, claim: HeadClaim, *, signed: bool = False) -> None:
        stored, self.signed = claim.head, signed
        self.claim, self.head, self.stored = claim, stored.balls, stored
        self.fold = stored.reflection if stored.horner else None
        depth = arb(stored.depth if stored.horner else 0.0)
        self.least = arb(LEAST_NORMAL[stored.dtype]) * depth.exp()
        self.fits = bool(16 * stored.keys * (1 + arb(stored.largest_value)) * depth.exp() < LARGEST[stored.dtype])
        self.pieces, self.reach = stored.pieces, stored.reach
        self.piece_of = [i for i, size in enumerate(stored.sizes) for _ in range(size)]
        self.steep, self.level = (max(part) + max(gate) for part, gate in zip(
            zip(*self.head.own, strict=True), zip(*self.head.gates, strict=True), strict=True))  # fmt: skip
        self.unit = arb(claim.unit)
        self.constants, self.gains = ([abs(arb(v)) for v in part] for part in (stored.constants, stored.gains))
        self.values = [(sum(sizes, arb(0)), arb(max(sizes))) for sizes in (self.constants, self.gains)]
        """Of constants and of gains, the sum and the largest of their sizes."""
        self.fast = stored.horner and claim.evaluation == "fast"
        step = stored.slopes[-1] - stored.slopes[-2] if stored.keys > 1 else 0.0
        self.turnings = 1 if math.ldexp(math.frexp(step)[0], BITS[stored.dtype]).is_integer() else 2
        """How often step·|x| is rounded."""

    def on_box(self, low: float, high: float, goal: float = 0.0) -> float:
        """An upper bound over [low, high]; infinity if none was found, or where queries are clamped (`Head.reach`).

        goal: a bound that is enough.
        """
        if not 2 * max(abs(low), abs(high)) <= self.reach:
            return math.inf
        with precision(ROUNDING_PRECISION):
            if self.head.selects:
                rough = upper(self._of_steps(low, high))
                if rough <= goal:
                    return rough
            found, _ = self._on_box(low, high)
            if self.fold is not None and high > 0:
                mirrored, size = self._on_box(-high, -low)
                found = found.max(mirrored + self._folding(abs(ball(low, high)).upper(), size))
            if self.stored.odd is not None:
                found = found.max(self._as_tanh(self.stored.odd, abs(ball(low, high)).upper()))
            return upper(found)

    def _as_tanh(self, odd: Odd, size: arb) -> arb:
        """The same of an odd head that is evaluated as a tanh, for |x| <= size (`proof/odd.py`)."""
        largest = abs(arb(odd.height)) * (size if odd.tilted else arb(1))
        return relative_rounding(odd, self.stored.dtype) * largest + 8 * (1 + largest) * self.least

    def _folding(self, size: arb, output: arb) -> arb:
        """For x > 0 a symmetric head is shift - h(-x), or h(-x) + tilt·x: two more roundings, of these terms."""
        _, shift, tilt = self.fold or (False, 0.0, 0.0)
        return 3 * self.unit * (abs(arb(shift)) + abs(arb(tilt)) * size + output)

    def _on_box(self, low: float, high: float) -> tuple[arb, arb]:
        """The bound on [low, high], and one on |h| there."""
        x, unit = ball(low, high), self.unit
        parts = [Part(self, keys, x, low, high) for keys in self._pieces_near(low, high)]
        tops = [part.leader for part in parts]
        first = max(range(len(parts)), key=lambda i: self.score(tops[i], (low + high) / 2))
        shares = self._shares(parts, tops, first, x)
        gaps = [part.distance(parts[first], (low + high) / 2, (high - low) / 2) for part in parts]
        blend = sum((p * g for p, g in zip(shares, gaps, strict=True)), self.head.left_out(x))
        output = parts[first].output + blend
        common = self._gate_error(tops[first], x, tops[first]) + parts[first].slack
        error, lost = 2 * unit * output + self._far_keys(abs(x).upper(), output, common), 2 * self.head.rest
        for part, share, gap in zip(parts, shares, gaps, strict=True):
            if part is not parts[first]:
                slack = grown(self._gate_error(part.leader, x, tops[first]) + part.slack + common)
                error += share * slack * (gap + blend)
                lost += share * smaller(slack, arb(1))
                error += 2 * smaller(unit, 2 * share) * (part.output + output)
            error += share * part.error
            lost += share * part.lost
        if not (self.fits and lost < 0.5 and 16 * self.head.keys * output < LARGEST[self.stored.dtype]):
            return arb("inf"), output
        return error / (1 - lost) * SECOND_ORDER, output

    def _pieces_near(self, low: float, high: float) -> Sequence[Sequence[int]]:
        """The keys of each piece; of a large head, those that are near, or the pieces that have one."""
        if self.head.keys <= MANY:
            return self.pieces
        keys = self.head.near(low, high)
        return [keys] if len(self.pieces) == 1 else [self.pieces[i] for i in sorted({self.piece_of[k] for k in keys})]

    def _far_keys(self, size: arb, output: arb, slack: arb) -> arb:
        """What all other keys may add."""
        keys, unit = self.head.keys, self.unit
        if keys <= MANY:
            return arb(0)
        (constants, constant), (gains, gain) = self.values
        worst = (unit * (24 * (self.steep * size + self.level) + 6 * keys + 40) + slack).expm1()
        underflow = 4 * self.least * (keys + constants + gains * size)
        return 16 * self.head.rest * (1 + worst) * (constant + gain * size + output) + underflow

    def _of_steps(self, low: float, high: float) -> arb:
        """The bound for boxes of many steps of a staircase, looking at floats that are numbers of the head."""
        keys, stored, unit = self.head.near(low, high), self.stored, self.unit
        values, slopes, levels = ([part[k] for k in keys] for part in
                                  (stored.constants, stored.slopes, stored.intercepts))  # fmt: skip
        size, largest = abs(ball(low, high)).upper(), arb(max(map(abs, values)))
        spread, steep, level = (arb(max(part)) - arb(min(part)) for part in (values, slopes, levels))
        own = arb(max(map(abs, slopes))) * size + arb(max(map(abs, levels)))
        slack = grown(unit * (2 * own + 2 * (steep * size + level) + 10))
        lost = slack + 2 * self.head.rest
        if not (self.fits and lost < 0.5 and 16 * self.head.keys * largest < LARGEST[stored.dtype]):
            return arb("inf")
        error = slack * spread + (2 * len(keys) + 5) * unit * largest + self._far_keys(size, largest, slack)
        return (error + self.head.left_out(arb(0))) / (1 - lost) * SECOND_ORDER

    def score(self, k: int, x: float) -> float:
        slope, level = self.head.floats[k]
        return slope * x + level

    def _shares(self, parts: list[Part], tops: list[int], first: int, x: arb) -> list[arb]:
        """Upper bounds of the pieces' shares of the weight."""
        pairs = zip(parts, tops, strict=True)
        relative = [part.total * self.relative_weight(top, tops[first], x) for part, top in pairs]
        least = sum(relative[1:], relative[0]).lower()
        return [smaller(r.upper() / least, arb(1)) for r in relative]

    def relative_weight(self, k: int, reference: int, x: arb) -> arb:
        return self.lead(k, reference, x).exp()

    def score_size(self, k: int, size: arb) -> arb:
        """|slope_k x| + |intercept_k| for |x| <= size."""
        slope, level = self.head.own[k]
        return slope * size + level

    def lead(self, k: int, reference: int, x: arb) -> arb:
        """By how much the score of one key is above that of another."""
        head = self.head
        return (head.slopes[k] - head.slopes[reference]) * x + head.intercepts[k] - head.intercepts[reference]

    def _gate_error(self, k: int, x: arb, first: int) -> arb:
        """Relative error of a piece's share from its gate and its leading key's score."""
        head = self.head
        gate = head.gate_balls[k][0] * x
        score = gate + head.gate_balls[k][1]
        top = head.slopes[k] * x + head.intercepts[k] - score
        return self.unit * (abs(gate) + 3 * abs(score) + abs(top) + 2 * abs(self.lead(k, first, x)) + 14).upper()

    def weight_error(self, k: int, apart: arb, size: arb, low: float, high: float) -> arb:
        """Relative error of weight k within its piece for |x| <= size: ε_k, or exp(ε_k) - 1 where it is not small.

        apart: |s_k - s_ref| + λ. For Horner's rule both ends count on a box that holds zero.
        """
        if self.fast:
            return grown(self.unit * self._by_horner(k, size, low, high))
        worst = 2 * (self.score_size(k, size) + apart) + 10
        if self.stored.horner:
            worst = worst.max(self._by_horner(k, size, low, high))
        return grown(self.unit * worst)

    def _ends(self, low: float, high: float) -> list[int]:
        """The keys from which Horner's rule counts on the box."""
        return ([self.head.keys - 1] if high > 0 else []) + ([0] if low <= 0 else [])

    def _by_horner(self, k: int, size: arb, low: float, high: float) -> arb:
        """What numerator and denominator have in common of Horner's rule, in units of the roundoff."""
        head, found = self.head, arb(0)
        for end in self._ends(low, high):
            turned = abs(head.slopes[k] - head.slopes[end]) * size * self.turnings
            lifted = abs(head.intercepts[k] - head.intercepts[end]) + 4
            found = found.max(turned + lifted + arb(9 * abs(end - k)) / 2)
        return found

    def apart(self, k: int, low: float, high: float) -> arb:
        """Relative error of term k that numerator and denominator each have by themselves, in Horner's rule."""
        farthest = max(abs(end - k) for end in self._ends(low, high))
        return self.unit * (arb(farthest) / 2 + 2) if farthest else arb(0)

    def beyond(self, sign: int, start: float) -> float:
        """An upper bound of |computed - exact|/(1 + |x|) on the side `sign` beyond |x| >= start.

        There the end key has nearly all weight: the others' share of the errors is a sum of terms
        u exp(-κu), for each 1 + u, and what remains is proportional to the end key's own value.
        """
        if not 2 * abs(start) <= self.reach:
            return math.inf
        with precision(ROUNDING_PRECISION):
            found = self._beyond(sign, arb(start))
            if self.fold is not None and sign > 0:
                largest = self.stored.largest_value
                found = found.max(self._beyond(-1, arb(start)) + self._folding(arb(1), arb(2 * largest)))
            return upper(found)

    def _beyond(self, sign: int, start: arb) -> arb:
        head, unit = self.head, self.unit
        if not self.fits:
            return arb("inf")
        end = max(range(head.keys), key=lambda k: sign * head.floats[k][0])
        largest = abs(head.constants[end]).max(abs(head.gains[end]))
        # values (3), quotient and store (2), two sums of one leading term (2), its line continued past the clamp (3)
        total = 10 * unit * largest
        for k in range(head.keys):
            if k == end:
                continue
            rate = abs(head.slopes[end] - head.slopes[k])
            if not rate > 0:
                return arb("inf")
            level = (head.intercepts[k] - head.intercepts[end]).exp()
            sizes = [head.own[k], head.own[end], head.gates[k], head.gates[end]]
            slope = 4 * sum((s for s, _ in sizes), arb(0)) + 2 * rate
            fixed = 4 * sum((c for _, c in sizes), arb(0)) + 2 * abs(head.intercepts[k] - head.intercepts[end])
            fixed += 6 * head.keys + 40
            spread = abs(head.constants[k]) + abs(head.gains[k]) + abs(head.constants[end]) + abs(head.gains[end])
            # each key's weight times its relative error, per 1 + u of the values' size; and its place in two sums
            linear = (unit * slope) * decreasing(start, rate, 1)
            weight = level * (-rate * start).exp()
            total += level * spread * linear + unit * fixed * weight * spread
            total += smaller(4 * weight * spread, 2 * unit * (spread + largest)) + 4 * self.least * (1 + spread)
        return total * SECOND_ORDER
