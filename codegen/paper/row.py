"""Rows of a display: their tokens with every bracket closed, cut at what separates, and what is read of one."""

from __future__ import annotations

from dataclasses import dataclass, field

from chunkform.spec.language.formula import Formula

from .lexer import Token, argument_at, closing
from .words import ACCENTS, CLOSING, FONTS, GREEK, NAMING, OPENING, RELATIONS, SPELLED, SWITCHES

DEEPEST = 40  # brackets in brackets


UNKNOWN = Formula("unknown")


class Fault(Exception):
    """Why a row can't be read, and the token where."""

    def __init__(self, message: str, token: Token | None = None) -> None:
        self.message, self.token = message, token
        super().__init__(message)


@dataclass(frozen=True)
class Notation:
    """What the rest of a document says about its letters. `functions` are applied to what stands in brackets behind them,
    `sizes` are numbers such as n and d, `labels` are names whose subscript is a part of the name, `indices` may stand as numbers,
    `upper` have an index above, `pairs` tells how many indices a name takes."""

    functions: frozenset[str] = frozenset()
    sizes: frozenset[str] = frozenset()
    labels: frozenset[str] = frozenset()
    indices: frozenset[str] = frozenset()
    upper: frozenset[str] = frozenset()
    arity: tuple[tuple[str, int], ...] = ()
    maps: frozenset[str] = frozenset()  # letters that are always applied to something in brackets, as phi(x)
    above: frozenset[str] = frozenset()  # names whose step stands above
    names: frozenset[str] = frozenset()  # names of several letters that a font holds together
    gradients: frozenset[str] = frozenset()  # nabla and delta, where they stand for gradients of a loss without a name

    def takes(self, name: str) -> int | None:
        return dict(self.arity).get(name)


@dataclass
class Item:
    """Sides and the relations between them: a = b = c, or one side alone. `words` are what stands before."""

    sides: list[Formula]
    relations: list[str]
    words: str = ""


@dataclass
class Row:
    """What a row says: its items, separated by commas, and the author's slips in it. `goes_on`: it starts with a relation."""

    items: list[Item] = field(default_factory=list)
    goes_on: str = ""
    slips: list[tuple[str, Token]] = field(default_factory=list)
    words: str = ""
    left: list[Formula] = field(default_factory=list)
    bold: set[str] = field(default_factory=set)
    limits: dict[str, tuple[Formula, Formula]] = field(default_factory=dict)  # of the indices of sums, as they are read


def balanced(tokens: list[Token], slips: list[tuple[str, Token]]) -> list[Token]:
    """The tokens with every bracket closed: what doesn't match is left out, or closed before the next relation."""
    stack: list[int] = []
    drop: set[int] = set()
    closers: dict[int, list[Token]] = {}
    for i, x in enumerate(tokens):
        if x.kind not in ("mark", "command"):
            continue
        if x.text in OPENING:
            stack.append(i)
            if len(stack) > 3 * DEEPEST:
                raise Fault("it is nested too deeply", x)
        elif x.text in CLOSING:
            if stack and _closes(tokens, stack[-1], x):
                stack.pop()
                continue
            match = next((k for k in reversed(stack) if _closes(tokens, k, x)), None)
            # a brace is TeX's own: it closes whatever is open in it, and nothing closes it but another
            if match is None or any(tokens[k].text == "{" for k in stack if k > match):
                slips.append((f"{x.shown} closes nothing", x))
                drop.add(i)
                continue
            while stack[-1] != match:
                slips.append((f"{tokens[stack[-1]].shown} is never closed", tokens[stack[-1]]))
                drop.add(stack.pop())
            stack.pop()
    for k in reversed(stack):
        opener = tokens[k]
        slips.append((f"{opener.shown} is never closed", opener))
        depth, end = 0, len(tokens)
        for i in range(k + 1, len(tokens)):
            if i in drop:
                continue
            depth += (tokens[i].text in OPENING) - (tokens[i].text in CLOSING)
            if depth == 0 and opener.text != "{" and tokens[i].text in RELATIONS:
                end = i
                break
        closers.setdefault(end, []).append(Token(opener.kind, OPENING[opener.text], opener.at))
    out: list[Token] = []
    for i in range(len(tokens) + 1):
        out += closers.get(i, [])
        out += [x for x in tokens[i : i + 1] if i not in drop]
    return out


