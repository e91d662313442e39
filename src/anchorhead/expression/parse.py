"""Text to graph, by a whitelist over Python's own grammar; nothing is ever evaluated as code.

Before Python's parser sees the text, its length, its nesting and its runs of signs and powers are limited, since the
parser itself can fail on a hundred thousand brackets. After that only numbers, names, + - * / **, signs and calls of
known functions pass; anything else is refused with its place. Numbers are read as the decimals they are.
"""

from __future__ import annotations

import ast
import difflib
import re
import warnings
from collections.abc import Callable, Sequence
from fractions import Fraction

from anchorhead.errors import DiscontinuityError, ExpressionError
from anchorhead.expression.calls import call, power
from anchorhead.expression.functions import ALIASES, CONSTANTS, DISCONTINUOUS, FUNCTIONS, POOLS, check_names
from anchorhead.expression.graph import Expression, Node, constant, divide, negate, variable

LONGEST = 20_000
DEEPEST = 200
DIGITS = 2_000
TERMS = 2_500
"""Of one sum or product. Python's own parser gives up at some number beyond, another in each version."""

_TOO_MANY = (
    f"The expression has too many terms in one sum or product (at most {TERMS} signs are read), or is nested too deep; "
    "split it into several outputs."
)
_INFIX: dict[type[ast.operator], Callable[[Node, Node], Node]] = {
    ast.Add: lambda left, right: Node("add", (left, right)),
    ast.Sub: lambda left, right: Node("sub", (left, right)),
    ast.Mult: lambda left, right: Node("mul", (left, right)),
    ast.Div: divide,
    ast.Pow: power,
}
_CONTINUOUS_ONLY: dict[type[ast.operator], str] = {ast.Mod: "%", ast.FloorDiv: "//"}
_FORBIDDEN = {
    ast.Attribute: "an attribute (only plain function names are known)",
    ast.Subscript: "a subscript",
    ast.Lambda: "a lambda",
    ast.Compare: "a comparison (use min, max, abs, clip or relu for continuous choices)",
    ast.BoolOp: "a logical operation",
    ast.IfExp: "a condition (use min, max, abs, clip or relu for continuous choices)",
    ast.NamedExpr: "an assignment",
    ast.JoinedStr: "a formatted string",
    ast.Tuple: "a tuple (give several outputs as a list of texts)",
    ast.List: "a list (give several outputs as a list of texts)",
    ast.Starred: "a star",
    ast.Await: "an await",
}


def parse(text: str | Sequence[str], variables: Sequence[str] | None = None, *, pools: bool = False) -> Expression:
    """The expression that a text (or one text per output) describes; variables in the given order.

    pools: whether it may speak of all tokens of a prompt, by the words of `POOLS`.
    """
    texts = [text] if isinstance(text, str) else list(text)
    if not all(isinstance(each, str) for each in texts):
        raise ExpressionError(
            f"An expression is text, or a list of texts, one for each output; got {type(text).__name__}."
        )
    names = None if variables is None else _names(variables, pools)
    return Expression([_Reader(each, names, pools).read() for each in texts], names)


def _names(variables: Sequence[str], pools: bool) -> tuple[str, ...]:
    names = (variables,) if isinstance(variables, str) else tuple(variables)
    check_names(names, POOLS if pools else ())
    return names


