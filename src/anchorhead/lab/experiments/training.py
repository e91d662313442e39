"""Training: whether models of attention alone learn as those with feed-forward layers do, at the same size.

A character model, two layers of width 64 with four heads, causal, predicts the next character of the sources of
Python's standard library, of which the last tenth is kept for validation. In the place of the feed-forward layers of
one stand

    persistent    keys and values that do not depend on the text, beside the text's own in the same softmax, as many as
                  give the same number of parameters (S. Sukhbaatar, E. Grave, G. Lample, H. Jegou, A. Joulin,
                  "Augmenting self-attention with persistent memory", arXiv 1907.01470, 2019)
    heads         the same two linear maps around proved heads of this library for gelu, whose values are trained too
                  (`ah.convert(..., trainable=True)`)

All begin with the same numbers where they share them, see the same text in the same order, and take the same steps of
AdamW. Afterwards `ah.recertify` proves how far the trained heads are from gelu.
"""

from __future__ import annotations

import math
import sysconfig
import time
from functools import cache
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import anchorhead as ah
from anchorhead.errors import DependencyError
from anchorhead.lab.experiment import Finding, Row, Rows, Setting, Table, Task, known
from anchorhead.lab.figures import Figures, spread

TITLE = "Training without feed-forward layers"
ABOUT = (
    "A character model on the sources of Python's standard library, with feed-forward layers, with persistent keys and "
    "values in their place, and with heads of this library whose values are trained. The same number of parameters, "
    "the same text, the same steps; loss in nats a character on text that was not seen."
)
CLOCKED = ("milliseconds",)
KINDS = {"feed-forward": "#7f7f7f", "persistent": "#1f5fa8", "heads": "#2a9d6f"}
WIDTH, HEADS, LAYERS, LENGTH, BATCH = 64, 4, 2, 64, 16
MOST_TEXT = 4_000_000
STEPS = 800


def tasks(quick: bool) -> list[Task]:
    return [Task({"kind": kind}, seed) for kind in reversed(KINDS) for seed in ((0,) if quick else (0, 1, 2))]


def run(setting: Setting, seed: int) -> list[Row]:
    """Loss on the text that was kept, ten times on the way, and the time of a step."""
    steps, text = STEPS, _text()
    kept = text[-len(text) // 10 :]
    model = _model(str(setting["kind"]), seed)
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    rate = torch.optim.lr_scheduler.OneCycleLR(optimiser, max_lr=3e-3, total_steps=steps)
    draw, rows, spent = torch.Generator().manual_seed(seed), list[Row](), 0.0
    for step in range(1, steps + 1):
        start = time.perf_counter()
        optimiser.zero_grad()
        loss = _loss(model, _batch(text[: -len(kept)], draw))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        rate.step()
        spent += time.perf_counter() - start
        if step % (steps // 10) == 0:
            rows.append({"step": step, "loss": _validation(model, kept)})
    size = sum(parameter.numel() for parameter in model.parameters())
    moved = ah.recertify(model).error if setting["kind"] == "heads" else math.nan
    return [{**row, "parameters": size, "moved": moved, "milliseconds": 1e3 * spent / steps} for row in rows]


@cache
def _text() -> Tensor:
    """The characters as whole numbers: printable ones of ASCII and the end of a line; all others are one."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    if not files:
        raise DependencyError("The sources of Python's standard library are not there; install them to train on them.")
    text = "\n".join(file.read_text(encoding="utf-8", errors="replace") for file in files)[:MOST_TEXT]
    codes = torch.tensor(bytearray(text.encode("ascii", "replace")), dtype=torch.long)
    return torch.where(codes == ord("\n"), 95, (codes - 32).clamp(0, 94))


def _batch(text: Tensor, draw: torch.Generator, count: int = BATCH) -> Tensor:
    starts = torch.randint(len(text) - LENGTH - 1, (count,), generator=draw)
    return text[starts[:, None] + torch.arange(LENGTH + 1)]


def _loss(model: nn.Module, batch: Tensor) -> Tensor:
    return F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())


def _validation(model: nn.Module, kept: Tensor) -> float:
    with torch.no_grad():
        return _loss(model, _batch(kept, torch.Generator().manual_seed(0), 256)).item()


def _model(kind: str, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    model = Characters(persistent=kind == "persistent")
    if kind != "heads":
        return model
    converted = ah.convert(model, trainable=True, inputs=torch.zeros(1, LENGTH, dtype=torch.long))
    return converted.train()


class Characters(nn.Module):
    """A causal character model; persistent: keys and values of its own instead of feed-forward layers."""

    def __init__(self, persistent: bool) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(96, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.layers = nn.ModuleList(Layer(4 * WIDTH if persistent else 0) for _ in range(LAYERS))
        self.norm, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 96)

    def forward(self, codes: Tensor) -> Tensor:
        x = self.token(codes) + self.place.weight[: codes.shape[1]]
        for layer in self.layers:
            x = layer(x)
        return self.out(self.norm(x))


class Layer(nn.Module):
    """Attention, and a feed-forward layer unless it has persistent keys and values."""

    def __init__(self, memory: int) -> None:
        super().__init__()
        self.norm, self.read, self.write = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.memory = memory
        if memory:
            self.keys, self.values = (nn.Parameter(torch.randn(HEADS, memory, WIDTH // HEADS) / 4) for _ in range(2))
        else:
            self.second = nn.LayerNorm(WIDTH)
            self.widen, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        causal = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
        self.register_buffer("seen", torch.cat([torch.ones(LENGTH, memory, dtype=torch.bool), causal], -1), False)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        parts = self.read(self.norm(x)).view(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        query, key, value = parts[0], parts[1], parts[2]
        if self.memory:
            key, value = (torch.cat([own.expand(batch, -1, -1, -1), text], 2)
                          for own, text in ((self.keys, key), (self.values, value)))  # fmt: skip
        seen = self.get_buffer("seen")[:length, : self.memory + length]
        blend = F.scaled_dot_product_attention(query, key, value, attn_mask=seen)
        x = x + self.write(blend.transpose(1, 2).reshape(batch, length, -1))
        return x if self.memory else x + self.narrow(F.gelu(self.widen(self.second(x))))


def figures(rows: Rows) -> Figures:
    found = Figures()
    title = "Loss on text that was not seen"
    with found.panel("training_loss", title, "steps", "nats a character", log="", columns=3) as axes:
        for kind, hue in KINDS.items():
            if len(mine := rows.where(kind=kind)):
                spread(axes, mine, "step", "loss", kind, color=hue, ls="--" if kind == "heads" else "-")
    return found


def findings(rows: Rows) -> list[Finding]:
    last = rows.where(step=max(rows.values("step")))
    table, losses = [], {}
    for kind, mine in last.by("kind"):
        losses[kind] = mine.mean("loss")
        each = " / ".join(f"{value:.3f}" for value in sorted(mine.column("loss")))
        table.append([str(kind), f"{mine.one('parameters'):,}", f"{losses[kind]:.3f}", each,
                      f"{mine.median('milliseconds'):.1f}", known(mine.largest("moved"))])  # fmt: skip
    base = losses.get("feed-forward", math.nan)
    said = ", ".join(f"{kind} {loss - base:+.3f}" for kind, loss in losses.items() if kind != "feed-forward")
    header = ["in the place of the feed-forward layer", "parameters", "loss", "each seed", "ms a step", "from gelu"]
    return [
        f"After {max(rows.values('step')):,} steps the loss differs from that with feed-forward layers, {base:.3f}, by "
        f"{said}. The last column is what was proved of the trained heads: how far each may be from gelu now.",
        Table(header, table),
    ]
