"""The roles of a sweep that is joined with its prologue: beside the loader and the consumer a preparer, which makes what needs no
state: matrices over the steps of each chunk, masked by decays, and inverses of these.

A stage has several chunks. The loader and the preparer take them at once, the consumer one after the other.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ....ir.code import Binary, Call, Cast, Code, Literal, Load, Name, call, names_in
from ....ir.kernel_ir import Let, Statement
from ....ir.warp_schedule import (
    Arrive,
    Await,
    Barriers,
    Blocks,
    Fence,
    Held,
    Invert,
    Layout,
    Make,
    Product,
    Put,
    Ring,
    Schedule,
    Settle,
)
from ....ir.warp_schedule import Role as Warps
from ....printing.cannot_print import CannotPrint
from ..kernels.arguments import Role
from ..kernels.chunk_kernel import Kernel
from .consumer import Consumer, Wanted
from .derive import ELSEWHERE
from .parts import CHUNK, SweepParts
from .straight import straight
from .whole_statements import STEPS, merged

MATRICES = "prepared"  # the barriers of what the preparer makes
BUFFERS = 2  # stages of these
WARPS = 4  # of the preparer
OVER_STEPS = (STEPS, STEPS)


def schedule_of_joined(k: Kernel) -> Schedule:
    """The schedule of a sweep that is joined with its prologue.

    Raises CannotPrint: there are no roles for what it does.
    """
    if not k.sweeps or k.tiled is None or k.whole or len(k.axes) != 2 or k.checkpoints:
        raise CannotPrint("these roles are for sweeps over chunks with states of two axes")
    missing = [a.name for a in k.arguments if a.role in ELSEWHERE]
    s = straight(k.function, frozenset(missing))
    loop, found = merged(s.loop)
    if set(found) & set(s.carried):
        raise CannotPrint("a state that is what something else is")
    parts = PreparedParts(k, replace(s, loop=loop))
    consumer = PreparedConsumer(parts)
    role = consumer.role()
    preparer = Preparer(parts).role()
    loader = parts.loader()
    return Schedule(
        k.name,
        tuple(parts.setup),
        tuple(parts.indices.values()),
        tuple(parts.scalars.values()),
        tuple(parts.rings.values()),
        tuple(consumer.buffers),
        parts.groups,
        (role, preparer, loader),
        several=True,
    )


class PreparedParts(SweepParts):
    """What the statements are: of tiles, those that need no state and are made of products are matrices that the preparer
    makes, those of them that products of states take."""

    def _inside(self, x: Statement) -> None:
        super()._inside(x)
        match x:
            case Let(names=(name,), value=Load() as load) if name in self.numbers and self._is_sum(load):
                there = Binary(
                    "<", Name("t0"), Name("stop")
                )  # a stage may have chunks beyond the end: nothing decays there
                self.numbers[name] = replace(x, value=call("tl.where", there, load, Literal(0.0)))

    def _is_sum(self, x: Load) -> bool:
        """Is it of sums of a decay's logarithms?"""
        return bool({a.name for a in self.k.arguments if a.role is Role.SUMS} & names_in(x.pointer))

    @property
    def products(self) -> set[str]:
        return {n for n, x in self.tiles.items() if isinstance(x.value, Call) and x.value.function == "tl.dot"}

    def with_states(self, x: Code) -> bool:
        """Is it made of states?"""
        found = names_in(x)
        return bool(found & set(self.s.carried)) or any(
            self.with_states(self.tiles[n].value) for n in found if n in self.tiles
        )

    def of_products(self, x: Code) -> bool:
        found = names_in(x) & set(self.tiles)
        return bool(found & self.products) or any(self.of_products(self.tiles[n].value) for n in found)

    def is_matrix(self, name: str) -> bool:
        """Does the preparer make it?"""
        x = self.tiles.get(name)
        if x is None or self.shapes.known[name] != OVER_STEPS or name in self.products:
            return False
        return self.of_products(x.value) and not self.with_states(x.value)

    def _ring(self, name: str) -> Ring | None:
        return Ring(name, OVER_STEPS, operand=True) if self.is_matrix(name) else super()._ring(name)

    @property
    def matrices(self) -> list[Ring]:
        return [r for r in self.rings.values() if r.operand]

    @property
    def groups(self) -> tuple[Barriers, ...]:
        """Barriers of what is loaded, which the consumer and the preparer read, and of what is prepared."""
        loaded = [r for r in self.rings.values() if not r.operand]
        puts = any(r.tile is None for r in loaded)
        return (
            Barriers(CHUNK, tuple(r.name for r in loaded), 1 + puts, 2),
            Barriers(MATRICES, tuple(r.name for r in self.matrices), 1, 1, stages=BUFFERS),
        )

    def loader(self) -> Warps:
        matrices = {r.name for r in self.matrices}
        self.rings, rings = {n: r for n, r in self.rings.items() if n not in matrices}, self.rings
        role = super().loader()
        self.rings = rings
        return replace(role, together=True)


