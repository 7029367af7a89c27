"""LaTeX formulas, as documents write them, as MathML: no script and no network is needed to read them in a page."""

from __future__ import annotations

import re
from html import escape

GREEK = {
    **dict(
        zip(
            "alpha beta gamma delta epsilon eta theta kappa lambda mu nu rho sigma tau omega pi".split(),
            "αβγδεηθκλμνρστωπ",
        )
    ),
    **{"Lambda": "Λ", "Omega": "Ω", "Gamma": "Γ", "Delta": "Δ", "Alpha": "Α", "partial": "∂", "infty": "∞", "ell": "ℓ"},
}
OPERATORS = {
    "odot": "⊙",
    "le": "≤",
    "ge": "≥",
    "ne": "≠",
    "in": "∈",
    "triangleq": "≜",
    "approx": "≈",
    "propto": "∝",
    "cdot": "·",
    "cdots": "⋯",
    "Rightarrow": "⇒",
    "top": "⊤",
    "langle": "⟨",
    "rangle": "⟩",
    "to": "→",
    "pm": "±",
    "times": "×",
    "ldots": "…",
    "dots": "…",
    "vdots": "⋮",
    "int": "∫",
    "quad": " ",
    "qquad": "  ",
}
THIN = '<mspace width="0.17em"/>'  # between factors
ESCAPED = "\\_"
CLOSES = {"(": ")", "{": "}", "\\begin": "\\end", "\\left": "\\right"}
BIG = {"sum": "∑", "prod": "∏"}
NAMES = ("exp", "log", "max", "min", "det", "tan", "sin", "cos")
TOKEN = re.compile(r"\\text\{[^{}]*\}|\\[a-zA-Z]+|\\.|[0-9]+(?:\.[0-9]+)?|.", re.S)


def mathml(source: str, block: bool = True) -> str:
    """A `<math>` element for LaTeX without its dollar signs."""
    body = _Parser(source).row()
    display = ' display="block"' if block else ""
    return f"<math{display}><mrow>{body}</mrow></math>"


MARKS = (
    {"\\": "<mo>;</mo>"}
    | {x: '<mspace width="0.25em"/>' for x in (",", ";", " ", "!", ":")}
    | {x: f"<mo>{escape(x)}</mo>" for x in ("{", "}", "|", "_", "%")}
)


def _are_factors(left: str, right: str) -> bool:
    """Do two parts stand side by side as factors do: neither an operator, nor the d of a gradient, nor what it is applied to?"""
    applied = left.endswith("<mo>&#x2061;</mo>") and not right.startswith("<mrow><mo>(")
    operators = left.endswith("</mo>") or right.startswith(("<mo", "<mspace", "<mtable")) or left.endswith('em"/>')
    return left != "<mtext>d</mtext>" and (applied or not operators)


