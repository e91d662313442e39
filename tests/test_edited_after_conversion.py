"""A report is told of the model that was converted; what is made of it afterwards is said, and not saved as that."""

import collections
import copy
import dataclasses
import functools
import gc
import math
import pickle
import types
import weakref

import pytest
import torch
from torch import nn

import anchorhead as ah

X = torch.randn(5, 8, generator=torch.Generator().manual_seed(0))


def block():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8), nn.Dropout(0.1))


def others_head(c):
    c[1] = ah.convert(nn.Sequential(nn.Linear(8, 8), nn.Tanh()), inputs=X)[1]


def others_inside(c):
    c[1].heads["activation"] = ah.convert(nn.Sequential(nn.Linear(8, 8), nn.Tanh()), inputs=X)[1].heads["activation"]


EDITS = {
    "another module": lambda c: c.__setitem__(1, nn.Tanh()),
    "nothing in its place": lambda c: c.__setitem__(1, nn.Identity()),
    "another head": others_head,
    "another head inside": others_inside,
    "one module more": lambda c: c.append(nn.Tanh()),
    "one module less": lambda c: c.pop(1),
    "another forward": lambda c: setattr(c[1], "forward", torch.sin),
    "another forward of the model": lambda c: setattr(c, "forward", lambda x: x),
    "a hook": lambda c: c[0].register_forward_hook(lambda m, a, out: out.sin()),
    "a hook before": lambda c: c[1].register_forward_pre_hook(lambda m, a: (a[0].sin(),)),
    "a hook within a head": lambda c: c[1].heads["activation"].register_forward_hook(lambda m, a, out: out.sin()),
    "a setting": lambda c: setattr(c[3], "p", 0.5),
    "a layer of which a bound is claimed": lambda c: c.__setitem__(2, nn.Linear(8, 8)),
}


@pytest.mark.parametrize("name", EDITS)
def test_a_model_that_was_edited_is_not_reported_as_it_was_nor_saved(name, tmp_path):
    converted = ah.convert(block(), inputs=X)
    assert converted.report.pure
    assert not converted.report.changed
    EDITS[name](converted)
    assert not converted.report.pure
    assert not converted.report.watched
    assert "the model was changed after it was converted" in str(converted.report)
    assert "differ by" not in str(converted.report)
    with pytest.raises(ah.InputError, match="changed after it was converted"):
        ah.save_converted(converted, tmp_path / "out")
    gone = "another module" in name or "nothing" in name or ("head" in name and "hook" not in name)
    assert len(converted.report.replaced) == (0 if gone or name in ("one module less", "another forward") else 1)


OTHER_FORWARDS = {
    "of the place": lambda c: setattr(c[1], "forward", torch.relu),
    "a partial": lambda c: setattr(c[1], "forward", functools.partial(torch.relu)),
    "of the head inside": lambda c: setattr(c[1].heads["activation"], "forward", torch.relu),
}


@pytest.mark.parametrize("name", OTHER_FORWARDS)
def test_a_place_whose_head_runs_otherwise_has_no_row(name):
    converted = ah.convert(block(), inputs=X)
    assert len(converted.report.replaced) == 1
    OTHER_FORWARDS[name](converted)
    assert not converted.report.replaced
    assert "proved" not in str(converted.report)
    assert converted.report.changed


HOOKS = torch.nn.modules.module
EVERYWHERE = {
    "forward hooks": (HOOKS.register_module_forward_hook, lambda m, given, made: made.relu()),
    "hooks before a forward": (HOOKS.register_module_forward_pre_hook, lambda m, given: (given[0].relu(),)),
    "backward hooks": (HOOKS.register_module_full_backward_hook, lambda m, given, made: None),
    "hooks before a backward": (HOOKS.register_module_full_backward_pre_hook, lambda m, made: None),
}


@pytest.mark.parametrize("name", EVERYWHERE)
def test_a_hook_of_all_modules_is_a_change_until_it_is_removed(name, tmp_path):
    converted = ah.convert(block(), inputs=X)
    register, hook = EVERYWHERE[name]
    handle = register(hook)
    try:
        assert converted.report.changed == [f"all modules have other {name}"]
        assert not converted.report.pure
        with pytest.raises(ah.InputError, match=name):
            ah.save_converted(converted, tmp_path / "out")
    finally:
        handle.remove()
    assert not converted.report.changed
    assert converted.report.pure


def test_a_hook_of_all_modules_that_was_there_is_seen_and_missed_when_it_is_gone():
    handle = HOOKS.register_module_forward_hook(lambda m, given, made: made.relu() if m is converted else None)
    try:
        converted = None
        converted = ah.convert(block(), inputs=X)
        assert not converted.report.changed
    finally:
        handle.remove()
    assert converted.report.changed == ["all modules have other forward hooks"]


