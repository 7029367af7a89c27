"""What a spec file may break of the process that runs it: it is put back, and what it changed of a library is named."""

from __future__ import annotations

import builtins
import gc
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from types import ModuleType

if sys.platform != "win32":
    import fcntl

_BUILTINS = vars(builtins)
OURS = {"chunkform", "sympy", "mpmath", "networkx", "jinja2", "rich", "typer"}  # and Python's own library
SETTINGS = ("stdin", "stdout", "stderr", "excepthook", "displayhook", "unraisablehook")  # of sys
PLACES = ("path", "meta_path", "path_hooks")  # of sys: a file may add to them
FIRST_KEPT = 256  # files are kept open from this number on, out of the way of who closes the first ones
Changed = list[str]
Names = Mapping[str, object]


class Kept:
    """A process as it is before a file runs. What the file adds stays, such as modules and folders where they are looked for."""

    def __init__(self, apart: Iterable[tuple[object, str]] = ()) -> None:
        self.builtins = dict(_BUILTINS)
        self.modules, self.entries = sys.modules, dict(sys.modules)
        self.apart = {(id(x), name) for x, name in apart}
        self.functions = [(module, dict(vars(module))) for module in _modules(self.entries)]
        self.classes = [(x, vars(x).copy()) for x in _classes(self.functions)]  # `dict` would ask for each name
        self.settings = Settings()

    def put_back(self) -> Changed:
        """Put all back; the names of what was changed that others use too. Settings are put back without a word."""
        changed = [name for name in self.builtins if _BUILTINS.get(name) is not self.builtins[name]]
        _BUILTINS.update(self.builtins)  # before anything here uses one of them
        self.settings.no_deeper()
        changed = [name for name in changed if not name.startswith("__")] or changed
        found = [f"builtins.{name}" for name in changed]
        found += self._put_modules_back()
        for module, before in self.functions:
            if not _is_same(vars(module), before):
                found += self._attributes_put_back(module, before, module.__name__, module.__dict__.__setitem__)
        for kind, before in self.classes:
            if not _is_same(vars(kind), before):
                found += self._attributes_put_back(kind, before, kind.__qualname__, partial(type.__setattr__, kind))
        self.settings.put_back()
        return list(dict.fromkeys(found))

    def _put_modules_back(self) -> Iterator[str]:
        now = sys.modules
        sys.modules = self.modules
        for name, module in self.entries.items():
            if now.get(name) is not module and not is_spec(name):
                self.modules[name] = module
                yield f"sys.modules[{name!r}]"

    def _attributes_put_back(
        self, of: object, before: Names, where: str, put: Callable[[str, object], None]
    ) -> Iterator[str]:
        now = vars(of)
        for name, x in before.items():
            left = now.get(name)
            if left is x or not _is_used(name, x, left) or (id(of), name) in self.apart:
                continue
            with suppress(TypeError, AttributeError):  # of a class that can't be changed
                put(name, x)
                yield f"{where}.{name}"


