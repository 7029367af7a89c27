"""What the compiler derived of an attention, as formulas for people: the split, the features, the gradients."""

from __future__ import annotations

import re
from dataclasses import replace as dc_replace

from ..ir.expr import ONE, ZERO, Node, add, dim_of, fn, leaf, maximum, mul, power, replace, total, walk
from ..ir.latex_page import Page
from ..ir.notation import Notation
from .compiled import CompiledAttention
from .feature_maps import Derivative
from .lower import KEY, QUERY

# The notation writes score1_ij as score_{1,ij}: a number in a name of ours is a part of the name.
_NUMBERED = re.compile(r"\b(d?(?:average|score|column|row|scalar|value|query|key))_\{?(\d+)(?:,(\w+))?\}?")


def text(x: Node, query: str = QUERY, page: Page | None = None, known: frozenset[str] = frozenset()) -> str:
    """A node of one position or one pair in matrix notation: the axes of positions are left out. `known` has gradients."""
    if x is ZERO:
        return "0"
    single = _Single(query, page, known)
    shown = _notation(page, known).text(single.of(x))
    for n, inner in enumerate(single.turned):
        turned = rf"\mathrm{{half\_turn}}({inner})" if page else f"half_turn({inner})"
        shown = shown.replace(page.taken_back(f"halfturn{n}x") if page else f"halfturn{n}x", turned)
    if page:
        return shown.replace(page.taken_back("sum"), r"\sum")
    return _NUMBERED.sub(lambda m: f"{m[1]}{m[2]}{'_' + m[3] if m[3] else ''}", shown)


def _notation(page: Page | None, known: frozenset[str] = frozenset()) -> Notation:
    found = Notation(page or False, {}, False)
    if page:
        found.symbols = dc_replace(found.symbols, gradients_of=known)
        found.symbol = found.symbols.symbol
    return found


def _names(c: CompiledAttention) -> frozenset[str]:
    """Everything that may have a gradient: what is given, what is made of it, and the features."""
    p, s = c.lowered, c.split
    leaves = (y.attrs[1] for y in walk(p.energy, *p.averages.values(), *p.outputs.values()) if y.op == "leaf")
    parts = [*s.scores, *s.columns, *s.rows, *s.scalars, *s.values, *s.averages]
    sides = (name for score in s.numbered.values() for name in (score.query, score.key))
    names = {*leaves, *p.outputs, *parts, *sides, "E", "lse", "mass", "row"}
    return frozenset(names | {n.partition("_")[0] for n in names})


class Lines:
    """How the lines of a derivation are put together, in plain text or for a page of LaTeX."""

    def __init__(self, c: CompiledAttention, query: str, page: Page | None = None) -> None:
        self.page, self.known = page, _names(c) if page else frozenset()
        self.i = "i" if query == QUERY else "k"

    def text(self, x: Node, query: str | None = None) -> str:
        return text(x, query or QUERY, self.page, self.known)

    def name(self, name: str, at: str = "", whole: bool = False) -> str:
        """A name of ours or of the spec, with what stands below it."""
        if not self.page:
            return f"{name}_{at}" if at else name
        symbol = _notation(self.page, self.known).symbol
        return symbol(f"{name}_{at}" if at else name, "let", int(whole))

    def total(self, over: str) -> str:
        return rf"\sum_{{{over}}}" if self.page else f"sum_{over}"

    def inner(self, a: str, b: str) -> str:
        return rf"\langle {a}, {b} \rangle" if self.page else f"<{a}, {b}>"

    def weights(self, normaliser: str) -> str:
        a, e = self.name("A", f"{self.i}j"), self.name("E", f"{self.i}j")
        weight = rf"\exp({e})" if self.page else f"exp({e})"
        if normaliser == "linear":
            return f"{a} = {e}"
        if normaliser == "exponential":
            return f"{a} = {weight}"
        below = f"{self.total('j')} {weight}"
        return rf"{a} = \frac{{{weight}}}{{{below}}}" if self.page else f"{a} = {weight} / {below}"

    def energy_gradient(self, normaliser: str) -> list[str]:
        e, a, big = self.name("dE", "ij"), self.name("A", "ij"), self.name("D", "i")
        d, v, mean = self.name("d", "i", True), self.name("v", "j", True), self.name("average", "i", True)
        inside = f"{self.inner(d, v)} - {big}"
        pair = f"{e} = {inside}" if normaliser == "linear" else f"{e} = {a} ({inside})"
        if normaliser == "softmax":
            return [pair, f"{big} = {self.inner(d, mean)} - {self.name('dlse', 'i')}"]
        return [pair, f"{big} = -{self.name('dmass', 'i')}"]


