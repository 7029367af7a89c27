"""How fast an expression grows, and how fast it vanishes, as what it is made of gets large: as which power of that, and endlessly
fast for an exponential. What is bounded, or apart from 0, has the power 0."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from ...ir.expr import Node, fn, walk
from ...ir.functions import APART, HELD, MAGNITUDE, OVER_EXP
from ...ir.ranges import Ranges

LINEAR = frozenset(f"abs relu {MAGNITUDE} {OVER_EXP}".split())  # functions that grow as what they are of
LINEAR_AT_MOST = frozenset("log log1p logsigmoid asinh expm1".split())


@dataclass(frozen=True)
class Growth:
    """up: the power with which it grows. down: with which it vanishes. degree: of `up`, what isn't an exponential's."""

    up: float = 0
    down: float = 0
    degree: float = 0

    def raised(self, n: float) -> Growth:
        up, down = (self.up, self.down) if n > 0 else (self.down, self.up)
        return Growth(_times(abs(n), up), _times(abs(n), down), abs(n) * self.degree)


class Growths:
    """The growth of expressions that depend on no axis's sum."""

    def __init__(self, ranges: Ranges) -> None:
        self.ranges = ranges
        self.memo: dict[Node, Growth] = {}

    def __call__(self, x: Node) -> Growth:
        if x not in self.memo:
            self.memo[x] = self._of(x)
        return self.memo[x]

    def _of(self, x: Node) -> Growth:
        found = [self(a) for a in x.args]
        match x.op:
            case "leaf":
                return Growth() if self.ranges(x).bounded else Growth(1, 0, 1)
            case "add" | "max":
                return Growth(max(f.up for f in found), min(f.down for f in found), max(f.degree for f in found))
            case "mul":
                return Growth(sum(f.up for f in found), sum(f.down for f in found), sum(f.degree for f in found))
            case "pow":
                return found[0].raised(float(x.attrs[0]))
            case "expand":
                return found[0]
            case "fn":
                return self._of_function(x.attrs[0], x.args[0], found[0])
        return Growth()

    def _of_function(self, name: str, y: Node, of: Growth) -> Growth:
        if name in (HELD, APART) or is_scaled(fn(name, y)):
            return Growth()
        high, low = (self.ranges(y).high == inf, self.ranges(y).low == -inf)
        if name in ("exp", "sigmoid"):
            return Growth(inf if high and name == "exp" else 0, inf if low else 0)
        if name == "softplus":
            return Growth(of.up if high else 0, inf if low else 0, of.degree if high else 0)
        if name in LINEAR:
            return Growth(of.up, 0, of.degree)
        if name in LINEAR_AT_MOST and of.up:
            return Growth(1, 0, 1)
        return Growth()


def is_scaled(x: Node) -> bool:
    """Is it an exponential over the largest of several?"""
    return x.op == "fn" and x.attrs[0] == "exp" and any(y.op == "fn" and y.attrs[0] == HELD for y in walk(x))


def _times(n: float, power: float) -> float:
    return n * power if power else 0
