"""Formulas for the parser's fuzz test: random ones, and their LaTeX in the styles of several authors."""

from __future__ import annotations

import random
from dataclasses import dataclass
from fractions import Fraction

from chunkform.spec.language.formula import (
    Formula,
    add,
    diag,
    exp,
    eye,
    formula,
    hadamard,
    inner,
    inverse,
    log,
    negative,
    product,
    product_over,
    softmax,
    sqrt,
    sum_over,
    tril,
)

SUM, ENTRYWISE, PRODUCT, FACTOR, ATOM = range(5)
NAMES = "q k v o u p s S Q K V M O lam alpha beta Lambda Qbar Utilde dS dq dQbar dlog_alpha".split()
GREEK = {"lam": r"\lambda", "alpha": r"\alpha", "beta": r"\beta", "Lambda": r"\Lambda"}


# --- random formulas ------------------------------------------------------------------------------------------------


def random_formula(rng: random.Random, depth: int = 4) -> Formula:
    """A formula of this field, in the form that the operators give it."""
    if depth == 0 or rng.random() < 0.15:
        return leaf(rng)
    kind = rng.choice("add add product product product hadamard divide transpose inverse power call sum minus".split())
    a, b = (random_formula(rng, depth - 1) for _ in range(2))
    match kind:
        case "add":
            return add(a, b) if rng.random() < 0.6 else a - b
        case "product":
            return product(a, b, *([random_formula(rng, depth - 2)] if depth > 1 and rng.random() < 0.3 else []))
        case "hadamard":
            return hadamard(a, b)
        case "divide":
            # two numbers are a number, and two gradients would be a derivative, which both are written as
            return a if a.op == b.op == "number" or all(str(x)[:1] == "d" for x in (a, b)) else a / b
        case "transpose":
            return a.T
        case "inverse":
            return inverse(a)
        case "power":
            return a ** rng.randrange(2, 4)
        case "minus":
            return negative(a)
        case "sum":
            i, t, n = Formula("index", (), ("i",)), Formula("index", (), ("t",)), Formula("size", (), ("n",))
            low, high = rng.choice([(1, t), (t + 1, n), (0, n), (1, t - 1)])
            over = sum_over if rng.random() < 0.7 else product_over
            return over(i, low, high, a)
    functions = [exp, log, diag, softmax, sqrt, tril, lambda x: tril(x, -1), lambda x: inner(x, b)]
    return rng.choice([*functions, lambda x: Formula("function", (x,), ("sigmoid",))])(a)


def leaf(rng: random.Random) -> Formula:
    if rng.random() < 0.12:
        return formula(rng.choice([1, 2, 3, Fraction(1, 2), Fraction(3, 4)]))
    if rng.random() < 0.06:
        return eye("d")
    name = rng.choice(NAMES)
    t, i, j, c = (Formula("index", (), (x,)) for x in "tijc")
    c = Formula("size", (), ("c",))
    indices = rng.choice([(t,), (t - 1,), (t + 1,), (), (i, j), (formula(1),), (i + 1, c), ((i - 1) * c + j,)])
    return Formula("at", tuple(formula(x) for x in indices), (name,))


# --- styles ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Style:
    """How an author writes."""

    bold: str = r"\mathbf"
    top: str = r"\top"
    left: str = r"\left("
    right: str = r"\right)"
    slash: bool = False
    dot: str = " "
    odot: str = r"\odot"
    apart: bool = False  # the d of a gradient set apart from its symbol
    commas: bool = True


STYLES = (
    Style(),
    Style(bold=r"\bm", left="(", right=")", apart=True),
    Style(bold="", top="T", left="(", right=")", slash=True, commas=False),
    Style(bold=r"\boldsymbol", left=r"\bigl[", right=r"\bigr]", odot=r"\circ", dot=r" \, "),
    Style(bold=r"\mathbf", top=r"{\mathsf T}", left="[", right="]", slash=True, dot=r" \cdot "),
)


def latex_of(x: Formula, style: Style) -> str:
    return _Printer(style).show(x)[0]


def _number(value: Fraction) -> tuple[str, int]:
    sign, value = ("-" if value < 0 else ""), abs(value)
    if value.denominator == 1:
        return f"{sign}{value}", SUM if sign else ATOM
    return rf"{sign}\frac{{{value.numerator}}}{{{value.denominator}}}", SUM if sign else FACTOR


