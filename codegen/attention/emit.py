"""Pass 4, emit: a compiled attention -> the text of its generated file."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any

from chunkform.spec.language.attention import Attention

from ..ir.code import Binary, Items, Literal, Not
from ..ir.expr import Node, leaves, walk
from ..ir.launch_ir import Code, Function, If, Return, Set, ref, takes
from ..ir.python_code import FALSE, TRUE, Constant, Dictionary, Fixed, Named, a_list, made_by, said, several
from ..ir.words import Definition, Definitions, apart, defined, outside, text_of
from ..printing.code_passes import finished_function, told
from ..printing.formatting import formatted
from ..printing.launch_text import launch_definition
from ..printing.parameters import OPTIONS, TENSOR, Parameter, constant, listed, result
from ..printing.spelling import spelled
from ..printing.stub import Results, Stub
from ..printing.templates import render
from ..recurrence.compiler_fault import blaming
from ..recurrence.emit import check_name, escaped, imported_as, title_of, version_lines, wrapped
from .compiled import CompiledAttention
from .defaults import default_functions, default_of
from .derivation import derivation_lines, formulas
from .feature_maps import Map
from .features_kernel import Made, call_of, made_by_kernels
from .kernels_text import features_definition, kernel_definitions
from .lettered import attention_in_letters
from .lower import QUERY, Lowered, lower
from .pipeline import PASSES
from .print_maps import Printed, gradient_names, is_product, print_gradients, print_map, setup_statements, where_needed
from .torch_tile import torch_functions

IMPORTS = {
    "chunkform.runtime.attention.op": "AttentionOp",
    "chunkform.runtime.attention.passes": "AttentionBackend Maps Moved",
    "chunkform.runtime.attention.arguments": "After AttentionArgument AttentionSignature",
    "chunkform.runtime.attention.feature_maps": "combine half_turn inner joined later parted",
    "chunkform.runtime.attention.products": "contract over_batch",
    "chunkform.runtime.attention.kernels": (
        "averaged finite held load_block load_matrix load_vector log_sum_exp online products products_and scaled_online "
        "store_block three_ones weighted"
    ),
    "chunkform.runtime.attention.launch": "Kernels backward fit forward forward_and_output of_positions",
    "chunkform.runtime.torch_form.chunks": "expanded",
}


# what every file has of these at its margin, beside its functions
AT_MARGIN = frozenset({"AttentionOp", "AttentionBackend", "Maps", "AttentionSignature", "AttentionArgument"})


@blaming
def emit(c: CompiledAttention, tidy: bool = True) -> str:
    """The generated file of an attention, formatted where `tidy`."""
    with told(c.name, len(PASSES)):
        return _emitted(c, tidy)


def _emitted(spec: CompiledAttention, tidy: bool) -> str:
    c = spec
    parts = definitions(spec)
    moved = None if c.moved is None else {"made": "moved_kernel_features" in defined(parts), "sizes": moved_sizes(c)}
    imported = imported_names(parts, moved is not None)
    check_name(spec.spec, (*imported_as(imported, {}), "attention_torch"), parts)
    out = render(
        "attention/attention.py.jinja",
        title=escaped(title_of(spec)),  # type: ignore[arg-type]
        command=f"chunkform build {spec.name}",
        hash=spec_hash(spec),
        derivation=wrapped(derivation_lines(spec)),
        imports=import_text(imported),
        body=text_of(parts),
        made="kernel_features" in defined(parts),
        after="triton_forward_and_output" in defined(parts),
        moved=moved,
        signature=signature(spec).text,
        name=spec.name,
        parameters=listed(parameters(spec)),
        returned=returned(spec),
        docstring=escaped(docstring(spec)),
        given="{" + ", ".join(f'"{v.name}": {v.name}' for v in spec.spec.variables) + "}",
        causal="causal" if c.spec.nodes is None else "False",
    )
    return formatted(out) if tidy else out


def definitions(spec: CompiledAttention) -> Definitions:
    """What an attention's file defines, but for its op."""
    c, alphabet = attention_in_letters(spec)
    outputs = print_map(c.lowered, c.outputs)
    parts = [
        *feature_functions(c, ""),
        *(() if c.moved is None else feature_functions(c.moved, "moved_")),
        _map_function("outputs", ("averaged",), OUTPUTS, outputs, list(outputs.results.items())),
        _gradient_function(c, "output_gradients", ("averaged", "cotangents"), OUTPUT_GRADIENTS, c.outputs),
        *torch_functions(c.split, c.derivatives),
        *kernel_definitions(c.split, c.outputs, c.derivatives, c.spec.normaliser, c.moved is not None),
        *default_functions(spec),
    ]
    return spelled(apart(parts), alphabet)


