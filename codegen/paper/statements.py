"""What an equation of a document states, and over which indices."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from chunkform.codegen.claims.conditioned import FLIPPED
from chunkform.spec.language.claims import LENGTH
from chunkform.spec.language.formula import (
    RANGED,
    Formula,
    formula,
    free_indices,
    inner,
    product,
    rebuild,
    substitute,
    transform,
    walk,
)
from chunkform.spec.language.statements import AtMost, Differs, Equal, Integral, Statement, Together

from .definitions import Definitions, as_index
from .document import Equation, ReadRow
from .heads import indexed, key_of, sized
from .premises import ALWAYS, Under, product_that_is_bounded, step_of, under_conditions, with_bounded
from .resolve import QuantityShapes, fit, statement_sides
from .row import Fault, Item
from .special_cases import knows_its_chunks
from .symbols import CHUNK, CHUNKS, size


class Statements(Definitions):
    """Makes statements of the equations of one part of a document."""

    def statement(self, e: Equation, r: ReadRow) -> Statement | None:
        """What an equation states; None where it says what is defined."""
        if e.relation == "perp":
            e = replace(e, head=Formula("inner", (e.head, e.side)), relation="=", side=formula(0))
        relation = e.relation
        if e.side.op in ("integral", "infinity"):
            return self.integral(e)
        knows_its_chunks(self.s, self.document, self.first, e)
        e = replace(e, head=self.within_limits(e.head, r), side=self.within_limits(e.side, r))
        e = with_bounded(self.s, e, r.conditions, self.resolve)
        if relation == "in":
            return self.within(e)
        left, right = self.fitting((self.with_constants(e.head), self.with_constants(e.side)))
        if "\\cdot" in r.source.text and not fit((left, right), QuantityShapes(self.s)):
            left, right = self.dotted(left), self.dotted(right)
        right = self.as_row(left, right, e.side)
        over = self.over(e, (left, right), [c for c in r.conditions if self.on_indices(c)])
        sides = statement_sides((left, right), self.s)
        if sides[0] == sides[1] and relation not in ("<", ">", "!="):
            return None
        match relation:
            case "<=" | "<":
                return AtMost(sides[0], sides[1], strict=relation == "<", over=over)
            case ">=" | ">":
                return AtMost(sides[1], sides[0], strict=relation == ">", over=over)
            case "!=":
                return Differs(*sides, over=over)
            case "~":
                raise Fault("an approximation isn't judged: say what grows in a claim in Python")
        return Equal(sides, over=over)

    def as_row(self, left: Formula, right: Formula, stated: Formula) -> Formula:
        """The diagonal of a matrix as a row, where the document's vectors are rows."""
        shapes = self.resolve.shape(left), self.resolve.shape(right)
        turned = stated.op == "diag" and shapes[0] == shapes[1][::-1] and shapes[1][1] == "1" != shapes[1][0]
        return right.T if turned else right

    def dotted(self, x: Formula) -> Formula:
        r"""x with the inner product of two columns, or of two rows, that stand side by side, as in q \\cdot k."""
        args = [self.dotted(a) for a in x.args]
        for k in range(len(args) - 1) if x.op == "product" else ():
            one, two = (self.resolve.shape(a) for a in args[k : k + 2])
            if one == two != ("1", "1") and "1" in one:
                args[k : k + 2] = [inner(*args[k : k + 2])]
                return self.dotted(product(*args)) if len(args) > 1 else args[0]
        return rebuild(x, tuple(args))

    def within(self, e: Equation) -> Statement:
        """That a number is in an interval; or that both ends of an interval are."""
        if e.side.op not in ("interval", "tuple") or len(e.side.args) != 2:
            raise Fault("what is said to be in a set is read where the set is an interval")
        low, high = (self.resolve(y) for y in e.side.args)
        opens, closes = (*e.side.attrs, "]")[:2] if e.side.op == "interval" else ("(", ")")
        ends = e.head.args if e.head.op == "tuple" and len(e.head.args) == 2 else (e.head, e.head)
        first, last = (self.resolve(self.with_constants(x)) for x in ends)
        closed = e.head.op == "tuple" and e.head.attrs[:1] == ("(",)  # an open interval may share an open end
        return Together(
            (AtMost(low, first, opens == "(" and not closed), AtMost(last, high, closes == ")" and not closed))
        )

    def integral(self, e: Equation) -> Statement | None:
        """An integral of an exponential that is infinite, or isn't; or two that are equal, as their exponents are."""
        said = [x for x in self.document.equations if x.head == e.head and x.side.op == "integral"]
        known = next((x for x in said if x.row.source.display == e.row.source.display), None)
        known = known or (said[0] if said else None)
        if e.head.op == "integral" and e.side.op == "infinity":
            known = Equation(e.head, "=", e.head, True, e.row)
        if known is None or known.side.args[0].op != "exp":
            raise Fault("only whether an integral of exp(..) is finite is judged")
        if known is e:
            return None
        exponent, by = self.resolve(known.side.args[0].args[0]), self.resolve(known.side.args[1])
        if e.side.op == "infinity":
            return Integral(exponent, by, finite=e.relation == "!=")
        other = self.resolve(e.side.args[0].args[0]) if e.side.args[0].op == "exp" else exponent
        return Equal(statement_sides((exponent, other), self.s)) if other != exponent else None

    def over(self, e: Equation, sides: Sequence[Formula], conditions: Sequence[Item]) -> tuple:
        """The ranges of the indices that are free."""
        letters = sorted({i for x in sides for i in free_indices(x)})
        found: dict[str, tuple[Formula, Formula]] = {}
        for letter in letters:
            found[letter] = self.s.ranges.get(letter) or self.role(letter, e) or (formula(1), size(LENGTH))
        explicit: set[str] = set()
        for c in conditions:
            limits = self.limits(c, letters, found)
            for letter, low, high in limits:
                found[letter] = low, high
                explicit.add(letter)
        # without anything said, steps run over wherever both sides have a value
        if self.s.recurrence is not None and not self.s.chunked and not explicit and not self.s.ranges:
            return ()
        order = sorted(found, key=lambda i: (bool(free_indices(found[i][0]) | free_indices(found[i][1])), i))
        return tuple((i, *found[i]) for i in order)

    def within_limits(self, x: Formula, r: ReadRow) -> Formula:
        """x, where a sum that says no bounds takes those that stand behind the formula, as in `\\sum_j .., j \\le i`."""
        for c in [c for c in r.conditions if self.on_indices(c) and c.relations != ["range"]]:
            for a, said, b in zip(c.sides, c.relations, c.sides[1:]):
                for letter, relation, bound in ((indexed(a), said, b), (indexed(b), FLIPPED.get(said, ""), a)):
                    x = limited(x, letter, relation, as_index(bound)) if letter else x
        return x

    def on_indices(self, c: Item) -> bool:
        """Whether a condition is one on indices, and not on quantities."""
        return c.relations == ["range"] or all(self.counts(x) for x in c.sides)

    def meant_under(self, e: Equation, r: ReadRow) -> Under:
        """What a row is meant under, beside ranges of indices."""
        conditions = [c for c in r.conditions if not self.on_indices(c)]
        bounded = [c for c in conditions if product_that_is_bounded(e, c, self.resolve) is not None]
        found = under_conditions(self.s, [c for c in conditions if c not in bounded], self.resolve)
        for c in bounded:
            found.add(f"{c.sides[0]} <= {c.sides[1]}")
        free = free_indices(e.head) | free_indices(e.side)
        always = ALWAYS & set(re.findall("[a-z]+", f"{r.source.text} {r.source.sentence}".lower()))
        text = f"{found.premises.text} at every step" if always and found.premises.text else found.premises.text
        found.premises = replace(found.premises, step="" if always else step_of(conditions, free), text=text)
        used = {y.attrs[0] for x in (e.head, e.side) for y in walk(x) if y.op == "at" and not y.args}
        for name in sorted(used & set(self.constant)):
            known = self.s.names[self.constant[name]]
            found.add(f"{known} is the same at every step", constant=(known,))
        return found

    def with_constants(self, x: Formula) -> Formula:
        """x with the first value of what is the same at every step for what stands without an index."""
        first = {Formula("at", (), (n,)): Formula("at", (formula(1),), (own,)) for n, own in self.constant.items()}
        return substitute(x, first)

    def counts(self, x: Formula) -> bool:
        """Whether a side of a condition is an index, a size or a number."""
        made = {*self.s.steps.given, *self.s.steps.states, *self.s.steps.lets, *self.s.steps.outputs}
        return x.op == "number" or indexed(x) not in {"", *self.s.setting.quantities, *made}

    def role(self, letter: str, e: Equation) -> tuple[Formula, Formula] | None:
        """What an index runs over, by what it counts: chunks, or the steps of one."""
        if not self.s.chunked:
            return None
        for x in (e.head, e.side):
            for y in walk(x):
                if y.op != "at":
                    continue
                known = self.s.names.get(key_of(y.attrs[0], 1)) or self.s.names.get(y.attrs[0], "")
                q = self.s.setting.quantities.get(known)
                if q is None or not y.args:
                    continue
                if q.kind == "defined" and q.parameters[:1] == ("i",) and letter in free_indices(y.args[0]):
                    return formula(1), size(CHUNKS)
                if q.kind == "defined" and len(y.args) > 1 and letter in free_indices(y.args[1]):
                    return formula(1), size(CHUNK)
        return None

    def limits(
        self, c: Item, letters: Sequence[str], found: dict[str, tuple[Formula, Formula]]
    ) -> list[tuple[str, Formula, Formula]]:
        """What a condition says of the ranges of indices."""
        if c.relations == ["range"]:
            name = indexed(c.sides[0])
            low, high = self.bound(c.sides[2]), self.bound(c.sides[1])
            if high.op == "number" and low.op != "number":  # t = n - 1, .., 1
                low, high = high, low
            return [(name, low, high)] if name in letters else []
        out = []
        for a, relation, b in zip(c.sides, c.relations, c.sides[1:]):
            name = indexed(a)
            if relation == "in" and b.op in ("interval", "tuple") and len(b.args) == 2 and name in letters:
                out.append((name, self.bound(b.args[0]), self.bound(b.args[1])))
                continue
            other = indexed(b)
            if other in letters and (name not in letters or relation in ("<", "<=")):
                a, b, name, relation = b, a, other, {"<": ">", "<=": ">=", ">": "<", ">=": "<="}.get(relation, relation)
            if name not in letters:
                continue
            low, high = found[name]
            value = self.bound(b)
            if free_indices(value) - set(letters):  # of an index that a sum runs over
                continue
            if (relation, str(value)) in ((">", LENGTH), (">=", f"{LENGTH}+1")):
                raise Fault("it speaks of steps behind the last, at which nothing has a value")
            match relation:
                case "<=":
                    out.append((name, low, value))
                case "<":
                    out.append((name, low, value - 1))
                case ">=":
                    out.append((name, value, high))
                case ">":
                    out.append((name, value + 1, high))
                case "=":
                    out.append((name, value, value))
        return out

    def bound(self, x: Formula) -> Formula:
        return self.resolve(sized(x)) if x.op != "infinity" else size(LENGTH)


def limited(x: Formula, letter: str, relation: str, bound: Formula) -> Formula:
    """x, with a bound of its sums over a letter that say none."""

    def visit(y: Formula) -> Formula | None:
        if y.op not in RANGED or y.attrs[0] != letter:
            return None
        low, high, body = y.args
        if relation in ("<", "<=") and high.op == "unknown":
            return Formula(y.op, (low, bound if relation == "<=" else bound - 1, body), y.attrs)
        if relation in (">", ">=") and low.op == "unknown":
            return Formula(y.op, (bound if relation == ">=" else bound + 1, high, body), y.attrs)
        return None

    return transform(x, visit)
