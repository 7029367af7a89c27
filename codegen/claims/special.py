"""What is so in an instance that a generic one is not like: conditions that are tried, and premises of a claim."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from chunkform.spec.language.claims import Premises


@dataclass(frozen=True)
class Special:
    """How an instance differs from a generic one. `same` maps a quantity to the one that it equals, `value` to a number.
    `empties`: much is 0 there; `kind`: what such a condition says, see `conditions.py`."""

    same: tuple[tuple[str, str], ...] = ()
    value: tuple[tuple[str, int | Fraction], ...] = ()
    symmetric: tuple[str, ...] = ()
    identity: tuple[str, ...] = ()
    text: str = ""
    kind: str = "trivial"
    empties: bool = False
    only: int | None = None  # the step at which a setting's premises are so, where they are of one step

    def __or__(self, other: Special) -> Special:
        return Special(
            self.same + other.same,
            self.value + other.value,
            self.symmetric + other.symmetric,
            self.identity + other.identity,
            f"{self.text} and {other.text}",
            self.kind if self.kind == other.kind else "trivial",
            self.empties or other.empties,
        )


GENERIC = Special()


@dataclass(frozen=True)
class Likeness:
    """What special conditions and premises say together: which names are another's (`alias`), and what these are like."""

    alias: dict[str, str]
    value: dict[str, int | Fraction]
    unit: set[str]
    symmetric: set[str]
    identity: set[str]

    def name_of(self, name: str) -> str:
        while name in self.alias:
            name = self.alias[name]
        return name


@lru_cache(maxsize=256)
def likeness(special: Special, premises: Premises, here: bool) -> Likeness:
    """What is so; of the premises, where they hold `here`."""
    so = premises if here else Premises()
    found = Likeness({**dict(special.same), **dict(so.same)}, {}, set(), set(), set())
    found.value.update({found.name_of(n): v for n, v in (*special.value, *so.value)})
    found.unit.update(map(found.name_of, so.unit))
    found.symmetric.update(map(found.name_of, (*special.symmetric, *so.symmetric)))
    found.identity.update(map(found.name_of, (*special.identity, *so.identity)))
    return found
