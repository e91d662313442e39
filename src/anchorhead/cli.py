"""The `anchorhead` command: one verb a command, tables and progress for people, `--json` for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import anchorhead as ah
from anchorhead.errors import AnchorheadError, InputError

if TYPE_CHECKING:
    from anchorhead.compiler.planning import Plan
    from anchorhead.network.head_attention import HeadAttention
    from anchorhead.network.report import NodeReport

app = typer.Typer(
    name="anchorhead",
    help="Functions compiled into softmax attention only, with a proved error.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Domain = Annotated[
    list[str] | None,
    typer.Option(
        "--domain",
        "-d",
        help="x=LOW:HIGH, once for each variable, or LOW:HIGH for all. Of one variable inf and -inf are allowed; "
        "left out: the whole line.",
    ),
]
Dtype = Annotated[str, typer.Option(help="float64 or float32.")]


def main() -> None:
    """Runs the command; an AnchorheadError is one sentence on stderr and exit code 2."""
    try:
        app()
    except AnchorheadError as error:
        if "--json" in sys.argv:
            print(json.dumps({"error": type(error).__name__, "message": str(error)}))
            sys.exit(2)
        Console(stderr=True, soft_wrap=True).print(f"anchorhead: {error}", style="red", markup=False, highlight=False)
        sys.exit(2)


def _version(asked: bool) -> None:
    if asked:
        print(f"anchorhead {ah.__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Functions compiled into softmax attention only, with a proved error."""


@app.command("compile")
def compile_(
    expression: Annotated[
        list[str], typer.Argument(help='A formula, such as "gelu(x)" or "sin(3*x*y)"; several for several outputs.')
    ],
    domain: Domain = None,
    tol: Annotated[float | None, typer.Option(help="The error to keep; 1e-6 unless --keys is given.")] = None,
    method: Annotated[
        str,
        typer.Option(help="auto; of one variable gated, smooth, kinked or nearest; of several graph or grid."),
    ] = "auto",
    dtype: Dtype = "float64",
    keys: Annotated[
        int | None, typer.Option(help="A number of keys instead of --tol: the best error at that size.")
    ] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Save the model to this file.")] = None,
    as_json: Json = False,
) -> None:
    """Compile a formula into attention, prove its error, and save it."""
    with _progress(as_json) as report:
        model = ah.compile(
            _read_formulas(expression),
            _read_domain(domain),
            tol=tol,
            method=method,
            dtype=_read_dtype(dtype),
            keys=keys,
            progress=report,
        )
    if output is not None:
        model.save(output)
    _print_model(model, as_json, str(output) if output else None)


@app.command()
def verify(
    file: Annotated[Path, typer.Argument(help="A model saved by `anchorhead compile -o`.")],
    as_json: Json = False,
) -> None:
    """Check the proof in a saved model, from its numbers alone."""
    certificate = ah.verify(file)
    if as_json:
        print(json.dumps({"file": str(file), "verified": True, "certificate": certificate.as_dict()}))
        return
    Console(soft_wrap=True).print(f"[green]verified[/green] {file}", highlight=False)
    print(certificate)
    for assumption in certificate.assumptions:
        print(f"  assuming that {assumption}")


@app.command()
def show(
    file: Annotated[Path, typer.Argument(help="A model saved by `anchorhead compile -o`.")],
    plot: Annotated[
        Path | None, typer.Option(help="Draw function, approximation, error and attention map to this PNG.")
    ] = None,
    as_json: Json = False,
) -> None:
    """What a saved model is: its certificate, its cost, its keys."""
    model = ah.load(file)
    if plot is not None:
        from anchorhead.lab.portrait import portrait

        portrait(model, plot)
    _print_model(model, as_json, str(file))
    if not as_json:
        _print_parts(model)
        if plot is not None:
            print(f"figure: {plot}")


@app.command()
def plan(
    expression: Annotated[
        list[str] | None, typer.Argument(help="A formula, several for several outputs; or give --theorem.")
    ] = None,
    domain: Domain = None,
    dtype: Dtype = "float64",
    theorem: Annotated[
        str | None, typer.Option(help="Of the paper: single_head, multi_head, two_layer or attention_then_softmax.")
    ] = None,
    low: Annotated[float, typer.Option(help="Theorem: lower end of the clipping range, or of the input box.")] = 0.0,
    high: Annotated[float, typer.Option(help="Theorem: upper end.")] = 1.0,
    tol: Annotated[
        float | None, typer.Option(help="The error to keep: 1e-6 for a formula, 1e-2 for a theorem.")
    ] = None,
    tokens: Annotated[int | None, typer.Option(help="Theorem: length of the sequence, n.")] = None,
    features: Annotated[int | None, typer.Option(help="Theorem: features of a token, d.")] = None,
    lipschitz: Annotated[float | None, typer.Option(help="Theorem: Lipschitz constant of f, for the last two.")] = None,
    causal: Annotated[
        bool, typer.Option("--causal", help="Theorem: single_head, anchors in their own columns.")
    ] = False,
    as_json: Json = False,
) -> None:
    """What a formula or a theorem costs at a wanted error: keys or anchors, temperature, logit range, bound."""
    if bool(expression) == (theorem is not None):
        raise InputError('Plan either a formula, anchorhead plan "gelu(x)", or a construction, --theorem single_head.')
    found: Any
    if expression:
        with _progress(as_json) as report:
            found = ah.plan(
                _read_formulas(expression),
                _read_domain(domain),
                tol=1e-6 if tol is None else tol,
                dtype=_read_dtype(dtype),
                progress=report,
            )
    else:
        if tokens is None or features is None:
            raise InputError(f"Planning {theorem} needs --tokens and --features: the theorem's size depends on both.")
        assert theorem is not None
        found = ah.theorems.plan(
            theorem, low=low, high=high, tol=1e-2 if tol is None else tol, tokens=tokens, features=features,
            lipschitz=lipschitz, causal=causal,
        )  # fmt: skip
    if as_json:
        print(json.dumps(found.as_dict()))
    elif expression:
        _print_plan(found)
    else:
        _print_theorem_plan(found)