FEATURES = (
    "What the kernel takes: features of queries and keys [B, H, T, width], rows and columns [B, H, T], scalars [H]."
)
FEATURE_GRADIENTS = "The gradient of what the op is given, as far as it is needed, through the features."
OUTPUTS = "The outputs, from averages over keys."
OUTPUT_GRADIENTS = "The gradient of averages, and of what the op is given, as far as it is needed, through the outputs."


def feature_functions(c: CompiledAttention, begins: str) -> list[Definition]:
    """Features, kernels that make some of them, and gradients through them; where names begin so, with the key's matrix on the
    query's side."""
    told = "`features`, with the key's matrix on the query's side: keys are values." if begins else FEATURES
    plain = print_map(c.lowered, c.features)
    found = [_map_function(f"{begins}features", (), told, plain, feature_results(c, plain))]
    made = made_by_kernels(c.lowered, c.features, begins)
    if made:
        printed = print_made(c, made, f"{begins}features")
        told = f"`{begins}features`, of which kernels make what they can."
        found += map(features_definition, made)
        found.append(_map_function(f"{begins}kernel_features", (), told, printed, feature_results(c, printed)))
    told = "`feature_gradients` of `moved_features`." if begins else FEATURE_GRADIENTS
    given = ("cotangents", "features")
    return [*found, _gradient_function(c, f"{begins}feature_gradients", given, told, c.features)]


def _map_function(name: str, more: Sequence[str], told: str, p: Printed, results: list[tuple[str, Code]]) -> Definition:
    """A function that makes the results of a map."""
    body = (*p.setup, *p.lines, Return(Dictionary(tuple(results), closed=True)))
    return launch_definition(
        finished_function(Function(name, takes("given", "constants", "at", *more), told, body, frees=False))
    )


def _gradient_function(c: CompiledAttention, name: str, more: Sequence[str], told: str, made: Map) -> Definition:
    """A function that makes the gradients through a map."""
    of_features = made is c.features
    kept, cotangents = (kept_features(c), joined_cotangents(c)) if of_features else ({}, None)
    p = print_gradients(c.lowered, made, kept, cotangents)
    body = (*p.setup, *where_needed(p, gradient_names(c.lowered, made)), Return(ref("found")))
    f = Function(name, takes("given", "constants", "at", *more, "needs"), told, body, frees=False)
    return launch_definition(finished_function(f))


def moved_sizes(c: CompiledAttention) -> tuple[str, str]:
    """The dims of the score, as it is written and with the matrix moved."""
    own, other = (next(iter(x.split.scores.values()))[0].axes[0] for x in (c, c.moved) if x is not None)
    return _dim(own), _dim(other)


def imported_names(parts: Definitions, moved: bool) -> dict[str, set[str]]:
    """What a file needs of each module; of torch and Triton, nothing but the module."""
    used = set(outside(parts) | AT_MARGIN | ({"Moved"} if moved else set()))
    return {"torch": set(), "triton": set(), **{m: used & set(names.split()) for m, names in sorted(IMPORTS.items())}}


