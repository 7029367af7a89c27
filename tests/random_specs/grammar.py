"""Random valid specs: states, decays, writes and reads of all shapes, put together as a person might.

What keeps numbers in bounds: keys that are fed back are normalised or short, and decays are at most 1 (mostly).
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from .terms import Shape, Term, call, number

HEAD = "from sympy import Max, Min\nfrom chunkform.spec.language import *\nfrom chunkform.spec.language import Recurrence\n\n"
NAMES = {(): "b c g".split(), ("d",): "q k x".split(), ("e",): "v u w".split()}


@dataclass(frozen=True)
class Given:
    """An argument: `kind` is the method of Recurrence that declares it."""

    name: str
    kind: str
    shape: Shape
    default: float | None = None
    domain: tuple[float, float] | None = None

    @property
    def text(self) -> str:
        dims = "".join(f", {x}" for x in self.shape)
        default = "" if self.default is None else f", {self.default}"
        domain = "" if self.domain is None else f", domain={self.domain}"
        return f'{self.name} = r.{self.kind}("{self.name}"{dims}{default}{domain})'


@dataclass(frozen=True)
class Drawn:
    """A spec, as text and as terms. `initial` are the values that the spec gives to states, if any."""

    name: str
    dims: tuple[str, ...]
    given: tuple[Given, ...]
    states: dict[str, Shape]
    initial: dict[str, Term]
    lets: dict[str, Term]
    updates: dict[str, Term]
    outputs: dict[str, Term]

    @property
    def text(self) -> str:
        lines = [f'r = Recurrence("{self.name}")']
        for x in self.dims:
            lines.append(f'{x} = r.dims("{x}")')
        lines += [x.text for x in self.given]
        for n, shape in self.states.items():
            dims = "".join(f", {x}" for x in shape)
            start = f", initial={self.initial[n].text}" if n in self.initial else ""
            lines.append(f'{n} = r.state("{n}"{dims}{start})')
        said: set[str] = set()
        for n, term in self.updates.items():
            lines += self._lets(term, said)
            lines.append(f"r.update({n}, {term.text})")
        for n, term in self.outputs.items():
            lines += self._lets(term, said)
            lines.append(f'r.output("{n}", {term.text})')
        return HEAD + "\n".join(lines) + "\n"

    def _lets(self, term: Term, said: set[str]) -> list[str]:
        """The auxiliary quantities that a term needs, and that nothing before it has named."""
        if term.op == "let":
            name, meaning = term.args
            if name in said:
                return []
            before = self._lets(meaning, said)
            said.add(name)
            return [*before, f'{name} = r.let("{name}", {meaning.text})']
        return [line for a in term.args if isinstance(a, Term) for line in self._lets(a, said)]


def draw(seed: int) -> Drawn:
    """The spec of a seed."""
    return Grammar(random.Random(seed), f"random_{seed}").spec()


class Grammar:
    def __init__(self, rng: random.Random, name: str) -> None:
        self.rng, self.name = rng, name
        self.dims = rng.choice([("d", "e")] * 6 + [("d",)] * 2)
        self.given: dict[str, Given] = {}
        self.states: dict[str, Shape] = {}
        self.initial: dict[str, Term] = {}
        self.lets: dict[str, Term] = {}
        self.updates: dict[str, Term] = {}
        self.simple = rng.random() < 0.5  # few inputs, plain factors: the specs of papers

    # --- choosing ---------------------------------------------------------------------------------------------------

    def often(self, p: float) -> bool:
        return self.rng.random() < p

    def pick(self, *choices: Any) -> Any:
        """One of the choices; (weight, choice) pairs, where the first is a number, weigh."""
        return self.rng.choice(choices)

    def op(self, name: str, *args: Term, shape: Shape | None = None) -> Term:
        zero = any(x.op == "number" and not x.args[0] for x in args)  # by the inverse of which nothing is divided
        return call(name, *args, shape=shape, way=self.rng.randrange(6) if self.often(0.3) and not zero else 0)

    def argument(self, kind: str, shape: Shape, default: float | None = None) -> Term:
        """One of the arguments of a kind and shape, or a new one."""
        known = [x for x in self.given.values() if (x.kind, x.shape, x.domain) == (kind, shape, None)]
        if known and (self.often(0.6) or len(known) > 2):
            return Term("name", (self.pick(*known).name,), shape)
        stem = {"inputs": "x", "decay": "al", "head_decay": "ga", "parameter": "p", "constant": "z"}[kind]
        for name in (*(NAMES.get(shape, ()) if kind == "inputs" else ()), *(f"{stem}{n}" for n in range(99))):
            if name not in self.given:
                self.given[name] = Given(name, kind, shape, default)
                return Term("name", (name,), shape)
        raise AssertionError

    # --- numbers and vectors of the step ----------------------------------------------------------------------------

    def plain_number(self) -> Term:
        return number(self.pick(2, -1, 0.5, -0.5, 0.25, 3, 0.3, -2))

    def scalar(self, depth: int = 0) -> Term:
        """A number of order one."""
        kind = self.rng.randrange(6 if self.simple or depth > 1 else 15)
        match kind:
            case 0:
                return self.plain_number()
            case 1 | 2:
                return self.argument("inputs", ())
            case 3:
                return self.op("sigmoid", self.argument("inputs", ()))
            case 4:
                return self.op("subtract", number(1), self.argument(self.pick("decay", "head_decay"), ()))
            case 5:
                return self.argument("decay", ())
            case 6:
                return self.argument("parameter", ())
            case 7:
                return self.argument("constant", (), 0.5)
            case 8:
                x = self.pick(*self.dims)
                return self.op("dot", self.vector(x, depth + 1), self.vector(x, depth + 1), shape=())
            case 9:
                return self.op("scale", self.scalar(depth + 1), self.scalar(depth + 1))
            case 10:
                x = self.argument("inputs", (self.pick(*self.dims),))
                one = self.op("add", number(1), self.op("dot", x, x, shape=()))
                return self.op("over", self.scalar(depth + 1), self.pick(one, self.op("root", one)))
            case 11:
                x = self.pick(*self.dims)
                return self.op("over", self.op("total", self.vector(x, depth + 1), shape=()), Term("size", (x,), ()))
            case 12:
                return self.op(self.pick("tanh", "softplus", "cos", "silu", "erf"), self.argument("inputs", ()))
            case 13:
                return self.op("subtract", self.scalar(depth + 1), self.scalar(depth + 1))
        return self.named(self.op("sigmoid", self.argument("inputs", ())))

    def vector(self, x: str, depth: int = 0) -> Term:
        """A vector of about unit length."""
        kind = self.rng.randrange(7 if self.simple or depth > 1 else 16)
        given = self.argument("inputs", (x,))
        match kind:
            case 0 | 1 | 2 | 3:
                return given
            case 4:
                return self.op("scale", self.scalar(depth + 1), given)
            case 5:
                return self.named(self.op("normalize", given))
            case 6:
                return self.argument("parameter", (x,))
            case 7:
                return self.op("hadamard", given, self.vector(x, depth + 1))
            case 8:
                return self.op(self.pick("tanh", "sin", "silu", "relu", "absolute", "softplus"), given)
            case 9:
                return self.op("subtract", number(1), self.argument(self.pick("decay", "head_decay"), (x,)))
            case 10:
                return self.op("softmax", given)
            case 11:
                return self.op(self.pick("add", "subtract"), given, self.vector(x, depth + 1))
            case 12:
                return self.op("scale", number(self.pick(0.5, 0.3)), Term("ones", (x,), (x,)))
            case 13:
                return self.op("over", given, self.op("norm", self.argument("inputs", (x,)), shape=()), shape=(x,))
            case 14:
                return self.op("diagonal times", self.argument("decay", (x,)), given)
        other = self.pick(*self.dims)
        m = self.argument(self.pick("inputs", "parameter"), (x, other))
        return self.op("columns", m, self.vector(other, depth + 1), shape=(x,))

    def key(self, x: str) -> Term:
        """A vector that may be fed back: short enough for its state to stay in bounds."""
        given = self.argument("inputs", (x,))
        unit = self.op("normalize", given)
        return self.pick(
            given, unit, self.named(unit), self.op("softmax", given), self.op("scale", self.scalar(2), unit)
        )

    def named(self, term: Term) -> Term:
        """The term, perhaps under a name of its own."""
        if not self.often(0.3):
            return term
        for n, known in self.lets.items():
            if known == term:
                return Term("let", (n, term), term.shape)
        name = f"n{len(self.lets)}"
        self.lets[name] = term
        return Term("let", (name, term), term.shape)

    # --- decays -----------------------------------------------------------------------------------------------------

    def rate(self, shape: Shape) -> Term:
        """A positive decay over a shape of at most one dim."""
        b = self.argument("inputs", shape)
        kind = self.rng.randrange(4 if self.simple else 9)
        match kind:
            case 0 | 1 | 2:
                return self.argument("decay", shape)
            case 3:
                return self.argument("head_decay", shape)
            case 4:
                return self.op("sigmoid", b)
            case 5:
                return self.op("exp", self.op("negative", self.op(self.pick("softplus", "exp"), b)))
            case 6:
                a = self.argument("parameter", shape)
                rate = self.op("hadamard" if shape else "scale", self.op("exp", a), self.op("softplus", b))
                return self.op("exp", self.op("negative", rate))
            case 7:
                factor = self.argument("decay", shape), self.op("sigmoid", b)
                return self.op("hadamard" if shape else "scale", *factor)
        if not shape:
            return self.pick(
                number(self.pick(0.5, 0.9, 1)),
                self.op("square", self.argument("decay", ())),
                self.op("over", number(1), self.op("add", number(1), self.op("square", b))),
                self.op("largest", self.argument("decay", ()), number(0.5)),
                self.op("subtract", number(1), self.op("sigmoid", b)),
            )
        return self.op("subtract", number(1), self.op("sigmoid", b))

    def signed(self) -> Term:
        """A number by which a state may be multiplied that isn't known to be positive."""
        b = self.argument("inputs", ())
        return self.pick(
            number(self.pick(-0.5, -1, 0)),
            self.op("tanh", b),
            self.op("negative", self.argument("decay", ())),
            self.op("scale", number(0.5), self.op("cos", b)),
            self.op("subtract", self.argument("decay", ()), self.op("sigmoid", b)),
            self.op("scale", number(0.5), self.argument("constant", (), 0.5)),
        )

    def decayed(self, S: Term) -> Term:
        if self.often(0.2):
            return S
        if self.often(0.08):
            return self.op("scale", self.signed(), S)
        if not S.shape:
            return self.op("scale", self.rate(()), S)
        if len(S.shape) == 1:
            if self.often(0.5):
                return self.op("scale", self.rate(()), S)
            rate = self.rate(S.shape) if self.often(0.7) else self.vector(S.shape[0])
            if rate.op == "parameter" or self.often(0.1):
                rate = self.op("tanh", rate)
            return self.op(self.pick("hadamard", "diagonal times"), rate, S)
        kind = self.rng.randrange(10)
        if kind < 5:
            return self.op("scale", self.rate(()), S)
        if kind < 7:
            return self.op("scale rows", self.rate(S.shape[:1]), S)
        if kind < 9:
            return self.op("scale columns", self.rate(S.shape[1:]), S)
        one = self.op("scale rows", self.rate(S.shape[:1]), S)
        return self.pick(self.op("scale columns", self.rate(S.shape[1:]), one), self.op("scale", self.rate(()), one))

    # --- reads and writes -------------------------------------------------------------------------------------------

    def read(self, m: Term, out: str | None, fed: bool) -> Term | None:
        """A vector over `out`, or a number, read of a matrix, vector or number; None where there is none."""
        vector = self.key if fed else self.vector
        if len(m.shape) == 2:
            ways = []
            if m.shape[1] == out:
                ways.append(lambda: self.op("rows", vector(m.shape[0]), m, shape=(m.shape[1],)))
            if m.shape[0] == out:
                ways.append(lambda: self.op("columns", m, vector(m.shape[1]), shape=(m.shape[0],)))
            if out is None:
                ways.append(
                    lambda: self.op(
                        "dot",
                        vector(m.shape[0]),
                        self.op("columns", m, vector(m.shape[1]), shape=m.shape[:1]),
                        shape=(),
                    )
                )
            return self.pick(*ways)() if ways else None
        if len(m.shape) == 1:
            if m.shape[0] == out:
                return m
            return self.op("dot", m, vector(m.shape[0]), shape=()) if out is None else None
        return m if out is None else None

    def reads(self, out: str | None, states: list[Term], fed: bool = False) -> Term | None:
        found = [x for s in self.rng.sample(states, len(states)) if (x := self.read(s, out, fed)) is not None]
        return found[0] if found else None

    def previous(self) -> list[Term]:
        return [Term("prev", (n,), shape) for n, shape in self.states.items()]

    def following(self) -> list[Term]:
        return [Term("next", (n,), self.states[n]) for n in self.updates]

    def value(self, out: str | None, own: list[Term], others: list[Term]) -> Term:
        """What is written along one axis: an input, perhaps less or with what is read."""
        x = self.scalar() if out is None else self.vector(out)
        if own and self.often(0.45):
            read = self.reads(out, own, fed=True)
            if read is not None:
                if self.often(0.05):
                    read = self.op("tanh", read)
                if self.often(0.2):
                    read = self.op("scale", self.op("sigmoid", self.argument("inputs", ())), read)
                x = self.op("subtract", x, read) if self.often(0.8) else read
        if others and self.often(0.25):
            read = self.reads(out, others)
            if read is not None:
                x = self.op(self.pick("add", "subtract"), x, self.op("scale", self.scalar(2), read))
        return x

    def written(self, shape: Shape, own: list[Term], others: list[Term]) -> Term:
        """One write, spelled as a product or multiplied out."""
        if not shape:
            return self.value(None, own, others)
        if len(shape) == 1:
            x = self.value(shape[0], own, others)
            return self.op("scale", self.scalar(1), x) if self.often(0.4) else x
        along = self.pick(0, 1) if self.often(0.3) else 0
        left, right = self.key(shape[along]), self.value(shape[1 - along], own, others)
        scale = self.scalar(1) if self.often(0.4) else None

        def outer(a: Term, b: Term) -> Term:
            one, other = (a, b) if along == 0 else (b, a)
            product = self.op("outer", one, other, shape=shape)
            return product if scale is None else self.op("scale", scale, product)

        if right.op in ("add", "subtract") and all(a.shape for a in right.args) and self.often(0.4):
            return call(right.op, outer(left, right.args[0]), outer(left, right.args[1]))
        if scale is not None and self.often(0.5):
            return self.op("outer", *((self.op("scale", scale, left), right)[:: 1 if along == 0 else -1]), shape=shape)
        return outer(left, right)

    def transition(self, S: Term) -> Term:
        """The previous state times a matrix such as I - b k k^T, from either side."""
        side = self.pick(0, 1)
        x = S.shape[side]
        k = self.op("normalize", self.argument("inputs", (x,)))
        other = k if self.often(0.7) else self.key(x)
        beta = self.pick(number(2), self.op("sigmoid", self.argument("inputs", ())), number(1), number(0.5))
        start = self.pick(Term("eye", (x,), (x, x)), call("diag", self.rate((x,)), shape=(x, x)))
        change = self.op("outer", self.op("scale", beta, k) if self.often(0.5) else k, other, shape=(x, x))
        m = self.op("subtract", start, change if change.args[0].op == "scale" else self.op("scale", beta, change))
        if self.often(0.2):
            m = self.named(m)
        return self.op("product", *((m, S) if side == 0 else (S, m)), shape=S.shape)

    def update(self, name: str) -> Term:
        S, shape = Term("prev", (name,), self.states[name]), self.states[name]
        others = [x for x in self.following() if x.args[0] != name]
        others += [x for x in self.previous() if x.args[0] != name and self.often(0.2)]
        if len(shape) == 2 and self.often(0.12):
            term = self.transition(self.decayed(S) if self.often(0.4) else S)
        else:
            term = self.decayed(S)
        seen = [S, term] if self.often(0.3) else [S]
        for _ in range(self.pick(0, 1, 1, 1, 1, 1, 1, 2, 2, 3) if not self.simple else self.pick(1, 1, 1, 2)):
            term = self.op(self.pick("add", "add", "subtract"), term, self.written(shape, seen, others))
            if self.often(0.15):
                seen = [*seen, term]
        whole = [x for x in others if x.shape == shape]
        if whole and self.often(0.25):
            scale = self.pick(self.rate(()), number(0.1), self.op("scale", number(0.5), self.scalar(2)))
            other = self.pick(*whole)
            term = self.op("add", term, self.op("scale", scale, other) if self.often(0.7) else other)
        if self.often(0.08):
            term = self.op("scale", self.rate(()), term)
        if len(shape) == 2 and self.often(0.05):
            term = self.op("scale rows", self.rate(shape[:1]), term)
        return term

    # --- outputs ----------------------------------------------------------------------------------------------------

    def output(self) -> Term:
        states = [*self.following(), *(x for x in self.previous() if self.often(0.4))]
        out = self.pick(None, *self.dims, *self.dims)
        x = self.reads(out, states)
        if x is None:
            whole = self.pick(*states)
            out = None if not whole.shape else self.pick(*whole.shape)
            x = self.reads(out, [whole])
        assert x is not None
        if self.simple or self.often(0.4):
            return x
        kind = self.rng.randrange(7)
        match kind:
            case 0:
                return self.op("scale", self.scalar(), x)
            case 1:
                other = self.reads(out, states)
                return x if other is None else self.op("add", x, other)
            case 2:
                return self.op("add", x, self.scalar(1) if out is None else self.vector(out, 1))
            case 3:
                return self.op(self.pick("tanh", "sigmoid", "silu"), x)
            case 4 if out is not None:
                return self.op("dot", x, self.vector(out, 1), shape=())
            case 5:
                other = self.reads(None, states)
                if other is not None:
                    return self.op("over", x, self.op("add", number(1), self.op("square", other)), shape=x.shape)
            case 6 if out is not None:
                return self.op("hadamard", x, self.vector(out, 1))
        return x

    def spec(self) -> Drawn:
        two = [(a, b) for a in self.dims for b in self.dims]
        shapes: list[Shape] = [*two, *two, *two, *((a,) for a in self.dims), ()]
        for n in range(self.pick(1, 1, 1, 1, 1, 2, 2, 3)):
            name = ("S", "R", "h")[n]
            self.states[name] = self.pick(*shapes)
            if self.often(0.1):
                shape = self.states[name]
                square = len(shape) == 2 and shape[0] == shape[1]
                start = (
                    [number(0.5), *([Term("eye", shape[:1], shape)] if square else [])] if not shape or square else []
                )
                start += [self.argument("parameter", shape)]
                self.initial[name] = self.pick(*start)
                if len(shape) == 2 and not self.initial[name].shape:
                    del self.initial[name]
        for name in self.states:
            self.updates[name] = self.update(name)
        outputs = {f"o{n}": self.output() for n in range(self.pick(1, 1, 1, 2))}
        used = set().union(*map(_names, (*self.updates.values(), *outputs.values(), *self.initial.values())))
        given = [x for x in self.given.values() if x.name in used or self.often(0.02)]
        for x in self.dims:  # a size is known by what has it
            if not any(x in g.shape for g in given):
                given.append(Given(f"i{x}", "inputs", (x,)))
        if not any(g.kind in ("inputs", "decay") for g in given):
            given.append(Given("it", "inputs", ()))
        given = tuple(given)
        return Drawn(self.name, self.dims, given, self.states, self.initial, self.lets, self.updates, outputs)


def _names(term: Term) -> set[str]:
    """The arguments in a term."""
    if term.op == "name":
        return {term.args[0]}
    return set().union(*(_names(a) for a in term.args if isinstance(a, Term)))
