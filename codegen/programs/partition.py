"""Pass 1 of a program, partition: its equations -> a graph of ops.

An equation that reads states becomes a recurrence that carries those states, and what they need; one that reads none becomes a
map. Equations that read the same states, none of which needs another, share one recurrence: the states are swept once. A vector
that is defined with `let` is handed from one op to the next, unless the states that it reads also need it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import networkx as nx

from chunkform.errors import SpecError
from chunkform.spec.language import Matrix, Recurrence
from chunkform.spec.language.applying import Applied
from chunkform.spec.language.attention import Attention
from chunkform.spec.language.methods import sherman_morrison
from chunkform.spec.language.program import Program, Solve
from chunkform.spec.language.rank_one import inverse_recurrence
from chunkform.spec.language.recurrence import Equation, Variable, dims_of, symbol_of
from chunkform.spec.language.terms import applied, names_in, renamed

from ..attention.pipeline import compile_attention
from ..recurrence.pipeline import compile_spec
from ..recurrence.step.lower import lower
from .attending import AttentionOperation
from .graph import Graph, Node, Operation, OpNode, SolveNode


class _Map(Recurrence):
    """A recurrence without states."""

    def validate(self) -> Recurrence:
        return self


def partition(p: Program) -> Graph:
    """The graph of a program."""
    return _Partition(p).graph()


class _Operations:
    """The operations of a program's nodes: one for all nodes that do the same; and names, which nobody has twice."""

    def __init__(self) -> None:
        self.known: dict[str, Operation | AttentionOperation] = {}
        self.counts: dict[str, int] = {}

    def recurrence(self, r: Recurrence, vector: str | None = None) -> Operation:
        """The compiled recurrence: one that is known already, where it says the same."""
        p = lower(r)
        said = [repr(p.dims), repr(vector), repr([(v.name, v.kind, v.axes, v.default) for v in p.variables])]
        said += [repr((s.name, s.axes, s.initial.key if s.initial is not None else "")) for s in p.states]
        said += [f"{n} {x.key}" for n, x in (*p.updates.items(), *p.outputs.items())]
        key = hashlib.sha256("\n".join(said).encode()).hexdigest()
        if key not in self.known:
            self.known[key] = Operation(r.name, compile_spec(r), vector)
        found = self.known[key]
        assert isinstance(found, Operation)
        return found

    def attention(self, a: Applied) -> AttentionOperation:
        """The compiled attention: one that is known already, where it is the same one, given the same."""
        assert isinstance(a.op, Attention)
        key = f"attention {id(a.op)} {sorted(a.inputs)} {sorted(a.numbers.items())}"
        if key not in self.known:
            known = (op.attention for op in self.known.values() if isinstance(op, AttentionOperation))
            c = next((x for x in known if x.spec is a.op), None) or compile_attention(a.op)
            self.known[key] = AttentionOperation(
                self.unique(a.op.name), c, tuple(a.inputs), tuple(sorted(a.numbers.items()))
            )
        found = self.known[key]
        assert isinstance(found, AttentionOperation)
        return found

    def unique(self, name: str) -> str:
        self.counts[name] = self.counts.get(name, 0) + 1
        return name if self.counts[name] == 1 else f"{name}_{self.counts[name]}"


