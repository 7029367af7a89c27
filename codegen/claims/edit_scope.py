"""What an edit may bring into a formula: other symbols of the shape, scalars, diagonal factors, solves, and products over a
range, at the indices that the formula and what stands beside it use."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from chunkform.spec.language.claims import LENGTH, Setting
from chunkform.spec.language.formula import (
    BINDERS,
    Formula,
    diag,
    eye,
    formula,
    free_indices,
    hadamard_over,
    inverse,
    product_over,
    substitute,
    walk,
)

from .indices import is_decay, shifted

SOLVES = 8  # the most that are tried
ENDS = 6  # indices between which products are tried
PAIRS = 16  # products of two vectors that are tried where one may be missing
FACTORS = 40  # vectors and matrices that are tried where one may be missing


@dataclass(frozen=True)
class Known:
    """What is known of defined quantities: their shapes, and which are matrices with nothing on or above the diagonal."""

    shapes: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    strict: tuple[str, ...] = ()


NOTHING = Known()


@dataclass(frozen=True)
class Scope:
    """Names of one shape, scalars, diagonal factors by the dim that they fit, solves by the dim that they fit, and decays whose
    products over a range may be missing, with the indices between which."""

    same_shape: dict[str, tuple[str, ...]]
    scalars: tuple[Formula, ...]
    diagonals: dict[str, tuple[Formula, ...]]
    dims: tuple[str, ...]
    components: tuple[Formula, ...] = ()
    solves: tuple[Formula, ...] = ()
    decays: tuple[str, ...] = ()
    channels: tuple[str, ...] = ()
    ends: tuple[Formula, ...] = ()
    entries: tuple[Formula, ...] = ()
    indices: tuple[str, ...] = ()
    exponents: tuple[Formula, ...] = ()
    factors: tuple[Formula, ...] = ()
    masks: tuple[Formula, ...] = ()
    pairs: tuple[Formula, ...] = ()
    misfits: dict[str, tuple[str, ...]] = field(
        default_factory=dict
    )  # names of other shapes, where a formula's don't fit

    def near(self) -> Scope:
        """What a second edit may bring in."""
        return replace(
            self,
            solves=(),
            decays=(),
            channels=(),
            entries=(),
            exponents=(),
            factors=(),
            masks=(),
            pairs=(),
            misfits={},
        )


def scope_of(
    x: Formula,
    setting: Setting,
    names: tuple[str, ...],
    beside: tuple[Formula, ...] = (),
    known: Known | None = None,
    fits: bool = True,
) -> Scope:
    """What may be brought into x: quantities of the setting, at the indices that x, or what stands beside it, uses. Where shapes
    don't fit, quantities of other shapes too."""
    known = known or NOTHING
    mates = alike(setting, names, known)
    quantities = setting.quantities
    indices = indices_of((x, *beside), setting)
    scalars = functions_in((x, *beside), setting)
    scalars += [1 - f for f in scalars]
    diagonals: dict[str, list[Formula]] = {}
    for name in names:
        q = quantities[name]
        here = [Formula("at", args, (name,)) for args in indices.get(len(q.parameters), [])]
        if q.kind == "defined":
            shape = known.shapes.get(name)
            if shape == ("1", "1"):
                scalars += here
            elif shape is not None and shape[1] == "1" and shape[0] != "1":
                diagonals.setdefault(shape[0], []).extend(map(diag, here[:2]))
            if is_decay_rows(setting, name):
                whole = Formula("at", (), (name,))
                diagonals.setdefault("n", []).extend([diag(whole), diag(1 - whole)])
        elif q.dims == ("1", "1"):
            scalars += [y for z in here for y in (z, 1 - z)]
        elif q.dims[1] == "1" and is_decay(setting, name):
            diagonals.setdefault(q.dims[0], []).extend(map(diag, here))
    sizes = tuple(d for q in (quantities[n] for n in names) for d in q.dims if d != "1")
    components = dict.fromkeys(y.args[1] for z in (x, *beside) for y in walk(z) if y.op == "row")
    decays = [n for n in names if is_decay(setting, n) and len(quantities[n].parameters) == 1]
    return Scope(
        mates,
        tuple(scalars),
        {k: tuple(v) for k, v in diagonals.items()},
        tuple(dict.fromkeys(sizes)),
        tuple(components),
        solves_of((x, *beside), setting, names, indices, known),
        tuple(n for n in decays if quantities[n].dims == ("1", "1")),
        tuple(n for n in decays if quantities[n].dims[1] == "1" != quantities[n].dims[0]),
        ends_of((x, *beside)),
        entries_in(x, setting, known),
        tuple(sorted({name for y in (x, *beside) for name in free_indices(y)})),
        exponents_in(x, setting, beside),
        factors_of(setting, names, indices, known),
        masks_of(setting, names, known),
        pairs_of(x, setting, names, beside),
        {} if fits else {n: unlike(setting, names, n, mates[n]) for n in names},
    )


def unlike(setting: Setting, names: tuple[str, ...], name: str, alike: tuple[str, ...]) -> tuple[str, ...]:
    """Names of another shape, with as many indices."""
    count = len(setting.quantities[name].parameters)
    return tuple(n for n in names if n not in (name, *alike) and len(setting.quantities[n].parameters) == count)


