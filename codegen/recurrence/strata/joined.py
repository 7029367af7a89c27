"""The two functions of a recurrence of several strata: those of the strata in order, and backwards in reverse."""

from __future__ import annotations

from collections.abc import Iterable

from ...ir.code import Attribute, Binary, Literal
from ...ir.expr import ZERO, Node
from ...ir.launch_ir import (
    Body,
    Call,
    Code,
    Do,
    Entry,
    Function,
    Given,
    If,
    Note,
    Return,
    Set,
    Statement,
    Update,
    entry,
    item,
    ref,
    takes,
)
from ...ir.python_code import EMPTY, TRUE, Named, SetOf, Spread, dictionary, either, made_by, method, said, several
from ...ir.python_code import beside as row
from ...ir.words import Definition, Definitions, apart
from ...printing.code_passes import finished_function
from ...printing.launch_text import launch_definition
from ...printing.side_by_side import function_name, of_op
from ..chunkwise.compiled import Compiled, Part
from ..torch_form.passes import arguments, by_length
from .framed import KEPT, begun, finished, turned_back, turning_functions

MODULES = {
    "chunkform.runtime.launch.varlen": "backward_by_length forward_by_length",
    "chunkform.runtime.op.strata": "Gradients kept kept_of",
}
COMMON = ("packed", "inference", "finals", "replays")  # features that all strata must have
GIVEN = (ref("given"), ref("states"), ref("constants"))
GRADIENTS = ref("gradients")


def joined_parts(
    c: Compiled,
    backend: str,
    strata: list[Definitions],
    beside: list[Definitions],
    features: list[tuple[str, ...]],
    states: bool,
) -> Definitions:
    """What a backend has, of what strata have; `beside` are functions in torch that these may call. `states`: has each functions
    for the states that enter a segment of a sequence?"""
    parts: list[Definition] = []
    for n, (own, other) in enumerate(zip(strata, beside, strict=True), 1):
        roots = [f"{backend}_{kind}" for kind in ("forward", "backward", "forward_states", "backward_states")]
        parts += of_op(own, f"part{n}", backend, roots if states else roots[:2], other)
    made = [_forward(c, backend, features), _backward(c, backend)]
    if c.frame is not None:
        made = [*turning_functions(c, backend), *made]
    if states:
        made += [_forward_states(c), _backward_states(c)]
    return apart([*parts, *(launch_definition(finished_function(f)) for f in made)])


def joined_features(backend: str, features: list[tuple[str, ...]]) -> tuple[str, ...]:
    """What the joined functions take beyond the plain case."""
    if backend == "torch":
        own = ("own start",) if any("own start" in some for some in features) else ()
        return ("packed", "mixed", *own)
    return tuple(x for x in COMMON if x in ("inference", "finals") or all(x in some for some in features))


# --- the functions ----------------------------------------------------------------------------------------------------


def _forward(c: Compiled, backend: str, features: list[tuple[str, ...]]) -> Function:
    torch = backend == "torch"
    body: list[Statement] = [by_length(c, backward=False)] if torch else []
    if c.frame is not None:
        body.append(begun(c))
    body.append(Set(("outputs", "lasts", "saved"), row(EMPTY, EMPTY, EMPTY), empty=True))
    recording = Binary("is", ref("needs_backward"), Literal(True))
    finals: Code = ref("finals")
    if c.frame is not None and not torch:
        finals = either("finals", recording)
    like = c.step.leading.name
    for n, (part, has) in enumerate(zip(c.strata, features, strict=True), 1):
        options = {"inference": ("needs_backward", ref("needs_backward")), "finals": ("finals", finals)}
        own = () if torch else (ref("packed"), *(Named(*x) for f, x in options.items() if f in has))
        body += [
            _states_of(part),
            Call(("made", "last", "some"), _function(n, backend, "forward"), (*GIVEN, *own)),
            Update("lasts", ref("last")),
        ]
        for x in part.compiled.step.outputs:
            if x not in part.hands:
                body.append(
                    Set((Entry("outputs", x),), method(item("made", x), "to", Attribute(entry("given", like), "dtype")))
                )
        body += _with_handed(part)
        keeps = Update("saved", made_by("kept", n, _with("some", _handed(part))))
        body.append(keeps if torch else If(recording, (keeps,)))
    if c.frame is not None:
        keeps = Update("saved", made_by("kept", KEPT, "ends"))
        body += (
            finished(c, backend, (keeps,)) if torch else [If(finals, finished(c, backend, (If(recording, (keeps,)),)))]
        )
    body.append(Return(row(*map(ref, ("outputs", "lasts", "saved")))))
    more: dict[str, Code] = {} if torch else {"needs_backward": TRUE, "finals": TRUE}
    return _of_pass(
        f"{backend}_forward",
        takes("given", "states", "constants", packed=None, **more),
        f"Outputs, last states and what the backward pass uses of {c.name}: stratum after stratum.",
        body,
    )


