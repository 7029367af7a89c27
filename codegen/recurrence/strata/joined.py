"""The two functions of a recurrence of several strata: those of the strata in order, and backwards in reverse."""

from __future__ import annotations

from ...printing.side_by_side import function_name, named
from ..chunkwise.compiled import Compiled

INDENT = "    "
MODULES = {
    "chunkform.runtime.launch.varlen": "backward_by_length forward_by_length",
    "chunkform.runtime.op.strata": "Gradients kept kept_of",
}
COMMON = ("packed", "inference", "finals", "replays")  # features that all strata must have


def joined_text(c: Compiled, backend: str, texts: list[str], beside: list[str], features: list[tuple[str, ...]]) -> str:
    """The text of a backend from those of the strata; `beside` are texts of torch that functions in these may call."""
    parts = []
    for n, (text, other) in enumerate(zip(texts, beside, strict=True), 1):
        roots = [f"{backend}_forward", f"{backend}_backward"]
        parts.append(named(text, f"part{n}", backend, roots, other))
        if (entries := c.strata[n - 1].compiled.entries) is not None:
            functions = ", ".join(function_name(f"part{n}", backend, kind) for kind in ("forward", "backward"))
            per_step = tuple(v.name for v in c.strata[n - 1].compiled.step.variables if v.per_step)
            parts.append(f"{backend}_part{n} = InSegments({functions}, {entries.groups!r}, {per_step!r})")
    return "\n\n\n".join([*parts, _forward(c, backend, features), _backward(c, backend)])


def _function(c: Compiled, n: int, backend: str, kind: str) -> str:
    """What is called for a pass of a stratum."""
    whole = c.strata[n - 1].compiled.entries is None
    return function_name(f"part{n}", backend, kind) if whole else f"{backend}_part{n}.{kind}"


def joined_features(backend: str, features: list[tuple[str, ...]]) -> tuple[str, ...]:
    """What the joined functions take beyond the plain case."""
    if backend == "torch":
        return ("packed", "mixed")
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
            f"made, last, some = {_function(c, n, backend, 'forward')}"
            f"({', '.join(['given', 'states', 'constants', *own])})",
            "lasts |= last",
        ]
        body += [
            f'outputs["{x}"] = made["{x}"].to(given["{like}"].dtype)'
            for x in part.compiled.step.outputs
            if x not in part.hands
        ]
        hands = "".join(f', "{x}": made["{x}"]' for x in part.hands)
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
            f"gradients.add({_function(c, n, backend, 'backward')}({call}))",
        ]
    body.append("return gradients.of(given), gradients.initial")
    return "\n".join([*lines, *(INDENT + x for x in body)])


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
