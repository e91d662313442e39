"""Why something that was seen when a model ran is left, and what to write in its place: a line for each reason.

Of calls in a forward those are converted that are activations of torch and return what they compute. Whatever else is
elementwise is read where it is a module of its own (`activations.is_elementwise`), if the conversion is to be pure, and
has a head on all of R if it is finite everywhere and nears straight lines.
"""

from __future__ import annotations

from collections.abc import Callable

from anchorhead.conversion.activations import FUNCTIONS
from anchorhead.conversion.states import SAID
from anchorhead.tracing.function import CHOOSING

NORMS = set("native_layer_norm native_group_norm _fused_rms_norm rms_norm rsqrt".split())
"""What norms compute and little else does."""
BY_CHANNEL = {"native_batch_norm", "_native_batch_norm_legit"}
"""What torch calls for norms of each channel, over a sample or over a batch."""
COMPARISONS = set("gt ge lt le eq ne".split())
ELEMENTWISE = COMPARISONS | set(
    "abs clamp clamp_min clamp_max maximum minimum where erf erfc sin cos tan asin acos atan sinh cosh asinh acosh "
    "atanh exp exp2 expm1 log log2 log10 log1p pow square sqrt reciprocal".split()
)
"""Operations of torch that may be part of an elementwise function."""
MATRICES = set("matmul mm bmm baddbmm addmm einsum".split())
PRODUCTS = {"mul", "div", "addcmul", *MATRICES}
ACTIVATIONS = {*FUNCTIONS.values(), "log_sigmoid_forward", "glu", "rrelu_with_noise", "_prelu_kernel"}
"""Operations of torch that are activations, of which conversion has heads."""
SCORES = {"softmax", "_softmax"}
Advice = tuple[Callable[[set[str]], set[str]], set[str], str]
REASONS: list[Advice] = [
    (lambda seen: seen & NORMS, {"pow", "square", "sqrt", "reciprocal", *PRODUCTS}, "a norm, which pure=True converts "
     "where it is a module of its own, or a call with a constant shape and eps in a forward that can be traced"),
    (lambda seen: seen & BY_CHANNEL, set(), "a norm of each channel, which pure=True converts where it is of every "
     "sample by itself, as nn.InstanceNorm1d, 2d or 3d, in a module of its own; with statistics of the whole batch it "
     "mixes samples, and stays"),
    (lambda seen: seen & {"tanh", *SCORES} if "tanh" in seen and seen & SCORES else set(), PRODUCTS, "a softcap of "
     "scores, which pure=True converts, also where a function of the model's file computes it; the softmax counts as "
     "attention then"),
    (lambda seen: seen.intersection(CHOOSING) if seen & COMPARISONS else set(), COMPARISONS, "numbers chosen by a "
     "condition; where each depends on itself alone, write torch.where(condition, a, b), in a module of its own "
     "without parameters, and use pure=True"),
    (lambda seen: seen & ELEMENTWISE, PRODUCTS - MATRICES, "left, since of calls in a forward only torch's activations "
     "are converted; where the whole is a function of one argument and of numbers, compute it in a module of its own "
     "without parameters, and use pure=True; what nears no straight line on some side, as sin(x), x*x and exp(x), what "
     "is not finite everywhere, as 1/x, and what has parameters within, as a slope for each channel, has no head on "
     "all of R"),
    (lambda seen: seen - PRODUCTS - ACTIVATIONS, set(), "left, since conversion has no head for it"),
    (lambda seen: seen & ACTIVATIONS, PRODUCTS - MATRICES, "called where conversion does not look, as by another name, "
     "in a function that is an attribute, or in a hook; make it a module"),
    (lambda seen: seen, set(), "left, since a product of two signals is converted only as a gate, where one of them is "
     "an activation"),
]  # fmt: skip
"""Of which operations in a row something is said, which others that explains, and what is said; in turn, of those of
which nothing was said yet."""


def instead(remaining: list[tuple[str, str]], known: set[str]) -> list[str]:
    """Lines on the rows of a report; known: places of which the reason is said already."""
    found: dict[str, set[str]] = {}
    for place, what in remaining:
        seen = set() if place in known else _operations(what)
        for part, explained, why in REASONS:
            of = part(seen)
            seen = seen - of - explained if of else seen
            found.setdefault(why, set()).update(of)
    return [f"  {', '.join(sorted(of))}: {why}" for why, of in found.items() if of]


def _operations(what: str) -> set[str]:
    """The names of operations in a row; what is said in words explains itself."""
    for words in SAID.values():
        what = what.replace(words, "")
    names = {part.split(" at ")[0] for part in what.partition(" (")[2].rstrip(")").split(", ")}
    return {name for name in names if name.isidentifier()}
