"""The kinds of declarations, and which module does for each what the commands ask for.

Such a module has these functions, where a `compiled` is whatever its `compile_spec` makes of a declaration:

    compile_spec(declaration) -> compiled
    emit(compiled, tidy=True) -> str                       the text of the generated file
    spec_hash(compiled) -> str                             a hash of what the declaration says
    explanation(compiled, width, chunk) -> dict            `chunkform explain --json`
    latex_document(compiled) -> str                        `chunkform explain --latex`
    show(compiled, console, width, chunk) -> None          `chunkform explain`
    check_one(declaration, seeds, steps, width, device) -> list[Checked]        `chunkform check --quick`
    subject(declaration, compiled, op, device) -> Subject                       `chunkform check`
    inspect_one(compiled, arch, dtypes, widths) -> list[InspectRow]
"""

from __future__ import annotations

import importlib
from typing import Any

from chunkform.spec.language.attention import Attention
from chunkform.spec.language.declaration import Declaration
from chunkform.spec.language.program import Program
from chunkform.spec.language.recurrence import Recurrence

# One row for each kind. Modules are imported when a declaration of the kind is first met.
KINDS: dict[type[Declaration], str] = {
    Recurrence: "chunkform.codegen.commands.recurrence_kind",
    Attention: "chunkform.codegen.commands.attention_kind",
    Program: "chunkform.codegen.commands.program_kind",
}


def kind_of(declaration: Declaration) -> Any:
    """The module of a declaration's kind."""
    return importlib.import_module(next(KINDS[t] for t in type(declaration).__mro__ if t in KINDS))
