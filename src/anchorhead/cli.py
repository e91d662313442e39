"""The `anchorhead` command: one verb a command, tables and progress for people, `--json` for programs."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import anchorhead as ah
from anchorhead.errors import FileError, InputError, Stopped
from anchorhead.file.command import shown, verified
from anchorhead.file.folder import RECORD
from anchorhead.options import (
    Causal,
    Columns,
    Domain,
    Dtype,
    Json,
    LargestValue,
    Lipschitz,
    MethodName,
    Metric,
    Plot,
    Query,
    Relative,
    RowMapName,
    Theorem,
    Tokens,
    read_domain,
    read_dtype,
    read_formulas,
    read_intervals,
    require_planned,
)
from anchorhead.row_maps import row_map_named
from anchorhead.tables import print_model, print_parts, print_plan, print_stated, print_theorem_plan, read_shown


class Commands(TyperGroup):
    """The commands, whichever is run: Ctrl-C ends it with a sentence."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as stop:
            raise Stopped(str(stop) or "Stopped.") from None


NARROW = 70
"""Columns of a terminal below which help is plain text: its boxes would cut words and numbers."""

app = typer.Typer(
    name="anchorhead",
    cls=Commands,
    help="Functions compiled into softmax attention only, with a proved error.",
    no_args_is_help=True,
    rich_markup_mode=None if shutil.get_terminal_size().columns < NARROW else "rich",
    pretty_exceptions_enable=False,
)


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
    tokens: Tokens = None,
    query: Query = None,
    tol: Annotated[float | None, typer.Option(help="The error to keep; 1e-6 unless --keys is given.")] = None,
    relative: Relative = False,
    method: MethodName = "auto",
    dtype: Dtype = "float64",
    keys: Annotated[
        int | None, typer.Option(help="A number of keys instead of --tol: the best error with at most so many.")
    ] = None,
    limit: Annotated[int | None, typer.Option(help="The most keys that the model may have.")] = None,
    largest_value: LargestValue = None,
    row_map: RowMapName = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Save the model to this file.")] = None,
    as_json: Json = False,
) -> None:
    """Compile a formula into attention, prove its error, and save it."""
    formulas, kind = read_formulas(expression), read_dtype(dtype)
    if query and not tokens:
        raise InputError("--query is for functions of a prompt, and needs --tokens x=LOW:HIGH for what a token has.")
    if tokens and (domain or relative or keys is not None or method != "auto" or largest_value or row_map):
        raise InputError(
            "With --tokens a formula is of a prompt; leave out --domain, --relative, --keys, --method, --largest-value "
            "and --row-map."
        )
    if tokens:
        asked = read_intervals(query, "--query") if query else None
        model: ah.CompiledModel = ah.in_context.compile(
            formulas, read_intervals(tokens, "--tokens"), asked, tol=1e-6 if tol is None else tol, dtype=kind,
            limit=limit, progress=not as_json,
        )  # fmt: skip
    else:
        chosen = row_map_named(row_map) if row_map else None
        solved = chosen is not None and chosen.sizes is not None
        model = ah.compile(formulas, read_domain(domain), tol=tol, relative=relative, method=method, dtype=kind,
                           keys=keys, limit=limit, largest_value=largest_value, row_map=chosen if solved else None,
                           progress=not as_json)  # fmt: skip
        if chosen is not None and not solved:
            model = model.with_row_map(chosen)
    if output is not None:
        model.save(output)
    print_model(model, as_json, str(output) if output else None)


@app.command()
def verify(
    file: Annotated[Path, typer.Argument(help="A saved model, or a folder of `anchorhead convert -o`.")],
    as_json: Json = False,
) -> None:
    """Check the proof in a saved model, or of every head of a converted one, from the numbers alone."""
    print(verified(str(file), as_json=as_json))


@app.command()
def show(
    file: Annotated[Path, typer.Argument(help="A saved model or theorem, or a folder of `anchorhead convert -o`.")],
    plot: Plot = None,
    as_json: Json = False,
) -> None:
    """What a saved model is: its certificate, its cost, its keys; of a converted one the report."""
    said = shown(file, as_json=as_json) if file.is_dir() else ""
    model: Any = read_shown(file) if not said else ah.load_converted(file) if plot is not None else None
    if plot is not None:
        from anchorhead.drawing import write

        drawn = model.report if said else model
        if not hasattr(drawn, "plot"):
            raise InputError(f"{file} holds a network of whole prompts, of which there is no figure; leave out --plot.")
        write(drawn.plot(), plot)
    if said:
        print(said)
    elif not isinstance(model, ah.CompiledModel):
        print_stated(model, as_json, str(file))
    else:
        print_model(model, as_json, str(file))
        if not as_json:
            print_parts(model)
    if plot is not None and not as_json:
        print(f"figure: {plot}")


