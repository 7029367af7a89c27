"""How a solve is computed, and what its gradient is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from chunkform.errors import SpecError

from .source import caller


@dataclass(frozen=True)
class Method:
    """A way to solve H x = b for symmetric positive definite H."""

    @property
    def words(self) -> str:
        """The method in words."""
        raise NotImplementedError

    @property
    def advice(self) -> str:
        """What to do where it doesn't converge."""
        return ""


def _count(steps: object, what: str) -> None:
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise SpecError(f"{what} takes a whole number of steps, at least 1, got {steps!r}", caller())


@dataclass(frozen=True)
class cg(Method):
    """`steps` steps of conjugate gradients, from x = b over the diagonal. A system whose residual is below `tolerance` |b| rests.

    Its gradient is that of the implicit function theorem: one more solve with the same matrix.
    """

    steps: int = 30
    tolerance: float = 0.0

    def __post_init__(self) -> None:
        _count(self.steps, "cg")
        if (
            isinstance(self.tolerance, bool)
            or not isinstance(self.tolerance, int | float)
            or not 0 <= self.tolerance < 1
        ):
            raise SpecError(f"the tolerance of cg is at least 0 and less than 1, got {self.tolerance!r}", caller())

    @property
    def words(self) -> str:
        return f"{self.steps} steps of conjugate gradients"

    @property
    def advice(self) -> str:
        return f"Take more than {self.steps} steps, or see that the matrix is positive definite."


@dataclass(frozen=True)
class neumann(Method):
    """`steps` steps of x <- x + step (b - H x): with a step of 1 the Neumann series of the document, x = sum (1 - H)^i b.

    It converges where every eigenvalue of step * H lies between 0 and 2. `step` is a number, a scalar term of the spec, or
    "trace": one over the trace of H_t, which always converges, if slowly. `start` is O^(0): 0, or the right side.

    backward:
        unrolled     the gradient of the iteration itself; keeps every iterate
        simplified   the document's: the last iterate in the place of every earlier one
        implicit     the gradient of the exact solution: the same iteration for dx
    """

    steps: int
    step: Any = 1
    backward: str = "unrolled"
    start: str = "zero"

    def __post_init__(self) -> None:
        _count(self.steps, "neumann")
        if self.backward not in ("unrolled", "simplified", "implicit"):
            raise SpecError(
                f"the backward of neumann is unrolled, simplified or implicit, got {self.backward!r}", caller()
            )
        if self.start not in ("zero", "right side"):
            raise SpecError(f'the start of neumann is "zero" or "right side", got {self.start!r}', caller())
        if self.step is None:
            raise SpecError('the step of neumann is a number, a scalar term or "trace", got None', caller())

    @property
    def words(self) -> str:
        size = "" if self.step == 1 else f" with the step size {'1 / trace' if self.step == 'trace' else self.step}"
        return f"{self.steps} steps of the Neumann iteration{size}, backward {self.backward}"

    @property
    def advice(self) -> str:
        size = "" if self.step == 1 else f"{self.step} times "
        if self.step == "trace":
            return f"Take more than {self.steps} steps, or conjugate gradients."
        return (
            f"The iteration diverges where an eigenvalue of {size}the matrix is 2 or more: make the step smaller, such as "
            f"step='trace', or take more than {self.steps} steps."
        )


@dataclass(frozen=True)
class sherman_morrison(Method):
    """Exact, and in recurrent form: the inverse itself is carried along, by the Sherman-Morrison formula.

    The matrix must be a state that decays by a scalar and is written one c u u^T a step. Its gradient is that of the recurrence.
    """

    @property
    def words(self) -> str:
        return "the Sherman-Morrison formula, in recurrent form"
