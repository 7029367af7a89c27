"""Symbols of the form over chunks: letters that are free, and products of decays, each defined once."""

from __future__ import annotations

from dataclasses import dataclass, field

from ...ir.expr import COL, ROW, Node, leaf
from ...ir.notation import Notation
from ..chunkwise.compiled import Compiled
from ..chunkwise.coupled_states import entries
from ..chunkwise.plan import Sweep
from .form_notation import Reader
from .formulas import Formula, formula
from .lets import form_names

CANDIDATES = {  # symbols for products of decays, in the order of preference
    "prefix": ("a", "g", "f", "m", "x", "l", "c", "z"),
    "suffix": ("b", "r", "h", "n", "j", "w"),
    "mask": ("M", "N", "L", "B", "D"),
    "step": ("A", "E", "H", "U"),
    "sum": ("P", "R", "G"),
    "read": ("Y", "Z", "X", "G", "H"),
    "solve": ("T", "F", "J"),
    "inner": ("G", "H", "U", "Q"),
}


@dataclass
class Symbols:
    """Symbols in use, shared by all sweeps: what each stands for, and its definition."""

    taken: set[str]
    stems: dict[str, str] = field(default_factory=dict)
    decays: dict[tuple, tuple[str, Formula]] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)
    sums: dict[Node, str] = field(default_factory=dict)
    printed: set[tuple[Node, Node]] = field(default_factory=set)
    sides: dict[tuple[str, str], tuple[Node, Node]] = field(
        default_factory=dict
    )  # of what sweeps make, by kind and name

    def stem(self, kind: str) -> str:
        if kind not in self.stems:
            self.stems[kind] = self.fresh(kind)
        return self.stems[kind]

    def fresh(self, kind: str) -> str:
        """A letter that nothing else is called by."""
        found = next((s for s in CANDIDATES[kind] if not {s, s.lower(), s.upper()} & self.taken), None)
        if found is None:
            case = str.upper if CANDIDATES[kind][0].isupper() else str.lower
            letters = [case(x) for x in "zyxwvutsrqponmlkjhgfedba"]  # i is a step, C their number
            found = next((x for x in letters if x not in self.taken), f"{CANDIDATES[kind][0]}x{len(self.taken)}")
        self.taken.add(found)
        return found

    def is_numbered(self, name: str) -> bool:
        return "read" in self.stems and name.startswith(self.stems["read"]) and name[-1].isdigit()

    def numbered(self, kind: str) -> str:
        self.numbers[kind] = self.numbers.get(kind, 0) + 1
        return f"{self.stem(kind)}{self.numbers[kind]}"