def _backward(c: Compiled, backend: str) -> Function:
    torch = backend == "torch"
    body: list[Statement] = [by_length(c, backward=True)] if torch else []
    hands = [(n, x) for n, part in enumerate(c.strata, 1) for x in part.hands]
    names = several(*(said(x) for n, x in hands if not _flat(c.strata[n - 1])))
    body += [
        Set(("given",), _with("given", ((x, entry("saved", f"{n} {x}")) for n, x in hands))),
        Set(("needs",), method(ref("needs"), "union", names)),
        Call(("gradients",), "Gradients", ()),
    ]
    if c.frame is not None:
        body += [begun(c), turned_back(c, backend)]
    for n, part in reversed(list(enumerate(c.strata, 1))):
        if _flat(part):
            body += [Do(method(GRADIENTS, "take", said(x))) for x in part.hands]
            continue
        given = [*GIVEN, made_by("kept_of", n, ref("saved")), _cotangents(part)]
        given += map(ref, ("final_cotangents", "needs", *(() if torch else ("packed",))))
        body += [_states_of(part), _added(_function(n, backend, "backward"), given)]
    body.append(Return(row(method(GRADIENTS, "of", ref("given")), Attribute(GRADIENTS, "initial"))))
    return _of_pass(
        f"{backend}_backward",
        takes(*arguments(backward=True), packed=None),
        f"Gradients of {c.name}: the backward pass of each stratum, the last one first.",
        body,
    )


def _forward_states(c: Compiled) -> Function:
    body: list[Statement] = [Set(("entering",), EMPTY, empty=True)]
    for n, part in enumerate(c.strata, 1):
        entering = made_by(_function(n, "torch", "forward_states"), *GIVEN, ref("exchange"))
        body += [_states_of(part), Update("entering", entering)]
        if part.hands:
            given = (ref("given"), ref("entering"), ref("constants"))
            body.append(Set(("made",), made_by(_function(n, "torch", "forward"), *given)[0]))
            body += _with_handed(part)
    body.append(Return(ref("entering")))
    return _of_pass(
        "torch_forward_states",
        takes("given", "states", "constants", "exchange"),
        "The states that enter this part of a sequence: of each stratum, once those before it are run.",
        body,
    )


def _backward_states(c: Compiled) -> Function:
    body: list[Statement] = [
        Note("what kernels have saved may lie in another way"),
        Set(("some", "leaving", "gradients"), row(EMPTY, EMPTY, made_by("Gradients"))),
    ]
    for n, part in enumerate(c.strata, 1):
        body.append(Call(("made", "_", f"some[{n}]"), _function(n, "torch", "forward"), GIVEN))
        body += _with_handed(part)
    for n, part in reversed(list(enumerate(c.strata, 1))):
        body += [_states_of(part), Set(("own",), _cotangents(part))]
        given = [*GIVEN, ref("some")[n], ref("own")]
        leaving = (*given, ref("final_cotangents"), ref("exchange"))
        body.append(Update("leaving", made_by(_function(n, "torch", "backward_states"), *leaving)))
        if part.takes:
            needs = made_by("frozenset", SetOf(tuple(map(said, part.takes))))
            body.append(_added(_function(n, "torch", "backward"), [*given, ref("leaving"), needs]))
    body.append(Return(ref("leaving")))
    return _of_pass(
        "torch_backward_states",
        takes("given", "states", "constants", "saved", "cotangents", "final_cotangents", "exchange"),
        "The gradients of the states that leave this part of a sequence: one stratum after the other.",
        body,
    )


def _of_pass(name: str, parameters: tuple[Given, ...], doc: str, body: Iterable[Statement]) -> Function:
    return Function(name, parameters, doc, tuple(body), frees=False)


# --- their statements -------------------------------------------------------------------------------------------------


def _function(n: int, backend: str, kind: str) -> str:
    """What is called for a pass of a stratum."""
    return function_name(f"part{n}", backend, kind)


def _states_of(part: Part) -> Note:
    return Note(", ".join(s.name for s in part.compiled.step.states))


def _with(table: str, entries: Iterable[tuple[str, Code]]) -> Code:
    """A dictionary with more entries."""
    return dictionary([Spread(ref(table)), *entries])


def _flat(part: Part) -> bool:
    """Has nothing a gradient through a stratum, as through signs?"""
    return not part.takes and all(map(_is_zero, part.compiled.adjoint.program.outputs.values()))


def _is_zero(x: Node) -> bool:
    return x is ZERO or (x.op == "expand" and _is_zero(x.args[0]))


def _handed(part: Part) -> list[tuple[str, Code]]:
    """What a stratum makes for those after it."""
    return [(x, item("made", x)) for x in part.hands]


def _with_handed(part: Part) -> Body:
    return (Set(("given",), _with("given", _handed(part))),) if part.hands else ()


def _cotangents(part: Part) -> Code:
    """The gradients of all that a stratum makes, of what it hands on too."""
    handed = [(x, method(GRADIENTS, "take", said(x))) for x in part.hands]
    return _with("cotangents", handed) if handed else ref("cotangents")


def _added(function: str, given: Iterable[Code]) -> Do:
    return Do(method(GRADIENTS, "add", made_by(function, *given)))
