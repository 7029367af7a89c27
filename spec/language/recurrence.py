"""`Recurrence`: a recurrence declared as equations about one step.

r = Recurrence("lightning_attention")
d, e = r.dims("d e")
q, k = r.inputs("q k", d)
v = r.inputs("v", e)
lam = r.decay("lam")
S = r.state("S", d, e)
r.update(S, lam * S.prev + k * v.T)
r.output("o", S.next.T * q)
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import sympy

from chunkform.errors import CausalityError, DimensionError, NameError_, SpecError

from .claiming import Claiming
from .complex_parts import complex_of, is_complex, parts
from .declaration import Declaration, Declared
from .domain import Domain, check_begins, check_default, domain_of
from .expression import ONE, Atom, Contraction, Dim, Matrix, Term, ones, scalar_of, shape_text, total
from .foreign import got, together
from .names import FUNCTION_NAMES, quantity_name, split_names
from .source import Source, again, caller, wrote
from .states import ComplexState, Owner, State, symbol_of

RESERVED = frozenset(
    "initial_state output_final_state final_state cu_seqlens context_parallel recompute precision state_dtype backend "
    "deterministic inplace out self prev next T op OP state chunk torch triton".split()
)
PARTS = ("re", "im")  # what the parts of a complex quantity are called, behind its name
LAYOUT = frozenset("B T H".split())  # what the axes of every op are called


PER_HEAD = ("parameter", "decay parameter")  # kinds of one value a head
DECAYS = ("decay", "decay parameter")  # kinds whose values are given by their logarithms


def argument_name(name: str, is_decay: bool) -> str:
    return f"log_{name}" if is_decay else name


@dataclass(frozen=True)
class Variable:
    """A declared quantity. kind: input | decay | parameter | constant. A decay is handed to the op as its natural log."""

    name: str
    kind: str
    dims: tuple[Dim, ...]
    where: Source
    default: float | None = None
    domain: Domain | None = None

    @property
    def is_decay(self) -> bool:
        return self.kind in DECAYS

    @property
    def is_timeless(self) -> bool:
        """The same at every step."""
        return self.kind in (*PER_HEAD, "constant")

    @property
    def argument(self) -> str:
        """What the op's argument is called: decays are given by their logarithms."""
        return argument_name(self.name, self.is_decay)


@dataclass(frozen=True)
class Equation:
    """`name = term`, as written at `where`; `order` grows from one equation to the next that is written, over all cells of a
    notebook."""

    name: str
    term: Term
    where: Source
    order: int = field(default_factory=itertools.count().__next__, compare=False, repr=False)


