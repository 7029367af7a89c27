"""`chunkform verify A --same-as B`: whether two recurrences give the same outputs from the same inputs."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from chunkform.errors import LoadError
from chunkform.runtime.launch.files import write_whole
from chunkform.spec.language import Recurrence, find

from ..exact.same import same


def compare(specs: list[str], other: str, names: str, json_path: Path | None, console: Console) -> int:
    """Say it; 0 where they are the same, 1 where not. `names` is like "q=query, k=key"."""
    if len(specs) != 1:
        raise LoadError(f"--same-as compares two specs: give one before it, got {len(specs)}")
    found = same(_recurrence(specs[0]), _recurrence(other), _names(names))
    console.print(str(found), highlight=False, markup=False, soft_wrap=True)
    if json_path is not None:
        write_whole(json_path, found.to_json())
    return 0 if found.same else 1


def _recurrence(name: str) -> Recurrence:
    found = [r for r in find(name) if isinstance(r, Recurrence)]
    if len(found) != 1:
        told = f"the recurrences {', '.join(r.name for r in found)}" if found else "no recurrence"
        raise LoadError(f"--same-as compares files that hold one recurrence each; {name} holds {told}")
    return found[0]


def _names(text: str) -> dict[str, str]:
    pairs = [x.split("=") for x in text.replace(",", " ").split()]
    if any(len(x) != 2 or not all(x) for x in pairs):
        raise LoadError(f'--names is like "q=query, k=key", got {text!r}')
    return {a: b for a, b in pairs}
