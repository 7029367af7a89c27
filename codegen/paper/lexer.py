"""Tokens of LaTeX mathematics, with their places; an author's own macros are expanded, within a budget.

Nothing here is TeX: a macro is replaced by its text, and no command does anything else."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from .words import ACCENTS, FONTS, SWITCHES

LIMIT = 20_000  # tokens of one display, macros expanded
DEPTH = 30  # macros in macros

UNICODE = {
    "∈": "in", "≤": "le", "≥": "ge", "≠": "ne", "≈": "approx", "·": "cdot", "×": "times", "⊙": "odot", "∘": "circ",
    "⊗": "otimes", "∂": "partial", "∇": "nabla", "∑": "sum", "∏": "prod", "∫": "int", "∞": "infty", "√": "sqrt",
    "⊤": "top", "ᵀ": "T-sup", "′": "prime", "…": "ldots", "⟨": "langle", "⟩": "rangle", "≜": "triangleq", "≔": "coloneqq",
    "ℝ": "R-set", "−": "minus", "→": "to", "∀": "forall", "ℓ": "ell", "∝": "propto", "≡": "equiv", "‖": "Vert",
    **dict(zip("αβγδεζηθικλμνξπρστυφχψω", (
        "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi pi rho sigma tau upsilon phi chi psi "
        "omega").split())),
    **dict(zip("ΓΔΘΛΞΠΣΥΦΨΩ", "Gamma Delta Theta Lambda Xi Pi Sigma Upsilon Phi Psi Omega".split())),
}  # fmt: skip
# Commands that only say how something is set, and how many arguments go with them.
DROPPED = {
    **dict.fromkeys(
        "displaystyle textstyle scriptstyle limits nolimits nonumber notag left right middle big Big bigg Bigg bigl bigr "
        "IEEEyesnumber IEEEnonumber IEEEyessubnumber IEEEnosubnumber IEEEeqnarraynumspace "
        "Bigl Bigr biggl biggr Biggl Biggr bigm Bigm mathopen mathclose allowdisplaybreaks relax centering hfill hline "
        "toprule bottomrule midrule smallskip medskip bigskip noindent small footnotesize normalsize itshape bfseries "
        "mathstrut strut null protect ensuremath nobreak qty".split(),
        0,
    ),
    **dict.fromkeys("label tag intertext shortintertext hspace vspace phantom hphantom vphantom color".split(), 1),
    **dict.fromkeys("eqref ref cite require mspace kern".split(), 1),
    **dict.fromkeys("verified refuted conditional unjudged".split(), 1),  # what `annotate.py` writes
    "textcolor": 1,
    "colorbox": 1,
}  # fmt: skip
SPACES = {",", ";", ":", "!", " ", ">", "thinspace", "medspace", "thickspace", "negthinspace", "enspace", "hskip"}


@dataclass(frozen=True)
class Token:
    """kind: command, letter, number, mark (any other character), or row (a line's end, `\\\\`). `at` is the offset in the
    source, and `glued` says that nothing stands between it and the token before."""

    kind: str
    text: str
    at: int
    glued: bool = False

    @property
    def shown(self) -> str:
        return "\\" + self.text if self.kind == "command" else "\\\\" if self.kind == "row" else self.text


@dataclass(frozen=True)
class Macro:
    """An author's abbreviation: its number of arguments, and its body. With `default`, the first may be left out."""

    arguments: int
    body: tuple[Token, ...]
    default: tuple[Token, ...] | None = None


_TOKEN = re.compile(
    r"(?P<space>\s+)|(?P<comment>(?<!\\)%[^\n]*)|\\(?P<command>[A-Za-z]+)\*?|(?P<row>\\\\\*?(?:\[[-\d.]+ ?[a-z]+\])?)"
    r"|\\(?P<mark>[^A-Za-z])|(?P<number>\d+(?:\.\d+)?)|(?P<letter>[^\W\d_])|(?P<other>.)",
    re.S,
)


def tokens_of(source: str, start: int = 0) -> list[Token]:
    """The tokens of a piece of mathematics that starts at offset `start` of its file."""
    found: list[Token] = []
    glued = False
    for m in _TOKEN.finditer(source):
        kind, text, at = m.lastgroup or "", m.group(m.lastgroup or 0), m.start() + start
        if kind in ("space", "comment"):
            glued = False
            continue
        if kind == "mark":
            kind = "mark" if text in "{}_&%#$" else "command"
            text = {"{": "lbrace", "}": "rbrace", "|": "Vert"}.get(text, text)
            kind = "command" if text in ("lbrace", "rbrace", "Vert") else kind
            if text in "_&%#$":
                text = "\\" + text
        elif kind in ("other", "letter") and text in UNICODE:
            kind, text = "command", UNICODE[text]
        elif kind == "other":
            kind = "mark"
        found.append(Token(kind, text, at, glued))
        glued = True
    return found


FRACTIONS = {"frac", "tfrac", "dfrac", "cfrac", "nicefrac", "sfrac"}


def expanded(tokens: Iterable[Token], macros: Mapping[str, Macro]) -> list[Token]:
    """The tokens with macros expanded, and with what only says how something is set left out.

    Raises:
        OverflowError: macros expand to more than a display may hold, as one that calls itself does.
    """
    found = _expanded(list(tokens), macros, 0)
    return _unboxed(_digits(_held(_plain(found))))


def _held(tokens: list[Token]) -> list[Token]:
    r"""The tokens with braces around a script that is a command with arguments, as in x^\mathsf{T} or x^\frac{1}{2}."""
    out: list[Token] = []
    i = 0
    while i < len(tokens):
        x, after = tokens[i], tokens[i + 1] if i + 1 < len(tokens) else None
        out.append(x)
        i += 1
        if x.kind != "mark" or x.text not in "_^" or after is None or after.kind != "command":
            continue
        many = 2 if after.text in FRACTIONS else 1 if after.text in FONTS or after.text in ACCENTS else 0
        end = i + 1
        for _ in range(many if after.text not in SWITCHES else 0):
            _, end = argument_at(tokens, end)
        if end > i + 1:
            out += [Token("mark", "{", after.at), *tokens[i:end], Token("mark", "}", after.at)]
            i = end
    return out


UNBOXED = {"smashoperator", "mathclap", "mathllap", "mathrlap", "adjustlimits"}


def _unboxed(tokens: list[Token]) -> list[Token]:
    r"""The tokens without the boxes around whole formulas, as in \boxed{x = y}, and those that only move what is in them."""
    out: list[Token] = []
    i = 0
    while i < len(tokens):
        content, after = argument_at(tokens, i + 1)
        whole = tokens[i].text == "boxed" and any(t.text in ("=", "&") for t in content)
        if tokens[i].kind == "command" and (whole or tokens[i].text in UNBOXED):
            tokens = [*tokens[:i], *content, *tokens[after:]]
            continue
        out.append(tokens[i])
        i += 1
    return out


def _digits(tokens: list[Token]) -> list[Token]:
    r"""The tokens with a digit each as arguments that stand without braces: \tfrac12 is a half."""
    out: list[Token] = []
    waiting = 0
    for x in tokens:
        if x.kind == "command" and x.text in FRACTIONS:
            waiting = 2
        elif waiting and x.kind == "number" and x.text.isdigit():
            taken = min(waiting, len(x.text))
            out += [replace(x, text=c, at=x.at + k) for k, c in enumerate(x.text[:taken])]
            waiting -= taken
            if x.text[taken:]:
                out.append(replace(x, text=x.text[taken:], at=x.at + taken))
            continue
        else:
            waiting = 0
        out.append(x)
    return out


def _expanded(tokens: list[Token], macros: Mapping[str, Macro], depth: int) -> list[Token]:
    if not macros:
        return tokens
    out: list[Token] = []
    i = 0
    while i < len(tokens):
        token = tokens[i]
        macro = macros.get(token.text) if token.kind == "command" else None
        i += 1
        if macro is None:
            out.append(token)
            continue
        if depth >= DEPTH:
            raise OverflowError(f"the macro \\{token.text} calls itself")
        arguments: list[list[Token]] = []
        if macro.default is not None:
            if i < len(tokens) and tokens[i].text == "[":
                end = next((k for k in range(i, len(tokens)) if tokens[k].text == "]"), i)
                arguments.append(tokens[i + 1 : end])
                i = end + 1
            else:
                arguments.append(list(macro.default))
        while len(arguments) < macro.arguments and i < len(tokens):
            argument, i = argument_at(tokens, i)
            arguments.append(argument)
        body: list[Token] = []
        for k, x in enumerate(macro.body):
            if x.kind == "number" and k and macro.body[k - 1].text == "#":
                body.pop()
                number = int(x.text[0])
                body += arguments[number - 1] if 0 < number <= len(arguments) else []
                if x.text[1:]:
                    body.append(Token("number", x.text[1:], token.at))
            else:
                body.append(replace(x, at=token.at))
        if body:
            body[0] = replace(body[0], glued=token.glued)
        out += _expanded(body, macros, depth + 1)
        if len(out) > LIMIT:
            raise OverflowError(f"the macro \\{token.text} expands to more than {LIMIT} tokens")
    return out


def argument_at(tokens: list[Token], i: int) -> tuple[list[Token], int]:
    """The argument that starts at token i, without its braces, and where what follows it starts."""
    if i >= len(tokens):
        return [], i
    if tokens[i].text != "{" or tokens[i].kind != "mark":
        return [tokens[i]], i + 1
    end = closing(tokens, i)
    return tokens[i + 1 : end], end + 1


def closing(tokens: list[Token], i: int) -> int:
    """The position of the brace that closes the one at i; the end, where none does."""
    depth = 0
    for k in range(i, len(tokens)):
        if tokens[k].kind == "mark":
            depth += {"{": 1, "}": -1}.get(tokens[k].text, 0)
            if depth == 0:
                return k
    return len(tokens)


def _plain(tokens: list[Token]) -> list[Token]:
    out: list[Token] = []
    i = 0
    dropped = False
    while i < len(tokens):
        x = tokens[i]
        i += 1
        if x.kind == "command" and (x.text in SPACES or x.text in DROPPED):
            for _ in range(DROPPED.get(x.text, 0)):
                _, i = argument_at(tokens, i)
            if x.text in ("left", "right", "middle") and i < len(tokens) and tokens[i].text == ".":
                i += 1
            dropped = True
            continue
        if x.kind == "mark" and x.text == "~":
            dropped = True
            continue
        out.append(replace(x, glued=False) if dropped else x)
        dropped = False
    return out


# --- the author's own commands --------------------------------------------------------------------------------------

_DEFINING = re.compile(
    r"\\(?:(?:re)?newcommand|providecommand|DeclareRobustCommand)\*?\s*\{?\s*\\(?P<new>[A-Za-z]+)\s*\}?\s*(?:\[(?P<count>\d)\])?"
    r"\s*(?:\[(?P<default>[^\]]*)\])?\s*(?=\{)"
    r"|\\[gex]?def\s*\\(?P<def>[A-Za-z]+)\s*(?P<parameters>(?:#\d)*)\s*(?=\{)"
    r"|\\DeclareMathOperator\*?\s*\{?\s*\\(?P<operator>[A-Za-z]+)\s*\}?\s*(?=\{)"
    r"|\\(?:New|Renew|Provide|Declare)(?:Expandable)?DocumentCommand\s*\{?\s*\\(?P<document>[A-Za-z]+)\s*\}?\s*"
    r"\{(?P<arguments>(?:[^{}]|\{[^{}]*\})*)\}\s*(?=\{)"
    r"|\\let\s*\\(?P<let>[A-Za-z]+)\s*=?\s*\\(?P<same>[A-Za-z]+)"
)


def macros_of(source: str) -> dict[str, Macro]:
    """What a document's \\newcommand, \\def, \\let and \\DeclareMathOperator define."""
    found: dict[str, Macro] = {}
    for m in _DEFINING.finditer(source):
        if m["let"]:
            found[m["let"]] = Macro(0, (Token("command", m["same"], m.start()),))
            continue
        name = m["new"] or m["def"] or m["operator"] or m["document"]
        rest = tokens_of(source[m.end() : m.end() + 4000], m.end())
        body, _ = argument_at(rest, 0)
        if m["operator"]:
            at = m.start()
            body = [Token("command", "operatorname", at), Token("mark", "{", at), *body, Token("mark", "}", at)]
        count = int(m["count"] or 0) if m["new"] else len(m["parameters"] or "") // 2
        default = tuple(tokens_of(m["default"])) if m["default"] is not None else None
        if m["document"]:
            count, default = _arguments(m["arguments"])
        if name in DROPPED or any(x.kind == "command" and x.text == name for x in body):
            continue  # such as \renewcommand{\vec}[1]{\vec{#1}}: left as it is
        found[name] = Macro(count, tuple(body), default)
    return found


def _arguments(said: str) -> tuple[int, tuple[Token, ...] | None]:
    r"""How many arguments \NewDocumentCommand says, as in {O{t} m}, and what the first is where it is left out."""
    kinds = re.findall(r"[OomdD](?:\{[^{}]*\})?", said)
    first = kinds[0] if kinds and kinds[0][0] in "Oo" else None
    return len(kinds), None if first is None else tuple(tokens_of(first[2:-1]))
