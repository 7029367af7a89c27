"""chunkform: write a recurrence once; derive its adjoint, its chunk-parallel form and its kernels.

The names below load on first use, so that a training job which imports `chunkform.generated` never loads SymPy.
"""

import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .misspelt import Misspelt, near
from .renamed import Renamed

if TYPE_CHECKING:
    from .codegen.api import (
        Check,
        Derivation,
        Explanation,
        Listed,
        Same,
        Verdicts,
        catalogue,
        check,
        explain,
        same,
        verify,
    )
    from .codegen.commands.compile import compile_op as compile
    from .runtime.op.debugging import debug
    from .spec.language import Attention, Program, Recurrence
    from .types import Op

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
__version__ = "0.1.0"

# In a checkout the sub-packages lie beside this directory, not in it; so the checkout works without an install.
if not Path(__file__).with_name("spec").is_dir():
    __path__.append(str(Path(__file__).parent.parent))

sys.meta_path.insert(0, Renamed())
sys.meta_path.append(Misspelt())

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
    return sorted({*own, *__all__} - {"misspelt", "renamed"})
