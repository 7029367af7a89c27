"""Displayed formulas: an equation in plain text and LaTeX, and the symbols that a spec gives to what its step computes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

from ...ir.expr import Node, leaf, leaves, replace, walk
from ...ir.latex_page import Page
from ...ir.notation import PRODUCT, Notation
from ...ir.step_program import StepProgram
from ..chunkwise.compiled import Compiled


@dataclass(frozen=True, eq=False)
class Formula:
    """One displayed formula, or (`text`) a sentence between formulas. `write` says it in plain text (False), in LaTeX (True), or
    on a page; what nobody asks for isn't written."""

    write: Callable[[bool | Page], str] = field(repr=False)
    text: bool = False
    of: tuple[Node, Node] | None = field(default=None, repr=False)  # both sides, of one over a chunk

    @cached_property
    def plain(self) -> str:
        return self.write(False)

    @cached_property
    def latex(self) -> str:
        return self.write(True)

    def on(self, page: Page) -> str:
        """The formula as LaTeX for a page."""
        return self.write(page)

    def __str__(self) -> str:
        return self.plain

    def _repr_latex_(self) -> str | None:
        """For notebooks."""
        return (self.latex if self.text else f"$${self.latex}$$") if self.latex else None


def fixed(plain: str, latex: str, text: bool = False) -> Formula:
    """Both texts as they are."""
    return Formula(lambda tex: latex if tex else plain, text)


@dataclass(frozen=True)
class Section:
    """A titled group of formulas."""

    title: str
    formulas: tuple[Formula, ...]

    def __str__(self) -> str:
        return "\n".join([self.title, *(f"  {f.plain}" if f.text else f"    {f.plain}" for f in self.formulas)])

    def _repr_latex_(self) -> str:
        """For notebooks."""
        lines = [rf"&\text{{{f.latex}}}" if f.text else f"&{f.latex}" for f in self.formulas if f.latex]
        return r"$$\begin{aligned} " + r" \\ ".join(lines) + r" \end{aligned}$$"


def sentence(text: str, latex: str = "") -> Formula:
    """Words between formulas; `latex` has the mathematics in them between dollar signs."""
    return fixed(text, latex or text, text=True)


def order_of(c: Compiled) -> tuple[str, ...]:
    """Declared names, in the order in which factors and terms stand in print."""
    step = c.step
    by_kind = sorted(step.variables, key=lambda v: (not v.is_decay, v.kind == "input"))
    scalars = [v.name for v in by_kind if not v.axes]
    others = [v.name for v in by_kind if v.axes]
    return (*scalars, *(s.name for s in step.states), *others, *step.names.values(), *step.outputs)


def formula(
    c: Compiled,
    write: Callable[[Notation], str],
    names: dict[Node, Node] | None = None,
    text: bool = False,
    **about: object,
) -> Formula:
    """Both texts of what `write` says with a notation."""
    order, known = order_of(c), dict(names or {})

    def shown(tex: bool | Page) -> str:
        return write(Notation(tex, known, order=order, **about))  # type: ignore[arg-type]

    return Formula(shown, text)


def equation(
    c: Compiled, left: Node, right: Node, names: dict[Node, Node] | None = None, axes: tuple[str, ...] | None = None
) -> Formula:
    """left = right; the right side isn't printed by the name that it defines."""
    names = {k: v for k, v in (names or {}).items() if k is not right or v.attrs[1] != left.attrs[1]}
    return formula(c, lambda n: f"{n.text(left, axes)} = {n.text(right, axes)}", names)


def summed(n: Notation, left: Node, g: Node) -> str:
    """The gradient of what is the same at each step: a sum over the steps."""
    body = n.bracket(n.piece(g, left.attrs[2]), PRODUCT)
    under = r"\sum_{t=1}^{n} " if n.tex else "sum_t "
    return f"{n.text(left)} = {under}{body}"


def part_text(n: Notation, part: Node, whole: Node) -> str:
    mark = "$" if n.tex else ""
    return f"{mark}{n.text(part)}{mark} is the part of {mark}{n.text(whole)}{mark} that comes from later steps."


# --- symbols of the spec ----------------------------------------------------------------------------------------------


def step_names(step: StepProgram, trajectory: bool = False) -> dict[Node, Node]:
    """Symbols for what a step names: its auxiliary quantities, and its states after the step."""
    names = {x: leaf("let", n, stored_axes(x)) for x, n in step.names.items()}
    for s in step.states:
        names[step.updates[s.name]] = leaf("next", s.name, s.axes)
    if trajectory:
        names = {as_trajectory(x): n for x, n in names.items()}
    return {x: n for x, n in names.items() if x.op not in ("leaf", "const")}


def stored_axes(x: Node) -> tuple[str, ...]:
    """The axes of a named term, rows first."""
    row, col = Notation(False).orient(x)
    return tuple(a for a in (row, col) if a is not None)


def as_trajectory(x: Node) -> Node:
    """x with the forward states as the adjoint sees them."""
    states = {y: leaf("trajectory", *y.attrs[1:]) for y in walk(x) if y.op == "leaf" and y.attrs[0] == "state"}
    return replace(x, states)


def stateless_names(step: StepProgram) -> dict[Node, Node]:
    """Symbols of the auxiliary quantities that don't depend on a state."""
    lets = {x: n for x, n in step_names(step).items() if n.attrs[0] == "let"}
    return {x: n for x, n in lets.items() if not any(y.attrs[0] == "state" for y in leaves(x))}
