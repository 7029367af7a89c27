"""The quantities that a document speaks of: those of its recurrence, or, where it has none, what it defines and what is given,
and any function of its outputs as the loss."""

from __future__ import annotations

import re
from collections.abc import Sequence

from chunkform.spec.language.claims import LENGTH, Quantity, Setting
from chunkform.spec.language.formula import Formula, add, formula, inner, sum_over, transform, walk

from .document import Document, Equation
from .header import is_call, name_of
from .rewritten import same_states, second_forms
from .shapes import SCALAR, Dims, Misfit, Shape, shape_for, shape_of, symbols_in
from .steps import core, find_steps, index, is_gradient, safe
from .symbols import (
    DOMAINS,
    Symbols,
    costs_of,
    declared,
    finished,
    safe_in,
    said_kinds,
    shape_words,
    size,
    solved,
    spec_name,
    steps_letter,
    turned_in,
    with_recurrence,
)
from .words import LOSSES

LONGEST = 200  # equations of a document from which shapes of what it doesn't define are told


def symbols_of(document: Document, equations: Sequence[Equation], title: str) -> Symbols:
    """The quantities that these equations of a document speak of."""
    header = document.header
    letter = str(header.data.get("steps", "")) or steps_letter(document)
    name = str(header.data.get("name", "")) or spec_name(title)
    kinds, dims_said = said_kinds(document)
    kinds |= dict(document.taken.kinds)
    dims_said |= dict(document.taken.shapes)
    steps = find_steps(equations, bool(header.data.get("chunk")), kinds)
    if document.taken.any_start:
        steps.initial = {}
    fixed, stacked = declared(document.facts + [f for r in document.rows for f in r.facts], letter)
    if steps.states:  # Q in R^{n x d} and Q_t: a row of it
        stepwise = {*steps.given, *steps.states, *steps.lets, *steps.outputs}
        fixed |= {n: ("1", s[1]) if s[1] != "1" else SCALAR for n, s in stacked.items() if n in stepwise}
    rename = {letter: LENGTH} if letter else {}
    fixed = {n: tuple(rename.get(d, d) for d in s) for n, s in fixed.items()}  # type: ignore[misc]
    for n, dims in dims_said.items():
        fixed[n] = dims
    if steps.states:
        found = with_recurrence(document, equations, steps, name, kinds, fixed, stacked, letter)
        for second in second_forms(steps, equations) if found.recurrence is not None else ():
            other = with_recurrence(document, equations, second, name, kinds, fixed, stacked, letter)
            if other.recurrence is not None and same_states(found.setting, other.setting):
                found = other
                break
    else:
        found = Symbols(Setting(name), steps)
    if found.recurrence is None:
        plain(document, equations, found, kinds, fixed, letter)
    return found


def plain(
    document: Document,
    equations: Sequence[Equation],
    found: Symbols,
    kinds: dict[str, str],
    fixed: dict[str, Shape],
    letter: str,
) -> None:
    """Quantities of a document without a recurrence: what it defines, and what is given."""
    setting = found.setting
    names = {y.attrs[0] for e in equations for s in (e.head, e.side) for y in walk(s) if y.op == "at"}
    found.defined.quantities = definitions_in(equations, names, kinds)
    given = [
        n
        for n in ordered_names(equations)
        if n not in found.defined.quantities
        and not is_gradient(n, names)
        and (n not in LOSSES or n in kinds)
        and (n in kinds or n not in said_names(document))
        and n not in kinds_without_shape(kinds)
        and n not in {e.head.attrs[0] for e in equations if e.head.op == "apply"}
    ]
    made = sequences_of(found, equations, kinds)
    given += [n for n in made if n not in given]
    for n in made:
        found.defined.quantities.pop(n, None)
    for n in [n for n in given if n not in {*kinds, *made} and is_sequence(n, equations)]:
        given.remove(n)
        if not any(
            core(e.head).op == "at" and core(e.head).attrs == (n,) and not plain_head(core(e.head)) for e in equations
        ):
            found.unknown[n] = found.refused or "it is said by its value before, and no first value is"
    shapes, dims = shapes_of_given(given, equations, found, fixed, document.bold)
    for n in given:
        twin = twin_of(n, given)
        if n not in shapes:
            found.unknown[n] = "its shape isn't known"
        elif twin and n not in {*kinds, *fixed} and any(y.args for y in uses(n, equations)):
            found.unknown[n] = f"it may be a row or a column of {twin}"
    found.shapes = finished({n: s for n, s in shapes.items()}, dims, {}, [LENGTH, *names])
    found.steps.sequences = {n: found.shapes[n] for n in made if n in found.shapes and n not in found.unknown}
    for n in given:
        if n in found.unknown:
            found.shapes.pop(n, None)
    given = [n for n in given if n not in found.steps.sequences]
    sizes = {d for n in given if n in found.shapes for d in found.shapes[n] if d != "1"} | {
        d for s in fixed.values() for d in s if d != "1"
    }
    sizes |= set(document.notation.sizes & names_of_sizes(equations)) - {letter}
    sizes = (sizes | set(str(document.header.data.get("sizes", "")).split())) - {letter} | {LENGTH}
    for d in sorted(sizes, key=lambda d: (d != LENGTH, d)):
        setting.dims(d)
    if letter and letter != LENGTH:
        found.names[letter] = LENGTH
    for n in given:
        if n in found.shapes:
            declare(n, document, equations, found, kinds)


