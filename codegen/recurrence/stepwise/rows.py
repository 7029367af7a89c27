"""A step over states that no program can hold: in passes over blocks of their rows, which stay in memory.

Where reads contract both axes, a state can't be cut into tiles that never need each other, and a wide one doesn't fit in
registers. Then a step is taken in passes. A pass loads a block of rows at a time, and works out sums over a state's entries,
vectors that the next pass may use; the last one writes the states' rows. Vectors go through memory, since a block of rows needs
its own part of them. Everything else, scalars and what is made of vectors alone, is computed between the passes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ...ir.code import Code, Literal, Load, Name, call, shape, summed, zeros
from ...ir.expr import Node, dim_of, leaf, leaves, rename, replace, total, walk
from ...ir.kernel_ir import Barrier, For, Let, Statement, Store, added, let
from ...ir.step_program import DECAYS, StepProgram
from ...printing.expressions import FINITE, ZERO, NodePrinter, Triton
from .kernel import Kernel, Pointer

ROW = "row"
MATRICES = ("state", "trajectory")


@dataclass(frozen=True)
class Contraction:
    """A sum over a state's entries, a vector over `dim`. `body` runs over ROW; the sum is over its rows, or along them."""

    name: str
    body: Node
    bound: str
    along: bool
    dim: str


@dataclass
class RowPlan:
    """Contractions pass by pass; the matrices' updates, over ROW, and all else, with contractions as leaves of kind `known`."""

    row: str
    column: str
    levels: list[list[Contraction]]
    updates: dict[str, Node]
    rest: dict[str, Node]


def row_plan(updates: dict[str, Node], rest: dict[str, Node], axes: dict[str, tuple[str, ...]]) -> RowPlan | None:
    """The passes of a step, or None where a program has to hold the states whole.

    `updates` and `axes` are those of all states; `rest` are the outputs.
    """
    shapes = {a for a in axes.values() if len(a) == 2}
    if len(shapes) != 1:
        return None
    ((row, column),) = shapes
    wide = {n: x for n, x in updates.items() if len(axes[n]) == 2}
    nodes = {**{n: x for n, x in updates.items() if n not in wide}, **rest}
    if any(_unfit(x) for x in (*wide.values(), *nodes.values())):
        return None
    everything = {**wide, **nodes}
    levels: list[list[Contraction]] = []
    names: dict[Node, str] = {}
    while True:
        found = [x for x in walk(*everything.values()) if _is_wide(x) and not any(map(_is_wide, walk(*x.args)))]
        if not found:
            break
        level: dict[str, Contraction] = {}
        mapping = {}
        for x in found:
            key = rename(x, {a: dim_of(a) for a in x.axes})
            name = names.setdefault(key, f"sum{len(names) + 1}")
            mapping[x] = leaf("known", name, x.axes)
            if name not in level:
                made = _contraction(name, x, dim_of(row), dim_of(column))
                if made is None:
                    return None
                level[name] = made
        levels.append(list(level.values()))
        everything = {n: replace(x, mapping) for n, x in everything.items()}
    if any(len(everything[n].axes) > 1 for n in nodes):
        return None
    for n in wide:
        roles = _roles(everything[n])
        if roles.get(row, 0) != 0 or roles.get(column, 1) != 1:
            return None
    written = {n: rename(everything[n], {row: ROW}) for n in wide}
    return RowPlan(dim_of(row), dim_of(column), levels, written, {n: everything[n] for n in nodes})


def _is_wide(x: Node) -> bool:
    """Is x a sum over the entries of matrices?"""
    return x.op == "sum" and len(x.args[0].axes) > 1


def _unfit(x: Node) -> bool:
    """Products of matrices, identities and matrices other than states aren't taken by rows."""
    return any(
        len(y.axes) > 2
        or y.op == "eye"
        or (y.op == "leaf" and len(y.axes) == 2 and y.attrs[0] not in MATRICES)
        or (y.op == "sum" and len(y.args[0].axes) > 2)
        or (y.op == "peak" and len(y.args[0].axes) > 1)
        for y in walk(x)
    )


def _roles(x: Node) -> dict[str, int]:
    """For each axis of an expression whether states have it as their first (0) or second; -1 where they disagree."""
    roles: dict[str, int] = {}
    for y in leaves(x):
        if len(y.axes) == 2:
            for i, a in enumerate(y.attrs[2]):
                roles[a] = i if roles.get(a, i) == i else -1
    return roles


