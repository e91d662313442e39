"""One feed-forward block as what it is: multi-query attention over a fixed set of keys.

The block x -> W_2 phi(W_1 x + b_1) + b_2 has h neurons. Neuron i is a head: its query is (u_i, 1) with
u_i = W_1[i]·x + b_1[i], all heads share the K keys (slope_k, intercept_k), and the value of key k is
constant_k + gain_k u_i. Softmax over k blends them to phi(u_i), and W_2 adds the heads up. In shorter dtypes heads
are computed in float32 and their results rounded, as torch computes activations.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from anchorhead.compiler.compile import compile_formula
from anchorhead.conversion.linear import matrix, sizes
from anchorhead.conversion.sites import find_sites
from anchorhead.errors import InputError
from anchorhead.head.module import HeadModule
from anchorhead.head.parameters import constant
from anchorhead.model.activation import ActivationHead


class FeedForwardAttention(nn.Module):
    """(..., d) to (..., d_out): h heads of multi-query attention over K fixed keys, then W_2."""

    def __init__(self, first: tuple[Tensor, Tensor], head: HeadModule, second: tuple[Tensor, Tensor]) -> None:
        super().__init__()
        self.first_weight, self.first_bias = (constant(t) for t in first)
        self.second_weight, self.second_bias = (constant(t) for t in second)
        self.head = head

    @property
    def neurons(self) -> int:
        return self.first_weight.shape[0]

    def weights(self, x: Tensor) -> Tensor:
        """The attention weights, (..., neurons, keys)."""
        return self.head.weights((x @ self.first_weight.mT + self.first_bias).to(self.head.dtype))

    def forward(self, x: Tensor) -> Tensor:
        u = (x @ self.first_weight.mT + self.first_bias).to(self.head.dtype)
        values = u.unsqueeze(-1) * self.head.gains + self.head.constants
        found = (self.head.weights(u).unsqueeze(-2) @ values.unsqueeze(-1)).squeeze(-1).squeeze(-1)
        return found.to(self.second_weight.dtype) @ self.second_weight.mT + self.second_bias

    def matrices(self) -> dict[str, Tensor]:
        """W_Q (h, 2, d + 1) from (x, 1) to (u_i, 1); keys (K, 2); values (K, 2) on (u_i, 1); W_O (d_out, h); bias."""
        h, d = self.first_weight.shape
        query = torch.zeros(h, 2, d + 1, dtype=self.first_weight.dtype)
        query[:, 0, :d], query[:, 0, d], query[:, 1, d] = self.first_weight, self.first_bias, 1
        head, sizes_ = self.head, torch.tensor(self.head.sizes)
        slopes = head.slopes + head.gate_slopes.repeat_interleave(sizes_)
        levels = head.intercepts + head.gate_levels.repeat_interleave(sizes_)
        return {
            "W_Q": query,
            "keys": torch.stack([slopes, levels], dim=1).detach(),
            "values": torch.stack([head.gains, head.constants], dim=1).detach(),
            "W_O": self.second_weight.detach(),
            "bias": self.second_bias.detach(),
        }


def feed_forward_as_attention(block: nn.Module, tol: float = 1e-6) -> FeedForwardAttention:
    """A feed-forward block, linear, activation, linear, as multi-query attention over a fixed set of keys.

    block: a module whose two linear layers are in the order in which they act, or one that `ah.convert` returned.
    Gated blocks have no such form.

    >>> block = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 4))
    >>> attention = ah.feed_forward_as_attention(block, tol=1e-4)
    >>> (attention(torch.ones(4)) - block(torch.ones(4))).abs().max().item() < 1e-3
    True
    """
    if not isinstance(block, nn.Module):
        raise InputError(f"feed_forward_as_attention takes a torch module, and got a {type(block).__name__}.")
    sites = find_sites(block)[0]
    if any(site.gated for site in sites):
        raise InputError(
            "This block is gated: its activation multiplies another linear map of the input, and such a block has no "
            "form as one attention over fixed keys. ah.convert converts it."
        )
    linears = [m for m in block.modules() if sizes(m) is not None]
    unread = next((type(m).__name__ for m in linears if matrix(m) is None), None)
    if unread is not None:
        raise InputError(
            f"The block's {unread} multiplies by something else than its weight, as a layer does that is quantised, or "
            "has an adapter; give the block with the weights that it was made of, adapters merged."
        )
    if len(linears) != 2:
        raise InputError(
            f"A feed-forward block has two linear layers around one activation, and this module has {len(linears)}; "
            "give the block itself."
        )
    first, second = (_weights(m) for m in linears)
    found = [m for m in block.modules() if isinstance(m, ActivationHead)]
    if found:
        return _checked(block, FeedForwardAttention(first, found[0].head, second), tol)
    if len(sites) != 1:
        raise InputError(f"A feed-forward block has one activation, and this module has {len(sites)}.")
    dtype = first[0].dtype if first[0].dtype == torch.float64 else torch.float32
    model = compile_formula(sites[0].formula, None, tol=tol, dtype=dtype)
    return _checked(block, FeedForwardAttention(first, model.head, second), tol)


def _checked(block: nn.Module, shown: FeedForwardAttention, tol: float) -> FeedForwardAttention:
    """Refuses a block that computes something else, a residual connection or a norm beside the two layers."""
    if shown.second_weight.shape[1] != shown.neurons:
        raise InputError("The block's linear layers do not follow each other; the first must act first.")
    dtype = shown.first_weight.dtype
    x = torch.randn(16, shown.first_weight.shape[1], generator=torch.Generator().manual_seed(0)).to(dtype)
    training = block.training
    with torch.no_grad():
        try:
            expected = block.eval()(x)
        except Exception as error:
            raise InputError(f"The block does not take inputs (..., {x.shape[1]}): {error}") from error
        finally:
            block.train(training)
        found = shown(x)
    reach = float(shown.second_weight.abs().sum(1).max())
    digits = 64 * max(torch.finfo(dtype).eps, torch.finfo(torch.float32).eps)
    room = (tol + digits * (1 + float(expected.abs().max()))) * (1 + reach)
    if not isinstance(expected, Tensor) or expected.shape != found.shape or not (expected - found).abs().max() <= room:
        raise InputError(
            "The block is not linear, activation, linear alone: on random inputs it computes something else. Give the "
            "block without its residual connection and norms."
        )
    return shown


def _weights(module: Any) -> tuple[Tensor, Tensor]:
    """(weight, bias) with the weight as (outputs, inputs)."""
    weight: Any = matrix(module)
    return weight, weight.new_zeros(weight.shape[0]) if module.bias is None else module.bias.detach()
