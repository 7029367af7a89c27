"""The chunk programs of all sweeps as matrix formulas: `O = diag(a) Q S_0 + ((Q K^T) . M) V`.

A quantity of each step becomes a matrix whose row i holds step i of the chunk (Q for q, V for v; a scalar becomes a vector).
Products of decays get symbols, each defined once; a sweep that runs backwards in time uses the transposes of the same masks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from functools import partial

from ...ir.expr import (
    COL,
    ROW,
    Node,
    canonical_axis,
    factors_of,
    is_of_steps,
    leaf,
    leaves,
    make,
    rebuild,
    rename,
    replace,
    walk,
)
from ...ir.notation import Notation
from ...ir.symbols import STATE_KINDS
from ..chunkwise.chunk_program import ChunkProgram
from ..chunkwise.compiled import Compiled
from ..chunkwise.plan import Plan, Sweep
from ..normal_form.form import NormalForm
from .chunk_symbols import DecaySymbols, Symbols
from .form_notation import Reader, solved_letters
from .formulas import Formula, Section, formula, order_of, sentence, stateless_names
from .lets import form_names, form_terms


def chunk_sections(c: Compiled, symbols: Symbols | None = None) -> Iterator[Section]:
    """The forms over chunks: symbols, the forward sweeps, the backward sweeps."""
    assert c.forward is not None and c.backward is not None
    symbols = symbols or Symbols(set())
    symbols.taken |= set(order_of(c))
    readers = [(plan, Reader(c, plan.form)) for plan in (c.forward, c.backward)]
    symbols.taken |= {x.attrs[1] for _, reader in readers for x in reader.symbols.values()}
    symbols.taken |= {x.attrs[1].rstrip("0123456789") for x in form_terms(c).values()}
    symbols.taken |= {x for plan, _ in readers for x in solved_letters(c, plan.form)}  # several are called P_1, P_2, ..
    passes = []
    for title, (plan, reader) in zip(("forward", "backward"), readers):
        passes.append(Section(f"Over a chunk of C steps, {title}", tuple(_sweeps(c, plan, reader, symbols))))
    if symbols.decays:
        definitions = [
            sentence("i, j and s run over the steps of the chunk.", "$i$, $j$ and $s$ run over the steps of the chunk.")
        ]
        definitions += [f for _, f in symbols.decays.values()]
        yield Section("Products of decays in a chunk", tuple(definitions))
    yield from passes


def _sweeps(c: Compiled, plan: Plan, reader: Reader, symbols: Symbols) -> Iterator[Formula]:
    names = _ChunkNames(c, plan.form, reader, symbols)
    count = len(plan.sweeps)
    for i, sweep in enumerate(plan.sweeps):
        way = "first chunk to the last" if sweep.direction > 0 else "last chunk to the first"
        shown = list(_ChunkFormulas(c, sweep, names, symbols).formulas())
        known = "" if shown else f", with {' and '.join(sweep.states)} as above"  # which was printed
        yield sentence(f"{'The only sweep' if count == 1 else f'Sweep {i + 1}'} goes from the {way}{known}.")
        yield from shown


class _ChunkNames:
    """Names of the rows-of-steps matrices."""

    def __init__(self, c: Compiled, form: NormalForm, reader: Reader, symbols: Symbols) -> None:
        self.c, self.form, self.reader, self.symbols = c, form, reader, symbols
        self.declared = set(order_of(c))
        self.lets = stateless_names(c.step) | form_terms(c)
        self.pending: list[Formula] = []  # what symbols that were introduced on the way stand for
        self.known: dict[tuple, Node] = {}
        reads = {reader.spelled(x): x for x in form.reads}
        over = {replace(x, reads): symbol for x, symbol in form_names(c).items() if x not in self.lets}
        self.of_reads = {x: n for x, n in over.items() if not any(y.attrs[0] in STATE_KINDS for y in leaves(x))}
        values = {x: n for n, x in form.values.items() if x.op == "leaf"}
        for x in form.reads:
            if x in values:
                self.known[x.attrs[:2]] = leaf("chunk", self.capital(values[x], len(x.axes)), (ROW, *x.attrs[2]))
        for x, symbol in reader.symbols.items():
            name = values.get(x, symbol.attrs[1])
            self.known[x.attrs[:2]] = leaf("chunk", self.capital(name, len(x.axes)), (ROW, *x.attrs[2]))

    def stateful(self) -> dict[Node, Node]:
        """Symbols of the auxiliary quantities that depend on states, over the rows and columns of a chunk, as far as
        the reads that they are made of have been printed."""
        found: dict[Node, Node] = {}
        for x, symbol in self.of_reads.items():
            if all(y.attrs[:2] in self.known for y in leaves(x) if y.attrs[0] in ("read", "write")):
                name, axes = symbol.attrs[1:]
                row = leaf("chunk", self.capital(name, len(axes)), (ROW, *axes))
                found |= {self.over_rows(x): row, rename(self.over_rows(x), {ROW: COL}): rename(row, {ROW: COL})}
        return found

    def capital(self, name: str, axes: int) -> str:
        d, base = ("d", name[1:]) if name[:1] == "d" and name[1:] in self.declared else ("", name)
        head = base.rstrip("0123456789")
        if axes == 0 or len(head) != 1 or head.upper() in {*self.declared, "I"}:
            return name
        return d + head.upper() + base[len(head) :]

    def over_rows(self, x: Node) -> Node:
        """A step-level node over the steps of a chunk."""
        table = {}
        for y in walk(x):
            if y in self.lets:
                name, axes = self.lets[y].attrs[1:]
                table[y] = leaf("chunk", self.capital(name, len(axes)), (ROW, *axes))
            if y.op != "leaf":
                continue
            kind, name, axes = y.attrs
            if kind == "state-adjoint product":
                table[y] = self.of_state_adjoint(y)
            elif kind in ("read", "write"):
                known = self.of_read(y)
                table[y] = rename(known, dict(zip(known.attrs[2][1:], axes, strict=True)))
            elif kind in ("input", "decay", "cotangent"):
                table[y] = leaf("chunk", self.capital(name, len(axes)), (ROW, *axes))
        return _substituted(x, table)

    def of_read(self, y: Node) -> Node:
        """The symbol of a read or a solved write; a read that isn't a result by itself is called Y."""
        key = y.attrs[:2]
        if key not in self.known:
            self.known[key] = leaf("chunk", self.symbols.numbered("read"), (ROW, *y.attrs[2]))
        return self.known[key]

    def of_state_adjoint(self, y: Node) -> Node:
        """The symbol of a sum over the steps that follow, which sweeps have made and a later one uses."""
        key = y.attrs[:2]
        if key not in self.known:
            symbol = leaf("chunk", self.symbols.numbered("read"), (ROW, *y.attrs[2]))
            self.known[key] = symbol
            self.pending.append(
                formula(self.c, partial(self.state_adjoint_text, symbol=symbol, meaning=self.reader.spelled(y)))
            )
        return rename(self.known[key], dict(zip(self.known[key].attrs[2][1:], y.attrs[2], strict=True)))

    def state_adjoint_text(self, n: Notation, symbol: Node, meaning: Node) -> str:
        return f"[{n.text(symbol)}]_{{t}} = {n.text(meaning)}" if n.tex else f"[{n.text(symbol)}]_t = {n.text(meaning)}"


