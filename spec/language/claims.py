"""Claims: formulas about a recurrence that somebody derived by hand, to be judged by the machine.

    t, q, S, do, dq = r.quantities("t q S do dq")
    r.claim("dq", dq(t), S(t) * do(t))

`quantities` gives the recurrence's inputs, states and outputs by their names, to be indexed at a step: `S(t - 1)` is
the state before step t, `S(0)` the initial state, `t` runs over 1..n. A name with a d before it is the gradient of
the loss (`do` the incoming one, of an output; `dS` the whole one, of a state), and `dlog_<decay>` the gradient by a
log decay.

A claim states a formula as its author has it. Nothing here says whether it is true: see `codegen/claims`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, NoReturn, Protocol

from chunkform.errors import AttributeError_, NameError_, SpecError, nearest

from .expression import ONE, Dim
from .formula import Formula, formula
from .source import Source, again, caller
from .statements import Equal, Statement

LENGTH = "n"  # the number of steps


class Claimable(Protocol):
    """What claims ask of a recurrence."""

    name: str
    source: str
    setting: Any
    claims: list[Any]
    dim_list: list[Dim]
    states: list[Any]
    variables: list[Any]
    lets: list[Any]
    outputs: list[Any]


# --- quantities -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Quantity:
    """A named quantity of a setting. kind:

    given      sampled at random: `domain` is real, decay (0 < x <= 1), positive, or symmetric
    spec       an input, state, let or output of the recurrence
    gradient   the gradient of the loss by the spec's quantity `source`; `carried`: through later steps only
    log gradient   the same by the natural log of a decay
    defined    `body`, a formula in the `parameters`; with `start`, recursive in the first parameter, upwards or `backwards`

    An ambiguous quantity has several bodies, by the reading that chooses each.
    """

    name: str
    kind: str
    dims: tuple[str, str] = ("1", "1")
    parameters: tuple[str, ...] = ()
    ranges: tuple[tuple[Formula, Formula], ...] = ()
    domain: str = "real"
    source: str = ""
    body: Formula | None = None
    start: tuple[int | Formula, Formula] | None = None
    backwards: bool = False
    alternatives: tuple[tuple[str, Formula], ...] = ()
    between: tuple[Formula, Formula] | None = None
    shown: str = ""

    def __call__(self, *indices: object) -> Formula:
        if len(indices) != len(self.parameters):
            wanted = ", ".join(self.parameters) or "no index"
            raise SpecError(f"{self.name} takes {wanted}; got {len(indices)} indices", caller())
        return Formula("at", tuple(formula(x) for x in indices), (self.name,))

    def __getattr__(self, name: str) -> NoReturn:
        if name in ("prev", "next"):
            text = f"{self.name} is a quantity of formulas here; .{name} is for the state in a step, which r.state gave"
            raise AttributeError_(text, caller())
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def unindexed(self) -> str:
        """What to say where the quantity stands in a formula without its indices."""
        at = ", ".join(self.parameters)
        return f"{self.name} has a value for each {at}: write {self.name}({at}) for it, or another index"

    def _refused(self, *other: object) -> NoReturn:
        raise SpecError(self.unindexed(), caller())

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __matmul__ = __rmatmul__ = _refused
    __truediv__ = __rtruediv__ = __pow__ = __neg__ = _refused
    T = property(_refused)


@dataclass(frozen=True)
class Premises:
    """What claims are meant under, beside what a setting says: inputs with one `value`, equal ones (`same`: the first is the
    second), vectors of norm 1 (`unit`), symmetric matrices, identities, inputs that are the same at every step (`constant`),
    inequalities (`where`: left, relation, right), and numbers that are 0 (`zero`: each with a quantity in which it is linear).
    With `step`, an index, all but constants and inequalities are so at this step of the claim only; an inequality is so
    wherever its indices are those of the claim, and else at every step."""

    value: tuple[tuple[str, Fraction], ...] = ()
    same: tuple[tuple[str, str], ...] = ()
    unit: tuple[str, ...] = ()
    symmetric: tuple[str, ...] = ()
    identity: tuple[str, ...] = ()
    constant: tuple[str, ...] = ()
    where: tuple[tuple[Formula, str, Formula], ...] = ()
    zero: tuple[tuple[Formula, Formula], ...] = ()
    step: str = ""
    text: str = ""


class Setting:
    """The quantities that claims speak of: those of a recurrence, or given and defined ones. `initial` and `final_loss`:
    see `assume`."""

    def __init__(
        self,
        name: str,
        recurrence: Claimable | None = None,
        initial: Mapping[str, object] | None = None,
        final_loss: bool = True,
    ) -> None:
        self.name = name
        self.recurrence: Any = recurrence  # a Recurrence, which imports this module
        self.quantities: dict[str, Quantity] = {}
        self.sizes: list[str] = []
        self.derived_sizes: dict[str, Formula] = {}
        self.fixed_sizes: dict[str, tuple[int, ...]] = {}
        self.index_ranges: dict[str, tuple[Formula, Formula]] = {}
        self.initial: dict[str, Formula] = {}
        self.final_loss = True
        self.below_one: set[str] = set()  # decays that are said to be less than 1
        self.premises = Premises()
        self.shown: list[Formula] = []  # what its document displays: where a repair may take a solve or a product from
        if recurrence is not None:
            self.sizes = [LENGTH, *(x.name for x in recurrence.dim_list)]
        self.assume(initial, final_loss)

    def assume(self, initial: Mapping[str, Any] | None = None, final_loss: bool = True) -> None:
        """What all claims of the setting are meant under: `initial={"S": 0}` gives states their first value, a number, or a
        formula of the state's shape; with `final_loss=False` the loss takes nothing of the last states but through outputs."""
        r = self.recurrence
        states = {s.name: s for s in r.states} if r is not None else {}
        for name, value in (initial or {}).items():
            if name not in states:
                raise SpecError(f"{self.name} has no state {name!r}{nearest(name, states)}", caller())
            if states[name].initial is not None:
                raise SpecError(
                    f"the spec itself says what {name} is at first: leave initial={{{name!r}: ..}} out", caller()
                )
            self.initial[name] = formula(value)
        self.final_loss = self.final_loss and final_loss
        if not final_loss and r is None:
            raise SpecError(f"{self.name} has no recurrence, and so no last state", caller())

    def under(self, premises: Premises, initial: Mapping[str, Formula], final_loss: bool) -> Setting:
        """The setting, with the same quantities, where this is so as well."""
        made = copy.copy(self)
        made.premises, made.initial = premises, {**self.initial, **initial}
        made.final_loss = self.final_loss and final_loss
        return made

    # --- declaring

    def dims(self, names: str, **only: tuple[int, ...]) -> Any:
        """Dimensions, and other sizes such as a number of terms; `only` restricts one to some values."""
        made = []
        for name in names.split():
            self._add_size(name)
            if name in only:
                self.fixed_sizes[name] = only[name]
            made.append(Dim(name))
        return made[0] if len(made) == 1 else tuple(made)

    def indices(self, names: str, low: object = None, high: object = None) -> Any:
        """Indices; `low` and `high` are the values over which a claim that leaves them free is meant."""
        made = [Formula("index", (), (x,)) for x in names.split()]
        if low is not None:
            self.index_ranges.update({x: (formula(low), formula(high)) for x in names.split()})
        return made[0] if len(made) == 1 else tuple(made)

    def chunked(self, chunk: str = "c", chunks: str = "N") -> Any:
        """Let the n steps be `chunks` chunks of `chunk` steps; returns the two sizes."""
        if LENGTH not in self.sizes:
            why = "it is cut into chunks already" if LENGTH in self.derived_sizes else "it has no recurrence"
            raise SpecError(f"{self.name} has no steps to be cut into chunks: {why}", caller())
        for name in (chunk, chunks):
            self._add_size(name)
        c, count = (Formula("size", (), (x,)) for x in (chunk, chunks))
        self.sizes.remove(LENGTH)
        self.derived_sizes[LENGTH] = count * c
        return c, count

    def given(
        self, names: str, *dims: Any, over: Any = None, domain: str = "real", between: Any = None, shown: str = ""
    ) -> Any:
        """Quantities to sample: scalars, vectors over one dim or matrices over two; `over=(t, 1, n)` one for each
        step."""
        for x in dims:
            if not isinstance(x, str | Dim | Formula):
                raise SpecError(
                    f"the size of {names} is a dim, such as the d that r.dims gives, and not {x!r}", caller()
                )
        shape = _shape(dims)
        parameters, ranges = _over(over)
        limits = None if between is None else (formula(between[0]), formula(between[1]))
        return self._declare(
            names, lambda name: Quantity(name, "given", shape, parameters, ranges, domain, between=limits, shown=shown)
        )

    def define(self, name: str, parameters: Iterable[Formula], body: Any, shown: str = "") -> Any:
        """A quantity defined by a formula; without parameters, the formula's name."""
        made = Quantity(name, "defined", parameters=_names(parameters), body=formula(body), shown=shown)
        return self._add(made)

    def recursive(
        self,
        name: str,
        index: Formula | tuple[Formula, ...],
        first: Any,
        start: Any,
        step: Callable[[Any], Any],
        shown: str = "",
        backwards: bool = False,
    ) -> Any:
        """A sequence with the value `start` at `first`, and from then on `step(previous)`; `backwards`, it goes down from
        there: the previous value is that at index + 1. Of several indices it is recursive in the first one, and `step` is
        given the quantity itself, to be indexed: `lambda A: lam(t) * A(t - 1, j)`."""
        several = isinstance(index, tuple) and len(index) > 1
        indices = index if isinstance(index, tuple) else (index,)
        before: Any = Formula("at", (indices[0] + (1 if backwards else -1),), (name,))
        if several:
            before = Quantity(name, "defined", parameters=_names(indices))
        made = Quantity(
            name,
            "defined",
            parameters=_names(indices),
            body=formula(step(before)),
            start=(first if isinstance(first, int) else formula(first), formula(start)),
            backwards=backwards,
            shown=shown,
        )
        return self._add(made)

    def ambiguous(self, name: str, parameters: Iterable[Formula], readings: dict[str, Any], shown: str = "") -> Any:
        """A quantity that the document does not pin down: each reading with its formula."""
        bodies = tuple((label, formula(body)) for label, body in readings.items())
        made = Quantity(
            name, "defined", parameters=_names(parameters), body=bodies[0][1], alternatives=bodies, shown=shown
        )
        return self._add(made)

    def rows(self, name: str, of: Quantity, shown: str = "") -> Any:
        """The matrix whose row t is the vector `of(t)`, t = 1..n: `Q = s.rows("Q", q)`."""
        from .formula import stack

        t = Formula("index", (), ("t",))
        return self.define(name, (), stack(t, LENGTH, of(t).T), shown)

    # --- looking up

    def names(self, text: str) -> Any:
        """Quantities by name: those declared, the recurrence's, their gradients, `t` and other one-letter indices,
        sizes."""
        made = [self.lookup(x) for x in text.replace(",", " ").split()]
        return made[0] if len(made) == 1 else tuple(made)

    def lookup(self, name: str) -> Any:
        if name in self.quantities:
            return _handle(self.quantities[name])
        spec = self._of_spec(name)
        if spec is not None:
            return self._add(spec)
        if name in self.sizes or name in self.derived_sizes:
            return Formula("size", (), (name,))
        if name in "t i j s u".split():
            return Formula("index", (), (name,))
        known = self._known()
        raise NameError_(
            f"{self.name} has no quantity {name!r}{nearest(name, [*known, *(f'd{x}' for x in known)])}; there are t, n, "
            f"{', '.join(known)}, and a d before a name for its gradient, dlog_ before a decay's",
            caller(),
        )

    def _known(self) -> list[str]:
        r = self.recurrence
        if r is None:
            return list(self.quantities)
        own = [name for name, q in self.quantities.items() if q.kind in ("given", "defined")]
        return [
            *own,
            *(x.name for x in r.states),
            *(x.name for x in r.variables),
            *(x.name for x in (*r.lets, *r.outputs)),
        ]

    def _of_spec(self, name: str) -> Quantity | None:
        shape = _spec_quantity(self.recurrence, name)
        if shape is not None:
            return Quantity(name, "spec", shape[0], shape[1], source=name)
        for prefix, kind in (("dlog_", "log gradient"), ("d", "gradient")):
            source = name.removeprefix(prefix)
            shape = _spec_quantity(self.recurrence, source) if source != name else None
            if shape is not None:
                return Quantity(name, kind, shape[0], shape[1], source=source)
        return None

    def carried(self, state: str, name: str) -> Any:
        """The gradient by a state as it is handed to the next step: through later steps only."""
        r = self.recurrence
        states = [s.name for s in r.states] if r is not None else []
        if state not in states:
            raise SpecError(f"{self.name} has no state {state!r} to be carried{nearest(state, states)}", caller())
        shape = _spec_quantity(r, state)
        assert shape is not None
        return self._add(Quantity(name, "gradient", shape[0], shape[1], source=f"{state}.carried"))

    # --- helpers

    def _add_size(self, name: str) -> None:
        if name not in self.sizes:
            self.sizes.append(name)

    def _add(self, quantity: Quantity) -> Any:
        if quantity.name in self.quantities:
            hint = again(caller(), self.name)
            raise NameError_(f"{quantity.name!r} is declared twice in {self.name}{hint}", caller())
        if quantity.kind in ("given", "defined") and self._of_spec(quantity.name) is not None:
            raise NameError_(f"{quantity.name!r} is a quantity of the recurrence {self.name} already", caller())
        self.quantities[quantity.name] = quantity
        return _handle(quantity)

    def _declare(self, names: str, make: Callable[[str], Quantity]) -> Any:
        made = [self._add(make(x)) for x in names.split()]
        return made[0] if len(made) == 1 else tuple(made)


