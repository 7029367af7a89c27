"""Sequences that a document defines: by the value before, by all values before, or by the step of a recurrence that a spec can't
say."""

from __future__ import annotations

from chunkform.spec.language.claims import LENGTH, Quantity
from chunkform.spec.language.formula import Formula, add, inverse, substitute, walk

from .document import Document, Equation
from .heads import is_inverse_of
from .resolve import Resolver, statement_sides
from .row import Fault
from .shapes import settled
from .steps import OVER, STEP, core, flipped, index, letter_of, safe
from .symbols import CHUNK, CHUNKS, Symbols, safe_in, shape_words, size


class Recursions:
    """Defines sequences of one part of a document."""

    document: Document
    s: Symbols
    resolve: Resolver

    def add(self, name: str, parameters: tuple[Formula, ...], bodies: dict[str, Formula]) -> None:
        known = safe_in(self.s.setting, safe(name.partition("/")[0]))
        if len(bodies) == 1:
            self.s.setting.define(known, parameters, next(iter(bodies.values())))
        else:
            self.s.setting.ambiguous(known, parameters, bodies)
        key = f"{name}/1" if parameters and name in self.s.names else name  # X and X_k are two things
        self.s.names[key] = known
        self.s.arity[name] = len(parameters)

    def recursive(self, name: str) -> bool:
        """A sequence that is defined by its value before, or whose inverse is: s_t^{-1} = ... s_{t-1}^{-1} ..."""
        found = self.recursion(name)
        starts = [
            e
            for e in self.document.equations
            for head in [core(e.head)]
            if head.op == "at"
            and head.attrs[0] == name
            and len(head.args) == 1
            and head.args[0].op == "number"
            and e.first
        ]
        if found is None or not starts:
            return False
        e, letter, inverted = found
        first = int(core(starts[0].head).args[0].attrs[0])
        own = safe_in(self.s.setting, safe(name) + ("inverse" if inverted else ""))
        shape = self.s.shapes.get(name)
        begin = self.resolve(flipped(starts[0]))
        (begin,) = settled((begin,), {}, shape[0] if shape else self.default_dim())
        begin = inverse(begin) if inverted else begin
        t = index(letter)
        marked = f"{name} before" if inverted else name
        self.s.names[marked] = own
        # while its own step is resolved, it is known by where it starts
        self.s.setting.quantities[own] = Quantity(
            own, "defined", parameters=(letter,), body=begin, start=(first, begin)
        )
        body = flipped(e) if not inverted else e.side
        if inverted:
            inside = {y: Formula("at", y.args[0].args, (marked,)) for y in walk(body) if is_inverse_of(y, name)}
            body = substitute(body, inside)
            if name in {y.attrs[0] for y in walk(body) if y.op == "at"}:
                return False
        (step,) = statement_sides((self.resolve(body),), self.s)
        self.s.setting.quantities[own] = Quantity(own, "defined", parameters=(letter,), body=step, start=(first, begin))
        if inverted:
            self.add(name, (t,), {"": inverse(Formula("at", (t,), (own,)))})
        self.s.defined.quantities[name] = e
        return True

    def sequences(self) -> None:
        """Define the states of a step that no recurrence can be made of, each by what the step says from its first value on: what
        the document says that it is, or anything."""
        steps, setting = self.s.steps, self.s.setting
        begins: dict[str, Formula] = {}
        for name, shape in self.s.steps.sequences.items():
            said = steps.initial.get(name)
            if said is None:
                first = safe_in(setting, f"{safe(name)}_0")
                setting.given(first, *shape)
                self.s.guess(f"{name}_0 is given{shape_words(shape)}")
                begins[name] = Formula("at", (), (first,))
            else:
                try:
                    (begins[name],) = settled((self.resolve(said),), {}, shape[0])
                except Fault as fault:
                    self.s.unknown[name] = fault.message
                    continue
            own = self.s.names[name] = safe_in(setting, safe(name))
            self.s.arity[name] = 1
            # while others are resolved, each is known by where it starts
            setting.quantities[own] = Quantity(
                own, "defined", parameters=(STEP,), body=begins[name], start=(0, begins[name])
            )
        for name, begin in begins.items():
            own = self.s.names[name]
            try:
                (step,) = statement_sides((self.resolve(steps.states[name]),), self.s)
            except Fault as fault:
                setting.quantities.pop(own)
                self.s.names.pop(name)
                self.s.unknown[name] = fault.message
                continue
            setting.quantities[own] = Quantity(own, "defined", parameters=(STEP,), body=step, start=(0, begin))
            self.s.defined.quantities[name] = next(e for e in steps.equations if core(e.head).attrs[0] == name)

    def of_all_before(self, name: str, e: Equation, body: Formula) -> bool:
        """A sequence that is defined by all of its values before, or after: w_t = k_t - \\sum_{i=1}^{t-1} w_i (k_i^\\top k_t); or
        one in each chunk, by those before at its last index."""
        head = core(e.head)
        step = only_in_sums(body, name, head.args) if head.args else 0
        if not step or (len(head.args) > 1 and step > 0):
            return False
        own = safe_in(self.s.setting, safe(name))
        *rest, at = head.args
        parameters = tuple(x.attrs[0] for x in (at, *rest))
        key = f"{name}/1" if name in self.s.names else name
        self.s.names[key] = own
        if rest:  # it is recursive in its first index
            self.s.setting.quantities[own] = Quantity(own, "defined", parameters=parameters)
            self.add(name, head.args, {"": Formula("at", (at, *rest), (own,))})
        # while its own body is resolved, it is known by the terms that it has no part in
        (begin,) = statement_sides((self.resolve(without(body, name)),), self.s)
        self.s.setting.quantities[own] = Quantity(own, "defined", parameters=parameters, body=begin)
        (whole,) = statement_sides((self.resolve(body),), self.s)
        self.s.setting.quantities[own] = Quantity(
            own,
            "defined",
            parameters=parameters,
            body=whole,
            start=(1 if step < 0 else size(LENGTH), begin),
            backwards=step > 0,
        )
        self.s.arity[name] = len(head.args)
        self.s.defined.quantities[name] = e
        return True

    def default_dim(self) -> str:
        return next((d for d in self.s.setting.sizes if d not in (LENGTH, CHUNK, CHUNKS)), LENGTH)

    def recursion(self, name: str) -> tuple[Equation, str, bool] | None:
        """The first equation that says a symbol, or its inverse, by its value before."""
        for e in self.document.equations:
            head = core(e.head)
            inverted = is_inverse_of(head, name)
            head = head.args[0] if inverted else head
            if (
                head.op != "at"
                or head.attrs[0] != name
                or len(head.args) != 1
                or not e.first
                or e.relation not in ("=", ":=")
            ):
                continue
            place = letter_of(head.args[0])
            if place is None or place[1]:
                continue
            before = index(place[0]) - 1
            if any(y.op == "at" and y.attrs[0] == name and y.args == (before,) for y in walk(e.side)):
                return e, place[0], inverted
        return None


