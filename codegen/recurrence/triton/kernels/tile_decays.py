"""Decays of a chunk on tiles: cumulative sums of their logarithms, loaded or made, and what lies between two steps."""

from __future__ import annotations

from ....ir.code import (
    Binary,
    Code,
    Either,
    Expanded,
    Group,
    Literal,
    Load,
    Name,
    both,
    call,
    plus,
    shape,
    times,
    where,
)
from ....ir.expr import (
    COL,
    ROW,
    Node,
    dim_of,
    leaf,
    make,
    walk,
)
from ....ir.kernel_ir import If, Statement, let
from ....ir.notation import plain
from ....printing.cannot_print import CannotPrint
from ..plan_passes.roles import STEPS
from ..print.axis_names import size_name
from .arguments import Role
from .tile_names import NAMED, Scope, TileNames
from .tile_values import Cumulative, Once, Value

DECAY_NAMES = {"decay_mask": "m", "decay_in": "since", "decay_out": "until", "decay_all": "kept"}


class TileDecays(TileNames):
    """Lowers decays between steps, from a chunk's start and to its end."""

    def __init__(self, scope: Scope) -> None:
        super().__init__(scope)
        self.decays, self.streams = scope.decays, scope.streams
        self.loads: dict[Cumulative | Once, str] = {}  # the names of what is loaded or made once
        # decays whose extent decides how a prologue kernel of the sweep splits them
        self.by_range: list[str] | None = None
        self.making: frozenset[str] = frozenset()  # decays whose sums the kernel makes

    def _mask(self, x: Node) -> Value:
        """Decays between the write of step j and the read of step i, where the read sees it."""
        if len(x.axes) != 2:
            raise CannotPrint(f"decays over {x.axes}")
        late, write_late, inclusive, direction = x.attrs
        (d,) = x.args
        if direction > 0:
            high, low = self._cumulative(d, late), self._cumulative(d, write_late)
        else:  # the write is the later one in time
            high, low = self._cumulative(d, not write_late), self._cumulative(d, not late)
        n = 0 if direction > 0 else 1
        between, rest = (Name(x).along(n, 2) - Name(y).along(1 - n, 2) for x, y in zip(high, low, strict=True))
        seen = self.assign("seen", self._seen(inclusive, direction), (ROW, COL))
        log2 = self.assign("log2", between, (ROW, COL))
        self.body.append(If(Name("EXACT"), (let(log2.name, log2.code + rest),)))
        return self.assign("m", call("power", log2.code, seen.code), (ROW, COL), note="decays from write to read")

    def _seen(self, inclusive: bool, direction: int) -> Code:
        sign = (">" if direction > 0 else "<") + ("=" if inclusive else "")
        return Binary(sign, Name("i").along(0, 2), Name("i").along(1, 2))

    def _edge(self, x: Node) -> Value:
        """Decays from the chunk's start to a read, from a write to the chunk's end, or of the whole chunk."""
        (d,) = x.args
        own = tuple(a for a in d.axes if a not in STEPS)
        wish = {"decay_in": "since", "decay_out": "until", "decay_all": "kept"}[x.op]
        if x.op == "decay_all":
            a, n = self._cumulative(d, True, end=True)
            return self.assign(wish, call("span", a, n, 0.0, 0), own)
        late, direction = x.attrs
        axes = self.ordered((ROW, *own))
        from_start = (x.op == "decay_in") == (direction > 0)
        inclusive = late if direction > 0 else not late
        a, n = self._cumulative(d, inclusive)
        if from_start:
            return self.assign(wish, call("span", a, n, 0.0, 0), axes)
        ends = self._cumulative(d, True, end=True)
        shown = [self.along(x, own[0], axes) for x in ends] if own else list(map(Name, ends))
        return self.assign(wish, call("span", *shown, a, n), axes)

    def kept(self, decay: Node) -> Value:
        """All decays of the chunk, of a state's decay as a step-level node."""
        (d,) = (d for d, x in self.decays.items() if x == decay)
        return self.value(make("decay_all", (d,), (), set(d.axes) - {ROW}))

    def _cumulative(
        self, d: Node, inclusive: bool, end: bool = False, over: tuple[str, ...] | None = None
    ) -> tuple[str, str]:
        """Cumulative log2 decay with this step (or before it; or at the chunk's end), and what its sums leave."""
        name = self._decay_name(d)
        own = tuple(a for a in d.axes if a not in STEPS)
        axes = self.ordered((ROW, *own)) if over is None else over
        edge = "end" if end else "with" if inclusive else "before"
        in_rows = axes != self.ordered(axes)
        suffix = {"end": "_end", "with": "", "before": "_before"}[edge] + ("_rows" if in_rows else "")
        names = []
        for rests, letter in ((False, "a"), (True, "n")):
            key = Cumulative(name, rests, edge, in_rows, own)
            if key not in self.loads:
                variable = self.loads[key] = self.fresh(f"{name}_{letter}{suffix}")
                loaded = self._loaded_sums(name, rests, edge, own, axes)
                made = not rests and name in self.making
                if made:
                    loaded = Either(self._made(d, key, inclusive, end), Name("SUMS"), loaded)
                in_body = own and not (end and self.by_range is None)
                (self.body if in_body else self.head).append(let(variable, loaded))
            names.append(self.loads[key])
        return names[0], names[1]

    def _decay_name(self, d: Node) -> str:
        name = self.name_of(self.decays[d])
        own = tuple(a for a in d.axes if a not in STEPS)
        self.argument(name, Role.SUMS, "chunked", self.decays[d], own)
        self.argument(name, Role.RESTS, "chunked", self.decays[d], own)
        return name

    def _loaded_sums(self, name: str, rests: bool, edge: str, own: tuple[str, ...], axes: tuple[str, ...]) -> Code:
        """What loads cumulative sums of a decay, or what these leave."""
        end = edge == "end"
        row: Code = {"end": Name("last"), "with": Name("row"), "before": call("tl.minimum", Name("i") - 1, "last")}[
            edge
        ]
        masks: list[tuple[Code, int]] = [(Name("i") > 0, 0)] if edge == "before" else []
        sums = Name(f"{name}_{'rests' if rests else 'sums'}")
        if own:
            axis, width = Name(self.index(own[0])), Name(size_name(dim_of(own[0])))
            masks.append((Name(f"{axis.id}_ok"), 1))
            rows: Code = row
            columns: Code = axis
            if not end:
                rows, columns = self.along(Group(row), ROW, axes), self.along(axis, own[0], axes)
            place = plus(times(rows, Group(Name("H") * width)), columns)
            base = times("step", width)
        else:
            place, base = row, Name("at")
        shown = [m if not own or end else self.along(Group(m), (ROW, *own)[n], axes) for m, n in masks]
        x: Code = Load(plus(sums, base, place), *((both(*shown), Literal(0)) if shown else ()))
        if own and not self.sweeps:
            at = [Group(row), axis, Name(f"{axis.id}_ok")]
            if not end:
                at = [Expanded(y, (n == 0, n > 0)) for n, y in enumerate((Group(row), axis))]
                at.append(Expanded(Name(f"{axis.id}_ok"), (False, True)))
            x = call("over_block", x, plus(sums, base), *at, "last", Name("H") * width, "C", "CHUNK")
        if own and not end and self.sweeps and not rests:
            x = where(shown[-1], x, 0.0)  # as `_apart` has it
        if rests:
            none = call("tl.full", shape(1), 0, "tl.int32") if own and end else Literal(0)
            return Either(x, Name("EXACT"), none)
        return x

    def _made(self, d: Node, key: Cumulative, inclusive: bool, end: bool) -> Code:
        """Sums of a decay for each channel, from its logarithms: with each step, before it, or of the whole chunk."""
        log2 = Once(key.decay, "log2")
        if end or not inclusive:
            sums, _ = self._cumulative(d, True)
            return call("last_of", sums, "C") if end else Name(sums) - self.loads[log2]
        variable = self.loads[log2] = self.fresh(f"{key.decay}_log2")
        self.body.append(let(variable, Either(self.log2(d, key.axes[0]), Name("SUMS"), Literal(0.0))))
        return call("sums_of", variable, "C")

    def log2(self, d: Node, axis: str) -> Code:
        """A decay for each channel, of each step, as log2."""
        base, index = self.name_of(self.decays[d]), self.index(axis)
        self.argument(base, Role.GIVEN, "step", self.decays[d], (axis,))
        rows, columns = times(Name("i").along(0, 2), f"{base}_t"), Name(index).along(1, 2)
        place = plus(f"{base}_p", times("t0", f"{base}_t"), rows, columns)
        mask = both(Name("i_ok").along(0, 2), Name(f"{index}_ok").along(1, 2))
        return call("log2_of", Load(place, mask, Literal(0.0)))

    def reached(self, end: str, name: str) -> list[Statement]:
        """How far sums that were made reach so far: a decay is at most one, and its sums are lowest at the chunk's `end`."""
        found: list[Statement] = []
        for which, bound in (("max", "most"), ("min", "least")):
            far = call(f"tl.{which}", end, axis=0)
            found.append(let(f"{name}_{bound}", call(f"tl.{which}imum", f"{name}_{bound}", far)))
        return found

    def note(self, x: Node) -> str:
        """A node as a comment, over the names that the kernel has for what is computed or loaded."""
        names: dict[Node, str] = {}
        for y in walk(x):
            if y.op in DECAY_NAMES:
                names[y] = DECAY_NAMES[y.op]
            elif y.op in ("order_mask", "apart_mask"):
                names[y] = _order_text(y)
            elif y.op == "leaf" and y.attrs[0] in NAMED:
                names[y] = self.name_of(leaf(*y.attrs[:2]))
            elif y.op == "leaf" and y.attrs[0] in ("inner", "product"):
                made = [v.code.text for d, v in self.memo.items() if d.op == "leaf" and d.attrs[:2] == y.attrs[:2]]
                names[y] = made[0] if made else "w"
            elif y.op == "leaf" and y.attrs[0] == "stream":
                known = [n for d, n in (*self.streams.items(), *self.decays.items()) if d.attrs[:2] == y.attrs[:2]]
                made_before = {
                    z: self.name_of(z) for x in known[:1] for z in walk(x) if z.op == "leaf" and z.attrs[0] in NAMED
                }
                names[y] = f"({plain(known[0], made_before, step=False, subscripts=False)})" if known else "x"
        return plain(x, names, step=False, subscripts=False)


def _order_text(x: Node) -> str:
    """Which pairs of steps, of a read i and a write j, a mask has."""
    least, direction = (int(not x.attrs[0]) if x.op == "order_mask" else x.attrs[0]), x.attrs[1]
    sign = ">" if direction > 0 else "<"
    if least < 2:
        return f"[i {sign}{'' if least else '='} j]"
    return f"[i >= j + {least}]" if direction > 0 else f"[i <= j - {least}]"