class _Reader:
    """One text on its way to one node, with the places to point at when it is refused."""

    def __init__(self, text: str, names: tuple[str, ...] | None, pools: bool) -> None:
        self.text = text
        self.names = names
        self.pools = pools

    def read(self) -> Node:
        self._limit()
        self.text = self.text.strip()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                tree = ast.parse(self.text, mode="eval")
            return self._node(tree.body, 0)
        except SyntaxError as error:
            line, column = error.lineno or 1, (error.offset or 1) - 1
            raise ExpressionError(self._pointed(f"The text does not parse: {error.msg}", line, column)) from None
        except (RecursionError, MemoryError):
            raise ExpressionError(_TOO_MANY) from None

    def _limit(self) -> None:
        """Refuse what could exhaust Python's parser, in one pass over the characters."""
        text = self.text
        if len(text) > LONGEST:
            raise ExpressionError(
                f"The expression has {len(text)} characters and at most {LONGEST} are read; split it into outputs."
            )
        if not text.strip():
            raise ExpressionError("The expression is empty; write one such as 'gelu(x)' or 'sin(3*x) + x**2'.")
        if odd := re.search(r"[^\t\n -~]", text):
            raise ExpressionError(
                f"The expression has the character {odd[0]!a} at {self._line(odd.start())}; "
                "only plain ASCII letters, digits and signs are read."
            )
        depth = 0
        for place, character in enumerate(text):
            depth += (character in "([{") - (character in ")]}")
            if depth > DEEPEST:
                raise ExpressionError(
                    f"The expression opens more than {DEEPEST} brackets inside each other at {self._line(place)}; "
                    "write it flatter."
                )
        if len(re.findall(r"\*\*", text)) > DEEPEST or re.search(rf"([-+~]\s*){{{DEEPEST}}}", text):
            raise ExpressionError(
                f"The expression has a chain of more than {DEEPEST} powers or signs; write it without the chain."
            )
        if re.search(rf"[0-9_.]{{{DIGITS}}}", text):
            raise ExpressionError(f"A number in the expression has more than {DIGITS} digits; shorten it.")

    def _line(self, place: int) -> str:
        before = self.text[:place]
        return f"line {before.count(chr(10)) + 1}, column {place - before.rfind(chr(10))}"

    def _pointed(self, sentence: str, line: int, column: int) -> str:
        """The sentence, the place, and a caret below it."""
        lines = self.text.split("\n")
        shown = lines[min(line, len(lines)) - 1]
        start = max(0, column - 60)
        caret = " " * (column - start) + "^"
        return f"{sentence}, at line {line}, column {column + 1}:\n  {shown[start : start + 120]}\n  {caret}"

    def refused(self, sentence: str, where: ast.AST, kind: type[ExpressionError] = ExpressionError) -> ExpressionError:
        return kind(self._pointed(sentence, getattr(where, "lineno", 1), getattr(where, "col_offset", 0)))

    def _node(self, tree: ast.AST, depth: int) -> Node:
        # A long sum leans left, as deep as it is long, so the left operands are walked in a loop.
        chain: list[ast.BinOp] = []
        while isinstance(tree, ast.BinOp):
            chain.append(tree)
            tree = tree.left
        if len(chain) > TERMS:
            raise ExpressionError(_TOO_MANY)
        node = self._leaf(tree, depth)
        for operation in reversed(chain):
            node = self._infix(operation, node, self._node(operation.right, depth + 1))
        return node

    def _infix(self, tree: ast.BinOp, left: Node, right: Node) -> Node:
        kind = type(tree.op)
        if kind in _INFIX:
            try:
                return _INFIX[kind](left, right)
            except ExpressionError as error:
                raise self.refused(str(error).rstrip("."), tree) from None
        if kind in _CONTINUOUS_ONLY:
            raise self.refused(f"{_CONTINUOUS_ONLY[kind]} jumps, so it is not allowed here", tree, DiscontinuityError)
        advice = "for a power write **" if kind is ast.BitXor else "use + - * / or **"
        sentence = f"The expression uses an operator that is not known ({advice})"
        raise ExpressionError(self._pointed(sentence, *self._sign(tree)))

    def _sign(self, tree: ast.BinOp) -> tuple[int, int]:
        """The line and column of an operation's sign: behind the left side, its brackets and spaces."""
        above = self.text.split("\n")[: (tree.left.end_lineno or 1) - 1]
        place = sum(len(line) + 1 for line in above) + (tree.left.end_col_offset or 0)
        while self.text[place].isspace() or self.text[place] == ")":
            place += 1
        return self.text.count("\n", 0, place) + 1, place - self.text.rfind("\n", 0, place) - 1

    def _leaf(self, tree: ast.AST, depth: int) -> Node:
        if depth > DEEPEST:
            raise self.refused(f"The expression is nested more than {DEEPEST} deep", tree)
        if isinstance(tree, ast.Constant):
            return self._constant(tree)
        if isinstance(tree, ast.Name):
            return self._name(tree)
        if isinstance(tree, ast.UnaryOp):
            return self._signed(tree, depth)
        if isinstance(tree, ast.Call):
            return self._call(tree, depth)
        what = _FORBIDDEN.get(type(tree), type(tree).__name__)
        raise self.refused(f"An expression cannot hold {what}", tree)

    def _signed(self, tree: ast.UnaryOp, depth: int) -> Node:
        if not isinstance(tree.op, ast.UAdd | ast.USub):
            raise self.refused("An expression knows the signs + and - only", tree)
        node = self._node(tree.operand, depth + 1)
        return negate(node) if isinstance(tree.op, ast.USub) else node

    def _constant(self, tree: ast.Constant) -> Node:
        if type(tree.value) is int:
            return constant(tree.value)
        if type(tree.value) is not float:
            kind = type(tree.value).__name__
            raise self.refused(f"An expression holds numbers only, and this is a constant of type {kind}", tree)
        line = self.text.split("\n")[tree.lineno - 1]  # all of it ASCII, so that offsets in bytes are places
        written = line[tree.col_offset : tree.end_col_offset].replace("_", "").lower()
        mantissa, _, exponent = written.partition("e")
        whole, _, after = mantissa.partition(".")
        digits = (whole + after).lstrip("0")
        leading = len(digits) - len(after) - 1
        # int() of a hundred thousand digits would itself be refused, by Python
        if digits and (len(exponent) > 10 or abs(leading + int(exponent or 0)) > DIGITS):
            raise self.refused(f"The number {written[:40]} is too large or too small to be read", tree)
        return constant(Fraction(int(digits), 10 ** len(after)) * Fraction(10) ** int(exponent or 0) if digits else 0)

    def _name(self, tree: ast.Name) -> Node:
        name = tree.id
        if name in CONSTANTS:
            return Node(name)
        if name in FUNCTIONS or name in ALIASES or name in DISCONTINUOUS:
            raise self.refused(f"{name} is a function; call it with brackets, as in {name}(x)", tree)
        if name.lower() in ("nan", "inf", "infinity"):
            raise self.refused(f"{name} is no number that a formula can hold, and no name for a variable", tree)
        if not re.fullmatch(r"[A-Za-z_][A-Za-z_0-9]*", name) or name.startswith("__"):
            raise self.refused(f"{name!r} cannot name a variable", tree)
        if self.names is not None and name not in self.names:
            near = difflib.get_close_matches(name, [*self.names, *CONSTANTS], 1)
            advice = f"did you mean {near[0]}?" if near else f"the variables are {', '.join(self.names) or 'none'}"
            raise self.refused(f"{name} is not a variable here ({advice})", tree)
        return variable(name)

    def _call(self, tree: ast.Call, depth: int) -> Node:
        if not isinstance(tree.func, ast.Name):
            raise self.refused("Only a function's plain name can be called", tree)
        name = tree.func.id
        positional = []
        for argument in tree.args:
            if isinstance(argument, ast.Starred):
                raise self.refused("An argument cannot be starred", argument)
            positional.append(self._node(argument, depth + 1))
        named: dict[str, Node | str] = {}
        for keyword in tree.keywords:
            if keyword.arg is None:
                raise self.refused("Arguments cannot be unpacked", keyword.value)
            if keyword.arg in named:
                raise self.refused(f"The keyword {keyword.arg} is given twice", keyword.value)
            value = keyword.value
            if keyword.arg == "approximate" and isinstance(value, ast.Constant) and isinstance(value.value, str):
                named[keyword.arg] = value.value
            else:
                named[keyword.arg] = self._node(value, depth + 1)
        if name in POOLS:
            if not self.pools:
                raise self.refused(f"{name} is over the tokens of a prompt, which ah.in_context.compile takes", tree)
            if named or len(positional) != POOLS[name]:
                wanted = "x" if POOLS[name] == 1 else "score, value" if name == "attend" else "x, y"
                raise self.refused(f"{name} is called as {name}({wanted})", tree)
            return Node(name, positional)
        if self.pools and name in ("max", "min") and len(positional) == 1 and not named:
            k = "100" if name == "max" else "-100"
            raise self.refused(
                f"{name} over the tokens has no network for prompts of every length; attend({k}*x, x), or a larger "
                f"factor, comes near it, and {name} of two or more numbers of a token is known",
                tree,
            )
        if self.pools and name in ("median", "quantile"):
            raise self.refused(
                f"{name} over the tokens has no network for prompts of every length: in a long one a single token may "
                "move it from one end to the other; mean(clip(x, low, high)) keeps tokens far away from counting much",
                tree,
            )
        if self.pools and name in ("sum", "count", "len"):
            raise self.refused(
                f"{name} over the tokens grows with their number, and a network holds for prompts of every length; "
                "write mean(x), and multiply the answer by the number of tokens, or make that a query's variable",
                tree,
            )
        try:
            return call(name, positional, named, tuple(POOLS) if self.pools else ())
        except ExpressionError as error:
            raise self.refused(str(error).rstrip("."), tree, type(error)) from None
