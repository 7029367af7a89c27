"""The ops that the compiler wrote, one file per spec; never edited by hand.

    from chunkform.generated import lightning_attention
    o, final_state = lightning_attention(q, k, v, log_lam)

Each name is the op itself, loaded on first use; its module is `chunkform.generated.<name>` in `sys.modules`. Files lie on two
shelves: here, and in `published`, recurrences of papers and of other libraries.
"""

import importlib
import pkgutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from chunkform.errors import nearest, need_triton

need_triton()
__path__.append(str(Path(__file__).with_name("published")))


class _Ops(ModuleType):
    """A package whose attributes are the ops. Importing a module sets it on its package: its op takes that place."""

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, ModuleType) and value.__name__ == f"{self.__name__}.{name}":
            value = getattr(value, name, value)
        super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        if name not in self.__dir__():
            told = nearest(name, self.__dir__()) or f"; there are {', '.join(self.__dir__())}"
            raise AttributeError(f"module {self.__name__!r} has no op {name!r}{told}")
        importlib.import_module(f"{self.__name__}.{name}")
        return self.__dict__[name]

    def __dir__(self) -> list[str]:
        return sorted(m.name for m in pkgutil.iter_modules(self.__path__) if not m.ispkg)


sys.modules[__name__].__class__ = _Ops