@app.command()
def plan(
    context: typer.Context,
    expression: Annotated[
        list[str] | None, typer.Argument(help="A formula, several for several outputs; or give --theorem.")
    ] = None,
    domain: Domain = None,
    dtype: Dtype = "float64",
    theorem: Theorem = None,
    low: Annotated[float, typer.Option(help="Theorem: lower end of the clipping range, or of the input box.")] = 0.0,
    high: Annotated[float, typer.Option(help="Theorem: upper end.")] = 1.0,
    tol: Annotated[float | None, typer.Option(help="The error: 1e-6 for a formula, 1e-2 for a theorem.")] = None,
    relative: Relative = False,
    largest_value: Annotated[list[float] | None, typer.Option(help="Constants, gains up to it; repeatable.")] = None,
    tokens: Annotated[int | None, typer.Option(help="Theorem: length of the sequence, n.")] = None,
    features: Annotated[int | None, typer.Option(help="Theorem: features of a token, d.")] = None,
    lipschitz: Lipschitz = None,
    metric: Metric = "euclidean",
    columns: Columns = "appended",
    causal: Causal = False,
    as_json: Json = False,
) -> None:
    """What a formula or a theorem costs at a wanted error: keys or anchors, beta, logit range, bound."""
    require_planned(context, expression, theorem)
    found: Any
    if not theorem:
        found = ah.plan(read_formulas(expression or []), read_domain(domain), tol=1e-6 if tol is None else tol,
                        relative=relative, dtype=read_dtype(dtype), largest_value=largest_value or (),
                        progress=not as_json)  # fmt: skip
    else:
        if tokens is None or features is None:
            ah.theorems.sizes.read_theorem(theorem)
            raise InputError(f"Planning {theorem} needs --tokens and --features: the theorem's size depends on both.")
        found = ah.theorems.plan(theorem, low=low, high=high, tol=1e-2 if tol is None else tol, tokens=tokens,
                                 features=features, lipschitz=lipschitz, causal=causal, metric=metric,
                                 columns=columns)  # fmt: skip
    if as_json:
        print(json.dumps(found.as_dict()))
    elif expression:
        print_plan(found)
    else:
        print_theorem_plan(found)