def _contraction(name: str, x: Node, row_dim: str, column_dim: str) -> Contraction | None:
    """A sum over rows or along them, as the states in it lie; where it has none, as the dims of its axes say."""
    (bound,), body = x.attrs, x.args[0]
    roles = _roles(body)
    (free,) = (a for a in body.axes if a != bound)
    for row, column in ((free, bound), (bound, free)):
        fits = roles.get(row, 0) == 0 and roles.get(column, 1) == 1
        if fits and (dim_of(row), dim_of(column)) == (row_dim, column_dim):
            break
    else:
        return None
    along = column == bound
    return Contraction(name, rename(body, {row: ROW}), ROW if row == bound else bound, along, dim_of(free))


# --- statements -----------------------------------------------------------------------------------------------------


class RowStatements:
    """The passes of one program. `vectors` has the pointers of arguments, which blocks of rows read for themselves; `place` is
    the number of a program."""

    def __init__(
        self,
        k: Kernel,
        program: StepProgram,
        plan: RowPlan,
        scratch: Pointer,
        vectors: dict[str, Pointer],
        place: Code,
    ) -> None:
        self.k, self.program, self.plan, self.scratch, self.vectors = k, program, plan, scratch, vectors
        self.place = place
        self.slots: dict[tuple[str, str], int] = {}
        self.decays = {v.name for v in program.variables if v.is_decay}

    def statements(self, read: dict[str, Code], write: dict[str, Code]) -> tuple[list[Statement], dict[str, Node]]:
        """The passes, from the states at the addresses `read` to those at `write`, and what is left to compute."""
        plan = self.plan
        passes: list[tuple[list[Contraction], dict[str, Node]]] = [(level, {}) for level in plan.levels]
        names = {x.name for x in plan.levels[-1]} if plan.levels else set()
        late = any(y.attrs[1] in names for x in plan.updates.values() for y in leaves(x) if y.attrs[0] == "known")
        if late or not passes:
            passes.append(([], plan.updates))
        else:
            passes[-1] = (plan.levels[-1], plan.updates)
        inner = [x for level, updates in passes for x in self._pass(level, updates, read, write)]
        return [*self._kept(), *inner], plan.rest

    def _kept(self) -> list[Statement]:
        """Vectors in registers that blocks of rows read their part of."""
        row = self.plan.row
        found: list[Statement] = [
            Store(self._slot(key, f"at_{row}"), Name(self.k.names.of("state", key[1])), Name(f"in_{row}"))
            for key in self.slots
            if key[0] != "known"
        ]
        return [*found, Barrier()] if found else []

    def _pass(
        self, level: list[Contraction], updates: dict[str, Node], read: dict[str, Code], write: dict[str, Code]
    ) -> list[Statement]:
        found, bodies = self._numbers({x.name: x.body for x in level} | updates)
        nodes = {x.name: total(bodies[x.name], x.bound) for x in level} | {n: bodies[n] for n in updates}
        sums = {x.name: self.k.names.fresh(f"{x.name}_all") for x in level if not x.along}
        column = self.plan.column
        found += [let(name, zeros(shape(f"block_{column}"))) for name in sums.values()]
        block: list[Statement] = []
        used = {y.attrs[:2]: y for y in leaves(*nodes.values()) if ROW in y.axes}
        for (kind, name), y in sorted(used.items(), key=lambda item: (-len(item[1].axes), item[0])):
            if len(y.axes) == 2:
                block.append(let(self.k.names.leaf(y), row_load(read[name], column).to("tl.float32")))
            else:
                block.append(let(self._row_name(kind, name), self._slice(kind, name)))
        orders: dict[str, tuple[str, ...]]
        orders = {n: (ROW, next(a for a in bodies[n].axes if a != ROW)) for n in updates if len(bodies[n].axes) == 2}
        inner, results = self._values(nodes, orders)
        block += inner
        for x in level:
            if x.along:
                block.append(Store(self._slot(("known", x.name), "at_row"), results[x.name], Name("in_row")))
            else:
                block.append(added(sums[x.name], results[x.name]))
        block += [row_store(write[n], column, results[n]) for n in updates]
        found.append(row_loop(self.plan.row, column, block))
        found += [
            Store(self._slot(("known", n), f"at_{column}"), Name(name), Name(f"in_{column}"))
            for n, name in sums.items()
        ]
        found.append(Barrier())
        for x in level:
            load = Load(self._slot(("known", x.name), f"at_{x.dim}"), Name(f"in_{x.dim}"), Literal(0.0))
            found.append(let(self.k.names.of("known", x.name), load))
        return found

    def _numbers(self, nodes: dict[str, Node]) -> tuple[list[Statement], dict[str, Node]]:
        """Statements for the sums over vectors that nodes need, which become leaves."""
        sums = list(dict.fromkeys(x for x in walk(*nodes.values()) if x.op in ("sum", "peak") and not x.axes))
        if not sums:
            return [], nodes
        names = {x: self.k.names.fresh("number") for x in sums}
        found: list[Statement] = []
        made, results = self._values({names[x]: x for x in sums}, {})
        mapping = {x: leaf("known", name, ()) for x, name in names.items()}
        for name in names.values():
            self.k.names.known["known", name] = name
        found += [*made, *(let(name, value) for name, value in results.items())]
        return found, {n: replace(x, mapping) for n, x in nodes.items()}

    def _values(self, nodes: dict[str, Node], orders: dict[str, tuple[str, ...]]) -> tuple[list[Let], dict[str, Code]]:
        def of(prefix: str) -> Callable[[str], str]:
            return lambda d: f"{prefix}_{self.plan.row if d == ROW and prefix == 'size' else d}"

        printer = NodePrinter(Triton(of("size"), of("at"), of("in"), of("block")), prefix="r", taken=self.k.names.taken)
        made, results = printer.values(
            nodes,
            lambda x: self._row_name(*x.attrs[:2]) if x.attrs[2] == (ROW,) else self.k.names.leaf(x),
            orders=orders,
            padding=lambda x: FINITE if x.attrs[0] in DECAYS else ZERO,
        )
        return [let(name, x) for name, x in made], results

    def _row_name(self, kind: str, name: str) -> str:
        return self.k.names.of(f"row of {kind}", f"{name}_row")

    def _slice(self, kind: str, name: str) -> Code:
        """A block of rows' part of a vector."""
        if name in self.vectors and kind != "known":
            return self.k.load_strided(self.vectors[name], name in self.decays, (ROW,))
        return Load(self._slot((kind, name), "at_row"), Name("in_row"), Literal(0.0))

    def _slot(self, key: tuple[str, str], at: str) -> Code:
        """The addresses of a vector's entries in the scratch memory of this program."""
        number = self.slots.setdefault(key, len(self.slots))
        wide = Name(f"size_{self.plan.row}") + f"size_{self.plan.column}"
        return Name(self.scratch.name) + (self.place * "slots" + number) * wide + at