class _Partition:
    def __init__(self, p: Program) -> None:
        self.p, self.r = p.validate(), p.step
        self.lets = {x.name: x for x in self.r.lets}
        self.updates = {x.name: x for x in self.r.updates}
        self.kinds = {v.name: v.kind for v in self.r.variables}
        self.solves = {s.name: s for s in p.solves}
        self.applied = {q: a for a in p.applied for q in a.outputs.values()}
        self.equations: dict[str, Equation] = {}
        self.aliases: dict[str, str] = {}
        self.operations = _Operations()
        self.needs = self._needs()
        self.inner = self._inner()
        self._collect()

    # --- what needs what --------------------------------------------------------------------------------------------

    def _needs(self) -> nx.DiGraph:
        """States, lets and solves, with an edge from each to what mentions it."""
        g: nx.DiGraph = nx.DiGraph()
        for s in self.r.states:
            g.add_node(("state", s.name))
        for name, x in self.updates.items():
            g.add_edges_from((n, ("state", name)) for n in self.mentioned(x.term))
        for name, x in self.lets.items():
            g.add_node(("let", name))
            g.add_edges_from((n, ("let", name)) for n in self.mentioned(x.term))
        for name, solve in self.solves.items():
            terms = (solve.matrix, solve.right, *(() if solve.step is None else (solve.step,)))
            g.add_edges_from((n, ("solved", name)) for t in terms for n in self.mentioned(t))
        for name, a in self.applied.items():
            used = [q for q in a.inputs.values() if self.kind(q) in ("let", "solved")]
            g.add_edges_from(((self.kind(q), q), ("solved", name)) for q in used)
        return g

    def kind(self, name: str) -> str:
        return "let" if name in self.lets else self.kinds.get(name, "state")

    def mentioned(self, term: object) -> Iterable[tuple[str, str]]:
        for name, kind in names_in(term).items():
            if kind == "state":
                yield "state", name.partition(".")[0]
            elif kind in ("let", "solved"):
                yield kind, name

    def _inner(self) -> set[str]:
        """Lets that a state both feeds and needs."""
        found: set[str] = set()
        for together in nx.strongly_connected_components(self.needs):
            states = [n for k, n in together if k == "state"]
            solved = [n for k, n in together if k == "solved"]
            if solved and states:
                raise SpecError(
                    f"{solved[0]} is solved for with {states[0]}, which needs it: a step can't both solve and be solved for",
                    self.solves[solved[0]].where if solved[0] in self.solves else None,
                )
            if states:
                found |= {n for k, n in together if k == "let"}
        return found

    def is_matrix(self, name: str) -> bool:
        term = self.lets[name].term
        return isinstance(term, Matrix) and not term.is_vector

    def inlined(self, name: str) -> bool:
        """Is a let part of the recurrences that mention it, not a quantity that one op hands to the next?"""
        return name in self.inner or self.is_matrix(name)

    def closure(self, *terms: object) -> tuple[list[str], list[str], list[str]]:
        """(states, inlined lets, other names) that a recurrence with these terms needs, in the order of the spec."""
        states: set[str] = set()
        lets: set[str] = set()
        others: dict[str, None] = {}
        todo = list(terms)
        while todo:
            for name, kind in names_in(todo.pop()).items():
                if kind == "state":
                    base = name.partition(".")[0]
                    if base not in states:
                        states.add(base)
                        todo.append(self.updates[base].term)
                        initial = next(s for s in self.r.states if s.name == base).initial
                        todo += [] if initial is None else [initial]
                elif kind == "let" and self.inlined(name):
                    if name not in lets:
                        lets.add(name)
                        todo.append(self.lets[name].term)
                else:
                    others[name] = None
        return (
            [s.name for s in self.r.states if s.name in states],
            [x.name for x in self.r.lets if x.name in lets],
            list(others),
        )

    # --- equations and their order ----------------------------------------------------------------------------------

    def _collect(self) -> None:
        """Equations that nodes are made of: lets, right sides, step sizes, outputs."""
        for x in self.r.lets:
            if not self.inlined(x.name):
                self.equations[x.name] = x
        for s in self.p.solves:
            self.aliases[f"{s.name} right"] = self._alias(s.right, self.free(f"{s.name}_right"), s)
            if s.step is not None and not getattr(s.step, "is_number", False):
                self.aliases[f"{s.name} step"] = self._alias(s.step, self.free(f"{s.name}_step"), s)
        for x in self.r.outputs:
            found = names_in(x.term)
            one = next(iter(found)) if len(found) == 1 else None
            known = (
                one is not None and found[one] in ("let", "solved") and not (found[one] == "let" and self.inlined(one))
            )
            if known and x.term == symbol_of(one, found[one], dims_of(x.term)):  # type: ignore[index, arg-type]
                self.aliases[f"output {x.name}"] = one  # type: ignore[assignment]
            else:
                self.equations[x.name] = x
                self.aliases[f"output {x.name}"] = x.name

    def _alias(self, term: object, name: str, s: Solve) -> str:
        found = names_in(term)
        for one, kind in found.items():
            whole = (
                len(found) == 1 and kind in ("input", "let", "solved") and term == symbol_of(one, kind, dims_of(term))
            )
            if whole and not (kind == "let" and self.inlined(one)):
                return one
        self.equations[name] = Equation(name, term, s.where)
        return name

    def quantities(self, name: str) -> list[str]:
        """The quantities, other than arguments, that one is made from."""
        if name in self.applied:
            used = list(self.applied[name].inputs.values())
        elif name in self.solves:
            s = self.solves[name]
            used = [self.aliases[f"{name} right"], *self.closure(s.matrix)[2]]
            used += [self.aliases[f"{name} step"]] if f"{name} step" in self.aliases else []
        else:
            used = self.closure(self.equations[name].term)[2]
        return [q for q in used if q in self.equations or q in self.solves or q in self.applied]

    def order(self) -> list[str]:
        """Quantities that outputs need, each after what it is made from."""
        g: nx.DiGraph = nx.DiGraph()
        todo = [self.aliases[f"output {x.name}"] for x in self.r.outputs]
        while todo:
            q = todo.pop()
            if q in g and g.nodes[q].get("seen"):
                continue
            g.add_node(q, seen=True)
            for other in self.quantities(q):
                g.add_edge(other, q)
                todo.append(other)
        known = [*self.equations, *self.solves, *self.applied]
        return list(nx.lexicographical_topological_sort(g, key=lambda q: known.index(q)))

    # --- nodes ------------------------------------------------------------------------------------------------------

    def graph(self) -> Graph:
        """Walk the quantities in order; those that read the same states join a node that doesn't come before them."""
        groups: list[tuple[tuple[str, ...], list[str]]] = []
        node_of: dict[str, int] = {}
        before: list[set[int]] = []
        for q in self.order():
            earlier = {node_of[x] for x in self.quantities(q)}
            earlier |= {b for n in earlier for b in before[n]}
            key: tuple[str, ...] = ()
            if q in self.equations:
                key = tuple(self.closure(self.equations[q].term)[0])
            elif q in self.applied:
                key = ("applied", str(self.p.applied.index(self.applied[q])))
            same = [n for n, (k, _) in enumerate(groups) if k == key and key and n not in earlier]
            if same:
                groups[same[0]][1].append(q)
                node_of[q] = same[0]
                before[same[0]] |= earlier
                for n, b in enumerate(before):
                    if same[0] in b:
                        before[n] = b | before[same[0]]
            else:
                node_of[q] = len(groups)
                groups.append((key, [q]))
                before.append(earlier)
        order: nx.DiGraph = nx.DiGraph()
        order.add_nodes_from(range(len(groups)))
        order.add_edges_from(
            (node_of[x], node_of[q]) for q in node_of for x in self.quantities(q) if node_of[x] != node_of[q]
        )
        nodes: list[Node] = [self.node(groups[n][1]) for n in nx.lexicographical_topological_sort(order)]
        states = [s.name for s in self.r.states] + [x for a in self.p.applied for x in a.states.values()]
        finals = {}
        for s in states:
            with_it = [n for n in nodes if s in n.states.values()]
            if not with_it:
                where = next((x.where for x in self.r.states if x.name == s), self.p.where)
                raise SpecError(f"the state {s} is never read: no output needs it", where)
            plain = [n for n in with_it if not (isinstance(n, OpNode) and n.inverted)]
            finals[s] = (plain or with_it)[0].name
        outputs = {x.name: self.aliases[f"output {x.name}"] for x in self.r.outputs}
        return Graph(self.p, tuple(nodes), outputs, finals, self.dims())

    def dims(self) -> dict[str, tuple[str, ...]]:
        """The dims of each quantity and state."""
        out = {v.name: tuple(d.name for d in v.dims) for v in self.r.variables}
        out |= {q: tuple(d.name for d in dims_of(x.term)) for q, x in self.equations.items()}
        out |= {s.name: tuple(d.name for d in s.dims) for s in self.r.states}
        for a in self.p.applied:
            mine = self._applied_dims(a)
            for s in a.op.states if isinstance(a.op, Recurrence) else ():
                out[a.states[s.name]] = tuple(mine[d.name] for d in s.dims)
            for x in a.op.outputs:
                out[a.outputs[x.name]] = tuple(mine[d.name] for d in dims_of(x.term))
        return out

    def node(self, quantities: list[str]) -> Node:
        q = quantities[0]
        if q in self.applied:
            return self._applied_node(self.applied[q])
        if q in self.solves:
            return self._solve_node(self.solves[q])
        return self._op_node(quantities)

    def _op_node(self, quantities: list[str]) -> OpNode:
        equations = [self.equations[q] for q in quantities]
        r, inputs, outputs = self.recurrence(quantities[0], equations)
        dims = {d.name: d.name for d in r.dim_list}
        return OpNode(
            quantities[0], self.operations.recurrence(r), inputs, {s.name: s.name for s in r.states}, outputs, dims
        )

    def _applied_node(self, a: Applied) -> OpNode:
        op = self.operations.attention(a) if isinstance(a.op, Attention) else self.operations.recurrence(a.op)
        return OpNode(
            next(iter(a.outputs.values())), op, dict(a.inputs), dict(a.states), dict(a.outputs), self._applied_dims(a)
        )

    def _applied_dims(self, a: Applied) -> dict[str, str]:
        mine: dict[str, str] = {}
        sizes = {v.name: v.dims for v in self.r.variables} | {x.name: dims_of(x.term) for x in self.r.lets}
        for v in a.op.variables:
            if v.name in a.inputs:
                mine |= {own.name: d.name for own, d in zip(v.dims, sizes[a.inputs[v.name]], strict=True)}
        return mine

    def _solve_node(self, s: Solve) -> Node:
        right = self.aliases[f"{s.name} right"]
        if isinstance(s.method, sherman_morrison):
            return self._inverse_node(s, right)
        vector = self.free("p")
        p = Matrix("symbol", (vector, "input"), s.matrix.cols, s.right.cols)
        y = Equation("y", applied(s.matrix, p, self.lets), s.where)
        r, inputs, _ = self.recurrence(
            f"{s.name}_system", [y], extra=(Variable(vector, "input", (s.matrix.cols,), s.where),)
        )
        op = self.operations.recurrence(r, vector)
        step: Any = self.aliases.get(f"{s.name} step", None if s.step is None else s.step)
        del inputs[vector]
        dims = {d.name: d.name for d in r.dim_list}
        states = {x.name: x.name for x in r.states}
        return SolveNode(
            s.name, op, inputs, states, right, s.method, dims, step if isinstance(step, str | None) else float(step)
        )

    def _inverse_node(self, s: Solve, right: str) -> OpNode:
        """Sherman-Morrison: a recurrence of the inverse."""
        vector = Matrix("symbol", (right, "input"), s.right.rows, s.right.cols)
        made = inverse_recurrence(self.r, f"{s.name}_inverse", s.matrix, vector, f"the solve {s.name}")
        r, inputs, outputs = self.recurrence(
            f"{s.name}_inverse", made.outputs, own=made, extra=(Variable(right, "input", (s.right.rows,), s.where),)
        )
        state = made.states[0].name
        dims = {d.name: d.name for d in r.dim_list}
        return OpNode(
            s.name,
            self.operations.recurrence(r),
            inputs,
            {state: state},
            {n: s.name for n in outputs},
            dims,
            frozenset((state,)),
        )

    # --- recurrences of nodes ---------------------------------------------------------------------------------------

    def recurrence(
        self, name: str, equations: list[Equation], own: Recurrence | None = None, extra: tuple[Variable, ...] = ()
    ) -> tuple[Recurrence, dict[str, str], dict[str, str]]:
        """(a recurrence with these equations as outputs, its inputs, its outputs). Quantities that other ops make are its inputs
        x, x2, ..., so that nodes which do the same to others have the same recurrence."""
        if own is None:
            states, lets, others = self.closure(*(x.term for x in equations))
            state_list = [s for s in self.r.states if s.name in states]
            let_list = [self.lets[n] for n in lets]
            update_list = [self.updates[n] for n in states]
        else:
            state_list, let_list, update_list = own.states, own.lets, own.updates
            terms = [x.term for x in (*let_list, *update_list, *equations)] + [
                s.initial for s in state_list if s.initial is not None
            ]
            others = [
                n
                for t in terms
                for n, k in names_in(t).items()
                if k not in ("state",) and n not in {x.name for x in let_list}
            ]
        new = {v.name for v in extra}
        others = [n for n in dict.fromkeys(others) if n not in new]
        made_by_ops = [n for n in (*others, *new) if n in self.equations or n in self.solves or n in self.applied]
        taken = {
            *others,
            *new,
            *(s.name for s in state_list),
            *(x.name for x in let_list),
            *(d.name for d in self.r.dim_list),
        }
        taken -= set(made_by_ops)
        canonical = {n: _unused("x", taken) for n in made_by_ops}
        made = (Recurrence if state_list else _Map)("part")
        made.name = self.operations.unique(name)  # which nobody has chosen, and no function is called
        dims_of = self.dims()
        dims = {d.name: d for d in self.r.dim_list}
        for v in self.r.variables:
            if v.name in others and v.kind != "solved":
                made.variables.append(v)
        for n in others:
            if n in canonical:
                made.variables.append(
                    Variable(canonical[n], "input", tuple(dims[x] for x in dims_of[n]), equations[0].where)
                )
        for v in extra:
            made.variables.append(Variable(canonical.get(v.name, v.name), "input", v.dims, v.where))
        outputs: dict[str, str] = {}
        made.states = list(state_list)
        made.lets = [Equation(x.name, renamed(x.term, canonical), x.where) for x in let_list]
        made.updates = [Equation(x.name, renamed(x.term, canonical), x.where) for x in update_list]
        for x in equations:
            y = _unused("y", taken)
            outputs[y] = x.name
            made.outputs.append(Equation(y, renamed(x.term, canonical), x.where))
        used = {d for v in made.variables for d in v.dims}
        made.dim_list = [d for d in self.r.dim_list if d in used]
        inputs = {
            canonical.get(v.name, v.name): v.name for v in self.r.variables if v.name in others and v.kind != "solved"
        }
        inputs |= {canonical[n]: n for n in others if n in canonical}
        inputs |= {canonical.get(n, n): n for n in new}
        return made, inputs, outputs

    def free(self, wish: str) -> str:
        known = (
            {v.name for v in self.r.variables}
            | {d.name for d in self.r.dim_list}
            | {s.name for s in self.r.states}
            | {x.name for x in self.r.outputs}
            | set(self.lets)
        )
        return _unused(wish, known)


def _unused(wish: str, taken: set[str]) -> str:
    name, n = wish, 1
    while name in taken:
        n += 1
        name = f"{wish}{n}"
    taken.add(name)
    return name
