"""What formulas in print are made of, beside `notation.py`: numbers as they were written, and parts of terms."""

from __future__ import annotations

import re
from fractions import Fraction

from .expr import COL, ROW, Node, add, const, make, mul, split_constant

MANY = 2**24  # a number that nobody knows by its digits


def decimal(c: Fraction, tex: bool) -> str | None:
    """A number that was written as a decimal, as one: 0.9, 1e-6; None of a fraction, such as 1/2 or 1/3."""
    if c.denominator % 10 or 10**18 % c.denominator:
        return None
    text = f"{float(c):.15g}"
    if Fraction(text) != c:
        return None
    mantissa, _, exponent = text.partition("e")
    if not exponent and abs(c) < Fraction(1, 1000):
        mantissa, _, exponent = f"{float(c):e}".partition("e")
        mantissa = mantissa.rstrip("0").rstrip(".")
    if not exponent:
        return text
    if not tex:
        return f"{mantissa}e{int(exponent)}"
    power = f"10^{{{int(exponent)}}}"
    return {"1": power, "-1": f"-{power}"}.get(mantissa, rf"{mantissa} \cdot {power}")


def power_of_two(c: Fraction, tex: bool) -> str | None:
    """A power of two that has many digits, as one: 2^-126; None of another number."""
    large = max(abs(c.numerator), c.denominator)
    if min(abs(c.numerator), c.denominator) != 1 or large < MANY or large & (large - 1):
        return None
    n = large.bit_length() - 1
    exponent = -n if c.denominator > 1 else n
    return ("-" if c < 0 else "") + (f"2^{{{exponent}}}" if tex else f"2^{exponent}")


def with_powers_of_two(text: str, tex: bool) -> str:
    """The text of a number, with such powers of two in it as these."""
    return re.sub(r"(?<![\d.])\d{8,}(?![\d.])", lambda m: power_of_two(Fraction(m[0]), tex) or m[0], text)


def unshifted(x: Node) -> Node:
    """A sum without peaks, on which nothing depends."""
    parts = [a for a in x.args if split_constant(a)[1].op != "peak"] if x.op == "add" else x.args
    return x if len(parts) == len(x.args) else add(*parts)


def smallest_of(x: Node) -> tuple[Node, ...] | None:
    """What a term is the smallest of: -max(-a, -b)."""
    c, core = split_constant(x)
    if c != -1 or core.op != "max" or any(split_constant(a)[0] > 0 and a.op != "add" for a in core.args):
        return None
    return tuple(mul(-1, a) for a in core.args)


def index_name(axis: str) -> str:
    return {ROW: "i", COL: "j"}.get(axis, axis.lstrip("%"))


def scaled(ratio: Fraction, named: Node) -> list[Node]:
    """ratio * named, kept as a product so that the name survives."""
    return [named] if ratio == 1 else [make("mul", (const(ratio), named), (), named.axes)]


def raised(text: str, exponent: str) -> str:
    """text^exponent in LaTeX, where nothing may have two of them, so that what has one already goes into brackets."""
    if text.endswith("^{+}"):  # the part of a gradient that comes from later steps
        return f"{text[:-1]}{exponent.removeprefix('^').strip('{}')}}}"
    return (f"({text})" if has_exponent(text) else text) + exponent


def has_exponent(text: str) -> bool:
    """Does LaTeX end in something that has an exponent? `x^{2}`, `\\mathbf{S}_{t}^\\top`, `x^{2}_{t}`"""
    return re.search(r"\^(\{[^{}]*\}|\\[a-zA-Z]+|.)(_(\{[^{}]*\}|.))?$", text) is not None
