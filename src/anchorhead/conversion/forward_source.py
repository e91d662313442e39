"""What the source of a module's forward says: which activations it calls, and whether tracing would freeze it.

Read are the forward, the methods it calls on `self`, and the functions of the same package that it calls by name, as
deep as they go. A trace by torch.fx follows one path and keeps the values it saw, so a forward that branches on its
arguments or on `training`, changes its own state, draws random numbers, catches exceptions, or computes within a `with`
block, as of no_grad or autocast, must not be replaced by its trace.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
import types
from collections.abc import Iterator
from typing import Any

from torch import fx, nn

from anchorhead.conversion.activations import FUNCTIONS, METHODS

ACTIVATION_NAMES = {*FUNCTIONS.values(), *METHODS, "glu"}
RANDOM = ("rand", "randn", "rand_like", "randn_like", "random", "bernoulli", "normal", "multinomial")
SETTINGS = set(
    "is_grad_enabled is_inference_mode_enabled is_autocast_enabled get_autocast_dtype get_default_dtype "
    "get_default_device environ getenv".split()
)
"""What asks for a setting of torch or of the machine, which is another in another call."""
CONTEXTS = set("no_grad enable_grad inference_mode set_grad_enabled autocast".split())
"""What switches a setting, in a `with` block, as a decorator, or by a call."""
DEEP = 6


def sources(module: nn.Module) -> list[tuple[ast.FunctionDef, dict[str, Any]]]:
    """The parsed forward and everything of the same package that it calls, with their global names."""
    kind = type(module)
    if kind.__module__.startswith("torch.nn.modules") or isinstance(module, fx.GraphModule):
        return []
    found: list[tuple[ast.FunctionDef, dict[str, Any]]] = []
    seen: set[Any] = set()
    todo: list[tuple[Any, int]] = [(kind.forward, 0)]
    while todo:
        function, depth = todo.pop(0)
        tree = _with_self(parsed(function), function, kind)
        if function in seen or tree is None:
            continue
        seen.add(function)
        names = getattr(function, "__globals__", {})
        found.append((tree, names))
        if depth < DEEP:
            todo += [(f, depth + 1) for f in _callees(kind, tree, names)]
    return found


def parsed(function: Any) -> ast.FunctionDef | None:
    """The source of a function as a tree; None if there is none."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return None
    return next((n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)), None)


def _with_self(tree: ast.FunctionDef | None, function: Any, kind: type) -> ast.FunctionDef | None:
    """A method in which the module is called self, whatever its author calls it."""
    static = inspect.getattr_static(kind, getattr(function, "__name__", ""), None)
    if tree is None or not tree.args.args or getattr(static, "__func__", static) is not function:
        return tree
    own = tree.args.args[0].arg if not isinstance(static, staticmethod | classmethod) else "self"
    for node in ast.walk(tree) if own != "self" else ():
        if isinstance(node, ast.Name) and node.id == own:
            node.id = "self"
        elif isinstance(node, ast.arg) and node.arg == own:
            node.arg = "self"
    return tree


def _callees(kind: type, parsed: ast.FunctionDef, names: dict[str, Any]) -> Iterator[Any]:
    """Methods called on self, and Python functions of the same package called by name."""
    for node in ast.walk(parsed):
        if not isinstance(node, ast.Call):
            continue
        found: Any = None
        if isinstance(node.func, ast.Attribute) and is_own(node.func):
            found = inspect.getattr_static(kind, node.func.attr, None)
            if found is not None and getattr(nn.Module, node.func.attr, None) is found:
                found = None
        elif isinstance(node.func, ast.Name):
            found = _of_its_package(kind, names.get(node.func.id))
        found = getattr(found, "__func__", found)
        if isinstance(found, types.FunctionType):
            yield found


def _of_its_package(kind: type, value: Any) -> Any:
    """A function of the package that a class is of, whose code is read by itself; None for others."""
    where = (getattr(value, "__module__", None) or "").partition(".")[0]
    own = isinstance(value, types.FunctionType) and where == kind.__module__.partition(".")[0]
    return value if own else None


