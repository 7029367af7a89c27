r"""Algorithm environments: the assignments of a program are rows, each of its own. A variable that a loop carries from step to
step, as in S \gets \gamma S + k_t v_t^\top, is a sequence: S_t, of S_{t-1}."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from chunkform.spec.language.formula import Formula, add, formula, substitute, walk

LARGEST = 50_000  # characters of a program that is read
_PROGRAM = re.compile(r"\\begin\{(algorithm|algorithmic)(\*?)\}.*?\\end\{\1\2\}", re.S)
_MATH = re.compile(r"(?<![\\$])\$(?![$\s])([^$]{1,2000}?)(?<!\\)\$(?!\$)|(?<!\\)\\\((.{1,2000}?)\\\)", re.S)
_LOOP = re.compile(r"\\(?:For|FOR|ForAll|FORALL|ForEach)(?![A-Za-z])\s*(?=\{)")
_ASKED = re.compile(r"\\(?:u|e|l)?(?:If|IF|While|WHILE)(?![A-Za-z])\s*(?=\{)")
_SAID = re.compile(  # commands whose argument says what is looped over, asked or explained
    r"\\(?:For|FOR|ForAll|FORALL|ForEach|While|WHILE|If|IF|uIf|eIf|lIf|ElsIf|ELSIF|ElseIf|Comment|COMMENT|tcp|tcc|tcp\*|caption|label|KwIn|KwOut"
    r"|KwData|KwResult|KwInput|KwOutput|Until|UNTIL|Call|Procedure|Function)\*?(?![A-Za-z])(?:\[[^\]]*\])?\s*(?=\{)"
)
_LISTED = re.compile(r"\\(?:Require|REQUIRE|Ensure|ENSURE|Input|INPUT|Output|OUTPUT|Return|RETURN)(?![A-Za-z])[^\n]*")
_ASSIGNS = re.compile(r"\\(?:gets|leftarrow|coloneqq)(?![A-Za-z])|:=|=")
_BODY = re.compile(r"\s*\{")
_BLOCKS = re.compile(r"\\(End|END)?(?:For|FOR|If|IF|While|WHILE)(?:All|ALL|Each)?(?![A-Za-z])")
_DOWN = re.compile(r"\\?downto|down to|,\s*1\s*\$?\s*$|to\s*\$?\s*1\s*\$?\s*$", re.I)


@dataclass(frozen=True)
class Loop:
    """A loop over steps: its letter, whether it goes down, and where it stands."""

    letter: str
    down: bool
    start: int
    end: int


@dataclass(frozen=True)
class Assignment:
    """Where an assignment of a program stands, the innermost loop around it, and whether it stands under a condition."""

    start: int
    end: int
    loop: Loop | None
    asked: bool


def assignments(text: str) -> Iterator[Assignment]:
    """The assignments of all programs of a document, whose comments are blank."""
    last = -1
    for program in _PROGRAM.finditer(text):
        if program.start() < last or program.end() - program.start() > LARGEST:
            continue
        last, first, piece = program.end(), program.start(), program.group(0)
        loops = list(loops_in(piece))
        asked = [(x.start(), block_end(piece, x)) for x in _ASKED.finditer(piece)]
        for a, b in formulas_in(piece):
            if _ASSIGNS.search(piece[a:b]):
                around = [x for x in loops if x.start <= a < x.end]
                loop = max(around, key=lambda x: x.start, default=None)
                own = loop and replace(loop, start=first + loop.start, end=first + loop.end)
                yield Assignment(first + a, first + b, own, any(start <= a < stop for start, stop in asked))


def formulas_in(piece: str) -> Iterator[tuple[int, int]]:
    hidden = list(piece)
    for m in _SAID.finditer(piece):
        after = braced(piece, m.end())
        hidden[m.end() : after] = " " * (after - m.end())
    for m in _LISTED.finditer(piece):
        hidden[m.start() : m.end()] = " " * (m.end() - m.start())
    for m in _MATH.finditer("".join(hidden)):
        yield m.span(1 if m.group(1) is not None else 2)


def loops_in(piece: str) -> Iterator[Loop]:
    for m in _LOOP.finditer(piece):
        said = piece[m.end() + 1 : braced(piece, m.end()) - 1]
        letter = re.search(r"[A-Za-z]", re.sub(r"\\[A-Za-z]+", " ", said[said.find("$") + 1 :]))
        if letter is not None:
            yield Loop(letter.group(0), _DOWN.search(said) is not None, m.start(), block_end(piece, m))


def block_end(piece: str, opens: re.Match[str]) -> int:
    r"""Where the block of a loop or a condition ends: behind the braces after what it says, or at its \EndFor."""
    body = _BODY.match(piece, braced(piece, opens.end()))
    return braced(piece, body.end() - 1) if body is not None else block_ends(piece).get(opens.start(), len(piece))


def braced(piece: str, at: int) -> int:
    """Where what follows the brace at an offset, and the one that closes it, starts; the brace itself where none does."""
    return closings(piece).get(at, at)


@lru_cache(maxsize=8)
def block_ends(piece: str) -> dict[int, int]:
    r"""Where the \EndFor, \EndIf or \EndWhile of each block stands."""
    found: dict[int, int] = {}
    open_ones: list[int] = []
    for m in _BLOCKS.finditer(piece):
        if m.group(1) is None:
            open_ones.append(m.start())
        elif open_ones:
            found[open_ones.pop()] = m.start()
    return found


@lru_cache(maxsize=8)
def closings(piece: str) -> dict[int, int]:
    """Where what follows each brace, and the one that closes it, starts."""
    found: dict[int, int] = {}
    open_ones: list[int] = []
    for m in re.finditer(r"\\.|[{}]", piece, re.S):
        if m.group(0) == "{":
            open_ones.append(m.start())
        elif m.group(0) == "}" and open_ones:
            found[open_ones.pop()] = m.end()
    return found


# --- what the variables of a program are ----------------------------------------------------------------------------


def carried(rows: Sequence[tuple[Loop | None, Formula, Formula]]) -> tuple[list[tuple[Formula, Formula]], list[str]]:
    """The assignments (loop, variable, value) of a document's programs as equations, and why each is none, if it is none."""
    made = [(head, side) for _, head, side in rows]
    written = Counter(head for _, head, _ in rows if head.op == "at")
    for name in dict.fromkeys(h.attrs[0] for _, h, _ in rows if h.op == "at" and not h.args):
        bare = Formula("at", (), (name,))
        inside = [k for k, (loop, head, _) in enumerate(rows) if head == bare and loop is not None]
        loop = rows[inside[0]][0] if len(inside) == 1 else None
        if loop is None or not reads_before(rows, inside[0], bare):
            continue
        t = Formula("index", (), (loop.letter,))
        before = Formula("at", (add(t, formula(1 if loop.down else -1)),), (name,))
        now = Formula("at", (t,), (name,))
        for k, (own, head, side) in enumerate(rows):
            if own == loop:
                made[k] = (
                    substitute(made[k][0], {bare: now}),
                    substitute(made[k][1], {bare: before if k <= inside[0] else now}),
                )
            elif own is None and head == bare and k < inside[0]:
                first = add(Formula("size", (), ("n",)), formula(1)) if loop.down else formula(0)
                made[k] = Formula("at", (first,), (name,)), side
        written[bare] = 0
    several = {x for x, n in written.items() if n > 1} | {h for h, side in made if h.op == "at" and h in walk(side)}
    reasons = []
    for head, side in made:
        used = [x for x in several if x == head or x in walk(side)]
        reasons.append(f"{used[0]} is a variable of a program, which takes several values" if used else "")
    return made, reasons


def reads_before(rows: Sequence[tuple[Loop | None, Formula, Formula]], at: int, bare: Formula) -> bool:
    """Whether a loop reads a variable before it writes it."""
    return any(bare in walk(side) for loop, _, side in rows[: at + 1] if loop == rows[at][0])