def row_loop(row: str, column: str, block: Iterable[Statement]) -> For:
    """A loop over blocks of rows; the statements of one come after what it has in the place of the indices of the row's dim."""
    at, ok = Name("at_row"), Name("in_row")
    indices = (
        let("at_row", Name("block") * "block_row" + call("tl.arange", 0, "block_row")),
        let("wide_row", call("tl.cast", "at_row", "tl.int64")),
        let("in_row", at < f"size_{row}"),
        let(f"at_row_{column}", at.along(0, 2) * f"size_{column}" + Name(f"at_{column}").along(1, 2)),
        let(f"in_row_{column}", ok.along(0, 2) & Name(f"in_{column}").along(1, 2)),
    )
    return For("block", call("range", call("tl.cdiv", f"size_{row}", "block_row")), (*indices, *block))


def row_load(address: Code, column: str) -> Load:
    """A block of a state's rows."""
    return Load(summed(address, Name(f"at_row_{column}")), Name(f"in_row_{column}"), Literal(0.0))


def row_store(address: Code, column: str, value: Code) -> Store:
    return Store(summed(address, Name(f"at_row_{column}")), value, Name(f"in_row_{column}"))


def row_copy(row: str, column: str, source: Code, target: Code) -> list[Statement]:
    """Statements that copy a state, rows after rows."""
    return [row_loop(row, column, [row_store(target, column, row_load(source, column))]), Barrier()]
