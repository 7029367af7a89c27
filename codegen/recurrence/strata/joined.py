"""The two functions of a recurrence of several strata: those of the strata in order, and backwards in reverse."""

from __future__ import annotations

from ...ir.quoted import read_definitions
from ...ir.words import Definition, Definitions, apart
from ...printing.side_by_side import function_name, of_op
from ..chunkwise.compiled import Compiled, Part

INDENT = "    "
MODULES = {
    "chunkform.runtime.launch.varlen": "backward_by_length forward_by_length",
    "chunkform.runtime.op.strata": "Gradients kept kept_of",
}
COMMON = ("packed", "inference", "finals", "replays")  # features that all strata must have


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
    texts = [_forward(c, backend, features), _backward(c, backend)]
    texts += [_forward_states(c), _backward_states(c)] if states else []
    return apart([*parts, *read_definitions("\n\n\n".join(texts))])


def _function(n: int, backend: str, kind: str) -> str:
    """What is called for a pass of a stratum."""
    return function_name(f"part{n}", backend, kind)


def joined_features(backend: str, features: list[tuple[str, ...]]) -> tuple[str, ...]:
    """What the joined functions take beyond the plain case."""
    if backend == "torch":
        own = ("own start",) if any("own start" in some for some in features) else ()
        return ("packed", "mixed", *own)
    return tuple(x for x in COMMON if x in ("inference", "finals") or all(x in some for some in features))


def _forward(c: Compiled, backend: str, features: list[tuple[str, ...]]) -> str:
    options = "" if backend == "torch" else ", needs_backward=True, finals=True"
    lines = [
        f"def {backend}_forward(given, states, constants, packed=None{options}):",
        f'{INDENT}"""Outputs, last states and what the backward pass uses of {c.name}: stratum after stratum."""',
    ]
    body = _packed(c, backend, "forward", "") + ["outputs, lasts, saved = {}, {}, {}"]
    like = c.step.leading.name
    for n, (part, has) in enumerate(zip(c.strata, features, strict=True), 1):
        own = [f"{x}={x}" for x, f in (("needs_backward", "inference"), ("finals", "finals")) if f in has]
        own = [*(["packed"] if backend != "torch" else []), *(own if backend != "torch" else [])]
        states = ", ".join(s.name for s in part.compiled.step.states)
        body += [
            f"# {states}",
            f"made, last, some = {_function(n, backend, 'forward')}"
            f"({', '.join(['given', 'states', 'constants', *own])})",
            "lasts |= last",
        ]
        body += [
            f'outputs["{x}"] = made["{x}"].to(given["{like}"].dtype)'
            for x in part.compiled.step.outputs
            if x not in part.hands
        ]
        hands = _handed(part)
        if hands:
            body.append(f"given = {{**given{hands}}}")
        whole = "" if backend == "torch" else "if needs_backward is True:\n        "
        body.append(f"{whole}saved |= kept({n}, {{**some{hands}}})")
    body.append("return outputs, lasts, saved")
    return "\n".join([*lines, *(INDENT + x for x in body)])


def _backward(c: Compiled, backend: str) -> str:
    lines = [
        f"def {backend}_backward(given, states, constants, saved, cotangents, final_cotangents, needs, packed=None):",
        f'{INDENT}"""Gradients of {c.name}: the backward pass of each stratum, the last one first."""',
    ]
    body = _packed(c, backend, "backward", ", saved, cotangents, final_cotangents, needs")
    hands = [(n, x) for n, part in enumerate(c.strata, 1) for x in part.hands]
    again = "".join(f', "{x}": saved["{n} {x}"]' for n, x in hands)
    names = "".join(f'"{x}", ' for _, x in hands)
    body += [f"given = {{**given{again}}}", f"needs = needs.union(({names}))", "gradients = Gradients()"]
    option = ", packed" if backend != "torch" else ""
    for n, part in reversed(list(enumerate(c.strata, 1))):
        own = "".join(f', "{x}": gradients.take("{x}")' for x in part.hands)
        own = f"{{**cotangents{own}}}" if own else "cotangents"
        call = f"given, states, constants, kept_of({n}, saved), {own}, final_cotangents, needs{option}"
        body += [
            f"# {', '.join(s.name for s in part.compiled.step.states)}",
            f"gradients.add({_function(n, backend, 'backward')}({call}))",
        ]
    body.append("return gradients.of(given), gradients.initial")
    return "\n".join([*lines, *(INDENT + x for x in body)])


def _forward_states(c: Compiled) -> str:
    lines = [
        "def torch_forward_states(given, states, constants, exchange):",
        f'{INDENT}"""The states that enter this part of a sequence: of each stratum, once those before it are run."""',
    ]
    body = ["entering = {}"]
    for n, part in enumerate(c.strata, 1):
        body.append(f"# {', '.join(s.name for s in part.compiled.step.states)}")
        body.append(f"entering |= {_function(n, 'torch', 'forward_states')}(given, states, constants, exchange)")
        if part.hands:
            body.append(f"made = {_function(n, 'torch', 'forward')}(given, entering, constants)[0]")
            body.append(f"given = {{**given{_handed(part)}}}")
    body.append("return entering")
    return "\n".join([*lines, *(INDENT + x for x in body)])


def _backward_states(c: Compiled) -> str:
    lines = [
        "def torch_backward_states(given, states, constants, saved, cotangents, final_cotangents, exchange):",
        f'{INDENT}"""The gradients of the states that leave this part of a sequence: one stratum after the other."""',
    ]
    body = ["some, leaving, gradients = {}, {}, Gradients()  # what kernels have saved may lie in another way"]
    for n, part in enumerate(c.strata, 1):
        body.append(f"made, _, some[{n}] = {_function(n, 'torch', 'forward')}(given, states, constants)")
        body += [f"given = {{**given{_handed(part)}}}"] if part.hands else []
    for n, part in reversed(list(enumerate(c.strata, 1))):
        own = "".join(f', "{x}": gradients.take("{x}")' for x in part.hands)
        body.append(f"# {', '.join(s.name for s in part.compiled.step.states)}")
        body.append(f"own = {{**cotangents{own}}}" if own else "own = cotangents")
        call = f"given, states, constants, some[{n}], own"
        body.append(f"leaving |= {_function(n, 'torch', 'backward_states')}({call}, final_cotangents, exchange)")
        if part.takes:
            needs = ", ".join(f'"{x}"' for x in part.takes)
            body.append(f"gradients.add({_function(n, 'torch', 'backward')}({call}, leaving, frozenset({{{needs}}})))")
    body.append("return leaving")
    return "\n".join([*lines, *(INDENT + x for x in body)])


def _handed(part: Part) -> str:
    return "".join(f', "{x}": made["{x}"]' for x in part.hands)


def _packed(c: Compiled, backend: str, kind: str, rest: str) -> list[str]:
    """Statements that hand packed sequences to the same function, a batch for each length; kernels take them as they are."""
    if backend != "torch":
        return []
    per_step = ", ".join(f'"{v.name}"' for v in c.step.variables if v.per_step)
    return [
        "if packed is not None:",
        f"{INDENT}per_step = [{per_step}]",
        f"{INDENT}return {kind}_by_length(torch_{kind}, per_step, given, states, constants{rest}, packed)",
    ]
