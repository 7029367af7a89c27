"""Chunk-level nodes as Triton statements on tiles: the one place where the kernels' mathematics is printed.

A value is a tensor of at most two axes, in the order steps, full axis, tile axis; in a sweep the tile axis comes first, so that
what one product leaves in registers is the left operand of the next one, and goes through no shared memory. A contraction of two
values that leave one axis each is a product on tensor cores; every other one is a sum. Elementwise work is in float32.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from dataclasses import replace as replaced

import sympy

from ....ir.expr import (
    COL,
    ROW,
    Node,
    const,
    dim_of,
    factors_of,
    leaf,
    make,
    mul,
    plain_name,
    rebuild,
    rename,
    split_constant,
    terms_of,
    walk,
)
from ....ir.functions import TABLE
from ....ir.notation import plain
from ..plan_passes.roles import PER_HEAD, PER_STEP, STEPS, WEIGHT, CannotPrint, at_row, is_state
from ..print.axis_names import axis_name, block_name, size_name
from .arguments import Argument, Role

# What is zero beyond its axes' ends, as it is loaded or made; a product is one of vectors of both steps.
VANISHING = (
    "input",
    "cotangent",
    "read",
    "write",
    "stored",
    "scaled",
    "stream",
    "ahead",
    "product",
    "state in",
    "parameter",
)


DECAY_NAMES = {"decay_mask": "m", "decay_in": "since", "decay_out": "until", "decay_all": "kept"}
NAMED = ("read", "write", "stored", "scaled", "intra", "matrix", "ahead")


@dataclass(frozen=True)
class Fine:
    """An op that stands between others, which its roundings go through. What is float32 between kernels enters products on tensor
    cores in two parts, the second of which is what rounding left of the first; so do states, and what is added to them.

    `given` are inputs in float32, `gradients` the variables whose gradients are handed on so. `states`: those of all sweeps
    backwards are taken in two parts, not only of those that sum for decays.
    """

    given: frozenset[str] = frozenset()
    gradients: frozenset[str] = frozenset()
    states: bool = False


@dataclass
class Elements:
    """The elements of a tile that a sweep loads, by a variable of their own; `taken` where anything but a product uses them.
    `argument`: what it loads, where these elements may be a product's."""

    variable: str
    statement: str
    argument: str | None
    taken: bool = False


@dataclass(frozen=True)
class Value:
    """`text` has the axes in this order; `raw` says that its dtype is that of a tensor in memory, not float32, in which it is
    `wide`."""

    text: str
    axes: tuple[str, ...]
    raw: bool = False
    wide: str = ""
    elements: Elements | None = None

    def over(self, axes: tuple[str, ...]) -> str:
        """The text in float32, to be broadcast over `axes`."""
        text = self.text
        if self.elements is not None:
            self.elements.taken = True
            text = self.elements.variable
        turned = len(self.axes) == 2 == len(axes) and self.axes == axes[::-1]
        if self.raw:
            if turned and not self.wide:
                return f"tl.trans({text}).to(tl.float32)"
            text = self.wide or f"{text}.to(tl.float32)"
        if self.axes == axes or not self.axes:
            return text
        if len(axes) == 1:
            raise CannotPrint(f"{self.text} over {axes}")
        if self.axes != tuple(a for a in axes if a in self.axes):
            text = f"tl.trans({text})"
            if len(axes) == 2:
                return text
        return f"{text}[{', '.join(':' if a in self.axes else 'None' for a in axes)}]"


def _over_steps(x: Node) -> bool:
    """Is x made of sums over the steps of a chunk with a decay for each channel? These take the most registers while they are
    made, so that they come before what waits for them."""
    return any(y.op == "leaf" and y.attrs[0] == "intra" for y in walk(x))


