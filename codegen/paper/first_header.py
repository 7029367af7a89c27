"""A first header for a document: what was found of its symbols, each guess marked, to be corrected."""

from __future__ import annotations

from .header import MARK
from .paper import Paper
from .shapes import SCALAR
from .steps import safe


def first_header(paper: Paper) -> str:
    """The header as TOML. What is marked `guessed` isn't said by the document."""
    s = paper.symbols
    lines = [
        f"# {MARK}: what the symbols of {paper.path} are. Correct what is marked as guessed, and remove what is right as it is.",
        f'title = "{clean(paper.document.source.title)}"',
        f'steps = "{next((n for n, known in s.names.items() if known == "n"), "n")}"'
        + ("" if "n" in s.names.values() else "   # guessed"),
        "",
        "[symbols]",
    ]
    r = s.recurrence
    kinds = {v.name: v.kind for v in r.variables} if r is not None else {}
    for name, known in s.names.items():
        kind = kinds.get(known)
        q = s.setting.quantities.get(known)
        if kind is None and q is not None and q.kind == "given":
            kind = "given"
        if kind is None and name in s.steps.states:
            kind = "state"
        if kind is None or (known != safe(name) and kind != "given"):
            continue
        shape = s.shapes.get(name, SCALAR)
        dims = " ".join(shape) if shape[0] == "1" and shape != SCALAR else " ".join(d for d in shape if d != "1")
        kind = {"decay parameter": "decay"}.get(kind, kind)
        lines.append(f"'{name}' = \"{f'{kind} {dims}'.strip()}\"   # guessed")
    for name, why in s.unknown.items():
        lines.append(f"# '{name}' = \"given d\"   # {why}")
    lines += ["", "# What a symbol stands for, in the document's own LaTeX:", "[define]"]
    lines += [f"# guessed: {g}" for g in s.guesses if g.startswith(("row", "M is"))]
    lines += ["", "# What an ambiguous symbol may stand for; each reading is tried:"]
    for name, known in s.names.items():
        q = s.setting.quantities.get(known)
        if q is not None and q.alternatives:
            lines.append(f"# guessed: {name} is ambiguous: {'; or '.join(label for label, _ in q.alternatives)}")
    missing = {r.reason for r in paper.document.rows if "isn't known" in r.reason}
    if missing:
        lines += ["", "# What keeps rows from being judged:"] + [f"#   {m}" for m in sorted(missing)]
    return "\n".join(lines) + "\n"


def clean(text: str) -> str:
    return text.replace("\\", "").replace('"', "'")
