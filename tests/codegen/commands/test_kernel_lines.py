"""The lines of a kernel, found by the margin, are those that `inspect` reads word by word."""

from __future__ import annotations

import inspect
import threading
from pathlib import Path

import pytest

from chunkform.codegen.commands.kernel_lines import block_by_margin, lines_by_margin

GENERATED = Path(__file__).resolve().parents[3] / "generated"
READ = inspect.getblock


@pytest.mark.parametrize("name", ["gated_delta_rule", "gradient_descent_squared_momentum"])
def test_they_are_those_of_inspect(name: str) -> None:
    lines = (GENERATED / f"{name}.py").read_text().splitlines(keepends=True)
    starts = [n for n, line in enumerate(lines) if line.startswith("@triton.jit")]
    assert len(starts) > 4
    for n in starts:
        assert block_by_margin(lines[n:]) == READ(lines[n:])


@pytest.mark.parametrize(
    "text",
    [
        "def f(a):\n    return a\n\n\nb = 1\n",
        "@x.jit\n@y(\n    1,\n)\ndef f(a):\n    return a\n",
        "@x.jit\ndef f(\n    a,\n    b=(\n        1,\n    ),\n):\n    # at first\n    return a\n    # last\n\n# no more\nb = 1\n",
        'def f(a):\n    """Text\nat the margin."""\n    return a\n',
        'def f(a):\n    b = """Text\n"""\n    return b\n\nc = 1\n',
        "b = 1\ndef f():\n    pass\n",
        "def f(): return 1\ndef g(): return 2\n",
    ],
)
def test_what_the_margin_does_not_tell_is_read(text: str) -> None:
    lines = text.splitlines(keepends=True)
    found = block_by_margin(lines)
    assert found is None or found == READ(lines)


def test_other_threads_are_left_alone() -> None:
    text = "x = [\n1,\n]\ndef f():\n    pass\n".splitlines(keepends=True)
    found = []
    with lines_by_margin():
        other = threading.Thread(target=lambda: found.append(inspect.getblock(text[3:])))
        other.start()
        other.join()
        assert inspect.getblock(text[3:]) == found[0]
    assert inspect.getblock is READ