class Tiles:
    """Prints nodes as statements into `lines`, once each, and collects the kernel's arguments."""

    surely = "count > 0"  # holds where a chunk is taken
    by_head = True  # are numbers of each step that the op is given laid out by heads, in float32?

    def __init__(
        self,
        full: tuple[str, ...],
        tile: tuple[str, ...],
        direction: int,
        decays: dict[Node, Node],
        streams: dict[Node, Node],
        definitions: dict[Node, Node],
        name_of: Callable[[Node], str],
        sweeps: bool = False,
    ) -> None:
        self.full, self.tile, self.forward, self.sweeps = full, tile, direction > 0, sweeps
        self.decays, self.streams, self.definitions, self.name_of = decays, streams, definitions, name_of
        self.lines: list[str] = []
        self.head: list[str] = []  # loads at the start of a chunk, so that nothing waits for them
        self.memo: dict[Node, Value] = {}
        self.loads: dict[tuple[str, ...], str] = {}
        self.checkpoints: dict[str, str] = {}  # what loads states where they are used first
        self.parts: dict[str, tuple[str, str]] = {}  # of operands in two parts
        self.arguments: dict[str, Argument] = {}
        self.precise = (
            False  # are states two operands of products on tensor cores, of which one holds what rounding leaves?
        )
        self.parted = False  # is what precise states get two operands as well, with nothing rounded in what sums read?
        self.wide: frozenset[str] = frozenset()  # matrices that are float32 in memory
        self.fine: Fine | None = None
        self.by_range: list[str] | None = (
            None  # decays whose extent decides how a prologue kernel of the sweep splits them
        )
        # sums over the writes of a chunk without those that no decay lies before, where a kernel needs both
        self.apart: dict[Node, Value] | None = None
        self.split = False  # are rows that are of a large decay range stored by a kernel of their own?
        self.making: frozenset[str] = frozenset()  # decays whose sums the kernel makes
        self.intra: dict[
            str, Node
        ] = {}  # sums over the writes of a chunk, each with its decay, made here and not loaded
        self.loaded: list[tuple[str, str]] = []  # tiles: the argument, and the axis beside steps
        self.elements: list[Elements] = []  # of these tiles
        self.products = False  # may these be products with the identity?
        self.matrices: dict[str, Node] = {}  # over the steps of a chunk, made here and not loaded
        self.names: set[str] = {  # in plain letters
            "i",
            "c",
            "h",
            "b",
            "bh",
            "sh",
            "t0",
            "at",
            "row",
            "step",
            "first",
            "last",
            "tl",
            "T",
            "H",
            "C",
            "DT",
        }
        self.names |= {plain_name(axis_name(a)) for a in (*full, *tile)}

    @property
    def chunk(self) -> str:
        """The steps of a chunk; a kernel that doesn't sweep may take several at once."""
        return "C" if self.sweeps else "CHUNK"

    # --- names and axes ---------------------------------------------------------------------------------------------

    def rank(self, axis: str) -> tuple[int, str]:
        if axis in STEPS:
            return STEPS.index(axis), ""
        return (3 if axis in self.full else -1 if self.sweeps else 4), axis

    def ordered(self, axes: set[str] | tuple[str, ...]) -> tuple[str, ...]:
        return tuple(sorted(axes, key=self.rank))

    def index(self, axis: str) -> str:
        return "i" if axis in STEPS else axis_name(axis)

    def along(self, text: str, axis: str, axes: tuple[str, ...]) -> str:
        """A vector over an axis, to be broadcast over two."""
        return text if len(axes) < 2 else f"{text}[:, None]" if axes[0] == axis else f"{text}[None, :]"

    def inside(self, axes: tuple[str, ...]) -> str:
        """Where a tile has an entry."""
        return " & ".join(self.along(self.ok(a), a, axes) for a in axes)

    def stored(self, axes: tuple[str, ...]) -> str:
        """Where a tile has an entry that this kernel stores."""
        return " & ".join(self.along(self.stored_rows if a in STEPS else self.ok(a), a, axes) for a in axes)

    @property
    def stored_rows(self) -> str:
        return "i_new" if self.split else "i_ok"

    def fresh(self, wish: str) -> str:
        stem = plain_name(wish)
        name, n = stem, 1
        while name in self.names:
            n += 1
            name = f"{stem}{n}"
        self.names.add(name)
        return wish if n == 1 else f"{wish}{n}"

    def assign(self, wish: str, text: str, axes: tuple[str, ...], raw: bool = False, note: str = "") -> Value:
        name = self.fresh(wish)
        self.lines.append(f"{name} = {text}" + (f"  # {note}" if note else ""))
        return Value(name, axes, raw)

    def argument(
        self,
        base: str,
        role: Role,
        layout: str,
        source: Node | None = None,
        axes: tuple[str, ...] = (),
        stores: bool = False,
    ) -> str:
        """The name of an argument that is loaded, or that the kernel `stores` to."""
        new = Argument(base, role, layout, source, axes, loaded=False)
        name = new.name
        self.names.add(plain_name(name))
        known = self.arguments.get(name, new)
        assert known.layout == layout, name
        self.arguments[name] = replaced(known, loaded=known.loaded or not stores, stored=known.stored or stores)
        return name

    def note(self, x: Node) -> str:
        """A node as a comment, over the names that the kernel has for what is computed or loaded."""
        names: dict[Node, str] = {}
        for y in walk(x):
            if y.op in DECAY_NAMES:
                names[y] = DECAY_NAMES[y.op]
            elif y.op == "leaf" and y.attrs[0] in NAMED:
                names[y] = self.name_of(leaf(*y.attrs[:2]))
            elif y.op == "leaf" and y.attrs[0] in ("inner", "product"):
                made = [v.text for d, v in self.memo.items() if d.op == "leaf" and d.attrs[:2] == y.attrs[:2]]
                names[y] = made[0] if made else "w"
            elif y.op == "leaf" and y.attrs[0] == "stream":
                known = [n for d, n in (*self.streams.items(), *self.decays.items()) if d.attrs[:2] == y.attrs[:2]]
                names[y] = f"({plain(known[0], step=False)})" if known else "x"
        text = plain(x, names, step=False).replace("%ik", "m").replace("%i", "i").replace("%j", "j")
        return re.sub(r"_\{?(\d+)\}?", r"\1", text)

    # --- values -----------------------------------------------------------------------------------------------------

    def value(self, x: Node) -> Value:
        if x not in self.memo:
            steps = [a for a in x.axes if a in STEPS]
            if len(steps) == 1 and steps[0] != ROW:
                v = self.value(rename(x, {steps[0]: ROW}))
                self.memo[x] = replaced(v, axes=tuple(steps[0] if a == ROW else a for a in v.axes))
            else:
                self.memo[x] = self._value(x)
        return self.memo[x]

    def _value(self, x: Node) -> Value:
        match x.op:
            case "leaf":
                return self._leaf(x)
            case "const":
                c = x.attrs[0]
                return Value(repr(float(c)), ())
            case "number":
                return Value(repr(float(sympy.N(sympy.sympify(x.attrs[0])))), ())
            case "size":  # no tile here need have that axis
                return Value(
                    f"tl.full([], {self.argument(size_name(x.attrs[0]), Role.SIZE, 'size', x)}, tl.float32)", ()
                )
            case "add":
                return self._add(x)
            case "mul":
                return self._product(x.args)
            case "pow":
                return self._power(x)
            case "fn" | "max":
                return self._function(x)
            case "expand":
                return self.value(x.args[0])
            case "sum":
                return self._sum(x)
            case "order_mask":
                return Value(f"tl.where({self._seen(*x.attrs)}, 1.0, 0.0)", (ROW, COL))
            case "apart_mask":
                least, direction = x.attrs
                later, sooner = ("i[:, None]", "i[None, :]") if direction > 0 else ("i[None, :]", "i[:, None]")
                return Value(f"tl.where({later} >= {sooner} + {least}, 1.0, 0.0)", (ROW, COL))
            case "decay_mask":
                return self._mask(x)
            case "decay_in" | "decay_out" | "decay_all":
                return self._edge(x)
            case "inverse":
                text = self.value(x.args[0]).over((ROW, COL))
                late = ROW if self.forward else COL
                # what comes before the end may not see beyond it
                text = self.until_ends(text, x.args[0], (ROW, COL), (late,))
                return self.assign("x", f"inverse({text}, C, LEVELS, DT)", (ROW, COL), note="(I - T)^-1")
        raise CannotPrint(f"{x.op} in {x!r}")

    def _function(self, x: Node) -> Value:
        """Of one value, or the largest of several, tiles first."""
        axes = self.ordered(x.axes)
        if x.op == "fn":
            v = self.value(x.args[0])
            return Value(f"({TABLE[x.attrs[0]].triton.format(v.over(v.axes))})", v.axes)
        first, *rest = [self.value(a).over(axes) for a in sorted(x.args, key=lambda a: not a.axes)]
        for other in rest:
            first = f"tl.maximum({first}, {other}, propagate_nan=tl.PropagateNan.ALL)"  # as torch.maximum
        return Value(f"({first})", axes)

    def _add(self, x: Node) -> Value:
        """A sum. Products on tensor cores are added up where they are made, onto what else there is."""
        axes = self.ordered(x.axes)
        args = [self._subtracted(a) for a in x.args]
        dots = [a for a in args if a not in self.memo and self._is_dot(a) and self.ordered(a.axes) == axes]
        dots.sort(
            key=lambda a: not self._in_slices(a.attrs[0])
        )  # first what can be made where slices of states are read
        parts = [self.value(a) for a in sorted((a for a in args if a not in dots), key=lambda a: not _over_steps(a))]
        text = ""
        for p in parts:
            shown = p.over(axes)
            text += f" - {shown[1:]}" if text and shown.startswith("-") else f" + {shown}" if text else shown
        if not dots:
            return Value(f"({text})", axes)
        if not parts:
            total, dots = self.value(dots[0]), dots[1:]
        elif len(dots) > 0 and any(not set(axes) <= set(p.axes) for p in parts):
            dots, first = dots[1:], self.value(dots[0])
            return self._onto(Value(f"({text} + {first.over(axes)})", axes), dots)
        else:
            total = Value(text if len(parts) == 1 else f"({text})", axes)
        return self._onto(total, dots)

    def _onto(self, total: Value, dots: list[Node]) -> Value:
        for a in dots:
            total = self._dot(a, total)
        return total

    def _subtracted(self, x: Node) -> Node:
        """A product on tensor cores that is subtracted, as one that is added, of an operand that is computed anyway: else its
        result takes registers of its own."""
        sign, rest = split_constant(x)
        if sign != -1 or rest in self.memo or not self._is_dot(rest):
            return x
        factors = factors_of(rest.args[0])
        plain = all(f.op == "leaf" and len(f.axes) == 2 for f in factors)
        if plain or any(is_state(f) or self._in_two_parts([f]) for f in factors):
            return x
        return make("sum", (mul(const(-1), *factors),), rest.attrs, rest.axes)

    def _is_dot(self, x: Node) -> bool:
        return (
            x.op == "sum"
            and len(x.axes) == 2
            and not any(f.op == "decay_mask" and len(f.axes) == 3 for f in factors_of(x.args[0]))
            and _running(x) is None
        )

    def _product(self, factors: tuple[Node, ...]) -> Value:
        """The product of factors, those over the same axes first."""
        if len(factors) == 1:
            return self.value(factors[0])
        groups: dict[tuple[str, ...], list[str]] = {}
        sign = ""
        for f in factors:
            if f.op == "const" and f.attrs[0] == -1:
                sign = "-"
                continue
            v = self.value(f)
            groups.setdefault(v.axes, []).append(v.over(v.axes))
        axes = self.ordered({a for g in groups for a in g})
        if len(axes) > 2:
            raise CannotPrint(f"a product over {axes}")
        parts = []
        for own, texts in sorted(groups.items(), key=lambda g: (len(g[0]), g[0])):
            text = " * ".join(texts)
            parts.append(Value(f"({text})" if len(texts) > 1 else text, own).over(axes))
        return Value(f"({sign}{' * '.join(parts)})" if sign or len(parts) > 1 else parts[0], axes)

    def _power(self, x: Node) -> Value:
        v, n = self.value(x.args[0]), x.attrs[0]
        base = v.over(v.axes)
        if n.denominator == 2 and n.numerator in (1, -1):
            root = f"tl.sqrt({base})"
            return Value(root if n > 0 else f"(1.0 / {root})", v.axes)
        if n.denominator != 1:
            return Value(f"tl.exp2({float(n)} * tl.log2({base}))", v.axes)
        text = " * ".join([base] * abs(n.numerator))
        return Value(f"({text})" if n > 0 else f"(1.0 / ({text}))", v.axes)

    # --- contractions -----------------------------------------------------------------------------------------------

    def _sum(self, x: Node) -> Value:
        (bound,), body = x.attrs, x.args[0]
        factors = factors_of(body)
        axes = self.ordered(x.axes)
        note = self.note(x)
        if any(f.op == "decay_mask" and len(f.axes) == 3 for f in factors):
            return self.decayed_sum(x, bound, factors)
        if running := _running(x):
            order, summed = running
            inclusive, direction = order.attrs
            v = self.value(rename(summed, {COL: ROW}))
            text = f"summed({v.over(self.ordered(v.axes))}, C, {direction > 0}, {inclusive}, DT)"
            return self.assign("sums", text, self.ordered(v.axes), note=note)
        if len(axes) < 2:
            v = self._product(factors)
            inside = self.ordered({bound, *axes})
            text = v.over(inside)
            text = self.until_ends(text, body, inside, (bound,))
            text = f"tl.sum({text}, axis={inside.index(bound)})"
            if not self._in_slices(bound):
                return self.assign("s", text, axes, note=note)
            v = self.assign("s", self.zeros(axes), axes)
            self.lines.append(f"{v.text} += {text}  # {note}")
            return v
        return self._dot(x)

    def _dot(self, x: Node, onto: Value | None = None) -> Value:
        """A contraction that leaves two axes, added to another value where there is one."""
        (bound,) = x.attrs
        axes = p, q = self.ordered(x.axes)
        left, right = self._factors(x)
        n = 0 if p in self.tile else 1  # the side of what is written to a state
        sides = self._sides(x)
        again = [self._in_two_parts(left), self._in_two_parts(right)]
        if self.parted and self.precise and bound == ROW and not sides[n].raw:
            sides[n] = self.assign("w", sides[n].over(sides[n].axes), sides[n].axes)  # what a state gets
            again[n] = True
        rests = list(sides)
        for side in (0, 1):
            if again[side]:
                sides[side], rests[side] = self._in_parts(sides[side])
        a, b = sides
        operands = f"{self._operand(a, (p, bound))}, {self._operand(b, (bound, q))}"
        plus = f", {onto.over(axes)}" if onto is not None else ""
        note = ("... + " if plus else "") + self.note(x)
        apart = self.sweeps and onto is None and set(axes) == {ROW, COL}
        if self._in_slices(bound) or apart:
            v = self.assign("p", self.zeros(axes) if onto is None else onto.over(axes), axes)
            line = f'{v.text} = tl.dot({operands}, {v.text}, input_precision="tf32x3")  # {note}'
            # in a region of its own, or else the compiler has each row of it made by two warps, as a sweep's tile has more rows
            self.lines += [f"if {self.surely}:", f"    {line}"] if apart else [line]
        else:
            v = self.assign("p", f'tl.dot({operands}{plus}, input_precision="tf32x3")', axes, note=note)
        others = [(rests[0], b)] * again[0] + [(a, rests[1])] * again[1]
        for n, (y, z) in enumerate(others):
            operands = f"{self._operand(y, (p, bound))}, {self._operand(z, (bound, q))}"
            self.lines += [*["if not EXACT:"][n:], f"    {v.text} = tl.dot({operands}, {v.text})"]
        return v

    def _factors(self, x: Node) -> tuple[list[Node], list[Node]]:
        """What the two operands of a contraction are products of."""
        (bound,), factors = x.attrs, factors_of(x.args[0])
        p, q = self.ordered(x.axes)
        left = [f for f in factors if p in f.axes]
        right = [f for f in factors if q in f.axes]
        if any(f in left for f in right):
            raise CannotPrint(f"a product over three axes: {x!r}")
        in_registers = p in self.tile  # the left operand: what is written to a state, if it is one
        for f in [f for f in factors if f not in left and f not in right]:
            # onto the side that is computed already; a tensor as loaded goes to the tensor cores as it is
            (right if self._to_right(bound, left, right, in_registers) else left).append(f)
        return left, right

    def _sides(self, x: Node) -> list[Value]:
        """The two operands of a contraction, of which one is zero beyond the end of what is summed over."""
        (bound,), factors = x.attrs, self._factors(x)
        sides = [self._product(tuple(side)) for side in factors]
        if bound in (ROW, *self.full, *self.tile) and not self._vanishes(x.args[0], bound):
            if bound == ROW:
                n = 0 if self.ordered(x.axes)[0] in self.tile else 1
            else:
                n = 1 if any(is_state(y) for y in walk(*factors[0])) else 0
            v = sides[n]
            sides[n] = Value(self.until_ends(v.over(v.axes), x.args[0], v.axes, (bound,)), v.axes)
        return sides

    def _to_right(self, bound: str, left: list[Node], right: list[Node], in_registers: bool) -> bool:
        """Does a number of each step that a product is over go to its right operand?"""
        if in_registers:
            return bound != ROW and self._plain(left) and not self._plain(right)
        return bound == ROW or not self._plain(right)

    def _in_slices(self, axis: str) -> bool:
        """Does a sweep take an axis slice by slice, so that sums over it are added up?"""
        return self.sweeps and axis in self.full

    def zeros(self, axes: tuple[str, ...]) -> str:
        sizes = ", ".join("C" if a in STEPS else block_name(a) for a in axes)
        return f"tl.zeros([{sizes}], tl.float32)" if axes else "tl.full([], 0.0, tl.float32)"

    def _in_parts(self, v: Value) -> tuple[Value, Value]:
        """What v is rounded to, and what that leaves of it."""
        if v.text not in self.parts:
            self.parts[v.text] = self.fresh("rounded"), self.fresh("rest")
            self.lines.append(f"{', '.join(self.parts[v.text])} = rounded_and_rest({v.text}, DT)")
        first, rest = (Value(x, v.axes, raw=True) for x in self.parts[v.text])
        return first, rest

    def _in_two_parts(self, side: list[Node]) -> bool:
        """Is an operand that tensor cores take in two parts all of this side?"""
        if len(side) != 1 or side[0].op != "leaf":
            return False
        if is_state(side[0]):
            return self.precise
        kind, key = side[0].attrs[:2]
        if kind == "matrix" and key in self.wide:
            return True
        return self.fine is not None and (kind == "matrix" or (kind == "input" and key in self.fine.given))

    def kept(self, decay: Node) -> Value:
        """All decays of the chunk, of a state's decay as a step-level node."""
        (d,) = (d for d, x in self.decays.items() if x == decay)
        return self.value(make("decay_all", (d,), (), set(d.axes) - {ROW}))

    def paired(self, x: Node) -> Value:
        """A read of a state times what the other side writes, each rounded as it is there, if it is; so that sums of such terms
        over the chunks of two sweeps cancel as <S, dS> does."""
        axes = self.ordered(x.axes)
        text = ""
        for term in terms_of(x):
            factors = factors_of(term)
            read = tuple(f for f in factors if any(is_state(y) for y in walk(f)))
            written = self._product(tuple(f for f in factors if f not in read))
            factor = written.over(axes) if self.parted else f"rounded_to({written.over(axes)}, DT)"
            text += f"{' + ' if text else ''}{factor} * {self._product(read).over(axes)}"
        return Value(text, axes)

    def _plain(self, factors: list[Node]) -> bool:
        return len(factors) == 1 and self.value(factors[0]).raw

    def _operand(self, v: Value, axes: tuple[str, ...]) -> str:
        if v.axes == axes:
            return f"{v.text}.to(DT)"
        if v.axes == axes[::-1]:
            return f"tl.trans({v.text}.to(DT))"
        raise CannotPrint(f"{v.text} has the axes {v.axes}, not {axes}")

    def until_ends(self, text: str, x: Node, axes: tuple[str, ...], ends: Collection[str] = (ROW,)) -> str:
        """`text`, which is x over these axes, with zeros beyond the ends of some: of the sequence, for an axis of steps."""
        oks = [self.along(self.ok(a), a, axes) for a in axes if a in ends and not self._vanishes(x, a)]
        return f"tl.where({' & '.join(oks)}, {text}, 0.0)" if oks else text

    def _vanishes(self, x: Node, axis: str) -> bool:
        """Is x certainly zero beyond the end of `axis`, of the sequence where that is one of steps? A decay is one there."""
        if axis not in x.axes:
            return False
        if x.op == "leaf":
            kind, name, axes = x.attrs
            if kind != "inner":
                return kind in VANISHING
            base = next(d for d in self.definitions if d.attrs[1] == name)
            return self._vanishes(rename(self.definitions[base], dict(zip(base.attrs[2], axes, strict=True))), axis)
        if x.op == "add":
            return all(self._vanishes(y, axis) for y in x.args)
        return x.op in ("mul", "sum", "expand") and any(self._vanishes(y, axis) for y in x.args)

    def decayed_sums(self, x: Node, reads: Tiles | None = None) -> Value:
        """What reads take of the writes of their own chunk, with a decay for each channel. What each read takes of each write but
        for that is the same for all channels: `reads` prints it, where a loop takes these block by block, and sums of each write
        over another axis."""
        for _, summed in map(split_constant, terms_of(x)):
            factors = factors_of(summed.args[0])
            (axis,) = {a for f in factors if f.op == "decay_mask" for a in f.axes} - {ROW, COL}
            where = reads or self
            for y in walk(*(rename(f, {COL: ROW}) for f in factors if f.axes == (COL,))):
                if y.op == "sum":
                    self.memo[y] = where.value(y)
            p = where.reads_of_writes(factors, axis)
            p = where.assign("p", p.over((ROW, COL)), (ROW, COL))
            self.memo[summed] = self.decayed_sum(summed, COL, factors, p)
        return self.value(x)

    def decayed_sum(self, x: Node, bound: str, factors: tuple[Node, ...], p: Value | None = None) -> Value:
        """sum_j p_ij w_jx decays_ijx, where the decay runs over the axis that is kept."""
        masks = [f for f in factors if f.op == "decay_mask" and len(f.axes) == 3]
        (axis,) = set(masks[0].axes) - {ROW, COL}
        if len(masks) > 1 or bound != COL or axis not in x.axes:
            raise CannotPrint(f"decays over three axes in {x!r}")
        p = p or self.reads_of_writes(factors, axis)
        w = self.tile_of(tuple(f for f in factors if f is not masks[0] and (axis in f.axes or f.axes == (COL,))), axis)
        late, write_late, inclusive, _ = masks[0].attrs
        alone = (
            self.apart is not None and inclusive and late == write_late
        )  # a step's own write, which no decay is before
        text = (
            f"decayed_sum({p.over((ROW, COL))}, {w.over((ROW, axis))}, {self.halves(masks[0], axis)}, C, {self.chunk}, "
            f"LEVELS, {masks[0].attrs[3] > 0}, {inclusive and not alone}, {self.by_range is not None and 'FLAT'}, EXACT, DT)"
        )
        own = self.assign("own", f"diagonal({p.over((ROW, COL))}, C)", (ROW,)) if alone else None
        v = self.assign("p", text, (ROW, axis), note=self.note(x))
        if own is not None and self.apart is not None:
            self.apart[x] = v
            text = f"{v.text} + {own.over((ROW, axis))} * {w.over((ROW, axis))}"
            v = self.assign("p", text, (ROW, axis), note="with each step's own")
        self.from_slow_path(
            masks[0], axis, None if masks[0].attrs[3] > 0 else (p.over((ROW, COL)), w.over((ROW, axis)))
        )
        return v

    def without_own(self, x: Node) -> Node:
        """x with what there is of sums without each step's own write in their place, and without what a chunk's last step writes
        to states beyond the chunk: of these pairs no decay of the chunk lies between."""
        if x.op == "leaf" and x.attrs[0] == "intra" and x.attrs[1] in self.intra:
            return self.without_own(self.intra[x.attrs[1]])
        if self.apart and x in self.apart:
            y = leaf("apart", x.key[:12], x.axes)
            self.memo[y] = self.apart[x]
            return y
        edges = [f for f in factors_of(x) if f.op == "decay_in" and not f.attrs[0] and len(f.axes) > 1]
        if edges and self.apart is not None and not self.forward:
            y, v = leaf("apart", x.key[:12], x.axes), self.value(x)
            if y not in self.memo:
                text = f"tl.where({self.along('(i < last)', ROW, v.axes)}, {v.over(v.axes)}, 0.0)"
                self.memo[y] = Value(text, v.axes)
            return y
        return rebuild(x, map(self.without_own, x.args)) if x.args else x

    def from_slow_path(self, mask: Node, axis: str, read: tuple[str, str] | None = None) -> None:
        """Which rows are stored by the kernel for those that are of a large decay range: from the first of these on, and the rows
        before it
        where they `read`, by a matrix, what these write."""
        if self.by_range is None:
            return
        late, write_late, _, direction = mask.attrs
        later = ", ".join(self._cumulative(mask.args[0], late if direction > 0 else not write_late, over=(ROW, axis)))
        self.lines.append("if not FLAT:")
        self.lines.append(f"    steep_from = first_steep(steep_from, {later}, {self.index(axis)}_ok, C, DT)")
        if read is not None:
            self.lines.append(f"    again = adds_steep(again, {read[0]}, {read[1]}, steep_from, C)")
        self.lines.append("    i_new = i_ok & ((i >= steep_from) | (again > 0))")

    def tile_of(self, factors: tuple[Node, ...], axis: str) -> Value:
        """A product of what the steps of a chunk have, over an axis, even if all of it is the same along that."""
        v = self._product(factors) if factors else Value("1.0", ())
        v = replaced(v, axes=tuple(ROW if a == COL else a for a in v.axes))
        if axis in v.axes:
            if self._vanishes(mul(*factors), axis):
                return v
            return Value(self.until_ends(v.over(v.axes), mul(*factors), v.axes, (axis,)), v.axes)
        axes = self.ordered((ROW, axis))
        return self.assign("x", f"tl.where({self.inside(axes)}, {v.over(axes)}, 0.0)", axes)

    def reads_of_writes(self, factors: tuple[Node, ...], axis: str) -> Value:
        """What each read takes of each write, but for decays over `axis` and numbers of each write: so that it is rounded as it
        is where these take from those."""
        others = tuple(f for f in factors if axis not in f.axes and f.axes != (COL,))
        p = self._product(others) if others else Value("tl.full([C, C], 1.0, tl.float32)", (ROW, COL))
        return p if len(p.axes) == 2 else Value(f"tl.broadcast_to({p.over((ROW, COL))}, [C, C])", (ROW, COL))

    def ends(self, mask: Node, axis: str) -> None:
        """Store the sums of a whole chunk for others, where the kernel makes them."""
        (d,) = mask.args
        name = self._decay_name(d)
        if name not in self.making:
            return
        end, _ = self._cumulative(d, True, end=True)
        index, width = self.index(axis), size_name(dim_of(axis))
        place = f"{name}_sums + step * {width} + last * (H * {width}) + {index}"
        self.lines += ["if SUMS:", f"    tl.store({place}, {end}, mask={index}_ok)"]

    def halves(self, mask: Node, axis: str) -> str:
        """What the helpers of `runtime/chunk_kernels/kernels.py` that work by halves take of a decay over an axis."""
        (d,) = mask.args
        late, write_late, _, direction = mask.attrs
        high, low = (late, write_late) if direction > 0 else (not write_late, not late)
        name = self._decay_name(d)
        width = size_name(dim_of(axis))
        sums, counts = f"{name}_sums + step * {width}", f"{name}_rests + step * {width} if EXACT else None"
        if self.by_range is not None and name not in self.by_range:
            self.by_range.append(name)
            self.argument(name, Role.EXTENTS, "extent", self.decays[d], (axis,))
        edges = ", ".join(", ".join(self._cumulative(d, x, over=(ROW, axis))) for x in (high, low))
        index = self.index(axis)
        return f"{sums}, {counts}, {edges}, {index}, {index}_ok, last, H * {width}"

    # --- decays -----------------------------------------------------------------------------------------------------

    def _seen(self, inclusive: bool, direction: int) -> str:
        sign = (">" if direction > 0 else "<") + ("=" if inclusive else "")
        return f"i[:, None] {sign} i[None, :]"

    def _decay_name(self, d: Node) -> str:
        name = self.name_of(self.decays[d])
        own = tuple(a for a in d.axes if a not in STEPS)
        self.argument(name, Role.SUMS, "chunked", self.decays[d], own)
        self.argument(name, Role.RESTS, "chunked", self.decays[d], own)
        return name

    def _cumulative(
        self, d: Node, inclusive: bool, end: bool = False, over: tuple[str, ...] | None = None
    ) -> tuple[str, str]:
        """Cumulative log2 decay with this step (or before it; or at the chunk's end), and what its sums leave."""
        name = self._decay_name(d)
        own = tuple(a for a in d.axes if a not in STEPS)
        axes = self.ordered((ROW, *own)) if over is None else over
        suffix = "_end" if end else "" if inclusive else "_before"
        suffix += "_rows" if axes != self.ordered(axes) else ""
        names = []
        for what, letter in (("sums", "a"), ("rests", "n")):
            if (name, letter, suffix, *own) not in self.loads:
                variable = self.loads[name, letter, suffix, *own] = self.fresh(f"{name}_{letter}{suffix}")
                row = "last" if end else "row" if inclusive else "tl.minimum(i - 1, last)"
                masks = [] if end or inclusive else [("i > 0", 0)]
                if own:
                    axis = self.index(own[0])
                    width = size_name(dim_of(own[0]))
                    masks.append((f"{axis}_ok", 1))
                    place = f"{row} * (H * {width}) + {axis}"
                    if not end:
                        rows, columns = self.along(f"({row})", ROW, axes), self.along(axis, own[0], axes)
                        place = f"{rows} * (H * {width}) + {columns}"
                    base = f"step * {width}"
                else:
                    place, base = row, "at"
                shown = [m if not own or end else self.along(f"({m})", (ROW, *own)[n], axes) for m, n in masks]
                mask = f", mask={' & '.join(shown)}, other=0" if shown else ""
                where = self.lines if own and not (end and self.by_range is None) else self.head
                text = f"tl.load({name}_{what} + {base} + {place}{mask})"
                if own and not self.sweeps:
                    rows, columns = ("", "") if end else ("[:, None]", "[None, :]")
                    which = f"({row}){rows}, {axis}{columns}, {axis}_ok{columns}, last, H * {width}"
                    text = f"over_block({text}, {name}_{what} + {base}, {which}, C, CHUNK)"
                if own and not end and self.sweeps and what == "sums":
                    text = f"tl.where({shown[-1]}, {text}, 0.0)"  # as `_apart` has it
                if what == "sums" and name in self.making:
                    text = f"{self._made(d, name, own[0], inclusive, end)} if SUMS else {text}"
                if what == "rests":
                    none = "tl.full([1], 0, tl.int32)" if own and end else "0"
                    text += f" if EXACT else {none}"
                where.append(f"{variable} = {text}")
                if what == "sums" and name in self.making and not suffix:
                    self._reached(variable, name)
            names.append(self.loads[name, letter, suffix, *own])
        return names[0], names[1]

    def _made(self, d: Node, name: str, axis: str, inclusive: bool, end: bool) -> str:
        """Sums of a decay for each channel, from its logarithms: with each step, before it, or of the whole chunk."""
        if end or not inclusive:
            sums, _ = self._cumulative(d, True)
            return f"last_of({sums}, C)" if end else f"{sums} - {self.loads[name, 'log2']}"
        variable = self.loads[name, "log2"] = self.fresh(f"{name}_log2")
        self.lines.append(f"{variable} = {self.log2(d, axis)} if SUMS else 0.0")
        return f"sums_of({variable}, C)"

    def log2(self, d: Node, axis: str) -> str:
        """A decay for each channel, of each step, as log2."""
        base, index = self.name_of(self.decays[d]), self.index(axis)
        self.argument(base, Role.GIVEN, "step", self.decays[d], (axis,))
        place = f"{base}_p + t0 * {base}_t + i[:, None] * {base}_t + {index}[None, :]"
        return f"log2_of(tl.load({place}, mask=i_ok[:, None] & {index}_ok[None, :], other=0.0))"

    def _reached(self, sums: str, name: str) -> None:
        """How far sums that were made reach so far."""
        self.lines += [
            "if SUMS:",
            f"    {name}_most = tl.maximum({name}_most, tl.max(tl.max({sums}, axis=1), axis=0))",
            f"    {name}_least = tl.minimum({name}_least, tl.min(tl.min({sums}, axis=1), axis=0))",
        ]

    def _mask(self, x: Node) -> Value:
        """Decays between the write of step j and the read of step i, where the read sees it."""
        if len(x.axes) != 2:
            raise CannotPrint(f"decays over {x.axes}")
        late, write_late, inclusive, direction = x.attrs
        (d,) = x.args
        if direction > 0:
            high, low, later, earlier = self._cumulative(d, late), self._cumulative(d, write_late), ":, None", "None, :"
        else:  # the write is the later one in time
            high, low, later, earlier = (
                self._cumulative(d, not write_late),
                self._cumulative(d, not late),
                "None, :",
                ":, None",
            )
        between, rest = (f"{x}[{later}] - {y}[{earlier}]" for x, y in zip(high, low, strict=True))
        seen = self.assign("seen", self._seen(inclusive, direction), (ROW, COL)).text
        log2 = self.assign("log2", between, (ROW, COL)).text
        self.lines += ["if EXACT:", f"    {log2} = {log2} + ({rest})"]
        return self.assign("m", f"power({log2}, {seen})", (ROW, COL), note="decays from write to read")

    def _edge(self, x: Node) -> Value:
        """Decays from the chunk's start to a read, from a write to the chunk's end, or of the whole chunk."""
        (d,) = x.args
        own = tuple(a for a in d.axes if a not in STEPS)
        wish = {"decay_in": "since", "decay_out": "until", "decay_all": "kept"}[x.op]
        if x.op == "decay_all":
            a, n = self._cumulative(d, True, end=True)
            return self.assign(wish, f"span({a}, {n}, 0.0, 0)", own)
        late, direction = x.attrs
        axes = self.ordered((ROW, *own))
        from_start = (x.op == "decay_in") == (direction > 0)
        inclusive = late if direction > 0 else not late
        a, n = self._cumulative(d, inclusive)
        if from_start:
            text = f"span({a}, {n}, 0.0, 0)"
        else:
            ends = self._cumulative(d, True, end=True)
            shown = ", ".join(self.along(x, own[0], axes) for x in ends) if own else ", ".join(ends)
            text = f"span({shown}, {a}, {n})"
        return self.assign(wish, text, axes)

    # --- leaves -----------------------------------------------------------------------------------------------------

    def ok(self, axis: str) -> str:
        return f"{self.index(axis)}_ok"

    def _leaf(self, x: Node) -> Value:
        kind, name, order = x.attrs
        if kind == "inner":
            return self._inner(x)
        if kind == "state in" and name in self.checkpoints:
            return self.assign("s", self.checkpoints[name], self.ordered(x.axes), raw=True, note=name)
        if kind == "stream":
            return self._stream(x)
        if kind == "matrix" and name in self.matrices:
            known = leaf(kind, name, (ROW, COL))
            if known not in self.memo:
                self.memo[known] = self.made(self.matrices[name])
            return replaced(self.memo[known], axes=order)
        if kind == "matrix":
            variable = self.argument(self.name_of(x), Role.WHOLE, "matrix", x)
            at = f"{variable} + (bh * chunks + c) * C * C + i[:, None] * C + i[None, :]"
            if (variable,) not in self.loads:
                self.loads[variable,] = self.assign("t", f"tl.load({at})", order, raw=True).text
            return Value(self.loads[variable,], order, raw=True)
        if kind == WEIGHT:
            return self._weight(leaf(kind, name), order)
        if kind == "constant":
            return Value(self.argument(self.name_of(x), Role.NUMBER, "number", x), ())
        own = tuple(a for a in order if a not in STEPS)
        if kind == "intra" and name in self.intra:
            return self.decayed_sums(self.intra[name])
        if len(own) > 1:
            raise CannotPrint(f"{name} has two axes")
        if kind in PER_HEAD:
            return self._per_head(x, own)
        if kind not in PER_STEP:
            raise CannotPrint(f"the leaf {x!r}")
        base = self.name_of(leaf(kind, name, own))
        if self.by_head and not own and kind in ("input", "decay"):
            self.argument(base, Role.BY_HEAD, "chunked", leaf(kind, name, own))
            loaded = f"tl.load({base}_by_head + at + i, mask=i_ok, other=0.0)"
            return self.assign(base, f"tl.exp({loaded})" if kind == "decay" else loaded, (ROW,))
        loaded, axes = self.load(base, leaf(kind, name, own), own)
        if kind == "decay":
            text = f"tl.exp({loaded}.to(tl.float32))"
            summed = next((d for d, x in self.decays.items() if x == leaf(kind, name, own)), None)
            if own and summed is not None and self.by_range is not None:  # its sums are loaded anyway
                edges = ", ".join(", ".join(self._cumulative(summed, x, over=axes)) for x in (True, False))
                text = f"{text} if EXACT else span({edges})"
            return self.assign(base, text, axes)
        return self._apart(self.assign(base, loaded, axes, raw=True), f"{base}_p")

    def _weight(self, x: Node, order: tuple[str, ...]) -> Value:
        """How much of one state is in another at each step; or, over no axis, at the last one that the sweep takes of a chunk."""
        base = self.argument(self.name_of(x), Role.WHOLE, "chunked", x)
        place, mask = ("i", ", mask=i_ok, other=0.0") if order else ("last" if self.forward else "0", "")
        if (base, place) not in self.loads:
            variable = self.loads[base, place] = self.fresh(f"{base}_{'each' if order else 'whole'}")
            self.head.append(f"{variable} = tl.load({base} + at + {place}{mask})")
        return Value(self.loads[base, place], order)

    def made(self, x: Node) -> Value:
        """A matrix over the steps of a chunk that is made here."""
        v = self.value(x)
        return v if v.text.isidentifier() else self.assign("t", v.over((ROW, COL)), (ROW, COL), note=self.note(x))

    def load(self, base: str, x: Node, own: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
        """What loads numbers of each step, or a tile of them, and its axes."""
        layout = "chunked" if x.attrs[0] in ("scaled", "intra") else "step"
        self.argument(base, Role.GIVEN, layout, x, own)
        axes = self.ordered((ROW, *own))
        rows = self.along("i", ROW, axes)
        if layout == "chunked":
            width = size_name(dim_of(own[0]))
            place = f"{base}_p + at * {width} + {rows} * {width}"
        else:
            place = f"{base}_p + t0 * {base}_t + {rows} * {base}_t"
        if own:
            self.loaded.append((f"{base}_p", own[0]))
            place += f" + {self.along(self.index(own[0]), own[0], axes)}"
        return f"tl.load({place}, mask={self.inside(axes)}, other=0.0)", axes

    def _apart(self, v: Value, argument: str) -> Value:
        """A tile that was loaded, whose elements are taken through a select that changes nothing.

        Otherwise the compiler moves the change of layout that elementwise work needs up to the load, and then copies the tile to
        shared memory by single elements, which it can't do ahead of time for those of two bytes: a sweep then waits for the load.

        Elements of two bytes are products with the identity instead, where there is room (PRODUCTS): tensor cores read the tile
        as it lies in shared memory, without conflicts of its banks, and leave elements in the registers that they are needed in.
        """
        if not self.sweeps or len(v.axes) < 2:
            return v
        variable = self.fresh(f"{v.text}_each")
        text, products = f"tl.where({self.inside(v.axes)}, {v.text}, 0.0)", self.products and v.axes[1] == ROW
        if products:
            text = f"tl.dot({v.text}.to(DT), identity) if PRODUCTS and {v.text}.dtype == DT else {text}"
        elements = Elements(variable, f"{variable} = {text}", argument if products else None)
        self.elements.append(elements)
        self.lines.append(elements.statement)
        return replaced(v, elements=elements)

    def used(self, lines: list[str]) -> list[str]:
        """The lines without elements that nothing takes: of tiles that are operands of products alone."""
        unused = {x.statement for x in self.elements if not x.taken}
        return [x for x in lines if x not in unused]

    @property
    def by_products(self) -> frozenset[str]:
        """What is loaded whose elements may be products."""
        return frozenset(x.argument for x in self.elements if x.taken and x.argument is not None)

    def _per_head(self, x: Node, own: tuple[str, ...]) -> Value:
        kind, name, _ = x.attrs
        base = self.name_of(leaf(kind, name, own))
        self.argument(base, Role.GIVEN, "head", leaf(kind, name, own), own)
        if own:
            axis, width = self.index(own[0]), size_name(dim_of(own[0]))
            text = f"tl.load({base}_p + h * {width} + {axis}, mask={axis}_ok, other=0.0)"
        else:
            text = f"tl.load({base}_p + h)"
        text = f"{text}.to(tl.float32)"
        return self.assign(base, f"tl.exp({text})" if kind.startswith("decay") else text, own)

    def _inner(self, x: Node) -> Value:
        """A definition, perhaps over other names of its axes."""
        base = next(d for d in self.definitions if d.attrs[1] == x.attrs[1])
        if base not in self.memo:
            v = self.value(self.definitions[base])
            if not v.text.isidentifier():
                v = self.assign("w", v.over(v.axes), v.axes)
            self.memo[base] = v
        v = self.memo[base]
        names = dict(zip(base.attrs[2], x.attrs[2], strict=True))
        return replaced(v, axes=tuple(names[a] for a in v.axes))

    def _stream(self, x: Node) -> Value:
        """A step-level quantity computed on the tile; zero where there is no step or no channel."""
        node = self.streams[x] if x in self.streams else self.decays[x]
        v = self.value(at_row(node))
        if node.op == "leaf" and ROW in v.axes and node.attrs[0] != "decay":  # which is one where nothing is loaded
            return v
        axes = self.ordered({ROW, *v.axes})  # also what is the same at each step
        oks = " & ".join(Value(self.ok(a), (a,)).over(axes) for a in axes)
        return self.assign("x", f"tl.where({oks}, {v.over(axes)}, 0.0)", axes, note=self.note(node))


def _running(x: Node) -> tuple[Node, Node] | None:
    """(mask, what is summed), of a sum over the steps before or after each step of what is made here. It may cancel, so that
    nothing of it is rounded."""
    factors = factors_of(x.args[0])
    order = [f for f in factors if f.op == "order_mask"]
    rest = [f for f in factors if f not in order]
    if len(order) != 1 or x.attrs != (COL,) or len(rest) != 1 or rest[0].op != "leaf" or rest[0].attrs[0] != "inner":
        return None
    return order[0], rest[0]
