"""A learning algorithm with TransformerLens' hook points: at every softmax, and at every tensor of every state.

An algorithm is begin, steps and end, each of which makes a state, tensors by name, by affine maps and calls of heads
(`in_context/network.py`). It is run here as its literal form runs it, in float64. Its points, for step t and the calls
of a step in the order of `model.attention(...)`, are

    steps.t.calls.i.hook_attn_scores, hook_pattern      (..., keys)    before and after softmax
    steps.t.calls.i.hook_z                              (..., c)       weights times values
    steps.t.state.hook_NAME                                            a tensor of the state after the step

and the same of `begin`; `end` has calls alone. How many calls there are does not depend on the prompt: a run that makes
no call, and takes zero for what each would give (`in_context/matrices.py`), counts them. A run that leaves the declared
bounds is refused, as the model refuses it; where a hook changed something on the way, it is warned of.
"""

from __future__ import annotations

import inspect
import warnings
from typing import Any, cast

from torch import Tensor, nn

from anchorhead.display import facts, page
from anchorhead.errors import DependencyError, InputError, MissingPartError
from anchorhead.export.points import Known, Pairs, Point, points_said
from anchorhead.in_context.bounds import OutsideBoundsError
from anchorhead.in_context.matrices import Calls
from anchorhead.in_context.network import InContextNetwork, State, in_double
from anchorhead.in_context.reading import Literal
from anchorhead.model.outside import OutsideRangeWarning

try:
    from transformer_lens import HookedRootModule
except ImportError as error:
    raise DependencyError("Hook points need TransformerLens: pip install 'anchorhead[lens]'.") from error

EXAMPLES = 2
"""Of the prompt on which calls are counted."""
OF_BLOCKS = ("blocks", "cfg", "mechanism", "names", "where", "written", "pattern", "ablation")
"""What networks of blocks have, and algorithms do not."""


class Points(nn.Module):
    """Of one call."""

    def __init__(self) -> None:
        super().__init__()
        self.hook_attn_scores, self.hook_pattern, self.hook_z = Point(), Point(), Point()


class Phase(nn.Module):
    """The points of a begin, a step or an end that makes so many calls and a state of these names."""

    def __init__(self, calls: int, state: State) -> None:
        super().__init__()
        self.calls = nn.ModuleList(Points() for _ in range(calls))
        self.state = nn.ModuleDict({f"hook_{name}": Point() for name in state})

    def passed(self, state: State, touched: list[str]) -> State:
        """The state, through its points; touched: the names of tensors that were changed on the way."""
        return {name: _through(self.state[f"hook_{name}"], value, touched) for name, value in state.items()}


class HookedCalls(Literal):
    """A literal reading whose calls pass the points of a phase, one after the other."""

    def __init__(self, phase: Phase, touched: list[str]) -> None:
        super().__init__()
        self._left, self._touched = [cast(Points, points) for points in phase.calls], touched

    def weigh(self, scores: Tensor) -> Tensor:
        points = self._left[0]
        weights = _through(points.hook_attn_scores, scores, self._touched).softmax(-1)
        return _through(points.hook_pattern, weights, self._touched)

    def give(self, found: Tensor) -> Tensor:
        return _through(self._left.pop(0).hook_z, found, self._touched)


def _through(point: nn.Module, value: Tensor, touched: list[str]) -> Tensor:
    """The tensor behind a hook point, whose name is noted if it is another, or has other numbers."""
    version = value._version
    found: Tensor = point(value)
    if found is not value or found._version != version:
        touched.append(str(point.name))
    return found


class HookedAlgorithm(Pairs, HookedRootModule):
    """`hooked(...)` takes what the model takes and checks it as the model does; the result is one tensor, in float64.

    begin, steps, end: where its points are. `hook_dict` has all of them by name. It has no weights of its own: it runs
    `model`, whose parameters they are.
    """

    def __init__(self, model: InContextNetwork, tokens: int | None = None) -> None:
        super().__init__()
        if tokens is not None:
            raise InputError(f"tokens={tokens!r:.40} is for compiled models; leave it out, since a call says how many "
                             f"examples a {type(model).__name__} is given.")  # fmt: skip
        self._model = [model]
        like = next(model.parameters()).detach().double()
        blank = [like.new_zeros(1, *shape) for shape in model.shapes(EXAMPLES).values()]
        first, step, last = Calls(), Calls(), Calls()
        state = model.begin(first, *blank)
        after = model.step(step, state)
        model.end(last, after)
        self.begin, self.end = Phase(len(first.shapes), state), Phase(len(last.shapes), {})
        self.steps = nn.ModuleList(Phase(len(step.shapes), after) for _ in range(model.steps))
        self.setup()
        self.mod_dict = Known(self.hook_dict)
        self.eval()

    @property
    def model(self) -> InContextNetwork:
        """The algorithm that is run: what is changed in its parameters is changed here."""
        return self._model[0]

    def __getattr__(self, name: str) -> Any:
        if name in OF_BLOCKS:
            raise MissingPartError(
                f"A learning algorithm with hook points has no {name}: it is steps, whose heads have no names and "
                "whose weights are in hooked.model. hooked.model.parameters() are those to edit, "
                "hooked.model.as_self_attention(examples) has them as matrices, and hooked.hook_dict all hook points."
            )
        return super().__getattr__(name)

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        rows = [
            ("steps", str(len(self.steps))),
            ("dtype", "torch.float64"),
            ("hook points", points_said(self.hook_dict)),
        ]
        return page(f"{type(self.model).__name__} with hook points", facts(rows))

    def forward(self, *prompt: Any, **named: Any) -> Tensor:
        [model] = self._model
        try:
            inspect.signature(model.forward).bind(*prompt, **named)
        except TypeError as error:
            takes = ", ".join(inspect.signature(model.forward).parameters)
            raise InputError(f"A {type(model).__name__} takes ({takes}), with hook points too: {error}.") from None
        given, touched = in_double(model.checked(*prompt, **named)), list[str]()
        states = [self.begin.passed(model.begin(HookedCalls(self.begin, touched), *given), touched)]
        for step in self.steps:
            phase = cast(Phase, step)
            states.append(phase.passed(model.step(HookedCalls(phase, touched), states[-1]), touched))
        result = model.joined(model.end(HookedCalls(self.end, touched), states[-1]))
        try:
            model.check_run(states, result)
        except OutsideBoundsError as error:
            if not touched:
                raise
            warnings.warn(f"After the hook at {touched[0]} the run left the declared bounds, and beyond them heads are "
                          f"not what they were built for. {error}", OutsideRangeWarning, stacklevel=2)  # fmt: skip
        return result
