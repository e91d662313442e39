"""Calls of activations in a forward that torch.fx cannot follow: changed in its source, and nothing else of it.

A forward that branches on its arguments would be frozen by a trace. Its source is read instead: in it, and in functions
of the same file that it names, as an attention that it hands on, every call of a known activation with constants beside
its argument, torch.tanh(E), becomes self.tanh_head(E), also where the name is that of a module, as the transformers
library's gelu. Where what a child returns is used once, in a product, self.act(E)·F, that becomes self.act(E, F), a
gate. Such functions become functions within the forward, where `self` is known. What was compiled so takes the place of
the innermost function; decorators stay around it as they were.
"""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
import types
from collections.abc import Callable, Iterator
from typing import Any

from torch import nn

from anchorhead.conversion.activations import FUNCTIONS, METHODS, formula_of, formula_of_call, is_activation
from anchorhead.conversion.lines import END, HEADED

Calls = dict[str, str]
"""The formula of each call, by the name under which its head will stand."""


def source_calls(module: nn.Module, *, helpers: bool) -> Calls:
    """The calls of activations that a change of the source can replace; none where there can be no such change."""
    kind: Any = type(module)
    if "forward" in vars(module) or kind.__module__.startswith("torch."):
        return {}
    return dict(_found(kind, helpers))


@functools.cache
def _found(kind: Any, helpers: bool) -> tuple[tuple[str, str], ...]:
    read = _Reading(kind, helpers, None)
    return tuple(read.calls.items())


def source_gates(module: nn.Module) -> set[str]:
    """Names of children whose result is used once, as a factor."""
    kind: Any = type(module)
    if "forward" in vars(module) or kind.__module__.startswith("torch."):
        return set()
    return _gates_of(kind)


@functools.cache
def _gates_of(kind: Any) -> set[str]:
    return _Reading(kind, False, None).gates


def source_forward(base: Any, names: tuple[str, ...]) -> Callable[..., Any]:
    """The forward of a class with heads in the place of the calls of these names."""
    read = _Reading(base, True, set(names))
    space: dict[str, Any] = {}  # beside the names of its module, which stay what they become
    name = f"{HEADED}{read.inner.__code__.co_filename}{END}"
    exec(compile(ast.Module([read.tree], []), name, "exec"), read.inner.__globals__, space)
    made: types.FunctionType = space[read.tree.name]
    made.__defaults__, made.__kwdefaults__ = read.inner.__defaults__, read.inner.__kwdefaults__
    return _wrapped(base.forward, made)


class _Reading:
    """A forward as a tree, its calls of activations, and those of `names` replaced; nothing found if it has no source
    of its own or refers to names around it, as super() does."""

    def __init__(self, kind: Any, helpers: bool, names: set[str] | None) -> None:
        self.inner: Any = inspect.unwrap(kind.forward)
        self.names, self.calls, self.gates = names, dict[str, str](), set[str]()
        parsed = _parsed(self.inner)
        if parsed is None or self.inner.__closure__ or not _rewrappable(kind.forward):
            return
        self.tree, space = parsed, _around(self.inner)
        self.tree.decorator_list = []
        self.own = self.tree.args.args[0].arg if self.tree.args.args else "self"
        inside = list(_helpers(self.tree, space, self.inner.__module__)) if helpers else []
        _Replace(self, space).visit(self.tree)
        _Gates(self).visit(self.tree)
        first = 1 if ast.get_docstring(self.tree) else 0
        for function, body in inside:
            before = len(self.calls)
            _Replace(self, _around(function)).visit(body)
            if len(self.calls) > before:
                body.decorator_list = []
                self.tree.body.insert(first, body)
        self.tree.body = self.tree.body[first:] or self.tree.body
        ast.fix_missing_locations(self.tree)


class _Replace(ast.NodeTransformer):
    """Notes every call of an activation, and replaces those that are to be."""

    def __init__(self, read: _Reading, space: dict[str, Any]) -> None:
        self.read, self.space = read, space

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        found = self._formula(node)
        if found is None:
            return node
        function, argument, formula = found
        name = function
        for count in range(1, len(self.read.calls) + 1):
            if name not in self.read.calls:
                break
            name = f"{function}_{count}"
        self.read.calls[name] = formula
        if self.read.names is None or name not in self.read.names:
            return node
        head = ast.Attribute(ast.Name(self.read.own, ast.Load()), f"{name}_head", ast.Load())
        return ast.Call(head, [argument], [])

    def _formula(self, node: ast.Call) -> tuple[str, ast.expr, str] | None:
        """Name, argument and formula of a call of an activation with constants beside its argument."""
        known: Any = _resolved(node.func, self.space)
        given = list(node.args)
        if isinstance(known, nn.Module):
            formula = _formula_of_held(known) if len(given) == 1 and not node.keywords else None
            own = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            return None if formula is None or isinstance(given[0], ast.Starred) else (own, given[0], formula)
        name = FUNCTIONS.get(known) if callable(known) else None
        if name is not None:
            pass
        elif known is None and isinstance(node.func, ast.Attribute) and node.func.attr in METHODS and not given:
            name, known, given = METHODS[node.func.attr], node.func.attr, [node.func.value]
        else:
            return None
        if not given or any(isinstance(a, ast.Starred) for a in given) or any(k.arg is None for k in node.keywords):
            return None
        try:
            rest = tuple(ast.literal_eval(a) for a in given[1:])
            named = {str(k.arg): ast.literal_eval(k.value) for k in node.keywords}
        except ValueError:
            return None
        formula = None if named.get("inplace") else formula_of_call(known, rest, named)
        return None if formula is None else (name, given[0], formula)


