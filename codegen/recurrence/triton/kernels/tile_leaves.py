"""Leaves of chunk programs on tiles: what a kernel loads, at which places, and what it takes of it."""

from __future__ import annotations

from dataclasses import replace as replaced

from ....ir.code import (
    Attribute,
    Binary,
    Code,
    Either,
    Literal,
    Load,
    Name,
    both,
    call,
    plus,
    times,
    where,
)
from ....ir.expr import (
    COL,
    ROW,
    Node,
    dim_of,
    leaf,
)
from ....ir.kernel_ir import Body, Let, Statement, let
from ....ir.spellings import Function
from ....ir.step_program import DECAYS, PER_HEAD
from ....printing.cannot_print import CannotPrint
from ..plan_passes.roles import PER_STEP, STEPS, TRANSITION, at_row
from ..print.axis_names import size_name
from .arguments import Role
from .channel_decays import ChannelDecays
from .tile_names import Scope
from .tile_values import Elements, Once, Value, chunk_place, matrix_place


class TileLeaves(ChannelDecays):
    """Lowers leaves."""

    by_head = True  # are numbers of each step that the op is given laid out by heads, in float32?

    def __init__(self, scope: Scope) -> None:
        super().__init__(scope)
        self.checkpoints: dict[str, Code] = {}  # what loads states where they are used first
        self.loaded: list[tuple[str, str]] = []  # tiles: the argument, and the axis beside steps
        self.elements: list[Elements] = []  # of these tiles
        self.products = False  # may these be products with the identity?
        self.matrices: dict[str, Node] = {}  # over the steps of a chunk, made here and not loaded

    def leaf(self, x: Node) -> Value:
        kind, name, order = x.attrs
        if kind == "inner":
            return self._inner(x)
        if kind == "state in" and name in self.checkpoints:
            return self.assign(
                self.name_of(leaf("state", name)), self.checkpoints[name], self.ordered(x.axes), raw=True, note=name
            )
        if kind == "stream":
            return self._stream(x)
        if kind == "matrix" and name in self.matrices:
            known = leaf(kind, name, (ROW, COL))
            if known not in self.memo:
                self.memo[known] = self.made(self.matrices[name])
            return replaced(self.memo[known], axes=order)
        if kind == "matrix":
            variable = self.argument(self.name_of(x), Role.WHOLE, "matrix", x)
            if Once(variable) not in self.loads:
                self.loads[Once(variable)] = self.assign(
                    f"{variable}_tile", Load(matrix_place(variable)), order, raw=True
                ).name
            return Value(Name(self.loads[Once(variable)]), order, raw=True)
        if kind == TRANSITION:
            return self._weight(leaf(kind, name), order)
        if kind == "constant":
            return Value(Name(self.argument(self.name_of(x), Role.NUMBER, "number", x)), ())
        own = tuple(a for a in order if a not in STEPS)
        if kind == "intra" and name in self.intra:
            return self.decayed_sums(self.intra[name])
        if len(own) > 1:
            raise CannotPrint(f"{name} has two axes")
        if kind in PER_HEAD:
            return self._per_head(x, own)
        return self._of_each_step(x, own)

    def matrix_in_memory(self, x: Node) -> Code:
        """Where a matrix over the steps of a chunk lies that a kernel before this one has made."""
        if x.op != "leaf" or x.attrs[1] in self.matrices:
            raise CannotPrint("rows of a matrix that doesn't lie in memory")
        return chunk_place(self.argument(self.name_of(x), Role.WHOLE, "matrix", x))

    def _of_each_step(self, x: Node, own: tuple[str, ...]) -> Value:
        """Numbers of each step, or a tile of them."""
        kind, name, _ = x.attrs
        if kind not in PER_STEP:
            raise CannotPrint(f"the leaf {x!r}")
        base = self.name_of(leaf(kind, name, own))
        if self.by_head and not own and kind in ("input", "decay"):
            self.argument(base, Role.BY_HEAD, "chunked", leaf(kind, name, own))
            number: Code = Load(plus(f"{base}_by_head", "at", "i"), Name("i_ok"), Literal(0.0))
            return self.assign(base, Function("exp", number) if kind == "decay" else number, (ROW,))
        loaded, axes = self.load(base, leaf(kind, name, own), own)
        if kind == "decay":
            return self.assign(base, self._decay(leaf(kind, name, own), loaded, axes), axes)
        return self._apart(self.assign(base, loaded, axes, raw=True), f"{base}_p")

    def load(self, base: str, x: Node, own: tuple[str, ...]) -> tuple[Code, tuple[str, ...]]:
        """What loads numbers of each step, or a tile of them, and its axes."""
        layout = "chunked" if x.attrs[0] in ("scaled", "intra") else "step"
        self.argument(base, Role.GIVEN, layout, x, own)
        axes = self.ordered((ROW, *own))
        rows = self.along("i", ROW, axes)
        if layout == "chunked":
            width = size_name(dim_of(own[0]))
            place = plus(f"{base}_p", times("at", width), times(rows, width))
        else:
            place = plus(f"{base}_p", times("t0", f"{base}_t"), times(rows, f"{base}_t"))
        if own:
            self.loaded.append((f"{base}_p", own[0]))
            place = plus(place, self.along(self.index(own[0]), own[0], axes))
        return Load(place, self.inside(axes), Literal(0.0)), axes

    def _decay(self, x: Node, loaded: Code, axes: tuple[str, ...]) -> Code:
        """A decay of each step, which is one where nothing is loaded."""
        decay: Code = Function("exp", loaded.to("tl.float32"))
        summed = next((d for d, y in self.decays.items() if y == x), None)
        if x.axes and summed is not None and self.by_range is not None:  # its sums are loaded anyway
            edges = [y for z in (True, False) for y in self._cumulative(summed, z, over=axes)]
            decay = Either(decay, Name("EXACT"), call("span", *edges))
        if self._written(x.axes):
            decay = where(self.along(self.ok(x.axes[0]), x.axes[0], axes), decay, 0.0)
        return decay

    def _weight(self, x: Node, order: tuple[str, ...]) -> Value:
        """How much of one state is in another at each step; or, over no axis, at the last one that the sweep takes of a chunk."""
        base = self.argument(self.name_of(x), Role.WHOLE, "chunked", x)
        place = Name("i") if order else Name("last") if self.forward else Literal(0)
        key = Once(base, "each" if order else "whole")
        if key not in self.loads:
            variable = self.loads[key] = self.fresh(f"{base}_{key.what}")
            masked = (Name("i_ok"), Literal(0.0)) if order else ()
            self.head.append(let(variable, Load(plus(base, "at", place), *masked)))
        return Value(Name(self.loads[key]), order)

    def made(self, x: Node) -> Value:
        """A matrix over the steps of a chunk that is made here."""
        v = self.value(x)
        return v if v.named else self.assign("pairs", v.over((ROW, COL)), (ROW, COL), note=self.note(x))

    def _per_head(self, x: Node, own: tuple[str, ...]) -> Value:
        kind, name, _ = x.attrs
        base = self.name_of(leaf(kind, name, own))
        self.argument(base, Role.GIVEN, "head", leaf(kind, name, own), own)
        if own:
            axis, width = self.index(own[0]), size_name(dim_of(own[0]))
            loaded = Load(plus(f"{base}_p", times("h", width), axis), Name(f"{axis}_ok"), Literal(0.0))
        else:
            loaded = Load(plus(f"{base}_p", "h"))
        number = loaded.to("tl.float32")
        return self.assign(base, Function("exp", number) if kind in DECAYS else number, own)

    def _inner(self, x: Node) -> Value:
        """A definition, perhaps over other names of its axes."""
        base = next(d for d in self.definitions if d.attrs[1] == x.attrs[1])
        if base not in self.memo:
            v = self.value(self.definitions[base])
            if not v.named:
                v = self.assign("system" if set(v.axes) == {ROW, COL} else "known", v.over(v.axes), v.axes)
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
        oks = both(*(Value(Name(self.ok(a)), (a,)).over(axes) for a in axes))
        return self.assign("stepwise", where(oks, v.over(axes), 0.0), axes, note=self.note(node))

    def _apart(self, v: Value, argument: str) -> Value:
        """A tile that was loaded, whose elements are taken through a select that changes nothing.

        Otherwise the compiler moves the change of layout that elementwise work needs up to the load, and then copies the tile to
        shared memory by single elements, which it can't do ahead of time for those of two bytes: a sweep then waits for the load.

        Elements of two bytes are products with the identity instead, where there is room (PRODUCTS): tensor cores read the tile
        as it lies in shared memory, without conflicts of its banks, and leave elements in the registers that they are needed in.
        """
        if not self.sweeps or len(v.axes) < 2:
            return v
        variable = self.fresh(f"{v.name}_each")
        each: Code = where(self.inside(v.axes), v.code, 0.0)
        products = self.products and v.axes[1] == ROW
        if products:
            fits = Binary("and", Name("PRODUCTS"), Attribute(v.code, "dtype").equals("DT"))
            each = Either(call("tl.dot", v.code.to("DT"), "identity"), fits, each)
        elements = Elements(variable, argument if products else None)
        self.elements.append(elements)
        self.body.append(let(variable, each))
        return replaced(v, elements=elements)

    def used(self, body: list[Statement]) -> Body:
        """The statements without elements that nothing takes: of tiles that are operands of products alone."""
        unused = {(x.variable,) for x in self.elements if not x.taken}
        return tuple(x for x in body if not isinstance(x, Let) or x.names not in unused)

    @property
    def by_products(self) -> frozenset[str]:
        """What is loaded whose elements may be products."""
        return frozenset(x.argument for x in self.elements if x.taken and x.argument is not None)