def sequences_of(found: Symbols, equations: Sequence[Equation], kinds: dict[str, str]) -> list[str]:
    """States of a step that is written down, and that no recurrence can be made of, such as one with the inverse of a matrix:
    each is what its equation says from any first value on."""
    by_inverses = [e for e in equations if e.head.op == "inverse"]  # P_t^{-1} = .. P_{t-1}^{-1} ..: those are recursive
    return (
        [n for n in found.steps.states if n not in kinds and not is_sequence(n, by_inverses)] if found.refused else []
    )


def is_sequence(name: str, equations: Sequence[Equation]) -> bool:
    """Whether the document says a symbol, or its inverse, by the symbol at another index: such a one is never given."""
    for e in equations:
        head = core(e.head)
        head = head.args[0] if head.op == "inverse" else head
        if e.first and e.relation in ("=", ":=") and head.op == "at" and head.attrs[0] == name and len(head.args) == 1:
            before = head.args[0] - 1
            if any(y.op == "at" and y.attrs[0] == name and y.args == (before,) for y in walk(e.side)):
                return True
    return False


def definitions_in(equations: Sequence[Equation], names: set[str], kinds: dict[str, str]) -> dict[str, Equation]:
    """The first equation with a symbol alone on its left, unless what it says comes back to the symbol."""
    definitions: dict[str, Equation] = {}
    for e in equations:
        head = core(e.head)
        if not e.first or e.relation not in ("=", ":=") or head.op != "at" or is_gradient(head.attrs[0], names):
            continue
        n = head.attrs[0]
        if (
            n in definitions
            or kinds.get(n, "defined") != "defined"
            or not plain_head(head)
            or n in {y.attrs[0] for y in walk(e.side) if y.op == "at"}
        ):
            continue
        if any(y.op in ("differential", "integral", "tuple", "dots", "infinity") for y in walk(e.side)):
            continue
        definitions[n] = e
    circular = True
    while circular:  # of two that define each other, the first stands
        circular = False
        for n in reversed(list(definitions)):
            if reaches(n, n, definitions):
                del definitions[n]
                circular = True
                break
    return definitions


def shapes_of_given(
    given: Sequence[str], equations: Sequence[Equation], found: Symbols, fixed: dict[str, Shape], bold: set[str]
) -> tuple[dict[str, Shape], Dims]:
    """Shapes of what is given: as the definitions have them, and then the other equations."""
    names = {y.attrs[0] for e in equations for s in (e.head, e.side) for y in walk(s) if y.op == "at"}
    forward = [
        e for e in found.defined.quantities.values() if not any(is_gradient(n, names) for n in symbols_in(e.side))
    ]
    pairs = [(core(e.head), e.side.T if e.head.op == "transpose" else e.side) for e in forward]
    used = [n for n in given if any(n in {y.attrs[0] for y in walk(s) if y.op == "at"} for p in pairs for s in p)]
    heads = [n for e in forward for n in [core(e.head).attrs[0]] if n not in fixed]
    solution = solved(pairs, [*used, *heads], fixed, bold) if len(used) < 14 else None
    shapes, dims = solution if solution is not None else (dict(fixed), Dims())
    for n in given:
        if n not in shapes:
            about = [(e.head, e.side) for e in equations if any(y.attrs[0] == n for y in uses(n, [e]))]
            more = next((s for pair in about[:3] for s in [one_more(n, pair, shapes, dims)] if s is not None), None)
            shapes, dims = more or (shapes, dims)
    left = [n for n in given if n not in shapes]
    return together(left, equations, shapes, dims, bold) if left else (shapes, dims)


