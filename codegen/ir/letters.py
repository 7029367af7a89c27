"""The letters in which a spec's names are printed: an alphabet of their own, so that none can meet a name of the compiler's.

What prints code sees a step program whose names are written in letters that nothing else here is written in; `spelling.py`, last,
writes these names as the spec does wherever that can't be mistaken. Names keep their lengths and their order, and nodes sort by
their plain names (`ir.make`), so that the text is what it would have been.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property

from .expr import LETTERS as FIRST
from .expr import Node, dim_of, make, plain_name, walk
from .step_program import StateVar, StepProgram, Var

LARGE = FIRST + 128  # the letters of a dim's size, which is called by the dim's capital
RUN = re.compile(f"[{chr(FIRST)}-{chr(LARGE + 127)}]+")


def lettered(name: str, first: int = FIRST) -> str:
    """An ASCII name in the other alphabet."""
    return "".join(chr(first + ord(x)) if x.isalnum() or x == "_" else x for x in name)


def is_lettered(name: str) -> bool:
    return not name.isascii() and RUN.search(name) is not None


def capital(name: str) -> str:
    """The name in capitals: in letters of their own, where it is in the other alphabet."""
    return lettered(plain_name(name).upper(), LARGE) if is_lettered(name) else name.upper()


@dataclass(frozen=True)
class Alphabet:
    """Names of a spec in the other alphabet, and back: `names` has the spec's own name by the lettered one."""

    names: dict[str, str]

    @staticmethod
    def of(names: Iterable[str]) -> Alphabet:
        found: dict[str, str] = {}
        names = list(dict.fromkeys(names))
        for name in sorted(names, key=lambda n: not n.isascii()):  # these keep theirs
            stem = base = ascii_name(name)
            n = 2
            while lettered(stem) in found or (stem != name and stem in names):
                stem, n = f"{base}_{n}", n + 1
            found[lettered(stem)] = name
        return Alphabet(found)

    @cached_property
    def letters(self) -> dict[str, str]:
        """The lettered name by the spec's own."""
        return {own: letters for letters, own in self.names.items()}

    def unknown(self, text: str) -> str | None:
        """A lettered word that is none of these names, nor one in capitals: two of them would have met in it."""
        capitals = {lettered(plain_name(n).upper(), LARGE) for n in self.names}
        return next((x for x in set(RUN.findall(text)) if x not in self.names and x not in capitals), None)

    def read(self, text: str) -> str:
        """A text with the spec's own names."""
        if text.isascii():
            return text
        return RUN.sub(lambda m: self.names.get(m[0], plain_name(m[0])), text)


def ascii_name(name: str) -> str:
    """A name in ASCII letters: alpha for a Greek one, the number of any other."""
    return "".join(x if x.isascii() else _ascii_letter(x) for x in name)


def _ascii_letter(x: str) -> str:
    found = re.fullmatch(r"GREEK (SMALL|CAPITAL) LETTER (FINAL )?(\w+)( SYMBOL)?", unicodedata.name(x, ""))
    if found is None:
        return f"u{ord(x):x}"
    word = {"LAMDA": "lambda"}.get(found[3], found[3].lower())
    return word.capitalize() if found[1] == "CAPITAL" else word


def step_names(p: StepProgram) -> list[str]:
    """All names of a program."""
    given = (*(v.name for v in p.variables), *(s.name for s in p.states))
    return [p.name, *p.dims, *given, *p.outputs, *p.names.values()]


def lettered_step(p: StepProgram, alphabet: Alphabet) -> StepProgram:
    """The program with all names in the other alphabet."""
    write = alphabet.letters
    node, axes = relettered(write), axes_of(write)
    return replace(
        p,
        name=write[p.name],
        dims=tuple(write[d] for d in p.dims),
        variables=tuple(Var(write[v.name], v.kind, axes(v.axes), v.default, v.domain) for v in p.variables),
        states=tuple(
            StateVar(write[s.name], axes(s.axes), None if s.initial is None else node(s.initial), s.domain, s.turns)
            for s in p.states
        ),
        updates={write[n]: node(x) for n, x in p.updates.items()},
        outputs={write[n]: node(x) for n, x in p.outputs.items()},
        names={node(x): write[n] for x, n in p.names.items()},
        origins={},
        output_axes={write[n]: axes(x) for n, x in p.output_axes.items()},
        handed=frozenset(write[n] for n in p.handed),
    )


def axes_of(write: dict[str, str]) -> Callable[[tuple[str, ...]], tuple[str, ...]]:
    """Axes whose dims are written so."""

    def rename(axis: str) -> str:
        dim = dim_of(axis)
        return write.get(dim, dim) + axis[len(dim) :]

    return lambda axes: tuple(map(rename, axes))


def relettered(write: dict[str, str], name_of: Callable[[str, str], str] | None = None) -> Callable[[Node], Node]:
    """Nodes whose names and dims are written so; arguments stay in their order. `name_of`: leaves' names by kind."""
    done: dict[Node, Node] = {}
    axes = axes_of(write)

    def node(root: Node) -> Node:
        for x in walk(root):
            if x not in done:
                attrs = x.attrs
                match x.op:
                    case "leaf":
                        kind, name, order = attrs
                        attrs = (kind, name_of(kind, name) if name_of else write.get(name, name), axes(order))
                    case "size" | "eye" | "sum" | "peak" | "expand":
                        attrs = axes(attrs)
                    case "half_turn" | "frequencies":
                        attrs = (axes(attrs[0]), *attrs[1:])
                done[x] = make(x.op, tuple(done[a] for a in x.args), attrs, axes(x.axes))
        return done[root]

    return node
