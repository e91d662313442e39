"""Forwards that change their own state, or overwrite what others read, compute the same after conversion."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import anchorhead as ah

X = torch.randn(3, 6, 8, generator=torch.Generator().manual_seed(0))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.act, self.count, self.kept, self.by_name = nn.Linear(8, 8), nn.GELU(), 1.0, [], {}
        self.register_buffer("steps", torch.ones(()))

    def bump(self):
        self.count += 1


def counts(self, x):
    self.count += 1
    return self.act(self.a(x)) * self.count


def counts_beside_a_call(self, x):
    self.count += 1
    return F.gelu(self.a(x)) * self.count


def counts_in_a_method(self, x):
    self.bump()
    return F.gelu(self.a(x)) * self.count


def adds_to_a_buffer(self, x):
    self.steps.add_(1)
    return F.gelu(self.a(x)) * self.steps


def assigns_to_a_buffer(self, x):
    self.steps += 1
    return F.gelu(self.a(x)) * self.steps


def appends(self, x):
    self.kept.append(x)
    return F.gelu(self.a(x)) * len(self.kept)


def sets_an_attribute(self, x):
    setattr(self, "count", self.count + 1)  # noqa: B010
    return F.gelu(self.a(x)) * self.count


def sets_a_name(self, x):
    self.by_name["n"] = self.by_name.get("n", 0) + 1
    return F.gelu(self.a(x)) * self.by_name["n"]


def sets_its_own_dictionary(self, x):
    vars(self)["count"] = self.count + 1
    return self.act(self.a(x)) * self.count


def remembers(self, x):
    h = self.a(x)
    if "h" in self.by_name:
        h = h + self.by_name["h"]
    self.by_name["h"] = h
    return F.gelu(h)


def gates_in_place(self, x):
    h = self.a(x)
    v = h
    v *= torch.sigmoid(h)
    return v + h


def gates_its_result_in_place(self, x):
    h = F.silu(self.a(x))
    h *= self.a(x)
    return h


def adds_in_place(self, x):
    h = self.a(x)
    before = h
    h += F.gelu(h)
    return h + before


def writes_to_a_view(self, x):
    h = self.a(x)
    rows = h.view(-1, 8)
    rows += 1
    h[..., 0] = 0.0
    return F.gelu(h)


FORWARDS = [counts, counts_beside_a_call, counts_in_a_method, adds_to_a_buffer, assigns_to_a_buffer, appends,
            sets_an_attribute, sets_a_name, sets_its_own_dictionary, remembers, gates_in_place,
            gates_its_result_in_place, adds_in_place, writes_to_a_view]  # fmt: skip


@pytest.mark.parametrize("forward", FORWARDS, ids=lambda f: f.__name__)
def test_three_calls_give_what_the_original_gives(forward):
    kind = type("Stateful", (Block,), {"forward": forward})
    model, original = kind(), kind()
    converted = ah.convert(model, inputs=X.clone())
    assert converted.report.replaced
    assert (model.count, model.kept, model.by_name, model.steps.item()) == (1.0, [], {}, 1.0)
    for _ in range(3):
        assert (converted(X.clone()) - original(X.clone())).abs().max() < 1e-5


def test_a_product_in_place_of_what_an_activation_returned_is_a_gate():
    kind = type("Gated", (Block,), {"forward": gates_its_result_in_place})
    report = ah.convert(kind(), inputs=X).report
    assert "gate" in [row.kind for row in report.replaced]
    assert report.pure
