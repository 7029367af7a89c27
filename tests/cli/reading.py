"""Reads printed formulas back, as a person would: `dS_t v_t - beta_t S_{t-1} p_t` with numbers for the symbols.

Matrices are two-dimensional arrays; a scalar is 1 x 1, a vector a column.
"""

import re
from collections.abc import Callable

import numpy as np

Lookup = Callable[[str, str], np.ndarray]  # (name, what stands below it) -> value

TOKEN = re.compile(
    r"\s*(?:(?P<name>(?:dlog )?[A-Za-z]+'*)(?:_(?:\{(?P<long>[^}]*)\}|(?P<short>\w)))?(?P<plus>\^\+)?"
    r"|(?P<number>\d+)|(?P<power>\^(?:T|-?\d+|\([^)]*\)))|(?P<sign>[-+*/.,()<>|\[\]]))"
)
FUNCTIONS = {
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "exp": np.exp,
    "log": np.log,
    "tanh": np.tanh,
    "sqrt": np.sqrt,
    "sin": np.sin,
    "cos": np.cos,
    "diag": lambda x: np.diag(x.ravel()),
}


def read(text: str, lookup: Lookup) -> np.ndarray:
    """The value of a printed term."""
    reader = _Reader(text, lookup)
    value = reader.sum()
    assert reader.here() is None, f"can't read {text!r} from {text[reader.position :]!r}"
    return value


class _Reader:
    def __init__(self, text: str, lookup: Lookup) -> None:
        self.text, self.lookup, self.position = text.rstrip(), lookup, 0

    def here(self) -> re.Match | None:
        if self.position >= len(self.text):
            return None
        found = TOKEN.match(self.text, self.position)
        assert found, f"can't read {self.text!r} at {self.text[self.position :]!r}"
        return found

    def next(self) -> re.Match:
        found = self.here()
        assert found is not None, f"{self.text!r} ends too early"
        self.position = found.end()
        return found

    def sees(self, sign: str) -> bool:
        found = self.here()
        return found is not None and found["sign"] == sign

    def take(self, sign: str) -> bool:
        if self.sees(sign):
            self.next()
            return True
        return False

    def sum(self) -> np.ndarray:
        value = -self.product() if self.take("-") else self.product()
        while self.sees("+") or self.sees("-"):
            sign = 1 if self.next()["sign"] == "+" else -1
            value = value + sign * self.product()
        return value

    def product(self) -> np.ndarray:
        value = self.entrywise()
        while (found := self.here()) is not None:
            if found["sign"] == "/":
                self.next()
                value = value / self.entrywise()
            elif found["number"] == "1":  # behind a matrix: a vector of ones
                self.next()
                value = value @ np.ones((value.shape[1], 1))
            elif found["name"] or found["sign"] in ("(", "<"):
                value = times(value, self.entrywise())
            else:
                break
        return value

    def entrywise(self) -> np.ndarray:
        value = self.atom()
        while self.take("."):
            value = value * self.atom()
        return value

    def atom(self) -> np.ndarray:
        found = self.next()
        if found["number"]:
            value = np.array([[float(found["number"])]])
        elif found["sign"] == "(":
            value = self.sum()
            assert self.take(")")
        elif found["sign"] == "<":
            left = self.sum()
            assert self.take(",")
            value = np.array([[float((left * self.sum()).sum())]])
            assert self.take(">")
        elif found["name"] == "sum":
            return self.sum_over(found["long"] or found["short"])
        elif found["name"] in FUNCTIONS and self.sees("("):
            self.next()
            value = FUNCTIONS[found["name"]](self.sum())
            assert self.take(")")
        else:
            below = found["long"] or found["short"] or ""
            value = np.atleast_2d(self.lookup(found["name"] + ("+" if found["plus"] else ""), below))
        while (power := self.here()) is not None and power["power"]:
            self.next()
            value = raised(value, power["power"][1:].strip("()"))
        return value

    def sum_over(self, condition: str) -> np.ndarray:
        """`sum_t`, `sum_{s >= t}`: the product behind it, for each step that is meant."""
        outer, begin = self.lookup, self.position
        steps = outer("steps of", condition)
        total, end = None, begin
        letter = condition[0]
        for step in steps.ravel():
            self.position = begin
            self.lookup = lambda name, below, step=int(step): outer(name, re.sub(rf"^{letter}\b", str(step), below))
            value = self.product()
            total, end = value if total is None else total + value, self.position
        self.lookup = outer
        if total is None:  # no step is meant: skip the term
            self.position = begin
            self.lookup = lambda name, below: outer(name, re.sub(rf"^{letter}\b", "1", below))
            total, end = 0 * self.product(), self.position
            self.lookup = outer
        self.position = end
        return total


def times(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return a * b if 1 in (a.size, b.size) else a @ b


def raised(x: np.ndarray, power: str) -> np.ndarray:
    if power == "T":
        return x.T
    if power == "-1" and x.shape[0] == x.shape[1] > 1:
        return np.linalg.inv(x)
    top, _, bottom = power.partition("/")
    return x ** (float(top) / float(bottom or 1))


# --- formulas with indices ----------------------------------------------------------------------------------------------

FACTOR = re.compile(r"(?:\[(?P<inner>[^\]]*)\]|(?P<name>[A-Za-z]+'*))_(?:\{(?P<long>[^}]*)\}|(?P<short>\w))")


def read_indexed(text: str, result: list[str], value: Callable[[str], np.ndarray]) -> np.ndarray:
    """`sum_{d} Q_{i,d} K_{j,d} M_{i,j,d}` as an array over the axes `result`; `value` gives the array of a name or term."""
    sign = -1.0 if text.startswith("-") else 1.0
    body = re.sub(r"^-?(sum_\{[^}]*\}\s*)?", "", text)
    operands, axes = [], []
    for f in FACTOR.finditer(body):
        index = (f["long"] or f["short"]).split(",")
        array = value(f["inner"] or f["name"])
        if array.ndim == 2 and len(index) == 1:
            array = array.ravel()
        operands.append(array)
        axes.append(index)
    rest = FACTOR.sub("", body).strip()
    assert not rest, f"can't read {rest!r} in {text!r}"
    letters = {a: chr(ord("a") + i) for i, a in enumerate(dict.fromkeys(a for index in [*axes, result] for a in index))}
    inputs = ",".join("".join(letters[a] for a in index) for index in axes)
    return sign * np.einsum(f"{inputs}->{''.join(letters[a] for a in result)}", *operands)
