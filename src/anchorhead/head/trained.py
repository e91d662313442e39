"""A head whose values are trained: gradients with respect to constants and gains, at the price of a few softmaxes.

    h(x) = sum over k of W_k(x) (constant_k + gain_k x),    W = softmax of the scores, which are fixed

is linear in the values, so that dh/dconstant_k = W_k and dh/dgain_k = W_k x, and with mean slope m = sum W_k slope_k
dh/dx = sum W_k gain_k + sum W_k (slope_k - m)(constant_k + gain_k x). Weights are made anew, some inputs at a time,
both forwards and backwards: nothing but x is kept, and no temporary is larger than the processor's cache; keys come
first, so that a softmax works on neighbouring inputs at once. Scores are those of x clamped to where none overflows,
beyond which one key has long had all the weight.

The gains of the two end keys have gradient zero: they are the slopes of the head's asymptotes, which would otherwise
leave those of the activation, and no bound would hold far out.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

CHUNK = 1 << 13
"""Inputs at a time."""


class Trained(torch.autograd.Function):
    """x (n,), slopes, intercepts, constants, gains (keys,), the first two with those of the gates added: h(x)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, slopes: Tensor, intercepts: Tensor, constants: Tensor, gains: Tensor) -> Tensor:
        ctx.save_for_backward(x, slopes, intercepts, constants, gains)
        found = torch.empty_like(x)
        for part, out in zip(x.split(CHUNK), found.split(CHUNK), strict=True):
            weights = _weights(part, slopes, intercepts)
            out.copy_(constants @ weights + (gains @ weights) * part)
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, slopes, intercepts, constants, gains = ctx.saved_tensors
        (grad,) = grads
        back = torch.empty_like(x) if ctx.needs_input_grad[0] else None
        by_constants, by_gains = torch.zeros_like(constants), torch.zeros_like(gains)
        for at in range(0, len(x), CHUNK):
            part, given = x[at : at + CHUNK], grad[at : at + CHUNK]
            weights = _weights(part, slopes, intercepts)
            by_constants += weights @ given
            by_gains += weights @ (given * part)
            if back is not None:
                tilts = weights * (slopes[:, None] - slopes @ weights)
                slope = gains @ weights + constants @ tilts + (gains @ tilts) * part
                back[at : at + CHUNK] = given * slope
        by_gains[[int(slopes.argmin()), int(slopes.argmax())]] = 0
        return back, None, None, by_constants, by_gains


def _weights(x: Tensor, slopes: Tensor, intercepts: Tensor) -> Tensor:
    """(keys, n)."""
    reach = torch.finfo(x.dtype).max / (16 * (1 + slopes.abs().amax()))
    return torch.softmax(torch.addcmul(intercepts[:, None], slopes[:, None], x.clamp(-reach, reach)), 0)
