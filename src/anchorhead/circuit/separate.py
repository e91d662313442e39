"""A formula of a prompt with every part in its place: a token's, a query's, or the prompt's.

A number of a token and one of a query meet nowhere but in a score, where attention forms products of the two. So the
score of attend(score, value) is multiplied out into  sum over k of t_k · q_k,  each t_k of the token and each q_k of
the query alone: sums, products, quotients and small whole powers can be, and anything else that mixes both is refused.
What a score has of the query alone is the same for every token, and drops out of the softmax. The node becomes
attend(value, offset, t_1, q_1, t_2, q_2, ...), offset what the score has of the token alone, and keeps its own text.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import reduce

from anchorhead.errors import ExpressionError
from anchorhead.expression.functions import POOLS
from anchorhead.expression.graph import Node, fold, rational
from anchorhead.expression.primitives import ONE, ZERO, add, mul

TOKEN, QUERY = frozenset(("token",)), frozenset(("query",))
BOTH, NEITHER = TOKEN | QUERY, TOKEN & QUERY
MOST_TERMS = 64
"""Of a score that is multiplied out."""
MOST_POWER = 4
Term = tuple[Node, Node]


def separated(node: Node, tokens: Collection[str]) -> Node:
    """The formula with its scores taken apart, where these variables are a token's and all others a query's."""
    return _Separation(tokens).run(node)


def multiplied_out(node: Node, tokens: Collection[str]) -> Node:
    """The formula with the score of every attend(score, value) as such a sum, without what is the same for all tokens:
    in terms of it, `expression/normal.py` tells whether two are the same."""
    return fold(fold(node, _Separation(tokens)._part), _together)


def _together(node: Node, args: list[Node]) -> Node:
    if node.op != "attend":
        return Node(node.op, args, node.value)
    value, offset, *parts = args
    score = reduce(add, (mul(token, query) for token, query in zip(parts[::2], parts[1::2], strict=True)), offset)
    return Node("attend", (score, value))


class _Separation:
    """One formula; `places` says of every part on which of the two it depends."""

    def __init__(self, tokens: Collection[str]) -> None:
        self.tokens = tokens
        self.places: dict[Node, frozenset[str]] = {}

    def run(self, node: Node) -> Node:
        found = fold(node, self._part)
        if self.places[found] & TOKEN:
            names = ", ".join(sorted(self.tokens))
            raise ExpressionError(
                f"The output {_short(node)} depends on single tokens ({names}), and a prompt has any number of them: "
                "say what is done over all of them, by mean(...), var, std, cov or attend(score, value)."
            )
        return found

    def _part(self, node: Node, args: list[Node]) -> Node:
        place = frozenset[str]().union(*(self.places[arg] for arg in args))
        if node.op == "variable":
            place = TOKEN if node.value in self.tokens else QUERY
        if node.op not in POOLS:
            return self._placed(Node(node.op, args, node.value), place)
        if node.op == "attend":
            return self._attended(node, *args)
        if place == BOTH:
            raise ExpressionError(
                f"{_short(node)} is over every pair of a token and a query, which attention does not form: take what "
                "is the query's own out of it, as in q*mean(x) for mean(q*x), or use attend(score, value), whose score "
                "may have products of both."
            )
        if not place & TOKEN:  # the same for every token
            return args[0] if node.op == "mean" else self._placed(ZERO, NEITHER)
        return self._placed(Node(node.op, args), NEITHER)

    def _attended(self, node: Node, score: Node, value: Node) -> Node:
        if not self.places[value] & TOKEN:
            return value  # the weights sum to one
        if self.places[value] & QUERY:
            raise ExpressionError(
                f"{_short(node)} has a value that depends on token and query; attention carries values of tokens, so "
                "take what is the query's own out of it, as in q*attend(score, x) for attend(score, q*x)."
            )
        terms: dict[Node, Node] = {}
        for token, query in self._terms(score, node):
            if self.places[token] & TOKEN:
                terms[query] = add(terms[query], token) if query in terms else token
        offset = terms.pop(ONE, ZERO)
        args = [value, offset, *(part for query, token in terms.items() for part in (token, query))]
        for part in args:
            self.places.setdefault(part, TOKEN)
        return self._placed(Node("attend", args, str(node)), QUERY if self._asks(terms) else NEITHER)

    def _asks(self, terms: dict[Node, Node]) -> bool:
        return any(self.places[query] & QUERY for query in terms)

    def _terms(self, score: Node, whole: Node) -> list[Term]:
        """The score as a sum of products of a token's and a query's part."""
        place = self.places[score]
        if place != BOTH:
            return [(ONE, score)] if place & QUERY else [(score, ONE)]
        left, right = score.args[0], score.args[-1]
        found: list[Term] | None = None
        if score.op in ("add", "sub"):
            other = self._terms(right, whole)
            found = self._terms(left, whole) + (other if score.op == "add" else self._scaled(other, -1))
        elif score.op == "neg":
            found = self._scaled(self._terms(left, whole), -1)
        elif score.op == "mul":
            found = self._product(self._terms(left, whole), self._terms(right, whole))
        elif score.op == "div" and self.places[right] != BOTH:
            inverse = Node("div", (ONE, right))
            self.places[inverse] = self.places[right]
            found = self._product(self._terms(left, whole), self._terms(inverse, whole))
        elif score.op == "square" or (score.op == "pow" and rational(right) in range(2, MOST_POWER + 1)):
            base = found = self._terms(left, whole)
            for _ in range(1 if score.op == "square" else int(rational(right) or 0) - 1):
                found = self._product(found, base)
        if found is None or len(found) > MOST_TERMS:
            raise ExpressionError(
                f"The score of {_short(whole)} has the part {_short(score)}, which is not a sum of at most "
                f"{MOST_TERMS} products of a token's part and a query's part, the only way in which attention joins "
                "the two. Multiply it out, as -(q - x)**2 is; a function of x - q is not such a sum."
            )
        return found

    def _scaled(self, terms: list[Term], factor: int) -> list[Term]:
        return self._product([(self._placed(mul(Node("constant", (), factor), ONE), NEITHER), ONE)], terms)

    def _product(self, left: list[Term], right: list[Term]) -> list[Term]:
        return [(self._times(a, c), self._times(b, d)) for a, b in left for c, d in right]

    def _times(self, left: Node, right: Node) -> Node:
        places = [self.places.get(part, NEITHER) for part in (left, right)]
        return self._placed(mul(left, right), places[0] | places[1])

    def _placed(self, node: Node, place: frozenset[str]) -> Node:
        self.places[node] = place
        return node


def _short(node: Node) -> str:
    text = str(node)
    return text if len(text) <= 80 else text[:77] + "..."
