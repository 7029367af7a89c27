"""The kinds of declarations, and what each does for the commands."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from chunkform.spec.language.attention import Attention
from chunkform.spec.language.declaration import Declaration
from chunkform.spec.language.program import Program
from chunkform.spec.language.recurrence import Recurrence

from ..checking.calls import Subject
from ..checking.checked import Checked, Op

if TYPE_CHECKING:
    from rich.console import Console

    from ..attention.compiled import CompiledAttention
    from ..exact.random_points import GateResult
    from ..performance.compile_report import InspectRow
    from ..printing.stub import Stub
    from ..programs.compiled import CompiledProgram
    from ..recurrence.chunkwise.compiled import Compiled
    from ..recurrence.notation.formulas import Section


class CompiledSpec(Protocol):
    """What is known of a declaration of whichever kind."""

    @property
    def name(self) -> str: ...
    @property
    def family(self) -> str: ...
    @property
    def gates(self) -> tuple[GateResult, ...]: ...


D = TypeVar("D", bound=Declaration, contravariant=True)
C = TypeVar("C", bound=CompiledSpec)


class Kind(Protocol[D, C]):
    """What the commands ask of a kind: a module with these functions, of declarations D and of what `compile_spec` makes of
    them, C."""

    def compile_spec(self, declaration: D, /) -> C:
        """All that is derived of a declaration."""

    def emit(self, compiled: C, tidy: bool = True) -> str:
        """The text of the generated file."""

    def stub(self, compiled: C, /) -> Stub:
        """What type checkers see of the op."""

    def spec_hash(self, compiled: C, /) -> str:
        """A hash of what the declaration says."""

    def declared_hash(self, declaration: D, /) -> str | None:
        """The same of a declaration that isn't compiled; None where compiling it alone tells."""

    def explanation(self, compiled: C, width: int = 64, chunk: int = 64) -> dict[str, Any]:
        """What `chunkform explain --json` writes."""

    def derivation(self, compiled: C, /) -> Iterable[Section]:
        """Sections of formulas, for a notebook."""

    def latex_document(self, compiled: C, /) -> str:
        """What `chunkform explain --latex` writes."""

    def show(self, compiled: C, console: Console, width: int = 64, chunk: int = 64) -> None:
        """What `chunkform explain` prints."""

    def check_one(
        self,
        declaration: D,
        compiled: C,
        op: Op,
        /,
        seeds: int,
        steps: int,
        width: int,
        device: str,
    ) -> list[Checked]:
        """`chunkform check --quick`."""

    def subject(self, declaration: D, compiled: C, op: Op, device: str, /) -> Subject:
        """What `chunkform check` calls in all situations."""

    def conditions_of(self, declaration: D, compiled: C, op: Op, device: str, /) -> list[Checked]:
        """What else must hold, such as that iterations have converged."""

    def inspect_one(
        self, compiled: C, arch: str, dtypes: Iterable[str], widths: Iterable[int], /
    ) -> Iterable[InspectRow]:
        """A row for each kernel and configuration, as it is compiled."""


def kind_of(declaration: Declaration) -> Kind[Declaration, CompiledSpec]:
    """The module of a declaration's kind, imported when a declaration of it is first met.

    Whoever asks knows of no kind in particular: it takes this declaration, and what it has made of it itself.
    """
    if isinstance(declaration, Recurrence):
        return cast(Kind[Declaration, CompiledSpec], _of_recurrences())
    if isinstance(declaration, Attention):
        return cast(Kind[Declaration, CompiledSpec], _of_attentions())
    assert isinstance(declaration, Program), type(declaration)
    return cast(Kind[Declaration, CompiledSpec], _of_programs())


def _of_recurrences() -> Kind[Recurrence, Compiled]:
    from . import recurrence_kind

    return recurrence_kind


def _of_attentions() -> Kind[Attention, CompiledAttention]:
    from . import attention_kind

    return attention_kind


def _of_programs() -> Kind[Program, CompiledProgram]:
    from . import program_kind

    return program_kind
