"""What happens where an input leaves the domain on which a model is proved: one policy for every kind of model.

`outside` is "warn" (once for each model, `OutsideRangeWarning`), "error" (`OutsideRangeError`, each time) or "ignore",
and can be changed at any time. What is not a number is outside. An end of the domain counts as the nearest number of
the input's dtype. Looking costs one pass for the least and largest input; on all of R there is nothing to look for. In
an exported model there is no look. torch.compile keeps it, as an operation of its own in the graph.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack

from anchorhead.errors import InputError, OutsideRangeError
from anchorhead.warned import warn_caller

POLICIES = ("warn", "error", "ignore")
STRIDE = 512
WHOLE = (-math.inf, math.inf)
ONCE = 'This is said once, and outside_count counts on; outside="error" refuses each time.'


class OutsideRangeWarning(UserWarning):
    """An input left the range on which a model or a head is proved.

    >>> import warnings
    >>> with warnings.catch_warnings(record=True) as said:
    ...     _ = ah.compile("exp(x)", (-1, 1))(torch.full((1,), 2.0, dtype=torch.float64))
    >>> said[0].category.__name__
    'OutsideRangeWarning'
    """


def check_policy(outside: Any) -> str:
    """One of the policies."""
    if outside not in POLICIES:
        raise InputError(f"outside={outside!r} must be one of {', '.join(map(repr, POLICIES))}.")
    return str(outside)


class Watched(nn.Module):
    """A module that looks whether its inputs are where it is proved."""

    _seen: Tensor

    def watch(self, domain: Sequence[tuple[float, float]], what: str, advice: str) -> None:
        """Sets the intervals: one for all elements, or one for each of the numbers of one input, in order."""
        self._domain, self._what, self._advice = [(float(a), float(b)) for a, b in domain], what, advice
        self._outside, self._bounded = "warn", any(pair != WHOLE for pair in self._domain)
        self.register_buffer("_seen", torch.zeros((), dtype=torch.int64), persistent=False)

    def __prepare_scriptable__(self) -> NoReturn:
        """What torch.jit.script asks of every module before it reads any."""
        raise InputError(
            "torch.jit.script reads the code of modules, and the code of heads is not in the part of Python that it "
            "knows; record a run instead: torch.jit.trace(model, inputs), or torch.export.export(model, (inputs,))."
        )

    @property
    def outside(self) -> str:
        """What an input outside the domain does: "warn", once; "error", each time; or "ignore"."""
        return self._outside

    @outside.setter
    def outside(self, policy: str) -> None:
        self._outside = check_policy(policy)

    @property
    def outside_count(self) -> int:
        """How many inputs have been outside so far, since it was not ignored."""
        return int(self._seen)

    def look(self, x: Any, domain: Sequence[tuple[float, float]] | None = None, where: str = "") -> None:
        """Says where x leaves the domain, as `outside` says; what is no input at all is for others to refuse.

        domain, where: those of a part of an input that is given by itself.
        """
        domain = self._domain if domain is None else domain
        if not self._bounded or self._outside == "ignore" or not isinstance(x, Tensor) or not x.is_floating_point():
            return
        if torch.compiler.is_exporting() or torch.jit.is_tracing() or x.device.type == "meta" or not x.numel():
            return
        if len(domain) > 1 and x.numel() % len(domain):
            return
        plain = not torch.compiler.is_compiling() and torch._C._functorch.peek_interpreter_stack() is None
        lows, highs = (list(ends) for ends in zip(*domain, strict=True))
        if plain and _between(x, max(lows), min(highs)):
            return
        said = self._seen, lows, highs, self._outside, self._what + where, self._advice
        if torch.compiler.is_compiling():
            _look_compiled(x.detach(), *said)
        elif plain:
            _look(x, *said)
        else:
            with temporarily_clear_interpreter_stack():
                _look(_plain(x), *said)


def _plain(x: Tensor) -> Tensor:
    """The tensor behind torch.func's transformations, batches first."""
    inner = torch._C._functorch
    while inner.is_functorch_wrapped_tensor(x):
        batch = inner.maybe_get_bdim(x) if inner.is_batchedtensor(x) else 0
        x = inner.get_unwrapped(x)
        x = x.movedim(batch, 0) if batch > 0 else x
    return x


def _between(x: Tensor, low: float, high: float) -> bool:
    """Whether every number is in this interval, which all have in common: most often they are the same."""
    least, most = torch.aminmax(x.detach())
    return least.item() >= low and most.item() <= high


@torch.no_grad()
def _look(x: Tensor, seen: Tensor, lows: list[float], highs: list[float], policy: str, what: str, advice: str) -> None:
    exact = x.dtype if x.dtype == torch.float64 else torch.float32
    low, high = (torch.tensor(ends, dtype=exact, device=x.device) for ends in (lows, highs))
    if _inside(x, low, high):
        return
    rows = x.reshape(-1, len(lows)).to(exact)
    wrong = ~((rows >= low) & (rows <= high))
    if policy == "error" or not int(seen):
        message = _message(rows, low, high, what, advice)
        if policy == "error":
            raise OutsideRangeError(message)
        warn_caller(f"{message} {ONCE}", OutsideRangeWarning)
    seen += int(wrong.sum())


@torch.library.custom_op("anchorhead::look", mutates_args=("seen",))
def _look_compiled(
    x: Tensor, seen: Tensor, lows: list[float], highs: list[float], policy: str, what: str, advice: str
) -> None:
    _look(x, seen, lows, highs, policy, what, advice)


def _inside(x: Tensor, low: Tensor, high: Tensor) -> bool:
    """Whether every number is in its interval; several inputs at a time against intervals repeated, which is faster."""
    if len(low) == 1:
        return _between(x, low.item(), high.item())
    flat, times = x.reshape(-1), max(1, STRIDE // len(low))
    whole = flat.numel() - flat.numel() % (times * len(low))
    parts = ((flat[:whole], times), (flat[whole:], 1))
    return all(
        (part.reshape(-1, n * len(low)) - low.repeat(n)).amin().item() >= 0
        and (high.repeat(n) - part.reshape(-1, n * len(low))).amin().item() >= 0
        for part, n in parts
        if part.numel()
    )


def _message(rows: Tensor, low: Tensor, high: Tensor, what: str, advice: str) -> str:
    """The input that is farthest outside, where it is proved, and what to do."""
    far = torch.where(rows.isnan(), math.inf, torch.maximum(low - rows, rows - high))
    place = int(far.argmax())
    index, value = place % len(low), rows.flatten()[place].item()
    number = f"Number {index} of an input" if len(low) > 1 else "An input"
    found = "not a number" if math.isnan(value) else f"{value:.6g}"
    gap = "" if math.isnan(value) else f" by {far.flatten()[place].item():.3g}"
    interval = f"[{low[index].item():g}, {high[index].item():g}]"
    return (
        f"{number} of {what} is {found}, outside {interval}{gap}, where nothing is "
        f'proved. {advice}, or set outside="ignore" to have it without a word.'
    )


def behind_transforms(look: Callable[[Tensor], Any], x: Tensor) -> Any:
    """What `look` sees of a tensor's numbers, whatever torch.func does with it; batches first. Nothing in an export."""
    if torch.compiler.is_exporting():
        return None
    if torch._C._functorch.peek_interpreter_stack() is None:
        return look(x.detach())
    with temporarily_clear_interpreter_stack():
        return look(_plain(x).detach())
