"""Maps around the kernel as torch statements.

Values are [B, H, axes..], positions first. Products of matrices are computed in the inputs' dtype (`low`), everything else in
`dtype`, float32 or wider; a value in `low` is widened where it enters anything but a product.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from ..ir.expr import ONE, Node, dim_of, factors_of, mul, terms_of, walk
from ..ir.launch_ir import Do, Expr, If, Set, Statement, py, ref
from ..ir.step_program import Var
from ..printing.torch_expressions import TorchText
from .feature_maps import AVERAGED, Map
from .features_kernel import of_heads
from .lower import KEY, QUERY, Lowered

LOW_RESULTS = ("query", "key", "value")  # features that products on tensor cores take


@dataclass(frozen=True)
class Printed:
    """The body of a function: what it reads first, its statements, and each result."""

    setup: list[Statement]
    lines: list[Set]
    results: dict[str, Expr]


def is_low(name: str) -> bool:
    return name.startswith(LOW_RESULTS)


class MapText(TorchText):
    """Statements for maps, with the names that each reads; `reading` are those that were read since the last statement or result
    was begun, innermost last."""

    def __init__(self, p: Lowered) -> None:
        super().__init__(lambda x: x.attrs[1], [], {}, prefix="t_")
        self.p = p
        self.made: list[Set] = []
        self.reading: list[set[str]] = [set()]
        self.products: set[Node] = set()
        self.batch: set[Node] = set()
        self.terms: set[Node] = set()
        self.plain = False
        self.converted: dict[Node, str] = {}

    def low(self, x: Node) -> bool:
        if x.op == "leaf":
            kind, name, _ = x.attrs
            return kind in ("query", "key", AVERAGED) or (kind == "cotangent" and is_low(name[1:]))
        return x in self.products

    def is_number(self, x: Node) -> bool:
        numbers = ("size", "const", "number", "add", "mul", "pow")
        return all(y.op in numbers or y.attrs[:1] == ("constant",) for y in walk(x))

    def tensor(self, number: str, rank: int = 0) -> str:
        return f"at.number({number})" + (f".reshape({(1,) * rank})" if rank else "")

    def raw(self, x: Node) -> str:
        if x in self.names:
            self.reading[-1].add(self.names[x])
            return self.names[x]
        self.reading.append(set())
        text = super().value(x)
        found = self.reading.pop()
        self.reading[-1] |= {self.names[x]} if x in self.names else found
        return text

    def define(self, name: str, text: str) -> None:
        super().define(name, text)
        self.made.append(Set((name,), Expr(text, frozenset(self.reading[-1]))))

    def result(self, text: Callable[[], str]) -> Expr:
        """What is made of nodes, with the names that it reads."""
        self.reading.append(set())
        made = text()
        return Expr(made, frozenset(self.reading.pop()))

    def value(self, x: Node) -> str:
        text = self.raw(x)
        return f"{self._atom(text)}.to(dtype)" if self.low(x) and not self.plain else text

    def expression(self, x: Node) -> str:
        match x.op:
            case "half_turn":
                ((axis,),) = x.attrs
                return f"half_turn({self.value(x.args[0])}, {x.axes.index(axis) - len(x.axes)})"
            case "frequencies":
                (axis,), base = x.attrs
                return f"at.frequencies(size_{dim_of(axis)}, {float(base)!r})"
            case "add" if (terms := self.weighted(x)) is not None:
                self.products.add(x)
                return f"combine(low, {', '.join(terms)})"
            case "leaf" if len(x.attrs[2]) > 2:
                return ordered(self.leaf_text(x), x.attrs[2], tuple(sorted(x.attrs[2])))
        return super().expression(x)

    def _sum_text(self, x: Node) -> str:
        out = ""
        for text in self.operands(x):
            sign, rest = (" - ", text[1:]) if text.startswith("-") else (" + ", text)
            out += (sign if out else "-" if sign == " - " else "") + rest
        return f"({out})"

    def _product_text(self, x: Node) -> str:
        below = [f for f in x.args if self.divides(f)]
        if below:
            return self.quotient([f for f in x.args if f not in below], below, x.axes)
        parts = self.operands(x)
        return "-" + " * ".join(parts[1:]) if parts[0] == "-1.0" else " * ".join(parts)

    def divides(self, x: Node) -> bool:
        """Is it a whole power that a product is to be divided by?"""
        return x.op == "pow" and x.attrs[0] < 0 and x.attrs[0].denominator == 1 and not self.is_number(x)

    def quotient(self, above: list[Node], below: list[Node], axes: tuple[str, ...]) -> str:
        """Divided by one number after the other: the square of a sum of weights may be beyond float32, where a quotient isn't."""
        text = self.aligned(mul(*above), axes)
        for f in below:
            base, times = f.args[0], -f.attrs[0].numerator
            self.uses[base] += max(1, self.uses[f]) * times - 1
            text += f" / {self._atom(self.aligned(base, axes))}" * times
        return text

    def weighted(self, x: Node) -> list[str] | None:
        """The terms of a sum over positions and one dim, each a feature or a vector times a number of each position."""
        if (
            len(x.axes) != 2
            or x.axes[0] not in (QUERY, KEY)
            or not any(self.is_feature(f) for a in x.args for f in factors_of(a))
        ):
            return None
        position, own = x.axes
        found = []
        for a in x.args:
            factors = factors_of(a)
            inner = [f for f in factors if own in f.axes]
            outer = [f for f in factors if own not in f.axes]
            whole = len(inner) == 1 and (inner[0].axes == (own,) or self.is_feature(inner[0]))
            if not whole or (inner[0].axes == (own,) and not any(position in f.axes for f in outer)):
                return None
            found.append((mul(*outer), inner[0]))
        out = []
        for c, feature in found:
            shown = self.raw(feature)
            factor = self.aligned(c, (position,))
            out.append(f"({'None' if c is ONE else self.tensor(factor) if self.is_number(c) else factor}, {shown})")
        return out

    def is_feature(self, f: Node) -> bool:
        """Is it a value of each position over a dim that is there anyway: given, or a product of matrices?"""
        if len(f.axes) != 2 or f.axes[0] not in (QUERY, KEY):
            return False
        if f.op == "leaf":
            return True
        return f.op == "sum" and len(f.args[0].axes) == 3

    def operands(self, x: Node) -> list[str]:
        """The terms or factors of x. Torch widens a low tensor beside a wide one; where there is none, one is converted."""
        numbers = [a for a in x.args if self.is_number(a)]
        others = [a for a in x.args if a not in numbers]
        for a in others:
            self.raw(a)  # whether a sum is a product of matrices is known once it is printed
        wide = [a for a in others if not self.low(a)]
        low = [a for a in others if self.low(a)]
        texts = [self.aligned(a, x.axes) for a in (*numbers, *wide)]
        for n, a in enumerate(low):
            self.plain = bool(wide) or n > 0
            texts.append(self.aligned(a, x.axes))
            self.plain = False
        return texts

    def _power_text(self, x: Node) -> str:
        (base,), n = x.args, x.attrs[0]
        if self.is_number(base):
            return f"{self._atom(self.value(base))} ** {n.numerator if n.denominator == 1 else float(n)}"
        return super()._power_text(x)

    def joint(self, factors: list[Node], axes: tuple[str, ...]) -> str:
        below = [f for f in factors if self.divides(f)]
        above = [f for f in factors if f not in below]
        return self.quotient(above, below, axes) if below else " * ".join(self.aligned(f, axes) for f in factors)

    def lowered(self, x: Node) -> str:
        """A wide value that several products take, converted once."""
        if x not in self.converted:
            name = f"{self.prefix}{len(self.lines)}"
            self.reading.append(set())
            self.define(name, f"{self._atom(self.raw(x))}.to(low)")
            self.reading.pop()
            self.converted[x] = name
        self.reading[-1].add(self.converted[x])
        return self.converted[x]

    def _low_pair(self, factors: list[Node]) -> tuple[str, str] | None:
        """The two factors of an inner product of low values, or the one of a square."""
        if len(factors) == 1 and factors[0].op == "pow" and factors[0].attrs[0] == 2:
            factors = [factors[0].args[0]] * 2
        if len(factors) != 2 or factors[0].axes != factors[1].axes or len(factors[0].axes) != 2:
            return None
        texts = [self.raw(f) for f in factors]
        return (texts[0], texts[1]) if all(self.low(f) for f in factors) else None

    def _contraction(self, x: Node) -> str:
        (b,), body = x.attrs, x.args[0]
        groups = [([f], set(f.axes)) for f in factors_of(body)]
        while len(groups) > 1:
            pair = next(
                (
                    (i, j)
                    for i, (own, a) in enumerate(groups)
                    for j, (_, c) in enumerate(groups)
                    if i != j
                    and a <= c
                    and not (
                        len(groups) == 2 and (len(a | c) > len(c) or a == {b} != c) and not any(map(self.divides, own))
                    )
                ),
                None,
            )
            if pair is None and len(groups) == 2:
                break
            i, j = pair or (0, 1)
            groups[j] = (groups[i][0] + groups[j][0], groups[i][1] | groups[j][1])
            del groups[i]
        self.reading.append(set())
        operands = []
        for factors, axes in groups:
            order = tuple(sorted(axes))
            single = len(factors) == 1 and factors[0].axes == order
            text = self.raw(factors[0]) if single else self.joint(factors, order)
            if (
                single
                and len(groups) == 2
                and not self.low(factors[0])
                and self.uses[factors[0]] > 1
                and factors[0].args
            ):
                text = self.lowered(factors[0])
            operands.append((text, order, single and self.low(factors[0])))
        own = self.reading.pop()
        if len(operands) == 1:
            text, order, low = operands[0]
            both = self._low_pair(groups[0][0])
            if both and order[-1] == b:  # and what was made of these isn't read
                return f"inner({both[0]}, {both[1]}, dtype)"
        self.reading[-1] |= own
        if len(operands) == 1:
            text = f"{self._atom(text)}.to(dtype)" if low else self._atom(text)
            return f"{text}.sum({order.index(b) - len(order)})"
        letters = {a: "abcdefgh"[n] for n, a in enumerate(sorted({a for _, order, _ in operands for a in order}))}
        (left, a, _), (right, c, _) = operands
        spec = (
            f"{''.join(letters[y] for y in a)},{''.join(letters[y] for y in c)}->{''.join(letters[y] for y in x.axes)}"
        )
        if not {QUERY, KEY, self.p.query} & set(body.axes):  # of matrices a head, which are few
            return f'contract("{spec}", {left}, {right}, dtype)'
        self.products.add(x)
        over = ", over_batch=True" if x in self.batch else ""
        if x in self.terms:
            return f'later("{spec}", {left}, {right}, low)'
        return f'contract("{spec}", {left}, {right}, low{over})'


