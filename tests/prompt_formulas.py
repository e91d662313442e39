"""What formulas of a prompt mean, from their text alone: Python's own grammar and mpmath, and none of the package."""

import ast
import operator

import mpmath as mp

INFIX = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}
FUNCTIONS = {"exp": mp.exp, "sin": mp.sin, "tanh": mp.tanh, "sqrt": mp.sqrt, "abs": abs, "log": mp.log}


def value(text, tokens, names, query=None):
    """The formula at a list of tokens, each a row of numbers with these names, and one query by name."""
    rows = [dict(zip(names, map(mp.mpf, row), strict=True)) for row in tokens]
    asked = {name: mp.mpf(number) for name, number in (query or {}).items()}
    with mp.workdps(40):
        return _value(ast.parse(text, mode="eval").body, rows, asked, {})


def _value(tree, rows, query, token):
    def here(part):
        return _value(part, rows, query, token)

    def everywhere(part):
        return [_value(part, rows, query, row) for row in rows]

    match tree:
        case ast.Constant():
            return mp.mpf(repr(tree.value))
        case ast.Name(id=name):
            return token[name] if name in token else query[name]
        case ast.UnaryOp(op=ast.USub(), operand=part):
            return -here(part)
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            return here(left) ** int(here(right))
        case ast.BinOp(left=left, op=op, right=right):
            return INFIX[type(op)](here(left), here(right))
        case ast.Call(func=ast.Name(id="mean"), args=[part]):
            return mean(everywhere(part))
        case ast.Call(func=ast.Name(id="var" | "std" as name), args=[part]):
            found = covariance(everywhere(part), everywhere(part))
            return mp.sqrt(found) if name == "std" else found
        case ast.Call(func=ast.Name(id="cov"), args=[left, right]):
            return covariance(everywhere(left), everywhere(right))
        case ast.Call(func=ast.Name(id="attend"), args=[score, part]):
            weights = [mp.exp(s) for s in everywhere(score)]
            return sum(w * v for w, v in zip(weights, everywhere(part), strict=True)) / sum(weights)
        case ast.Call(func=ast.Name(id="max"), args=parts):
            return max(map(here, parts))
        case ast.Call(func=ast.Name(id=name), args=[part]):
            return FUNCTIONS[name](here(part))
    raise ValueError(ast.dump(tree))


def mean(numbers):
    return mp.fsum(numbers) / len(numbers)


def covariance(left, right):
    a, b = mean(left), mean(right)
    return mean([(u - a) * (v - b) for u, v in zip(left, right, strict=True)])
