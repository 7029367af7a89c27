"""A step of several corrections, one after the other, as several steps of one correction each.

    S_t = F_m(..F_2(F_1(S_{t-1}))) ,   F_i(S) = D_i * S + l_i (v_i - (D_i * S)^T k_i)^T

Kernels for one correction a step are smaller: a chunk of m writes that depend on each other holds m matrices over its steps for
each read, and its sweeps spill. So kernels sweep over m n `substeps`, whose streams (k_i, v_i, D_i, ..) are made of each step for
itself, and outputs are those of each step's last. The update tells by its structure: every way from it to the previous state
leads through the inner F.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import permutations

from ...ir.expr import (
    ONE,
    ZERO,
    Node,
    add,
    dim_of,
    expand,
    factors_of,
    leaf,
    mul,
    plain_name,
    power,
    rename,
    terms_of,
    total,
    walk,
)
from ...ir.expr import replace as replaced
from ...ir.step_program import StateVar, StepProgram, Var
from ..step.adjoint import adjoint, gradient_name
from .form import NormalForm, NotAffine, StateForm, affine_terms
from .matrix_parameters import differs
from .normalize import normalize

HERE = "the state within a step"


@dataclass(frozen=True)
class Substeps:
    """`step` is one of `count` substeps. `streams` makes its variables of a step's: it has no states, and an output for each
    variable of each substep, named by `stream_name`. `outputs` names, for each output of a step, the one of its last substep that
    it is."""

    count: int
    step: StepProgram
    streams: StepProgram
    outputs: dict[str, str]

    @cached_property
    def gradients(self) -> dict[str, Node]:
        """A step's gradients, by name, of those of its streams: cotangents d and the stream's name, of a decay's logarithm."""
        found = adjoint(self.streams).program.outputs
        logs: dict[Node, Node] = {}
        for v in (v for v in self.step.variables if v.is_decay):
            for n in range(self.count):
                name = stream_name(v.name, n)
                known = leaf("cotangent", f"d{name}", v.axes)
                decay = bare(self.streams.outputs[name])
                logs[known] = mul(known, *(power(x, -1) for x in factors_of(decay)))  # which cancels its derivatives
        return {n: expand(add(*(replaced(t, logs) for t in terms_of(bare(x)))), x.axes) for n, x in found.items()}


def bare(x: Node) -> Node:
    """x without what repeats it along axes."""
    return x.args[0] if x.op == "expand" else x


def stream_name(variable: str, n: int) -> str:
    """What `Substeps.streams` calls a variable of the substep n, from 0 on."""
    return f"{variable}_{n}"


@dataclass(frozen=True)
class _Correction:
    """decay * S + left (base - (S or, if `decayed`, decay * S)^T key)^T"""

    decay: Node
    left: Node
    base: Node
    key: Node
    decayed: bool


def substeps(step: StepProgram, form: NormalForm) -> Substeps | None:
    """The substeps of a step program with this read-write form; None where it isn't several corrections of one state."""
    if len(step.states) != 1 or len(form.write_leaves()) < 2:
        return None
    (state,), ((whole,),) = step.states, form.groups
    if state.initial is not None or whole.row is None or whole.col is None or whole.col in whole.decay_axes:
        return None
    if not set(step.dims) <= {dim_of(a) for v in step.variables for a in v.axes}:
        return None
    queries = _queries(step, whole)
    if queries is None:
        return None
    corrections = _in_turn(step.updates[state.name], step, whole)
    if corrections is None or len(corrections) < 2:
        return None
    decayed = all(x.decayed or x.decay is ONE for x in corrections)
    if not decayed:
        corrections = [_plain(x) for x in corrections]
    found = _as_program(step, state, whole, corrections, queries, decayed)
    made = [*found.streams.outputs.values(), *found.gradients.values()]
    parameters = [gradient_name(v) for v in step.variables if v.kind != "constant" and not v.per_step]
    there = all(bare(found.gradients[n]) is not ZERO for n in parameters)
    return found if there and all(map(_of_each_step, made)) else None


# --- the updates one after the other ----------------------------------------------------------------------------------


def _in_turn(update: Node, step: StepProgram, whole: StateForm) -> list[_Correction] | None:
    """An update as corrections that follow each other; None where it is anything else."""
    (state,) = step.states
    for x in sorted(_inner(update, state), key=lambda x: (-len(list(walk(x))), x)):
        rest = _over(update, x, state)
        last = None if rest is None else _correction(step, rest, whole)
        before = None if last is None else _in_turn(x, step, whole)
        if last is not None and before is not None:
            return [*before, last]
    alone = _correction(step, update, whole)
    return None if alone is None else [alone]


