"""Types for those who check theirs: what `chunkform.compile` returns."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar

if TYPE_CHECKING:
    from .codegen.api import Derivation
    from .spec.language import Declaration

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)


class PublicOp(Protocol[P, R_co]):
    """An op as it stands in its generated file: a function, with a few attributes."""

    step: Callable[..., Any]
    spec: Declaration
    derivation: Derivation

    def __call__(self, *arguments: P.args, **options: P.kwargs) -> R_co: ...

    def source(self) -> str: ...


class Op(Protocol):
    """An op: call it with tensors [B, T, H, ..], by position or by name; its docstring says which, and what it returns.

    spec: what it was compiled from. derivation: what the compiler derived of it, as formulas. step: one step, for generation,
    where the op is a recurrence's.
    """

    __name__: str
    spec: Declaration
    derivation: Derivation
    step: Callable[..., Any]

    def __call__(self, *tensors: Any, **options: Any) -> Any: ...

    def source(self) -> str:
        """The text of the generated file: the derivation as comments, the Triton kernels, the torch form."""
        ...
