"""Models as ONNX files, which run without torch and carry what was proved of them.

A compiled model, or the network of a theorem, is written in its literal form: scores, Softmax, values. A converted
model is written as it runs, heads in their fast form, since the literal one holds a weight for each neuron and key. The
certificate, the report of the conversion, or what the theorem's network is, is JSON in the file's metadata.

What a file needs to keep its digits. The exporter rounds Python numbers to float32, so in float64 they are made stored
tensors first. Its optimiser takes a factor within 1e-5 of one for one and a summand below 1e-8 for zero, so only
constants are folded. The extended optimisations of onnxruntime round a factor next to a matrix product to float32, so
`check_onnx` asks for the basic ones unless told otherwise.
"""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import json
import logging
import os
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim

from anchorhead.conversion.report import ConversionReport
from anchorhead.errors import AnchorheadError, FileError, InputError
from anchorhead.export.onnx_numbers import difference, no_runtime, stored_numbers
from anchorhead.export.steady import steady
from anchorhead.in_context.universal import Universal
from anchorhead.model.compiled import CompiledModel
from anchorhead.model.prompt_core import PromptModel
from anchorhead.proof.certificate import Certificate
from anchorhead.theorems.construction import Construction
from anchorhead.warned import warn_caller

Inputs = Tensor | Sequence[Tensor] | Mapping[str, Tensor]
CERTIFICATE, REPORT, THEOREM = "anchorhead.certificate", "anchorhead.report", "anchorhead.theorem"
OPSET = 18
"""For onnxruntime 1.14 and later; from 23 on attention would be one operator, whose scale is a float32."""
LARGEST = 1_900_000_000
"""Bytes of numbers from which they go into a file beside it: one ONNX file holds at most 2 GB."""


def export_onnx(
    model: nn.Module,
    path: str | os.PathLike[str],
    example: Inputs | None = None,
    *,
    names: Sequence[str] | None = None,
) -> None:
    """Writes a compiled model, one that `ah.convert` returned, or a theorem's network to an ONNX file.

    example: inputs of a converted model, as a tensor, a tuple, or a dictionary of keyword arguments; sizes that the
        model does not fix, such as batch and length, are free in the file (a length of one would stay one). Of a
        compiled model's example only the number of dimensions counts; if not given it is (batch, *input_shape), for
        one variable (batch, length). A theorem's network takes (batch, tokens, features), and needs none.
    names: of the inputs in the file; if not given those of the arguments, or x for a compiled model.

    Outputs are named as the model names them, or y; what is no tensor, as a cache, is left out. bfloat16 is warned of.

    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "tanh.onnx"
    >>> ah.export_onnx(ah.compile("tanh(x)"), path)
    """
    _require("onnx", "onnxscript")
    if isinstance(model, CompiledModel):
        call, tensors, sizes = _compiled(model, example)
        said = {CERTIFICATE: _certificate(model).as_dict()}
    elif isinstance(report := getattr(model, "report", None), ConversionReport):
        call, tensors, sizes = _converted(model, example)
        said = {REPORT: report.as_dict()}
    elif isinstance(model, Construction | Universal):
        call, tensors, sizes = _theorem(model)
        said = {THEOREM: model.as_dict()}
    else:
        raise InputError(
            f"A {type(model).__name__} is neither a compiled nor a converted model, nor the network of a theorem; "
            "export what ah.compile, ah.convert or ah.theorems returned."
        )
    named = call.names if names is None else [str(name) for name in names]
    if len(named) != len(tensors) or len(set(named)) != len(named):
        raise InputError(f"names={names!r} must be {len(tensors)} different names, one for each input.")
    program = _program(call, tensors, named, sizes)
    _tidy(program.model, sizes)
    program.model.metadata_props.update({key: json.dumps(value, allow_nan=False) for key, value in said.items()})
    size = sum(t.numel() * t.element_size() for t in (*model.parameters(), *model.buffers()))
    try:
        program.save(os.fspath(path), external_data=size > LARGEST)
    except OSError as error:
        raise FileError(f"{path} cannot be written: {error}.") from error
    if why := no_runtime(model):
        warn_caller(why, UserWarning)


def check_onnx(model: nn.Module, path: str | os.PathLike[str], inputs: Inputs, *, optimized: bool = False) -> float:
    """The largest difference between the file in onnxruntime and the model in torch, relative to 1 + |output|; what is
    finite in the model and not in the file is refused.

    optimized: with all of onnxruntime's optimisations; in float64 some of them keep the digits of a float32 only.

    >>> import pathlib, tempfile
    >>> model, path = ah.compile("tanh(x)"), pathlib.Path(tempfile.mkdtemp()) / "tanh.onnx"
    >>> ah.export_onnx(model, path)
    >>> ah.check_onnx(model, path, torch.linspace(-3, 3, 7, dtype=torch.float64)[:, None]) < 1e-12
    True
    """
    _require("onnxruntime")
    session = _session(path, optimized, no_runtime(model))
    call, tensors = _call(model, inputs)
    known = [i.name for i in session.get_inputs()]
    if len(known) != len(tensors):
        raise InputError(f"The file takes {len(known)} inputs ({', '.join(known)}), and {len(tensors)} were given.")
    order = call.names if set(call.names) == set(known) else known
    with _evaluating(model):
        wanted = _outputs(call, tensors, "these inputs,")
    try:
        found = session.run(None, {name: t.detach().cpu().numpy() for name, t in zip(order, tensors, strict=True)})
    except Exception as error:
        raise InputError(f"{path} does not take these inputs: {_reason(error)}.") from error
    if len(found) != len(wanted):
        raise InputError(f"The file returns {len(found)} tensors where the model returns {len(wanted)}.")
    return max(difference(torch.as_tensor(f), w) for f, w in zip(found, wanted.values(), strict=True))


