"""What states are multiplied by, in forms of which logarithms are known without loss.

A coefficient of a state is a decay if it is above 0 whatever the inputs are: `1 - 0.1 sigmoid(g)`, `(1 + tanh(g)) / 2`,
`S - b S` with b in (0, 1). In its place comes a product of sigmoids and exponentials, or the exponential of its logarithm. A
coefficient that isn't known to be above 0, or whose logarithm is what it is made of, stays as it is.
"""

from __future__ import annotations

from dataclasses import replace as with_parts
from fractions import Fraction
from itertools import permutations
from math import inf

from ...ir.expr import ONE, Node, add, dim_of, factors_of, fn, leaf_names, mul, rename, replace, walk
from ...ir.logarithms import Logarithms, lossless
from ...ir.ranges import Range, Ranges
from ...ir.step_program import Domain, StepProgram


def with_decays(step: StepProgram) -> tuple[StepProgram, dict[Node, Node]]:
    """The step with decays in place of coefficients that are seen to be positive, and which took whose place; the very same step
    where there are none."""
    rewriting = _Decays(step)
    for update in step.updates.values():
        rewriting.term(update)
    if not rewriting.made:
        return step, {}
    table = _whatever_axes(rewriting.terms, [*step.updates.values(), *step.outputs.values()])
    updates = {n: replace(x, table) for n, x in step.updates.items()}
    outputs = {n: replace(x, table) for n, x in step.outputs.items()}
    left = set(walk(*updates.values(), *outputs.values()))
    names = {replace(x, table): n for x, n in step.names.items() if x in left or x not in rewriting.made}
    for old, new in rewriting.made.items():  # a name goes with what it stood for, unless both are left
        if old in step.names and old not in left and new in left:
            names.setdefault(new, step.names[old])
    origins = {replace(x, table): where for x, where in step.origins.items()}
    for old, new in rewriting.made.items():
        if old in step.origins:
            origins.setdefault(new, step.origins[old])
    made = with_parts(step, updates=updates, outputs=outputs, names=names, origins=origins)
    return made, rewriting.made


def known_range(step: StepProgram, x: Node, ends: bool = False) -> Range | None:
    """What the spec says of a leaf's values; with `ends`, the bounds are among them, as they are for floats. They always are
    of a state, which may begin at one."""
    known = [((v.kind, v.name), v.domain, v.handed) for v in step.variables]
    known += [((kind, s.name), s.domain, True) for s in step.states for kind in ("state", "trajectory")]
    for name, domain, of_state in known:
        if domain is not None and x.attrs[:2] == name:
            low, high = domain
            apart = low is None or not (ends or of_state), high is None or not (ends or of_state)
            return Range(-inf if low is None else Fraction(low), inf if high is None else Fraction(high), *apart)
    return None


def domain_of(r: Range) -> Domain | None:
    """A range as a domain, None where it has no bounds."""
    low, high = (None if x in (inf, -inf) else Fraction(x) for x in (r.low, r.high))
    return None if low is None and high is None else (low, high)