class _Gates(ast.NodeTransformer):
    """Notes products of what a child returned and of something else, and makes gates of those that are to be."""

    def __init__(self, read: _Reading) -> None:
        self.read = read
        nodes = list(ast.walk(read.tree))
        names = [n for n in nodes if isinstance(n, ast.Name)]
        held = [n for n in nodes if isinstance(n, ast.Assign) and len(n.targets) == 1]
        once = {n.id for n in names if sum(n.id == m.id for m in names) == 2}  # made, and used
        self.made = {n.targets[0].id: n for n in held if isinstance(n.targets[0], ast.Name)
                     and n.targets[0].id in once and self._child(n.value)}  # fmt: skip
        calls = [c for n in nodes if (c := self._child(n))]
        self.single = {c for c in calls if calls.count(c) == 1}

    def _child(self, node: ast.AST) -> str:
        """The name of a child that is called with one argument."""
        called = isinstance(node, ast.Call) and len(node.args) == 1 and not node.keywords
        function = node.func if isinstance(node, ast.Call) and called else None
        own = isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name)
        if own and isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
            return function.attr if function.value.id == self.read.own else ""
        return ""

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        if not isinstance(node.op, ast.Mult):
            return node
        for factor, other in ((node.left, node.right), (node.right, node.left)):
            made = self.made.get(factor.id) if isinstance(factor, ast.Name) else None
            call: Any = made.value if made is not None else factor
            child = self._child(call)
            if child and child in self.single:
                self.read.gates.add(child)
                if self.read.names is not None and child in self.read.names:
                    argument = call.args[0]
                    if made is not None:
                        made.value, argument = argument, factor
                    return ast.Call(call.func, [argument, other], [])
        return node


def _formula_of_held(module: nn.Module) -> str | None:
    """The formula of an activation that a file holds as a module, if all that calling it does is to compute that."""
    hooks = [*module._forward_hooks, *module._forward_pre_hooks]
    plain = is_activation(module) and not hooks and not getattr(module, "inplace", False)
    return formula_of(module) if plain else None


def _around(function: Any) -> dict[str, Any]:
    """The names of its file that a function sees: those that are not its own."""
    own = {*function.__code__.co_varnames, *function.__code__.co_cellvars}
    return {name: value for name, value in function.__globals__.items() if name not in own}


def _resolved(node: ast.AST, space: dict[str, Any]) -> Any:
    """What a dotted name stands for; None for anything else."""
    if isinstance(node, ast.Name):
        found = space.get(node.id)
        return found if callable(found) or isinstance(found, types.ModuleType) else None
    if isinstance(node, ast.Attribute):
        holder = _resolved(node.value, space)
        return getattr(holder, node.attr, None) if isinstance(holder, types.ModuleType) else None
    return None


def _helpers(tree: ast.FunctionDef, space: dict[str, Any], where: str) -> Iterator[tuple[Any, ast.FunctionDef]]:
    """Functions of the same file that a forward names."""
    names = dict.fromkeys(n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load))
    for name in names:
        function: Any = space.get(name)
        if isinstance(function, types.FunctionType) and function.__module__ == where and not function.__closure__:
            parsed = None if hasattr(function, "__wrapped__") else _parsed(function)
            if parsed is not None and parsed.name == name:
                yield function, parsed


def _parsed(function: Any) -> ast.FunctionDef | None:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return None
    ast.increment_lineno(tree, inspect.unwrap(function).__code__.co_firstlineno - 1)
    return tree.body[0] if tree.body and isinstance(tree.body[0], ast.FunctionDef) else None


def _rewrappable(function: Any) -> bool:
    """Whether every decorator around it holds what it decorates in a cell."""
    while hasattr(function, "__wrapped__"):
        if not any(_holds(cell, function.__wrapped__) for cell in getattr(function, "__closure__", None) or ()):
            return False
        function = function.__wrapped__
    return isinstance(function, types.FunctionType)


def _holds(cell: Any, function: Any) -> bool:
    try:
        return cell.cell_contents is function
    except ValueError:
        return False


def _wrapped(function: Any, inner: Callable[..., Any]) -> Callable[..., Any]:
    """The decorators around a function, around another."""
    if not hasattr(function, "__wrapped__"):
        return inner
    below = _wrapped(function.__wrapped__, inner)
    cells = tuple(types.CellType(below) if _holds(c, function.__wrapped__) else c for c in function.__closure__)
    made = types.FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__, cells)
    made.__kwdefaults__ = function.__kwdefaults__
    made.__dict__.update(function.__dict__, __wrapped__=below)
    return made
