"""The texts of several ops side by side in one file: each function with its op's name in its own."""

from __future__ import annotations

import ast
import re


def function_name(op: str, backend: str, kind: str) -> str:
    """The name of an op's function in the generated file."""
    return f"{backend}_{op}_{kind}"


def named(text: str, op: str, backend: str, roots: list[str], beside: str = "") -> str:
    """The functions that the roots need, each with the op's name in its own; those of the torch text `beside`, which is in the
    file as well, by the names that they have there."""
    bodies = _functions(text)
    used: list[str] = []
    todo = list(roots)
    while todo:
        name = todo.pop()
        if name in used:
            continue
        used.append(name)
        todo += [w for w in dict.fromkeys(re.findall(r"\w+", bodies[name])) if w in bodies and w != name]
    new = {name: _renamed(name, op, backend) for name in used}
    new |= {name: _renamed(name, op, "torch") for name in _functions(beside) if name not in bodies}
    pattern = re.compile(rf"(?<![\w.\"'])({'|'.join(map(re.escape, new))})(?![\w\"'])")
    return "\n\n\n".join(pattern.sub(lambda m: new[m[1]], body) for name, body in bodies.items() if name in used)


def _functions(text: str) -> dict[str, str]:
    """The functions of a text, by name."""
    lines = text.splitlines()
    bodies = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef):
            start = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            bodies[node.name] = "\n".join(lines[start - 1 : node.end_lineno])
    return bodies


def _renamed(name: str, op: str, backend: str) -> str:
    if name.startswith(f"{backend}_"):
        return function_name(op, backend, name.removeprefix(f"{backend}_"))
    return f"_{op}{name}" if name.startswith("_") else f"{op}_{name}"
