"""The recurrence of a document: which of its equations say what one step does, and the `Recurrence` that they make."""

from __future__ import annotations

import keyword
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from chunkform.spec.language.formula import Formula, add, formula, substitute, transform, walk
from chunkform.spec.language.names import FUNCTION_NAMES
from chunkform.spec.language.recurrence import RESERVED

from .document import Equation
from .heads import base_of

STEP = "t"
OUTPUTS = {n + accent for n in ("o", "y", "h", "out", "O", "Y", "H") for accent in ("", "hat", "tilde", "bar")}
OVER = ("sum", "product over", "product down", "hadamard over")
DECAYS = set("lam alpha gamma g a w f decay Lambda".split())


@dataclass
class Steps:
    """What one step does: each name's formula at step t, in the document's order."""

    states: dict[str, Formula] = field(default_factory=dict)
    lets: dict[str, Formula] = field(default_factory=dict)
    outputs: dict[str, Formula] = field(default_factory=dict)
    initial: dict[str, Formula] = field(default_factory=dict)
    equations: list[Equation] = field(default_factory=list)
    sequences: dict[str, tuple[str, str]] = field(default_factory=dict)  # shapes of states that no spec can say

    @property
    def given(self) -> list[str]:
        """Names that are read and not made, those of the outputs first: queries, and then keys and values."""
        made = {*self.states, *self.lets, *self.outputs}
        found: dict[str, None] = {}
        for body in (*self.outputs.values(), *self.lets.values(), *self.states.values(), *self.initial.values()):
            for y in walk(body):
                if y.op == "at" and y.attrs[0] not in made:
                    found.setdefault(y.attrs[0])
        return list(found)


def index(name: str) -> Formula:
    return Formula("index", (), (name,))


def core(x: Formula) -> Formula:
    """The symbol that stands on a side, without its transpose."""
    return x.args[0] if x.op == "transpose" else x


def letter_of(x: Formula) -> tuple[str, int] | None:
    """(t, 1) of t + 1."""
    if x.op == "index":
        return x.attrs[0], 0
    if x.op == "add" and len(x.args) == 2 and x.args[0].op == "index" and x.args[1].op == "number":
        return x.args[0].attrs[0], int(x.args[1].attrs[0])
    return None


CAPITALS = {
    "Lambda": "lam",
    "Alpha": "alpha",
    "Gamma": "gamma",
    "Beta": "beta",
    "Delta": "delta",
    "Eta": "eta",
    "Mu": "mu",
}


def lower(name: str) -> str:
    """The name of a row of a matrix: q of Q."""
    return CAPITALS.get(name, name.lower() if len(name) == 1 else name)


def twins(names: Iterable[str]) -> set[str]:
    """Capitals that the document has in lower case as well: matrices over the steps of a chunk."""
    names = set(names)
    found = set()
    for n in names:
        stem = n.removesuffix("bar").removesuffix("tilde").removesuffix("hat")
        if lower(stem) != stem and lower(stem) in names:
            found.add(n)
    return found


def find_steps(equations: Sequence[Equation], chunked: bool = False, kinds: Mapping[str, str] | None = None) -> Steps:
    """The equations that say what a step does: those of states, which read themselves one step before, and of what is
    computed beside them, up to where gradients start."""
    steps = Steps()
    names = {y.attrs[0] for e in equations for s in (e.head, e.side) for y in walk(s) if y.op == "at"}
    add_states(steps, equations, names)
    add_states_through_others(steps, equations, names)
    capitals = {n for n in steps.states if lower(n) != n and lower(n) in steps.states}
    apart = twins(names) if chunked or capitals else set()
    steps.equations = [e for e in steps.equations if core(e.head).attrs[0] not in apart]
    steps.states = {n: body for n, body in steps.states.items() if n not in apart}
    if not steps.states:
        return Steps()
    add_lets(steps, equations, names, apart)
    tell_outputs(steps)
    leave_out_abbreviations(steps, equations, names, kinds or {})
    if not steps.outputs:  # what is written is what is given out, as in a solve
        last = next((n for n in reversed(list(steps.lets)) if any(y in steps.states for y in reads(n, steps))), None)
        steps.outputs = (
            {last: Formula("at", (index(STEP),), (last,))}
            if last
            else {n: Formula("at", (index(STEP),), (n,)) for n in steps.states}
        )
    leave_out_what_no_output_reads(steps, equations)
    steps.initial = {n: body for n, body in steps.initial.items() if n in steps.states}
    return steps