class _Parser:
    def __init__(self, source: str) -> None:
        found = TOKEN.findall(source)
        self.tokens = [x for x in found if not x.isspace()]
        self.spaced: set[int] = set()  # tokens with a space before them
        count = 0
        for x in found:
            self.spaced |= {count} if x.isspace() else set()
            count += not x.isspace()
        self.at = 0

    def peek(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def take(self) -> str:
        token = self.peek()
        self.at += 1
        return token

    def row(self, *ends: str, stop: int | None = None) -> str:
        """Everything up to one of `ends`, or up to the token `stop`, which is not taken."""
        parts: list[str] = []
        while self.peek() and self.peek() not in ends and (stop is None or self.at < stop):
            spaced = self.at in self.spaced
            part = self.scripted()
            if spaced and parts and _are_factors(parts[-1], part):
                parts.append(THIN)
            parts.append(part)
        return "".join(parts)

    def scripted(self) -> str:
        """One symbol with what stands below and above it."""
        big = self.peek().lstrip("\\") in BIG
        base = self.atom()
        below = above = ""
        while self.peek() in ("_", "^"):
            which = self.take()
            script = self.atom()
            if which == "_":
                below = script
            else:
                above = script
        if not below and not above:
            return base
        kind = ("munder", "mover", "munderover") if big else ("msub", "msup", "msubsup")
        if below and above:
            return f"<{kind[2]}>{base}{below}{above}</{kind[2]}>"
        return f"<{kind[0]}>{base}{below}</{kind[0]}>" if below else f"<{kind[1]}>{base}{above}</{kind[1]}>"

    def group(self) -> str:
        """What stands in braces, as one row."""
        if self.peek() != "{":
            return self.atom()
        self.take()
        body = self.row("}")
        self.take()
        return f"<mrow>{body}</mrow>"

    def raw(self) -> str:
        """The text in braces, as it is."""
        depth, parts = 0, []
        while self.at < len(self.tokens):
            token = self.take()
            if token == "{":
                depth += 1
                if depth == 1:
                    continue
            if token == "}":
                depth -= 1
                if depth == 0:
                    break
            parts.append(token)
        return "".join(parts)

    def atom(self) -> str:
        token = self.take()
        if token == "{":
            body = self.row("}")
            self.take()
            return f"<mrow>{body}</mrow>"
        if token.startswith("\\text{"):
            return f"<mtext>{escape(token[6:-1]).replace(' ', '&#xA0;')}</mtext>"
        if token.startswith("\\"):
            return self.command(token[1:])
        if token[:1].isdigit():
            return f"<mn>{token}</mn>"
        if token.isalpha():
            return f"<mi>{token}</mi>"
        if token == "(" and (end := self.closing()) is not None:
            body = self.row(stop=end)
            if self.at > end:  # what a larger bracket has taken
                return f"<mo>(</mo>{body}"
            self.take()
            return f"<mrow><mo>(</mo>{body}<mo>)</mo></mrow>"
        if token == "&" and self.peek() == "=":  # which aligns lines, and here is one
            return ""
        if token == "&":
            return '<mspace width="1em"/>'
        return f"<mo>{escape({'-': '−', '*': '∗'}.get(token, token))}</mo>"

    def command(self, name: str) -> str:
        if name in GREEK:
            return f"<mi>{GREEK[name]}</mi>"
        if name in BIG:
            return f"<mo>{BIG[name]}</mo>"
        if name in OPERATORS:
            shown = OPERATORS[name]
            return f'<mspace width="{len(shown)}em"/>' if shown.isspace() else f"<mo>{shown}</mo>"
        if name in NAMES:
            return f"<mi>{name}</mi><mo>&#x2061;</mo>"
        if name in ("mathbf", "boldsymbol", "bm"):
            return f'<mstyle style="font-weight:bold">{self.group()}</mstyle>'
        if name in ("mathrm", "operatorname", "text"):
            return f"<mtext>{escape(self.text().replace(ESCAPED, '_'))}</mtext>"
        if name == "mathcal":
            return f'<mstyle style="font-family:cursive">{self.group()}</mstyle>'
        if name in ("frac", "tfrac"):
            return f"<mfrac>{self.group()}{self.group()}</mfrac>"
        if name == "sqrt":
            return f"<msqrt>{self.group()}</msqrt>"
        if name in ("bar", "tilde", "hat"):
            accent = {"bar": "¯", "tilde": "~", "hat": "^"}[name]
            return f'<mover accent="true">{self.group()}<mo>{accent}</mo></mover>'
        if name == "left":
            first = self.fence()
            body = self.row("\\right")
            self.take()
            return f"<mrow>{first}{body}{self.fence()}</mrow>"
        if name in ("Bigl", "Bigr"):
            return self.fence()
        if name == "begin":
            return self.table(self.raw())
        if name in MARKS:
            return MARKS[name]
        return f"<mtext>{escape(name)}</mtext>"

    def closing(self) -> int | None:
        """Where the bracket is closed that has just been taken: in the same group, and by a bracket of its size."""
        opened: list[str] = []
        for at in range(self.at, len(self.tokens)):
            token = self.tokens[at]
            if token in CLOSES:
                opened.append(token)
            elif token in CLOSES.values() and opened:
                if CLOSES[opened.pop()] != token:
                    return None
            elif token in CLOSES.values():
                return at if token == ")" else None
            elif not opened and token in ("&", "\\\\"):
                return None
        return None

    def fence(self) -> str:
        """The bracket after \\left or \\right; a point stands for none."""
        fence = self.take()
        fence = {"\\{": "{", "\\}": "}", ".": ""}.get(fence, OPERATORS.get(fence[1:], fence))
        return f'<mo stretchy="true">{escape(fence)}</mo>' if fence else ""

    def text(self) -> str:
        """The word of \\mathrm{...}."""
        return self.raw() if self.peek() == "{" else self.take()

    def table(self, kind: str) -> str:
        rows = [[""]]
        while self.peek():
            if self.peek() == "\\end":
                self.take()
                self.raw()
                break
            if self.peek() == "&":
                self.take()
                rows[-1].append("")
            elif self.peek() == "\\\\":
                self.take()
                rows.append([""])
            else:
                rows[-1][-1] += self.scripted()
        body = "".join("<mtr>" + "".join(f"<mtd>{c}</mtd>" for c in r) + "</mtr>" for r in rows)
        left, right = {"cases": ("{", ""), "pmatrix": ("(", ")")}.get(kind, ("[", "]"))
        return f"<mo>{left}</mo><mtable>{body}</mtable>" + (f"<mo>{right}</mo>" if right else "")
