"""What the head of an equation, or a side of a condition, is: a name, an index, a size, an inverse."""

from __future__ import annotations

from chunkform.spec.language.formula import Formula


def is_inverse_of(x: Formula, name: str) -> bool:
    return x.op == "inverse" and x.args[0].op == "at" and x.args[0].attrs[0] == name


def key_of(name: str, count: int) -> str:
    """What a name with an index is known as, where the name alone may be something else."""
    return f"{name}/1" if count else name


def indexed(x: Formula) -> str:
    return x.attrs[0] if x.op in ("at", "index", "size") and not x.args else ""


def sized(x: Formula) -> Formula:
    """x with bare names as indices or sizes: n is the size, t an index."""
    if x.op == "at" and not x.args:
        return Formula("size" if x.attrs[0] in ("n", "N", "T", "c", "C", "k", "m", "L") else "index", (), x.attrs)
    return x if not x.args else Formula(x.op, tuple(sized(a) for a in x.args), x.attrs)


def base_of(name: str) -> str:
    """What a name of a gradient is the gradient by."""
    if name.startswith("dlog_"):
        return name[5:]
    return name[1:] if name.startswith("d") and len(name) > 1 and not name.startswith("delta") else ""
