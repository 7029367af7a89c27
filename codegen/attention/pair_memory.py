"""What the gate of kernels over pairs gives to these: random numbers in memory with gaps, and what scores they make."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property

import numpy as np

from ..exact.memory import Laid, drawn, room
from ..exact.rationals import Rationals, array, written
from ..exact.run_kernel import Argument, Tensor
from ..ir.evaluate import Env, evaluate
from ..ir.expr import Node, add, expand, mul, terms_of
from .feature_maps import Derivative, Map
from .lower import KEY, QUERY
from .normalisers import Normaliser
from .pairs import Pairs, ScaledScore
from .split import Split
from .tile_functions import FLOAT32_EPS, LOG2E, tile_of

NUMBERS = Rationals()
BLOCK, CHANNELS = 2, 16
ZERO = array(Fraction(0))


@dataclass(frozen=True)
class Case:
    """`beside` and `same`, where kernels have these."""

    batch: int
    rows: int
    keys: int
    heads: int
    key_heads: int
    causal: bool
    beside: bool = False
    same: bool = False
    held: bool = False

    @property
    def group(self) -> int:
        return self.heads // self.key_heads

    def sees(self) -> np.ndarray:
        """Which row sees which key: the last row stands where the last key does."""
        i, j = np.arange(self.rows) + self.keys - self.rows, np.arange(self.keys)
        return (i[:, None] >= j[None, :]) | np.bool_(not self.causal)


@dataclass(frozen=True)
class Derivation:
    """What kernels over pairs are held by."""

    split: Split
    outputs: Map
    derivatives: Mapping[str, Derivative]
    normaliser: Normaliser
    scaled: ScaledScore | None


@dataclass
class Given:
    """What kernels over pairs are given. Values are [B, H, T, ..] by name, or [B, H, T], or [H]; heads may be fewer of keys."""

    d: Derivation
    p: Pairs
    case: Case
    random: random.Random
    values: dict[str, np.ndarray] = field(default_factory=dict)
    arguments: dict[str, Argument] = field(default_factory=dict)

    def __post_init__(self) -> None:
        c, p = self.case, self.p
        self.same = c.same and p.same
        self.beside = c.beside and p.folded is not None
        self.widths = {f"D{s.n}": 2 + n % 2 for n, s in enumerate(p.scores)}
        self.widths["E"] = self.widths[f"D{p.scores[0].n}"] if self.same else 3
        self.draw()
        for s in p.scores:
            self.block(s.query, self.values[s.query])
            self.block(s.key, self.values[s.key])
        self.block("value", self.values["value"])
        for n in (*p.columns, *p.rows, *p.scalars):
            self.arguments[f"{n}_p"] = Tensor(n, self.values[n].ravel())
        words = {"T": c.rows, "S": c.keys, "H": c.heads, "GROUP": c.group, "CAUSAL": c.causal, "HELD": c.held}
        words |= {"BM": BLOCK, "BN": BLOCK, "BESIDE": self.beside, "SAME": self.same}
        self.arguments |= words | self.widths | {f"B{n}": 2 if x == 2 else 4 for n, x in self.widths.items()}

    def draw(self) -> None:
        c = self.case
        for n in self.p.scalars:
            self.values[n] = self.number((c.heads,))
        for n in self.p.rows:
            self.values[n] = self.number((c.batch, c.heads, c.rows))
        for n in self.p.columns:
            self.values[n] = self.number((c.batch, c.key_heads, c.keys))
        for s in self.p.scores:
            width = self.widths[f"D{s.n}"]
            self.values[s.query] = self.number((c.batch, c.heads, c.rows, width))
            self.values[s.key] = self.number((c.batch, c.key_heads, c.keys, width))
        wide = (c.batch, c.key_heads, c.keys, self.widths["E"])
        self.values["value"] = self.values[self.p.scores[0].key] if self.same else drawn(self.random, wide)

    def number(self, shape: tuple[int, ...]) -> np.ndarray:
        return drawn(self.random, shape)

    def block(self, name: str, values: np.ndarray, pointer: str = "") -> Laid:
        """A tensor [B, H, T, width] in memory with gaps, as an argument."""
        laid = room(name, values.shape, gap=1).filled(values)
        return self.passed(name, laid, pointer)

    def passed(self, name: str, laid: Laid, pointer: str = "") -> Laid:
        self.arguments[pointer or name] = laid.tensor
        self.arguments |= {f"{name}_{n}": laid.strides[k] for n, k in (("b", 0), ("h", 1), ("t", 2))}
        return laid

    def out(self, name: str, heads: int, count: int, width: int, pointer: str = "") -> Laid:
        """Room for a tensor [B, H, T, width]."""
        return self.passed(name, room(name, (self.case.batch, heads, count, width)), pointer)

    def three_parts(self, x: np.ndarray) -> list[np.ndarray]:
        """Numbers that add up to x."""
        first, second = (drawn(self.random, x.shape) for _ in range(2))
        return [first, second, array(x - first - second)]

    def channels(self, lead: tuple[int, ...], parts: list[np.ndarray]) -> np.ndarray:
        found = drawn(self.random, (*lead, CHANNELS))
        found[..., len(parts) :] = Fraction(0)
        for n, x in enumerate(parts):
            found[..., n] = x
        return found

    def scale(self, head: int) -> Fraction:
        """What multiplies the score."""
        assert self.d.scaled is not None
        env: Env = {("scalar", n): array(self.values[n][head]) for n in self.p.scalars}
        return self.number_of(mul(*self.d.scaled.numbers), env)

    def scales(self) -> np.ndarray:
        return array([self.scale(h) for h in range(self.case.heads)]).reshape(1, -1, 1)

    def columns_beside(self) -> np.ndarray:
        """The column over what multiplies the score, beside keys of each head."""
        lead = (self.case.batch, self.case.heads, self.case.keys)
        column = np.repeat(self.values[self.p.beside], self.case.group, 1)
        return self.channels(lead, self.three_parts(array(column / self.scales())))

    # --- what is expected of one head

    def heads(self) -> Iterator[tuple[int, int, int]]:
        """Sequences, heads, and those heads' heads of keys."""
        for b, h in np.ndindex(self.case.batch, self.case.heads):
            yield b, h, h // self.case.group

    @cached_property
    def of_keys(self) -> frozenset[str]:
        """What there is one of for each key, and its heads are those of keys."""
        return frozenset({"value", *self.p.columns, *(s.key for s in self.p.scores)})

    def at(self, name: str, b: int, h: int, kh: int) -> np.ndarray:
        return array(self.values[name][b, kh if name in self.of_keys else h])

    def env(self, b: int, h: int, kh: int) -> Env:
        c, p = self.case, self.p
        found: Env = {("constant", "eps"): array(written(float(FLOAT32_EPS.value or 0.0)))}
        for s in p.scores:
            found["score", s.name] = array(self.at(s.query, b, h, kh) @ self.at(s.key, b, h, kh).T)
        for kind, names in (("column", p.columns), ("row", p.rows)):
            found |= {(kind, n): self.at(n, b, h, kh) for n in names}
        found |= {("scalar", n): array(self.values[n][h]) for n in p.scalars}
        found["position", "i"] = array([Fraction(n + c.keys - c.rows) for n in range(c.rows)])
        found["position", "j"] = array([Fraction(n) for n in range(c.keys)])
        return found

    @property
    def sizes(self) -> dict[str, int]:
        return {QUERY: self.case.rows, KEY: self.case.keys}

    def over_pairs(self, x: Node, env: Env) -> np.ndarray:
        made = np.asarray(evaluate(expand(x, (QUERY, KEY)), env, NUMBERS, self.sizes), dtype=object)
        return np.broadcast_to(made, (self.case.rows, self.case.keys))

    def number_of(self, x: Node, env: Env) -> Fraction:
        found: Fraction = np.asarray(evaluate(x, env, NUMBERS, self.sizes), dtype=object).item()
        return found

    def energies(self, env: Env) -> np.ndarray:
        """Energies of a head's pairs, in base 2 where their exponentials are taken."""
        tile = tile_of(self.d.split)
        return self.over_pairs(tile if self.p.linear else add(*(mul(LOG2E, t) for t in terms_of(tile))), env)