@dataclass
class PreparedConsumer(Consumer):
    """The role that has the states."""

    sweep: PreparedParts

    def _wanted(self, x: Let) -> Wanted | None:
        found = super()._wanted(x)
        return found if found is not None and self.sweep.with_states(x.value) else None

    def role(self) -> Warps:
        role = super().role()
        if not self.sweep.matrices:
            raise CannotPrint("nothing needs no state: these roles are for less")
        return role

    def _begin(self, w: Wanted) -> None:
        super()._begin(w)
        x = self.steps[-1]
        assert isinstance(x, Product)
        if x.layout.rows == STEPS:
            raise CannotPrint("a product of states with few steps in rows, of which tensor cores take 64 at once")
        r = self._ring(x.right.place)
        if r is not None and r.operand and Await(MATRICES, True) not in self.steps:
            self.steps.insert(-1, Await(MATRICES, True))

    def _release(self) -> None:
        super()._release()
        last = max(n for n, x in enumerate(self.steps) if isinstance(x, Settle | Arrive))
        self.steps.insert(last + 1, Arrive(MATRICES, False))


@dataclass
class Preparer(Consumer):
    """The role that makes matrices over steps, of all chunks of a stage at once."""

    sweep: PreparedParts
    targets: dict[str, Let] = field(default_factory=dict)  # the matrices

    def __post_init__(self) -> None:
        self.states = {}
        self.targets = {r.name: self.sweep.tiles[r.name] for r in self.sweep.matrices}
        wanted = set[str]().union(*(self._below(x.value) for x in self.targets.values()))
        found = {n: self._wanted(self.sweep.tiles[n]) for n in self.sweep.products if n in wanted}
        order = list(self.sweep.tiles)
        self.products = {n: w for n, w in sorted(found.items(), key=lambda x: order.index(x[0])) if w is not None}

    def _below(self, x: Code) -> set[str]:
        """The tiles that it is made of."""
        own = names_in(x) & set(self.sweep.tiles)
        return set(own).union(*(self._below(self.sweep.tiles[n].value) for n in own))

    def role(self) -> Warps:
        blocks = Blocks(*OVER_STEPS)
        self.steps.append(Await(CHUNK, True))
        for w in self.products.values():
            if self.needs(w.left) | self.needs(w.right) or w.onto is not None:
                raise CannotPrint("what is prepared has products of products")
            self._begin(w)
            begun = self.steps[-1]
            if isinstance(begun, Product) and isinstance(begun.left, Held) and self._has_steps(Name(begun.left.name)):
                raise CannotPrint("an operand of what is prepared has the numbers of steps in it")
        for x in self.targets.values():
            self._parts_ahead(x.value, blocks)
        for n in list(self.products):
            self._settle(n)
            self._made_of_settled(blocks)
        self._release()
        self.steps.append(Await(MATRICES, False))
        inverted = {n: x for n, x in self.targets.items() if _inverted(x) is not None}
        for n in self.targets:
            if n not in inverted:
                self._put(n, blocks)
        for n, x in inverted.items():
            what = _inverted(x)
            assert what is not None
            self.steps.append(Invert(n, self.held(what, blocks, f"{n}_of"), blocks, x.note))
            self.layouts[n] = blocks
            self._put(n, blocks)
        self.steps += [Fence(), Arrive(MATRICES, True)]
        return Warps("preparer", WARPS, (), tuple(self.steps), (), together=True)

    def _has_steps(self, x: Code) -> bool:
        """Does a value of this role need to know which steps of a chunk its rows are?"""
        values = {y.name: y.value for y in self.steps if isinstance(y, Make)}
        indices = {n for n, y in self.sweep.indices.items() if self.sweep.shapes.of(y.value) == (STEPS,)}
        return any(n in indices or (n in values and self._has_steps(values[n])) for n in names_in(x))

    def _made_of_settled(self, layout: Layout) -> None:
        """What products that were waited for are for: then these need no registers."""
        for n, x in self.targets.items():
            value = _inverted(x) or x.value
            if self.needs(value) <= self.settled:
                if value is x.value:
                    self.named(n, layout)
                else:
                    self.held(value, layout, f"{n}_of")

    def _put(self, name: str, layout: Layout) -> None:
        rounded = Cast(Name(self.named(name, layout) if name not in self.layouts else name), "DT")
        self.steps.append(Make(f"{name}_rounded", rounded, layout))
        self.steps.append(Put(name, f"{name}_rounded"))

    def _own_layout(self, x: Code, layout: Layout) -> Layout:
        return layout

    def _ring(self, name: str) -> Ring | None:
        return None if name in self.targets else super()._ring(name)


def _inverted(x: Let) -> Code | None:
    """What a tile is the inverse of I minus."""
    match x.value:
        case Call(function="inverse", arguments=(value, *_)):
            return value
    return None