class _Printer:
    def __init__(self, style: Style) -> None:
        self.style = style

    def sub(self, x: Formula, least: int) -> str:
        shown, level = self.show(x)
        return shown if level >= least else f"{self.style.left}{shown}{self.style.right}"

    def name(self, name: str) -> str:
        s = self.style
        if name.startswith("dlog_"):
            return rf"\mathrm{{d}}\log {self.name(name[5:])}"
        if name.startswith("d") and len(name) > 1:
            inner = name[1:]
            if s.apart or not s.bold:
                return (r"\mathrm{d}" if s.apart else "d") + self.name(inner)
            accent = rf"\bar {inner[0]}" if inner.endswith("bar") else inner
            return f"{s.bold}{{d{accent}}}"
        for accent in ("bar", "tilde"):
            if name.endswith(accent):
                return rf"\{accent}{{{self.name(name.removesuffix(accent))}}}"
        shown = GREEK.get(name, name)
        return f"{s.bold}{{{shown}}}" if s.bold and name not in GREEK else shown

    def show(self, x: Formula) -> tuple[str, int]:
        s = self.style
        match x.op:
            case "number":
                return _number(x.attrs[0])
            case "index" | "size":
                return x.attrs[0], ATOM
            case "eye":
                return f"{s.bold or ''}{{I}}_{{{x.attrs[0]}}}", ATOM
            case "at":
                return self.at(x), ATOM
            case "add":
                return self.total(x), SUM
            case "negative":
                return f"-{self.sub(x.args[0], ENTRYWISE)}", SUM
            case "product":
                return self.product(x)
            case "hadamard":
                return f" {s.odot} ".join(self.sub(y, PRODUCT) for y in x.args), ENTRYWISE
            case "divide":
                a, b = x.args
                if s.slash:
                    return f"{self.sub(a, PRODUCT)} / {self.sub(b, FACTOR)}", PRODUCT
                return rf"\frac{{{self.sub(a, SUM)}}}{{{self.sub(b, SUM)}}}", FACTOR
            case "transpose":
                return f"{self.sub(x.args[0], ATOM)}^{s.top}", FACTOR
            case "inverse":
                return f"{self.sub(x.args[0], ATOM)}^{{-1}}", FACTOR
            case "power":
                return f"{self.sub(x.args[0], ATOM)}^{{{self.sub(x.args[1], SUM)}}}", FACTOR
            case "sqrt":
                return rf"\sqrt{{{self.sub(x.args[0], SUM)}}}", FACTOR
        return self.called(x)

    def called(self, x: Formula) -> tuple[str, int]:
        """Functions, and what stands before its argument as these do."""
        s = self.style
        match x.op:
            case "exp" | "log" | "diag" | "softmax":
                name = rf"\{x.op}" if x.op in ("exp", "log") else rf"\mathrm{{{x.op}}}"
                return f"{name}{s.left}{self.sub(x.args[0], SUM)}{s.right}", FACTOR
            case "function":
                return rf"\operatorname{{{x.attrs[0]}}}({self.sub(x.args[0], SUM)})", FACTOR
            case "tril":
                offset = f", {x.attrs[0]}" if x.attrs[0] else ""
                return rf"\mathrm{{tril}}({self.sub(x.args[0], SUM)}{offset})", FACTOR
            case "inner":
                return rf"\langle {self.sub(x.args[0], SUM)}, {self.sub(x.args[1], SUM)} \rangle", FACTOR
            case "sum" | "product over":
                low, high, body = x.args
                head = r"\sum" if x.op == "sum" else r"\prod"
                bounds = f"_{{{x.attrs[0]}={_index(low)}}}^{{{_index(high)}}}"
                return f"{head}{bounds} {self.over(x.op, body)}", SUM
        raise AssertionError(x.op)

    def at(self, x: Formula) -> str:
        """A quantity with its indices."""
        name = self.name(x.attrs[0])
        if not x.args:
            return name
        plain = all(a.op == "index" for a in x.args)
        between = "" if plain and not self.style.commas else ", "
        return f"{name}_{{{between.join(_index(a) for a in x.args)}}}"

    def total(self, x: Formula) -> str:
        """A sum of terms, of which some are subtracted."""
        out = self.sub(x.args[0], SUM)
        for y in x.args[1:]:
            if y.op == "negative":
                out += f" - {self.sub(y.args[0], ENTRYWISE)}"
            elif y.op == "number" and y.attrs[0] < 0:
                out += f" - {self.show(formula(-y.attrs[0]))[0]}"
            else:
                out += f" + {self.sub(y, ENTRYWISE)}"
        return out

    def over(self, op: str, body: Formula) -> str:
        """What a sum or a product is over: of a product in brackets, as what doesn't count in it is no factor otherwise."""
        shown = self.sub(body, ENTRYWISE)
        bare = op == "sum" or body.op not in ("product", "hadamard", "divide", "negative")
        return shown if bare else f"{self.style.left}{shown}{self.style.right}"

    def product(self, x: Formula) -> tuple[str, int]:
        out = ""
        for k, y in enumerate(x.args):
            shown, level = self.show(y)
            if level < (PRODUCT if k == 0 else FACTOR) or (k and y.op == "product"):
                shown = f"{self.style.left}{shown}{self.style.right}"
            between = self.style.dot if k else ""
            if k and shown[0].isdigit() and out[-1].isdigit():
                between = r" \cdot "
            out += between + shown
        return out, PRODUCT


def _index(x: Formula) -> str:
    """An index such as t - 1, or a bound."""
    match x.op:
        case "number":
            return str(x.attrs[0])
        case "index" | "size":
            return x.attrs[0]
        case "product":
            return " ".join(f"({_index(a)})" if a.op == "add" else _index(a) for a in x.args)
    out = _index(x.args[0])
    for y in x.args[1:]:
        out += f" - {-y.attrs[0]}" if y.op == "number" and y.attrs[0] < 0 else f" + {_index(y)}"
    return out
