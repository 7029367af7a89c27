"""Names of chunkform that are spelt a little differently: an import that finds nothing says which one is near."""

from __future__ import annotations

import pkgutil
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


def near(module: ModuleType, name: str) -> str:
    """`: did you mean ..?` with names of a package that are spelt much alike; empty where none is."""
    from difflib import get_close_matches

    own = [x for x in getattr(module, "__all__", dir(module)) if not x.startswith("_")]
    inside = [x.name for x in pkgutil.iter_modules(getattr(module, "__path__", ()))]
    known = {x.lower(): x for x in (*inside, *reversed(own))}
    alike = [*get_close_matches(name, [*inside, *own], 2, 0.7)]
    alike += [known[x] for x in get_close_matches(name.lower(), known, 2, 0.7)]
    return f": did you mean {' or '.join(list(dict.fromkeys(alike))[:2])}?" if alike else ""


class Misspelt(MetaPathFinder):
    """Is asked last, for what no one has found. `from chunkform import recurrence` asks for a module as well, once there is no
    such name; the error tells no module's name, or Python would take a less helpful one in its place."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package, _, own = name.rpartition(".")
        module = sys.modules.get(package)
        if own.startswith("_") or module is None or package.split(".")[0] != "chunkform":
            return None
        elsewhere = getattr(module, "__elsewhere__", {}).get(
            own
        )  # names that a module hasn't, and where what they name is
        if told := f": {elsewhere}" if elsewhere else near(module, own):
            raise ModuleNotFoundError(f"{package} has no {own}{told}")
        return None