def test_a_hook_that_is_removed_was_no_change(tmp_path):
    converted = ah.convert(block(), inputs=X)
    held = converted[1].register_forward_hook(lambda m, a, out: None)
    assert not converted.report.pure
    held.remove()
    assert converted.report.pure
    ah.save_converted(converted, tmp_path / "out")


def trained(c):
    adam = torch.optim.Adam(c.parameters(), 0.01)
    c.train()(X).square().mean().backward()
    adam.step()
    ah.recertify(c)


ALLOWED = {
    "half": lambda c: c.half(),
    "bfloat16 and back": lambda c: c.to(torch.bfloat16).float(),
    "double": lambda c: c.double(),
    "training": trained,
    "train mode": lambda c: c.train(),
    "frozen": lambda c: c.requires_grad_(False),
    "runs": lambda c: c(X),
    "weights": lambda c: c.load_state_dict(c.state_dict()),
    "kernels": ah.warm,
}


@pytest.mark.parametrize("trainable", [False, True])
@pytest.mark.parametrize("name", ALLOWED)
def test_weights_and_dtypes_may_change(name, trainable, tmp_path):
    converted = ah.convert(block(), inputs=X, trainable=trainable)
    ALLOWED[name](converted)
    assert not converted.report.changed
    assert converted.report.pure == (name not in ("half", "double"))  # what ran in another dtype was not seen
    assert converted.report.watch().pure
    ah.save_converted(converted, tmp_path / "out")
    assert ah.load_converted(tmp_path / "out", block()).report.pure


WIDER = {
    "double": lambda c: c.double(),
    "half, then double": lambda c: c.half().double(),
    "double and back": lambda c: c.double().float(),
    "one place alone": lambda c: c[3].double(),
}


def two_of(kind):
    """A model in which two places have the same head."""
    torch.manual_seed(0)
    width = 16 if kind is nn.GLU else 8
    return nn.Sequential(nn.Linear(8, width), kind(), nn.Linear(8, width), kind())


@pytest.mark.parametrize("kind", [nn.GELU, nn.GLU])
@pytest.mark.parametrize("name", WIDER)
def test_places_that_share_a_head_share_it_in_float64(name, kind, tmp_path):
    converted = ah.convert(two_of(kind), inputs=X)
    WIDER[name](converted)
    first, second = converted[1], converted[3]
    assert first.heads["activation"] is second.heads["activation"]
    assert first.head.dtype == torch.float64
    assert not converted.report.changed
    assert converted.report.watch().pure
    assert first.proved
    assert second.proved
    assert {row.heads[0].dtype for row in converted.report.replaced} == {"float64"}
    x, exact = torch.linspace(-20, 20, 64, dtype=first._like.dtype).reshape(4, 16), kind().double()
    row = converted.report.replaced[0]
    allowed = (row.error + row.rounding * 21) * 21 + row.relative * 21 + row.least
    assert (first(x).double() - exact(x.double())).abs().max() <= allowed
    ah.save_converted(converted, tmp_path / "out")
    assert ah.verify(tmp_path / "out")
    assert ah.load_converted(tmp_path / "out", two_of(kind)).report == converted.report


def test_a_model_that_is_watched_again_in_float64_is_still_pure():
    converted = ah.convert(two_of(nn.GELU), inputs=X).double()
    assert converted.report.watch().pure


def test_heads_that_are_trained_are_trained_in_float64_too():
    converted = ah.convert(block(), inputs=X, trainable=True)
    held = dict(converted.named_parameters())
    wanted = {name for name, p in held.items() if p.requires_grad}
    converted.double()
    after = dict(converted.named_parameters())
    assert all(after[name] is held[name] for name in held)
    assert {name for name, p in after.items() if p.requires_grad} == wanted
    converted(X.double()).square().mean().backward()
    with torch.no_grad():
        converted[1].head.constants.add_(1e-3 * torch.randn(converted[1].keys))
    assert not converted[1].proved
    assert ah.recertify(converted).heads[0].changed


def test_numbers_that_were_changed_are_not_proved_in_float64_either():
    converted = ah.convert(two_of(nn.GELU), inputs=X)
    with torch.no_grad():
        converted[1].head.constants[0] += 1
    converted.double()
    assert not converted[1].proved
    assert not converted[3].proved


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_a_copy_has_a_report_of_its_own(copied):
    converted = ah.convert(block(), inputs=X)
    again = copied(converted)
    assert again.report.pure
    assert again.report.model is again
    again[1] = nn.Tanh()
    assert not again.report.pure
    assert converted.report.pure
    del converted[1]
    assert not converted.report.pure


@pytest.mark.parametrize("name", EDITS)
def test_a_report_that_is_all_that_is_kept_says_what_its_model_has_become(name):
    def report():
        converted = ah.convert(block(), inputs=X)
        EDITS[name](converted)
        return converted.report

    kept = report()
    gc.collect()
    assert kept.changed
    assert not kept.pure
    assert "the model was changed after it was converted" in str(kept)


