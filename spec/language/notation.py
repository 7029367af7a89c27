"""Formulas as people write them: one line of text, or LaTeX in the notation of the documents."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from functools import lru_cache
from typing import Any, Protocol

GREEK = {
    "lam": "lambda",
    **{
        x: x
        for x in "alpha beta gamma delta epsilon eta theta kappa lambda mu nu rho sigma tau omega Lambda Omega".split()
    },
    "Lam": "Lambda",
}


class Shown(Protocol):
    """What is written of a formula (`formula.Formula`): its operation, and of what."""

    @property
    def op(self) -> str: ...
    @property
    def args(self) -> tuple[Any, ...]: ...
    @property
    def attrs(self) -> tuple[Any, ...]: ...


RANGED = ("sum", "product over", "product down", "hadamard over")  # what is taken over an index from low to high
SUM, PRODUCT, UNARY, ATOM = range(4)  # how tightly an expression binds


@lru_cache(maxsize=50_000)
def text(x: Shown) -> str:
    """A formula as plain text: `lam(t) * S(t-1) + k(t) * v(t).T`."""
    return _show(x, _Text())[0]


def latex(x: Shown, shown: Mapping[str, str] | None = None) -> str:
    """A formula as LaTeX. `shown` gives the LaTeX of names; others follow `symbol`."""
    return _show(x, _Latex(shown or {}))[0]


def symbol(name: str) -> str:
    """The LaTeX of a name: Greek letters, accents written after it (`Qbar`), a gradient's d before it."""
    for suffix, accent in (("bar", "bar"), ("tilde", "tilde"), ("hat", "hat")):
        if name.endswith(suffix) and len(name) > len(suffix):
            return rf"\{accent}{{{symbol(name.removesuffix(suffix))}}}"
    if name.startswith("dlog_"):
        return rf"\mathrm{{d}}\log {symbol(name[5:])}"
    if name in GREEK:
        return rf"\{GREEK[name]}"
    if len(name) > 1 and name[0] == "d":
        return rf"\mathrm{{d}}{symbol(name[1:])}"
    head, _, sub = name.partition("_")
    if sub:
        return rf"{symbol(head)}_{{{sub}}}"
    if re.fullmatch(r"[A-Za-z]\d+", name):
        return rf"{symbol(name[0])}_{{{name[1:]}}}"
    return rf"\mathbf{{{name}}}" if len(name) == 1 else rf"\mathrm{{{name}}}"


class _Text:
    times, top, power = " * ", ".T", "^"
    brackets = "({})"

    def number(self, value: Fraction) -> str:
        return str(value)

    def at(self, name: str, indices: list[str]) -> str:
        return f"{name}({', '.join(i.replace(' ', '') for i in indices)})" if indices else name

    def call(self, name: str, args: list[str]) -> str:
        return f"{name}({', '.join(args)})"

    def fraction(self, above: str, below: str) -> str:
        return f"{above} / {below}"

    def big(self, op: str, index: str, low: str, high: str, body: str) -> str:
        name = {"sum": "sum", "hadamard over": "hadamard"}.get(op, "prod")
        ends = (high, low) if op == "product down" else (low, high)
        return f"{name}[{index}={ends[0]}..{ends[1]}] {body}"

    def word(self, name: str) -> str:
        return {"infinity": "oo"}.get(name, name)

    def special(self, op: str, args: list[str], attrs: tuple) -> str:
        if op == "tril":
            return f"tril({args[0]}, {attrs[0]})" if attrs[0] else f"tril({args[0]})"
        if op == "matrix":
            return f"[{args[0]}]_{attrs[0]}{attrs[1]}"
        if op == "stack":
            return f"rows[{attrs[0]}]({args[0]})"
        if op == "differences":
            return f"{args[0]}[:,None] - {args[1]}[None,:]"
        if op == "cases":
            pairs = zip(args[::2], args[1::2])
            return "{" + "; ".join(f"{v} if {c}" for c, v in pairs) + "}"
        if op == "beside":
            return f"[{', '.join(args)}]"
        return f"{op}({', '.join(args)})"

    def eye(self, dim: str) -> str:
        return f"I_{dim}"

    def hadamard(self, args: list[str]) -> str:
        return " o ".join(args)

    def inverse(self, arg: str) -> str:
        return f"{arg}^-1"

    def gradient(self, of: str, by: str, held: list[str]) -> str:
        return f"d({of})/d({by})" + (f"|{','.join(held)}" if held else "")


