"""Where a kernel's lines end in a file of ours, while Triton loads it.

Triton asks `inspect` for the lines of each kernel, which reads them word by word to find where they end: most of the time that a
compiled op takes to load. A printed function ends where the next line begins at the margin.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_ONE = threading.Lock()


@contextmanager
def lines_by_margin() -> Iterator[None]:
    """Within this, `inspect` finds the end of printed functions so, in this thread."""
    with _ONE:
        read, here = inspect.getblock, threading.get_ident()

        def block(lines: list[str]) -> list[str]:
            found = block_by_margin(lines) if threading.get_ident() == here else None
            return read(lines) if found is None else found

        inspect.getblock = block  # type: ignore[assignment]
        try:
            yield
        finally:
            inspect.getblock = read


def block_by_margin(lines: list[str]) -> list[str] | None:
    """The function, with its decorators, that lines begin with; None where the margin doesn't tell its end."""
    first = next((n for n, line in enumerate(lines) if not line.startswith("@")), None)
    if first is None or not lines[first].startswith("def "):
        return None
    last = first
    for n in range(first, len(lines)):
        line = lines[n]
        if line.count('"""') % 2 or "'''" in line:  # a text over several lines, which may be at the margin
            return None
        if n > first and not line.startswith((" ", ")", "\n")):
            break
        if not line.isspace():
            last = n
    return lines[: last + 1]