def activation_calls(module: nn.Module) -> set[str]:
    """Names of activation functions that a module's own code calls, in-place forms without their underscore."""
    return calls(module, ACTIVATION_NAMES)


def calls(module: nn.Module, known: set[str]) -> set[str]:
    """The names of functions that a module's own code calls, of some that are known."""
    return set(each_call(module, known))


def each_call(module: nn.Module, known: set[str] = ACTIVATION_NAMES) -> list[str]:
    """The same, a name for each call."""
    nodes = [(n.func, space) for tree, space in sources(module) for n in ast.walk(tree) if isinstance(n, ast.Call)]
    names = [f.attr for f, _ in nodes if isinstance(f, ast.Attribute) and not is_own(f)]
    names += [f.id for f, space in nodes
              if isinstance(f, ast.Name) and not _of_its_package(type(module), space.get(f.id))]  # fmt: skip
    return [name for n in names if (name := n.removesuffix("_")) in known]


def is_own(function: ast.Attribute) -> bool:
    """self.relu(x): a child or a method, which is seen by itself."""
    return isinstance(function.value, ast.Name) and function.value.id == "self"


def assigned(module: nn.Module) -> set[str]:
    """Names of attributes that a module's own code assigns when it runs: its state."""
    nodes = [n for parsed, _ in sources(module) for n in ast.walk(parsed)]
    found = {n.attr for n in nodes if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store | ast.Del)}
    by_name = [n.args[1] for n in nodes if isinstance(n, ast.Call) and ast.unparse(n.func) == "setattr" and n.args[1:]]
    return found | {str(a.value) for a in by_name if isinstance(a, ast.Constant)}


def frozen(module: nn.Module) -> str | None:
    """Why a trace of the forward would not be the forward; None if it would."""
    if "forward" in vars(module):
        return "its forward was replaced by another"
    for parsed, names in sources(module):
        arguments = {a.arg for a in (*parsed.args.args, *parsed.args.kwonlyargs)} - {"self"}
        for node in ast.walk(parsed):
            reason = _reason(node, arguments) or _asks(node, names, vars(module))
            if reason is not None:
                return reason
    return None


def _reason(node: ast.AST, arguments: set[str]) -> str | None:
    if isinstance(node, ast.Attribute) and node.attr == "training":
        return "it asks whether it is training"
    if isinstance(node, ast.Try):
        return "it catches exceptions"
    if isinstance(node, ast.With) or (isinstance(node, ast.Attribute | ast.Name) and _named(node) in CONTEXTS):
        return "it computes within a `with` block or under a setting of its own, which a trace would drop"
    if isinstance(node, ast.If | ast.IfExp | ast.While) and _mentions(node.test, arguments):
        return "it branches on its arguments"
    if isinstance(node, ast.Assign | ast.AugAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if any(isinstance(t, ast.Attribute) and is_own(t) for t in targets):
            return "it changes its own attributes"
    if isinstance(node, ast.Call) and _named(node.func) in RANDOM:
        return "it draws random numbers"
    return None


def _named(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _asks(node: ast.AST, names: dict[str, Any], own: dict[str, Any]) -> str | None:
    """Whether it reads what may be another number in another call; `own`: the attributes of its module."""
    name = _named(node)
    if name in SETTINGS:
        return "it asks for a setting of torch or of the machine"
    if isinstance(node, ast.Name) and _holds_numbers(names.get(name)):
        return f"it reads {name}, a number that is not its own"
    held = own.get(name) if isinstance(node, ast.Attribute) and not name.startswith("_") else None
    if isinstance(held, list | dict) and _holds_numbers(held):
        return f"it reads {name}, numbers that may change"
    return None


def _holds_numbers(value: Any) -> bool:
    if isinstance(value, list | dict):
        return any(map(_holds_numbers, value.values() if isinstance(value, dict) else value))
    return isinstance(value, int | float | complex)


def _mentions(test: ast.AST, arguments: set[str]) -> bool:
    return any(isinstance(n, ast.Name) and n.id in arguments for n in ast.walk(test))
