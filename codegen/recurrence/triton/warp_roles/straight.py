"""A sweep's kernel without what the words of one kind of launch decide: statements one after the other, each of which makes one
name that nothing makes again, and with the runtime's functions written out.

The launch is of operands of two bytes, in chunks that may end beyond the sequence, and yields what the sweep is for. Its chunks
are the blocks of steps before each of which states are left.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ....exact.jit_source import helper
from ....ir.code import Binary, Call, Code, Either, Group, Items, Literal, Name, Not, code
from ....ir.code_parts import rebuilt, substituted
from ....ir.kernel_ir import Body, Do, For, If, KernelFunction, Let, Note, Return, Statement, Store
from ....printing.cannot_print import CannotPrint
from ..gates.kernel_gate import runtime_function

WORDS: dict[str, bool | int] = {
    "YIELD": True,
    "EXACT": False,
    "EVEN": False,
    "PRODUCTS": False,
    "PAIRS": False,
    "READ": 0,
    "TAIL": 0,
}
OF_WHOLE = (Name("APART"), Name("T") > 0, Name("WARPS") > 4)  # what holds of a fused backward, which has 8 warps
KEPT = frozenset(
    "inverse rows_of paired_states row_sums column_sums over_rows store_sums store_partial_sums".split()
)  # have names in Gluon


@dataclass(frozen=True)
class Straight:
    """What comes before the loop over chunks, what is done for each, and what comes after it. `carried`: by the names of states
    that a chunk is entered with, what they are after it."""

    setup: Body
    loop: Body
    after: Body
    carried: dict[str, Code]


def straight(k: KernelFunction, missing: frozenset[str], whole: bool = False) -> Straight:
    """The statements of a kernel as it is before all passes, where these arguments aren't given; of one that has states `whole`.

    Raises CannotPrint where it has another loop, or makes a name under a condition.
    """
    known = WORDS | {x.counter: 0 for x in k.slices} | dict.fromkeys(missing)
    words: dict[Code, Code] = {Name(n): Literal(x) for n, x in known.items()}
    words[Name("BLOCK")] = Name("C")
    words |= {x: Literal(True) for x in OF_WHOLE if whole}
    loops = [n for n, x in enumerate(k.body) if isinstance(x, For)]
    if len(loops) != 1:
        raise CannotPrint("a kernel of several loops has no roles yet")
    loop = k.body[loops[0]]
    assert isinstance(loop, For)
    lines = _Lines(words | {Name("count") > 0: Literal(True)}, taken={p.name for line in k.parameters for p in line})
    setup = lines.section(k.body[: loops[0]])
    entered = dict(lines.now)
    inside = lines.section(loop.body)
    carried = {n: x for n, x in lines.now.items() if n in lines.made_before and x is not entered.get(n)}
    names = {n: entered.get(n, Name(n)) for n in carried}
    if any(not isinstance(x, Name) for x in names.values()):
        raise CannotPrint("what a loop carries begins as no name")
    lines.now |= names
    after = lines.section(k.body[loops[0] + 1 :])
    return Straight(setup, inside, after, {x.id: carried[n] for n, x in names.items() if isinstance(x, Name)})


@dataclass
class _Lines:
    """Statements made so far: what each name stands for by now."""

    words: dict[Code, Code]  # what expressions are, where it is known
    now: dict[str, Code] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)
    made_before: set[str] = field(default_factory=set)
    known: Mapping[str, object] = field(default_factory=dict)  # functions of the module that these are of

    def section(self, body: Body) -> Body:
        self.made_before = set(self.now)
        return tuple(y for x in body for y in self.statement(x))

    def statement(self, x: Statement) -> Body:
        match x:
            case Note():
                return ()
            case Let(names=names, value=Call() as call) if (several := self.several(call, names)) is not None:
                return several
            case Let(names=(name,), value=value, sign=sign, note=note):
                made = self.of(value)
                if sign != "=":
                    made = folded(Binary(sign[0], self.of(Name(name)), made), self.words)
                return self.let(name, made, note)
            case Store(pointer=pointer, value=value, mask=mask, note=note):
                return (Store(self.of(pointer), self.of(value), None if mask is None else self.of(mask), note),)
            case If(condition=condition, body=body, otherwise=otherwise):
                return self.condition(self.of(condition), body, otherwise)
            case Do(call=call, note=note):
                return (Do(self.of(call), note),)
        raise CannotPrint(f"a kernel with roles has no {type(x).__name__.lower()}")

    def condition(self, condition: Code, body: Body, otherwise: Body) -> Body:
        if isinstance(condition, Literal):
            return tuple(y for x in (body if condition.value else otherwise) for y in self.statement(x))
        if not otherwise and all(isinstance(x, Let) for x in body):  # a name that is made anew under a condition
            found: list[Statement] = []
            for x in body:
                assert isinstance(x, Let)
                before = self.of(Name(x.names[0]))
                value = self.of(x.value) if x.sign == "=" else Binary(x.sign[0], before, self.of(x.value))
                found += self.let(x.names[0], Either(value, condition, before))
            return tuple(found)
        if any(isinstance(x, Let) for x in (*body, *otherwise)):
            raise CannotPrint("a name is made under a condition")
        inside = tuple(y for x in body for y in self.statement(x))
        other = tuple(y for x in otherwise for y in self.statement(x))
        return (If(condition, inside, other),) if inside or other else ()

    def let(self, name: str, made: Code, note: str = "") -> Body:
        if isinstance(made, Name | Literal):
            self.now[name] = made
            return ()
        own, n = name, 1
        while own in self.taken:
            n += 1
            own = f"{name}_{n}"
        self.taken.add(own)
        self.now[name] = Name(own)
        return (Let((own,), made, note=note),)

    def of(self, x: Code) -> Code:
        """An expression in the names of now, without what words decide."""

        def change(y: Code) -> Code:
            if isinstance(y, Name):
                return self.now.get(y.id, self.words.get(y, y))
            y = rebuilt(y, change)
            if isinstance(y, Call) and (inside := self.written_out(y)) is not None:
                return change_folded(inside)
            return folded(y, self.words)

        def change_folded(y: Code) -> Code:
            return folded(rebuilt(y, change_folded), self.words) if y.parts else folded(y, self.words)

        return change(x)

    def several(self, call: Call, names: tuple[str, ...]) -> Body | None:
        """A function of the runtime that returns several values, written out."""
        function = runtime_function(call.function) if len(names) > 1 else None
        if function is None:
            return None
        found = helper(function)
        arguments = dict(zip(found.parameters, map(self.of, call.arguments), strict=True))
        inside = _Lines(self.words, {}, self.taken)
        inside.now = arguments
        *body, last = found.body
        if not isinstance(last, Return) or not isinstance(last.value, Items):
            raise CannotPrint(f"a kernel with roles doesn't write out {call.function}")
        made: list[Statement] = []
        for x in body:
            if isinstance(x, If):
                made += self.branches(x, inside, last.value)
            else:
                made += inside.statement(x)
        for name, value in zip(names, last.value.values, strict=True):
            made += self.let(name, inside.of(value))
        return tuple(made)

    def branches(self, x: If, inside: _Lines, wanted: Items) -> Body:
        """Names that both branches make, each in its own way: one name for both, chosen when the kernel is compiled."""
        condition = inside.of(x.condition)
        if isinstance(condition, Literal):
            return tuple(z for y in (x.body if condition.value else x.otherwise) for z in inside.statement(y))
        sides = []
        for body in (x.body, x.otherwise):
            side = dict(inside.now)
            for y in body:
                if not isinstance(y, Let) or len(y.names) != 1:
                    raise CannotPrint("a branch that makes more than names")
                side[y.names[0]] = substituted(y.value, side)
            sides.append(side)
        names = [n for n in sides[0] if sides[0][n] is not inside.now.get(n)]
        return tuple(y for n in names for y in inside.let(n, Either(Group(sides[0][n]), condition, Group(sides[1][n]))))

    def written_out(self, x: Call) -> Code | None:
        """A call of a function of the runtime that is one expression, as that expression."""
        named = "." not in x.function and x.function not in KEPT
        function: Any = (runtime_function(x.function) or self.known.get(x.function)) if named else None
        if function is None:
            return None
        found = helper(function)
        known = getattr(function, "fn", function).__globals__
        inside = _Lines(self.words, dict(zip(found.parameters, x.arguments, strict=True)), known=known)
        *before, last = found.body
        made = inside.section(tuple(before))
        if (
            not isinstance(last, Return)
            or not isinstance(last.value, Code)
            or not all(isinstance(y, Let) for y in made)
        ):
            raise CannotPrint(f"a kernel with roles doesn't write out {x.function}")
        value = inside.of(last.value)
        for y in reversed(made):
            assert isinstance(y, Let)
            value = substituted(value, {y.names[0]: y.value})
        return value


def divided(left: Code, operator: str, right: Code) -> Code:
    """A quotient of integers, or what is left of a division, where it is known."""
    if operator == "//" and isinstance(left, Name) and left == right:
        return Literal(1)
    if right == Literal(1):
        return left if operator == "//" else Literal(0)
    return Binary(operator, left, right)


def folded(x: Code, words: dict[Code, Code]) -> Code:
    """An expression of folded parts, without what is known when it is printed."""
    if x in words:
        return words[x]
    match x:
        case Group(value=Literal() | Name() as value):
            return value
        case Either(then=then, condition=Literal(value=known), otherwise=otherwise):
            return then if known else otherwise
        case Not(value=Literal(value=known)):
            return Literal(not known)
        case Binary(operator="is" | "is not" as operator, left=Literal(value=a), right=Literal(value=b)):
            return Literal((a is b) == (operator == "is"))
        case Binary(operator="or" | "and" as operator, left=Literal(value=a), right=right):
            return right if bool(a) == (operator == "and") else Literal(bool(a))
        case Binary(operator="==", left=Literal(value=a), right=Literal(value=b)):
            return Literal(a == b)
        case Binary(
            operator=operator, left=Literal(value=int() | float() as a), right=Literal(value=int() | float() as b)
        ):
            if operator in "+-*":
                return code(a + b if operator == "+" else a - b if operator == "-" else a * b)
        case Binary(operator="//" | "%" as operator, left=left, right=right):
            return divided(left, operator, right)
        case Binary(operator="+" | "-", left=left, right=Literal(value=0)):
            return left
        case Binary(operator="+", left=Literal(value=0), right=right):
            return right
        case Binary(operator="*", left=Literal(value=0)):
            return Literal(0)
    return x