def import_text(imported: dict[str, set[str]]) -> str:
    lines = [
        "import torch",
        "import triton",
        "import triton.language as tl",
        *version_lines(),
        "from chunkform.runtime.attention import torch_form as attention_torch",
    ]
    lines += [f"from {module} import {', '.join(sorted(names))}" for module, names in imported.items() if names]
    return "\n".join(lines)


def spec_hash(c: CompiledAttention) -> str:
    """A hash of what the spec says, not of how its file is laid out."""
    return _hash_of(c.lowered)


@blaming
def declared_hash(a: Attention) -> str:
    """The same of an attention that isn't compiled: no gate need run to find a file in the cache."""
    return _hash_of(lower(a))


def _hash_of(p: Lowered) -> str:
    said = [p.name, repr(p.dims), p.spec.normaliser]
    said += [repr((v.name, v.kind, tuple(map(str, v.dims)), str(v.default))) for v in p.spec.variables]
    said += [p.energy.key] + [f"{n} {x.key}" for n, x in (*p.averages.items(), *p.outputs.items())]
    return hashlib.sha256("\n".join(said).encode()).hexdigest()[:16]


# --- features as the kernel takes them ----------------------------------------------------------------------------------


def feature_results(c: CompiledAttention, printed: Printed) -> list[tuple[str, Code]]:
    """Blocks of a score's features joined, and everything in its shape."""
    s, r = c.split, printed.results
    out: list[tuple[str, Code]] = []
    for name, score in s.numbered.items():
        own = [len(part.axes) for part in s.scores[name]]
        for feature in (score.query, score.key):
            parts = [r[f"{feature}_{m}"] for m, _ in enumerate(own, 1)]
            out.append((feature, made_by("at.wide", _joined(parts, own))))
    parts = [r[v] for v in s.values]
    out.append(("value", made_by("at.wide", _joined(parts, [len(axes) for _, axes in s.values.values()]))))
    out += [(n, made_by("at.per_position", r[n], "at.keys")) for n in s.columns]
    out += [(n, made_by("at.per_position", r[n], "at.queries")) for n in s.rows]
    out += [(n, made_by("at.per_head", r[n])) for n in s.scalars]
    if "row" in r:
        out.append(("row", made_by("at.per_position", r["row"], "at.queries")))
    return out


def print_made(c: CompiledAttention, made: list[Made], otherwise: str = "features") -> Printed:
    """The features where kernels make some of them; where they can't after all, those of the function `otherwise`."""
    p, every = c.lowered, {n: x for m in made for n, x in m.results.items()}
    places = {n: n for n in every} | {n: other for m in made for n, other in m.same.items()}
    rest = {n: x for n, x in c.features.results.items() if n not in places}
    matrices = {n: x for m in made for n, x in m.matrices.items()}
    axes = c.features.axes | {n: x.axes for n, x in matrices.items()}
    printed = print_map(p, replace(c.features, results=rest | matrices, axes=axes))
    nodes = [*rest.values(), *matrices.values(), *every.values()]
    setup = setup_statements(p, replace(c.features, results=rest | every), nodes)
    setup = [x for x in setup if not (isinstance(x, Set) and x.names[0] in matrices)]
    dims = sorted({d for m in made for d in m.dims})
    sizes = (f"size_{d}" for d in dims)
    instead = Return(made_by(otherwise, "given", "constants", "at"))
    setup.append(If(Not(made_by("fit", "at", *sizes)), (instead,)))
    lines = [*printed.lines, *(Set((n,), printed.results[n]) for n in matrices)]
    lines.append(Set(("made",), reduce(lambda a, b: Binary("|", a, b), map(call_of, made))))
    results = {n: x for n, x in printed.results.items() if n not in matrices}
    return Printed(setup, lines, results | {n: Fixed("made")[other] for n, other in places.items()})


