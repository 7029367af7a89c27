"""What an expression is made of: its sign, all its parts, and the same expression with others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from .code import Binary, Code, Literal, Name, Negative, fields_of


def is_short(x: Code) -> bool:
    """Is it a name, or a number without a sign and an exponent, which may stand more than once?"""
    if isinstance(x, Literal):
        return isinstance(x.value, int | float) and (x.value == 0 or 1e-4 <= x.value < 1e16)
    return isinstance(x, Name)


def starts_with_minus(x: Code) -> bool:
    match x:
        case Negative():
            return True
        case Literal(value=int() | float() as value):
            return value < 0
        case Binary(left=left):
            return left.level >= x.level and starts_with_minus(left)
    return False


def without_minus(x: Code) -> Code:
    """x without the minus that it starts with."""
    match x:
        case Negative(value=value):
            return value
        case Literal(value=int() | float() as value, exact=exact):
            return Literal(-value, None if exact is None else -exact)
        case Binary(operator=operator, left=left, right=right):
            return Binary(operator, without_minus(left), right)
    raise TypeError(f"{x.text} starts with no minus")


def walk_code(x: Code) -> Iterator[Code]:
    """An expression, and all that it is made of."""
    stack = [x]
    while stack:
        x = stack.pop()
        yield x
        stack.extend(reversed(x.parts))


def rebuilt(x: Code, change: Callable[[Code], Code]) -> Code:
    """The expression with what `change` makes of each of its parts."""
    new: dict[str, object] = {}
    for name in fields_of(type(x)):
        part = getattr(x, name)
        if isinstance(part, Code):
            new[name] = change(part)
        elif isinstance(part, tuple):
            new[name] = tuple(
                change(y) if isinstance(y, Code) else (y[0], change(y[1])) if isinstance(y, tuple) else y for y in part
            )
        else:
            new[name] = part
    return type(x)(**new)


def substituted(x: Code, names: Mapping[str, Code]) -> Code:
    """The expression with others in the place of some names."""
    if isinstance(x, Name):
        return names.get(x.id, x)
    return rebuilt(x, lambda y: substituted(y, names))
