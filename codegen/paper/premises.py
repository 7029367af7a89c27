"""Conditions on quantities, such as `if S_0 = 0`, under which a row is meant: what they say of the numbers it is tried with."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

from chunkform.codegen.claims.arithmetic import REAL
from chunkform.codegen.claims.conditioned import of_scalar
from chunkform.codegen.claims.evaluate import Evaluator
from chunkform.codegen.claims.fingerprint import Faults
from chunkform.codegen.claims.indices import is_decay
from chunkform.codegen.claims.instance import Instance
from chunkform.codegen.claims.trial_sizes import Point
from chunkform.codegen.claims.values import ShapeFault
from chunkform.spec.language.claims import LENGTH, Premises, Setting
from chunkform.spec.language.formula import RANGED, Formula, add, formula, free_indices, negative, transform, walk

from .document import Equation
from .heads import base_of
from .resolve import statement_sides
from .row import Fault, Item
from .steps import core
from .symbols import Symbols, safe_in
from .words import LOSSES

Resolve = Callable[[Formula], Formula]


@dataclass
class Under:
    """What a row is meant under: premises, first values of states, and whether a loss is taken of the last ones."""

    premises: Premises = field(default_factory=Premises)
    initial: dict[str, Formula] = field(default_factory=dict)
    final_loss: bool = True

    def add(self, said: str, **more: tuple) -> None:
        """What one more condition says."""
        so = self.premises
        added: dict[str, Any] = {k: (*getattr(so, k), *v) for k, v in more.items()}
        self.premises = replace(so, text=f"{so.text} and {said}" if so.text else said, **added)

    def add_inequality(self, s: Symbols, left: Formula, relation: str, right: Formula, resolve: Resolve) -> None:
        """What an inequality says.

        Raises:
            Fault: no number is so.
        """
        sides = resolve(left), resolve(right)
        refuse_misfits(s, sides, relation)
        self.add(f"{sides[0]} {relation} {sides[1]}", where=((sides[0], relation, sides[1]),))
        for name in {y.attrs[0] for x in sides for y in walk(x) if y.op == "at"}:
            limits = of_scalar(self.premises, name)
            decay = is_decay(s.setting, name)
            if limits is not None and limits.within("decay" if decay else "real").empty:
                raise Fault(
                    f"its conditions leave no number for {name}{', which is a decay, at most 1' if decay else ''}"
                )

    def of(self, setting: Setting) -> Setting:
        """The setting where this is so."""
        return setting.under(self.premises, self.initial, self.final_loss) if self.premises.text else setting


def with_bounded(s: Symbols, e: Equation, conditions: Iterable[Item], resolve: Resolve) -> Equation:
    """An equation with a number of its own for a product, such as k^T q, of which a condition says how large it is at most, as
    |k^T q| <= c: where nothing else is said of its factors, it may be any such number."""
    for c in conditions:
        x = product_that_is_bounded(e, c, resolve)
        if x is None:
            continue
        name = safe_in(s.setting, "bounded")
        high = resolve(c.sides[1])
        s.setting.given(name, between=(negative(high), high))
        s.names[name] = name
        at = Formula("at", (), (name,))
        e = replace(e, head=with_factors(e.head, x, at), side=with_factors(e.side, x, at))
    return e


def product_that_is_bounded(e: Equation, c: Item, resolve: Resolve) -> Formula | None:
    """The product k^T q of a condition |k^T q| <= c, where the equation says nothing else of its factors."""
    x = c.sides[0].args[0] if c.relations == ["<="] and c.sides[0].attrs == ("abs",) else None
    if x is None or x.op != "product" or not resolve_is_scalar(resolve, x):
        return None
    bare = [with_factors(side, x, formula(0)) for side in (e.head, e.side)]
    factors = {y for y in walk(x) if y.op == "at"}
    return None if bare == [e.head, e.side] or factors & {y for side in bare for y in walk(side)} else x


def resolve_is_scalar(resolve: Resolve, x: Formula) -> bool:
    return resolve_shape_is_scalar(resolve, resolve(x))


def with_factors(x: Formula, part: Formula, by: Formula) -> Formula:
    """x with a symbol for factors that stand together."""

    def placed(y: Formula) -> Formula | None:
        if y == part:
            return by
        for k in range(len(y.args) - len(part.args) + 1) if y.op == "product" else ():
            if y.args[k : k + len(part.args)] == part.args:
                return Formula("product", (*y.args[:k], by, *y.args[k + len(part.args) :]), y.attrs)
        return None

    return transform(x, placed)


INEQUALITIES = ("<", "<=", ">", ">=", "!=")


def under_conditions(s: Symbols, conditions: Iterable[Item], resolve: Resolve) -> Under:
    """What conditions on quantities say.

    Raises:
        Fault: there are no numbers that one could be tried with.
    """
    found = Under()
    waiting: list[tuple[Formula, Formula]] = []
    for c in conditions:
        for left, relation, right in zip(c.sides, c.relations, c.sides[1:]):
            if relation in INEQUALITIES or (relation == "in" and right.op == "interval" and len(right.args) == 2):
                for one_of in inequalities(left, relation, right):
                    found.add_inequality(s, *one_of, resolve)
                continue
            if relation == "perp":
                left, relation, right = Formula("inner", (left, right)), "=", formula(0)
            if relation not in ("=", ":="):
                raise Fault(
                    f"its condition {left} {relation} {right} is neither an equation nor an inequality, and isn't tried"
                )
            if not (one(s, found, left, right) or one(s, found, right, left)):
                waiting.append((left, right))
    for left, right in waiting:  # behind the others, which fix symbols
        if not makes_zero(s, found, left, right, resolve):
            raise Fault(f"its condition {left} = {right} can't be set, and isn't tried")
    if len(dict(found.premises.value)) < len(set(found.premises.value)):
        raise Fault("its conditions contradict each other")
    return found


def inequalities(left: Formula, relation: str, right: Formula) -> list[tuple[Formula, str, Formula]]:
    """The inequality, or the two that say that the left is in an interval."""
    if relation != "in":
        return [(left, relation, right)]
    opens, closes = (*right.attrs, "]")[:2]
    low, high = right.args
    ends = [(left, ">" if opens == "(" else ">=", low), (left, "<" if closes in (")", "rparen") else "<=", high)]
    return [x for x in ends if "infinity" not in {y.op for y in walk(x[2])}]


ALWAYS = {"all", "every", "each", "any", "everywhere", "always", "forall", "equiv"}  # words of a row


def step_of(conditions: Iterable[Item], free: set[str]) -> str:
    """The index of the row at which conditions are so; nothing where they are so at every step."""
    found: set[str] = set()
    for c in conditions:
        indices = {a.attrs[0] for x in c.sides for y in walk(x) if y.op == "at" for a in y.args if a.op == "index"}
        found |= indices & free
    return found.pop() if len(found) == 1 else ""


def one(s: Symbols, found: Under, left: Formula, right: Formula) -> bool:
    """Add what `left = right` says; False where it can't be set."""
    said = f"{left} = {right}"
    value = number_of(right)
    symbol, flipped = core(left), left.op == "transpose"
    if value == 1 and (name := of_norm(s, left)):
        found.add(said, unit=(name,))
        return True
    if symbol.op == "partial" and core(symbol.args[1]).op == "at":  # of the loss: another way to write dS
        of, by = symbol.args[0], core(symbol.args[1])
        symbol = Formula("at", by.args, (f"d{by.attrs[0]}",)) if of.attrs[:1] and of.attrs[0] in LOSSES else symbol
    if symbol.op != "at":
        return False
    if value is not None and at_end(s, symbol, found, value):
        found.add(said)
        return True
    name = given_name(s, symbol)
    if not name:
        return False
    dims = s.setting.lookup(name).dims if hasattr(s.setting.lookup(name), "dims") else ("1", "1")
    square = dims[0] == dims[1] != "1"
    if value is not None and not (value and square):
        found.add(said, value=((name, value),))
    elif right.op == "ones":
        found.add(said, value=((name, Fraction(1)),))
    elif right.op == "eye" and square:
        found.add(said, identity=(name,))
    elif right.op == "transpose" and not flipped and right.args[0] == left and square:
        found.add(said, symmetric=(name,))
    elif (other := same_as(s, symbol, core(right), flipped == (right.op == "transpose"))) and other != name:
        found.add(said, same=((name, other),))
    else:
        return False
    return True