def _inner(update: Node, state: StateVar) -> set[Node]:
    """Sums below an update that may be values of the state within the step, over its axes."""
    found = set()
    for x in walk(update):
        if x is not update and x.op == "add" and len(x.axes) == 2 and _has(x, state.name):
            found |= {y for y in _turned(x, state.axes) if any(_has(t, state.name) for t in terms_of(y))}
    return found


def _turned(x: Node, axes: tuple[str, ...]) -> Iterator[Node]:
    """x over these axes, in each way that keeps dims."""
    for own in permutations(x.axes):
        if [dim_of(a) for a in own] == [dim_of(a) for a in axes]:
            yield rename(x, dict(zip(own, axes, strict=True)))


def _over(update: Node, inner: Node, state: StateVar) -> Node | None:
    """The update as a function of a value of the state within the step; None where it reads the previous one elsewhere."""
    here = leaf("state", HERE, state.axes)
    terms, own_terms = terms_of(update), terms_of(inner)
    if set(own_terms) <= set(terms):
        update = add(here, *(x for x in terms if x not in own_terms))
    rest = _of(update, inner, here, state)
    if _has(rest, state.name) or rest is here:
        return None
    return replaced(rest, {x: leaf("state", state.name, x.attrs[2]) for x in _leaves(rest)})


def _of(x: Node, inner: Node, here: Node, state: StateVar) -> Node:
    """x with a leaf in the place of a value of the state, whatever its axes are called."""
    names: dict[Node, Node] = {}
    for y in walk(x):
        if y.op == inner.op and len(y.axes) == len(state.axes):
            for own in permutations(y.axes):
                same = [dim_of(a) for a in own] == [dim_of(a) for a in state.axes]
                if same and rename(y, dict(zip(own, state.axes, strict=True))) is inner:
                    names[y] = rename(here, dict(zip(state.axes, own, strict=True)))
    return replaced(x, names)


def _has(x: Node, state: str) -> bool:
    return any(y.op == "leaf" and y.attrs[:2] == ("state", state) for y in walk(x))


def _correction(step: StepProgram, update: Node, whole: StateForm) -> _Correction | None:
    """An update as one correction; None where it is anything else."""
    try:
        form = normalize(replace(step, updates={whole.name: update}, outputs={}, output_axes={}))
    except NotAffine:
        return None
    ((s,),) = form.groups
    if s.coupling or len(s.writes) != 1 or (s.row, s.col) != (whole.row, whole.col):
        return None
    (write,) = s.writes
    fed = [(c, y) for _, c, y in affine_terms(write.right, lambda y: y in form.reads) if y is not None]
    if write.leaf is None or len(fed) != 1:
        return None
    coefficient, read = fed[0]
    known = form.reads[read]
    if coefficient.axes or known.side != "row" or known.snapshot != "prev":
        return None
    base = add(*(t for t, _, y in affine_terms(write.right, lambda y: y in form.reads) if y is None))
    decay = ONE if s.decay is None else s.decay
    left = write.left
    if not write.late and decay is not ONE:
        if s.col in decay.axes:
            return None
        left = mul(decay, left)
    key = mul(-1, coefficient, known.vector)
    rest = _without(factors_of(key), factors_of(decay)) if decay is not ONE else None
    if rest is None:
        return _Correction(decay, left, base, key, decay is ONE)
    return _Correction(decay, left, base, mul(*rest), True)


def _plain(x: _Correction) -> _Correction:
    """The same, of the state before its decay."""
    return replace(x, key=mul(x.decay, x.key), decayed=False) if x.decayed else x


def _without(factors: Iterable[Node], some: Iterable[Node]) -> list[Node] | None:
    """Factors without some of them; None where these aren't all among them."""
    rest = list(factors)
    for x in some:
        if x not in rest:
            return None
        rest.remove(x)
    return rest