class DecaySymbols:
    """The symbols of one sweep's products of decays, and of the matrices by which states are added to each other."""

    def __init__(self, c: Compiled, sweep: Sweep, reader: Reader, symbols: Symbols) -> None:
        self.c, self.sweep, self.reader, self.symbols = c, sweep, reader, symbols
        self.streams = {x.attrs[:2]: x for x in sweep.chunk.streams}
        self.names = form_names(c)

    def symbol(self, x: Node) -> Node:
        """The symbol of a product of decays. A sweep backwards in time is written with the forward products."""
        own = self.streams.get(x.args[0].attrs[:2]) if x.args else None
        decay = self.sweep.chunk.streams[own] if own is not None else None
        axes = decay.axes if decay is not None else ()
        forward = self.sweep.direction > 0
        about: tuple
        order: tuple[str, ...]
        match x.op:
            case "decay_mask" | "order_mask":
                late, write_late, inclusive, _ = x.attrs if x.op == "decay_mask" else (True, True, *x.attrs)
                if not forward:
                    late, write_late = not write_late, not late
                if decay is None:
                    late = write_late = True
                kind, about = "mask", (late, write_late, inclusive)
                order = (ROW, COL) if forward else (COL, ROW)
            case "decay_in" | "decay_out":
                late = x.attrs[0] if forward else not x.attrs[0]
                kind = "prefix" if (x.op == "decay_in") == forward else "suffix"
                about, order = (late,), (ROW,)
            case _:
                kind, about, order = "all", (), ()
        return leaf("chunk", self.defined(kind, about, decay), (*order, *axes))

    def transition_symbol(self, x: Node) -> Node:
        """The symbol of an entry of a product of the matrices by which states are added to each other."""
        to, of = (self.sweep.states[n] for n in x.attrs[2:4])
        late = x.op in ("transition_mask", "transition_in") and x.attrs[4]
        kind = {"transition_mask": "mask", "transition_out": "suffix"}.get(x.op, "prefix")
        end = "C," if self.sweep.direction > 0 else "1,"
        step = self.step_matrix()
        letter = self.transition_letter(kind, late or x.op == "transition_all", step)
        order = {"transition_mask": (ROW, COL), "transition_all": ()}.get(x.op, (ROW,))
        return leaf("chunk", f"{letter}_{end if x.op == 'transition_all' else ''}{to},{of}", order)

    def step_matrix(self) -> str:
        """The symbol of the matrix of a step, such as (V, S) -> (mu V, mu V + lam S)."""
        states, table = self.sweep.states, self.symbols.decays
        if ("step", states) not in table:
            name = self.symbols.fresh("step")
            table["step", states] = (name, formula(self.c, lambda n: self.step_matrix_text(n, name), self.names))
        return table["step", states][0]

    def step_matrix_text(self, n: Notation, name: str) -> str:
        found = entries(self.sweep.group)
        size = range(len(self.sweep.group))
        shown = [[n.text(self.reader.spelled(found[i, j])) if (i, j) in found else "0" for j in size] for i in size]
        rows = f";{n.space}".join(f",{n.space}".join(row) for row in shown)
        states = ", ".join(n.text(leaf("chunk", s.name, s.axes)) for s in self.sweep.group)
        where = rf"\quad (\mathrm{{of}}\ {states})" if n.tex else f"   (of {states})"
        return f"{n.symbol(name, 'let', 2)} = [{rows}]{where}"

    def transition_letter(self, kind: str, late: bool, step: str) -> str:
        """The symbol of the products of step matrices over a part of the chunk, by kind."""
        key, table = (kind, late, step), self.symbols.decays
        if key not in table:
            letter = self.symbols.fresh(kind)
            table[key] = (letter, formula(self.c, lambda n: self.transition_text(n, letter, kind, late, step)))
        return table[key][0]

    def transition_text(self, n: Notation, letter: str, kind: str, late: bool, step: str) -> str:
        """`M_{ij,XY} = (A_{i-1} ... A_{j+1})_{XY}`: the last step of the sweep stands leftmost."""
        forward = self.sweep.direction > 0
        before, after, start, end = ("-1", "+1", "1", "C") if forward else ("+1", "-1", "C", "1")
        newest = "i" if late else f"i{before}"
        index, first, last = {
            "mask": ("ij", newest, f"j{after}"),
            "prefix": ("i", newest, start),
            "suffix": ("j", end, f"j{after}"),
        }[kind]
        dots = r"\cdots" if n.tex else "..."
        a = n.symbol(step, "chunk", 2)
        text = f"{n.symbol(letter, 'chunk', 0)}_{{{index},XY}} = ({a}_{{{first}}} {dots} {a}_{{{last}}})_{{XY}}"
        if kind != "mask":
            return text
        relation = ("<" if forward else ">") + ("=" if late else " ")
        where = f"j {relation.strip()} i"
        if n.tex:
            where = where.replace("<=", r"\le").replace(">=", r"\ge")
            return text + r"\quad (" + where + r",\ \mathrm{else}\ 0)"
        return f"{text}  for {where}, else 0"

    def defined(self, kind: str, about: tuple, decay: Node | None) -> str:
        key = (kind, about, decay)
        if key not in self.symbols.decays:
            if kind == "all":
                inclusive = ("prefix", (True,), decay)
                first = self.symbols.decays[inclusive][0] if inclusive in self.symbols.decays else None
                name = f"{first or self.defined('prefix', (True,), decay)}_C"
            else:
                name = self.symbols.fresh(kind)
                name = name.upper() if decay is not None and decay.axes and kind != "mask" else name
            definition = formula(self.c, lambda n: self.definition(n, name, kind, about, decay), self.names)
            self.symbols.decays[key] = (name, definition)
        return self.symbols.decays[key][0]

    def definition(self, n: Notation, name: str, kind: str, about: tuple, decay: Node | None) -> str:
        at = Notation(n.tex, n.names, order=n.order, letter="s")
        le, product = (r"\le ", r"\prod") if n.tex else ("<= ", "prod")
        shown = "" if decay is None else at.bracket(at.piece(self.reader.spelled(decay)), 2)
        symbol = n.symbol(name, "chunk", 0 if kind == "mask" or decay is None or not decay.axes else 1)
        if kind == "mask":
            late, write_late, inclusive = about
            where = f"j {le if inclusive else '< '}i"
            value = "1"
            if decay is not None:
                value = f"{product}_{{j {'< ' if write_late else le}s {le if late else '< '}i}} {shown}"
            otherwise = r"\quad (" + where + r",\ \mathrm{else}\ 0)" if n.tex else f"  for {where}, else 0"
            return f"{symbol}_{{ij}} = {value}{otherwise}"
        if kind == "all":
            return f"{symbol} = {product}_s {shown}"
        (late,) = about
        if kind == "prefix":
            return f"{symbol}_i = {product}_{{s {le if late else '< '}i}} {shown}"
        greater = (r"\ge " if n.tex else ">= ") if not late else "> "
        return f"{symbol}_j = {product}_{{s {greater}j}} {shown}"