def test_a_report_that_is_all_that_is_kept_says_the_dtype_that_its_model_has_now():
    assert ah.convert(block(), inputs=X).report.pure
    half = ah.convert(block(), inputs=X).to(torch.bfloat16).report
    gc.collect()
    assert half.replaced[0].dtype == "bfloat16"
    assert not half.pure
    assert half.watch().pure
    gone = weakref.ref(half.model)
    del half
    gc.collect()
    assert gone() is None


class Counts(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.act, self.calls, self.seen, self.cache = nn.Linear(8, 8), nn.GELU(), 0, [], None

    def forward(self, x):
        self.calls += 1
        self.seen.append(self.calls)
        return self.act(self.a(x))


def test_state_that_a_forward_keeps_is_no_change(tmp_path):
    converted = ah.convert(Counts(), inputs=X)
    converted(X)
    converted.cache, converted.compiled = 3, torch.compile(lambda x: x)
    assert converted.report.pure
    ah.save_converted(converted, tmp_path / "out")


@dataclasses.dataclass
class Stats:
    shift: torch.Tensor


class Slots:
    __slots__ = ("shift",)

    def __init__(self, shift):
        self.shift = shift


class Holds(nn.Module):
    def __init__(self, hold):
        super().__init__()
        self.a, self.act = nn.Linear(8, 8), nn.GELU()
        self.kept = hold(torch.ones(8))

    def forward(self, x):
        return self.act(self.a(x))


def around(t):
    return lambda x: x + t


HELD = {
    "a dataclass": Stats,
    "a namespace": lambda t: types.SimpleNamespace(shift=t),
    "a deque": lambda t: collections.deque([t]),
    "slots": Slots,
    "a set": lambda t: {t},
    "a partial": lambda t: functools.partial(torch.add, t),
    "a closure": around,
    "a default": lambda t: lambda x, t=t: x + t,
    "a bound method": lambda t: t.add,
    "an array": lambda t: t.numpy(),
    "arrays in a list": lambda t: [t.numpy()],
    "bytes": lambda t: t.numpy().tobytes(),
    "modules in a list": lambda t: [nn.Linear(8, 8)],
    "a distribution": lambda t: torch.distributions.Normal(t, t),
    "an object in a list": lambda t: [{"a": Stats(t)}],
}


@pytest.mark.parametrize("name", HELD)
def test_what_no_folder_holds_is_refused_by_name(name, tmp_path):
    converted = ah.convert(Holds(HELD[name]), inputs=X)
    with pytest.raises(ah.InputError, match="kept holds"):
        ah.save_converted(converted, tmp_path / "out")


def test_a_module_that_is_an_attribute_and_not_registered_is_refused(tmp_path):
    model = Holds(lambda t: 1)
    vars(model)["other"] = nn.Linear(8, 8)
    with pytest.raises(ah.InputError, match="other holds a Linear"):
        ah.save_converted(ah.convert(model, inputs=X), tmp_path / "out")


def test_names_of_what_is_registered_are_no_other_place(tmp_path):
    model = Holds(lambda t: [t, {"a": (t + 1,)}])
    model.again, model.by = [model.a], functools.partial(nn.functional.linear, weight=model.a.weight)
    ah.save_converted(ah.convert(model, inputs=X), tmp_path / "out")
    assert ah.load_converted(tmp_path / "out", Holds(lambda t: [0 * t, {"a": (t,)}]))


def test_a_difference_from_the_original_is_not_stated_of_trained_heads(tmp_path):
    converted = ah.convert(block(), inputs=X, trainable=True)
    assert "when it was converted the outputs differed by at most" in str(converted.report)
    adam = torch.optim.Adam(converted.parameters(), 0.05)
    for _ in range(3):
        adam.zero_grad()
        (converted(X) - 3).square().mean().backward()
        adam.step()
    assert "differed" not in str(converted.report)
    with pytest.raises(ah.InputError, match="recertify"):
        ah.save_converted(converted, tmp_path / "out")
    found = ah.recertify(converted)
    assert str(found).startswith("1 head, proved, errors up to")
    ah.save_converted(converted, tmp_path / "out")
    said = (tmp_path / "out" / "README.md").read_text(), str(converted.report)
    said = *said, str(ah.load_converted(tmp_path / "out", block()).report)
    assert not any("differed" in text for text in said)
    assert all("heads were changed since" in text for text in said)
    assert ah.verify(tmp_path / "out").level == "proved"


def test_an_edited_head_is_the_same_model_and_not_proved():
    """As docs/converting.md has it: it runs the same operations, and its row and the second line say the rest."""
    model = ah.convert(nn.Sequential(nn.Linear(8, 8), nn.GELU()))
    with torch.no_grad():
        model[1].heads["activation"].constants.add_(1e-3)
    report = model.report
    assert (report.changed, report.pure) == ([], True)
    assert report.replaced[0].error == math.inf
    assert str(report).splitlines()[1].startswith("numbers of heads were changed after their proof")
    assert 1e-3 < ah.recertify(model).error < 1.1e-3
