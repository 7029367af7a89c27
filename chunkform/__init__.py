"""chunkform: write a recurrence once; derive its adjoint, its chunk-parallel form and its kernels.

The names below load on first use, so that a training job which imports `chunkform.generated` never loads SymPy.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .renamed import Renamed

if TYPE_CHECKING:
    from .codegen.commands.compile import compile_op as compile
    from .runtime.op.debugging import debug
    from .spec.language import Attention, Recurrence

__all__ = ["Attention", "Recurrence", "__version__", "compile", "debug"]
__version__ = "0.1.0"

# In a checkout the sub-packages lie beside this directory, not in it; so the checkout works without an install.
if not Path(__file__).with_name("spec").is_dir():
    __path__.append(str(Path(__file__).parent.parent))

sys.meta_path.insert(0, Renamed())


def __getattr__(name: str) -> Any:
    value: Any
    if name == "compile":
        from .codegen.commands.compile import compile_op

        value = compile_op
    elif name == "debug":
        from .runtime.op.debugging import debug

        value = debug
    elif name in ("Attention", "Recurrence"):
        from .spec import language

        value = getattr(language, name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