class _Introduced:
    """Symbols that formulas introduce on the way, each once: of inverses, of inner quantities and of sums."""

    def __init__(self, symbols: Symbols) -> None:
        self.symbols = symbols
        self.inverses: dict[Node, Node] = {}
        self.inner: dict[Node, Node] = {}
        self.pending: list[tuple[Node, Node]] = []  # symbols that were introduced since, with what they stand for

    def taken(self) -> list[tuple[Node, Node]]:
        pending, self.pending = self.pending, []
        return pending

    def symbol(self, kind: str, axes: tuple[str, ...], meaning: Node) -> Node:
        symbol = leaf("chunk", self.symbols.numbered(kind), axes)
        self.pending.append((symbol, meaning))
        return symbol


class _ChunkFormulas:
    """The formulas of one sweep."""

    def __init__(self, c: Compiled, sweep: Sweep, names: _ChunkNames, symbols: Symbols) -> None:
        self.c, self.sweep, self.names, self.symbols = c, sweep, names, symbols
        self.chunk: ChunkProgram = sweep.chunk
        self.decays = DecaySymbols(c, sweep, names.reader, symbols)
        self.streams = {x.attrs[:2]: x for x in self.chunk.streams}
        self.inner = {x.attrs[:2]: x for x in self.chunk.definitions}
        self.memo: dict[Node, Node] = {}
        self.introduced = _Introduced(symbols)
        self.crowded = sum(x.op == "inverse" for x in walk(*self.chunk.definitions.values())) > 1
        self.solved: dict[tuple, Node] = {}  # inner quantities that have been printed as a solved write

    def formulas(self) -> Iterator[Formula]:
        for x, node in self.chunk.outputs.items():
            left = self.names.of_read(x)
            meaning = x if x in self.names.form.reads and self.symbols.is_numbered(left.attrs[1]) else None
            yield from self.line(left, node, left.attrs[2], x.attrs[:2], meaning)
            if node.op == "leaf" and node.attrs[0] == "inner":
                self.solved[node.attrs[:2]] = left
                self.memo.clear()
        for name, node in self.chunk.states.items():
            end = "C" if self.sweep.direction > 0 else "0"
            axes = self.chunk.state_axes[name]
            yield from self.line(leaf("chunk", f"{name}_{end}", axes), node, axes, ("state", name))

    def line(
        self, left: Node, node: Node, axes: tuple[str, ...], key: tuple[str, str], meaning: Node | None = None
    ) -> Iterator[Formula]:
        right = self.named(self.visit(node))
        pending = self.introduced.taken()
        yield from self.names.pending
        self.names.pending.clear()
        self.symbols.sides.setdefault(key, (left, right))
        if (left, right) in self.symbols.printed:
            return
        self.symbols.printed.add((left, right))
        for symbol, body in pending:
            yield self.equation(symbol, body, symbol.attrs[2])
        yield dataclasses.replace(self.equation(left, right, axes, meaning), of=(left, right))

    def equation(self, left: Node, right: Node, axes: tuple[str, ...], meaning: Node | None = None) -> Formula:
        def write(n: Notation) -> str:
            if len(right.axes) > 2 or self.wants_indices(right):
                return f"{n.indexed_symbol(left)} = {n.indexed(right).text}"
            text = f"{n.text(left, axes)} = {n.text(right, axes)}"
            if meaning is not None:
                rows = n.text(self.names.reader.read(meaning))
                text += rf"\quad (\mathrm{{row}}\ t:\ {rows})" if n.tex else f"   (row t: {rows})"
            return text

        return formula(self.c, write, {x: n for x, n in self.names.stateful().items() if x is not right})

    # --- from chunk programs to what is printed -----------------------------------------------------------------------

    def visit(self, x: Node) -> Node:
        if x not in self.memo:
            self.memo[x] = self._visit(x)
        return self.memo[x]

    def _visit(self, x: Node) -> Node:
        if x.op in ("decay_mask", "order_mask", "decay_in", "decay_out", "decay_all"):
            return self.decays.symbol(x)
        if x.op in ("transition_mask", "transition_in", "transition_out", "transition_all"):
            return self.decays.transition_symbol(x)
        if x.op == "inverse":
            if x not in self.introduced.inverses:
                symbol = self.visit(x.args[0])
                axes = (
                    ROW,
                    COL,
                    *(a for a in x.axes if a not in (ROW, COL)),
                )  # a channel: each has a system of its own
                if symbol.op != "leaf":
                    symbol = self.introduced.symbol("solve", axes, self.named(self.visit(x.args[0])))
                self.introduced.inverses[x] = make("inverse", (symbol,), (), axes)
            return self.introduced.inverses[x]
        if x.op == "leaf":
            kind, name, order = x.attrs
            if x.attrs[:2] in self.streams:
                own = self.streams[x.attrs[:2]]
                value = self.names.over_rows(self.chunk.streams[own])
                return _renamed(value, dict(zip(own.attrs[2], order, strict=True)))
            if x.attrs[:2] in self.solved:
                known = self.solved[x.attrs[:2]]
                own = self.inner[x.attrs[:2]]
                return _renamed(known, dict(zip(own.axes, x.axes, strict=True)))
            if x.attrs[:2] in self.inner:
                own = self.inner[x.attrs[:2]]
                value = self.visit(self.chunk.definitions[own])
                if self.crowded and value.op not in ("leaf", "inverse") and own not in self.chunk.outputs.values():
                    value = self.inner_symbol(own, value)
                return _renamed(value, dict(zip(own.axes, x.axes, strict=True)))
            if kind == "state in":
                return leaf("state in", f"{name}_{'0' if self.sweep.direction > 0 else 'C'}", order)
            return x
        return rebuild(x, (self.visit(a) for a in x.args))

    def inner_symbol(self, own: Node, value: Node) -> Node:
        """The symbol of an inner quantity: where several writes are solved for, formulas without them grow too long."""
        rows = tuple(a for a in (ROW, COL) if a in own.axes)
        known = self.introduced.inner
        if own not in known:
            axes = (*rows, *(a for a in own.axes if a not in rows))
            known[own] = self.introduced.symbol("inner", axes, self.named(value))
        return known[own]

    # --- what matrix notation can't say -------------------------------------------------------------------------------

    def named(self, x: Node) -> Node:
        """x with a symbol in the place of each sum in which three axes meet."""
        done: dict[Node, Node] = {}
        for y in walk(x):
            node = rebuild(y, (done[a] for a in y.args)) if y.args else y
            if self.wants_indices(node) and node is not x and len(node.axes) <= 2:
                node = self.sum_symbol(node)
            done[y] = node
        return done[x]

    def sum_symbol(self, x: Node) -> Node:
        """A symbol for a sum; it is defined with the steps named i and j, whatever x calls them."""
        steps = sorted((a for a in x.axes if is_of_steps(a)), key=lambda a: (a != ROW, a != COL, a))
        canonical = _renamed(x, dict(zip(steps, (ROW, COL), strict=False)))
        others = tuple(a for a in x.axes if a not in steps)
        if canonical not in self.symbols.sums:
            axes = (*(ROW, COL)[: len(steps)], *others)
            self.symbols.sums[canonical] = self.introduced.symbol("sum", axes, canonical).attrs[1]
        return leaf("chunk", self.symbols.sums[canonical], (*steps, *others))

    def wants_indices(self, x: Node) -> bool:
        return x.op == "sum" and any(len(f.axes) > 2 for f in factors_of(x.args[0]))


def _substituted(x: Node, table: dict[Node, Node]) -> Node:
    """x with leaves replaced by nodes that may have one axis more."""
    done: dict[Node, Node] = {}
    for y in walk(x):
        done[y] = table[y] if y in table else rebuild(y, (done[a] for a in y.args)) if y.args else y
    return done[x]


def _renamed(x: Node, mapping: dict[str, str]) -> Node:
    """rename, where a new name may be a bound one's or trade places."""
    mapping = {a: b for a, b in mapping.items() if a in x.axes and a != b}
    if set(mapping.values()) & (set(x.axes) - set(mapping)):
        spare = {a: canonical_axis(a, {*x.axes, *mapping.values()}) for a in mapping}
        x = rename(x, spare)
        mapping = {spare[a]: b for a, b in mapping.items()}
    return rename(x, mapping)
