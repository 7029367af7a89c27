"""A step program -> strata: the strongly connected components of its states in order, as step programs of their own.

What a stratum reads of the states of earlier ones is handed on, a value of each step: a number or vector as it is before the step
or after it, and of a matrix the vectors that are made of it. Components are joined to one stratum where they are of one family
together, so that as few values as possible go through memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property

import networkx as nx

from ...ir.expr import Node, dim_of, leaf, leaf_names, rebuild, walk
from ...ir.ranges import Ranges
from ...ir.step_program import Domain, StepProgram, Var
from ..step.decays import domain_of, known_range

OF_LOGARITHMS = ("exp", "sigmoid")  # functions that a decay is made by, of what is handed on


@dataclass(frozen=True)
class Stratum:
    """Some states with what is made of them. `takes` are the names of what earlier strata hand on to it, `hands` of what it hands
    on to later ones."""

    step: StepProgram
    takes: tuple[str, ...]
    hands: tuple[str, ...]


class _Whole(Exception):
    """A later stratum would need a matrix as a whole: `state`, in the stratum `place`."""

    def __init__(self, state: str, place: int) -> None:
        super().__init__(state)
        self.state, self.place = state, place


def strata(step: StepProgram, family: Callable[[StepProgram], str]) -> tuple[Stratum, ...] | None:
    """The strata of a step program, whose families `family` tells; None where there is but one."""
    components = _components(step)
    groups = _grouped(step, components, family) if len(components) > 1 else components
    return _Split(step, groups).strata() if len(groups) > 1 else None


def _components(step: StepProgram) -> list[tuple[str, ...]]:
    """The states, those that read each other together, each after those that it reads. Nor is a matrix apart from what needs
    it as a whole."""
    names = [s.name for s in step.states]
    graph: nx.DiGraph = nx.DiGraph()
    graph.add_nodes_from(names)
    for name, update in step.updates.items():
        graph.add_edges_from((other, name) for other in _states_in(update) if other != name)
    while True:
        components = _in_order(graph, names)
        try:
            _Split(step, components).strata()
        except _Whole as needed:
            by = components[needed.place][0]
            graph.add_edges_from([(needed.state, by), (by, needed.state)])
        else:
            return components


def _in_order(graph: nx.DiGraph, names: list[str]) -> list[tuple[str, ...]]:
    condensed = nx.condensation(graph)
    first = {n: min(map(names.index, x["members"])) for n, x in condensed.nodes(data=True)}
    order = nx.lexicographical_topological_sort(condensed, key=first.get)
    return [tuple(sorted(condensed.nodes[n]["members"], key=names.index)) for n in order]


def _grouped(
    step: StepProgram, components: list[tuple[str, ...]], family: Callable[[StepProgram], str]
) -> list[tuple[str, ...]]:
    """Components that are of one family together, where none of them needs a later one."""
    known: dict[tuple[str, ...], str] = {}

    def of(group: tuple[str, ...], before: Iterable[tuple[str, ...]]) -> str:
        if group not in known:
            try:
                known[group] = family(_Split(step, [*before, group]).strata()[-1].step)
            except _Whole:  # what another order would hand on
                known[group] = "sequential"
        return known[group]

    groups: list[tuple[str, ...]] = []
    for component in components:
        read = set().union(*(_states_in(step.updates[n]) for n in component))
        least = max((k for k, group in enumerate(groups) if read & set(group)), default=0)
        own = of(component, groups)
        for k in range(least, len(groups)):
            if known[groups[k]] != own or own == "sequential":
                continue
            joined = (*groups[k], *component)
            if of(joined, groups[:k]) == own:
                groups[k] = joined
                break
        else:
            groups.append(component)
    return groups


def _states_in(x: Node) -> set[str]:
    return {name for kind, name in leaf_names(x) if kind == "state"}


@dataclass
class _Handed:
    """A value that a stratum hands on, as the whole step has it."""

    stratum: int
    node: Node
    name: str
    domain: Domain | None  # what is known of its values


@dataclass
class _Split:
    """Step programs for groups of states in order, each of which reads earlier ones alone."""

    step: StepProgram
    groups: list[tuple[str, ...]]
    handed: dict[Node, _Handed] = field(default_factory=dict)

    @cached_property
    def ranges(self) -> Ranges:
        return Ranges(lambda x: known_range(self.step, x))

    @cached_property
    def place(self) -> dict[str, int]:
        return {name: k for k, group in enumerate(self.groups) for name in group}

    def strata(self) -> tuple[Stratum, ...]:
        """The strata; outputs that read later states than there are groups are left out."""
        count = len(self.groups)
        updates = {n: self._over(self.step.updates[n], self.place[n]) for group in self.groups for n in group}
        outputs: list[dict[str, Node]] = [{} for _ in range(count)]
        for name, x in self.step.outputs.items():
            read = _states_in(x)
            if read <= self.place.keys():
                k = max((self.place[n] for n in read), default=count - 1)
                outputs[k][name] = self._over(x, k)
        made: list[dict[str, Node]] = [{} for _ in range(count)]
        done: set[str] = set()
        while more := [h for h in self.handed.values() if h.name not in done]:
            for h in more:
                made[h.stratum][h.name] = self._over(h.node, h.stratum, itself=True)
                done.add(h.name)
        return tuple(
            self._stratum(k, {n: updates[n] for n in group}, outputs[k], made[k]) for k, group in enumerate(self.groups)
        )

    def _over(self, x: Node, k: int, itself: bool = False) -> Node:
        """A value over the states of the stratum k, and over what earlier strata hand on."""
        done: dict[Node, Node] = {}

        def earlier(y: Node) -> set[str]:
            return {n for n in _states_in(y) if self.place.get(n, k) < k}

        def visit(y: Node) -> Node:
            if y not in done and earlier(y):
                done[y] = self._hand(y, earlier(y)) or inside(y)
            return done.get(y, y)

        def inside(y: Node) -> Node:
            if not earlier(y):
                return y
            if y.op == "leaf":
                raise _Whole(y.attrs[1], k)
            return rebuild(y, [visit(a) for a in y.args])

        return inside(x) if itself else visit(x)

    def _hand(self, y: Node, earlier: set[str]) -> Node | None:
        """The value as a leaf, where it is handed on as it is."""
        if len(y.axes) > 1:
            return None
        read = _states_in(y)
        latest = max(self.place[n] for n in earlier)
        wide = y.op == "sum" and any(len(self.step.state(n).axes) > 1 for n in earlier)
        after = any(y is self.step.updates[n] and y.op != "leaf" for n in earlier)
        number = not y.axes and not (y.op == "fn" and y.attrs[0] in OF_LOGARITHMS)
        if not (read <= earlier and (wide or after or number or y.op == "leaf")):
            return None
        if y not in self.handed:
            (state, *_) = sorted(n for n in earlier if self.place[n] == latest)
            when = "prev" if y.op == "leaf" else "next" if after else "read" if wide else "made"
            known = self.step.state(state).domain if after else None
            self.handed[y] = _Handed(latest, y, self._name(f"{state}_{when}"), known or domain_of(self.ranges(y)))
        return leaf("input", self.handed[y].name, _order(y))

    def _name(self, stem: str) -> str:
        p = self.step
        taken = {*(v.name for v in p.variables), *(s.name for s in p.states), *p.outputs}
        taken |= {h.name for h in self.handed.values()}
        name, n = stem, 1
        while name in taken:
            n += 1
            name = f"{stem}{n}"
        return name

    def _stratum(self, k: int, updates: dict[str, Node], outputs: dict[str, Node], made: dict[str, Node]) -> Stratum:
        p = self.step
        states = tuple(s for s in p.states if s.name in updates)
        roots = [*updates.values(), *outputs.values(), *made.values()]
        used = {
            y.attrs[1] for y in walk(*roots, *(s.initial for s in states if s.initial is not None)) if y.op == "leaf"
        }
        own = [v for v in p.variables if v.name in used]
        taken = [h for h in self.handed.values() if h.name in used and h.stratum < k]
        given = [Var(h.name, "input", _order(h.node), domain=h.domain, handed=True) for h in taken]
        dims = {dim_of(a) for x in (*(s.leaf for s in states), *walk(*roots)) for a in x.axes}
        dims |= {x.attrs[0] for x in walk(*roots) if x.op == "size"}
        if not any(v.kind == "input" for v in own):
            own += [v for v in p.variables if v.kind == "input" and v not in own][:1]
        for d in sorted(dims - {dim_of(a) for v in (*own, *given) for a in v.axes}):
            own += [v for v in p.variables if d in map(dim_of, v.axes)][:1]
        own.sort(key=p.variables.index)
        dims |= {dim_of(a) for v in own for a in v.axes}
        names = {x: n for x, n in p.names.items() if x in set(walk(*roots))}
        step = StepProgram(
            f"{p.name}_{k + 1}",
            tuple(d for d in p.dims if d in dims),
            (*own, *given),
            states,
            updates,
            {**outputs, **made},
            names=names,
            origins={x: where for x, where in p.origins.items() if _states_in(x) <= updates.keys()},
            output_axes={**{n: p.output_axes[n] for n in outputs}, **{n: _order(self._node(n)) for n in made}},
            handed=frozenset(made),
        )
        return Stratum(step, tuple(h.name for h in taken), tuple(made))

    def _node(self, name: str) -> Node:
        return next(h.node for h in self.handed.values() if h.name == name)


def _order(x: Node) -> tuple[str, ...]:
    """The axes of a value of each step, as it is stored."""
    return x.axes