class _Latex(_Text):
    times, top = r" ", r"^\top"
    brackets = r"\left({}\right)"

    def __init__(self, shown: Mapping[str, str]) -> None:
        self.shown = shown

    def name(self, name: str) -> str:
        return self.shown.get(name) or symbol(name)

    def number(self, value: Fraction) -> str:
        if value.denominator == 1:
            return str(value)
        sign = "-" if value < 0 else ""
        return rf"{sign}\frac{{{abs(value.numerator)}}}{{{value.denominator}}}"

    def at(self, name: str, indices: list[str]) -> str:
        return f"{self.name(name)}_{{{','.join(indices)}}}" if indices else self.name(name)

    def call(self, name: str, args: list[str]) -> str:
        return rf"{self.name(name)}({', '.join(args)})"

    def fraction(self, above: str, below: str) -> str:
        return rf"\frac{{{above}}}{{{below}}}"

    def big(self, op: str, index: str, low: str, high: str, body: str) -> str:
        name = {"sum": r"\sum", "hadamard over": r"\bigodot"}.get(op, r"\prod")
        ends = (high, low) if op == "product down" else (low, high)
        return rf"{name}_{{{index}={ends[0]}}}^{{{ends[1]}}} {body}"

    def word(self, name: str) -> str:
        return {"infinity": r"\infty", "otherwise": r"\text{otherwise}"}.get(name, name)

    def special(self, op: str, args: list[str], attrs: tuple) -> str:
        match op:
            case "tril":
                return rf"\mathrm{{tril}}({args[0]}, {attrs[0]})" if attrs[0] else rf"\mathrm{{tril}}({args[0]})"
            case "matrix":
                return rf"\left[{args[0]}\right]_{{{attrs[0]}{attrs[1]}}}"
            case "stack":
                return rf"\left[{args[0]}\right]_{{{attrs[0]}=1..{attrs[1]}}}"
            case "differences":
                return rf"{args[0]}[:,\mathrm{{None}}] - {args[1]}[\mathrm{{None}},:]"
            case "cases":
                pairs = zip(args[::2], args[1::2])
                return r"\begin{cases}" + r" \\ ".join(f"{v}, & {c}" for c, v in pairs) + r"\end{cases}"
            case "beside":
                return rf"\left[{', '.join(args)}\right]"
            case "inner":
                return rf"\langle {args[0]}, {args[1]} \rangle"
            case "exp" | "log":
                return rf"\{op}({args[0]})"
            case "sqrt":
                return rf"\sqrt{{{args[0]}}}"
            case "compare":
                return " ".join(args)
        return rf"\mathrm{{{op}}}({', '.join(args)})"

    def eye(self, dim: str) -> str:
        return rf"\mathbf{{I}}_{{{dim}}}"

    def hadamard(self, args: list[str]) -> str:
        return r" \odot ".join(args)

    def inverse(self, arg: str) -> str:
        return f"{arg}^{{-1}}"

    def gradient(self, of: str, by: str, held: list[str]) -> str:
        whole = rf"\frac{{\partial {of}}}{{\partial {by}}}"
        return rf"\left.{whole}\right|_{{{', '.join(held)}}}" if held else whole


def _show(x: Shown, p: _Text) -> tuple[str, int]:
    found = _atom(x, p) or _joined(x, p) or _marked(x, p)
    return found or (p.special(x.op, [_sub(a, SUM, p) for a in x.args], x.attrs), ATOM)


def _sub(x: Shown, least: int, p: _Text) -> str:
    """A part, in brackets unless it is at least so tight."""
    shown, tightness = _show(x, p)
    return shown if tightness >= least else p.brackets.format(shown)