def _session(path: str | os.PathLike[str], optimized: bool, why: str) -> Any:
    import onnxruntime

    options, levels = onnxruntime.SessionOptions(), onnxruntime.GraphOptimizationLevel
    options.graph_optimization_level = levels.ORT_ENABLE_ALL if optimized else levels.ORT_ENABLE_BASIC
    try:
        return onnxruntime.InferenceSession(os.fspath(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime has a class for each status
        raise FileError(f"{path} cannot be read by onnxruntime: {_reason(error)}. {why}".rstrip()) from error


class _Call(nn.Module):
    """A model as a function of tensors in a row, `names` by name, that returns its tensors by name.

    keywords: how the model takes them. numbers: it may hold numbers that are no tensors.
    """

    def __init__(self, model: nn.Module, names: Sequence[str], *, keywords: bool = False) -> None:
        super().__init__()
        self.model, self.names, self.keywords = model, list(names), keywords
        self.numbers = not isinstance(model, CompiledModel)

    def forward(self, *tensors: Tensor) -> dict[str, Tensor]:
        named = dict(zip(self.names, tensors, strict=True)) if self.keywords else {}
        found = self.model(*(() if self.keywords else tensors), **named)
        if isinstance(found, Tensor):
            return {"y": found}
        pairs = found.items() if isinstance(found, Mapping) else ((f"y{i}", v) for i, v in enumerate(found))
        return {str(name): value for name, value in pairs if isinstance(value, Tensor)}


def _call(model: nn.Module, inputs: Any) -> tuple[_Call, tuple[Tensor, ...]]:
    """The model as a call with inputs like these, and the inputs in a row."""
    if isinstance(inputs, Mapping):
        names, tensors = [str(name) for name in inputs], tuple(inputs.values())
    else:
        tensors = tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)
        names = _arguments(model, len(tensors))
    wrong = [f"{n} is a {type(t).__name__}" for n, t in zip(names, tensors, strict=True) if not isinstance(t, Tensor)]
    if wrong or not tensors:
        raise InputError(f"Inputs must be tensors, and {wrong[0] if wrong else 'nothing was given'}.")
    return _Call(model, names, keywords=isinstance(inputs, Mapping)), tensors


def _arguments(model: nn.Module, count: int) -> list[str]:
    """The names of a model's first arguments."""
    plain = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    known = [name for name, p in inspect.signature(model.forward).parameters.items() if p.kind in plain]
    if len(known) < count:
        return ["x"] if count == 1 else [f"x{i}" for i in range(count)]
    return known[:count]


Sizes = list[dict[int, str]]
"""For each input the dimensions whose size is free, with their names."""


def _certificate(model: CompiledModel) -> Certificate:
    """That of the literal form; of a model with joined pieces its own, which says that it is of the fast evaluation:
    the file counts scores from the largest gate, and of that evaluation there is no proof."""
    return model.certificate if model.network.joined else model.literal_certificate()


def _compiled(model: CompiledModel, example: Any) -> tuple[_Call, tuple[Tensor, ...], Sizes]:
    """In literal form, on inputs of which the leading sizes are free."""
    shape: tuple[int, ...] = getattr(model, "input_shape", ())
    if isinstance(model, PromptModel):
        raise InputError("A function of a prompt is not written to ONNX files; ah.load and model.literal() run it.")
    leading = 1 if shape else 2
    if example is not None:
        if not isinstance(example, Tensor):
            raise InputError(f"A compiled model takes one tensor, and the example is a {type(example).__name__}.")
        with torch.no_grad():
            model(example)  # says what is wrong with its shape or dtype
        leading = example.ndim - len(shape)
    first = next(model.parameters())
    x = torch.zeros(*(2 + i for i in range(leading)), *shape, dtype=first.dtype, device=first.device)
    call, tensors = _call(model, x)
    call.model = steady(model.literal())
    return call, tensors, [{i: _name(i) for i in range(leading)}]


def _theorem(model: Construction | Universal) -> tuple[_Call, tuple[Tensor, ...], Sizes]:
    """In literal form: sequences of its size in batches, or prompts of any length."""
    if isinstance(model, Universal):
        x = model.middle.expand(2, 3, -1).clone()
    else:
        x = torch.zeros(2, *model.size, dtype=model.dtype, device=model.attention.value.device)
    call, tensors = _call(model.literal(), x)
    call.names = ["tokens" if isinstance(model, Universal) else "x"]
    return call, tensors, [{i: _name(i) for i in range(2 if isinstance(model, Universal) else 1)}]


def _converted(model: nn.Module, example: Any) -> tuple[_Call, tuple[Tensor, ...], Sizes]:
    """As it runs, on inputs like the example; sizes are free that can be larger by one."""
    if example is None:
        raise InputError("What a converted model takes is not known; give an example: export_onnx(model, path, x).")
    call, tensors = _call(model, example)
    sizes: Sizes = [{} for _ in tensors]
    with _evaluating(call):
        outputs = _outputs(call, tensors, "the example, which is")
        if not outputs:
            raise InputError("The model returns no tensors, so that there is nothing to write.")
        if all(t.ndim and len(t) == 1 for t in tensors):  # the exporter takes a size of one for a fact
            twice = tuple(_longer(t, 0) for t in tensors)
            tensors = twice if _runs(call, twice) else tensors
        for i, size in dict.fromkeys((i, n) for t in tensors for i, n in enumerate(t.shape)):
            alike = [t.ndim > i and t.shape[i] == size for t in tensors]
            if size > 1 and _runs(call, [_longer(t, i) if a else t for t, a in zip(tensors, alike, strict=True)]):
                taken = {name for known in sizes for name in known.values()}
                name = _name(i) if _name(i) not in taken else f"{_name(i)}_{call.names[alike.index(True)]}"
                for known, a in zip(sizes, alike, strict=True):
                    known.update({i: name} if a else {})
    return call, tensors, sizes


def _outputs(call: _Call, tensors: Sequence[Tensor], what: str) -> dict[str, Tensor]:
    """What a model returns; what it raises about its inputs becomes a sentence."""
    try:
        found: dict[str, Tensor] = call(*tensors)
        return found
    except AnchorheadError:
        raise
    except Exception as error:  # whatever the model has against it
        given = ", ".join(f"{name} {tuple(t.shape)}" for name, t in zip(call.names, tensors, strict=True))
        takes = ", ".join(inspect.signature(call.model.forward).parameters)
        why = f"{given}: {_reason(error)}. Its forward takes {takes}."
        raise InputError(f"The model does not take {what} {why}") from error


def _name(i: int) -> str:
    return ("batch", "length")[i] if i < 2 else f"size{i}"


def _longer(t: Tensor, i: int) -> Tensor:
    return torch.cat([t, t.narrow(i, 0, 1)], dim=i)


def _runs(call: _Call, tensors: Sequence[Tensor]) -> bool:
    with contextlib.suppress(Exception):
        call(*tensors)
        return True
    return False


def _program(call: _Call, tensors: tuple[Tensor, ...], names: Sequence[str], sizes: Sizes) -> Any:
    """The ONNX program, constants folded."""
    from onnxscript import optimizer

    free: Any = (tuple({i: Dim.AUTO for i in known} for known in sizes),)
    with _evaluating(call), _quiet():
        outputs = [f"{name}_out" if name in names else name for name in call(*tensors)]
        try:
            if call.numbers and any(t.dtype == torch.float64 for t in (*tensors, *call.parameters())):
                call = _Call(stored_numbers(call, tensors, free), call.names)
            program: Any = torch.onnx.export(call, tensors, dynamo=True, dynamic_shapes=free, input_names=list(names),
                                             output_names=outputs, opset_version=OPSET, optimize=False,
                                             verbose=False)  # fmt: skip
            optimizer.fold_constants(program.model)
            optimizer.remove_unused_nodes(program.model)
        except Exception as error:  # what the exporter cannot do shows itself in many ways
            raise InputError(f"The model cannot be written as ONNX: {_reason(error)}.") from error
    return program


def _tidy(model: Any, sizes: Sizes) -> None:
    """Calls free sizes by their names, and leaves out where in whose files each operation was written."""
    names: dict[str, str] = {}
    for value, known in zip(model.graph.inputs, sizes, strict=True):
        for i, name in known.items():
            if not isinstance(value.shape[i], int):
                names[str(value.shape[i])] = name
    values = [*model.graph.inputs, *model.graph.initializers.values()]
    for node in model.graph:
        node.metadata_props.clear()
        values += node.outputs
    for value in values:
        value.metadata_props.clear()
        for i, size in enumerate(value.shape or ()):
            if not isinstance(size, int) and size.value is not None:
                value.shape[i] = re.sub(r"[A-Za-z_]\w*", lambda found: names.get(found[0], found[0]), size.value)


@contextlib.contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """In evaluation mode and without gradients; every module is as it was afterwards."""
    before = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, training in before.items():
            module.training = training


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without what the exporter has to say about itself."""
    logger = logging.getLogger("torch.onnx")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)


def _reason(error: Exception) -> str:
    cause = error.__cause__ or error
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    return (lines[0] if lines else type(cause).__name__).rstrip(".")[:300]


def _require(*packages: str) -> None:
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        what = f"{' and '.join(missing)}, which is not installed"
        raise InputError(f"ONNX files need {what}: pip install onnx onnxscript onnxruntime")
