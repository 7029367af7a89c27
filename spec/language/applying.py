"""`p.apply`: a recurrence or an attention of its own inside a program, with the program's quantities as its inputs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from chunkform.errors import DimensionError, NameError_, SpecError

from .attention import Attention, AttentionVariable
from .declaration import Declaration
from .definite import POSITIVE
from .expression import Dim, Matrix, Term, scalar_of
from .recurrence import Equation, Recurrence, Variable, dims_of, symbol_of
from .source import Source, caller
from .terms import names_in

NEEDED = {"temperature": "parameter"}  # what a program calls a kind that an attention has


@dataclass(frozen=True)
class Applied:
    """A recurrence or an attention of its own, with a program's quantities as its inputs: `inputs`, `states`, `outputs` by its
    own names; `numbers` are what it is given in the place of a quantity."""

    op: Recurrence | Attention
    inputs: Mapping[str, str]
    states: Mapping[str, str]
    outputs: Mapping[str, str]
    where: Source
    numbers: Mapping[str, float] = field(default_factory=dict)


def apply(
    step: Recurrence,
    signs: Mapping[str, int],
    applied: list[Applied],
    op: Recurrence | Attention | str | os.PathLike[str],
    quantities: dict[str, object],
) -> Term | tuple[Term, ...]:
    """The outputs of an op that a program applies, which is noted in `applied`."""
    where = caller()
    r = _found(op, where)
    _check_names(r, quantities, where)
    number = len(applied) + 1
    sizes: dict[str, Dim] = {}
    inputs: dict[str, str] = {}
    numbers: dict[str, float] = {}
    for v in r.variables:
        if v.name not in quantities:
            continue
        value = quantities[v.name]
        if v.kind in ("temperature", "constant") and isinstance(value, int | float) and not isinstance(value, bool):
            if v.kind == "temperature" and value <= 0:
                raise SpecError(f"{r.name}: {v.name} must be above 0, got {value}", where)
            numbers[v.name] = float(value)
            continue
        if not isinstance(value, Matrix) and scalar_of(value) is None:
            raise SpecError(f"{r.name}: {v.name} must be a term of this program, got {value!r}", where)
        _match_dims(r, v, value, sizes, where)
        name = f"{r.name}_{number}_{v.name}"
        inputs[v.name] = _quantity(step, value, v.name, _kind(v), name, where)
        if v.kind == "temperature" and signs.get(inputs[v.name]) != POSITIVE:
            raise SpecError(
                f'{r.name}: {v.name} must be above 0: declare {inputs[v.name]} with p.parameters(.., sign="> 0")', where
            )
    states = {}
    for s in r.states if isinstance(r, Recurrence) else ():
        states[s.name] = f"{s.name}_{number}"
        step._new(states[s.name])
    outputs, made = {}, []
    for x in r.outputs:
        outputs[x.name] = f"{r.name}_{number}_{x.name}"
        dims = tuple(sizes[d.name] for d in dims_of(x.term))
        step._declare(outputs[x.name], "solved", dims)
        made.append(symbol_of(outputs[x.name], "solved", dims))
    applied.append(Applied(r, inputs, states, outputs, where, numbers))
    return made[0] if len(made) == 1 else tuple(made)


def _found(op: object, where: Source) -> Recurrence | Attention:
    from .load import find

    found = op
    if isinstance(op, str | os.PathLike):
        name = os.fspath(op)
        own = Path(where.file).parent / (name if name.endswith(".py") else f"{name}.py")
        found = find(str(own) if own.is_file() and own != Path(where.file) else name)[0]
    if not isinstance(found, Recurrence | Attention):
        kind = f", which is of the kind {found.noun}" if isinstance(found, Declaration) else ""
        raise SpecError(f"apply takes a recurrence, an attention, or the name of one, got {op!r}{kind}", where)
    found.validate()
    if isinstance(found, Attention) and found.nodes is not None:
        raise SpecError(
            f"{found.name} has a fixed set of queries, and so no output at each step: a program can't apply it", where
        )
    return found


def _check_names(r: Recurrence | Attention, quantities: dict[str, object], where: Source) -> None:
    known = {v.name for v in r.variables}
    optional = {v.name for v in r.variables if v.default is not None} if isinstance(r, Attention) else set()
    if not (known - optional <= set(quantities) <= known):
        may = f", and may be given {', '.join(sorted(optional))}" if optional else ""
        raise NameError_(
            f"{r.name} is given {', '.join(sorted(quantities)) or 'nothing'}; it takes "
            f"{', '.join(sorted(known - optional))}{may}",
            where,
        )


def _match_dims(
    r: Recurrence | Attention,
    v: Variable | AttentionVariable,
    value: object,
    sizes: dict[str, Dim],
    where: Source,
) -> None:
    dims = dims_of(value)
    if len(dims) != len(v.dims):
        raise DimensionError(f"{r.name} takes {v.name} over {len(v.dims)} dims, got {value}", where)
    for own, mine in zip(v.dims, dims, strict=True):
        if sizes.setdefault(own.name, mine) != mine:
            raise DimensionError(
                f"{r.name}: {v.name} has {mine} in the place of {own}, which is {sizes[own.name]} elsewhere", where
            )


def _kind(v: Variable | AttentionVariable) -> str:
    """What it must be in a program: an input may be any term."""
    return "input" if v.kind in ("query", "key", "stream") else NEEDED.get(v.kind, v.kind)


def _quantity(step: Recurrence, value: object, own: str, kind: str, name: str, where: Source) -> str:
    """The name of a term that is handed to an op; a term without one gets it."""
    found = names_in(value)
    single = next(iter(found)) if len(found) == 1 else None
    known = single is not None and value == symbol_of(single, found[single], dims_of(value))
    if known and kind != "input" and found[single] != kind:  # type: ignore[index]
        raise SpecError(f"{own} must be a {kind} of this program, got the {found[single]} {single}", where)  # type: ignore[index]
    if known and (kind == "input") == (found[single] in ("input", "let", "solved")):  # type: ignore[index]
        return single  # type: ignore[return-value]
    if kind != "input":
        raise SpecError(f"{own} must be a {kind} that this program declares, got {value}", where)
    step._new(name)
    term = step._term(value, name)
    step._check_term(term, name)
    step.lets.append(Equation(name, term, where))
    return name
