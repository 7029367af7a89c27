r"""What the text between displays says of symbols, as in "with $G_t = \partial L / \partial S_t$" or "let $D_{ts} = .. $ for
$s \le t$ and $0$ otherwise". It is taken where no display says what a symbol is."""

from __future__ import annotations

import re
from collections.abc import Iterator

from chunkform.spec.language.formula import walk

from .definitions import defines
from .document import PREMISES, Equation, ReadRow, sorted_out
from .lexer import Token, tokens_of
from .parser import read_row
from .reader import Source, SourceRow
from .row import Fault, Notation, depth_of
from .steps import core
from .words import RELATIONS

UNDER = re.compile(r"[\s,]*(?:if|for|when|whenever|where)(?:\s+(?:all|any|every|each))?\s*", re.I)
ZERO = re.compile(r"[\s,;]*(?:and|or|,)?\s*(?:it is\s*|zero\s*|0\s*)?", re.I)
ORDERS = ("<", "<=", ">", ">=", "in")
ELSE = re.compile(r"[\s,]*(?:otherwise|else)\b", re.I)


def said_in_text(source: Source, notation: Notation) -> dict[str, Equation]:
    """What the text says of each symbol of which it says one thing alone."""
    found: dict[str, Equation] = {}
    twice = set()
    for k in range(len(source.inline)):
        if is_premised(source, k):
            continue
        for e in equations_at(source, notation, k):
            name = core(e.head).attrs[0]
            known = found.setdefault(name, e)
            if (known.head, known.side, known.row.conditions) != (e.head, e.side, e.row.conditions):
                twice.add(name)
    return {name: e for name, e in found.items() if name not in twice}


def part_of_the_step(said: dict[str, Equation], equations: list[Equation]) -> list[ReadRow]:
    """Rows of the text without which the step isn't whole: `where $u_t = v_t - S_{t-1}^\\top k_t$`, behind an update that reads
    u_t. Taken for an input, u would have no gradient by S, and true rows would fail."""
    heads = {core(e.head).attrs[0]: e for e in reversed(equations) if defines(e)}
    updates = {name: e for name, e in heads.items() if name in names_in(e)}
    read = {name for e in updates.values() for name in names_in(e)}
    return [
        e.row for name, e in said.items() if name in read and name not in heads and not names_in(e).isdisjoint(updates)
    ]


def names_in(e: Equation) -> set[str]:
    """The symbols of which an equation's right side speaks."""
    return {y.attrs[0] for y in walk(e.side) if y.op == "at"}


def is_premised(source: Source, k: int) -> bool:
    """Whether what stands before a formula says that it is a case, and no definition: `if $q_t = k_t$`."""
    words = re.findall(r"[A-Za-z]+", source.visible[max(0, source.spans[k][0] - 40) : source.spans[k][0]])
    return bool(words) and words[-1].lower() in PREMISES


def equations_at(source: Source, notation: Notation, k: int) -> Iterator[Equation]:
    """The equations of a formula in the text that may say what a symbol is."""
    tokens = with_its_condition(source, k)
    if not any(RELATIONS.get(t.text) in ("=", ":=") for t in tokens):
        return
    try:
        row = read_row(tokens, notation)
    except Fault:
        return
    line, column = source.place(source.spans[k][0])
    text = source.text[slice(*source.spans[k])]
    made = ReadRow(SourceRow(tokens, text, line, column, source.spans[k][1], -1, ""), row)
    sorted_out(made, None, [])
    yield from (e for e in made.equations if defines(e) and e.side.op != "number")


def with_its_condition(source: Source, k: int) -> list[Token]:
    """A formula with what the sentence goes on to say of its indices."""
    tokens, start = source.inline[k], source.spans[k][0]
    if k + 1 == len(source.inline) or not UNDER.fullmatch(between(source, k)):
        return tokens
    condition = source.inline[k + 1]
    orders = ORDERS[:4] if "where" in between(source, k).lower() else ORDERS
    if not any(RELATIONS.get(t.text) in orders for t in condition):
        return tokens
    at = next((i for i, t in enumerate(tokens) if t.text == "=" and depth_of(tokens[:i]) == 0), 0)
    if at and is_zero_else(source, k + 1):
        made = tokens_of(r"\begin{cases} & \\ 0 & \text{otherwise} \end{cases}", start)
        first, second = [i for i, t in enumerate(made) if t.text == "&" or t.kind == "row"][:2]
        return [*tokens[: at + 1], *made[:first], *tokens[at + 1 :], *made[first:second], *condition, *made[second:]]
    return [*tokens, *tokens_of(r"\text{ for }", start), *condition]


def is_zero_else(source: Source, k: int) -> bool:
    """Whether the text behind a condition says that the formula is 0 elsewhere."""
    after = between(source, k)
    zero = ZERO.match(after)
    if zero is not None and ELSE.match(after, zero.end()):
        return bool(re.search(r"\b(?:zero|0)\b", zero[0]))
    if k + 1 == len(source.inline) or not ZERO.fullmatch(after) or [t.text for t in source.inline[k + 1]] != ["0"]:
        return False
    return bool(ELSE.match(between(source, k + 1)))


def between(source: Source, k: int) -> str:
    """The text between a formula and the next one, without their dollars."""
    end = source.spans[k + 1][0] if k + 1 < len(source.spans) else source.spans[k][1] + 200
    return re.sub(r"^(\$|\\\))|(\$|\\\()$", "", source.visible[source.spans[k][1] : end])