def _atom(x: Shown, p: _Text) -> tuple[str, int] | None:
    """What stands as one: a number, a name, a call."""
    tex = isinstance(p, _Latex)
    match x.op:
        case "number":
            value = x.attrs[0]
            return p.number(value), ATOM if value >= 0 and (value.denominator == 1 or tex) else SUM
        case "index" | "size":
            return x.attrs[0], ATOM
        case "infinity" | "otherwise":
            return p.word(x.op), ATOM
        case "at" | "named":
            return p.at(x.attrs[0], [_sub(a, SUM, p) for a in x.args[x.op == "named" :]]), ATOM
        case "call" | "function":
            return p.call(x.attrs[0], [_sub(a, SUM, p) for a in x.args[x.op == "call" :]]), ATOM
        case "eye":
            return p.eye(x.attrs[0]), ATOM
        case "ones":
            return (r"\mathbf{1}" if tex else "1") + f"_{{{x.attrs[0]}}}", ATOM
        case "unit":
            return f"e_{{{_sub(x.args[0], SUM, p)}}}" if tex else f"e_{_sub(x.args[0], ATOM, p)}", ATOM
        case "constant":
            rows = [(" & " if tex else " ").join(map(str, r)) for r in x.attrs[2]]
            if tex:
                return r"\begin{pmatrix}" + r" \\ ".join(rows) + r"\end{pmatrix}", ATOM
            return f"[{'; '.join(rows)}]", ATOM
        case "row":
            return f"{_sub(x.args[0], ATOM, p)}[{_sub(x.args[1], SUM, p)},:]", ATOM
    return None


def _joined(x: Shown, p: _Text) -> tuple[str, int] | None:
    """What has an operator between its parts."""
    tex = isinstance(p, _Latex)
    match x.op:
        case "add":
            return _sum(x, p), SUM
        case "product":
            return p.times.join(_sub(y, UNARY, p) for y in x.args), PRODUCT
        case "hadamard":
            return p.hadamard([_sub(y, UNARY, p) for y in x.args]), PRODUCT
        case "divide":
            above, below = (SUM, SUM) if tex else (PRODUCT, UNARY)
            shown = p.fraction(_sub(x.args[0], above, p), _sub(x.args[1], below, p))
            return shown, UNARY if tex else PRODUCT
        case "compare":
            relation = {">=": r"\ge", "<=": r"\le"}.get(x.attrs[0], x.attrs[0]) if tex else x.attrs[0]
            return f"{_sub(x.args[0], SUM, p)} {relation} {_sub(x.args[1], SUM, p)}", SUM
        case "equation":
            return f"{_sub(x.args[0], SUM, p)} = {_sub(x.args[1], SUM, p)}", SUM
        case "all":
            return ",  ".join(_sub(a, SUM, p) for a in x.args), SUM
    return None


def _sum(x: Shown, p: _Text) -> str:
    out = _sub(x.args[0], SUM, p)
    for y in x.args[1:]:
        if y.op == "negative":
            out += f" - {_sub(y.args[0], PRODUCT, p)}"
        elif y.op == "number" and y.attrs[0] < 0:
            out += f" - {p.number(-y.attrs[0])}"
        else:
            out += f" + {_sub(y, SUM, p)}"
    return out


def _marked(x: Shown, p: _Text) -> tuple[str, int] | None:
    """What has a sign before or after it, or stands after a sign that is over a range."""
    tex = isinstance(p, _Latex)
    match x.op:
        case "negative":
            return f"-{_sub(x.args[0], PRODUCT, p)}", SUM
        case "transpose":
            return f"{_sub(x.args[0], ATOM, p)}{p.top}", UNARY if tex else ATOM
        case "inverse":
            return p.inverse(_sub(x.args[0], ATOM, p)), UNARY
        case "power":
            exponent = _sub(x.args[1], SUM if tex else ATOM, p)
            exponent = f"{{{exponent}}}" if tex else exponent
            return f"{_sub(x.args[0], ATOM, p)}^{exponent}", UNARY
        case op if op in RANGED:
            low, high, body = x.args
            return p.big(op, x.attrs[0], _sub(low, SUM, p), _sub(high, SUM, p), _sub(body, PRODUCT, p)), PRODUCT
        case "gradient":
            held = [_sub(y, ATOM, p) for y in x.args[2:]]
            return p.gradient(_sub(x.args[0], UNARY, p), _sub(x.args[1], UNARY, p), held), UNARY
    return None