def declare(n: str, document: Document, equations: Sequence[Equation], found: Symbols, kinds: dict[str, str]) -> None:
    """Say in the setting that a symbol is given, for each index that it has."""
    shape = found.shapes[n]
    used_with = uses(n, equations)
    count = max((len(y.args) for y in used_with), default=0)
    letters = ["i", "j", "u"][:count]
    zero = any(a.op == "number" and a.attrs[0] == 0 for y in used_with for a in y.args)
    zero = zero or any(reaches_zero(e, n) for e in equations)
    over = tuple((index(x), 0 if zero else 1, size(LENGTH)) for x in letters)
    under_root = any(is_root_of(y, n) for e in equations for s in (e.head, e.side) for y in walk(s))
    domain = DOMAINS.get(kinds.get(n, ""), "positive" if under_root else "real")
    if count and any(not y.args for y in used_with):
        if both_said(document, n):  # x and x_i are two things
            found.names[f"{n}/1"] = safe_in(found.setting, safe(n) + "s")
            found.setting.given(found.names[f"{n}/1"], *shape, over=over, domain=domain)
        over = ()
    found.arity[n] = len(over)
    found.names[n] = safe_in(found.setting, safe(n))
    found.setting.given(found.names[n], *shape, over=over or None, domain=domain)
    if n not in kinds:
        found.guess(f"{n} is given{shape_words(shape)}{', for each index' if over else ''}")


def together(
    names: Sequence[str],
    equations: Sequence[Equation],
    shapes: dict[str, Shape],
    dims: Dims,
    bold: set[str],
) -> tuple[dict[str, Shape], Dims]:
    """Shapes of symbols that no definition tells, as the equations have them that speak of nothing else that isn't known. An
    equation that doesn't fit what those before it say is left out."""
    taken: list[tuple[Formula, Formula]] = []
    for e in equations[:LONGEST]:
        turned = e.head.op == "transpose" and core(e.head).op == "at"
        pair = (traced(core(e.head) if turned else e.head), traced(e.side.T if turned else e.side))
        there = {y.attrs[0] for s in pair for y in walk(s) if y.op == "at"}
        if not there & set(names) or there - set(names) - set(shapes) or e.relation not in ("=", ":="):
            continue
        tried = [*taken, pair]
        asked = [n for n in names if any(n in symbols_in(s) for p in tried for s in p)]
        fixed = {n: (dims.find(a), dims.find(b)) for n, (a, b) in shapes.items()}
        if len(asked) < 9 and solved(tried, asked, fixed, bold) is not None:
            taken = tried
    asked = [n for n in names if any(n in symbols_in(s) for p in taken for s in p)]
    found = (
        solved(taken, asked, {n: (dims.find(a), dims.find(b)) for n, (a, b) in shapes.items()}, bold) if taken else None
    )
    if found is None:
        return shapes, dims
    more = {n: tuple(found[1].find(d) for d in s) for n, s in found[0].items()}
    count = max(dims.count, found[1].count)
    both = Dims(dict(dims.same), lenient=True, count=count)
    for a, b in found[1].same.items():
        both.join(a, b)
    return {**shapes, **more}, Dims(both.same, count=count)  # type: ignore[dict-item]


def traced(x: Formula) -> Formula:
    """x with traces as inner products with an identity, which its argument's shape has to fit."""
    eye = Formula("eye", (), (f"?{abs(hash(x)) % 10**9}",))
    return transform(x, lambda y: inner(eye, y.args[0]) if y.op == "apply" and y.attrs == ("trace", 0) else None)


def uses(name: str, equations: Sequence[Equation]) -> list[Formula]:
    return [y for e in equations for s in (e.head, e.side) for y in walk(s) if y.op == "at" and y.attrs[0] == name]


def twin_of(name: str, given: Sequence[str]) -> str:
    """The capital of a letter, where it is given as well."""
    capital = name.upper() if len(name) == 1 else name.capitalize()
    return capital if capital != name and capital in given else ""


def said_names(document: Document) -> set[str]:
    """Names that the header defines; with indices above, as o_t^{(i)}, they are o^."""
    said = [tex for table in ("define", "readings") for tex in document.header.table(table) if not is_call(tex)]
    return {name_of(tex) + ("^" if re.search(r"\^\{?[(\[]", tex) else "") for tex in said}


def is_root_of(y: Formula, name: str) -> bool:
    return y.op == "sqrt" and y.args[0].op == "at" and y.args[0].attrs == (name,)


def both_said(document: Document, name: str) -> bool:
    """Whether the header says what a symbol is with an index, and without."""
    said = [tex for tex in document.header.table("symbols") if name_of(tex) == name]
    return len({"_" in tex for tex in said}) > 1


def reaches_zero(e: Equation, name: str) -> bool:
    """Whether a sum or product over a quantity starts at 0."""
    for x in (e.head, e.side):
        for y in walk(x):
            if y.op in ("sum", "product over", "hadamard over") and y.args[0] == formula(0):
                i = index(y.attrs[0])
                if any(z.op == "at" and z.attrs[0] == name and i in z.args for z in walk(y.args[2])):
                    return True
    return False


