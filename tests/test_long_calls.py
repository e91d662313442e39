"""Calls that take long say so, can be silenced and stopped, and write to the log what they did; no timing, no sleep."""

import logging
import os
import pty
import re
import signal
import subprocess
import sys
import textwrap
import types

import pytest
import torch
from typer.testing import CliRunner

import anchorhead as ah
from anchorhead import progress
from anchorhead.cli import app
from anchorhead.progress import telling

CALLS = {
    "compile": lambda p: ah.compile("gelu(x)", tol=1e-2, progress=p),
    "plan": lambda p: ah.plan("tanh(x)", (-1, 1), tol=1e-1, progress=p),
    "convert": lambda p: ah.convert(torch.nn.Sequential(torch.nn.ReLU()), tol=1e-3, progress=p),
    "prompts": lambda p: ah.in_context.compile("mean(x)*q", {"x": (-1, 1)}, {"q": (0, 1)}, tol=1e-3, progress=p),
    "descent": lambda p: ah.in_context.gradient_descent(
        "squared", features=1, examples=4, steps=1, learning_rate=0.1, progress=p
    ),
    "newton": lambda p: ah.in_context.newton(features=1, examples=4, steps=2, l2=0.1, progress=p),
    "kernels": lambda p: ah.in_context.kernel_regression(1, 1.0, examples=10, progress=p),
    "ridge": lambda p: ah.in_context.kernel_ridge(1, 1.0, 0.5, 2, examples=10, progress=p),
    "neighbours": lambda p: ah.in_context.nearest_neighbour(1, 0.5, examples=10, progress=p),
    "clipped": lambda p: ah.in_context.truncated_linear(features=1, low=-1, high=1, progress=p),
    "measures": lambda p: ah.in_context.universal(
        lambda x, w: w @ x[:, 0], {"x": (0, 1)}, 2, 2, lipschitz=1.0, progress=p
    ),
    "program": lambda p: ah.program(ah.compile("relu(x)", (-1, 1), tol=1e-3), tol=1e-3, progress=p),
}


@pytest.mark.parametrize("name", CALLS)
def test_one_keyword_means_the_same_everywhere(name):
    lines = []
    CALLS[name](lines.append)
    assert all(isinstance(line, str) and line for line in lines)
    CALLS[name](False)
    for wrong in (3, "yes", 0, 1.0):
        with pytest.raises(ah.InputError, match="must be True, False, or a function that takes a line of text"):
            CALLS[name](wrong)


def test_verify_tells_how_many_boxes_are_done(tmp_path):
    ah.compile("gelu(x)", tol=1e-3).save(tmp_path / "one")
    lines = []
    boxes = ah.verify(tmp_path / "one", progress=lines.append).boxes
    assert lines[-1] == f"{boxes} of {boxes} boxes"
    with pytest.raises(ah.InputError, match="progress=3"):
        ah.verify(tmp_path / "one", progress=3)


def test_calls_within_a_call_speak_through_it():
    lines = []
    with telling("all of it", lines.append):
        ah.compile("gelu(x)", tol=1e-2)
        assert lines
        lines.clear()
        ah.compile("gelu(x)", tol=1e-2, progress=False)
        assert not lines
    with telling("in silence", False):
        ah.compile("gelu(x)", tol=1e-2)
    assert not lines


SHOWS = """
import anchorhead as ah
from anchorhead import progress
progress.AFTER = 0.0
import anchorhead.compiler.search as search
kept = search.Search.attempt
def attempt(self, keys):
    import select
    select.select([], [], [], 0.2)   # long enough for the line to be drawn
    return kept(self, keys)
search.Search.attempt = attempt
ah.compile("gelu(x)", tol=1e-2, progress=PROGRESS)
"""


def run_on_terminal(script):
    """What a script writes to its terminal, which is its stderr."""
    ours, theirs = pty.openpty()
    child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.DEVNULL, stderr=theirs,
                             env=os.environ | {"TERM": "xterm", "COLUMNS": "80"})  # fmt: skip
    os.close(theirs)
    found = b""
    while True:
        try:
            part = os.read(ours, 4096)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        found += part
    assert child.wait() == 0
    os.close(ours)
    return found.decode()