class Recurrence(Claiming, Declaration):
    """One step of a recurrence, declared symbolically. See the module's docstring; the documentation has the whole language."""

    noun = "recurrence"
    wide: frozenset[str] = frozenset()  # outputs that are float32 whatever the inputs are

    def __init__(self, name: str, doc: str = "", source: str = "") -> None:
        super().__init__(name, doc, source)
        self.dim_list: list[Dim] = []
        self.variables: list[Variable] = []
        self.states: list[State] = Declared("state")
        self.lets: list[Equation] = Declared("let")
        self.updates: list[Equation] = Declared("update")
        self.outputs: list[Equation] = Declared("output")
        self.setting: Any = None
        self.owner = Owner(self.name, self.where)

    # --- declaring --------------------------------------------------------------------------------------------------

    def dims(self, names: str) -> Any:
        """Named dimensions: `d, e = r.dims("d e")`."""
        made = []
        for name in split_names(names, "dims"):
            name = self._new(name, dim=True)
            made.append(Dim(name))
            self.dim_list.append(made[-1])
        return made[0] if len(made) == 1 else tuple(made)

    def inputs(
        self, names: str, *dims: Dim, domain: object = None, sign: str | None = None, complex: bool = False
    ) -> Any:
        """Quantities given at each step: scalars, vectors over one dim, or matrices over two.

        `complex`: each is given as two, <name>_re and <name>_im.

        `domain=(0, 1)`: what they are given lies between these two, None for no bound. `sign="positive"` or "negative" is
        short for (0, None) and (None, 0). It is for the compiler to know, and isn't checked in calls.
        """
        return self._declare(names, "input", dims, domain=domain_of(domain, sign), complex=complex)

    def decay(self, names: str, *dim: Dim) -> Any:
        """A decay in (0, 1], given to the op as its natural logarithm `log_<name>`: a scalar, or a vector over one dim."""
        return self._declare(names, "decay", dim)

    def parameters(
        self, names: str, *dims: Dim, domain: object = None, sign: str | None = None, complex: bool = False
    ) -> Any:
        """Quantities given once per head, the same at each step. `domain`, `sign` and `complex` as for inputs."""
        return self._declare(names, "parameter", dims, domain=domain_of(domain, sign), complex=complex)

    parameter = parameters

    def head_decay(self, names: str, *dim: Dim) -> Any:
        """A decay that is constant in time, given per head as its natural logarithm `log_<name>`."""
        return self._declare(names, "decay parameter", dim)

    def size(self, dim: Dim) -> sympy.Expr:
        """The size of a dim, as a number."""
        if dim not in self.dim_list:
            raise DimensionError(f"{dim!r} is not a dim of {self.name}", caller())
        return total(ones(dim))

    def constant(
        self, name: str, default: float | None = None, *, domain: object = None, sign: str | None = None
    ) -> sympy.Expr:
        """A number given to the op as a keyword, with an optional default. `domain` and `sign` as for inputs, but checked in
        every call."""
        number = None if default is None else scalar_of(default)
        if default is not None and not (
            number is not None and number.is_number and number.is_finite and number.is_real
        ):
            raise SpecError(f"the default of constant {name} must be a finite number, got {default!r}", caller())
        within = domain_of(domain, sign)
        if number is not None and within is not None:
            check_default(name, within, number)
        return self._declare(name, "constant", (), default, within)

    def state(
        self,
        name: str,
        *dims: Dim,
        initial: Term | float | None = None,
        domain: object = None,
        sign: str | None = None,
        complex: bool = False,
    ) -> Any:
        """A state over up to two dims. `initial` (default 0) is used where the op is given no initial state. `complex`: it is two
        real ones, <name>_re and <name>_im, which one update sets.

        `domain` and `sign` as for inputs, of its entries before and after each step, whatever the inputs are. The bounds are
        among its values.
        """
        if complex:
            return self._complex_state(name, dims, initial, domain_of(domain, sign))
        name = self._new(name)
        self._check_dims(dims, name)
        within = domain_of(domain, sign)
        start: Any = None
        if initial is not None:
            start = initial if isinstance(initial, Matrix) else scalar_of(initial)
            if start is None:
                raise SpecError(f"the initial value of {name} must be a number or a term, got {initial!r}", caller())
            for s in atoms(start):
                if kind_of(s) not in ("constant", "parameter", None):
                    raise CausalityError(
                        f"the initial value of {name} reads {name_of(s)}: only constants and parameters may stand here",
                        caller(),
                    )
            self._check_term(start, f"the initial value of {name}")
            if any(n.is_finite is False for n in numbers_of(start)):
                raise SpecError(
                    f"the initial value of {name} is {start}, which isn't finite: give a number that is far below, or above, "
                    "what it is compared with, such as -1e4",
                    caller(),
                )
            self._check_shape(start, dims, f"the initial value of {name}", zero_ok=True)
        if within is not None:
            check_begins(name, within, sympy.Integer(0) if start is None else start)
        made = State(name, dims, caller(), start, self.owner, within)
        self.states.append(made)
        return made

    def _complex_state(self, name: str, dims: tuple[Dim, ...], initial: object, within: Domain | None) -> ComplexState:
        name = self._new(name)
        if within is not None:
            raise SpecError(f"the complex state {name} has no order: declare it without domain and sign", caller())
        number = None if initial is None else initial if isinstance(initial, Matrix) else scalar_of(initial)
        if initial is not None and number is None:
            raise SpecError(f"the initial value of {name} must be a number or a term, got {got(initial)}", caller())
        first = (None, None) if number is None else parts(number)
        re, im = (self.state(f"{name}_{x}", *dims, initial=y) for x, y in zip(PARTS, first, strict=True))
        return ComplexState(re, im, name)

    def let(self, name: str, term: Term) -> Any:
        """An auxiliary quantity of the step, named so that printed derivations use the name."""
        name = self._new(name)
        if (both := self._parts(term)) is not None:
            return complex_of(*(self.let(f"{name}_{x}", y) if y != 0 else y for x, y in zip(PARTS, both, strict=True)))
        value = self._term(term, f"{name}")
        self._check_term(value, name)
        self.lets.append(Equation(name, value, caller()))
        return self._let(name)

    def _let(self, name: str) -> Any:
        """The symbol of an auxiliary quantity."""
        value = next(x.term for x in self.lets if x.name == name)
        if isinstance(value, Matrix) and value.rows is ONE:
            return Matrix("symbol", (name, "let"), value.rows, value.cols, owner=self.owner)
        return symbol_of(name, "let", dims_of(value), self.owner)

    def update(self, state: State, term: Any) -> None:
        """`state.next = term`; the term may read previous states, and next states that were updated above."""
        if isinstance(state, ComplexState):
            both = self._parts(term) or (self._term(term, f"the update of {state}"), sympy.Integer(0))
            for one, part in zip((state.real, state.imag), both, strict=True):
                self.update(one, part)
            return
        if not isinstance(state, State) or state not in self.states:
            known = ", ".join(x.name for x in self.states) or "none declared"
            raise SpecError(
                f"update takes a state of {self.name} ({known}) and its next value, got {state!r}: write "
                f"r.update({self.states[0].name if self.states else 'S'}, ...)",
                caller(),
            )
        for earlier in self.updates:
            if earlier.name == state.name:
                hint = again(caller(), self.name)
                raise NameError_(f"the state {state.name} is updated twice, first at {earlier.where}{hint}", caller())
        value = self._term(term, f"the update of {state.name}")
        self._check_term(value, f"the update of {state.name}", updating=state.name)
        self._check_shape(value, state.dims, f"the update of {state.name}", zero_ok=True)
        self.updates.append(Equation(state.name, value, caller()))

    def output(self, name: str, term: Any) -> None:
        """An output of the op, one value a step."""
        value = self._term(term, f"the output {name}")
        name = quantity_name(name)
        its_own_let = any(x.name == name for x in self.lets) and value == self._let(name)
        if not its_own_let or any(x.name == name for x in self.outputs):
            self._new(name)
        self._check_term(value, f"the output {name}")
        if all(kind_of(s) in ("constant", "parameter", "decay parameter") for s in atoms(value)):
            raise SpecError(f"the output {name} is {value} at each step: it reads no input and no state", caller())
        self.outputs.append(Equation(name, value, caller()))

    # --- reading ----------------------------------------------------------------------------------------------------

    def validate(self) -> Recurrence:
        """Check what only the whole spec can show; returns self."""
        if not self.states:
            raise SpecError(f"{self.name} has no state: declare one with r.state(...)", self.where)
        for state in self.states:
            if not any(u.name == state.name for u in self.updates):
                raise SpecError(
                    f"the state {state.name} is never updated: write r.update({state.name}, ...)", state.where
                )
        self._check_whole()
        return self

    def _check_whole(self) -> None:
        """There are outputs, something is given, and the size of each dim can be known."""
        if not self.outputs:
            raise SpecError(f"{self.name} has no output: write r.output(...)", self.where)
        if not any(v.kind in ("input", "decay") for v in self.variables):
            raise SpecError(
                f"{self.name} is given nothing at its steps: declare an input with r.inputs(...)", self.where
            )
        for dim in self.dim_list:
            if not any(dim in v.dims for v in self.variables):
                first = next((s for s in self.states if dim in s.dims), None)
                raise DimensionError(
                    f"no input or parameter has the dim {dim}, so its size can't be known: declare one over it, as with "
                    f'w = r.parameter("w", {dim}) for a weight of each of its channels, and write with it; or use another dim '
                    "here",
                    first.where if first is not None else self.where,
                )

    def equation(self, name: str) -> Equation:
        return next(x for x in (*self.lets, *self.updates, *self.outputs) if x.name == name)

    # --- checks -----------------------------------------------------------------------------------------------------

    def _names(self) -> dict[str, str]:
        """Every name in use, with where it was declared."""
        declared: tuple[Any, ...] = (*self.variables, *self.states, *self.lets, *self.outputs)
        return {x.name: f", first as a dim of {self.name}" for x in self.dim_list} | {
            x.name: f", first at {x.where}" for x in reversed(declared)
        }

    def _moments(self) -> list[str]:
        """The names of states before and after a step."""
        return [f"{x.name}.{when}" for x in self.states for when in ("prev", "next")]

    def _new(self, given: Any, dim: bool = False) -> str:
        """A name that isn't used so far, as Python spells it."""
        name = quantity_name(given)
        if name in RESERVED or name in FUNCTION_NAMES:
            raise NameError_(f"the name {name!r} is reserved: choose another", caller())
        known = self._names()
        if name in known:
            told = "" if name == given else f" ({given!r} is {name!r} to Python)"
            hint = again(caller(), self.name)
            raise NameError_(f"the name {name!r} is used twice in {self.name}{known[name]}{told}{hint}", caller())
        if dim:
            if name in LAYOUT:
                raise NameError_(f"{name!r} is an axis of every op, and can't be a dim: choose another", caller())
            return name
        values = known.keys() - {x.name for x in self.dim_list}
        for prefix, what in (("d", "the gradient"), ("log_", "the logarithm")):
            one, other = name.removeprefix(prefix), prefix + name
            taken = (one, name) if one != name and one in values else (name, other) if other in values else None
            if taken is not None:
                raise NameError_(
                    f"the names {taken[0]!r} and {taken[1]!r} can't both be used, for {taken[1]} is {what} of {taken[0]}: "
                    "choose another",
                    caller(),
                )
        return name

    def _parts(self, term: object) -> tuple[Term, Term] | None:
        """The real and the imaginary part of a complex term; None for any other."""
        value = term if isinstance(term, Matrix) else scalar_of(term)
        return parts(value) if value is not None and is_complex(value) else None

    def _declare(
        self,
        names: str,
        kind: str,
        dims: tuple,
        default: float | None = None,
        domain: Domain | None = None,
        complex: bool = False,
    ) -> Any:
        made = []
        for name in split_names(names, kind):
            name = self._new(name)
            if complex:
                if domain is not None:
                    raise SpecError(
                        f"the complex {kind} {name} has no order: declare it without domain and sign", caller()
                    )
                made.append(complex_of(*(self._declare(f"{name}_{x}", kind, dims) for x in PARTS)))
                continue
            self._check_dims(dims, name, decay=kind.startswith("decay"))
            self.variables.append(Variable(name, kind, dims, caller(), default, domain))
            made.append(symbol_of(name, kind, dims, self.owner))
        return made[0] if len(made) == 1 else tuple(made)

    def _check_dims(self, dims: tuple, name: str, decay: bool = False) -> None:
        most = 1 if decay else 2
        if len(dims) > most:
            hint = ": for a decay over both, declare two and write `diag(a) * S.prev * diag(b)`" if decay else ""
            raise DimensionError(f"{name} has {len(dims)} dims; at most {most} possible{hint}", caller())
        for dim in dims:
            if not isinstance(dim, Dim) or dim not in self.dim_list:
                known = ", ".join(x.name for x in self.dim_list) or "none declared"
                raise DimensionError(
                    f"the dims of {name} must be dims of {self.name} ({known}), got {dim!r}{together(dim)}", caller()
                )

    def _term(self, term: Any, what: str) -> Term:
        value = term if isinstance(term, Matrix) else scalar_of(term)
        if value is None:
            raise SpecError(f"{what} must be a term of the spec, got {got(term)}", caller())
        if is_complex(value):
            raise SpecError(
                f"{what} must be real, got the complex {value}: write real(..) or imag(..), and declare a complex state by "
                'r.state("h", d, complex=True)',
                caller(),
            )
        if wrote(2):
            for name, owner in owners(value):
                if owner is not self.owner and name in self._names() | dict.fromkeys(self._moments()):
                    raise NameError_(
                        f"{what} uses the {name} of another recurrence, {owner.name} at {owner.where}: declare one in "
                        f"{self.name}, and write with that",
                        caller(),
                    )
        return value

    def _check_term(self, term: Term, what: str, updating: str | None = None) -> None:
        known = {v.name: (v.kind, v.dims) for v in self.variables} | {
            x.name: ("let", dims_of(x.term)) for x in self.lets
        }
        for m in matrices(term):
            if m.op in ("half_turn", "frequencies"):
                raise SpecError(
                    f"{what} uses {'rotate' if m.op == 'half_turn' else 'frequencies'}, which is for the queries and keys of an "
                    "Attention: in a recurrence give both halves as vectors of their own, and write each with cos and sin",
                    caller(),
                )
            for dim in m.shape:
                if dim not in (*self.dim_list, ONE):
                    known_dims = ", ".join(x.name for x in self.dim_list)
                    raise DimensionError(
                        f"{what} uses {m}, but {dim} is not a dim of {self.name} ({known_dims})", caller()
                    )
        for s in atoms(term):
            name, kind = name_of(s), kind_of(s)
            if kind is None:
                raise NameError_(
                    f"{what} uses the unknown symbol {name}: declare it with r.inputs, r.decay, ...", caller()
                )
            if kind == "state":
                base, _, which = name.partition(".")
                if base not in {x.name for x in self.states}:
                    raise NameError_(f"{what} reads {name}, which is not a state of {self.name}", caller())
                if which == "next" and (base == updating or not any(u.name == base for u in self.updates)):
                    raise CausalityError(
                        f"{what} reads {name} before it is known; write {base}.prev, or update {base} first", caller()
                    )
            elif name not in known:
                raise NameError_(
                    f"{what} uses {name}, which is not declared in {self.name}: declare it with r.inputs, r.decay, ...",
                    caller(),
                )
            elif (kind, dims_of(s)) != known[name]:
                raise NameError_(
                    f"{what} uses the {name} of another recurrence, {_said(kind, dims_of(s))}, which is "
                    f"{_said(*known[name])} in {self.name}: write with that",
                    caller(),
                )

    def _check_shape(self, term: Term, dims: tuple[Dim, ...], what: str, zero_ok: bool = False) -> None:
        if not isinstance(term, Matrix):
            if len(dims) == 0 or (zero_ok and term == 0):
                return
            hint = f": for the same number in each entry write `{term} * ones({', '.join(map(str, dims))})`" * zero_ok
            raise DimensionError(f"{what} is a scalar, expected {_shape_of(dims)}{hint}", caller())
        expected = (*dims, ONE, ONE)[:2]
        if term.shape != expected:
            raise DimensionError(f"{what} has the shape {shape_text(term)}, expected {_shape_of(dims)}", caller())


