"""Kernels that are printed once: what this compiler prints of a step, no other process of the tests prints again, unless
something of the compiler was replaced in it. Gates of what is printed have run then. `CHUNKFORM_TEST_GATES=all` prints each.
"""

from __future__ import annotations

import importlib
import operator
import os
import pkgutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from chunkform.codegen.recurrence.chunkwise.compiled import Compiled

from . import passed

OURS = ("chunkform.codegen.", "chunkform.spec.language.")
COLLECTS = "chunkform.codegen.ir.collector"  # which notes whether cycles are looked for
found: dict[int, dict[str, Any]] = {}  # what modules and their classes were made of, as all was imported, by their ids


def remember() -> None:
    """From here on a process notices what it replaces: all that could print is imported, and what it is made of is noted."""
    for name in ("chunkform.codegen.recurrence", "chunkform.codegen.printing"):
        package = importlib.import_module(name)
        for x in pkgutil.walk_packages(package.__path__, f"{name}."):
            importlib.import_module(x.name)
    found.update({id(x): dict(vars(x)) for x in _ours()})


def is_as_imported() -> bool:
    """Is nothing of the compiler replaced? Not known of what was imported since, or where nothing was noted."""
    if not found or passed.replaced:
        return False
    for x in _ours():
        before = found.get(id(x))
        if before is None:
            return False
        now = vars(x)
        if now.keys() != before.keys() or not all(map(operator.is_, now.values(), before.values())):
            return False  # of a name that was taken away and put back, the place is another
    return True


def _ours() -> Iterator[Any]:
    """The modules that could print, and their classes."""
    for name, module in list(sys.modules.items()):
        if name.startswith(OURS) and name != COLLECTS:
            yield module
            for x in list(vars(module).values()):
                if isinstance(x, type) and x.__module__ == name:
                    yield x


def kept(c: Compiled, make: Callable[[Compiled], str]) -> str:
    """What `make`, a function of the compiler, prints of a spec; read where another process has printed it."""
    if os.environ.get("CHUNKFORM_TEST_GATES") == "all" or not is_as_imported():
        return make(c)
    path = passed.folder() / f"{passed.content((make, c.step))}.txt"
    if not path.exists():
        text = make(c)
        own = Path(f"{path}.{os.getpid()}")
        own.write_text(text)
        own.rename(path)
        return text
    return path.read_text()