def test_a_terminal_sees_what_is_tried():
    assert re.search(r"gated: \d+ keys", run_on_terminal(SHOWS.replace("PROGRESS", "True")))


def test_silence_is_silence():
    assert run_on_terminal(SHOWS.replace("PROGRESS", "False")) == ""


def test_nothing_is_written_where_nobody_looks(capfd, monkeypatch):
    monkeypatch.setattr(progress, "AFTER", 0.0)
    ah.compile("gelu(x)", tol=1e-2)
    assert capfd.readouterr() == ("", "")


class Handle:
    """What IPython's display returns."""

    def __init__(self, shown):
        self.shown = shown

    def update(self, data, raw):
        assert raw
        self.shown.append(data["text/plain"])


def test_a_notebook_sees_one_line_that_is_gone_afterwards(monkeypatch):
    shown = []

    def display(data, *, raw, display_id):
        assert raw
        assert display_id
        shown.append(data["text/plain"])
        return Handle(shown)

    shell = types.ModuleType("IPython")
    shell.get_ipython = lambda: types.SimpleNamespace(kernel=object())
    drawing = types.ModuleType("IPython.display")
    drawing.display = display
    monkeypatch.setitem(sys.modules, "IPython", shell)
    monkeypatch.setitem(sys.modules, "IPython.display", drawing)
    monkeypatch.setattr(progress, "AFTER", 0.0)
    ah.compile("gelu(x)", tol=1e-2)
    assert any("gated" in line for line in shown)
    assert shown[-1] == ""
    shown.clear()
    ah.compile("gelu(x)", tol=1e-2, progress=False)
    assert not shown


HOSTILE = """
import select
from anchorhead import progress
progress.AFTER = 0.0
with progress.telling("reading") as tell:
    tell("[/bold] [red]x[/red] \\x1b]0;title\\x07")
    select.select([], [], [], 0.3)
"""


def test_lines_are_no_markup_and_cannot_control_the_terminal():
    told = run_on_terminal(HOSTILE)
    assert "[/bold] [red]x[/red]" in told
    assert "\x1b]0;" not in told


# Ctrl-C

STOPPED = """
import select, sys
import anchorhead.compiler.search as search
from anchorhead.__main__ import main

def attempt(self, keys):
    self.progress(f"gated: {keys} keys")
    print("ready", flush=True)
    while True:
        select.select([], [], [])

search.Search.attempt = attempt
sys.argv = ["anchorhead", *ARGUMENTS]
main()
"""


def interrupted(script, *, group=False):
    """A script that says "ready", is then sent Ctrl-C, and ends: its code and what it wrote to stderr."""
    heard = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)  # which jobs in the background ignore
    child = subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, preexec_fn=heard,
                             stderr=subprocess.PIPE, text=True, start_new_session=True)  # fmt: skip
    while (line := child.stdout.readline()) and line.strip() != "ready":
        pass
    os.killpg(child.pid, signal.SIGINT) if group else child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=120)
    return child.returncode, out, err


@pytest.mark.parametrize("command", ["compile", "plan"])
def test_a_stopped_command_ends_with_one_line(command):
    code, _, err = interrupted(STOPPED.replace("ARGUMENTS", repr([command, "gelu(x)"])))
    assert code == 130
    assert err.count("\n") == 1
    assert err.startswith("anchorhead: Interrupted while a head for gelu(x) was searched for.")


def test_a_stopped_command_tells_programs_in_json():
    code, out, err = interrupted(STOPPED.replace("ARGUMENTS", repr(["compile", "gelu(x)", "--json"])))
    assert code == 130
    assert '"error": "Stopped"' in out
    assert err == ""