class Settings:
    """What a file may set for the whole process."""

    def __init__(self) -> None:
        self.of_sys = {name: getattr(sys, name) for name in SETTINGS}
        self.closed = {name: getattr(x, "closed", False) for name, x in self.of_sys.items()}
        self.places = {name: list(getattr(sys, name)) for name in PLACES}
        self.depth, self.traced, self.profiled = sys.getrecursionlimit(), sys.gettrace(), sys.getprofile()
        self.warnings = warnings.filters, list(warnings.filters)
        self.handlers = {n: signal.getsignal(n) for n in signal.valid_signals()}
        self.timer = (0.0, 0.0) if sys.platform == "win32" else signal.getitimer(signal.ITIMER_REAL)
        self.folder = _folder()
        self.others = dict(os.environ), gc.isenabled(), _torch()
        self.streams = {n: copy for n in range(3) if (copy := _copied(n)) is not None}

    def no_deeper(self) -> None:
        """Nothing of the file's is called any more, and calls may be as deep as before."""
        with suppress(TypeError):  # one that is written in C isn't to be called so
            if sys.gettrace() is not self.traced:
                sys.settrace(self.traced)
            if sys.getprofile() is not self.profiled:
                sys.setprofile(self.profiled)
        if sys.getrecursionlimit() < self.depth:
            sys.setrecursionlimit(self.depth)

    def put_back(self) -> None:
        for number, copy in self.streams.items():
            try:
                os.fstat(number)
            except OSError:
                os.dup2(copy, number)
            with suppress(OSError):
                os.close(copy)
        for number, (name, x) in enumerate(self.of_sys.items()):
            if number in self.streams and getattr(x, "closed", False) and not self.closed[name]:
                mode = "r" if number == 0 else "w"
                x = open(number, mode, encoding=x.encoding, errors=x.errors, closefd=False)  # noqa: SIM115 - it stays open
            setattr(sys, name, x)
        for name, entries in self.places.items():
            if any(x not in getattr(sys, name) for x in entries):
                setattr(sys, name, [*entries, *(x for x in getattr(sys, name) if x not in entries)])
        filters, before = self.warnings
        if warnings.filters is not filters or list(filters) != before:
            with warnings.catch_warnings():  # which forgets what was filtered
                filters[:] = before  # type: ignore[index]
            warnings.filters = filters
        environ, collects, torch = self.others
        os.environ.update({name: x for name, x in environ.items() if os.environ.get(name) != x})
        (gc.enable if collects else gc.disable)()
        _put_torch_back(torch)
        if self.folder is not None:
            with suppress(OSError):
                os.fchdir(self.folder)
                os.close(self.folder)
        if threading.current_thread() is threading.main_thread():
            if sys.platform != "win32":
                signal.setitimer(signal.ITIMER_REAL, *self.timer)
            for n, handler in self.handlers.items():
                if handler is not None and signal.getsignal(n) is not handler:
                    signal.signal(n, handler)


def is_spec(name: str) -> bool:
    """Is this a spec's module? Each run of a file makes a new one."""
    of_catalogue = name.startswith("chunkform.spec.") and not name.startswith("chunkform.spec.language")
    return of_catalogue or name.startswith("chunkform_spec_")


def _modules(loaded: Mapping[str, ModuleType]) -> Iterator[ModuleType]:
    own = OURS | sys.stdlib_module_names
    for name, x in loaded.items():
        if isinstance(x, ModuleType) and name.partition(".")[0] in own and name not in ("warnings", "builtins"):
            yield x


def _classes(modules: Iterable[tuple[ModuleType, Names]]) -> dict[type, None]:
    return dict.fromkeys(x for _, names in modules for x in names.values() if isinstance(x, type))


def _is_same(now: Names, before: Names) -> bool:
    """Nearly always, and this is the quickest way to see it."""
    try:
        return bool(now == before)
    except Exception:  # of what can't be compared
        return False


def _is_used(name: str, x: object, left: object) -> bool:
    """Do others use this: as it is called, or a constant, or public, and nothing is left of it?"""
    if name in SETTINGS or name in PLACES:
        return False
    constant = name.isupper() and isinstance(x, bool | int | float | str)
    gone = left is None and not name.startswith("_")
    return callable(x) or isinstance(x, property | classmethod | staticmethod | ModuleType) or constant or gone


def _torch() -> tuple[object, object, bool] | None:
    """What torch makes where nothing is said; None where it isn't there yet."""
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "get_default_device"):
        return None
    return torch.get_default_dtype(), torch.get_default_device(), torch.is_grad_enabled()


def _put_torch_back(before: tuple[object, object, bool] | None) -> None:
    now = _torch()
    if now is None or now == before:
        return
    torch = sys.modules["torch"]
    dtype, device, grad = before or (torch.float32, torch.device("cpu"), True)
    torch.set_default_dtype(dtype)
    torch.set_grad_enabled(grad)
    if device != now[1]:
        torch.set_default_device(None if device == torch.device("cpu") else device)


def _folder() -> int | None:
    try:
        return os.open(".", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None


def _copied(number: int) -> int | None:
    try:
        if sys.platform == "win32":
            return os.dup(number)
        return fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, FIRST_KEPT)
    except OSError:
        return None
