"""The kinds of declarations, and what each does for the commands."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol

from chunkform.spec.language.attention import Attention
from chunkform.spec.language.declaration import Declaration
from chunkform.spec.language.program import Program
from chunkform.spec.language.recurrence import Recurrence

from ..checking.calls import Subject
from ..checking.checked import Checked

if TYPE_CHECKING:
    from rich.console import Console

    from ..performance.compile_report import InspectRow
    from ..printing.stub import Stub
    from ..recurrence.notation.formulas import Section


class Kind(Protocol):
    """What the commands ask of a kind: a module with these functions. `compiled` is what its own `compile_spec` makes."""

    def compile_spec(self, declaration: Any, /) -> Any:
        """All that is derived of a declaration."""

    def emit(self, compiled: Any, tidy: bool = True) -> str:
        """The text of the generated file."""

    def stub(self, compiled: Any, /) -> Stub:
        """What type checkers see of the op."""

    def spec_hash(self, compiled: Any, /) -> str:
        """A hash of what the declaration says."""

    def declared_hash(self, declaration: Any, /) -> str | None:
        """The same of a declaration that isn't compiled; None where compiling it alone tells."""

    def explanation(self, compiled: Any, width: int = 64, chunk: int = 64) -> dict[str, Any]:
        """What `chunkform explain --json` writes."""

    def derivation(self, compiled: Any, /) -> Iterable[Section]:
        """Sections of formulas, for a notebook."""

    def latex_document(self, compiled: Any, /) -> str:
        """What `chunkform explain --latex` writes."""

    def show(self, compiled: Any, console: Console, width: int = 64, chunk: int = 64) -> None:
        """What `chunkform explain` prints."""

    def check_one(
        self,
        declaration: Any,
        compiled: Any,
        op: Callable[..., Any],
        /,
        seeds: int,
        steps: int,
        width: int,
        device: str,
    ) -> list[Checked]:
        """`chunkform check --quick`."""

    def subject(self, declaration: Any, compiled: Any, op: Callable[..., Any], device: str, /) -> Subject:
        """What `chunkform check` calls in all situations."""

    def conditions_of(self, declaration: Any, compiled: Any, op: Callable[..., Any], device: str, /) -> list[Checked]:
        """What else must hold, such as that iterations have converged."""

    def inspect_one(
        self, compiled: Any, arch: str, dtypes: Iterable[str], widths: Iterable[int], /
    ) -> Iterable[InspectRow]:
        """A row for each kernel and configuration, as it is compiled."""


def kind_of(declaration: Declaration) -> Kind:
    """The module of a declaration's kind, imported when a declaration of it is first met."""
    if isinstance(declaration, Recurrence):
        from . import recurrence_kind

        return recurrence_kind
    if isinstance(declaration, Attention):
        from . import attention_kind

        return attention_kind
    assert isinstance(declaration, Program), type(declaration)
    from . import program_kind

    return program_kind