class _Single:
    """A node for one pair: leaves without the axes of positions, and sums over positions written as factors."""

    def __init__(self, query: str, page: Page | None, known: frozenset[str]) -> None:
        self.page, self.known = page, known
        self.letters = {query: "i" if query == QUERY else "k", QUERY: "i", KEY: "j"}
        self.done: dict[Node, Node] = {}
        self.turned: list[str] = []

    def of(self, y: Node) -> Node:
        if y not in self.done:
            self.done[y] = self.made(y)
        return self.done[y]

    def made(self, y: Node) -> Node:
        if y.op == "leaf":
            return self.named(y)
        if y.op == "frequencies":
            return leaf("parameter", "theta", y.axes)
        if y.op == "half_turn":
            inner = self.of(y.args[0])
            self.turned.append(_notation(self.page, self.known).text(inner))
            return leaf("parameter", f"halfturn{len(self.turned) - 1}x", inner.axes)
        args = [self.of(a) for a in y.args]
        match y.op:
            case "add":
                return add(*args)
            case "mul":
                return mul(*args)
            case "pow":
                return power(args[0], y.attrs[0])
            case "max":
                return maximum(*args)
            case "fn":
                return fn(y.attrs[0], args[0])
            case "sum" if y.attrs[0] in self.letters:
                return mul(leaf("parameter", f"sum_{self.letters[y.attrs[0]]}", ()), args[0])
            case "sum":
                return total(args[0], y.attrs[0])
            case "expand" | "clamped":
                return args[0]
            case "guarded":
                return args[1]
        return y

    def named(self, y: Node) -> Node:
        kind, n, order = y.attrs
        own = tuple(a for a in order if a not in self.letters)
        suffix = "".join(self.letters[a] for a in order if a in self.letters)
        plain = "_" in n or kind in ("position", "parameter", "constant", "scalar") or not suffix
        return leaf("parameter", n if plain else f"{n}_{suffix}", own)


def formulas(c: CompiledAttention, page: Page | None = None) -> list[str]:
    """The definition: energy, weights, averages, outputs."""
    p = c.lowered
    fixed = c.spec.nodes is not None
    by = Lines(c, KEY if fixed else QUERY, page)
    i = by.i
    lines = [f"{by.name('E', f'{i}j')} = {by.text(p.energy, p.query)}", by.weights(c.spec.normaliser)]
    weight = f"{by.total('j')} {by.name('A', f'{i}j')}"
    shown = {x.name: f"{weight} {_bracketed(by.text(p.averages[x.name], p.query))}" for x in c.spec.averages}
    whole = {x.attrs[1]: n for n, x in p.outputs.items() if x.op == "leaf" and x.attrs[0] == "average"}
    lines += [f"{by.name(n, i, True)} = {t}" for n, t in shown.items() if n not in whole]
    for n, x in p.outputs.items():
        if x.op == "leaf" and x.attrs[0] == "average":
            lines.append(f"{by.name(n, i, True)} = {shown[x.attrs[1]]}")
            continue
        out = by.text(_renamed(x, whole) if page else x)
        for average, other in whole.items() if not page else ():
            out = re.sub(rf"\b{average}\b", other, out)
        lines.append(f"{by.name(n, '' if fixed else 'i', bool(x.axes))} = {out}")
    return lines


def _renamed(x: Node, names: dict[str, str]) -> Node:
    """x with averages called as the outputs that they are."""
    found = {
        y: leaf(y.attrs[0], names[y.attrs[1]], y.attrs[2]) for y in walk(x) if y.op == "leaf" and y.attrs[1] in names
    }
    return replace(x, found)


def _bracketed(shown: str) -> str:
    return f"({shown})" if " " in shown.replace(r"\cfbreak ", "") else shown


