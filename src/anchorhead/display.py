"""What notebooks show of models and reports: HTML of sentences, tables and small drawings, for light and dark pages.

Colours of text are the page's own, lines have tones that are seen on white and on black, and there is no style sheet,
since viewers of notebooks remove those. Whatever comes from users and files is escaped.
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterable, Sequence
from itertools import groupby

FOLDED = 12
"""Tables with more rows are folded away."""
BLUE, RED, GREY = "#3d85c6", "#d9534f", "#8a8f98"
WIDTH, HEIGHT, EDGE = 320, 90, 4
SENTENCE = 40
"""Longer texts of a table are sentences."""
CELL = "padding:.15em .8em .15em 0;text-align:{};vertical-align:top;border:0;background:none"


def plain(text: str) -> str:
    """The text with whatever cannot be printed written as an escape, such as \\x1b."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def shortened(text: str, most: int) -> str:
    """The text, or its beginning with dots."""
    return text if len(text) <= most else text[: most - 3] + "..."


def page(title: str, *parts: str) -> str:
    """What is shown of one object: a title, and parts that the functions below made."""
    head = f'<div style="font-weight:600;margin:.2em 0;overflow-wrap:anywhere">{_text(title)}</div>'
    return f'<div style="line-height:1.4;max-width:60em">{head}{"".join(parts)}</div>'


def sentence(text: str) -> str:
    """One or more lines of text."""
    lines = "<br>".join(_text(line) for line in text.splitlines())
    return f'<div style="margin:.2em 0;overflow-wrap:anywhere">{lines}</div>' if lines else ""


def beside(*parts: str) -> str:
    """Parts next to each other, or below where there is no room."""
    return (
        f'<div style="display:flex;flex-wrap:wrap;gap:.4em 2em">{"".join(f"<div>{part}</div>" for part in parts)}</div>'
    )


def facts(rows: Iterable[tuple[str, object]]) -> str:
    """Names and values, one a line."""
    return table((), [(name, str(value)) for name, value in rows])


def table(header: Sequence[str], rows: Sequence[Sequence[str]], said: str = "") -> str:
    """A table, words to the left and numbers to the right; folded away under what is `said` if it is long. Numbers stay
    on one line, names of modules may be broken behind a dot."""
    styles = [
        _cell([row[i] for row in rows]) if header else CELL.format("left") for i in range(len((*rows, header)[0]))
    ]
    cell = lambda tag, i, text: f'<{tag} style="{styles[i]}">{_broken(_text(text))}</{tag}>'
    head = "".join(cell("th", i, name) for i, name in enumerate(header))
    lines = ("".join(cell("td", i, text) for i, text in enumerate(row)) for row in rows)
    body = "".join(f'<tr style="background:none">{line}</tr>' for line in lines)
    head = f'<thead><tr style="background:none">{head}</tr></thead>' if header else ""
    style = "border-collapse:collapse;border:0;margin:.2em 0;font-size:inherit;font-variant-numeric:tabular-nums"
    whole = f'<div style="overflow-x:auto"><table style="{style}">{head}<tbody>{body}</tbody></table></div>'
    if len(rows) <= FOLDED or not header:
        return whole
    return f"<details><summary>{_text(said or f'{len(rows)} rows')}</summary>{whole}</details>"


def sketch(x: Sequence[float], curves: Sequence[tuple[str, Sequence[float]]], said: str, least: float = 0.0) -> str:
    """Curves over x, each with its colour, drawn over each other; the first is broad. Where `least` is positive the
    scale is logarithmic and ends there; numbers that are not positive are gaps then."""
    log = least > 0
    seen = lambda v: math.isfinite(v) and (v > 0 or not log)
    numbers = [max(v, least) if log else v for _, curve in curves for v in curve if seen(v)]
    if not numbers:
        return ""
    scale = math.log10 if log else float
    low, high = scale(min(numbers)), scale(max(numbers))
    wide, tall = (WIDTH - 2 * EDGE) / ((x[-1] - x[0]) or 1.0), (HEIGHT - 2 * EDGE) / ((high - low) or 1.0)
    lines = []
    for i, (colour, curve) in enumerate(curves):
        broad = i == 0 and len(curves) > 1 and not log
        pen = 'stroke-width="4" stroke-opacity=".6"' if broad else 'stroke-width="1.4"'
        at = lambda a, b: f"{EDGE + wide * (a - x[0]):.1f},{EDGE + tall * (high - scale(b)):.1f}"
        for there, part in groupby(zip(x, curve, strict=True), key=lambda place: seen(place[1])):
            if there:
                points = " ".join(at(*place) for place in part)
                lines.append(f'<polyline fill="none" stroke="{colour}" {pen} points="{points}"/>')
    return _svg(HEIGHT, "".join(lines), said)


