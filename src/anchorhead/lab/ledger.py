"""An experiment's results as CSV: appended as they come, read when a stopped run resumes, put in order at the end.

A line is a setting, a seed, which of how many rows of that task it is, and the numbers, floats with all their digits.
A task counts as done when all of its rows are there, so that a line or a block cut off by a kill is computed again and
nothing else is. When all is done the lines are put into the order of the grid: the file then depends neither on
the number of workers nor on who finished first. Times go to a file of their own, since they never repeat.
"""

from __future__ import annotations

import csv
import io
import os
from pathlib import Path

from anchorhead.errors import FileError
from anchorhead.lab.experiment import Experiment, Row, Task, Value

PLACE = ("seed", "row", "rows")
Key = tuple[str, ...]


class Ledger:
    """The results of one experiment in a folder: NAME.csv, and NAME.times.csv where something is clocked."""

    def __init__(self, folder: Path, experiment: Experiment, tasks: list[Task]) -> None:
        self.experiment, self.tasks = experiment, tasks
        self.names = [*tasks[0].setting, *PLACE]
        self.path = folder / f"{experiment.name}.csv"
        self.files = [(self.path, self._steady)]
        if experiment.clocked:
            self.files.append((folder / f"{experiment.name}.times.csv", self._clocked))
        self.done = self._read()

    def missing(self) -> list[Task]:
        """What is still to be run."""
        return [task for task in self.tasks if self.key(task) not in self.done]

    def key(self, task: Task) -> Key:
        return (*(_text(v) for v in task.setting.values()), str(task.seed))

    def add(self, task: Task, rows: list[Row]) -> None:
        """Writes one task's rows and remembers them."""
        whole = [{**task.setting, "seed": task.seed, "row": i, "rows": len(rows), **r} for i, r in enumerate(rows, 1)]
        for path, part in reversed(self.files):
            _append(path, [part(r) for r in whole])
        self.done[self.key(task)] = whole

    def rows(self) -> list[Row]:
        """The rows of the grid's tasks, in the grid's order."""
        return [row for task in self.tasks for row in self.done[self.key(task)]]

    def finish(self) -> None:
        """Puts the files into the grid's order; tasks of an earlier, other grid stay behind it."""
        mine = [self.key(task) for task in self.tasks]
        order = dict.fromkeys([*mine, *(k for k in sorted(self.done) if k not in set(mine))])
        self._rewrite([row for key in order for row in self.done[key]])

    def _steady(self, row: Row) -> Row:
        return {name: value for name, value in row.items() if name not in self.experiment.clocked}

    def _clocked(self, row: Row) -> Row:
        return {name: row[name] for name in (*self.names, *self.experiment.clocked)}

    def _rewrite(self, rows: list[Row]) -> None:
        for path, part in self.files:
            beside = path.with_suffix(".part")
            beside.write_text(_lines([part(r) for r in rows], header=True), encoding="utf-8", newline="")
            beside.replace(path)

    def _read(self) -> dict[Key, list[Row]]:
        """The tasks whose rows are all there; what was cut off is taken out of the file."""
        found = self._whole(self.path)
        for path, _ in self.files[1:]:
            times = self._whole(path)
            found = {
                key: [{**t, **r} for t, r in zip(times[key], rows, strict=True)]
                for key, rows in found.items()
                if len(times.get(key, ())) == len(rows)
            }
        if any(path.exists() for path, _ in self.files):
            self._rewrite([row for rows in found.values() for row in rows])
        return found

    def _whole(self, path: Path) -> dict[Key, list[Row]]:
        if not path.exists():
            return {}
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise FileError(f"{path} cannot be read: {error}. Remove it, or choose another folder.") from error
        reader = csv.DictReader(io.StringIO(text[: text.rfind("\n") + 1], newline=""))
        if reader.fieldnames is not None and list(reader.fieldnames[: len(self.names)]) != self.names:
            raise FileError(
                f"{path} holds other columns than this version's {self.experiment.name} has. Choose another folder, "
                "or remove that file."
            )
        tasks: dict[Key, list[Row]] = {}
        width = len(self.names) - len(PLACE)
        for line in reader:
            if None in line.values() or None in line:
                continue
            key = (*list(line.values())[:width], line["seed"])
            tasks.setdefault(key, []).append({name: _value(v) for name, v in line.items()})
        return {key: rows for key, rows in tasks.items() if len(rows) == rows[0]["rows"]}


def _append(path: Path, rows: list[Row]) -> None:
    new = not path.exists() or path.stat().st_size == 0
    with path.open("a", newline="", encoding="utf-8") as file:
        file.write(_lines(rows, header=new))
        file.flush()
        os.fsync(file.fileno())


def _lines(rows: list[Row], header: bool) -> str:
    if not rows:
        return ""
    out = io.StringIO(newline="")
    writer = csv.DictWriter(out, list(rows[0]), lineterminator="\n")
    if header:
        writer.writeheader()
    writer.writerows({name: _text(v) for name, v in row.items()} for row in rows)
    return out.getvalue()


def _text(value: Value) -> str:
    return repr(value) if isinstance(value, float) else str(value)


def _value(text: str) -> Value:
    for read in (int, float):
        try:
            return read(text)
        except ValueError:
            continue
    return text