def ordered(text: str, own: tuple[str, ...], wanted: tuple[str, ...]) -> str:
    """A tensor whose last axes are `own`, with these in another order."""
    if own == wanted:
        return text
    if len(own) == 2:
        return f"{text}.mT"
    source = ", ".join(str(own.index(a) - len(own)) for a in wanted)
    return f"{text}.movedim(({source}), ({', '.join(str(n - len(own)) for n in range(len(own)))}))"


def print_map(p: Lowered, made: Map) -> Printed:
    """The results of a map, each over the axes in which it is stored."""
    text = MapText(p)
    text.count(made.results.values())

    def shown(name: str, node: Node) -> str:
        value = text.raw(node)
        found = ordered(text._atom(value), node.axes, made.axes[name]) if node.axes else value
        return found if text.low(node) or not is_low(name) else f"{text._atom(found)}.to(low)"

    results = {name: text.result(partial(shown, name, node)) for name, node in made.results.items()}
    return Printed(setup_statements(p, made, list(made.results.values())), text.made, results)


def print_gradients(
    p: Lowered, made: Map, kept: dict[Node, str], cotangents: Mapping[str, str] | None = None
) -> Printed:
    """The gradient of each variable, [B, H, ..], those of parameters [H, ..]: summed over the batch.

    `kept` are products of matrices that needn't be computed again: names of features. `cotangents`: where some are to be found.
    """
    text = MapText(p)
    for node, feature in kept.items():
        text.names[node] = feature
        text.products.add(node)
    for name, node in made.gradients.items():
        side = any(v.name == name and v.kind in ("query", "key") for v in made.variables)
        text.count(spread_terms(node) if side else [node])
    results = {}
    for name, node in made.gradients.items():
        v = next(v for v in made.variables if v.name == name)
        results[name] = text.result(partial(_gradient_text, p, text, v, node))
    setup = setup_statements(p, made, list(made.gradients.values()), finite=True, cotangents=cotangents)
    used = frozenset[str]().union(*(x.value.names for x in text.made), *(x.names for x in results.values()))
    setup += [Set((n,), Expr(f'features["{n}"]')) for n in dict.fromkeys(kept.values()) if n in used]
    return Printed(setup, text.made, results)


