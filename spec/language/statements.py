"""What a claim can say: equations first, and bounds, limits, integrals, eigenvalues, readings."""

from __future__ import annotations

from dataclasses import dataclass, field

from .formula import Formula, formula


@dataclass(frozen=True)
class Statement:
    """What a claim says. `over` restricts its free indices: (index, low, high)."""

    over: tuple[tuple[str, Formula, Formula], ...] = field(default=(), kw_only=True)


@dataclass(frozen=True)
class Unreadable(Statement):
    """What a claim says that couldn't be stated: why, and what was expected instead."""

    message: str
    expected: str


@dataclass(frozen=True)
class Equal(Statement):
    """All sides are equal, wherever they have a value."""

    sides: tuple[Formula, ...]


@dataclass(frozen=True)
class Differs(Statement):
    """The two sides are not the same function of the quantities in them."""

    left: Formula
    right: Formula


@dataclass(frozen=True)
class AtMost(Statement):
    """left <= right at every point of the domain; `strict`: left < right."""

    left: Formula
    right: Formula
    strict: bool = False


@dataclass(frozen=True)
class Together(Statement):
    """Several statements, under the same reading."""

    parts: tuple[Statement, ...]


@dataclass(frozen=True)
class Approximates(Statement):
    """`approximation` comes as near to `exact` as one wants when the size `steps` grows."""

    exact: Formula
    approximation: Formula
    steps: str


@dataclass(frozen=True)
class Number(Statement):
    """The formula is a number, and not a vector or a matrix."""

    of: Formula


@dataclass(frozen=True)
class Integral(Statement):
    """The integral of exp(`exponent`) over the vector `by` is finite, or infinite."""

    exponent: Formula
    by: Formula
    finite: bool


@dataclass(frozen=True)
class Density(Statement):
    """exp(`exponent`), as a function of `by`, is proportional to the normal density N(by; mean, covariance)."""

    exponent: Formula
    by: Formula
    mean: Formula
    covariance: Formula


@dataclass(frozen=True)
class Stationary(Statement):
    """Wherever the gradient of `of` by the vector `by` is zero, and it is a maximum, the two sides are equal."""

    of: Formula
    by: Formula
    left: Formula
    right: Formula


@dataclass(frozen=True)
class Eigenvalues(Statement):
    """`value` is an eigenvalue of `of`, at least `times` times; with `rest`, these are all (value, times) together."""

    of: Formula
    values: tuple[tuple[Formula, Formula], ...]


@dataclass(frozen=True)
class OneOf(Statement):
    """A sentence that can be read as several statements: (reading, statement)."""

    alternatives: tuple[tuple[str, Statement], ...]


@dataclass(frozen=True)
class Bounded(Statement):
    """Products of the square matrices `of`, over steps with any vectors left and right whose inner product is at most
    `bound` in absolute value, stay bounded."""

    of: Formula
    left: Formula
    right: Formula
    bound: int = 1


@dataclass(frozen=True)
class OnlyIf(Statement):
    """Whenever `premise` is true over the whole domain of the other quantities, `conclusion` is true."""

    premise: Statement
    left: Formula
    relation: str
    right: Formula


@dataclass(frozen=True)
class Factors(Statement):
    """`of` is a product V K^T with `terms` columns each."""

    of: Formula
    terms: int


@dataclass(frozen=True)
class SameAs(Statement):
    """The recurrence gives the same outputs from the same inputs as `other` does: another recurrence, or the file that holds it.
    `names`: what is called otherwise there, by its name here."""

    other: object
    names: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        called = ", ".join(f"{a} = {b}" for a, b in self.names)
        return f"the same as {getattr(self.other, 'name', self.other)}{f', with {called}' if called else ''}"


def differs(left: object, right: object) -> Statement:
    return Differs(formula(left), formula(right))


def at_most(left: object, right: object) -> Statement:
    return AtMost(formula(left), formula(right))


def within(x: object, low: object, high: object) -> Statement:
    """low <= x <= high."""
    return Together((at_most(low, x), at_most(x, high)))


def equal(*sides: object) -> Statement:
    return Equal(tuple(formula(x) for x in sides))


def eigenvalues(of: object, *values: tuple[object, object]) -> Statement:
    """`of` has these eigenvalues, each with its multiplicity."""
    return Eigenvalues(formula(of), tuple((formula(v), formula(m)) for v, m in values))


def only_if(premise: Statement, left: object, relation: str, right: object) -> Statement:
    return OnlyIf(premise, formula(left), relation, formula(right))


def one_of(**readings: Statement) -> Statement:
    """A sentence with several readings; underscores in their names stand for spaces."""
    return OneOf(tuple((name.replace("_", " "), x) for name, x in readings.items()))


def together(*parts: Statement) -> Statement:
    return Together(parts)