def atoms(term: Term) -> Iterator[Any]:
    """The named quantities in a term: `symbol` matrices and SymPy symbols."""
    return (x for x in _parts(term) if not isinstance(x, Matrix) or x.op == "symbol")


def matrices(term: Term) -> Iterator[Matrix]:
    """The matrices and vectors that a term is made of, the smallest last."""
    return (x for x in _parts(term) if isinstance(x, Matrix))


def _parts(term: Term) -> Iterator[Any]:
    """Every matrix in a term, and every SymPy symbol."""
    seen: set[Any] = set()
    stack: list[Any] = [term]
    while stack:
        x = stack.pop()
        if x in seen:
            continue
        seen.add(x)
        if isinstance(x, Matrix):
            yield x
            if x.op == "symbol":
                continue
            if x.op == "map":
                stack.extend(x.args[1:])
                slots = {f"x{i}_" for i in range(len(x.args) - 1)}
                stack.extend(s for s in x.args[0].free_symbols if s.name not in slots)
            else:
                stack.extend(a for a in x.args if isinstance(a, Matrix | sympy.Basic))
        elif isinstance(x, Contraction):
            stack.append(x.matrix)
        elif isinstance(x, sympy.Symbol):
            yield x
        elif isinstance(x, sympy.Basic):
            stack.extend(x.free_symbols)