def _handle(quantity: Quantity) -> Any:
    return quantity if quantity.parameters else Formula("at", (), (quantity.name,))


def _names(parameters: Iterable[Formula]) -> tuple[str, ...]:
    return tuple(x.attrs[0] for x in parameters)


def _over(over: Any) -> tuple[tuple[str, ...], tuple[tuple[Formula, Formula], ...]]:
    if over is None:
        return (), ()
    many = (over,) if isinstance(over[0], Formula) else over
    return tuple(i.attrs[0] for i, _, _ in many), tuple((formula(a), formula(b)) for _, a, b in many)


def _spec_quantity(r: Claimable | None, name: str) -> tuple | None:
    """(dims, parameters) of a quantity of the spec."""
    if r is None:
        return None
    stepwise = ("t",)
    for v in r.variables:
        if v.name == name:
            return _shape(v.dims), () if v.kind.endswith(("parameter", "constant")) else stepwise
    for s in r.states:
        if s.name == name:
            return _shape(s.dims), stepwise
    for x in (*r.lets, *r.outputs):
        if x.name == name:
            dims = getattr(x.term, "shape", (ONE, ONE))
            return tuple(str(d) for d in dims), stepwise
    return None


def _shape(dims: tuple) -> tuple[str, str]:
    first, second = (*(str(x) for x in dims), "1", "1")[:2]
    return first, second