def only_in_sums(x: Formula, name: str, indices: tuple[Formula, ...]) -> int:
    """-1 where a symbol stands in x only in sums from 1 to below its last index, 1 where only in sums from above it to the last
    step."""
    *rest, at = indices

    def below(y: Formula, bound: frozenset[str], step: int) -> bool:
        if y.op == "at" and y.attrs[0] == name:
            counts = y.args[-1:] and y.args[-1].op == "index" and y.args[-1].attrs[0] in bound
            return bool(counts) and list(y.args[:-1]) == rest
        if y.op in OVER:
            low, high, body = y.args
            ends = (
                [str(low), str(high)] == ["1", str(at - 1)]
                if step < 0
                else str(low) == str(at + 1) and high.op == "size"
            )
            inside = bound | {y.attrs[0]} if ends else bound - {y.attrs[0]}
            return all(below(z, bound, step) for z in (low, high)) and below(body, inside, step)
        return all(below(z, bound, step) for z in y.args)

    return next((step for step in (-1, 1) if below(x, frozenset(), step)), 0)


def without(x: Formula, name: str) -> Formula:
    """x without the terms of its sums in which a symbol stands.

    Raises:
        Fault: nothing is left.
    """

    def visit(y: Formula) -> Formula | None:
        if not any(z.op == "at" and z.attrs[0] == name for z in walk(y)):
            return y
        if y.op == "add":
            kept = [v for a in y.args if (v := visit(a)) is not None]
            return add(*kept) if kept else None
        if y.op in ("product", "negative"):
            made = [visit(a) for a in y.args]
            return None if None in made else Formula(y.op, tuple(a for a in made if a is not None), y.attrs)
        return None

    found = visit(x)
    if found is None:
        raise Fault(f"{name} is defined by itself")
    return found
