"""An attention's kernels, from its derivation to their text, and the functions that the op calls to launch these."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ..ir.code import Items, Literal
from ..ir.expr import Node
from ..ir.kernel_ir import KernelFunction
from ..ir.launch_ir import Call, Code, Function, Return, takes
from ..ir.python_code import TRUE, Fixed, Named, made_by, said
from ..ir.words import Definition, Definitions, apart
from ..printing.code_passes import finished_function, finished_kernel
from ..printing.kernel_text import kernel_definition, tile_definition
from ..printing.launch_text import launch_definition, statement
from .feature_maps import Derivative, Map
from .features_kernel import Made, features_kernel
from .forward_kernel import forward_kernel
from .kernel_gate import gate_features, gate_pairs
from .keys_kernel import keys_kernel
from .normalisers import normalisers
from .pair_memory import Derivation
from .pairs import Pairs, pairs_of, scaled_score
from .rows_kernel import rows_kernel
from .split import Split
from .tile_functions import derivatives_of, energy_functions, shifted_functions, weight_functions
from .torch_tile import scale_function

KERNELS = Fixed("KERNELS")


def kernel_definitions(
    s: Split, outputs: Map, found: Mapping[Node, Derivative], normaliser: str, same: bool
) -> Definitions:
    """`same`: may the key's feature be what is averaged?

    Raises `GateError` where a kernel doesn't make what the derivation says."""
    derivatives, rule = derivatives_of(s, found), normalisers(s.lowered.query)[normaliser]
    scaled = scaled_score(s, derivatives) if normaliser == "softmax" else None
    p = pairs_of(s, outputs, derivatives, rule, scaled, same)
    functions = [*energy_functions(s, derivatives, normaliser), *weight_functions(s, rule)]
    functions += shifted_functions(s, rule) if scaled else []
    made = tuple(map(finished_kernel, kernels(p)))
    gate_pairs(Derivation(s, outputs, derivatives, rule, scaled), p, functions, made)
    parts = [*map(tile_definition, functions)]
    if scaled:
        parts.append(scale_function(s, scaled.numbers))
    parts += map(kernel_definition, made)
    parts.append(statement(record(p)))
    return apart([*parts, *(launch_definition(finished_function(f)) for f in launchers(p))])


def features_definition(m: Made) -> Definition:
    """The kernel that makes features of positions."""
    k = finished_kernel(features_kernel(m))
    gate_features(m, k)
    return kernel_definition(k)


def kernels(p: Pairs) -> tuple[KernelFunction, KernelFunction, KernelFunction]:
    return forward_kernel(p), rows_kernel(p), keys_kernel(p)


def record(p: Pairs) -> Call:
    """What the runtime is told of the kernels."""
    words: dict[str, Code] = {
        "scores": _names(s.n for s in p.scores),
        "columns": _names(p.columns),
        "rows_": _names(p.rows),
        "scalars": _names(p.scalars),
        "of_rows": _names(x.name for x in p.of_rows),
        "of_keys": _names(x.name for x in p.of_keys),
        "normaliser": said(p.normaliser),
    }
    if p.folded:
        words["score_scale"] = Fixed("score_scale")
    if p.same:
        words["same"] = TRUE
    if p.beside:
        words["beside"] = said(p.beside)
    if p.unscaled or not p.softmax:
        words["light"] = TRUE
    if p.after:
        words["after"] = made_by("After", said(p.after.output), said(p.after.matrix), Literal(p.after.across))
    kernels = ("forward_kernel", "rows_kernel", "keys_kernel")
    return Call(("KERNELS",), "Kernels", (*map(Fixed, kernels), *(Named(n, x) for n, x in words.items())), True)


def launchers(p: Pairs) -> list[Function]:
    """The functions that an attention's backend consists of."""
    found = [
        _launcher("forward", "(averages, log-sum-exp, sums of weights).", "features", "at"),
        _launcher("backward", "The cotangent of each feature.", *"features at averages lse d_averages D needs".split()),
    ]
    if p.after:
        told = "The same, with the output, where the kernel can make it; and with averages where they are to be kept."
        found.insert(1, _launcher("forward_and_output", told, "given", "features", "at", "keep"))
    return found


def _launcher(function: str, told: str, *given: str) -> Function:
    """A function that hands on what it is given, but for the op, with the kernels."""
    call = Call((), function, (KERNELS, *map(Fixed, given)))
    return Function(f"triton_{function}", takes("op", *given), told, (Return(call),), frees=False)


def _names(names: Iterable[str]) -> Code:
    found = tuple(map(said, names))
    return Items(found, closed=bool(found))