# --- claims ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Claim:
    """One formula, as its author has it. `defines` names a quantity whose definition is what the claim displays; its
    statement then says what the quantity is for."""

    id: str
    statement: Statement
    setting: Setting = field(compare=False, repr=False)
    document: str = ""
    section: str = ""
    latex: str = ""
    defines: str = ""
    note: str = ""
    where: Source | None = field(default=None, compare=False)

    @property
    def spec(self) -> str:
        return self.setting.name

    def __repr__(self) -> str:
        sides = getattr(self.statement, "sides", (self.statement,))
        return f"<Claim {self.id}: {' = '.join(map(str, sides))}>"


@dataclass
class Document:
    """A text whose formulas are claimed, in its order. `key` starts every id."""

    title: str
    key: str
    claims: list[Claim] = field(default_factory=list)

    def section(self, name: str, setting: Setting) -> Callable[..., Claim]:
        """The function that adds claims of one section: claim(id, latex, side, side, ...) or claim(id, latex,
        statement)."""

        def claim(id: str, latex: str, *what: Any, over: Any = (), defines: str = "", note: str = "") -> Claim:
            made = Claim(
                f"{self.key}.{id}",
                statement_of(what, over),
                setting,
                self.title,
                name,
                latex,
                defines,
                note,
                caller(),
            )
            self.claims.append(made)
            return made

        return claim


