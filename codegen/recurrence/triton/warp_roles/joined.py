"""A sweep and its prologue kernel as one kernel: what the prologue makes for a chunk is made in the sweep's loop, and matrices
over steps are names there, which nothing stores and nothing loads."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from ....ir.code import Load, Name, names_in
from ....ir.code_parts import substituted
from ....ir.kernel_ir import For, If, Let, Statement, Store
from ....printing.cannot_print import CannotPrint
from ..kernels.at_once import whole_name
from ..kernels.chunk_kernel import Kernel

PLACES = frozenset("b c h bh t0 last i_ok row at step".split())  # names of both kernels: where a chunk is


def joined_kernel(name: str, sweep: Kernel, prologue: Kernel, kept: frozenset[str] = frozenset()) -> Kernel:
    """The kernel that does what both do; `kept`: matrices that others need as well, which it stores.

    Raises CannotPrint: the prologue does something else than to make matrices over the steps of each chunk, and sums of these.
    """
    stored = {a.name: a for a in prologue.arguments if a.stored}
    if not prologue.queues or prologue.slow_path or any(a.layout not in ("matrix", "sums") for a in stored.values()):
        raise CannotPrint("a prologue that makes more than matrices over steps has no roles yet")
    loaded = {a.name for a in sweep.arguments}
    matrices = {n: a.base for n, a in stored.items() if a.layout == "matrix" and n in loaded}
    made = {n: f"{base}_made" if n in kept else base for n, base in matrices.items()}
    kept &= made.keys()
    if not set(prologue.axes) <= set(sweep.axes):
        raise CannotPrint("a prologue over an axis that a sweep doesn't have has no roles")
    inside, pointers = _of_a_chunk(prologue, made, kept, {a.base for a in sweep.arguments})
    loops = [n for n, x in enumerate(sweep.body) if isinstance(x, For)]
    if len(loops) != 1:
        raise CannotPrint("a sweep of several loops has no roles yet")
    before, after = (*sweep.body[: loops[0]], *pointers), sweep.body[loops[0] + 1 :]
    own = {n for x in before if isinstance(x, Let) for n in x.names}
    if own & {n for x in inside if isinstance(x, Let) for n in x.names}:
        raise CannotPrint("a prologue makes names that are those of a sweep")
    loop = sweep.body[loops[0]]
    assert isinstance(loop, For)
    rest = [_named(x, made) for x in loop.body]
    first = 1 + max(n for n, x in enumerate(rest) if isinstance(x, Let) and set(x.names) <= PLACES)
    gone = made.keys() - kept
    arguments = {a.name: a for a in (*sweep.arguments, *prologue.arguments) if a.name not in gone}
    return replace(
        sweep,
        name=name,
        body=(*before, replace(loop, body=(*rest[:first], *inside, *rest[first:])), *after),
        arguments=tuple(arguments.values()),
        pieces=(*sweep.pieces, *prologue.pieces),
        loads=tuple(x for x in sweep.loads if x[0] not in made),
        products=frozenset(),
        one_tile=sweep.tiled in prologue.axes or stored.keys() > matrices.keys() - kept,
    )


def _of_a_chunk(
    prologue: Kernel, made: dict[str, str], kept: Collection[str], known: set[str]
) -> tuple[list[Statement], list[Statement]]:
    """What a prologue does for a chunk; and where a program finds tensors that the sweep doesn't know."""
    (loop,) = (x for x in prologue.body if isinstance(x, For))
    inside: list[Statement] = []
    pointers: list[Statement] = []
    bases = {f"{a.base}_p": a.base for a in prologue.arguments if a.layout == "step"}
    for x in loop.body:
        match x:
            case Let(names=names) if set(names) <= PLACES:
                continue
            case If(condition=condition) if names_in(condition) <= {"begins", "stops"}:
                continue
            case Let(names=(name,), value=value) if name in bases and whole_name(x) in names_in(value):
                if bases[name] not in known:
                    pointers.append(replace(x, value=substituted(value, {whole_name(x): Name(name)})))
            case Store(pointer=pointer, value=value, mask=None, note=note) if made.keys() & names_in(pointer):
                (target,) = made.keys() & names_in(pointer)
                inside.append(Let((made[target],), value, note=note))
                if target in kept:
                    inside.append(replace(x, value=Name(made[target])))
            case Let() | Store():
                inside.append(x)
            case If() if not any(isinstance(y, Store) for y in x.body):
                inside.append(x)
            case _:
                raise CannotPrint("a prologue that makes more than matrices over steps has no roles yet")
    return inside, pointers


def _named(x: Statement, made: dict[str, str]) -> Statement:
    """A statement that loads one of these matrices, with the matrix's name."""
    match x:
        case Let(value=Load(pointer=pointer)) if found := made.keys() & names_in(pointer):
            return replace(x, value=Name(made[found.pop()]))
    return x
