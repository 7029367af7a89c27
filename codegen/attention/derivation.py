"""What the compiler derived of an attention, as formulas for people: the split, the features, the gradients."""

from __future__ import annotations

import re

from ..ir.expr import ONE, ZERO, Node, add, dim_of, fn, leaf, mul, power, total
from ..ir.notation import Notation
from .compiled import CompiledAttention
from .feature_maps import Derivative
from .lower import KEY, QUERY

WEIGHTS = {
    "softmax": "A_ij = exp(E_ij) / sum_j exp(E_ij)",
    "exponential": "A_ij = exp(E_ij)",
    "linear": "A_ij = E_ij",
}
GRADIENTS = {
    "softmax": "dE_ij = A_ij (<d_i, v_j> - D_i),   D_i = <d_i, average_i> - dlse_i",
    "exponential": "dE_ij = A_ij (<d_i, v_j> - D_i),   D_i = -dmass_i",
    "linear": "dE_ij = <d_i, v_j> - D_i,   D_i = -dmass_i",
}


# The notation writes score1_ij as score_{1,ij}: a number in a name of ours is a part of the name.
_NUMBERED = re.compile(r"\b(d?(?:average|score|column|row|scalar|value|query|key))_\{?(\d+)(?:,(\w+))?\}?")


def text(x: Node, query: str = QUERY) -> str:
    """A node of one position or one pair in matrix notation: the axes of positions are left out."""
    if x is ZERO:
        return "0"
    single = _Single(query)
    shown = Notation(False, {}, False).text(single.of(x))
    for n, inner in enumerate(single.turned):
        shown = shown.replace(f"halfturn{n}x", f"half_turn({inner})")
    return _NUMBERED.sub(lambda m: f"{m[1]}{m[2]}{'_' + m[3] if m[3] else ''}", shown)


class _Single:
    """A node for one pair: leaves without the axes of positions, and sums over positions written as factors."""

    def __init__(self, query: str) -> None:
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
            self.turned.append(Notation(False, {}, False).text(inner))
            return leaf("parameter", f"halfturn{len(self.turned) - 1}x", inner.axes)
        args = [self.of(a) for a in y.args]
        match y.op:
            case "add":
                return add(*args)
            case "mul":
                return mul(*args)
            case "pow":
                return power(args[0], y.attrs[0])
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


def formulas(c: CompiledAttention) -> list[str]:
    """The definition: energy, weights, averages, outputs."""
    p = c.lowered
    fixed = c.spec.nodes is not None
    i = "k" if fixed else "i"
    lines = [f"E_{i}j = {text(p.energy, p.query)}", WEIGHTS[c.spec.normaliser].replace("_ij", f"_{i}j")]
    shown = {x.name: f"sum_j A_{i}j {_bracketed(text(p.averages[x.name], p.query))}" for x in c.spec.averages}
    whole = {x.attrs[1]: n for n, x in p.outputs.items() if x.op == "leaf" and x.attrs[0] == "average"}
    lines += [f"{n}_{i} = {t}" for n, t in shown.items() if n not in whole]
    for n, x in p.outputs.items():
        if x.op == "leaf" and x.attrs[0] == "average":
            lines.append(f"{n}_{i} = {shown[x.attrs[1]]}")
            continue
        out = text(x)
        for average, other in whole.items():
            out = re.sub(rf"\b{average}\b", other, out)
        lines.append(f"{n}{'' if fixed else '_i'} = {out}")
    return lines


def _bracketed(shown: str) -> str:
    return f"({shown})" if " " in shown else shown


def split_formulas(c: CompiledAttention) -> list[str]:
    """The energy as the tile computes it, and the features."""
    s = c.split
    row = "" if s.row is ZERO else f" + {text(s.row)}"
    q = s.lowered.query
    i = "i" if q == QUERY else "k"
    lines = [f"E_{i}j = {text(s.tile, q)}{row}"]
    for n, blocks in s.scores.items():
        products = " + ".join(f"<{text(part.query, q)}, {text(part.key, q)}>" for part in blocks)
        lines.append(f"{n}_{i}j = {products}")
    if c.moved is not None:
        ((n, (part,)),) = c.moved.split.scores.items()
        own, other = (dim_of(x.split.scores[n][0].axes[0]) for x in (c, c.moved))
        lines.append(f"or, where {own} >= {other}, {n}_{i}j = <{text(part.query, q)}, {text(part.key, q)}>")
    lines += [f"{n}_j = {text(x)}" for n, x in s.columns.items()]
    lines += [f"{n}_i = {text(x)}" for n, x in s.rows.items()]
    lines += [f"{n} = {text(x)}" for n, x in s.scalars.items()]
    lines += [f"{n}_j = {text(x)}" for n, (x, _) in s.values.items()]
    lines += [f"{n}_i = {text(x)}" for n, x in s.averages.items() if x.op != "leaf"]
    if s.row is not ZERO:
        lines.append("The softmax is blind to what belongs to the row alone; the log-sum-exp has it.")
    return lines


def gradient_formulas(c: CompiledAttention) -> list[str]:
    """dE of a pair, the cotangents of features, and the gradients of what is given."""
    lines = [GRADIENTS[c.spec.normaliser]]
    for x, d in c.derivatives.items():
        kind, name, _ = x.attrs
        inner = text(_whole(d), c.lowered.query)
        n = name.removeprefix("score")
        if kind == "score":
            lines.append(f"dquery{n}_i = sum_j ({inner}) key{n}_j,   dkey{n}_j = sum_i ({inner}) query{n}_i")
        else:
            over, at = {"row": ("sum_j", "_i"), "column": ("sum_i", "_j"), "scalar": ("sum_ij", "")}[kind]
            lines.append(f"d{name}{at} = {over} {inner}")
    lines += [f"d{n}_j = sum_i A_ij d{n}_i" for n in c.split.values]
    for m in (c.outputs, c.features):
        for name, g in m.gradients.items():
            if g is not ZERO:
                lines.append(f"d{name} {'+=' if m is c.features and name in c.outputs.gradients else '='} {text(g)}")
    return lines


def _whole(d: Derivative) -> Node:
    return mul(d.factor, d.inner) if d.factor is not ONE else d.inner


def sections(c: CompiledAttention) -> list[tuple[str, list[str]]]:
    return [
        ("The attention", formulas(c)),
        ("Its split, into features of the query and of the key", split_formulas(c)),
        ("Its gradients", gradient_formulas(c)),
    ]


def derivation_lines(c: CompiledAttention) -> list[str]:
    out: list[str] = []
    for title, lines in sections(c):
        out += ([""] if out else []) + [title, *(f"    {x}" for x in lines)]
    return out