def owners(term: Term) -> Iterator[tuple[str, Owner]]:
    """The named matrices and vectors, with what declares each. Of scalars it isn't known: SymPy keeps expressions that it has
    made, and puts equal quantities of an earlier recurrence in their place."""
    stack: list[Any] = [term]
    while stack:
        x = stack.pop()
        if isinstance(x, Matrix):
            stack.extend(x.args if x.op != "symbol" else ())
            if isinstance(x.owner, Owner):
                yield name_of(x), x.owner


def numbers_of(term: Term) -> Iterator[sympy.Expr]:
    """The numbers that a term is made of."""
    stack: list[Any] = [term]
    while stack:
        x = stack.pop()
        if isinstance(x, Matrix):
            stack.extend(x.args)
        elif isinstance(x, sympy.Basic):
            yield from (y for y in sympy.preorder_traversal(x) if y.is_Number or y in (sympy.oo, -sympy.oo, sympy.nan))


def kind_of(s: Any) -> str | None:
    if isinstance(s, Matrix):
        return s.args[1]
    return s.kind if isinstance(s, Atom) else None


def name_of(s: Any) -> str:
    return s.args[0] if isinstance(s, Matrix) else s.name


def dims_of(term: Term) -> tuple[Dim, ...]:
    if not isinstance(term, Matrix):
        return ()
    return tuple(x for x in term.shape if x is not ONE)


def _said(kind: str, dims: tuple[Dim, ...]) -> str:
    """What a quantity is, in words."""
    over = f" over {' x '.join(map(str, dims))}" if dims else ", a scalar"
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}{over}"


def _shape_of(dims: tuple[Dim, ...]) -> str:
    return " x ".join(str(x) for x in (*dims, ONE, ONE)[:2])