def _joined(parts: list[Code], own: list[int]) -> Code:
    return parts[0] if len(parts) == 1 and own[0] == 1 else made_by("joined", a_list(*parts), a_list(*own))


def kept_features(c: CompiledAttention) -> dict[Node, str]:
    """Products that are features as they are."""
    found = {}
    for name, blocks in c.split.scores.items():
        for side in ("query", "key"):
            node = getattr(blocks[0], side)
            if len(blocks) == 1 and len(blocks[0].axes) == 1 and is_product(node):
                found[node] = getattr(c.split.numbered[name], side)
    return found


def joined_cotangents(c: CompiledAttention) -> dict[str, Code]:
    """Where the cotangents of features are to be found that are parts of others."""
    s, found = c.split, dict[str, Code]()
    for name, score in s.numbered.items():
        blocks = s.scores[name]
        for feature in (score.query, score.key):
            for m in range(len(blocks)):
                found[f"{feature}_{m + 1}"] = _parted(feature, [part.axes for part in blocks], m)
    for m, v in enumerate(s.values):
        found[v] = _parted("value", [axes for _, axes in s.values.values()], m)
    return found


def _parted(source: str, widths: list[tuple[str, ...]], m: int) -> Code:
    value = Fixed("cotangents")[source]
    if len(widths) == 1 and len(widths[0]) == 1:
        return value
    shapes = (Items(tuple(Fixed("at.sizes")[_dim(a)] for a in w), closed=bool(w)) for w in widths)
    return made_by("parted", value, a_list(*shapes))[m]


def _dim(axis: str) -> str:
    return axis.rstrip("'")


# --- signature and documentation ----------------------------------------------------------------------------------------


def signature(c: CompiledAttention) -> Code:
    """What the runtime is told of the op's arguments and results."""
    arguments = []
    for v in c.spec.variables:
        default = () if v.default is None else (Named("default", default_of(v)),)
        arguments.append(made_by("AttentionArgument", said(v.name), said(v.kind), _names(map(str, v.dims)), *default))
    outputs = []
    for n, axes in c.lowered.output_axes.items():
        at_positions = c.lowered.query == QUERY
        dims = axes[1:] if at_positions else axes
        outputs.append(several(said(n), Literal(at_positions), _names(map(_dim, dims))))
    values = [several(said(n), _names(map(_dim, axes))) for n, (_, axes) in c.split.values.items()]
    names = gradient_names(c.lowered, c.features) | gradient_names(c.lowered, c.outputs)
    scalars = {n: tuple(sorted({x.attrs[1] for x in leaves(node)})) for n, node in c.split.scalars.items()}
    p = c.lowered
    whole = walk(p.energy, *p.averages.values(), *p.outputs.values())
    turned = sorted({_dim(x.attrs[0][0]) for x in whole if x.op == "half_turn"})
    words: dict[str, Code] = {
        "name": said(c.name),
        "arguments": _closed(arguments),
        "outputs": _closed(outputs),
        "values": _closed(values),
        "normaliser": said(c.spec.normaliser),
    }
    if c.spec.nodes is not None:
        words["nodes"] = said(str(c.spec.nodes))
    words |= {"gradient_of": Constant(names), "scalars": Constant(scalars)}
    if any(v.kind == "mass" for v in c.outputs.variables):
        words["mass"] = TRUE
    if turned:
        words["even"] = _names(turned)
    return made_by("AttentionSignature", **words)


def _names(names: Iterable[str]) -> Code:
    return _closed(map(said, names))


def _closed(values: Iterable[Code]) -> Code:
    found = tuple(values)
    return Items(found, closed=bool(found))