def _closes(tokens: list[Token], opener: int, x: Token) -> bool:
    text = tokens[opener].text
    if OPENING[text] == x.text:
        return True
    after_in = opener > 0 and tokens[opener - 1].text == "in"
    return after_in and text in "([" and x.text in ")]"  # an interval that is open on one side


# --- cutting tokens ---------------------------------------------------------------------------------------------------


def split(tokens: list[Token], mark: str) -> list[list[Token]]:
    """The tokens between marks that stand in no bracket."""
    found: list[list[Token]] = [[]]
    depth = 0
    for t in tokens:
        if t.kind in ("mark", "command"):
            depth += (
                (t.text in OPENING)
                - (t.text in CLOSING)
                + (t.kind == "command") * ((t.text == "begin") - (t.text == "end"))
            )
            if depth == 0 and t.text == mark:
                found.append([])
                continue
        found[-1].append(t)
    return found


def split_rows(tokens: list[Token]) -> list[list[Token]]:
    """The rows of an environment."""
    found: list[list[Token]] = [[]]
    depth = 0
    for t in tokens:
        if t.kind == "mark":
            depth += (t.text == "{") - (t.text == "}")
        elif t.kind == "command":
            depth += (t.text == "begin") - (t.text == "end")
        if t.kind == "row" and depth <= 0:
            found.append([])
        else:
            found[-1].append(t)
    return found


def lettered(tokens: list[Token]) -> list[str]:
    """The index letters, with their primes, that tokens are; none where they are anything else."""
    found: list[str] = []
    for t in tokens:
        if t.kind == "letter":
            found.append(t.text)
        elif t.text in ("'", "prime") and found:
            found[-1] += "'"
        elif t.text not in ("{", "}", "^"):
            return []
    return found


def depth_of(tokens: list[Token]) -> int:
    return sum((t.text in OPENING) - (t.text in CLOSING) for t in tokens if t.kind in ("mark", "command"))


def is_dots(tokens: list[Token]) -> bool:
    return (len(tokens) == 1 and tokens[0].text in ("dots", "ldots", "cdots")) or (
        bool(tokens) and tokens[0].text in ("dots", "ldots")
    )


def upright(content: list[Token]) -> bool:
    return any(t.kind == "command" and t.text in NAMING for t in content) or len(content) > 2


def spelled(tokens: list[Token]) -> str | None:
    """The name that tokens spell with their fonts and accents, or None where they are more than a name."""
    found, i = _spelled(tokens, 0, 0, 0)
    return found if i == len(tokens) and found else None


def _spelled(tokens: list[Token], i: int, held: int, depth: int) -> tuple[str, int]:
    name = ""
    while i < len(tokens) and depth < DEEPEST:
        t = tokens[i]
        if name and not held:
            break
        if t.kind == "letter" or (t.kind == "number" and held and t.text.isdigit()):
            name, i = name + t.text, i + 1
        elif (
            t.kind == "mark"
            and t.text in "_-"
            and held
            and name
            and i + 1 < len(tokens)
            and tokens[i + 1].kind == "letter"
            and tokens[i + 1].glued
            and held == 2
        ):
            name, i = name + "_", i + 1
        elif t.kind == "command" and t.text in GREEK:
            name, i = name + SPELLED.get(t.text, t.text), i + 1
        elif t.kind == "command" and t.text in ("log", "ln") and name == "d":
            name, i = "dlog_", i + 1
        elif t.kind == "mark" and t.text == "{":
            end = closing(tokens, i)
            inner, stop = _spelled(tokens[i + 1 : end], 0, held, depth + 1)
            if stop != end - i - 1 or not inner:
                return "", i
            name, i = name + inner, end + 1
        elif t.kind == "command" and (t.text in FONTS or t.text in ACCENTS):
            if t.text in SWITCHES and i + 1 < len(tokens) and tokens[i + 1].text != "{":
                content, i = tokens[i + 1 :], len(tokens)
            else:
                content, i = argument_at(tokens, i + 1)
            font = FONTS.get(t.text)
            inner, stop = _spelled(content, 0, held or (0 if font is None else 2 if t.text in NAMING else 1), depth + 1)
            if stop != len(content) or not inner:
                return "", i
            if t.text in ACCENTS:
                inner += ACCENTS[t.text]
            elif font in ("cal", "bb", "frak"):
                inner += font
            name += inner
        else:
            break
    return name, i
