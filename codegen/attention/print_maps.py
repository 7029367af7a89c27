"""Maps around the kernel as torch statements.

Values are [B, H, axes..], positions first. Products of matrices are computed in the inputs' dtype (`low`), everything else in
`dtype`, float32 or wider; a value in `low` is widened where it enters anything but a product.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ..ir.code import Code, Items, Literal, Method, Name, Negative, atom, call, product, shape
from ..ir.expr import ONE, Node, dim_of, factors_of, mul, terms_of, walk
from ..ir.launch_ir import If, Set, Statement, put, ref
from ..ir.python_code import EMPTY, TRUE, Fixed, Named, SetOf, beside, isin, made_by, said
from ..ir.step_program import Var
from ..printing.dialects import TorchOfChunks, moved, subscripts
from ..printing.torch_expressions import Factors, TorchText
from ..printing.walk import summed
from .feature_maps import AVERAGED, Map
from .features_kernel import of_heads
from .lower import KEY, QUERY, Lowered


@dataclass(frozen=True)
class Printed:
    """The body of a function: what it reads first, its statements, and each result."""

    setup: list[Statement]
    lines: list[Statement]
    results: dict[str, Code]


@dataclass(frozen=True)
class TorchOfFeatures(TorchOfChunks):
    """Torch where numbers become tensors by what a map is given (`at`)."""

    def filled(self, number: Code, rank: int) -> Code:
        made = call("at.number", number)
        return Method(made, "reshape", (Items((Literal(1),) * rank),)) if rank else made


class FeatureText(TorchText):
    """Statements for maps."""

    def __init__(self, p: Lowered, made: Map) -> None:
        super().__init__(lambda x: x.attrs[1], [], {}, "t_", TorchOfFeatures(lambda d: f"size_{d}"))
        self.p = p
        self.low_cotangents = {f"d{name}" for name in made.low}
        self.products: set[Node] = set()
        self.batch: set[Node] = set()
        self.terms: set[Node] = set()
        self.plain = False
        self.converted: dict[Node, str] = {}

    def low(self, x: Node) -> bool:
        if x.op == "leaf":
            kind, name, _ = x.attrs
            return kind in ("query", "key", AVERAGED) or (kind == "cotangent" and name in self.low_cotangents)
        return x in self.products

    def is_number(self, x: Node) -> bool:
        numbers = ("size", "const", "number", "add", "mul", "pow")
        return all(y.op in numbers or y.attrs[:1] == ("constant",) for y in walk(x))

    def raw(self, x: Node) -> Code:
        return super().value(x)

    def value(self, x: Node) -> Code:
        value = self.raw(x)
        return value.to("dtype") if self.low(x) and not self.plain else value

    def sum(self, x: Node) -> Code:
        terms = self.weighted(x)
        if terms is None:
            return super().sum(x)
        self.products.add(x)
        return call("combine", "low", *terms)

    def product(self, x: Node) -> Code:
        below = [f for f in x.args if self.divides(f)]
        if below:
            return self.quotient([f for f in x.args if f not in below], below, x.axes)
        first, *others = self.operands(x)
        return Negative(product(others)) if first == Literal(-1.0) else product((first, *others))

    def power(self, x: Node) -> Code:
        (base,), n = x.args, x.attrs[0]
        return self.dialect.power(self.value(base), n, self.is_number(base))

    def other(self, x: Node) -> Code:
        match x.op:
            case "half_turn":
                ((axis,),) = x.attrs
                return call("half_turn", self.value(x.args[0]), x.axes.index(axis) - len(x.axes))
            case "frequencies":
                (axis,), base = x.attrs
                return call("at.frequencies", self.dialect.size(dim_of(axis)), float(base))
        return super().other(x)

    def divides(self, x: Node) -> bool:
        """Is it a whole power that a product is to be divided by?"""
        return x.op == "pow" and x.attrs[0] < 0 and x.attrs[0].denominator == 1 and not self.is_number(x)

    def quotient(self, above: list[Node], below: list[Node], axes: tuple[str, ...]) -> Code:
        """Divided by one number after the other: the square of a sum of weights may be beyond float32, where a quotient isn't."""
        found = self.aligned(mul(*above), axes)
        for f in below:
            base, times = f.args[0], -f.attrs[0].numerator
            self.uses[base] += max(1, self.uses[f]) * times - 1
            divisor = atom(self.aligned(base, axes))
            for _ in range(times):
                found = found / divisor
        return found

    def weighted(self, x: Node) -> list[Code] | None:
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
        out: list[Code] = []
        for c, feature in found:
            shown = self.raw(feature)
            factor = self.aligned(c, (position,))
            if self.is_number(c):
                factor = Literal(None) if c is ONE else self.dialect.filled(factor, 0)
            out.append(Items((factor, shown)))
        return out

    def is_feature(self, f: Node) -> bool:
        """Is it a value of each position over a dim that is there anyway: given, or a product of matrices?"""
        if len(f.axes) != 2 or f.axes[0] not in (QUERY, KEY):
            return False
        if f.op == "leaf":
            return True
        return f.op == "sum" and len(f.args[0].axes) == 3

    def operands(self, x: Node) -> list[Code]:
        """The terms or factors of x. Torch widens a low tensor beside a wide one; where there is none, one is converted."""
        numbers = [a for a in x.args if self.is_number(a)]
        others = [a for a in x.args if a not in numbers]
        for a in others:
            self.raw(a)  # whether a sum is a product of matrices is known once it is printed
        wide = [a for a in others if not self.low(a)]
        low = [a for a in others if self.low(a)]
        values = [self.aligned(a, x.axes) for a in (*numbers, *wide)]
        for n, a in enumerate(low):
            self.plain = bool(wide) or n > 0
            values.append(self.aligned(a, x.axes))
            self.plain = False
        return values

    def joint(self, group: Factors) -> Code:
        if group.single:
            return self.raw(group.nodes[0])
        below = [f for f in group.nodes if self.divides(f)]
        if not below:
            return product(self.aligned(f, group.order) for f in group.nodes)
        return self.quotient([f for f in group.nodes if f not in below], below, group.order)

    def lowered(self, x: Node) -> Code:
        """A wide value that several products take, converted once."""
        if x not in self.converted:
            name = self.fresh(x)
            self.define(name, self.raw(x).to("low"))
            self.converted[x] = name
        return Name(self.converted[x])

    def _low_pair(self, factors: tuple[Node, ...]) -> tuple[Code, Code] | None:
        """The two factors of an inner product of low values, or the one of a square."""
        if len(factors) == 1 and factors[0].op == "pow" and factors[0].attrs[0] == 2:
            factors = (factors[0].args[0],) * 2
        if len(factors) != 2 or factors[0].axes != factors[1].axes or len(factors[0].axes) != 2:
            return None
        left, right = map(self.raw, factors)
        return (left, right) if all(self.low(f) for f in factors) else None

    def joins(self, a: Factors, b: Factors, last: bool, bound: str) -> bool:
        alone = last and a.axes == {bound} != b.axes
        return a.axes <= b.axes and not (alone and not any(map(self.divides, a.nodes)))

    def contraction(self, x: Node) -> Code:
        (b,), body = x.attrs, x.args[0]
        groups = self.grouped(body, b)
        operands = []
        for g in groups:
            value, first = self.joint(g), g.nodes[0]
            if g.single and len(groups) == 2 and not self.low(first) and self.uses[first] > 1 and first.args:
                value = self.lowered(first)
            operands.append((value, g.order, g.single and self.low(first)))
        if len(operands) == 1:
            ((value, order, low),) = operands
            both = self._low_pair(groups[0].nodes)
            if both and order[-1] == b:  # and what was made of these isn't read
                return call("inner", *both, "dtype")
            return self.dialect.sum(value.to("dtype") if low else value, order.index(b), len(order))
        (left, a, _), (right, c, _) = operands
        letters = Literal(subscripts((a, c), x.axes))
        if not {QUERY, KEY, self.p.query} & set(body.axes):  # of matrices a head, which are few
            return call("contract", letters, left, right, "dtype")
        self.products.add(x)
        if x in self.terms:
            return call("later", letters, left, right, "low")
        over = {"over_batch": Literal(True)} if x in self.batch else {}
        return call("contract", letters, left, right, "low", **over)


