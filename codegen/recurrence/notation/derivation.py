"""What the compiler derived, as formulas for people: the step, its adjoint, the read-write form, and the form over chunks.

The notation is that of the documents: S_t is the state after step t, and dS_t the whole gradient of S_t, through the outputs
of step t and through all later steps.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from itertools import count

from ...ir.expr import ZERO, Node, add, dim_of, leaf, mul, plain_name, rename, replace, walk
from ...ir.notation import Notation
from ...ir.step_program import StateVar
from ..chunkwise.compiled import Compiled
from ..step.adjoint import Adjoint, gradient_name
from ..step.lower import lower
from .chunk_symbols import Symbols
from .form_notation import solved_letters
from .formulas import (
    Formula,
    Section,
    equation,
    formula,
    order_of,
    part_text,
    step_names,
    stored_axes,
    summed,
)
from .shared_terms import shared_terms
from .strata_notation import family_sections


def derivation(c: Compiled, symbols: Symbols | None = None) -> tuple[Section, ...]:
    """The whole derivation of a compiled spec, section by section; `symbols` take note of what formulas over chunks are of."""
    title = "The recurrence" if c.step.states else "The row map"
    sections = [Section(title, tuple(step_formulas(c))), Section("Its adjoint", tuple(adjoint_formulas(c)))]
    return (*sections, *(family_sections(c, symbols) if c.step.states else ()))


def derivation_lines(c: Compiled) -> list[str]:
    """The derivation as lines of plain text, whose formulas are numbered; for comments."""
    lines: list[str] = []
    numbers = count(1)
    for section in derivation(c):
        lines += ([""] if lines else []) + [section.title]
        lines += [f.plain if f.text else f"    ({next(numbers)}) {f.plain}" for f in section.formulas]
    return lines


def formula_numbers(c: Compiled) -> dict[tuple[str, str], int]:
    """The numbers that formulas over chunks have there, by the kind and the name, in plain letters, of the read, write or state
    that each is of, and of results that are reads as they are."""
    if c.forward is None or c.backward is None or c.strata:
        return {}
    symbols = Symbols(set())
    formulas = [f for section in derivation(c, symbols) for f in section.formulas if not f.text]
    by_sides = {f.of: n for n, f in enumerate(formulas, 1) if f.of is not None}
    found = {(kind, plain_name(n)): by_sides[x] for (kind, n), x in symbols.sides.items() if x in by_sides}
    results = {
        n: x.attrs[:2] for plan in (c.forward, c.backward) for n, x in plan.form.values.items() if x.op == "leaf"
    }
    return found | {
        ("result", n): found[kind, plain_name(x)] for n, (kind, x) in results.items() if (kind, plain_name(x)) in found
    }


# --- the step -------------------------------------------------------------------------------------------------------


def step_formulas(c: Compiled) -> Iterable[Formula]:
    """The step in the order of the spec, which is causal; as its author wrote it, before passes take other forms of it."""
    step = lower(c.spec)
    names = step_names(step)
    terms = {n: x for x, n in step.names.items()} | step.updates
    for equation_ in sorted((*c.spec.lets, *c.spec.updates, *c.spec.outputs), key=lambda x: x.order):
        name = equation_.name
        if equation_ in c.spec.outputs:
            axes = step.output_axes[name]
            yield equation(c, leaf("let", name, axes), step.outputs[name], names, axes)
        elif equation_ in c.spec.updates:
            s = step.state(name)
            yield equation(c, leaf("next", name, s.axes), step.updates[name], names, s.axes)
        elif name in terms:
            axes = stored_axes(terms[name])
            yield equation(c, leaf("let", name, axes), terms[name], names, axes)
    for s in step.states:
        if s.initial is not None:
            yield equation(c, leaf("chunk", f"{s.name}_0", s.axes), s.initial, {}, s.axes)


# --- the adjoint ----------------------------------------------------------------------------------------------------


def adjoint_names(c: Compiled) -> dict[Node, Node]:
    """Symbols for the adjoint: those of the step, and the gradients of what the step names."""
    a = c.adjoint
    names = step_names(a.forward, trajectory=True)
    for s in a.forward.states:
        whole = a.gradients[a.forward.updates[s.name]]
        carried = leaf("state", f"d{s.name}", s.axes)
        names[carried] = leaf("carried", f"d{s.name}", s.axes)
        if whole is not carried or not turned_reads(a, s):
            names[whole] = leaf("gradient", f"d{s.name}", s.axes)
    for x, name in a.forward.names.items():
        g = a.gradients.get(x, ZERO)
        if g.op not in ("leaf", "const") and g not in names:
            names[g] = leaf("gradient", f"d{name}", stored_axes(x) if set(stored_axes(x)) == set(g.axes) else g.axes)
    return names


def joined(a: Adjoint, x: Node) -> Node:
    """x with sums over what a gradient is made of as sums over that gradient: with (P + Q) 1, and not P 1 + Q 1."""
    for s in a.forward.states:
        whole, carried = a.gradients[a.forward.updates[s.name]], leaf("state", f"d{s.name}", s.axes)
        if whole is carried or turned_reads(a, s):
            continue
        gradient = leaf("gradient", f"d{s.name}", s.axes)
        known = replace(x, {whole: gradient})
        apart = [y for y in walk(known) if carried in y.args]
        if apart and all(y.op == "sum" for y in apart):
            x = replace(known, {carried: add(gradient, mul(-1, own_part(a, s)))})
    return x


def own_part(a: Adjoint, s: StateVar) -> Node:
    """What a step itself adds to the gradient of the state after it."""
    return add(a.gradients[a.forward.updates[s.name]], mul(-1, leaf("state", f"d{s.name}", s.axes)))


def turned_reads(a: Adjoint, s: StateVar) -> bool:
    """Does the step read the new state transposed? Its gradient then has two parts that print can't join."""
    if len({dim_of(x) for x in s.axes}) == len(s.axes):
        return False
    first, second = s.axes
    turned = rename(a.forward.updates[s.name], {first: second, second: first})
    return turned is not a.forward.updates[s.name]


