"""Scans and strata as formulas for people: the maps that the entries of states go through, and what strata hand on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from ...ir.expr import Node, add, fn, leaf, mul
from ...ir.expr import replace as replaced
from ...ir.notation import Notation
from ..chunkwise.compiled import Compiled, Part
from ..step.elementwise import Entry, entrywise
from ..step.frames import Frame, begins_with
from .chunk_notation import chunk_sections
from .chunk_symbols import Symbols
from .form_notation import form_formulas
from .formulas import Formula, Section, formula, sentence, stateless_names

FAMILIES = {
    "chunk-parallel": "parallel over chunks",
    "scan": "a scan",
    "segment-parallel": "over segments of the sequence",
    "sequential": "in recurrent form",
    "strata": "strata",
}


def scan_section(c: Compiled) -> Section:
    """The maps of the forward pass; those of the adjoint are affine."""
    names = stateless_names(c.step)
    lines: list[Formula] = []
    for e in entrywise(c.step) or ():
        s = c.step.state(e.state)
        lines.append(formula(c, partial(_map, e=e, state=s.leaf), names))
    lines.append(
        sentence("Two such maps of a state's entry, one after the other, are one of the same kind: so all are scanned.")
    )
    return Section("Maps that compose", tuple(lines))


def _map(n: Notation, e: Entry, state: Node) -> str:
    """The update of a state as a map of the kind that it is."""
    left, maps = n.text(leaf("next", e.state, state.attrs[2])), e.maps
    first = n.text(add(mul(maps[0], state), maps[1]))
    if e.kind == "affine":
        return f"{left} = {first}"
    if e.kind == "rational":
        second = n.text(add(mul(maps[2], state), maps[3]))
        return rf"{left} = \frac{{{first}}}{{{second}}}" if n.tex else f"{left} = ({first}) / ({second})"
    if e.kind == "logaddexp":
        exponents = (n.text(fn("exp", add(mul(maps[0], state), maps[1]))), n.text(fn("exp", maps[2])))
        return (
            rf"{left} = \log\left({' + '.join(exponents)}\right)" if n.tex else f"{left} = log({' + '.join(exponents)})"
        )
    word = "max" if e.kind == "maximum" else "min"
    last = n.text(maps[2])
    return rf"{left} = \{word}\left({first}, {last}\right)" if n.tex else f"{left} = {word}({first}, {last})"


def strata_sections(c: Compiled) -> Iterator[Section]:
    """What each stratum computes, in order, and in which form."""
    for n, part in enumerate(c.strata, 1):
        own, title = part.compiled, f"Stratum {n}"
        states = ", ".join(s.name for s in own.step.states)
        added = [s for s in own.step.states if s.name not in {x.name for x in c.step.states}]
        start = "".join(f" {s.name}: {begins_with(s)} before the first step." for s in added)
        yield Section(title, (sentence(f"{states}: {FAMILIES[own.family]}.{start}"), *_taken(c, part)))
        for section in family_sections(own):
            yield replace(section, title=f"{title}: {section.title[0].lower()}{section.title[1:]}")
    if c.frame is not None:
        yield _last_states(c, c.frame)


def _last_states(c: Compiled, frame: Frame) -> Section:
    """The last states as the step has them, of those in the frame."""
    names = stateless_names(frame.step)
    after = {s.leaf: leaf("next", s.name, s.axes) for s in frame.step.states}
    said = (
        "Strata have the states in a frame that moves with them. The last ones (left) are made of those there (right)."
    )
    lines = [sentence(said)]
    for n in frame.moved:
        left = leaf("next", n, frame.step.state(n).axes)
        lines.append(formula(c, partial(_equal, left=left, right=replaced(frame.ends[n], after)), names))
    return Section("Last states", tuple(lines))


def _taken(c: Compiled, part: Part) -> Iterator[Formula]:
    """What a stratum takes of earlier ones."""
    made = {name: p.compiled for p in c.strata for name in p.hands}
    for name in part.takes:
        step = made[name].step
        axes = step.output_axes[name]
        left = leaf("input", name, axes)
        yield formula(c, partial(_equal, left=left, right=step.outputs[name]), stateless_names(step))


def _equal(n: Notation, left: Node, right: Node) -> str:
    return f"{n.text(left)} = {n.text(right)}"


def family_sections(c: Compiled, symbols: Symbols | None = None) -> Iterator[Section]:
    """The form of a recurrence of any family; `symbols` take note of what formulas over chunks are of."""
    if c.strata:
        yield from strata_sections(c)
    elif c.form is not None and c.adjoint_form is not None:
        yield Section("Read-write form", tuple(form_formulas(c, backward=False)))
        yield Section("Read-write form of the adjoint", tuple(form_formulas(c, backward=True)))
        yield from chunk_sections(c, symbols)
    elif c.family == "scan":
        yield scan_section(c)