def print_map(p: Lowered, made: Map) -> Printed:
    """The results of a map, each over the axes in which it is stored."""
    text = FeatureText(p, made)
    text.count(made.results.values())

    def shown(name: str, node: Node) -> Code:
        value = text.raw(node)
        found = moved(atom(value), node.axes, made.axes[name]) if node.axes else value
        return found if text.low(node) or name not in made.low else found.to("low")

    results = {name: shown(name, node) for name, node in made.results.items()}
    return Printed(setup_statements(p, made, list(made.results.values())), text.body, results)


def print_gradients(
    p: Lowered, made: Map, kept: dict[Node, str], cotangents: Mapping[str, Code] | None = None
) -> Printed:
    """The gradient of each variable, [B, H, ..], those of parameters [H, ..]: summed over the batch.

    `kept` are products of matrices that needn't be computed again: names of features. `cotangents`: where some are to be found.
    """
    text = FeatureText(p, made)
    for node, feature in kept.items():
        text.names[node] = feature
        text.products.add(node)
    for name, node in made.gradients.items():
        side = any(v.name == name and v.kind in ("query", "key") for v in made.variables)
        text.count(spread_terms(node) if side else [node])
    results = {}
    for name, node in made.gradients.items():
        v = next(v for v in made.variables if v.name == name)
        results[name] = _gradient(p, text, v, node)
    setup = setup_statements(p, made, list(made.gradients.values()), finite=True, cotangents=cotangents)
    used = frozenset[str]().union(
        *(x.value.names for x in text.body if isinstance(x, Set)), *(x.names for x in results.values())
    )
    setup += [Set((n,), Fixed("features")[n]) for n in dict.fromkeys(kept.values()) if n in used]
    return Printed(setup, text.body, results)