def _gradient_text(p: Lowered, text: MapText, v: Var, node: Node) -> str:
    if v.kind in ("parameter", "fixed"):
        terms = []
        for term in terms_of(node) or (node,):
            found = over_positions(term, (KEY, p.query))
            if found is not None and text.uses[found] <= 1:
                text.batch.add(found)
            shown = ordered(text._atom(text.value(term)), term.axes, tuple(a for a in v.axes if a in term.axes))
            terms.append(f"over_batch({shown}, {len(v.axes)})")
        return " + ".join(terms)
    sides = v.kind in ("query", "key")  # of these, terms, which the op adds up in one pass over all of them
    text.terms |= {t for t in spread_terms(node) if sides and is_product(t) and t.axes == v.axes and text.uses[t] < 2}
    terms = [ordered(text._atom(text.raw(t)), t.axes, v.axes) for t in (spread_terms(node) if sides else [node])]
    return f"[{', '.join(terms)}]" if sides else terms[0]


def over_positions(x: Node, positions: tuple[str, ...]) -> Node | None:
    """The sum over positions that a product with parameters has, perhaps inside of sums over other axes."""
    sums = [f for f in factors_of(x) if not of_heads(f)]
    if len(sums) != 1 or sums[0].op != "sum":
        return None
    return sums[0] if sums[0].attrs[0] in positions else over_positions(sums[0].args[0], positions)