def alike(setting: Setting, names: tuple[str, ...], known: Known) -> dict[str, tuple[str, ...]]:
    """For each name those that could stand in its place: of its shape, and with as many indices; those of its kind first."""
    quantities = setting.quantities

    def shape(name: str) -> tuple[str, str] | None:
        q = quantities[name]
        return known.shapes.get(name) if q.kind == "defined" else q.dims

    found = {}
    for name in names:
        q, own = quantities[name], shape(name)
        mates = [m for m in names if m != name and len(quantities[m].parameters) == len(q.parameters)]
        mates = [m for m in mates if own is None or shape(m) in (own, None)]
        found[name] = tuple(sorted(mates, key=lambda m: (quantities[m].kind == "defined") != (q.kind == "defined")))
    return found


def solves_of(
    there: tuple[Formula, ...],
    setting: Setting,
    names: tuple[str, ...],
    indices: Mapping[int, list[tuple[Formula, ...]]],
    known: Known,
) -> tuple[Formula, ...]:
    """Inverses of matrices that formulas and definitions have, under their names where they have some, those that go with a
    matrix below the diagonal, and their transposes."""
    found: dict[Formula, None] = {}
    free = {name for x in there for name in free_indices(x)}
    for y in (z for x in (*there, *setting.shown) for z in walk(x)):
        if is_solve(y) and free_indices(y) <= free:
            found.setdefault(y)
    for name in names:
        q = setting.quantities[name]
        if q.kind != "defined" or q.body is None:
            continue
        for args in indices.get(len(q.parameters), []):
            if is_solve(q.body):
                found.setdefault(Formula("at", args, (name,)))
                continue
            body = substitute(q.body, {Formula("index", (), (p,)): a for p, a in zip(q.parameters, args)})
            found.update(dict.fromkeys(y for y in walk(body) if is_solve(y)))
    for name in (n for n in known.strict if n in names):
        for args in indices.get(len(setting.quantities[name].parameters), []):
            one, lower = eye(known.shapes[name][0]), Formula("at", args, (name,))
            found.update(dict.fromkeys((inverse(one - lower), inverse(one + lower))))
    return tuple(y for x in list(found)[:SOLVES] for y in (x, x.T))


def entries_in(x: Formula, setting: Setting, known: Known) -> tuple[Formula, ...]:
    """The vectors and matrices of a formula, by whose entries those of a term may have to be multiplied, or divided."""
    found = []
    for y in dict.fromkeys(z for z in walk(x) if z.op == "at"):
        q = setting.quantities[y.attrs[0]]
        if (known.shapes.get(q.name) if q.kind == "defined" else q.dims) not in (None, ("1", "1")):
            found.append(y)
    return tuple(found)


def exponents_in(x: Formula, setting: Setting, beside: tuple[Formula, ...]) -> tuple[Formula, ...]:
    """The powers that formulas and definitions take, and sizes that steps are counted by: a decay that is the same at each step
    may lack one."""
    bodies = [q.body for q in setting.quantities.values() if q.body is not None]
    there = [y.args[1] for z in (x, *beside, *bodies) for y in walk(z) if y.op == "power" and y.args[1].op != "number"]
    free = {name for z in (x, *beside) for name in free_indices(z)}
    sizes = [Formula("size", (), (name,)) for name in ("c", LENGTH) if name in (*setting.sizes, *setting.derived_sizes)]
    fitting = [y for y in there if free_indices(y) <= free]
    return tuple(dict.fromkeys((*sizes, *fitting)))[:ENDS]


def factors_of(
    setting: Setting, names: tuple[str, ...], indices: Mapping[int, list[tuple[Formula, ...]]], known: Known
) -> tuple[Formula, ...]:
    """Vectors and matrices at the indices that formulas use, and their transposes: one may be missing from a product."""
    found = []
    for name in names:
        q = setting.quantities[name]
        shape = known.shapes.get(name) if q.kind == "defined" else q.dims
        if shape not in (None, ("1", "1")):
            found += [Formula("at", args, (name,)) for args in indices.get(len(q.parameters), [])]
    return tuple(y for x in found[:FACTORS] for y in (x, x.T))


def pairs_of(x: Formula, setting: Setting, names: tuple[str, ...], beside: tuple[Formula, ...]) -> tuple[Formula, ...]:
    """Products k(i).T * k(t) of vectors at the index of a sum and at one of the formula: first those that the document shows."""
    sums = {y.attrs[0] for y in walk(x) if y.op == "sum"}
    free = sorted({name for y in (x, *beside) for name in free_indices(y)})
    if not sums or not free:
        return ()
    found: dict[Formula, None] = {}
    for y in (y for z in setting.shown for y in walk(z) if y.op == "product"):
        for a, b in itertools.pairwise(y.args):
            pair = a * b
            if a.op == "transpose" and a.args[0].op == b.op == "at" and free_indices(pair) <= {*sums, *free}:
                found.setdefault(pair)
    vectors = [
        n for n in names if setting.quantities[n].kind != "defined" and len(setting.quantities[n].parameters) == 1
    ]
    vectors = [n for n in vectors if setting.quantities[n].dims[1] == "1" != setting.quantities[n].dims[0]]
    for one, other in itertools.product(vectors, repeat=2):
        if setting.quantities[one].dims == setting.quantities[other].dims and one[0] != "d" != other[0]:
            for i, t in itertools.product(sorted(sums), free):
                at = (Formula("at", (Formula("index", (), (k,)),), (n,)) for n, k in ((one, i), (other, t)))
                a, b = at
                found.setdefault(a.T * b)
    return tuple(list(found)[:PAIRS])