def parameters(c: CompiledAttention) -> list[Parameter]:
    """What the op takes, in order."""
    given = [v for v in c.spec.variables if v.kind != "constant"]
    numbers = [constant(v.name, v.default) for v in c.spec.variables if v.kind == "constant"]
    flags = ["output_lse"] if c.spec.nodes is not None else ["causal", "output_lse"]
    named = [Parameter(n, "bool", FALSE, True) for n in flags]
    named += [Parameter(n, *OPTIONS[n], True) for n in ("context_parallel", "backend", "deterministic")]
    return [
        *(_parameter(v, None) for v in given if v.default is None),
        *(_parameter(v, Literal(None)) for v in given if v.default is not None),
        *numbers,
        *named,
    ]


def _parameter(v: Any, default: Code | None) -> Parameter:
    kind = f"{TENSOR} | float" if v.kind == "temperature" else TENSOR
    return Parameter(v.name, kind if default is None else f"{kind} | None", default)


def returned(c: CompiledAttention) -> str:
    """The type of what the op returns: one output, or several, and after them the log-sum-exp where asked for."""
    count = len(c.lowered.outputs)
    one = TENSOR if count == 1 else result(count - 1, TENSOR)
    return f"{one} | {result(count, TENSOR)}"


def stub(c: CompiledAttention) -> Stub:
    """The op for the stub of the catalogue."""
    outputs = tuple(c.lowered.output_axes)
    plain = None if len(outputs) == 1 else Results(f"_{c.name}_result", outputs)
    with_lse = Results(f"_{c.name}_lse_result", (*outputs, "lse"))
    title = escaped(title_of(c))  # type: ignore[arg-type]
    return Stub(c.name, title, parameters(c), {False: plain, True: with_lse}, "output_lse")


def docstring(c: CompiledAttention) -> str:
    a = c.spec
    lines = [f"{(a.doc or c.name.replace('_', ' ')).strip().rstrip('.')}.", ""]
    lines += [f"    {line}" for line in formulas(c)]
    lines += ["", "Args:"]
    aligned = any(v.kind == "stream" for v in a.variables)
    for v in a.variables:
        own = [str(d) for d in v.dims]
        match v.kind:
            case "query" | "stream":
                text = f"[{', '.join(['B', 'T', 'H', *own])}]."
            case "key":
                text = f"[{', '.join(['B', 'T' if aligned else 'S', 'H', *own])}]; H may be fewer, which divide the others'."
            case "fixed":
                text = f"[{', '.join(['H', *own])}], the fixed queries."
            case "parameter":
                text = f"[{', '.join(['H', *own])}], one a head."
            case "temperature":
                text = "a tensor [H] or a number, above 0" + (
                    f"; {v.default} where None." if v.default is not None else "."
                )
            case _:
                text = "a number."
        lines.append(f"    {v.name}: {text}")
    if a.nodes is None:
        lines.append(
            "    causal: let query i see keys up to its own position; the last query stands where the last key does."
        )
    if a.normaliser == "softmax":
        what = "[B, H, nodes]" if a.nodes is not None else "[B, T, H]"
        lines.append(f"    output_lse: also return the log-sum-exp of each row's energies, {what}, float32.")
    lines += ["    context_parallel: a group of processes that hold a part of the positions each."]
    lines += [
        "    backend: 'torch', 'triton', or None for the best one on the tensors' device.",
        "    deterministic: a sequence's bits depend on nothing else in the call.",
        "",
        "Returns:",
    ]
    lead = ["B", "T", "H"] if c.lowered.query == QUERY else ["B", "H"]
    outs = ", ".join(
        f"{n} [{', '.join([*lead, *map(_dim, axes[1:] if c.lowered.query == QUERY else axes)])}]"
        for n, axes in c.lowered.output_axes.items()
    )
    lines.append(f"    {outs}, in the inputs' dtype; rows that see nothing average to 0.")
    lines += [
        "",
        "Raises:",
        "    chunkform.errors.ArgumentError: an argument has a wrong shape, dtype, device or value.",
    ]
    if a.source:
        lines += ["", f"Source: {a.source}"]
    return "\n    ".join(lines).replace("\n    \n", "\n\n") + "\n    "