@app.command()
def convert(
    model: Annotated[
        Path,
        typer.Argument(help="A folder of the transformers library, config.json and safetensors, or a GGUF file."),
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="A folder: empty, or a conversion to replace.")],
    tol: Annotated[
        float | None, typer.Option(help="The error of an activation; 1e-6, or what its dtype holds, if not given.")
    ] = None,
    pure: Annotated[
        bool, typer.Option("--pure", help="Norms and softcaps too: affine maps and softmax attention, nothing else.")
    ] = False,
    accept: Annotated[
        bool, typer.Option("--accept", help="Leave activations for which --tol cannot be had, and list them.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Turn every activation of a pretrained model into attention, run it, and report what changed and what remains."""
    from anchorhead.conversion.folder import convert_folder

    again = f"The earlier conversion in {output} was replaced.\n" if (output / RECORD).is_file() else ""
    found = convert_folder(model, output, tol, not as_json, pure=pure, accept=accept)
    sys.stderr.write(again)
    print(json.dumps(found.as_dict()) if as_json else found)


@app.command()
def compare(
    original: Annotated[Path, typer.Argument(help="The folder of the original model.")],
    converted: Annotated[Path, typer.Argument(help="The folder that `anchorhead convert` wrote.")],
    texts: Annotated[
        Path | None, typer.Option(help="A file, one text a line, empty ones left out; if not given, random inputs.")
    ] = None,
    as_json: Json = False,
) -> None:
    """How far two models are apart on the same inputs: largest difference, smallest cosine, ratio of times."""
    from anchorhead.conversion.compare import compare_folders

    found = compare_folders(original, converted, texts, not as_json)
    print(json.dumps(found.as_dict()) if as_json else found)


@app.command()
def diagnose(
    file: Annotated[Path, typer.Argument(help="A model saved by `anchorhead compile -o`.")],
    dtype: Annotated[
        str | None, typer.Option(help="As if it ran in float64, float32, bfloat16 or float16; its own unless given.")
    ] = None,
    score_factor: Annotated[float, typer.Option(help="As if all scores were multiplied by this.")] = 1.0,
    points: Annotated[int, typer.Option(help="How many inputs to try, evenly over the domain.")] = 2001,
    as_json: Json = False,
) -> None:
    """Look for the known ways to fail, and say what to change. Exit code 1 where something was found."""
    from anchorhead.lab.diagnosis import diagnose_file

    found = diagnose_file(file, dtype=dtype, score_factor=score_factor, points=points)
    print(json.dumps(found.as_dict()) if as_json else found)
    if not found.healthy:
        raise typer.Exit(1)


@app.command()
def reproduce(
    output: Annotated[Path, typer.Option("-o", "--output", help="The folder for report, figures and CSV.")],
    quick: Annotated[bool, typer.Option("--quick", help="Fewer settings and seeds: some minutes.")] = False,
    only: Annotated[
        list[str] | None,
        typer.Option(
            help="One experiment; may be given several times: rates, maps, sequences, beta, boundaries, length, "
            "in_context, prompts, programs, row_maps, training, cost."
        ),
    ] = None,
    workers: Annotated[int | None, typer.Option(help="Processes; as many as cores unless given.")] = None,
    scheduler: Annotated[str | None, typer.Option(help="Address of a Dask scheduler, instead of processes.")] = None,
    as_json: Json = False,
) -> None:
    """Run the paper's experiments and the stress tests, and write one page. A stopped run goes on where it was."""
    from anchorhead.lab.reproduce import reproduce as run

    lines = lambda line: print(line, file=sys.stderr)  # where there is no terminal for bars
    told = False if as_json else True if sys.stderr.isatty() else lines
    try:
        found = run(output, quick=quick, only=only or (), workers=workers, scheduler=scheduler, progress=told)
    except OSError as error:
        raise FileError(f"{output} cannot be written: {error}.") from error
    except KeyboardInterrupt:
        raise Stopped(f"Stopped. What was finished is in {output}; the same command goes on from there.") from None
    print(json.dumps(found.as_dict()) if as_json else found)


@app.command()
def explore(
    target: Annotated[
        str | None,
        typer.Argument(help='A formula such as "sin(3*x)", or a saved model; left out: presets.'),
    ] = None,
    output: Annotated[Path, typer.Option("-o", "--output", help="The page.")] = Path("explore.html"),
    domain: Domain = None,
    as_json: Json = False,
) -> None:
    """Write one interactive page: the function, its attention, the map, the error, with sliders. Needs no server."""
    from anchorhead.explore.page import write_page

    write_page(target, output, read_domain(domain), not as_json)
    print(json.dumps({"page": str(output)}) if as_json else f"page: {output}")


@app.command()
def gallery(
    output: Annotated[Path, typer.Option("-o", "--output", help="The folder for ten models and their mechanisms.")],
    as_json: Json = False,
) -> None:
    """Write ten models whose mechanism is known: safetensors, and JSON that says what every head computes."""
    found = ah.gallery.write(output, progress=not as_json)
    print(json.dumps([str(path) for path in found]) if as_json else f"{len(found)} files: {output}")


@app.command()
def distance(
    first: Annotated[str, typer.Argument(help="A formula, or a file: a saved model, a table as .csv or .json.")],
    second: Annotated[str, typer.Argument(help="Another one: what it is to be.")],
    domain: Domain = None,
    relative: Annotated[bool, typer.Option("--relative", help="The largest |f - g|/|g| instead of |f - g|.")] = False,
    tol: Annotated[float, typer.Option(help="How near the two ends shall be, as a part of the distance.")] = 1e-3,
    interpolation: Annotated[str, typer.Option(help="How a .csv is read in between: linear or nearest.")] = "linear",
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Save the distance with its proof.")] = None,
    as_json: Json = False,
) -> None:
    """How far two functions are apart, proved between all samples: formulas, saved models, tables."""
    from anchorhead.measure.table_file import read_table

    f, g = (read_table(Path(text), interpolation) if Path(text).suffix in (".csv", ".json", ".safetensors") else text
            for text in (first, second))  # fmt: skip
    found = ah.distance(f, g, read_domain(domain), relative, tol=tol, progress=not as_json)
    if output is not None:
        found.save(output)
    print(json.dumps(found.as_dict() | {"file": str(output) if output else None}) if as_json else found)