@app.command()
def convert(
    model: Annotated[Path, typer.Argument(help="A folder of the transformers library: config.json and safetensors.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="The folder for the converted model.")],
    tol: Annotated[float, typer.Option(help="The error of an activation.")] = 1e-6,
    low: Annotated[float, typer.Option(help="Gated blocks: the least argument that is proved.")] = -16.0,
    high: Annotated[float, typer.Option(help="Gated blocks: the largest.")] = 16.0,
    as_json: Json = False,
) -> None:
    """Turn every activation of a pretrained model into attention, and report what changed."""
    from anchorhead.convert.pretrained import convert_folder

    with _progress(as_json) as report:
        found = convert_folder(model, output, tol, (low, high), report)
    print(json.dumps(found.as_dict()) if as_json else found)


@app.command()
def compare(
    original: Annotated[Path, typer.Argument(help="The folder of the original model.")],
    converted: Annotated[Path, typer.Argument(help="The folder that `anchorhead convert` wrote.")],
    texts: Annotated[
        Path | None, typer.Option(help="A file with one text a line; left out, random inputs are used.")
    ] = None,
    as_json: Json = False,
) -> None:
    """How far two models are apart on the same inputs: largest difference, smallest cosine, ratio of times."""
    from anchorhead.convert.comparing import compare_folders

    with _progress(as_json) as report:
        found = compare_folders(original, converted, texts, report)
    print(json.dumps(vars(found)) if as_json else found)


@contextmanager
def _progress(quiet: bool) -> Iterator[Callable[[str], None] | None]:
    """A line on stderr that says what is being tried; nothing for programs or when output is not a terminal."""
    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield None
        return
    with console.status("reading") as status:
        yield lambda text: status.update(text)


def _read_formulas(texts: list[str]) -> str | list[str]:
    return texts[0] if len(texts) == 1 else texts


def _read_domain(parts: list[str] | None) -> dict[str, tuple[float, float]] | tuple[float, float] | None:
    """--domain x=-1:1 as {"x": (-1.0, 1.0)}, and --domain=-1:1, for all variables, as (-1.0, 1.0)."""
    if not parts:
        return None
    if len(parts) == 1 and "=" not in parts[0]:
        return _read_intervals([f"x={parts[0]}"])["x"]
    return _read_intervals(parts)


def _read_intervals(parts: list[str]) -> dict[str, tuple[float, float]]:
    found: dict[str, tuple[float, float]] = {}
    for part in parts:
        name, equals, interval = part.partition("=")
        if name.strip() in found:
            raise InputError(f"--domain gives {name.strip()} twice; give each variable one interval.")
        low, colon, high = interval.partition(":")
        try:
            ends = (float(low), float(high))
        except ValueError:
            equals = ""
        if not (equals and colon and name.strip()):
            raise InputError(f"--domain {part!r} must read NAME=LOW:HIGH, such as x=-1:1.")
        found[name.strip()] = ends
    return found


def _read_dtype(name: str) -> Any:
    import torch

    if name not in ("float64", "float32"):
        raise InputError(f"--dtype {name!r} must be float64 or float32.")
    return getattr(torch, name)


def _print_model(model: ah.CompiledModel, as_json: bool, file: str | None) -> None:
    certificate, cost = model.certificate, model.resources
    if as_json:
        values = {"method": model.method, "file": file, "certificate": certificate.as_dict(),
                  "resources": vars(cost), "largest_value": model.largest_value}  # fmt: skip
        nodes = _nodes(model)
        if nodes:
            values["nodes"] = [vars(node) for node in nodes]
        print(json.dumps(values))
        return
    table = Table(title=escape(f"{certificate.expression} as attention"), title_justify="left")
    table.add_column("quantity")
    table.add_column("value", justify="right")
    scale = "" if certificate.bounded else " (1 + |x|)"
    for name, value in (
        ("method", model.method),
        ("layers, heads", f"{cost.layers}, {cost.heads}"),
        ("keys", f"{cost.keys}"),
        ("parameters", f"{cost.parameters}"),
        ("temperature", f"{cost.temperature:.6g}"),
        ("logit range" + ("" if certificate.bounded else ", |x| <= 100"), f"±{cost.logit_range:.4g}"),
        ("largest value", f"{model.largest_value:.4g}"),
        ("dtype", certificate.dtype),
        ("approximation", f"{certificate.approximation:.3e}"),
        ("rounding", f"{certificate.rounding:.3e}{scale}"),
        ("bound", f"{certificate.bound:.3e}"),
        ("level", f"{certificate.level}, {certificate.boxes} boxes"),
    ):
        table.add_row(name, value)
    Console().print(table)
    if file:
        print(f"file: {file}")


def _nodes(model: ah.CompiledModel) -> tuple[NodeReport, ...]:
    """The nodes of a network; none for a model that is one head."""
    from anchorhead.network.compiled_network import CompiledNetwork

    return model.report.nodes if isinstance(model, CompiledNetwork) else ()


def _print_parts(model: ah.CompiledModel) -> None:
    from anchorhead.network.compiled_head import CompiledHead

    if isinstance(model, CompiledHead):
        _print_keys(model.head)
    else:
        _print_nodes(_nodes(model))


def _print_nodes(nodes: tuple[NodeReport, ...]) -> None:
    table = Table(title="nodes: what a head keeps, and what of it arrives at the output", title_justify="left")
    for name in ("layer", "node", "function of u", "method", "heads", "keys", "error", "arrives"):
        table.add_column(name, justify="left" if name in ("node", "function of u", "method") else "right")
    for n in nodes:
        numbers = str(n.heads), str(n.keys), f"{n.error:.2e}", f"{n.contribution:.2e}"
        table.add_row(str(n.layer), escape(n.label), escape(n.function), n.method, *numbers)
    Console().print(table)


def _print_keys(head: HeadAttention) -> None:
    table = Table(title="keys: score slope·x + intercept, value constant + gain·x", title_justify="left")
    for name in ("key", "slope", "intercept", "constant", "gain"):
        table.add_column(name, justify="right")
    gates = [i for i, size in enumerate(head.sizes) for _ in range(size)]
    rows = zip(head.slopes, head.intercepts, head.constants, head.gains, gates, strict=True)
    for k, (slope, intercept, value, gain, piece) in enumerate(rows):
        if k == 40:
            table.add_row("...", f"{head.keys - 40} more", "", "", "")
            break
        total = (slope + head.gate_slopes[piece], intercept + head.gate_levels[piece], value, gain)
        table.add_row(str(k), *(f"{v.item():.6g}" for v in total))
    Console().print(table)


def _print_plan(found: Plan) -> None:
    domain = " x ".join(f"[{low:g}, {high:g}]" for low, high in found.domain[:4])
    domain += f" and {len(found.domain) - 4} more" if len(found.domain) > 4 else ""
    table = Table(title=escape(f"{found.expression} on {domain} to within {found.tol:g}, {found.dtype}"),
                  title_justify="left")  # fmt: skip
    for name in ("method", "layers", "heads", "keys", "temperature", "logit range", "largest value", "error"):
        table.add_column(name, justify="left" if name == "method" else "right", no_wrap=name in ("keys", "error"))
    for o in found.options:
        if o.keys is None:
            table.add_row(o.method, *["-"] * 7)
            continue
        values = (o.temperature, o.logit_range, o.largest_value, o.bound)
        mark = " *" if o.reason else ""
        table.add_row(o.method + mark, str(o.layers), str(o.heads), f"{o.keys:,}",
                      *(f"{v:.3g}" for v in values if v is not None))  # fmt: skip
    Console().print(table)
    for o in found.options:
        if o.reason:
            print(f"{o.method}: {o.reason}")


def _print_theorem_plan(found: ah.theorems.Plan) -> None:
    from anchorhead.theorems.grid import short

    table = Table(title=f"{found.theorem} on [{found.low:g}, {found.high:g}] to within {found.tol:g}")
    table.add_column("quantity")
    table.add_column("value", justify="right")
    rows: list[tuple[str, Any]] = [
        ("attention layers", found.layers),
        ("heads", f"{found.heads:,}"),
        ("anchors of a ramp head" if found.levels else "anchors", f"{found.anchors:,}"),
        ("levels a coordinate", found.levels),
        ("grid points (keys of layer 2)", found.grid_points and short(found.grid_points)),
        ("selection error", f"{found.selection_error:.3g}"),
        ("temperature", f"{found.temperature:,.6g}"),
        ("proved bound", f"{found.bound:.6g}"),
        ("parameters", short(found.parameters)),
        ("logit range", f"±{found.logit_range:.4g}"),
    ]
    for name, value in rows:
        if value is not None:
            table.add_row(name, str(value))
    for name, holds in found.dtypes.items():
        reach = f", |u - middle| up to {found.reach[name]:.2g}" if found.reach[name] < 1e6 else ""
        table.add_row(name, f"holds it{reach}" if holds else "cannot hold it")
    Console().print(table)