def gauge(marks: Sequence[tuple[str, float]], said: str) -> str:
    """Positive numbers as named marks on a logarithmic scale; the others are left out."""
    known = [(name, value) for name, value in marks if math.isfinite(value) and value > 0]
    if not known:
        return ""
    logs = [math.log10(value) for _, value in known]
    low, high = math.floor(min(logs) - 0.5), math.ceil(max(logs) + 0.5)
    at = lambda v: 20 + (WIDTH - 40) * (v - low) / (high - low)
    step = max(1, math.ceil((high - low) / 6))
    parts = [f'<line x1="20" x2="{WIDTH - 20}" y1="34" y2="34" stroke="currentColor" stroke-opacity=".5"/>']
    for k in range(low, high + 1, step):
        parts.append(f'<line x1="{at(k):.1f}" x2="{at(k):.1f}" y1="34" y2="38" stroke="currentColor"/>')
        parts.append(_label(at(k), 50, f"1e{k}"))
    for i, ((name, _), v) in enumerate(zip(known, logs, strict=True)):
        colour = (BLUE, RED, GREY)[i % 3]
        parts.append(f'<circle cx="{at(v):.1f}" cy="34" r="4" fill="{colour}"/>')
        parts.append(_label(min(max(at(v), 40), WIDTH - 40), 24 - 13 * (i % 2), name, colour))
    return _svg(56, "".join(parts), said)


def bars(rows: Sequence[tuple[str, float]], said: str) -> str:
    """Positive numbers as bars on a logarithmic scale, each with its name; at most as many as a glance can take in."""
    known = [(name, value) for name, value in rows if math.isfinite(value) and value > 0][:FOLDED]
    if not known:
        return ""
    logs = [math.log10(value) for _, value in known]
    low, high = min(logs) - 0.3, max(logs)
    parts = []
    for i, ((name, _), v) in enumerate(zip(known, logs, strict=True)):
        long = 8 + (WIDTH - 148) * (v - low) / ((high - low) or 1.0)
        parts.append(_label(134, 14 + 18 * i, shortened(name, 20), anchor="end"))
        parts.append(f'<rect x="140" y="{4 + 18 * i}" width="{long:.1f}" height="12" rx="2" fill="{BLUE}"/>')
    return _svg(18 * len(known) + 4, "".join(parts), said)


def _svg(height: int, inside: str, said: str) -> str:
    drawn = (
        f'<svg viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" style="max-width:100%;height:auto" '
        f'role="img" aria-label="{_text(said)}">{inside}</svg>'
    )
    return f'<div style="margin:.4em 0">{drawn}<div style="font-size:85%;opacity:.75">{_text(said)}</div></div>'


def _label(x: float, y: float, text: str, colour: str = "currentColor", anchor: str = "middle") -> str:
    return f'<text x="{x:.1f}" y="{y}" font-size="11" text-anchor="{anchor}" fill="{colour}">{_text(text)}</text>'


def _cell(texts: Sequence[str]) -> str:
    """The style of a column with these texts. A sentence is as wide as can be read, on a phone too: tables scroll."""
    if texts and all(map(_number, texts)):
        return CELL.format("right;white-space:nowrap")
    return CELL.format("left;min-width:14em" if any(len(text) > SENTENCE for text in texts) else "left")


def _broken(text: str) -> str:
    return re.sub(r"\.(?=[A-Za-z_])", ".<wbr>", text)


def _number(text: str) -> bool:
    return not text or text[0] in "+-±.0123456789"


def _text(text: str) -> str:
    return html.escape(plain(str(text)))