def add_states(steps: Steps, equations: Sequence[Equation], names: set[str]) -> None:
    """What is said by its own value one step before, and first values."""
    for e in equations:
        if not e.first or e.relation not in ("=", ":=") or core(e.head).op != "at":
            continue
        head = core(e.head)
        name, at = head.attrs[0], head.args
        if len(at) != 1 or name.endswith(("[]", "^")) or is_gradient(name, names):
            continue
        place = letter_of(at[0])
        if place is None:
            if at[0].op == "number" and at[0].attrs[0] == 0 and name not in steps.initial:
                steps.initial[name] = flipped(e)
            continue
        letter, ahead = place
        body = flipped(e)
        read = {letter_of(y.args[0]) for y in walk(body) if y.op == "at" and y.attrs[0] == name and len(y.args) == 1}
        if (
            name not in steps.states
            and (letter, ahead - 1) in read
            and (letter, ahead) not in read
            and not gradients_in(body, names)
        ):
            shifted = at_step(body, letter, ahead)
            if shifted is not None and not chunky(shifted):
                steps.states[name] = shifted
                steps.equations.append(e)


def add_lets(steps: Steps, equations: Sequence[Equation], names: set[str], apart: set[str]) -> None:
    """What is computed beside states at each step."""
    known = set(steps.states)
    for e in without_special_cases(equations, steps):
        if not e.first or e.relation not in ("=", ":=") or core(e.head).op != "at":
            continue
        head = core(e.head)
        name = head.attrs[0]
        place = letter_of(head.args[0]) if len(head.args) == 1 else None
        if place is None or name in known or name.endswith(("[]", "^")) or is_gradient(name, names):
            continue
        body = flipped(e)
        if name in apart or read_names(body) & apart:
            continue
        shifted = at_step(body, *place)
        if (
            shifted is None
            or gradients_in(body, names)
            or chunky(shifted)
            or not stepwise(shifted)
            or name in read_names(shifted)
        ):
            continue
        if goes_round(name, {**steps.states, **steps.lets, name: shifted}):
            continue  # such as v_t from o_t, where o_t is read of a state that v_t is written to
        known.add(name)
        steps.lets[name] = shifted
        steps.equations.append(e)


def tell_outputs(steps: Steps) -> None:
    """Of what is computed beside states, what these don't need is given out, if it reads a state."""
    kept = needed(steps)
    for name in list(steps.lets):
        reads_state = any(y in steps.states for y in reads(name, steps))
        if name not in kept and not reads_state:
            steps.equations = [e for e in steps.equations if core(e.head).attrs[0] != name]
            del steps.lets[name]
        elif name not in kept:
            steps.outputs[name] = steps.lets.pop(name)


def add_states_through_others(steps: Steps, equations: Sequence[Equation], names: set[str]) -> None:
    """Add what reads itself one step before through what is computed of it at the same step: S'_t = A_t S_{t-1}, and then
    S_t = S'_t + k_t v_t^T."""
    found: dict[str, tuple[Formula, Equation]] = {}
    for e in equations:
        head = core(e.head)
        place = letter_of(head.args[0]) if head.op == "at" and len(head.args) == 1 else None
        if place is None or not e.first or e.relation not in ("=", ":=") or head.attrs[0] in found:
            continue
        shifted = None if gradients_in(e.head, names) else at_step(flipped(e), *place)
        if shifted is not None and stepwise(shifted) and not chunky(shifted) and not gradients_in(shifted, names):
            found[head.attrs[0]] = shifted, e
    for name, (body, e) in found.items():
        if name in steps.states or name.endswith(("[]", "^")):
            continue
        seen, waiting = {name}, [body]
        while waiting:
            for y in walk(waiting.pop()):
                if y.op != "at" or len(y.args) != 1:
                    continue
                n, place = y.attrs[0], letter_of(y.args[0])
                if n == name and place == (STEP, -1):
                    steps.states.setdefault(name, body)
                    steps.equations.append(e) if e not in steps.equations else None
                elif n in found and n not in seen and n not in steps.states and place == (STEP, 0):
                    seen.add(n)
                    waiting.append(found[n][0])