class _Decays:
    def __init__(self, step: StepProgram) -> None:
        self.states = {("state", s.name) for s in step.states}
        self.floats = Ranges(lambda x: known_range(step, x, ends=True), rounded=True)
        self.logarithms = Logarithms(Ranges(lambda x: known_range(step, x)), floats=self.floats)
        self.terms: dict[Node, Node] = {}  # terms with a state -> with decays
        self.made: dict[Node, Node] = {}  # coefficients -> decays

    def holds(self, x: Node, axes: tuple[str, ...]) -> bool:
        """Does x hold a state as a whole?"""
        if x.op == "leaf":
            return x.attrs[:2] in self.states and x.axes == axes
        return x.op in ("add", "mul") and x.axes == axes and any(self.holds(a, axes) for a in x.args)

    def free(self, x: Node) -> bool:
        """Does x depend on no state?"""
        return not leaf_names(x) & self.states

    def term(self, x: Node) -> Node:
        """A term that holds a state, with decays."""
        if not self.holds(x, x.axes):
            return x
        if x not in self.terms:
            made = self._sum(x) if x.op == "add" else self._product(x) if x.op == "mul" else x
            if made is not x:
                self.terms[x] = made
            return made
        return self.terms[x]

    def _sum(self, x: Node) -> Node:
        """The terms of a sum that are one state's, as one."""
        groups: dict[Node, list[Node]] = {}
        others: list[Node] = []
        for term in x.args:
            held = [f for f in factors_of(term) if self.holds(f, x.axes)]
            rest = mul(*(f for f in factors_of(term) if f not in held))
            if len(held) == 1 and held[0].op == "leaf" and self.free(rest):
                groups.setdefault(held[0], []).append(term)
            else:
                others.append(term)
        made = [self.term(t) for t in others]
        for state, terms in groups.items():
            if len(terms) > 1:
                coefficient = add(*(mul(*(f for f in factors_of(t) if f is not state)) for t in terms))
                together = mul(state, coefficient)
                decayed = self._product(together) if together.op == "mul" else together
                if decayed is not together:
                    made.append(decayed)
                    continue
            made += map(self.term, terms)
        return add(*made)

    def _product(self, x: Node) -> Node:
        held = [f for f in x.args if self.holds(f, x.axes)]
        if len(held) != 1:
            return x
        rest = [f for f in x.args if f is not held[0]]
        return mul(self.term(held[0]), *self._coefficient(rest))

    def _coefficient(self, factors: list[Node]) -> list[Node]:
        """Factors that multiply a state, as decays; those over one axis together, where only so they are at most 1."""
        out = []
        number = mul(*(f for f in factors if f.op == "const"))
        own = [part for f in factors if f.op != "const" for part in self._separated(f)]
        groups: dict[tuple[str, ...], list[Node]] = {}
        for f in own:
            groups.setdefault(f.axes, []).append(f)
        for axes, group in groups.items():
            if len(axes) > 1 or not all(map(self.free, group)):
                out += group
                continue
            number, group = self._together(number, group)
            out += group
        return [number, *out]

    def _separated(self, x: Node) -> list[Node]:
        """The exponential of a sum over both axes as one for each, where each term of the sum has but one."""
        if x.op != "fn" or x.attrs[0] != "exp" or len(x.axes) < 2 or not self.free(x):
            return [x]
        groups: dict[tuple[str, ...], list[Node]] = {}
        for term in _terms(x.args[0]):
            groups.setdefault(term.axes, []).append(term)
        if any(len(axes) > 1 for axes in groups):
            return [x]
        parts = [fn("exp", add(*terms)) for terms in groups.values()]
        self.made[x] = mul(*parts)
        return parts

    def _together(self, number: Node, group: list[Node]) -> tuple[Node, list[Node]]:
        if all(map(lossless, group)):
            return number, group
        whole = mul(number, *group)
        only_so = not all(map(self.logarithms.at_most_one, group)) and self.logarithms.at_most_one(whole)
        if only_so and (decay := self._decay(whole)) is not None:
            return ONE, [decay]
        decays = [self._decay(f) for f in group]
        above = {x for f, d in zip(group, decays, strict=True) if d is None for x in walk(f) if x.op in ("leaf", "fn")}
        parts = [f if d is None or _divides(f, above) else d for f, d in zip(group, decays, strict=True)]
        for f in parts:
            self.made.pop(f, None)
        return number, parts

    def _decay(self, x: Node) -> Node | None:
        if lossless(x):
            return x
        made = self.logarithms.product(x)
        if made is not None and self._vanishing(made):
            return None
        if made is None:
            log = self.logarithms.log(x)
            made = None if log is None or self.logarithms.endless(log) else exponential(log)
        if made is not None:
            self.made[x] = made
        return made

    def _vanishing(self, product: Node) -> bool:
        """Is a factor 0 in floats, of which the logarithm isn't what it is made of?"""
        bases = (_base(f) for f in factors_of(product))
        return any(not lossless(b) and self.floats(b).low <= 0 for b in bases)


def _terms(x: Node) -> list[Node]:
    """The terms of a sum, each along its own axes alone; a sum of terms of several axes is multiplied out."""
    if len(x.axes) < 2:
        return [x]
    if x.op == "expand":
        return _terms(x.args[0])
    if x.op == "add":
        return [t for a in x.args for t in _terms(a)]
    sums = [f for f in factors_of(x) if f.op in ("add", "expand") and len(f.axes) > 1] if x.op == "mul" else []
    if len(sums) != 1:
        return [x]
    rest = [f for f in x.args if f is not sums[0]]
    return [mul(*rest, t) for t in _terms(sums[0])]


def _divides(f: Node, above: set[Node]) -> bool:
    """Is f one over a sum of what is above it? Apart, one may overflow where the quotient is a number."""
    return f.op == "pow" and f.attrs[0] < 0 and f.args[0].op == "add" and not above.isdisjoint(walk(f.args[0]))


def _base(x: Node) -> Node:
    """Of powers, also along more axes."""
    return _base(x.args[0]) if x.op in ("pow", "expand") else x


def exponential(log: Node) -> Node:
    """exp(log): a sigmoid where its logarithm is that of one, of something that isn't made of logarithms itself."""
    logs = [y for y in walk(log) if y.op == "fn" and y.attrs[0].startswith("log")]
    return fn("sigmoid", log.args[0]) if logs == [log] and log.attrs[0] == "logsigmoid" else fn("exp", log)


def _whatever_axes(table: dict[Node, Node], roots: list[Node]) -> dict[Node, Node]:
    """The table, also for the same terms under other names of their axes."""
    out = dict(table)
    for x in walk(*roots):
        for old, new in table.items():
            if x in out or x.op != old.op or len(x.axes) != len(old.axes):
                continue
            for axes in permutations(x.axes):
                same = [dim_of(a) for a in axes] == [dim_of(a) for a in old.axes]
                if same and rename(old, dict(zip(old.axes, axes, strict=True))) is x:
                    out[x] = rename(new, dict(zip(old.axes, axes, strict=True)))
                    break
    return out
