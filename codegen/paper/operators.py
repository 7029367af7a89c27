"""Functions with their arguments, and big operators with what they run over: sums, products, integrals."""

from __future__ import annotations

from collections.abc import Callable

from chunkform.spec.language.formula import Formula, add, formula, walk

from .lexer import Token, argument_at
from .names import Names
from .pieces import function, minus_one, quotient, times
from .row import UNKNOWN, Fault, depth_of, is_dots, lettered, spelled, split, split_rows
from .words import BIG, CLOSING, FUNCTIONS, LEFTWARDS, OPENING, RELATIONS, RIGHTWARDS


class Operators(Names):
    """Reads functions and big operators."""

    def applied(self, name: str) -> Formula:
        """A function with its argument: what stands in brackets, or the product that follows."""
        below: list[Formula] = []
        squared: list[Formula] = []
        transposed = inverted = False
        while self.is_mark("_", "^"):
            lower = self.is_mark("_")
            self.i += 1
            content = self.argument()
            if lower:
                below.append(self.whole(content, self.bound | {"?sizes"} if not name.startswith("arg") else None))
            else:
                mark = self.exponent("", content, False, True)
                transposed |= mark == ("transpose",)
                inverted |= mark == ("inverse",)
                if mark[0] == "power":
                    squared.append(mark[1])
                elif not (transposed or inverted):
                    raise Fault(f"{name} with such a superscript isn't known", self.token)
        if self.is_mark("(", "[") or self.is_command("lbrace", "lbrack"):
            end = self.closing_at(self.i)
            content = self.tokens[self.i + 1 : end]
            self.i = end + 1
            arguments = [self.whole(p) for p in split(content, ",") if p]
            if not arguments:
                raise Fault(f"{name} of nothing", self.tokens[self.i - 1])
        else:
            arguments = [self.argument_product(name)]
        x = function(name, arguments, below, self)
        if transposed:
            x = x.T
        if inverted:
            x = Formula("inverse", (x,))
        for power in squared:
            x = Formula("power", (x, power))
        return self.scripts(x) if self.is_mark("^", "_") else self.behind(x)

    def argument_product(self, name: str) -> Formula:
        """The factors after a function without brackets, up to the next function."""
        if not self.starts_factor():
            raise Fault(f"{name} has no argument", self.token or (self.tokens[-1] if self.tokens else None))
        found = self.factor()
        while self.starts_factor() or self.is_mark("/") or self.is_command("cdot", "times"):
            if self.is_mark("/"):
                self.i += 1
                found = quotient(found, self.factor())
                continue
            if self.is_command("cdot", "times"):
                self.i += 1
            elif (
                self.token is not None
                and self.token.kind == "command"
                and (self.token.text in FUNCTIONS or self.token.text in ("partial", "mathrm", "operatorname", "text"))
            ):
                break
            found = times(found, self.factor())
        return found

    def on_sum(self) -> Formula:
        return self.big("sum")

    def on_prod(self) -> Formula:
        return self.big("product over")

    def on_bigodot(self) -> Formula:
        return self.big("hadamard over")

    def big_under(self, above: list[Token], content: list[Token]) -> Formula | None:
        """A big operator with something set above it, such as the arrow that says in which order a product is taken; None where
        what is below is none."""
        order = order_of([*above, *content])
        content = [t for t in content if t.text not in LEFTWARDS | RIGHTWARDS and t.text != "mathop"]
        while content and content[0].text == "{" and content[-1].text == "}":
            content = content[1:-1]
        if not content or content[0].kind != "command" or content[0].text not in BIG:
            return None
        self.tokens[self.i : self.i] = content
        return self.big(BIG[content[0].text], order)

    def big(self, op: str, order: int = 0) -> Formula:
        """A sum or a product over an index. `order`: -1 where an arrow says that a product goes on to the left,
        1 to the right."""
        start = self.token
        self.i += 1
        low: list[Token] = []
        high: list[Token] = []
        while self.is_mark("_", "^"):
            below = self.is_mark("_")
            self.i += 1
            content = self.argument()
            order = order or (order_of(content) if op != "sum" else 0)
            content = without_arrows(content) if op != "sum" else content
            if not content:
                continue
            if below:
                low = content
            else:
                high = content
        ranges = self.ranges(low, high, start) if low else []
        if op == "product over" and (order < 0 or (not order and runs_down_in(low))):
            op = "product down"
        inner = self.bound | {i for i, _, _ in ranges}
        self.out.limits |= {i: (first, last) for i, first, last in ranges}
        saved, self.bound = self.bound, inner
        try:
            start_of_body, together = self.i, self.bracketed() if op != "sum" else 0
            body = self.term()
        finally:
            self.bound = saved
        if not low:  # over whatever counts in it and not on the left
            known = self.bound | {y.attrs[0] for side in self.out.left for y in walk(side) if y.op == "index"}
            free = [y.attrs[0] for y in walk(body) if y.op == "index" and y.attrs[0] not in known]
            ranges = [(i, UNKNOWN, UNKNOWN) for i in dict.fromkeys(free)]
            if not ranges:
                raise Fault(f"{start.shown if start else 'it'} has no index", start)
        bracketed = together and self.closing_at(start_of_body) == self.i - 1  # all of it is meant
        if op != "sum" and len(ranges) == 1 and not bracketed:
            ((name, first, last),) = ranges
            return over_what_counts(body, name, lambda x: Formula(op, (first, last, x), (name,)), together)
        for name, first, last in reversed(ranges):
            body = Formula(op, (first, last, body), (name,))
        return body

    def bracketed(self) -> int:
        """How many factors the author put in brackets at the start of what follows."""
        if not (self.is_mark("(", "[", "{") or self.is_command("lbrace", "lbrack")):
            return 0
        start = self.i
        first = self.factor()
        self.i = start
        return len(first.args) if first.op in ("product", "hadamard") else 1

    def ranges(self, low: list[Token], high: list[Token], start: Token | None) -> list[tuple[str, Formula, Formula]]:
        """The indices of a big operator with their bounds; unknown ones are told by what they count."""
        top = self.whole(high, self.bound | {"?sizes"}) if high else UNKNOWN
        if low[0].text == "substack":
            rows = [r for r in split_rows(argument_at(low, 1)[0]) if r]
            return merged([found for r in rows for found in self.ranges(r, high, start)])
        relations = [k for k, t in enumerate(low) if t.text in RELATIONS and depth_of(low[:k]) == 0]
        if not relations:
            names = [p for p in split(low, ",") if p]
            return [(self.index_name(p), UNKNOWN if high == [] else formula(1), top) for p in names]
        first = relations[0]
        said = RELATIONS[low[first].text]
        if len(relations) == 1:
            left, right = low[:first], low[first + 1 :]
            listed = [p for p in split(right, ",") if p]
            if said == "=" and len(listed) > 2 and any(is_dots(p) for p in listed):  # i = 1, .., t
                low_end, high_end = (self.whole(p, self.bound | {"?sizes"}) for p in (listed[0], listed[-1]))
                return [(self.index_name(left), low_end, high_end)]
            if said == "=":
                return [(self.index_name(left), self.whole(right, self.bound | {"?sizes"}), top)]
            if said in ("<", "<="):
                bound = self.inside(right).index_formula()
                return [(self.index_name(left), UNKNOWN, bound if said == "<=" else minus_one(bound))]
            if said in (">", ">="):
                bound = self.inside(right).index_formula()
                return [(self.index_name(left), bound if said == ">=" else add(bound, formula(1)), UNKNOWN)]
            if said == "in" and len(right) > 2 and right[0].text in OPENING:
                return [(self.index_name(left), *self.among(right))]
            raise Fault("such a range isn't known", low[first])
        if len(relations) == 2:
            second = relations[1]
            less = said, RELATIONS[low[second].text]
            name = self.index_name(low[first + 1 : second])
            a, b = self.inside(low[:first]).index_formula(), self.inside(low[second + 1 :]).index_formula()
            if all(r in (">", ">=") for r in less):
                a, b, less = b, a, (less[1].replace(">", "<"), less[0].replace(">", "<"))
            if all(r in ("<", "<=") for r in less):
                return [(name, a if less[0] == "<=" else add(a, formula(1)), b if less[1] == "<=" else minus_one(b))]
        raise Fault("such a range isn't known", low[first])

    def among(self, tokens: list[Token]) -> tuple[Formula, Formula]:
        """The bounds of {1, .., t}, of [1, t], and of [t], which is 1 to t."""
        parts = [p for p in split(tokens[1:-1], ",") if p]
        ends = [self.whole(p, self.bound | {"?sizes"}) for p in parts if not is_dots(p)]
        if len(ends) == 1 and tokens[0].text in ("[", "lbrack"):
            return formula(1), ends[0]
        if len(ends) < 2 or (tokens[0].text == "lbrace" and len(ends) == len(parts)):
            raise Fault("such a range isn't known", tokens[0])
        return ends[0], ends[-1]

    def index_name(self, tokens: list[Token]) -> str:
        letters = [t for t in tokens if t.text not in ("{", "}")]
        name = spelled(letters)
        if name is None and len(lettered(letters)) == 1:
            name = lettered(letters)[0]
        if name is None and letters and letters[0].kind == "letter" and all(t.kind == "number" for t in letters[1:]):
            name = "".join(t.text for t in letters)
        if name is None:
            raise Fault("an index is a letter", tokens[0] if tokens else None)
        return name

    def on_int(self) -> Formula:
        """An integral over all of a vector."""
        start = self.token
        self.i += 1
        while self.is_mark("_", "^"):
            self.i += 1
            self.argument()
        depth, end = 0, None
        for k in range(self.i, len(self.tokens)):
            t = self.tokens[k]
            depth += (t.text in OPENING) - (t.text in CLOSING)
            if depth == 0 and (t.text in RELATIONS or t.text == ","):
                break
            if (
                depth == 0
                and (t.text in ("partial", "d") or (t.kind == "command" and t.text == "mathrm"))
                and k > self.i
            ):
                end = k
        if end is None:
            raise Fault("an integral without what it is over", start)
        content = [t for t in self.tokens[self.i : end] if t.text != "."]
        self.i = end + 1
        if self.tokens[end].text == "mathrm":
            self.argument()
        return Formula("integral", (self.whole(content), self.factor()))


