"""Formulas as a document has them become formulas of quantities: every name is looked up, and what stayed open while it was read
is settled: derivatives, functions of the document's own, bounds of sums, sizes of identities."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from itertools import pairwise

from chunkform.errors import ChunkformError
from chunkform.spec.language.claims import LENGTH, Quantity
from chunkform.spec.language.formula import (
    Formula,
    diag,
    exp,
    formula,
    gradient,
    hadamard,
    inner,
    jacobian,
    matrix,
    product,
    rebuild,
    row,
    rowsum,
    stack,
    substitute,
    walk,
)

from .heads import base_of
from .row import Fault
from .shapes import ONES, SCALAR, Dims, Misfit, Shape, settled, shape_of
from .steps import lower, safe
from .symbols import CHUNK, CHUNKS, Symbols, safe_in, size
from .words import FUNCTIONS, LOSSES

DEEPEST = 30


REFUSED = {  # what isn't judged, and what is said of it
    **dict.fromkeys(
        ("tuple", "dots", "empty"), "brackets with commas are read as arguments of a function, or as an interval"
    ),
    "blocks": "a matrix of blocks isn't judged",
    "differential": "a differential outside of a derivative, as a perturbation, isn't judged",
    "slice": "[:, None] is read where differences of all pairs are taken",
    **{op: f"an {op} can't be judged here" for op in ("integral", "interval", "integers")},
    "reals": "the reals can't be judged here",
    "constant": "a matrix of numbers has no dims: state it as a claim in Python",
}


class Resolver:
    """Resolves formulas in one part of a document."""

    def __init__(self, symbols: Symbols, lookup: Callable[[str, int], Quantity | Formula | None]) -> None:
        self.s = symbols
        self.define = lookup  # defines a name that the document defines, when it is asked for first
        self.depth = 0
        self.rows = False  # X_i, of a matrix X, is its row as it stands, and not as a column
        self.gathers = LENGTH  # how many entries something has that is defined for each index, with no word on how many

    def __call__(self, x: Formula) -> Formula:
        """The formula of quantities.

        Raises:
            Fault: a name isn't known, or something can't be judged.
        """
        self.depth += 1
        try:
            if self.depth > DEEPEST * 4:
                raise Fault("its definitions are nested too deeply")
            return self.visit(x)
        finally:
            self.depth -= 1

    def visit(self, x: Formula) -> Formula:
        match x.op:
            case "at":
                return self.at(x)
            case "size" | "index":
                return self.size(x.attrs[0]) if x.op == "size" else self.index(x)
            case "product":
                return self.product(x)
            case "partial":
                return self.partial(x.args[0], x.args[1])
            case "apply":
                return self.apply(x)
            case "sum" | "product over" | "product down" | "hadamard over":
                return self.big(x)
            case "softmax":
                return self.softmax(self(x.args[0]))
            case "softmax over":
                return self.softmax_over(x)
            case "power" if x.args[1] == formula(2):
                return self.square(x)
            case "norm" | "inner":
                parts = [self(y) for y in x.args]
                product = inner(parts[0], parts[-1])
                return product if x.op == "inner" else Formula("sqrt", (product,))
            case "entry":
                return self.entry(self(x.args[0]), [self(y) for y in x.args[1:]])
            case "diag":
                return self.diagonal(self(x.args[0]))
            case "rows of" | "columns of":
                return self.rows_of(x)
        if x.op in REFUSED:
            raise Fault(REFUSED[x.op])
        return rebuild(x, tuple(self(a) for a in x.args))

    def square(self, x: Formula) -> Formula:
        """A square: of a vector, and of its norm, the inner product with itself."""
        (base, two) = x.args
        if base.op == "norm":
            v = self(base.args[0])
            return inner(v, v)
        if base.op in ("at", "add", "product", "negative"):
            v = self(base)
            return inner(v, v) if self.is_vector(v) else Formula("power", (v, two))
        return rebuild(x, (self(base), self(two)))

    # --- names

    def size(self, name: str) -> Formula:
        """A letter that stands where a number does: a size, a number that is given, or an index."""
        if self.known_size(name):
            return size(self.s.names.get(name, name))
        if name in ("T", "L", "N", "n") and name not in self.s.names and LENGTH in self.s.setting.sizes:
            self.s.names[name] = LENGTH
            self.s.guess(f"{name} is the number of steps")
            return size(LENGTH)
        if name in self.s.names or len(name) > 1:
            return self.at(Formula("at", (), (name,)))
        return Formula("index", (), (name,))

    def index(self, x: Formula) -> Formula:
        """An index; C in (i - 1) C + j is the size of a chunk."""
        found = self.s.names.get(x.attrs[0]) if x.attrs[0].isupper() else None
        return size(found) if found is not None and found in (CHUNK, CHUNKS) else x

    def known_size(self, name: str) -> bool:
        found = self.s.names.get(name, name)
        return found in self.s.setting.sizes or found in self.s.setting.derived_sizes

    def at(self, x: Formula) -> Formula:
        """A symbol with its indices."""
        (name,) = x.attrs
        args = tuple(self(a) for a in x.args)
        found = self.quantity(name, len(args))
        if found is None and args == (formula(0),) and lower(name) in self.s.steps.states:
            self.s.guess(f"{name}_0 is the initial state {lower(name)}_0")
            return self.at(Formula("at", x.args, (lower(name),)))
        if found is None:
            of_function = [body for (f, _), (_, body) in self.s.defined.functions.items() if f == name]
            if of_function and not args:  # a function without its arguments, as in a derivative by one of them
                return self(of_function[0])
            raise Fault(self.unknown(name))
        q, rowwise = found
        if isinstance(q, Formula):  # a matrix without indices
            return self.part(name, q, args)
        if len(args) == len(q.parameters):
            made = q(*args)
        elif len(args) < len(q.parameters) <= len(args) + 2:
            return self.gathered(q, args)  # a row for each step, however one is displayed
        elif len(q.parameters) == 1 and len(args) == 2 and args[1].op == "size":
            made = q(product(*args))  # S_{iC}, the state at step i C
        elif len(args) == 2 and len(q.parameters) == 1 and args[1].op == "index" and args[1].attrs[0].isupper():
            letter = args[1].attrs[0]
            raise Fault(f'{letter} isn\'t known: if it is the size of a chunk, say chunk = "{letter}" in the header')
        elif len(args) == len(q.parameters) + 1 and q.parameters:
            made = self.one_row(q(*args[:-1]), args[-1])
        elif len(q.parameters) == 1 and len(args) > 1 and all(a.op in ("index", "size") for a in args):
            made = q(product(*args))  # s_{ic}, the state at step i c
        else:
            shown = ", ".join(q.parameters) or "no index"
            raise Fault(f"{name} takes {shown}, and has {len(args)} here")
        return made.T if rowwise else made

    def gathered(self, q: Quantity, args: tuple[Formula, ...]) -> Formula:
        """The vector of what q is at its last index, or the matrix at its last two."""
        rest = [Formula("index", (), (p,)) for p in q.parameters[len(args) :]]
        dims = [self.dim_of(p, q.name.endswith("chunk")) for p in q.parameters[len(args) :]]
        body = q(*args, *rest)
        if len(rest) == 1 and not (self.is_vector(body) or self.is_scalar(body)):
            raise Fault(f"{q.name} has no index here, and is a matrix for each {rest[0]}")
        if len(rest) == 1:
            return stack(rest[0], dims[0], body if self.shape(body)[0] == "1" else body.T)
        if not self.is_scalar(body):
            raise Fault(f"{q.name} has two indices here that it lacks, and isn't a matrix of numbers")
        return matrix(rest[0], rest[1], dims[0], dims[1], body)

    def dim_of(self, letter: str, chunked: bool = False) -> str:
        """The size that an index counts up to; behind that of a chunk, it counts the steps of one."""
        if chunked and letter not in self.s.ranges:
            return CHUNK
        high = self.s.ranges.get(letter, (formula(1), size(self.gathers)))[1]
        return high.attrs[0] if high.op == "size" else LENGTH

    def part(self, name: str, q: Formula, args: tuple[Formula, ...]) -> Formula:
        """X_i and X_{ij} of a matrix X: quantities of their own, so that they read, and are mended, as the document has them."""
        if not args:
            return q
        if len(args) > 2:
            raise Fault(f"{name} is a matrix, and has {len(args)} indices here")
        key = f"{name} {len(args)}"
        letters = tuple(Formula("index", (), (x,)) for x in ("i", "j")[: len(args)])
        if key not in self.s.names:
            body = self.one_row(q, letters[0], self.rows) if len(args) == 1 else self.entry(q, list(letters))
            self.s.names[key] = safe_in(self.s.setting, f"{q.attrs[0]}_{'row' if len(args) == 1 else 'entry'}")
            self.s.setting.define(self.s.names[key], letters, body)
        return self.s.setting.quantities[self.s.names[key]](*args)

    def one_row(self, x: Formula, i: Formula, stands: bool = False) -> Formula:
        """x_i, of a matrix its row as a column, or as it `stands`; of a vector its entry."""
        picked = row(x, i)
        return picked if stands or self.shape(x)[1] == "1" else picked.T

    def quantity(self, name: str, count: int) -> tuple[Quantity | Formula, bool] | None:
        """What a name stands for, and whether the document writes it as a row."""
        s = self.s
        known = s.names.get(f"{name}/1" if count else name) or s.names.get(name)
        if count and s.chunked and known is not None and f"{name}/1" not in s.names and not self.takes_indices(known):
            self.define(name, count)  # O_i, of a chunk, where O is known
            known = s.names.get(f"{name}/1") or known
        if known is not None and known in s.setting.quantities:
            q = s.setting.quantities[known]
            return (q if q.parameters else Formula("at", (), (known,))), name in s.rowwise
        if known is not None and s.recurrence is not None:
            try:
                made = s.setting.lookup(known)
            except ChunkformError:
                made = None
            if made is not None:
                return made, name in s.rowwise
        made = self.gradient_quantity(name)
        if made is not None:
            return made
        defined = self.define(name, count)
        if defined is not None:
            return self.quantity(name, count) if not isinstance(defined, Quantity | Formula) else (defined, False)
        return None

    def takes_indices(self, known: str) -> bool:
        q = self.s.setting.quantities.get(known)
        return q is None or bool(q.parameters)

    def gradient_quantity(self, name: str) -> tuple[Quantity | Formula, bool] | None:
        base = base_of(name)
        if not base:
            return None
        s = self.s
        if base in s.names and s.recurrence is not None:
            prefix = "dlog_" if name.startswith("dlog_") else "d"
            try:
                made = s.setting.lookup(prefix + s.names[base])
            except ChunkformError:
                return None
            return made, base in s.rowwise
        if s.loss is not None and base in s.names:
            q = s.setting.quantities[s.names[base]]
            letters = tuple(Formula("index", (), (p,)) for p in q.parameters)
            at = Formula("at", letters, (q.name,))
            self.must_depend(s.loss, at)
            found = gradient(s.loss, at)
            if name.startswith("dlog_"):
                found = hadamard(at, found)
            s.names[name] = safe_in(s.setting, safe(name))
            s.shapes[name] = s.shapes.get(base, SCALAR)
            made = s.setting.define(s.names[name], letters, found)
            return made, False
        return None

    def unknown(self, name: str) -> str:
        known = sorted({*self.s.names, *self.s.defined.quantities})
        near = difflib.get_close_matches(name, known, 1, 0.6)
        said = self.s.unknown.get(name)
        if said:
            own = said.removesuffix("; say what it is in the header").removesuffix(": say in the header what it is")
            return f"{name} isn't known: {own}; say what it is in the header"
        hint = f"; the nearest name is {near[0]}" if near else ""
        return f"{name} isn't known: say in the header what it is{hint}"

    # --- products and derivatives

    def product(self, x: Formula) -> Formula:
        """A product; a derivative of a vector by another stands for what it does to the factor before it."""
        done: Formula | None = None
        for y in x.args:
            if y.op == "partial" and y.args[0].op != "partial" and not self.is_loss(y.args[0]):
                of, by = self(y.args[0]), self(y.args[1])
                self.must_depend(of, by)
                if done is not None and not self.is_scalar(of) and self.fits(done, of):
                    along = done if self.shape(done) == self.shape(of) else done.T
                    found = jacobian(of, by, along)
                    done = (
                        found if self.shape(done)[1] == "1" else found.T
                    )  # a row times a matrix of derivatives is a row
                    continue
                y = gradient(of, by) if self.is_scalar(of) else y
                if y.op == "partial":
                    raise Fault(self.no_number(of))
                done = y if done is None else product(done, y)
                continue
            part = self(y)
            done = part if done is None else product(done, part)
        assert done is not None
        return done

    def fits(self, a: Formula, of: Formula) -> bool:
        one, two = self.shape(a), self.shape(of)
        return one in (two, two[::-1]) and one != SCALAR

    def is_loss(self, x: Formula) -> bool:
        return x.op == "at" and not x.args and (x.attrs[0] in LOSSES and x.attrs[0] not in self.s.names)

    def partial(self, of: Formula, by: Formula) -> Formula:
        if self.is_loss(of):
            target = by.args[0] if by.op == "transpose" else by
            if target.op == "log" and target.args[0].op == "at":
                found = self.at(Formula("at", target.args[0].args, ("dlog_" + target.args[0].attrs[0],)))
            elif target.op == "at":
                found = self.at(Formula("at", target.args, ("d" + target.attrs[0],)))
            else:
                raise Fault("a gradient of the loss is by a symbol")
            return found.T if by.op == "transpose" else found
        whole = self.matrix_of_entry(by)
        if whole is not None:
            return self.entry(self.partial(of, whole), [self(y) for y in by.args])
        a, b = self(of), self(by)
        self.must_depend(a, b)
        if not self.is_scalar(a):
            raise Fault(self.no_number(a))
        return gradient(a, b)

    def matrix_of_entry(self, by: Formula) -> Formula | None:
        """W of W_{ij}, where W is a matrix that is given."""
        known = self.s.names.get(by.attrs[0]) if by.op == "at" and len(by.args) == 2 else None
        q = self.s.setting.quantities.get(known or "")
        return None if q is None or q.kind != "given" or q.parameters else Formula("at", (), by.attrs)

    def no_number(self, of: Formula) -> str:
        """Why a derivative isn't judged that stands alone."""
        if "1" not in self.shape(of):
            return f"{of} is a matrix as it is displayed, and the derivative of one isn't judged"
        return "a derivative of a vector is read behind what it is multiplied with"

    def must_depend(self, of: Formula, by: Formula) -> None:
        """Refuse the derivative of what nothing says how it depends on anything: it would be zero, and claims about it empty."""
        target = {y.attrs[0] for y in walk(by) if y.op == "at"}
        seen: set[str] = set()
        waiting = [y.attrs[0] for y in walk(of) if y.op == "at"]
        while waiting:
            name = waiting.pop()
            q = self.s.setting.quantities.get(name)
            if name in target or (q is not None and q.kind in ("spec", "gradient", "log gradient")):
                return
            if q is None or name in seen:
                continue
            seen.add(name)
            bodies = [q.body, *(b for _, b in q.alternatives), *([q.start[1]] if q.start else [])]
            waiting += [y.attrs[0] for b in bodies if b is not None for y in walk(b) if y.op == "at"]
        raise Fault(f"nothing says how {of} depends on {by}")

    def is_scalar(self, x: Formula) -> bool:
        return self.shape(x) == SCALAR

    def is_vector(self, x: Formula) -> bool:
        a, b = self.shape(x)
        return (a == "1") != (b == "1")

    def shape(self, x: Formula) -> Shape:
        """The shape of a resolved formula, as far as it can be told."""
        dims = Dims(lenient=True)
        found = shape_of(x, QuantityShapes(self.s), dims)
        return dims.find(found[0]), dims.find(found[1])

    # --- functions

    def diagonal(self, x: Formula) -> Formula:
        """The matrix with a vector on its diagonal; of a matrix, the diagonal as a vector."""
        if self.is_vector(x) or self.is_scalar(x) or "?" in "".join(self.shape(x)):
            return diag(x)
        return rowsum(hadamard(Formula("eye", (), (self.shape(x)[0],)), x))

    def apply(self, x: Formula) -> Formula:
        name, before = x.attrs
        args = x.args[before:]
        if name in ("cumsum", "revcumsum") and len(args) == 1:
            return Formula(name, (self(args[0]),))
        if name == "trace" and len(args) == 1:
            return inner(Formula("eye", (), ("?",)), self(args[0]))
        if name == "rows" and len(args) == 1 and before == 1:
            letter = x.args[0].attrs[0] if x.args[0].attrs else "t"
            body = self(substitute(args[0], {size(letter): Formula("index", (), (letter,))}))
            return stack(
                Formula("index", (), (letter,)), self.dim_of(letter), body if self.shape(body)[0] == "1" else body.T
            )
        if name == "unit" and len(args) == 1:
            return Formula("unit", (self(args[0]),), ("?",))
        known = self.s.defined.functions.get((name, len(x.args)))
        if known is not None:
            parameters, body = known
            values = x.args
            return self(substitute(body, dict(zip(parameters, values, strict=True))))
        if name in self.s.names or self.define(name, before) is not None:
            return self.visit_product(name, x)
        counts = [n for f, n in self.s.defined.functions if f == name]
        if counts:
            raise Fault(f"{name} takes {counts[0]} arguments, and has {len(x.args)} here")
        if name in FUNCTIONS:
            raise Fault(f"{name} isn't judged")
        near = difflib.get_close_matches(name, [*FUNCTIONS, *(f for f, _ in self.s.defined.functions)], 1, 0.5)
        hint = f"; the nearest known function is {near[0]}" if near else ""
        raise Fault(f"the function {name} isn't known{hint}")

    def visit_product(self, name: str, x: Formula) -> Formula:
        """f (x), where f isn't a function after all."""
        head = Formula("at", x.args[: x.attrs[1]], (name,))
        rest = x.args[x.attrs[1] :]
        if len(rest) != 1:
            raise Fault(f"{name} is no function")
        return product(self(head), self(rest[0]))

    def softmax(self, x: Formula) -> Formula:
        """Of a column; of a row; or of each row of a matrix."""
        a, b = self.shape(x)
        if b == "1":
            return Formula("softmax", (x,))
        if a == "1":
            return Formula("softmax", (x.T,)).T
        return exp(x) / rowsum(exp(x))

    def softmax_over(self, x: Formula) -> Formula:
        body, below = x.args
        letter = below.attrs[0] if below.attrs else ""
        inside = substitute(body, {size(letter): Formula("index", (), (letter,))})
        entry = self(exp(inside))
        return entry / self.big_over("sum", letter, Formula("unknown"), Formula("unknown"), exp(inside))

    def big(self, x: Formula) -> Formula:
        low, high, body = x.args
        return self.big_over(x.op, x.attrs[0], low, high, body)

    def big_over(self, op: str, letter: str, low: Formula, high: Formula, body: Formula) -> Formula:
        known = self.s.ranges.get(letter, (formula(1), size(LENGTH)))
        first = known[0] if low.op == "unknown" else self(low)
        if (
            high.op == "unknown"
            and LENGTH not in self.s.setting.sizes
            and known[1] == size(LENGTH)
            and LENGTH not in self.s.setting.derived_sizes
        ):
            raise Fault(f"the last value of {letter} isn't known: say in the header what it runs over")
        last = known[1] if high.op == "unknown" else high if high.op == "infinity" else self(high)
        over = self(body)
        if op != "sum" and self.is_vector(over):  # columns have no product but that of their entries
            op = "hadamard over"
        return Formula(op, (first, last, over), (letter,))

    def entry(self, x: Formula, indices: list[Formula]) -> Formula:
        if len(indices) == 1:
            picked = row(x, indices[0])
            return picked if self.shape(x)[1] == "1" else row(x.T, indices[0]) if self.shape(x)[0] == "1" else picked.T
        if len(indices) == 2:
            return row(row(x, indices[0]).T, indices[1])
        raise Fault("an entry has one or two indices")

    def rows_of(self, x: Formula) -> Formula:
        """A column of rows, from the first to the last."""
        first, last = x.args
        ones = [y for y in walk(first) if y.op == "number" and y.attrs[0] == 1]
        if not ones:
            raise Fault("a column of rows starts with the row of index 1")
        tops = [y for y in walk(last) if y.op in ("size", "index") and y not in list(walk(first))]
        if len(set(tops)) != 1:
            raise Fault("a column of rows ends with the row of one last index")
        top = self(Formula("size", (), tops[0].attrs)) if tops[0].op == "index" else self(tops[0])
        if top.op != "size":
            raise Fault("a column of rows ends with the row of one last index")
        i = Formula("index", (), ("i",))

        def stepped(y: Formula, z: Formula) -> Formula:
            if y != z and z in tops:
                return i
            return rebuild(y, tuple(stepped(a, b) for a, b in zip(y.args, z.args)))

        body = self(stepped(first, last))
        return stack(i, top.attrs[0], body) if x.op == "rows of" else stack(i, top.attrs[0], body.T).T


