"""The inverse of a symmetric matrix by Newton and Schulz, every product a head.

    M_{k+1} = 2 M_k - M_k A M_k,   M_0 = 1/Λ,   Λ >= the largest eigenvalue of A

Keys look at one factor, values carry the other factor's row (`heads.py`). R_k = 1 - A M_k has eigenvalues in [0, 1],
and R_{k+1} = R_k²: digits double with each step, after about log2(Λ/λ) of them, λ the least eigenvalue.

*Deviation.* For a matrix N near M_k, F(N) = 2N - NAN: F(M + Δ) - F(M) = Δ(1 - AM) + (1 - MA)Δ - ΔAΔ, so
D_{k+1} <= 2‖R_k‖ D_k + Λ D_k² + E_k, where E_k collects heads and rounding at m = ‖M_k‖ + D_k. All norms are spectral:
that of a matrix of entries up to e is at most d·e, and |‖|B|‖| <= sqrt(d)‖B‖, so that a rounded product of B and C errs
by γ_d·d·‖B‖‖C‖. With Â = A + in_A as the head sees it, H the head's M, off by h, P = fl(ÂM) and Q = fl(HP):

    ‖P - ÂM‖ <= γ_d d a m,   ‖Q - HP‖ <= γ_d d (m + h) p,   ‖fl(2M - Q) - (2M - Q)‖ <= ρ sqrt(d)(2m + ‖Q‖)

and ‖HP - MAM‖ <= h p + m(‖P - ÂM‖ + in_A m), with a and p the norms of Â and P. M_0 is rounded too: D_0 = 4ρ/Λ.
Entries may exceed the declared bounds by a billionth, so that Λ does by three (`excess`). Everything is computed in
ball arithmetic.
"""

from __future__ import annotations

import torch
from flint import arb
from torch import Tensor, nn

from anchorhead.dtypes import LEAST_NORMAL, UNIT
from anchorhead.enclosure.precision import precision, upper
from anchorhead.errors import ToleranceError
from anchorhead.in_context.bounds import SLACK
from anchorhead.in_context.heads import MOST, Factor
from anchorhead.in_context.reading import Reading
from anchorhead.in_context.stability import gamma

ROOM = 1.5
"""How much larger than the algorithm's matrices the network's own may be; more is refused."""


class Inversion(nn.Module):
    """The heads of the iteration for matrices of this many features, and what is proved of it.

    top: Λ. weakest: a lower bound on A's eigenvalues, zero where none is known.
    """

    start: Tensor

    def __init__(self, features: int, steps: int, top: float, weakest: float) -> None:
        super().__init__()
        self.features, self.steps, self.top, self.weakest = features, steps, top, weakest
        self.register_buffer("start", 1 / torch.tensor(top, dtype=torch.float64))
        self.sizes = self._inverse_sizes()
        if not max(self.sizes) < MOST / 4:
            raise uncertain(steps)
        self.moment, self.inverse = Factor(ROOM * top), Factor(ROOM * max(self.sizes))

    def begin(self, A: Tensor) -> Tensor:
        """M_0, which is written as depending on the prompt, as all later ones do."""
        return self.start.to(A.dtype) * torch.eye(A.shape[-1], dtype=A.dtype, device=A.device) + 0 * A

    def step(self, how: Reading, A: Tensor, M: Tensor) -> Tensor:
        """The next M."""
        return 2 * M - how.product(self.inverse, M, how.product(self.moment, A, M))

    def residual(self, k: int) -> arb:
        """‖R_k‖ <= max(1 - λ/Λ, excess)^(2^k), λ the least eigenvalue that is known."""
        first = (1 - arb(self.weakest) / self.top).max(arb(3 * SLACK))
        return (first.log() * arb(2) ** k).exp() if first < 1 else arb(1)

    def _inverse_sizes(self) -> list[float]:
        """‖M_k‖ <= 1/λ (1 - (1 - λ/Λ)^(2^k)), at most 2^k/Λ and 1/λ; a little more where Λ is exceeded."""
        with precision():
            largest = (1 + arb(3 * SLACK)) / self.weakest if self.weakest else arb("inf")
            return [upper((arb(2) ** k / self.top).min(largest)) for k in range(self.steps + 1)]

    def deviation(self, formed: arb, dtype: str) -> tuple[arb, arb, arb]:
        """How far the last M may be from the algorithm's where A is formed with an error of `formed`; its largest
        norm; and how far its head's is from it. Refused where the first would not stay small. Within `precision`."""
        d, unit = self.features, arb(UNIT[dtype])
        top = arb(self.top) * (1 + arb(3 * SLACK))
        if not formed <= (ROOM - 1) * arb(self.top):
            raise ToleranceError(f"X^T X/n may be wrong by as much as itself in {dtype}; use float64.")
        in_A = formed + d * (self.moment.error + unit * (top + formed + self.moment.error))
        off = 4 * unit / self.top + LEAST_NORMAL[dtype]
        for k in range(self.steps):
            error = self._step_error(self.sizes[k] + off, top, in_A, dtype)
            off = arb(upper(2 * self.residual(k) * off + top * off * off + error))
            if not off < (ROOM - 1) * arb(max(self.sizes)):
                raise uncertain(k + 1)
        size = self.sizes[-1] + off
        return off, size, self._seen_inverse(size, unit)

    def _seen_inverse(self, size: arb, unit: arb) -> arb:
        """h: the head's M against M, cast included."""
        d = self.features
        return d * self.inverse.error * (1 + unit) + unit * arb(d).sqrt() * size

    def _step_error(self, m: arb, top: arb, in_A: arb, dtype: str) -> arb:
        """E_k; see the top."""
        d, unit = self.features, arb(UNIT[dtype])
        h, product = self._seen_inverse(m, unit), gamma(d, unit) * d
        rounded = product * (top + in_A) * m
        p = (top + in_A) * m + rounded
        q = product * (m + h) * p
        last = unit * arb(d).sqrt() * (2 * m + (m + h) * p + q)
        lost = LEAST_NORMAL[dtype] * d * d * (4 + m + h + top + in_A)
        return h * p + m * (rounded + in_A * m) + q + last + lost

    def applied(self, formed: arb, length: arb, in_b: arb, dtype: str) -> arb:
        """How far the network's M b may be from the algorithm's, b of this length and off by `in_b`."""
        d, unit = self.features, arb(UNIT[dtype])
        off, size, h = self.deviation(formed, dtype)
        whole = gamma(d, unit) * arb(d).sqrt() * (size + h) + off + h
        return whole * (length + in_b) + size * in_b + d * arb(LEAST_NORMAL[dtype])


def uncertain(steps: int) -> ToleranceError:
    return ToleranceError(
        f"After {steps} steps the inverse of X^T X/n + l2 may be wrong by as much as itself. Use a larger l2 or fewer "
        "steps, or declare a smaller bounds['curvature']."
    )