def number_of(x: Formula) -> Fraction | None:
    if x.op == "negative":
        inner = number_of(x.args[0])
        return None if inner is None else -inner
    return x.attrs[0] if x.op == "number" else None


def given_name(s: Symbols, x: Formula) -> str:
    """The name in the setting of an input, or of something given, at any step."""
    known = s.names.get(x.attrs[0], "") if x.op == "at" else ""
    if not known or len(x.args) > 1 or any(a.op != "index" for a in x.args):
        return ""
    inputs = {v.name for v in s.recurrence.variables} if s.recurrence is not None else set()
    q = s.setting.quantities.get(known)
    return known if known in inputs or (q is not None and q.kind == "given") else ""


def same_as(s: Symbols, x: Formula, other: Formula, alike: bool) -> str:
    """Another input of the same shape, at the same step."""
    if other.op != "at" or other.args != x.args or not alike:
        return ""
    name, own = given_name(s, other), given_name(s, x)
    shapes = [getattr(s.setting.lookup(n), "dims", ("1", "1")) if n else None for n in (name, own)]
    return name if shapes[0] is not None and shapes[0] == shapes[1] else ""


def of_norm(s: Symbols, x: Formula) -> str:
    """k, of |k|, |k|^2, <k, k> or k.T * k."""
    if x.op == "power" and x.args[1] == formula(2):
        x = x.args[0]
    inside = None
    if x.op == "norm" or (x.op == "inner" and x.args[0] == x.args[1]):
        inside = x.args[0]
    elif x.op == "product" and len(x.args) == 2 and x.args[0] == x.args[1].T:
        inside = core(x.args[0])
    name = given_name(s, core(inside)) if inside is not None else ""
    dims = getattr(s.setting.lookup(name), "dims", ("1", "1")) if name else ("1", "1")
    return name if "1" in dims and dims != ("1", "1") else ""


