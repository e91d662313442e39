"""What a long run shows: a bar for each experiment and what is running; plain lines where there is no terminal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from anchorhead.lab.sweep import State, Watch


@contextmanager
def shown(console: Console) -> Iterator[Watch]:
    """A function to tell how a sweep stands."""
    if console.is_terminal:
        with _bars(console) as watch:
            yield watch
    else:
        yield _lines(console)


@contextmanager
def _bars(console: Console) -> Iterator[Watch]:
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, TextColumn("[dim]{task.fields[now]}"), console=console) as progress:
        bars: dict[str, TaskID] = {}

        def watch(state: State) -> None:
            for name, total in state.total.items():
                if name not in bars:
                    bars[name] = progress.add_task(name, total=total, now="", start=False)
                now = [r.removeprefix(f"{name}: ") for r in state.running if r.startswith(f"{name}: ")]
                if now and not progress.tasks[bars[name]].started:
                    progress.start_task(bars[name])
                progress.update(bars[name], completed=state.done[name], now=" | ".join(_cut(n) for n in now[:2]))

        yield watch


def _cut(text: str) -> str:
    return text if len(text) <= 44 else text[:43] + "…"


def _lines(console: Console) -> Watch:
    """One line when an experiment is done, or a tenth of all."""
    said: dict[str, int] = {}

    def watch(state: State) -> None:
        for name, total in state.total.items():
            tenth = 10 * state.done[name] // total
            if state.done[name] and tenth > said.get(name, 0):
                said[name] = tenth
                left = sum(state.total.values()) - sum(state.done.values())
                console.print(f"{name}: {state.done[name]} of {total}; {left} tasks remain", highlight=False)

    return watch