def _queries(step: StepProgram, whole: StateForm) -> dict[str, Node] | None:
    """What the state after a step is read with for each output; None where an output is anything else."""
    (state,) = step.states
    update = step.updates[state.name]
    sums = [x for x in factors_of(update) if x.op == "add"]
    if len(sums) != 1:
        return None
    scales = [power(x, -1) for x in factors_of(update) if x is not sums[0]]
    after = mul(
        leaf("state", state.name, state.axes), *scales
    )  # the sum in the state after the step, whose factors may be zero
    found = {n: _of(x, sums[0], leaf("state", HERE, state.axes), state) for n, x in step.outputs.items()}
    if any(_has(x, state.name) for x in found.values()):
        return None
    here = {
        y: rename(after, dict(zip(state.axes, y.attrs[2], strict=True))) for x in found.values() for y in _leaves(x)
    }
    try:
        form = normalize(
            replace(
                step,
                updates={state.name: leaf("state", state.name, state.axes)},
                outputs={n: replaced(x, here) for n, x in found.items()},
            )
        )
    except NotAffine:
        return None
    queries = {}
    for name, value in form.values.items():
        reads = [x for x in factors_of(value) if x in form.reads]
        scale = [x for x in factors_of(value) if x not in form.reads]
        if len(reads) != 1 or any(x.axes for x in scale) or form.reads[reads[0]].vector.axes != (whole.row,):
            return None
        if any(y in form.reads for x in scale for y in walk(x)):
            return None
        queries[name] = mul(*scale, form.reads[reads[0]].vector)
        if set(factors_of(queries[name])) & set(scales):
            return None
    return queries


def _of_each_step(x: Node) -> bool:
    """Is a value made of a step's vectors and numbers alone, or a constant? Kernels of rows make no other."""
    given = [y for y in walk(x) if y.op == "leaf" and y.attrs[0] != "constant"]
    return all(len(y.axes) < 2 for y in walk(x)) and (not given or differs(x))


def _leaves(x: Node) -> list[Node]:
    return [y for y in walk(x) if y.op == "leaf" and y.attrs[:2] == ("state", HERE)]


# --- one substep ------------------------------------------------------------------------------------------------------


def _as_program(
    step: StepProgram,
    state: StateVar,
    s: StateForm,
    corrections: list[_Correction],
    queries: dict[str, Node],
    decayed: bool,
) -> Substeps:
    assert s.row is not None and s.col is not None
    row, col = dim_of(s.row), dim_of(s.col)
    scales = [_ratio(x.left, x.key) for x in corrections]
    tied = all(x is not None for x in scales)
    decays = {a for x in corrections for a in x.decay.axes}
    over = tuple(a for a in state.axes if a in decays)
    streams: dict[Var, list[Node]] = {}

    def stream(name: str, nodes: list[Node], *axes: str, kind: str = "input") -> Node:
        """The leaf, over the state's axes, of a variable that has these values in the substeps."""
        if name == plain_name(state.name):  # gradients that are wanted are told by these names
            name += "_"
        dims = tuple(dim_of(a) for a in axes)
        found = [rename(x, dict(zip(axes, dims, strict=True))) for x in nodes]
        streams[Var(name, kind, dims)] = [expand(x, dims) for x in found]
        return leaf(kind, name, axes)

    key = stream("k", [x.key for x in corrections], s.row)
    base = stream("v", [x.base for x in corrections], s.col)
    if not tied:
        left = stream("l", [x.left for x in corrections], s.row)
    elif all(x is ONE for x in scales):
        left = key
    else:
        left = mul(stream("b", [x for x in scales if x is not None]), key)
    before: Node = leaf("state", state.name, state.axes)
    after = before
    if any(x.decay is not ONE for x in corrections):
        after = mul(stream("g", [x.decay for x in corrections], *over, kind="decay"), before)
    read = total(mul(after if decayed else before, key), s.row)
    update = expand(add(after, mul(left, add(base, mul(-1, read)))), state.axes)
    last, outputs, names = len(corrections) - 1, {}, {}
    for n, (name, vector) in enumerate(queries.items(), 1):
        query = stream(f"q{n}", [ZERO] * last + [vector], s.row)
        outputs[f"o{n}"] = rename(total(mul(update, query), s.row), {s.col: col})
        names[name] = f"o{n}"
    used = {row, col}
    inner = StepProgram(
        f"{step.name}_substep",
        tuple(d for d in step.dims if d in used),
        tuple(streams),
        (state,),
        {state.name: update},
        outputs,
        output_axes=dict.fromkeys(outputs, (col,)),
    )
    made = {stream_name(v.name, n): x for v, nodes in streams.items() for n, x in enumerate(nodes)}
    axes = {stream_name(v.name, n): v.axes for v in streams for n in range(len(corrections))}
    around = StepProgram(f"{step.name}_streams", step.dims, step.variables, (), {}, made, output_axes=axes)
    return Substeps(len(corrections), inner, around, names)


def _ratio(left: Node, key: Node) -> Node | None:
    """The scalar b of left = b key, where the factors of the key are among those of the left, but for constants: any other may
    be zero."""
    up, down = list(factors_of(left)), list(factors_of(key))
    for x in list(up):
        if x in down:
            up.remove(x)
            down.remove(x)
    if any(x.axes for x in up) or any(x.op != "const" for x in down):
        return None
    return mul(*up, *(power(x, -1) for x in down))