def names_of_sizes(equations: Sequence[Equation]) -> set[str]:
    return {y.attrs[0] for e in equations for s in (e.head, e.side) for y in walk(s) if y.op == "size"}


def kinds_without_shape(kinds: dict[str, str]) -> set[str]:
    return {n for n, k in kinds.items() if k in ("function", "label", "loss", "size", "defined", "skip")}


def ordered_names(equations: Sequence[Equation]) -> list[str]:
    return list(dict.fromkeys(y.attrs[0] for e in equations for s in (e.head, e.side) for y in walk(s) if y.op == "at"))


def plain_head(head: Formula) -> bool:
    letters = [a.attrs[0] for a in head.args if a.op == "index"]
    return len(letters) == len(head.args) and len(set(letters)) == len(letters)


def reaches(start: str, goal: str, definitions: dict[str, Equation]) -> bool:
    seen: set[str] = set()
    waiting = [start]
    while waiting:
        e = definitions.get(waiting.pop())
        for n in {y.attrs[0] for y in walk(e.side) if y.op == "at"} if e is not None else ():
            if n == goal:
                return True
            if n not in seen:
                seen.add(n)
                waiting.append(n)
    return False


def one_more(
    name: str, pair: tuple[Formula, Formula], shapes: dict[str, Shape], dims: Dims
) -> tuple[dict[str, Shape], Dims] | None:
    """Shapes with one more symbol, as one equation has it."""
    others = {y.attrs[0] for s in pair for y in walk(s) if y.op == "at"} - set(shapes) - {name}
    if others:
        return None
    for kind, _ in costs_of(name, False, name in turned_in([pair])):
        made, inner_dims = shape_for(kind, dims)
        try:
            trial = {**shapes, name: made}
            a, b = shape_of(pair[0], trial, inner_dims), shape_of(pair[1], trial, inner_dims)
            if b[0] and inner_dims.is_scalar(a) != inner_dims.is_scalar(b):
                continue
            inner_dims.equal(a, b)
        except Misfit:
            continue
        return trial, inner_dims
    return None


def made_of(setting: Setting, name: str) -> set[str]:
    """The quantities that are computed from one, itself among them where it is computed from its own other values."""
    used = {
        q.name: {
            y.attrs[0]
            for _, body in (("", q.body), *q.alternatives)
            if body is not None
            for y in walk(body)
            if y.op == "at"
        }
        for q in setting.quantities.values()
    }
    found: set[str] = set()
    waiting = [name]
    while waiting:
        x = waiting.pop()
        new = {n for n, there in used.items() if x in there} - found
        found |= new
        waiting += new
    return found


def set_loss(found: Symbols, equations: Sequence[Equation], resolve: object) -> None:
    """The loss of a document without a recurrence: any function of its outputs, whose gradients by them are given. An output is
    what the document has a gradient by, and no formula for this gradient; but the gradient by what other outputs are made of
    follows from theirs."""
    if found.recurrence is not None:
        return
    names = set(ordered_names(equations))
    heads = {core(e.head).attrs[0] for e in equations if e.first and core(e.head).op == "at"}
    terms = []
    known = [n for n in found.defined.quantities if n in found.setting.quantities or n in found.names]
    asked = [n for n in known if f"d{n}" in names and f"d{n}" not in heads and found.shapes.get(n) is not None]
    made = {found.names[n] for n in asked}
    whole = [n for n in asked if not made_of(found.setting, found.names[n]) & made]
    for n in whole or asked:
        gradient_name = "d" + n
        q = found.setting.quantities[found.names[n]]
        shape = found.shapes[n]
        letters = [index(x) for x in ("i", "j", "u")[: len(q.parameters)]]
        over = tuple((x, 1, size(LENGTH)) for x in letters)
        direct = "d" if n in whole else "direct_d"  # by a sequence, beside what goes through its later values
        given = found.setting.given(safe_in(found.setting, direct + found.names[n]), *shape, over=over or None)
        own = given.name if isinstance(given, Quantity) else given.attrs[0]
        if n in whole:
            found.names[gradient_name] = own
            found.arity[gradient_name] = len(letters)
            found.shapes[gradient_name] = shape
        at = Formula("at", tuple(letters), (found.names[n],))
        one: Formula = inner(Formula("at", tuple(letters), (own,)), at)
        for x in reversed(letters):
            one = sum_over(x, 1, size(LENGTH), one)
        terms.append(one)
    if terms:
        found.loss = found.setting.define(safe_in(found.setting, "loss"), (), add(*terms))
