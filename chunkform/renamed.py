"""Modules by their former names: for one version they are still found, with a warning that says the new one.

Whoever imports `chunkform.runtime.fla` gets `chunkform.runtime.compat.fla` itself, so that both have the same classes.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

RENAMED = {
    "codegen.build": "codegen.commands.build",
    "codegen.check": "codegen.recurrence.check",
    "codegen.claims.judge": "codegen.claims.verifier",
    "codegen.claims.world": "codegen.claims.instance",
    "codegen.cli": "codegen.commands.cli",
    "codegen.compile": "codegen.commands.compile",
    "codegen.derivation": "codegen.recurrence.notation.derivation",
    "codegen.explain": "codegen.recurrence.explain",
    "codegen.formulas": "codegen.recurrence.notation.formulas",
    "codegen.math_svg": "codegen.ir.math_svg",
    "codegen.oracle": "codegen.recurrence.oracle",
    "codegen.pipeline": "codegen.recurrence.pipeline",
    "codegen.verify": "codegen.claims",
    "codegen.verify.command": "codegen.claims.command",
    "codegen.verify.judge": "codegen.claims.verifier",
    "codegen.verify.report": "codegen.claims.report",
    "codegen.verify.verdict": "codegen.claims.verdict",
    "runtime.dual": "runtime.nn.dual_form",
    "runtime.fla": "runtime.compat.fla",
    "runtime.packed": "runtime.launch.varlen",
    "runtime.signature": "runtime.op.signature",
    "runtime.tuned": "runtime.launch.tuned_configs",
}

# What had another name in a module that is found by its former name: it has both there.
NAMES = {"codegen.claims.verifier": {"Judge": "Verifier"}, "codegen.claims.instance": {"World": "Instance"}}


class Renamed(MetaPathFinder, Loader):
    """Finds a module by its former name. It is asked first: a package that is now another still finds its modules by itself."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        own = name.removeprefix("chunkform.")
        if own == name or own not in RENAMED:
            return None
        new = f"chunkform.{RENAMED[own]}"
        warnings.warn(
            f"{name} is now {new}; the former name goes in the next version", DeprecationWarning, stacklevel=2
        )
        return ModuleSpec(name, self)

    def create_module(self, spec: ModuleSpec) -> None:
        """The usual module, in whose place the new one is put."""

    def exec_module(self, module: ModuleType) -> None:
        own = RENAMED[module.__name__.removeprefix("chunkform.")]
        new = importlib.import_module(f"chunkform.{own}")
        for former, name in NAMES.get(own, {}).items():
            setattr(new, former, getattr(new, name))
        sys.modules[module.__name__] = new