def leave_out_abbreviations(
    steps: Steps, equations: Sequence[Equation], names: set[str], kinds: Mapping[str, str]
) -> None:
    """Leave out of the outputs what only abbreviates: in a document of gradients, an output is what has a gradient that is given
    (do_t, and no formula for it), else what is called as outputs are. What restates a part of an update stays, in its place."""
    heads = {core(e.head).attrs[0] for e in equations if e.first and core(e.head).op == "at"}
    heads |= {"d" + core(e.head.args[1]).attrs[0] for e in equations if e.first and derivative_by_symbol(e.head)}
    nodes = (y for e in equations for x in (e.head, e.side) for y in walk(x))
    names = names | {"d" + core(y.args[1]).attrs[0] for y in nodes if derivative_by_symbol(y)}
    found = {n for n in steps.outputs if kinds.get(n) == "output"}
    abbreviations = {n for n in steps.outputs if kinds.get(n) in ("let", "defined")}
    if any(is_gradient(n, names) for n in names):
        open_ones = set(steps.outputs) - abbreviations
        found |= {n for n in open_ones if "d" + n in names and ("d" + n not in heads or n in OUTPUTS)}
        found = found or {n for n in open_ones if n in OUTPUTS}
        abbreviations |= open_ones - found if found else set()
    if len(abbreviations) == len(steps.outputs):
        return
    for n in abbreviations:
        body = steps.outputs.pop(n)
        states = {m: with_part(b, body, n) for m, b in steps.states.items()}
        if states != steps.states:
            steps.states, steps.lets[n] = states, body
        else:
            steps.equations = [e for e in steps.equations if core(e.head).attrs[0] != n]
    kept = needed(steps)
    unread = [n for n in steps.lets if n not in kept and not any(n in read_names(b) for b in steps.outputs.values())]
    for n in unread if abbreviations else ():
        steps.equations = [e for e in steps.equations if core(e.head).attrs[0] != n]
        del steps.lets[n]


def derivative_by_symbol(x: Formula) -> bool:
    return x.op == "partial" and core(x.args[1]).op == "at"


def with_part(x: Formula, part: Formula, name: str) -> Formula:
    """x with a symbol at step t in place of each part of it that says the same: the whole, or factors that stand together."""
    at = Formula("at", (index(STEP),), (name,))
    if part.op in ("at", "number"):
        return x

    def placed(y: Formula) -> Formula | None:
        if y == part:
            return at
        if y.op == part.op == "product":
            for k in range(len(y.args) - len(part.args) + 1):
                if y.args[k : k + len(part.args)] == part.args:
                    left = (*y.args[:k], at, *y.args[k + len(part.args) :])
                    return Formula("product", left, y.attrs)
        return None

    return transform(x, placed)


def without_special_cases(equations: Sequence[Equation], steps: Steps) -> list[Equation]:
    """The equations without those behind a state's that set a symbol to a number, as lambda_t = 1, or two that steps read
    to be the same, as k_t = q_t: they speak of one case."""
    start = next((k for k, e in enumerate(equations) if any(e is x for x in steps.equations)), len(equations))
    read = {n for e in equations[:start] for n in read_names(e.side)}
    read |= {n for body in steps.states.values() for n in read_names(body)}
    for e in equations[start:]:
        if core(e.head).op == "at" and e.first and core(e.side).op != "at":
            read |= read_names(e.side)
    return [e for k, e in enumerate(equations) if k < start or (read_names(e.side) and not makes_same(e, read))]


def makes_same(e: Equation, read: Collection[str]) -> bool:
    """Whether an equation says that two symbols, both of which are read elsewhere, are the same."""
    sides = core(e.head), core(e.side)
    return all(x.op == "at" and x.attrs[0] in read for x in sides) and sides[0].args == sides[1].args


def leave_out_what_no_output_reads(steps: Steps, equations: Sequence[Equation]) -> None:
    """Leave out states that no output reads, directly or through others, and that the document says the first value of,
    or all values as a sum or a product: sequences that it defines, such as the product of decays so far, of which no loss
    takes anything."""
    bodies = {**steps.states, **steps.lets, **steps.outputs}
    live, waiting = set(steps.outputs), list(steps.outputs)
    while waiting:
        for n in read_names(bodies[waiting.pop()]):
            if n in bodies and n not in live:
                live.add(n)
                waiting.append(n)
    whole = {
        core(e.head).attrs[0]
        for e in equations
        if e.first and e.relation in ("=", ":=") and core(e.head).op == "at" and e.side.op in OVER
    }
    for n in [n for n in steps.states if n not in live and (n in steps.initial or n in whole)]:
        del steps.states[n]
        steps.equations = [e for e in steps.equations if core(e.head).attrs[0] != n]