def split_formulas(c: CompiledAttention, page: Page | None = None) -> list[str]:
    """The energy as the tile computes it, and the features; a line without ` = ` is a sentence."""
    s = c.split
    q = s.lowered.query
    by = Lines(c, q, page)
    i = by.i
    row = "" if s.row is ZERO else f" + {by.text(s.row)}"
    lines = [f"{by.name('E', f'{i}j')} = {by.text(s.tile, q)}{row}"]
    for n, blocks in s.scores.items():
        products = " + ".join(by.inner(by.text(part.query, q), by.text(part.key, q)) for part in blocks)
        lines.append(f"{by.name(n, f'{i}j')} = {products}")
    if c.moved is not None:
        ((n, (part,)),) = c.moved.split.scores.items()
        own, other = (dim_of(x.split.scores[n][0].axes[0]) for x in (c, c.moved))
        where = rf"\text{{or, where }} {own} \ge {other}, \quad " if page else f"or, where {own} >= {other}, "
        lines.append(f"{where}{by.name(n, f'{i}j')} = {by.inner(by.text(part.query, q), by.text(part.key, q))}")
    lines += [f"{by.name(n, 'j')} = {by.text(x)}" for n, x in s.columns.items()]
    lines += [f"{by.name(n, 'i')} = {by.text(x)}" for n, x in s.rows.items()]
    lines += [f"{by.name(n)} = {by.text(x)}" for n, x in s.scalars.items()]
    lines += [f"{by.name(n, 'j', True)} = {by.text(x)}" for n, (x, _) in s.values.items()]
    lines += [f"{by.name(n, 'i', True)} = {by.text(x)}" for n, x in s.averages.items() if x.op != "leaf"]
    if s.row is not ZERO:
        lines.append("The softmax is blind to what belongs to the row alone; the log-sum-exp has it.")
    return lines


def gradient_formulas(c: CompiledAttention, page: Page | None = None) -> list[str]:
    """dE of a pair, the cotangents of features, and the gradients of what is given."""
    by = Lines(c, QUERY, page)
    lines = [",   ".join(by.energy_gradient(c.spec.normaliser))] if not page else by.energy_gradient(c.spec.normaliser)
    for x, d in c.derivatives.items():
        kind, name, _ = x.attrs
        inner = by.text(_whole(d), c.lowered.query)
        if kind == "score":
            n = c.split.numbered[name].n
            key, query = (by.name(f"key{n}", "j", True), by.name(f"query{n}", "i", True))
            dquery, dkey = (by.name(f"dquery{n}", "i", True), by.name(f"dkey{n}", "j", True))
            both = [f"{dquery} = {by.total('j')} ({inner}) {key}", f"{dkey} = {by.total('i')} ({inner}) {query}"]
            lines += both if page else [",   ".join(both)]
        else:
            over, at = {"row": ("j", "i"), "column": ("i", "j"), "scalar": ("ij", "")}[kind]
            lines.append(f"{by.name(f'd{name}', at)} = {by.total(over)} {inner}")
    weight = f"{by.total('i')} {by.name('A', 'ij')}"
    lines += [f"{by.name(f'd{n}', 'j', True)} = {weight} {by.name(f'd{n}', 'i', True)}" for n in c.split.values]
    for m in (c.outputs, c.features):
        for name, g in m.gradients.items():
            if g is not ZERO:
                more = m is c.features and name in c.outputs.gradients
                left = by.name(f"d{name}", "", bool(g.axes))
                lines.append(f"{left} {'+=' if more else '='} {by.text(g)}")
    return lines


def _whole(d: Derivative) -> Node:
    return mul(d.factor, d.inner) if d.factor is not ONE else d.inner


def sections(c: CompiledAttention, page: Page | None = None) -> list[tuple[str, list[str]]]:
    """The derivation, section by section; LaTeX for a page, where there is one."""
    return [
        ("The attention", formulas(c, page)),
        ("Its split, into features of the query and of the key", split_formulas(c, page)),
        ("Its gradients", gradient_formulas(c, page)),
    ]


def derivation_lines(c: CompiledAttention) -> list[str]:
    out: list[str] = []
    for title, lines in sections(c):
        out += ([""] if out else []) + [title, *(f"    {x}" for x in lines)]
    return out
