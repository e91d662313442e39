"""The report: one self-contained HTML page with every figure, the numbers, the versions and the command."""

from __future__ import annotations

import base64
import html
import io
import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure

from anchorhead.drawing import SMALL, USUAL
from anchorhead.lab.experiment import Experiment, Rows, Table

STYLE: Any = {"svg.hashsalt": "anchorhead", "pdf.fonttype": 42, "font.size": USUAL, "xtick.labelsize": SMALL,
              "ytick.labelsize": SMALL, "lines.linewidth": 1.1, "lines.markersize": 3.5}  # fmt: skip
"""Fonts in PDF files stay text, which publishers ask for."""
NUMBER = re.compile(r"-?[\d.]+")
LONG = 14
"""Tables of more rows are folded away."""


def section(number: int, experiment: Experiment, rows: Rows, tasks: int, folder: Path) -> str:
    """One experiment's part of the page; its figures are drawn, as PNG and PDF files too."""
    name, figures = experiment.name, ""
    with rc_context(STYLE):
        for title, figure in experiment.figures(rows).items():
            figure.savefig(folder / f"{title}.png", dpi=200)
            figure.savefig(folder / f"{title}.pdf", metadata={"CreationDate": None})
            figures += _figure(title, _svg(figure))
    findings = "".join(_table(f) if isinstance(f, Table) else f"<p>{_marked(f)}</p>" for f in experiment.findings(rows))
    files_ = f'<a href="{name}.csv">{name}.csv</a>'
    if experiment.clocked:
        files_ += f' and <a href="{name}.times.csv">{name}.times.csv</a>'
    return f"""<section id="{name}">
<h2>{number}. {_escape(experiment.title)}</h2>
<p>{_marked(experiment.about)}</p>
<div class="figures">{figures}</div>
{findings}
<p class="soft">{tasks} tasks; all numbers in {files_}.</p>
</section>
"""


def page(experiments: Sequence[Experiment], sections: Sequence[str], command: str, versions: Mapping[str, str],
         quick: bool) -> str:  # fmt: skip
    """The page as text: the sections of these experiments."""
    style = files("anchorhead.lab").joinpath("report.css").read_text(encoding="utf-8")
    contents = "".join(f'<li><a href="#{e.name}">{_escape(e.title)}</a></li>' for e in experiments)
    made = ", ".join(f"{_escape(name)} {_escape(version)}" for name, version in versions.items())
    short = (
        " This is the quick version, with fewer settings and seeds; without --quick it is complete." if quick else ""
    )
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Universal approximation with softmax attention, reproduced</title>
<style>{style}</style>
</head>
<body>
<main>
<h1>Universal approximation with softmax attention, reproduced</h1>
<p>The experiments of arXiv 2504.15956, done as its theorems say and as its authors' scripts do them, with the bounds
drawn in, and the stress tests that its readers ask for.{short}</p>
<pre><code>{_escape(command)}</code></pre>
<p class="soft">{made}</p>
<nav aria-label="Experiments"><ol>{contents}</ol></nav>
{"".join(sections)}
</main>
</body>
</html>
"""


def _figure(name: str, svg: str) -> str:
    """An image, so that nothing of the SVG mixes with the page."""
    data = base64.b64encode(svg.encode()).decode()
    said = _escape("Figure: " + name.replace("_", " "))
    return (
        f'<figure><img src="data:image/svg+xml;base64,{data}" alt="{said}">'
        f'<figcaption>{name}: <a href="{name}.png">PNG</a>, <a href="{name}.pdf">PDF</a></figcaption></figure>'
    )


def _table(table: Table) -> str:
    words = [any(row[i] and not NUMBER.match(row[i]) for row in table.rows) for i in range(len(table.header))]
    head = "".join(_cell(h, w, "th") for h, w in zip(table.header, words, strict=True))
    lines = ("".join(_cell(c, w) for c, w in zip(row, words, strict=True)) for row in table.rows)
    rows = "".join(f"<tr>{line}</tr>" for line in lines)
    whole = f'<div class="wide" tabindex="0"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
    if len(table.rows) <= LONG:
        return whole
    return f"<details><summary>Table of {len(table.rows)} rows</summary>{whole}</details>"


def _cell(text: str, word: bool, tag: str = "td") -> str:
    """A cell; columns that hold words are set to the left, numbers to the right."""
    scope = ' scope="col"' if tag == "th" else ""
    return f"<{tag}{scope}{' class=word' if word else ''}>{_escape(text)}</{tag}>"


def _marked(text: str) -> str:
    """*word* is emphasised."""
    return re.sub(r"\*([^*]+)\*", r"<em>\1</em>", _escape(text))


def _escape(text: str) -> str:
    return html.escape(str(text))


def _svg(figure: Figure) -> str:
    out = io.StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None})
    return out.getvalue()