def goes_round(name: str, bodies: Mapping[str, Formula]) -> bool:
    """Whether a quantity reads itself at the same step, through others."""
    waiting, seen = [name], set()
    while waiting:
        body = bodies.get(waiting.pop())
        for n in bodies:
            if body is not None and n not in seen and reads_now(body, n):
                if n == name:
                    return True
                seen.add(n)
                waiting.append(n)
    return False


def flipped(e: Equation) -> Formula:
    """The side of an equation, transposed where its head is."""
    return e.side.T if e.head.op == "transpose" else e.side


def is_gradient(name: str, names: Iterable[str]) -> bool:
    """Whether a name is a gradient's: a d before another name of the document."""
    base = base_of(name)
    lower = {n.lower() for n in names}
    return bool(base) and (base in names or base.lower() in lower or base in ("S", "s", "o", "O"))


def gradients_in(x: Formula, names: Iterable[str]) -> bool:
    names = set(names)
    return any(
        y.op in ("partial", "differential") or (y.op == "at" and is_gradient(y.attrs[0], names)) for y in walk(x)
    )


def at_step(x: Formula, letter: str, ahead: int) -> Formula | None:
    """x with its step called t, and the head's index at t."""
    shifted = substitute(x, {index(letter): add(index(STEP), formula(-ahead)) if ahead else index(STEP)})
    return transform(shifted, lambda y: add(*_merged(y)) if y.op == "add" and _counts(y) else None)


def _counts(y: Formula) -> bool:
    return all(a.op in ("index", "number") for a in y.args) and sum(a.op == "index" for a in y.args) == 1


def _merged(y: Formula) -> list[Formula]:
    total = sum((a.attrs[0] for a in y.args if a.op == "number"), Fraction(0))
    letters = [a for a in y.args if a.op == "index"]
    return [*letters, formula(total)] if total else letters


def chunky(x: Formula) -> bool:
    return any(y.op == "at" and y.attrs[0].endswith("[]") for y in walk(x))


def stepwise(x: Formula) -> bool:
    """Whether x speaks of one step: indices are t and t - 1, or none."""
    for y in walk(x):
        if y.op in (*OVER, "apply", "integral", "partial", "tuple", "matrix", "stack"):
            return False
        if y.op == "at" and y.args and (len(y.args) > 1 or letter_of(y.args[0]) not in ((STEP, 0), (STEP, -1))):
            return False
    return True


def read_names(x: Formula) -> set[str]:
    return {y.attrs[0] for y in walk(x) if y.op == "at"}


def reads(name: str, steps: Steps) -> set[str]:
    """All that a quantity reads, through others."""
    found: set[str] = set()
    waiting = [name]
    bodies = {**steps.lets, **steps.outputs}
    while waiting:
        body = bodies.get(waiting.pop())
        for n in read_names(body) if body is not None else ():
            if n not in found:
                found.add(n)
                waiting.append(n)
    return found


def needed(steps: Steps) -> set[str]:
    """The lets that states read, and what these read."""
    found: set[str] = set()
    for body in steps.states.values():
        for n in read_names(body):
            if n in steps.lets:
                found |= {n, *(x for x in reads(n, steps) if x in steps.lets)}
    for name, body in steps.lets.items():  # what another output reads
        for n in read_names(body):
            if n in steps.lets and n != name:
                found.add(n)
    return found


# --- the recurrence -------------------------------------------------------------------------------------------------


def safe(name: str) -> str:
    """A name that a spec may use."""
    plain = name.replace("'", "p").replace("[]", "chunk").replace("^", "at").strip("_")
    plain = "".join(c if c.isalnum() or c == "_" else "_" for c in plain).strip("_") or "x"
    taken = keyword.iskeyword(plain) or plain in RESERVED or plain in FUNCTION_NAMES or plain[0].isdigit()
    return f"x{plain}" if taken and plain[0].isdigit() else f"{plain}1" if taken else plain


def reads_now(body: Formula, name: str) -> bool:
    return any(y.op == "at" and y.attrs[0] == name and y.args == (index(STEP),) for y in walk(body))
