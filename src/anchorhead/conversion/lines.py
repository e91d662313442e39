"""Which line of the model's own code runs, also where conversion has written a forward anew.

A forward that was traced is text made of its graph, each line of which ends with where it came from, as a comment. One
with heads in its source keeps its lines, and says which file they are of, but not as that file, whose text it is not.
"""

from __future__ import annotations

import hashlib
import re
import sys
from pathlib import Path
from types import CodeType, FrameType

import torch
from torch import fx

LINE = "line"
"""Where a node of a traced graph came from, among its notes."""
HEADED, END = "<heads in ", ">"
MARK = "  # "
PACKAGES = (str(Path(torch.__file__).parent), str(Path(__file__).parents[1]), "<")
ASSIGNED = re.compile(r"(\w+)(?: : [^=]+)? = ")
FRAME = re.compile(r'File "([^\n]+)", line (\d+), in ')
_texts: dict[str, list[str]] = {}


def running_line(until: CodeType) -> str:
    """The innermost line of code that is neither torch's nor this package's, within what runs this code."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not until:
        if found := _line(frame.f_code.co_filename, frame.f_lineno):
            return found
        frame = frame.f_back
    return ""


def traced_line(stack: str) -> str:
    """The same in the text of a stack."""
    return next(filter(None, (_line(name, int(number)) for name, number in reversed(FRAME.findall(stack)))), "")


def _line(name: str, number: int) -> str:
    """A line of a file, or what a line was made of; nothing for those of torch and of this package."""
    if name in _texts:
        _, mark, at = _texts[name][number - 1].rpartition(MARK)
        return at if mark else ""
    if name.startswith(HEADED):
        return f"{Path(name.removeprefix(HEADED).removesuffix(END)).name}:{number}"
    return "" if name.startswith(PACKAGES) else f"{Path(name).name}:{number}"


def with_lines(text: str, graph: fx.Graph) -> str:
    """The text of a graph, with where each line came from."""
    known = {node.name: node.meta.get(LINE) for node in graph.nodes if node.op != "placeholder"}
    found = ((line, ASSIGNED.search(line)) for line in text.splitlines())
    return "\n".join(f"{line}{MARK}{at}" if made and (at := known.get(made[1])) else line for line, made in found)


def name_of(text: str) -> str:
    """A name for such a text when it is compiled, by which its lines are found."""
    name = f"<rewritten forward {hashlib.sha256(text.encode()).hexdigest()[:16]}>"
    _texts[name] = text.splitlines()
    return name