def where_needed(printed: Printed, arguments: dict[str, str]) -> list[Statement]:
    """The statements and results, those that only some arguments' gradients take where these are wanted.

    arguments: variable -> argument; a result that isn't there is always wanted.
    """
    everything = frozenset(arguments.get(n, "") for n in printed.results)
    made = {x.names[0]: x for x in printed.lines}
    wanted: dict[str, set[str]] = {n: set() for n in made}

    def note(x: Expr, argument: str) -> None:
        for name in x.names & made.keys():
            if argument not in wanted[name]:
                wanted[name].add(argument)
                note(made[name].value, argument)

    for name, value in printed.results.items():
        note(value, arguments.get(name, ""))
    pairs: list[tuple[Statement, frozenset[str]]] = [(y, frozenset(wanted[n])) for n, y in made.items()]
    pairs.append((Set(("found",), Expr("{}")), everything))
    for n, value in printed.results.items():
        pairs.append((Do(py('{}["{}"] = {}', ref("found"), n, value)), frozenset({arguments.get(n, "")})))
    out: list[Statement] = []
    for x, names in pairs:
        if not names:  # its value is in what is printed otherwise
            continue
        if "" in names or names == everything:
            out.append(x)
        elif out and isinstance(last := out[-1], If) and last.wanted == names:
            out[-1] = replace(last, body=(*last.body, x))
        else:
            out.append(If(_any_of(names), (x,), wanted=names))
    return out


def _any_of(names: frozenset[str]) -> Expr:
    if len(names) == 1:
        return Expr(f'"{next(iter(names))}" in needs')
    return Expr(f"needs & {{{', '.join(repr(n) for n in sorted(names))}}}")


def spread_terms(x: Node) -> list[Node]:
    """The terms of a sum that have all of its axes, and the sum of those that don't."""
    if x.op != "add":
        return [x]
    whole = [t for t in x.args if t.axes == x.axes]
    rest = [t for t in x.args if t.axes != x.axes]
    if rest:
        return [x]
    return whole


def is_product(x: Node) -> bool:
    """Is it a sum over one axis of two factors, a value of each position and a matrix?"""
    if x.op != "sum":
        return False
    axes = sorted(len([a for a in f.axes if a not in (QUERY, KEY)]) for f in factors_of(x.args[0]))
    return len(x.args[0].axes) == 3 and axes == [1, 2]


def setup_statements(
    p: Lowered,
    made: Map,
    nodes: list[Node],
    finite: bool = False,
    cotangents: Mapping[str, str] | None = None,
) -> list[Statement]:
    """Statements that give each leaf below the nodes its name, and each size.

    With `finite` a number of a position, which may be -inf to mask it, is 0 there: its weight is 0, and 0 times it must be 0.
    """
    found = {x.attrs[:2] for x in walk(*nodes) if x.op == "leaf"}
    computed = {x.attrs[:2] for n in made.results.values() if n.op != "leaf" for x in walk(n) if x.op == "leaf"}
    out: list[Statement] = [Set(("dtype", "low"), Expr("at.dtype, at.low"))]
    dims = {dim_of(a) for x in walk(*nodes) for a in (*x.axes, *(x.attrs if x.op == "expand" else ()))}
    dims |= {x.attrs[0] for x in walk(*nodes) if x.op == "size"}
    for dim in sorted(dims):
        source = {"0i": "at.queries", KEY: "at.keys"}.get(dim, f'at.sizes["{dim}"]')
        out.append(Set((f"size_{dim}",), Expr(source)))
    for kind, name in sorted(found):
        base = name[:-2]
        match kind:
            case "query" | "key":
                own = next(v for v in made.variables if v.name == name).axes
                spread = ", spread=True" if (kind, name) in computed else ""
                spread += ", finite=True" if finite and len(own) == 1 else ""
                text = f'at.rows(given["{base}"]{spread})'
            case "fixed":
                text = f'given["{base}"]'
            case "parameter":
                text = f'given["{name}"]'
            case "constant":
                text = f'constants["{name}"]'
            case "position":
                text = f'at.position("{name}")'
            case "cotangent":
                text = (cotangents or {}).get(name[1:], f'cotangents["{name[1:]}"]')
            case _:
                text = f'averaged["{name}"]'
        out.append(Set((name,), Expr(text)))
    return out


def gradient_names(p: Lowered, made: Map) -> dict[str, str]:
    """Variable of a map -> the argument of the op that it is a side of."""
    return {
        v.name: v.name if v.kind == "parameter" else v.name[:-2]
        for v in made.variables
        if v.kind in ("query", "key", "fixed", "parameter")
    }
