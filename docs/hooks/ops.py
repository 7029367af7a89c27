"""The reference of the catalogue's ops: one page, from the docstrings and signatures of whatever lies in generated/."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

GENERATED = Path(__file__).parents[2] / "generated"
HEAD = (
    "# Ops of the catalogue\n\nEvery op takes what its spec declares, in that order, and then the same options as every other: "
    "[using an op](../using_ops.md) explains these. [The catalogue](../catalogue.md) has one line for each.\n\n"
)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    paths = sorted(p for p in GENERATED.glob("*.py") if p.stem[0] != "_")
    files.append(File.generated(config, "reference/ops.md", content=HEAD + "".join(map(entry, paths))))
    return files


def entry(path: Path) -> str:
    """An op's heading, how it is called, and its docstring as it stands: shapes and formulas are laid out there."""
    (op,) = (
        x
        for x in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(x, ast.FunctionDef) and x.name == path.stem
    )
    arguments = ast.unparse(op.args).split(", ")
    lines, line = [], "   "
    for n, x in enumerate(arguments):
        word = f" {x}" + ("," if n + 1 < len(arguments) else "")
        if len(line) + len(word) > 88:
            lines.append(line)
            line = "   "
        line += word
    call = "\n".join([f"{op.name}(", *lines, line, ")"])
    said = inspect.cleandoc(ast.get_docstring(op, clean=False) or "")
    return f"## {op.name}\n\n```python\n{call}\n```\n\n``` {{ .text .docstring }}\n{said}\n```\n\n"