def _gradient(p: Lowered, text: FeatureText, v: Var, node: Node) -> Code:
    if v.kind in ("parameter", "fixed"):
        terms: list[Code] = []
        for term in terms_of(node) or (node,):
            found = over_positions(term, (KEY, p.query))
            if found is not None and text.uses[found] <= 1:
                text.batch.add(found)
            shown = moved(atom(text.value(term)), term.axes, tuple(a for a in v.axes if a in term.axes))
            terms.append(call("over_batch", shown, len(v.axes)))
        return summed(terms)
    sides = v.kind in ("query", "key")  # of these, terms, which the op adds up in one pass over all of them
    text.terms |= {t for t in spread_terms(node) if sides and is_product(t) and t.axes == v.axes and text.uses[t] < 2}
    parts = [moved(atom(text.raw(t)), t.axes, v.axes) for t in (spread_terms(node) if sides else [node])]
    return shape(*parts) if sides else parts[0]


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
    made = {x.names[0]: x for x in printed.lines if isinstance(x, Set)}
    wanted: dict[str, set[str]] = {n: set() for n in made}

    def note(x: Code, argument: str) -> None:
        for name in x.names & made.keys():
            if argument not in wanted[name]:
                wanted[name].add(argument)
                note(made[name].value, argument)

    for name, value in printed.results.items():
        note(value, arguments.get(name, ""))
    pairs: list[tuple[Statement, frozenset[str]]] = [(y, frozenset(wanted[n])) for n, y in made.items()]
    pairs.append((Set(("found",), EMPTY), everything))
    for n, value in printed.results.items():
        pairs.append((put(ref("found")[n], value), frozenset({arguments.get(n, "")})))
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


def _any_of(names: frozenset[str]) -> Code:
    if len(names) == 1:
        return isin(said(next(iter(names))), "needs")
    return Fixed("needs") & SetOf(tuple(map(said, sorted(names))))


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
    cotangents: Mapping[str, Code] | None = None,
) -> list[Statement]:
    """Statements that give each leaf below the nodes its name, and each size.

    With `finite` a number of a position, which may be -inf to mask it, is 0 there: its weight is 0, and 0 times it must be 0.
    """
    found = {x.attrs[:2] for x in walk(*nodes) if x.op == "leaf"}
    computed = {x.attrs[:2] for n in made.results.values() if n.op != "leaf" for x in walk(n) if x.op == "leaf"}
    out: list[Statement] = [Set(("dtype", "low"), beside("at.dtype", "at.low"))]
    dims = {dim_of(a) for x in walk(*nodes) for a in (*x.axes, *(x.attrs if x.op == "expand" else ()))}
    dims |= {x.attrs[0] for x in walk(*nodes) if x.op == "size"}
    for dim in sorted(dims):
        source = {"0i": Fixed("at.queries"), KEY: Fixed("at.keys")}.get(dim, Fixed("at.sizes")[dim])
        out.append(Set((f"size_{dim}",), source))
    for kind, name in sorted(found):
        base = name[:-2]
        match kind:
            case "query" | "key":
                own = next(v for v in made.variables if v.name == name).axes
                how = [Named("spread", TRUE)] if (kind, name) in computed else []
                how += [Named("finite", TRUE)] if finite and len(own) == 1 else []
                value: Code = made_by("at.rows", Fixed("given")[base], *how)
            case "fixed":
                value = Fixed("given")[base]
            case "parameter":
                value = Fixed("given")[name]
            case "constant":
                value = Fixed("constants")[name]
            case "position":
                value = made_by("at.position", said(name))
            case "cotangent":
                value = (cotangents or {}).get(name[1:], Fixed("cotangents")[name[1:]])
            case _:
                value = Fixed("averaged")[name]
        out.append(Set((name,), value))
    return out


def gradient_names(p: Lowered, made: Map) -> dict[str, str]:
    """Variable of a map -> the argument of the op that it is a side of."""
    return {
        v.name: v.name if v.kind == "parameter" else v.name[:-2]
        for v in made.variables
        if v.kind in ("query", "key", "fixed", "parameter")
    }