class QuantityShapes(dict):
    """Shapes of a setting's quantities, as they are asked for."""

    def __init__(self, symbols: Symbols) -> None:
        super().__init__()
        self.symbols = symbols
        self.asked: set[str] = set()
        self.ones: Shape | None = None  # that of a vector of ones, where the document says nothing of it

    def get(self, name: str, default: Shape | None = None) -> Shape | None:  # type: ignore[override]
        if name == ONES:
            return self.symbols.shapes.get(ONES, self.ones or default)
        q = self.symbols.setting.quantities.get(name)
        if q is None or name in self.asked:
            return default
        if q.kind != "defined":
            return q.dims
        body = q.body if q.body is not None else None
        if body is None:
            return default
        self.asked.add(name)
        try:
            dims = Dims(lenient=True)
            found = shape_of(body, self, dims)
            return dims.find(found[0]), dims.find(found[1])
        finally:
            self.asked.discard(name)


def statement_sides(sides: tuple[Formula, ...], symbols: Symbols) -> tuple[Formula, ...]:
    """The sides with the dims of identities settled."""
    sizes = [d for d in symbols.setting.sizes if d not in (LENGTH, CHUNK, CHUNKS)]
    known = QuantityShapes(symbols)
    if any(y.op == "ones" for x in sides for y in walk(x)) and not fit(sides, known):
        known.ones = "1", "?ones"  # a row
        known.ones = known.ones if fit(sides, known) else None
    return settled(sides, known, sizes[0] if sizes else LENGTH)


def fit(sides: tuple[Formula, ...], known: QuantityShapes) -> bool:
    """Whether the shapes of sides fit."""
    dims = Dims()
    try:
        shapes = [shape_of(s, known, dims) for s in sides]
        for a, b in pairwise(shapes):
            dims.equal(a, b)
    except Misfit:
        return False
    return True
