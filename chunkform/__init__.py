"""chunkform: write a recurrence once; derive its adjoint, its chunk-parallel form and its kernels.

The names below load on first use, so that a training job which imports `chunkform.generated` never loads SymPy.
"""

import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .misspelt import Misspelt, near
from .provided import provide
from .renamed import Renamed
from .version import __version__

if TYPE_CHECKING:
    from .codegen.api import Listed, Same, catalogue, check, explain, same, verify
    from .codegen.commands.compile import compile_op as compile
    from .runtime.op.debugging import debug
    from .spec.language import Attention, Program, Recurrence
    from .types import Check, Derivation, Explanation, Op, Spec, Verdicts

__all__ = [
    "Attention",
    "Check",
    "Derivation",
    "Explanation",
    "Listed",
    "Op",
    "Program",
    "Recurrence",
    "Same",
    "Verdicts",
    "__version__",
    "catalogue",
    "check",
    "compile",
    "debug",
    "explain",
    "same",
    "verify",
]

# In a checkout the sub-packages lie beside this directory, not in it; so the checkout works without an install.
if not Path(__file__).with_name("spec").is_dir():
    __path__.append(str(Path(__file__).parent.parent))

sys.meta_path.insert(0, Renamed())
sys.meta_path.append(Misspelt())


class _Compiler:
    """The compiler, of which each part is loaded when it is first asked for."""

    def compile(self, spec: object) -> "Op":
        from .codegen.commands.compile import compile_op, one_of

        return compile_op(one_of(spec))

    def explain(self, spec: object, width: int, chunk: int) -> "Explanation":
        from .codegen.api import explain
        from .codegen.commands.compile import one_of

        return explain(one_of(spec, "explain"), width, chunk)

    def verify(self, spec: object, seconds: float | None) -> "Verdicts":
        from .codegen.api import verify
        from .codegen.commands.compile import one_of

        return verify(one_of(spec, "verify"), seconds)

    def check(self, spec: object, quick: bool, seconds: float | None, device: str | None) -> "Check":
        from .codegen.api import check
        from .codegen.commands.compile import one_of

        return check(one_of(spec, "check"), quick, seconds, device)

    def find(self, name: str) -> "Spec":
        from .spec.language import find

        return next(r for r in find(name) if r.name == name)


provide(_Compiler())

_FOUND_IN = {
    "codegen.api": "Check Derivation Explanation Listed Same Verdicts catalogue check explain same verify",
    "codegen.commands.compile": "compile_op",
    "runtime.op.debugging": "debug",
    "spec.language": "Attention Program Recurrence",
    "types": "Op",
}
_MODULES = {name: module for module, names in _FOUND_IN.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    own = "compile_op" if name == "compile" else name
    if name not in __all__ or own not in _MODULES:
        told = "" if name.startswith("_") else near(sys.modules[__name__], name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{told}")
    value = getattr(importlib.import_module(f".{_MODULES[own]}", __name__), own)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    own = {n for n, x in globals().items() if n.startswith("__") or getattr(x, "__name__", "") == f"{__name__}.{n}"}
    return sorted({*own, *__all__} - {"misspelt", "provide", "provided", "renamed", "types", "version"})