def at_end(s: Symbols, x: Formula, found: Under, value: Fraction) -> bool:
    """S_0 = 0, or that no loss is taken of the last state: dS_{n+1} = 0."""
    if s.recurrence is None or len(x.args) != 1 or value:
        return False
    (at,) = x.args
    name = x.attrs[0]
    if name in s.steps.states and at == formula(0):
        state = next(y for y in s.recurrence.states if y.name == s.names[name])
        if state.initial is None:
            found.initial[s.names[name]] = formula(0)
        return True
    past = at.op == "add" and at.args[1:] == (formula(1),) and at.args[0].op in ("size", "index", "at")
    if base_of(name) in s.steps.states and past and is_length(s, at.args[0]):
        found.final_loss = False
        return True
    return False


def says_the_end(s: Symbols, e: Equation) -> bool:
    """Whether an equation says dS_{n+1} = 0."""
    head = core(e.head)
    return (
        e.first
        and e.relation in ("=", ":=")
        and number_of(e.side) == 0
        and head.op == "at"
        and base_of(head.attrs[0]) in s.steps.states
        and at_end(s, head, Under(), Fraction(0))
    )


def is_length(s: Symbols, x: Formula) -> bool:
    letter = x.attrs[0]
    return s.names.get(letter, letter) == LENGTH or (letter in ("T", "L", "N", "n") and letter not in s.names)


# --- numbers that are 0 ---------------------------------------------------------------------------------------------

LINEAR = ("product", "add", "negative", "transpose", "inner", "hadamard", "diag")


def makes_zero(s: Symbols, found: Under, left: Formula, right: Formula, resolve: Resolve) -> bool:
    """Add that two numbers are the same, as in k_t^T v_t = 0, where an input of this step, of which nothing else is said, can be
    moved until they are."""
    x = add(resolve(left), negative(resolve(right))) if number_of(right) != 0 else resolve(left)
    if not s.setting.quantities and s.recurrence is None:
        return False
    refuse_misfits(s, (resolve(left), resolve(right)), "=")
    if not resolve_shape_is_scalar(resolve, x):
        return False
    letters = free_indices(x)
    made = {s.names[n] for n in (*s.steps.states, *s.steps.lets, *s.steps.outputs) if n in s.names}
    defined = {q.name for q in s.setting.quantities.values() if q.kind == "defined"}
    nodes = [y for y in walk(x) if y.op == "at"]
    now = {y for y in nodes if not y.args or y.args[0].op == "index"}
    if len(letters) > 1 or any(y.attrs[0] in made | defined for y in now) or any(y.op in RANGED for y in walk(x)):
        return False
    so = found.premises
    kept = {*dict(so.value), *so.unit, *so.symmetric, *so.identity, *(n for pair in so.same for n in pair)}
    others = {y for other, _ in so.zero for y in walk(other)}
    for y in reversed(nodes):
        name = y.attrs[0]
        free = y in now and nodes.count(y) == 1 and y not in others and name not in kept and may_be_moved(s, name)
        if free and linear_in(x, y):
            found.add(f"{left} = {right}", zero=((x, y),))
            return True
    return False


def refuse_misfits(s: Symbols, sides: tuple[Formula, Formula], relation: str) -> None:
    """Raise where a condition multiplies, or compares, what has other sizes."""
    said = f"its condition {sides[0]} {relation} {sides[1]}"
    evaluate = Evaluator(Instance(s.setting, Point().sizes(s.setting), REAL))
    sides = statement_sides(sides, s)  # type: ignore[assignment]
    try:
        left, right = (evaluate(x, dict.fromkeys(free_indices(x), 2)) for x in sides)
    except ShapeFault as fault:
        raise Fault(f"{said} isn't tried: {fault}") from None
    except Faults:
        return
    if left.shape != right.shape and not (left.is_scalar or right.is_scalar):
        raise Fault(f"{said} isn't tried: it compares {left.shown} with {right.shown}")


def resolve_shape_is_scalar(resolve: Resolve, x: Formula) -> bool:
    shape = getattr(resolve, "shape", None)
    return shape is not None and shape(x) == ("1", "1")


def may_be_moved(s: Symbols, name: str) -> bool:
    """Whether a quantity is given, and may be any number."""
    if is_decay(s.setting, name):
        return False
    q = s.setting.quantities.get(name)
    inputs = {v.name for v in s.recurrence.variables} if s.recurrence is not None else set()
    return q.domain == "real" and q.kind in ("given", "spec") if q is not None else name in inputs


def linear_in(x: Formula, y: Formula) -> bool:
    """Whether x is linear in y, which stands in it once."""
    if x == y:
        return True
    inside = [a for a in x.args if y in walk(a)]
    dividend = x.op == "divide" and inside == [x.args[0]]
    return len(inside) == 1 and (x.op in LINEAR or dividend) and linear_in(inside[0], y)