def adjoint_formulas(c: Compiled) -> Iterable[Formula]:
    """Gradients of what the step names, of the states, of every argument, and of the initial states."""
    a, step = c.adjoint, c.step
    names = adjoint_names(c)
    shared = shared_terms(
        [
            *(joined(a, x) for x in a.program.outputs.values()),
            *(joined(a, x) for x in a.program.updates.values()),
            *(x for x in names if names[x].attrs[0] == "gradient"),
        ],
        names,
        Notation(False, names, order=order_of(c)),
        {*order_of(c), *step.dims, *(x for form in (c.form, c.adjoint_form) if form for x in solved_letters(c, form))},
    )
    names |= shared
    for s in step.states:  # where the new state is read transposed, print knows only the part from later steps
        part = names[a.gradients[step.updates[s.name]]]
        if part.attrs[0] == "carried":
            whole = leaf("gradient", part.attrs[1], s.axes)
            yield formula(c, partial(part_text, part=part, whole=whole), text=True)
    for x, symbol in shared.items():
        yield equation(c, symbol, x, names, symbol.attrs[2])
    for x, name in step.names.items():
        g = a.gradients.get(x, ZERO)
        if g in names and names[g].attrs[1] == f"d{name}":
            yield equation(c, names[g], g, names, names[g].attrs[2])
    for s in step.states:
        yield _state_gradient(c, s.name, names)
    for v in step.variables:
        if v.kind == "constant":
            continue
        g = joined(a, a.program.outputs[gradient_name(v)])
        left = leaf("gradient", gradient_name(v), v.axes)
        if v.per_step:
            yield equation(c, left, g, names, v.axes)
        else:
            whole = leaf("whole gradient", gradient_name(v), v.axes)
            yield formula(c, partial(summed, left=whole, g=g), names)
    for s in step.states:
        yield _boundary(c, s.name, names)


def _state_gradient(c: Compiled, name: str, names: dict[Node, Node]) -> Formula:
    """dS_t: what comes from step t + 1, and what the outputs of step t add."""
    a = c.adjoint
    axes = a.forward.state(name).axes
    whole = a.gradients[a.forward.updates[name]]
    rest = own_part(a, a.forward.state(name))
    update = joined(a, a.program.updates[f"d{name}"])
    left = names[whole]

    def write(n: Notation) -> str:
        later = Notation(
            n.tex, {k: v for k, v in names.items() if k is not update or k is whole}, order=n.order, shift=1
        )
        text = f"{n.text(left, axes)} = {later.text(update, axes)}"
        if rest is not ZERO:
            extra = n.text(rest, axes)
            text += f" - {extra[1:].lstrip()}" if extra.startswith("-") else f" + {extra}"
        return text

    return formula(c, write, {k: v for k, v in names.items() if k is not whole})


def _boundary(c: Compiled, name: str, names: dict[Node, Node]) -> Formula:
    """dS_0, the gradient of the initial state."""
    a = c.adjoint
    axes = a.forward.state(name).axes
    left = leaf("chunk", f"d{name}_0", axes)
    update = joined(a, a.program.updates[f"d{name}"])
    return formula(c, lambda n: f"{n.text(left, axes)} = {n.text(update, axes)}", names, at=1)
