"""Reads printed formulas back, as a person would: `dS_t v_t - beta_t S_{t-1} p_t` with numbers for the symbols.

Matrices are two-dimensional arrays; a scalar is 1 x 1, a vector a column.
"""

import re
from collections.abc import Callable

import numpy as np

Lookup = Callable[[str, str], np.ndarray]  # (name, what stands below it) -> value

TOKEN = re.compile(
    r"\s*(?:(?P<name>log1p|expm1|(?:dlog )?[A-Za-z]+'*)(?:_(?:\{(?P<long>[^}]*)\}|(?P<short>\w)))?(?P<prime>'*)(?P<plus>\^\+)?"
    r"|(?P<number>\d+(?:\.\d+)?(?:e-?\d+)?)|(?P<power>\^(?:T|-?\d+|\([^)]*\)))|(?P<sign>[-+*/.,()<>|\[\]]))"
)
FUNCTIONS = {
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "exp": np.exp,
    "log": np.log,
    "log1p": np.log1p,
    "expm1": np.expm1,
    "logsigmoid": lambda x: -np.logaddexp(0, -x),
    "tanh": np.tanh,
    "softplus": lambda x: np.log1p(np.exp(x)),
    "sqrt": np.sqrt,
    "sin": np.sin,
    "sign": np.sign,
    "unit": lambda x: np.where(x < 0, -1.0, 1.0),
    "relu": lambda x: np.maximum(x, 0),
    "step": lambda x: (x > 0) * 1.0,
    "cos": np.cos,
    "diag": lambda x: np.diag(x.ravel()),
}
OF_SEVERAL = {"Max": np.maximum, "Min": np.minimum, "max": np.maximum, "min": np.minimum}


def read(text: str, lookup: Lookup) -> np.ndarray:
    """The value of a printed term."""
    reader = _Reader(text, lookup)
    value = reader.sum()
    assert reader.here() is None, f"can't read {text!r} from {text[reader.position :]!r}"
    return value


class _Reader:
    def __init__(self, text: str, lookup: Lookup) -> None:
        self.text, self.lookup, self.position, self.inside = text.rstrip(), lookup, 0, 0

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

    def opens(self, found: re.Match) -> bool:
        return found["sign"] in ("(", "<", "[") or (found["sign"] == "|" and not self.inside)

    def is_row(self) -> bool:
        """Is here a row of ones?"""
        found = self.here()
        return found is not None and self.text.startswith("^T", found.end())

    def sum(self) -> np.ndarray:
        value = -self.product() if self.take("-") else self.product()
        while self.sees("+") or self.sees("-"):
            sign = 1 if self.next()["sign"] == "+" else -1
            value, more = alike(value, self.product())
            value = value + sign * more
        return value

    def product(self) -> np.ndarray:
        value = self.entrywise()
        while (found := self.here()) is not None:
            if found["sign"] == "/":
                self.next()
                value = value / self.entrywise()
            elif found["number"] == "1" and not self.is_row():  # behind a matrix: a vector of ones
                self.next()
                value = value @ np.ones((value.shape[1], 1))
            elif found["name"] or found["number"] == "1" or self.opens(found):
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
        if found["number"] == "1" and self.text.startswith("^T", self.position):
            self.next()  # a row of ones
            return self.entrywise().sum(0, keepdims=True)
        if found["number"]:
            value = np.array([[float(found["number"])]])
        elif found["sign"] == "(":
            value = self.sum()
            assert self.take(")")
        elif found["sign"] == "|":
            self.inside += 1
            value = abs(self.sum())
            self.inside -= 1
            assert self.take("|")
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
        elif found["name"] in OF_SEVERAL and self.take("("):
            value = self.sum()
            while self.take(","):
                value = OF_SEVERAL[found["name"]](*alike(value, self.sum()))
            assert self.take(")")
        else:
            below = found["long"] or found["short"] or ""
            value = np.atleast_2d(
                self.lookup(found["name"] + (found["prime"] or "") + ("+" if found["plus"] else ""), below)
            )
        return self.powered(value)

    def powered(self, value: np.ndarray) -> np.ndarray:
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
            self.lookup = lambda name, below, step=int(step): outer(
                name, re.sub(rf"(^|,){letter}\b", rf"\g<1>{step}", below)
            )
            value = self.product()
            total, end = value if total is None else total + value, self.position
        self.lookup = outer
        if total is None:  # no step is meant: skip the term
            self.position = begin
            self.lookup = lambda name, below: outer(name, re.sub(rf"(^|,){letter}\b", r"\g<1>1", below))
            total, end = 0 * self.product(), self.position
            self.lookup = outer
        self.position = end
        return total


def alike(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A matrix and one for each channel, side by side: the first holds for each channel."""
    most = max(a.ndim, b.ndim)
    return tuple(x[..., None] if 2 <= x.ndim < most else x for x in (a, b))


def times(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return a * b if 1 in (a.size, b.size) else a @ b


def raised(x: np.ndarray, power: str) -> np.ndarray:
    if power == "T":
        return x.T
    if power == "-1" and x.ndim == 3:  # one system for each channel
        return np.moveaxis(np.linalg.inv(np.moveaxis(x, -1, 0)), 0, -1)
    if power == "-1" and x.shape[0] == x.shape[1] > 1:
        return np.linalg.inv(x)
    top, _, bottom = power.partition("/")
    return x ** (float(top) / float(bottom or 1))


# --- formulas with indices ----------------------------------------------------------------------------------------------

INDEX = re.compile(r"_(?:\{([^}]*)\}|(\w))")


def read_indexed(text: str, result: list[str], matrices: Lookup, sizes: dict[str, int]) -> np.ndarray:
    """`sum_{d} Q_{i,d} (1 - K_{j,d}) M_{i,j,d}` as an array over the axes `result`, entry by entry."""
    out = np.empty([sizes[a] for a in result])
    for at in np.ndindex(*out.shape):
        reader = _IndexedReader(text, matrices, sizes, dict(zip(result, at, strict=True)))
        out[at] = reader.sum().item()
        assert reader.here() is None, f"can't read {text!r} from {text[reader.position :]!r}"
    return out


class _IndexedReader(_Reader):
    """Reads one entry: a name stands for the entry at its indices, a term in square brackets for a whole matrix."""

    def __init__(self, text: str, matrices: Lookup, sizes: dict[str, int], at: dict[str, int]) -> None:
        super().__init__(text, self.entry)
        self.matrices, self.sizes, self.at = matrices, sizes, at

    def entry(self, name: str, below: str) -> np.ndarray:
        array = self.matrices(name, "")
        return self.picked(array, below)

    def picked(self, array: np.ndarray, below: str) -> np.ndarray:
        index = tuple(self.at[a] for a in below.split(",")) if below else ()
        if array.ndim == 2 and len(index) < 2:
            array = array.ravel()
        return np.array([[array[index] if index else array.item()]])

    def atom(self) -> np.ndarray:
        if not self.sees("["):
            return super().atom()
        self.next()
        self.lookup = self.matrices
        value = self.sum()
        self.lookup = self.entry
        assert self.take("]")
        found = INDEX.match(self.text, self.position)
        assert found, self.text
        self.position = found.end()
        return self.powered(self.picked(value, found[1] or found[2]))

    def sum_over(self, bound: str) -> np.ndarray:
        begin, total, outer = self.position, np.zeros((1, 1)), dict(self.at)
        names = bound.split(",")
        for at in np.ndindex(*(self.sizes[a] for a in names)):
            self.position = begin
            self.at |= dict(zip(names, at, strict=True))
            total = total + self.product()
        self.at = outer
        return total
