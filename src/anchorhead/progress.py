"""What a long call says of itself: progress for people, lines for the log, and a sentence where it was stopped.

`progress` means the same in every call. True, the default: once the call has taken two seconds, its latest line is
shown on stderr, if that is a terminal, or below the cell of a notebook. False: nothing is shown. A function: it is
given every line. A call within another one speaks through that one, so that silence, too, is of the whole.

The log is Python's, under the name `anchorhead`: INFO has what was asked, the routes, what was proved and what was
refused, DEBUG every line of progress. Nothing is printed unless the program that uses the library asks for it.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from anchorhead.errors import AnchorheadError, InputError

Progress = Callable[[str], None]
LOG = logging.getLogger("anchorhead")
AFTER = 2.0
"""Seconds after which a call shows its progress."""
_OUTER: ContextVar[Progress | None] = ContextVar("anchorhead progress", default=None)
"""Of the call that this one is part of."""
_SHOWING = threading.Lock()
"""Held while a terminal shows a call's progress."""


@contextmanager
def telling(what: str, progress: Any = True) -> Iterator[Progress]:
    """For the length of a call, which is `what`, as in "compiling gelu(x)": a function that takes its lines.

    An error of this package is logged as a refusal. Ctrl-C ends in a KeyboardInterrupt that says what was stopped.
    """
    last = ""
    with _shown(what, progress) as show:

        def tell(line: str) -> None:
            nonlocal last
            last = line
            LOG.debug("%s: %s", what, line)
            show(line)

        token = _OUTER.set(tell)
        LOG.info("%s", what)
        try:
            yield tell
        except KeyboardInterrupt as stop:
            if str(stop):
                raise
            at = f", at: {last}" if last else ""
            raise KeyboardInterrupt(f"Stopped while {what}{at}.") from None
        except AnchorheadError as error:
            LOG.info("%s: refused: %s", what, error)
            raise
        finally:
            _OUTER.reset(token)


def tell_outer(line: str) -> None:
    """Tells a line to the call that this is part of, if there is one."""
    outer = _OUTER.get()
    if outer is not None:
        outer(line)


def _shown(what: str, progress: Any) -> Any:
    """Where lines go, for the length of a call."""
    if progress is None or progress is False:
        return _to(_nowhere)
    if progress is not True:
        if not callable(progress):
            raise InputError(f"progress={progress!r:.40} must be True, False, or a function that takes a line of text.")
        return _to(progress)
    outer = _OUTER.get()
    if outer is not None:
        return _to(outer)
    if _in_notebook():
        return _below_the_cell(what)
    return _on_terminal(what) if sys.stderr is not None and sys.stderr.isatty() else _to(_nowhere)


def _nowhere(line: str) -> None:
    """Nobody listens."""


@contextmanager
def _to(progress: Progress) -> Iterator[Progress]:
    yield progress


@contextmanager
def _on_terminal(what: str) -> Iterator[Progress]:
    """A line that is written over, once the call has taken a while; it is gone afterwards. Of calls in several threads
    one is shown."""
    try:
        from rich.console import Console
        from rich.text import Text
    except ModuleNotFoundError:  # proofs are checked where python-flint is all there is
        yield _nowhere
        return
    if not _SHOWING.acquire(blocking=False):
        yield _nowhere
        return
    status = Console(stderr=True).status(Text(_printable(what)))
    timer = threading.Timer(AFTER, status.start)
    timer.daemon = True
    timer.start()
    try:
        yield lambda line: status.update(Text(_printable(line)))
    finally:
        timer.cancel()
        timer.join()
        status.stop()
        _SHOWING.release()


@contextmanager
def _below_the_cell(what: str) -> Iterator[Progress]:
    """One output that is written over; empty afterwards."""
    from IPython.display import display

    begun = time.monotonic()
    handles: list[Any] = []

    def show(line: str) -> None:
        if time.monotonic() - begun < AFTER:
            return
        data = {"text/plain": _printable(line)}
        if handles:
            handles[0].update(data, raw=True)
        else:
            handles.append(display(data, raw=True, display_id=True))

    try:
        yield show
    finally:
        for handle in handles:
            handle.update({"text/plain": ""}, raw=True)


def _in_notebook() -> bool:
    """Whether this runs in a kernel, whose outputs stand below cells."""
    shell = sys.modules.get("IPython")
    return shell is not None and getattr(shell.get_ipython(), "kernel", None) is not None


def _printable(line: str) -> str:
    """The line without what would move a terminal's cursor."""
    return "".join(c if c.isprintable() else " " for c in line)