def order_of(tokens: list[Token]) -> int:
    """-1 where an arrow points to the left, 1 to the right, 0 where there is none."""
    found = [(t.text in RIGHTWARDS) - (t.text in LEFTWARDS) for t in tokens if t.kind == "command"]
    return next((x for x in found if x), 0)


def without_arrows(tokens: list[Token]) -> list[Token]:
    return [t for t in tokens if t.kind != "command" or t.text not in LEFTWARDS | RIGHTWARDS]


def runs_down_in(low: list[Token]) -> bool:
    """Whether bounds such as t >= i > j name the last index first."""
    said = [RELATIONS[t.text] for t in low if t.kind in ("mark", "command") and t.text in RELATIONS]
    return len(said) == 2 and all(r in (">", ">=") for r in said)


def merged(ranges: list[tuple[str, Formula, Formula]]) -> list[tuple[str, Formula, Formula]]:
    """Ranges with what several rows say of one index put together: i > j, and i <= t."""
    found: dict[str, tuple[Formula, Formula]] = {}
    for name, low, high in ranges:
        known = found.get(name, (UNKNOWN, UNKNOWN))
        found[name] = known[0] if low == UNKNOWN else low, known[1] if high == UNKNOWN else high
    return [(name, *ends) for name, ends in found.items()]


def over_what_counts(body: Formula, name: str, over: Callable[[Formula], Formula], together: int = 0) -> Formula:
    """A product over an index, of the factors up to the last one in which it stands: \\prod_i A_i B_s is (\\prod_i A_i) B_s."""

    def counts(x: Formula) -> bool:
        return any(y.op == "index" and y.attrs[0] == name for y in walk(x))

    if body.op in ("product", "hadamard") and counts(body):
        last = max(together - 1, *(k for k, a in enumerate(body.args) if counts(a)))
        if last < len(body.args) - 1:
            head = body.args[: last + 1]
            inside = Formula(body.op, head, body.attrs) if last else head[0]
            return Formula(body.op, (over_what_counts(inside, name, over), *body.args[last + 1 :]), body.attrs)
    if body.op == "divide" and counts(body.args[0]) and not counts(body.args[1]):
        return Formula("divide", (over_what_counts(body.args[0], name, over), body.args[1]))
    return over(body)