def statement_of(what: tuple, over: object = ()) -> Statement:
    ranges = tuple((i, *r) for i, r in zip(*_over(over), strict=True)) if over else ()
    if len(what) == 1 and isinstance(what[0], Statement):
        return replace(what[0], over=what[0].over or ranges)
    if len(what) < 2:
        raise SpecError(
            "a claim takes the two sides of an equation, as in r.claim('dq', dq(t), S(t) * do(t))", caller()
        )
    return Equal(tuple(formula(x) for x in what), over=ranges)


def setting_of(r: Claimable) -> Setting:
    """The setting of a recurrence's own claims."""
    if r.setting is None:
        r.setting = Setting(r.name, r)
    return r.setting


def add_claim(
    r: Claimable, name: str, *what: object, over: object = (), latex: str = "", section: str = "", note: str = ""
) -> Claim:
    """See `Recurrence.claim`."""
    if not isinstance(name, str) or not name.strip():
        raise NameError_(f"the name of a claim must be a string that says something, got {name!r}", caller())
    if any(c.id == name for c in r.claims):
        raise NameError_(f"the claim {name!r} is stated twice in {r.name}{again(caller(), r.name)}", caller())
    setting = setting_of(r)
    made = Claim(name, statement_of(what, over), setting, r.source, section, latex, "", note, caller())
    r.claims.append(made)
    return made