def test_a_stopped_conversion_is_a_sentence():
    script = STOPPED.partition("sys.argv")[0] + textwrap.dedent("""
        import torch, anchorhead as ah
        try:
            ah.convert(torch.nn.Sequential(torch.nn.GELU()))
        except KeyboardInterrupt as stop:
            print("said:", stop)
        """)
    code, out, err = interrupted(script)
    assert code == 0
    assert "said: Interrupted while a head for gelu(x) was searched for." in out
    assert err == ""


def test_whatever_is_stopped_says_what_it_was():
    def stop(line):
        raise KeyboardInterrupt

    with (
        pytest.raises(KeyboardInterrupt, match=r"Stopped while making tea, at: boiling\."),
        telling("making tea", stop) as tell,
    ):
        tell("boiling")
    with pytest.raises(KeyboardInterrupt, match="as it was"), telling("making tea", False):
        raise KeyboardInterrupt("as it was")


REPRODUCED = """
import sys
import anchorhead.lab.sweep as sweep
from anchorhead.__main__ import main
kept = sweep.wait
def wait(*given, **named):
    print("ready", flush=True)
    return kept(*given, **named)
sweep.wait = wait
if __name__ == "__main__":
    sys.argv = ["anchorhead", "reproduce", "--quick", "--only", "rates", "--workers", "2", "-o", FOLDER]
    main()
"""


@pytest.mark.heavy
def test_stopped_workers_say_nothing(tmp_path):
    """Ctrl-C reaches the workers of a terminal's command too, here while they import."""
    code, _, err = interrupted(REPRODUCED.replace("FOLDER", repr(str(tmp_path / "out"))), group=True)
    assert code == 130
    assert "Traceback" not in err
    assert err.strip().splitlines()[-1].startswith("anchorhead: Stopped. What was finished is in")


# The log


def test_the_log_is_quiet_until_it_is_asked(capfd):
    assert any(isinstance(h, logging.NullHandler) for h in logging.getLogger("anchorhead").handlers)
    with pytest.raises(ah.ToleranceError):
        ah.compile("sin(x)", (-1, 1), tol=1e-20)
    assert capfd.readouterr() == ("", "")


def test_the_log_has_what_was_searched_proved_and_refused(caplog, tmp_path):
    with caplog.at_level("INFO", logger="anchorhead"):
        ah.compile("tanh(3*x)*y", (-1, 1), tol=1e-3).save(tmp_path / "one")
        ah.verify(tmp_path / "one")
        with pytest.raises(ah.ToleranceError):
            ah.compile("sin(x)", (-1, 1), tol=1e-20)
    told = caplog.text
    assert "compiling tanh(3*x)*y" in told
    assert "through the graph" in told
    assert re.search(r"tanh\(.*\): \w+, \d+ keys, proved \d", told)
    assert "made by graph" in told
    assert "verified" in told
    assert "refused: tol=1e-20" in told


def test_the_log_of_a_conversion_names_places(caplog):
    with caplog.at_level("INFO", logger="anchorhead"):
        ah.convert(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.GELU()))
    assert "1: gelu(x) by" in caplog.text


def test_debugging_has_every_line_of_progress(caplog):
    lines = []
    with caplog.at_level("DEBUG", logger="anchorhead"):
        ah.compile("gelu(x)", tol=1e-2, progress=lines.append)
    assert lines
    assert all(f"compiling gelu(x): {line}" in caplog.text for line in lines)


# Completion


def test_shells_complete_commands_and_options():
    for words, found in (("anchorhead co", {"compile", "convert", "compare"}), ("anchorhead show --p", {"--plot"})):
        done = subprocess.run(
            [sys.executable, "-m", "anchorhead"],
            env=os.environ
            | {"COMP_WORDS": words, "COMP_CWORD": str(words.count(" ")), "_ANCHORHEAD_COMPLETE": "complete_bash"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert set(done.stdout.split()) == found, done


def test_help_names_every_command():
    told = CliRunner().invoke(app, ["--help"]).output
    for name in ("compile", "verify", "show", "plan", "convert", "--install-completion", "--show-completion"):
        assert name in told