def masks_of(setting: Setting, names: tuple[str, ...], known: Known) -> tuple[Formula, ...]:
    """Square matrices that are defined entry by entry: what a product of scores may have to be multiplied with."""
    found = [n for n in names if n in known.shapes and not setting.quantities[n].parameters]
    square = [n for n in found if known.shapes[n][0] == known.shapes[n][1] != "1"]
    bodies = {n: setting.quantities[n].body for n in square}
    return tuple(Formula("at", (), (n,)) for n, body in bodies.items() if body is not None and body.op == "matrix")


def is_solve(x: Formula) -> bool:
    return x.op == "inverse" and x.args[0].op != "at"


def ends_of(there: tuple[Formula, ...]) -> tuple[Formula, ...]:
    """The indices that formulas use at steps, and the first and the last step."""
    used = [shifted(i, 0) for x in there for y in walk(x) if y.op == "at" and len(y.args) == 1 for i in y.args]
    bare = [i for i in used if any(z.op == "index" for z in walk(i))]
    return (*list(dict.fromkeys(bare))[:ENDS], formula(1), Formula("size", (), (LENGTH,)))


def missing_ranges(scope: Scope, inside: tuple[str, ...]) -> Iterator[tuple[Formula, bool]]:
    """(a product of a decay over a range, whether it is one of entries), between the indices that there are."""
    if not scope.decays and not scope.channels:
        return
    fresh = next(Formula("index", (), (x,)) for x in "jsulmp" if x not in inside and not taken(scope.ends, x))
    spans: dict[tuple[Formula, Formula], None] = {}
    for a, b in itertools.permutations(scope.ends, 2):
        for low, high in itertools.product((shifted(a, 1), a), (b, shifted(b, -1))):
            if not (low.op == high.op == "number"):
                spans.setdefault((low, high), None)
    for low, high in spans:
        for name in (*scope.decays, *scope.channels):
            entries = name in scope.channels
            over = hadamard_over if entries else product_over
            yield over(fresh, low, high, Formula("at", (fresh,), (name,))), entries


def taken(there: tuple[Formula, ...], name: str) -> bool:
    return any(y.op == "index" and y.attrs[0] == name for x in there for y in walk(x))


def indices_of(there: tuple[Formula, ...], setting: Setting) -> dict[int, list[tuple[Formula, ...]]]:
    """The indices that formulas use, by their number; those inside definitions too."""
    found: dict[int, list[tuple[Formula, ...]]] = {0: [()]}
    stack = [y for x in there for y in walk(x) if y.op in ("at", "named")]
    opened: set[str] = set()
    while stack:
        y = stack.pop(0)
        args = tuple(shifted(a, 0) for a in (y.args if y.op == "at" else y.args[1:]))
        group = found.setdefault(len(args), [])
        if args not in group:
            group.append(args)
        q = setting.quantities.get(y.attrs[0]) if y.op == "at" else None
        if q is not None and q.body is not None and q.parameters and q.name not in opened:
            opened.add(q.name)
            inside = substitute(q.body, {Formula("index", (), (p,)): a for p, a in zip(q.parameters, args)})
            stack += [z for z in walk(inside) if z.op == "at" and not any(w.op in BINDERS for w in walk(q.body))]
    return found


def functions_in(there: tuple[Formula, ...], setting: Setting) -> list[Formula]:
    """Scalar functions, such as sigmoid(b(t)), that formulas have, or the recurrence at their step."""
    found = [y for x in there for y in walk(x) if y.op in ("function", "exp")]
    bodies = [q.body for q in setting.quantities.values() if q.body is not None]
    found += [
        y for x in bodies for y in walk(x) if y.op == "sqrt" and not free_indices(y) and y.args[0].op in ("at", "size")
    ]
    if setting.recurrence is not None:
        from .derive import functions_of

        found += functions_of(setting.recurrence)
    return list(dict.fromkeys(found))


def is_decay_rows(setting: Setting, name: str) -> bool:
    """Whether a quantity stacks scalars over the steps, so that its diagonal matrix scales rows."""
    q = setting.quantities[name]
    if q.kind != "defined" or q.parameters or q.body is None or q.body.op != "stack" or q.body.attrs[1] != "n":
        return False
    body = q.body.args[0]
    body = body.args[0] if body.op == "transpose" else body
    inner = setting.quantities.get(body.attrs[0]) if body.op == "at" else None
    return inner is not None and inner.dims == ("1", "1")
