"""Types for those who check theirs: what can be asked of specs and of ops, and what the compiler answers.

They import nothing, so that what lies below the compiler can name them. The classes of the answers are in `codegen/api`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, ParamSpec, Protocol, TypeAlias, TypeVar

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)
Data: TypeAlias = "dict[str, Any]"  # as JSON has it


class Shown(Protocol):
    """What the compiler answers: `str` of it is what the command prints, and in a notebook it shows itself typeset."""

    def to_latex(self) -> str:
        """Text for a document."""
        ...

    def to_json(self) -> str:
        """The same as JSON, as the command writes it."""
        ...


class Formula(Protocol):
    """A formula as text and as LaTeX; `text` where it is a sentence between formulas."""

    @property
    def plain(self) -> str: ...
    @property
    def latex(self) -> str: ...
    @property
    def text(self) -> bool: ...


class Section(Protocol):
    """A titled group of formulas."""

    @property
    def title(self) -> str: ...
    @property
    def formulas(self) -> Sequence[Formula]: ...


class Derivation(Shown, Protocol):
    """Formulas that follow from a spec: its step, the adjoint, the form over chunks. A sequence of sections, also by title."""

    @property
    def name(self) -> str: ...
    @property
    def sections(self) -> Sequence[Section]: ...
    @property
    def data(self) -> list[Data]:
        """The derivation as plain data."""
        ...

    def __iter__(self) -> Iterator[Section]: ...
    def __len__(self) -> int: ...
    def __getitem__(self, which: int | str) -> Section: ...


class Explanation(Shown, Protocol):
    """What the compiler derives of a spec, and what that costs. `reason` says why a spec isn't chunk-parallel, where it isn't."""

    @property
    def name(self) -> str: ...
    @property
    def family(self) -> str: ...
    @property
    def reason(self) -> str | None: ...
    @property
    def derivation(self) -> Derivation: ...
    @property
    def data(self) -> Data: ...
    @property
    def gates(self) -> list[Data]:
        """The checks that were passed, one after each pass: name, what, points, error_bound."""
        ...


class Claim(Protocol):
    """A formula, as its author has it."""

    @property
    def id(self) -> str: ...
    @property
    def latex(self) -> str: ...


class Counterexample(Protocol):
    """Numbers at which two sides differ, or what is wrong with their shapes."""

    @property
    def message(self) -> str: ...
    def text(self) -> str: ...


class Condition(Protocol):
    """A reading or side condition, and whether the claim is true under it."""

    @property
    def text(self) -> str: ...
    @property
    def holds(self) -> bool: ...


class Repair(Protocol):
    """A true formula near the one that was stated: the edits that lead there."""

    @property
    def edits(self) -> Sequence[str]: ...


class Verdict(Protocol):
    """What the verifier says about a claim."""

    @property
    def claim(self) -> Claim: ...
    @property
    def verdict(self) -> str: ...
    @property
    def counterexample(self) -> Counterexample | None: ...
    @property
    def repairs(self) -> Sequence[Repair]: ...
    @property
    def conditions(self) -> Sequence[Condition]: ...


class Verdicts(Shown, Protocol):
    """Verdicts on claims, in the order of the claims, and by the claims' names. The documentation's page on claims says what
    they mean."""

    @property
    def ok(self) -> bool:
        """Was every claim judged, and does none fail?"""
        ...

    @property
    def summary(self) -> str:
        """Counts of verdicts, in one line."""
        ...

    def __iter__(self) -> Iterator[Verdict]: ...
    def __len__(self) -> int: ...
    def __getitem__(self, which: int | str) -> Verdict: ...


class Checked(Protocol):
    """The worst relative error of a quantity in a dtype, beside what is allowed."""

    @property
    def quantity(self) -> str: ...
    @property
    def dtype(self) -> str: ...
    @property
    def error(self) -> float: ...
    @property
    def allowed(self) -> float: ...
    @property
    def ok(self) -> bool: ...


class Check(Shown, Protocol):
    """The worst relative error of each quantity of an op, by dtype; a sequence of these."""

    @property
    def name(self) -> str: ...
    @property
    def ok(self) -> bool:
        """Are all errors within their bounds?"""
        ...

    @property
    def worst(self) -> Checked:
        """The error that is nearest to its bound, or furthest above it."""
        ...

    @property
    def bad(self) -> Sequence[Checked]:
        """The errors that are above their bounds."""
        ...

    def __iter__(self) -> Iterator[Checked]: ...
    def __len__(self) -> int: ...


class Spec(Protocol):
    """A spec of any kind: what it is called, and what can be asked of it."""

    name: str
    doc: str
    source: str

    def compile(self) -> Op: ...
    def explain(self, width: int = 64, chunk: int = 64) -> Explanation: ...
    def verify(self, seconds: float | None = None) -> Verdicts: ...
    def check(self, quick: bool = False, seconds: float | None = None, device: str | None = None) -> Check: ...


class PublicOp(Protocol[P, R_co]):
    """An op as it stands in its generated file: a function, with a few attributes."""

    step: Callable[..., Any]
    spec: Spec
    derivation: Derivation

    def __call__(self, *arguments: P.args, **options: P.kwargs) -> R_co: ...

    def source(self) -> str: ...


class Op(Protocol):
    """An op: call it with tensors [B, T, H, ..], by position or by name; its docstring says which, and what it returns.

    spec: what it was compiled from. derivation: what the compiler derived of it, as formulas. step: one step, for generation,
    where the op is a recurrence's.
    """

    __name__: str
    spec: Spec
    derivation: Derivation
    step: Callable[..., Any]

    def __call__(self, *tensors: Any, **options: Any) -> Any: ...

    def source(self) -> str:
        """The text of the generated file: the derivation as comments, the Triton kernels, the torch form."""
        ...
