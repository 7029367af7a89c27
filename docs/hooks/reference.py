"""Generated modules aren't parsed: no page of the reference shows what is in them, and they are a third of a build's time."""

from __future__ import annotations

from typing import Any

from griffe import ModuleFinder

_all_of = ModuleFinder.submodules


def on_startup(**_: object) -> None:
    ModuleFinder.submodules = _without_generated  # type: ignore[method-assign]


def _without_generated(finder: ModuleFinder, module: Any) -> list[tuple[tuple[str, ...], Any]]:
    return [(parts, path) for parts, path in _all_of(finder, module) if parts[0] != "generated"]
