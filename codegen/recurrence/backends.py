"""The backends of a recurrence, each as the text of two functions, and what that text imports."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from ..ir.code import Code, Literal, plus, times
from ..ir.expr import dim_of, leaf_names
from ..ir.launch_ir import Function, Given, Return, Set
from ..ir.python_code import TRUE, Constant, Fixed, Named, made_by, method
from ..ir.step_program import StepProgram
from ..ir.words import Definitions, apart, reached, text_of
from ..printing.code_passes import part_of
from ..printing.launch_text import launch_definition
from .chunkwise.compiled import Compiled, once
from .gates.column_gate import gate_segment_maps
from .step.adjoint import adjoint
from .step.column_maps import ColumnMaps, segment_maps, without_added
from .step.entries import EntryMaps
from .stepwise import (
    maps_torch,
    maps_triton,
    sequential_torch,
    sequential_triton,
    starts,
)
from .stepwise.initial import depends_on_parameters
from .stepwise.kernel import beside, together_of
from .stepwise.names import sizes
from .stepwise.tiling import tiling
from .strata.framed import MODULES as FRAMED
from .strata.joined import MODULES as JOINED
from .strata.joined import joined_features, joined_parts
from .torch_form.passes import torch_definitions, torch_saved
from .torch_form.scan import scan_definitions
from .torch_form.segment_maps import segment_definitions
from .triton import IMPORTS as TRITON_IMPORTS
from .triton import (
    CannotPrint,
    Fine,
    cuttable,
    fused_backward_of,
    in_substeps,
    scanned,
    schedule_of,
    triton_form,
)


@dataclass(frozen=True)
class Section:
    """What a file has of one backend: its definitions. `modules` are the runtime modules whose names it may use: module -> names.

    `stepwise` says why a chunk-parallel recurrence runs in recurrent form here, or is None. `features` are those of
    `runtime.signature.Backend`: what the two functions take beyond the plain case; `saved` is its `saved`.
    """

    backend: str
    parts: Definitions
    modules: dict[str, str]
    stepwise: str | None = None
    features: tuple[str, ...] = ()
    states: bool = False  # has it functions for the states that enter a segment of a sequence?
    saved: dict[str, tuple[tuple[str, ...], str]] | None = None

    @property
    def text(self) -> str:
        return text_of(self.parts)


_TORCH = {
    "chunkform.runtime.launch.varlen": "backward_by_length forward_by_length",
    "chunkform.runtime.torch_form.decays": (
        "apart_mask decay_all decay_in decay_mask decay_out channel_apply channel_product triangular_inverse order_mask left_out"
    ),
    "chunkform.runtime.torch_form.coupled_states": "TransitionMatrices",
    "chunkform.runtime.torch_form.segment_maps": "LONG_CHUNK Segment map_of_segment over_chunks",
    "chunkform.runtime.torch_form.chunks": (
        "CHANNEL_CHUNK CHUNK call_of chunks_of dtype_of expanded from_chunks from_heads from_steps from_boundaries in_float64 "
        "in_segments or_zeros per_head steps_first steps_or_zeros to_chunks"
    ),
}
_SCANS = {
    "chunkform.runtime.launch.varlen": "backward_by_length forward_by_length",
    "chunkform.runtime.torch_form.scans": "LONG backward_in_segments entering forward_in_segments scan_maps scan_turns",
    "chunkform.runtime.torch_form.chunks": (
        "call_of dtype_of expanded from_heads from_steps or_zeros per_head steps_first steps_or_zeros"
    ),
}
_SEQUENTIAL = {
    "chunkform.runtime.launch.launch": "launch with_heads",
    "chunkform.runtime.launch.varlen": "backward_by_length forward_by_length",
    "chunkform.runtime.torch_form.recurrent": (
        "block_of computed_in gradient_like incoming is_narrow layout_of narrow parts_at_most rows_of_tile segment_length "
        "stacked strides_of tile_of too_wide typed_like stages_for warps_for whole_warps"
    ),
    "chunkform.runtime.torch_form.chunks": "dtype_of",
    "chunkform.runtime.torch_form.entry_segments": "InSegments",
}
_STEPWISE = ("packed", "groups", "inference", "replays")


def sections(c: Compiled) -> tuple[Section, Section]:
    """The torch form and the Triton kernels."""
    return torch_section(c), triton_section(c)


def torch_section(c: Compiled) -> Section:
    if c.strata:
        return _joined(c, list(_of_strata(c, torch_section)))
    if c.family == "scan":
        return Section("torch", scan_definitions(c), _SCANS, features=_torch_features(c), states=True)
    if c.forward is None:
        return _over_steps("torch", sequential_torch, c, _torch_features(c))
    own = apart([*torch_definitions(c), *segment_definitions(c)])
    return Section("torch", own, _TORCH, features=_torch_features(c), states=True, saved=torch_saved(c))


def _of_strata(c: Compiled, section: Callable[[Compiled], Section]) -> Iterator[Section]:
    for n, x in enumerate(c.strata, 1):
        with part_of(f"part{n}"):
            yield section(x.compiled)


def _torch_features(c: Compiled) -> tuple[str, ...]:
    return ("packed", "mixed", "own start") if depends_on_parameters(c) else ("packed", "mixed")


def _over_steps(
    backend: str,
    source: Callable[[Compiled, str], Definitions],
    c: Compiled,
    features: tuple[str, ...],
    stepwise: str | None = None,
) -> Section:
    """The recurrent form; over many segments of a sequence at once, where a segment is a map of the states. `source` makes
    functions whose names begin as it is told."""
    entries = c.entries
    if c.forward is not None:  # there is a form over chunks, but no kernels
        entries = segment_maps(c.step)
        if entries is not None:
            gate_segment_maps(c.step, entries)
    if entries is None:
        return Section(backend, source(c, backend), _SEQUENTIAL, stepwise=stepwise, features=features)
    per_step = tuple(v.name for v in c.step.variables if v.per_step)
    alone = without_added(c.step)
    constant = constant_maps(alone)  # then one step in float64 tells all
    maps = maps_torch if constant else {"torch": maps_torch, "triton": maps_triton}[backend]
    linear = maps(replace(c, step=alone, adjoint=adjoint(alone)), f"{backend}_maps")
    begins = [f"{backend}_{x}" for x in ("steps_forward", "steps_backward", "maps")]
    more = [*_more(c, entries), *([Named("constant", TRUE)] if constant else [])]
    run = Set(("run",), made_by("InSegments", *begins, Constant(entries.groups), Constant(per_step), *more))
    taken = {
        name: [x for x in words if backend == "triton" or x != "needs_backward"] for name, words in _SEGMENTS.items()
    }
    functions = [
        Function(
            f"{backend}_{name}",
            tuple(Given(x, _DEFAULTS.get(x)) for x in words),
            _DOCS[name],
            (run, Return(method("run", name, *(Named(x, Fixed(x)) if x in _DEFAULTS else x for x in words)))),
            frees=False,
        )
        for name, words in taken.items()
    ]
    return Section(
        backend,
        apart([*source(c, f"{backend}_steps"), *linear, *map(launch_definition, functions)]),
        _SEQUENTIAL,
        stepwise=stepwise,
        features=tuple(x for x in features if x != "replays"),  # segments are joined between launches
        states=True,
    )


def constant_maps(alone: StepProgram) -> bool:
    """Do steps without what they add multiply by the same each time?"""
    per_step = {(v.kind, v.name) for v in alone.variables if v.per_step}
    return not any(leaf_names(x) & per_step for x in alone.updates.values())


def _more(c: Compiled, entries: EntryMaps | ColumnMaps) -> list[Named]:
    """What `InSegments` takes besides: how many entries states have, how many of them lie beside the axis that is cut where steps
    are taken several at once, how many runs make the maps of vectors, and the states that the spec sets."""
    layout = sizes(c.step).dims

    def entries_of(dims: Iterable[str]) -> Code:
        found = [layout[d] for d in dims]
        return times(*found) if found else Literal(1)

    rows = {s.name: entries_of(map(dim_of, s.axes)) for s in c.step.states}
    more = [Named("entries", plus(*rows.values()))]
    p = c.step
    cut = tiling(list(p.updates.values()), p.outputs, [s.axes for s in p.states])
    if together_of(cut, [*p.updates.values(), *cut.outputs.values()], [v.axes for v in p.variables if v.per_step]) > 1:
        more.append(Named("beside", entries_of(beside(p, cut))))
    if isinstance(entries, ColumnMaps):
        more.append(Named("columns", Constant(entries.columns)))
        whole = [plus(*(rows[n] for n in g)) for g in entries.groups if entries.columns[g[0]][0] is None]
        more += [Named("runs", made_by("max", 1, *whole))] if whole else []
    if any(s.initial is not None for s in c.step.states):
        more.append(Named("start", Fixed("torch_start")))
        more += [Named("start_gradients", Fixed("torch_start_gradients"))] if depends_on_parameters(c) else []
    return more


_GIVEN = ["given", "states", "constants"]
_BACK = [*_GIVEN, "saved", "cotangents", "final_cotangents"]
_SEGMENTS = {
    "forward": [*_GIVEN, "packed", "needs_backward"],
    "backward": [*_BACK, "needs", "packed"],
    "forward_states": [*_GIVEN, "exchange"],
    "backward_states": [*_BACK, "exchange"],
}
_DEFAULTS = {"packed": Literal(None), "needs_backward": TRUE}
_DOCS = {
    "forward": "(outputs, final states, what the backward pass uses), in recurrent form over many segments at once.",
    "backward": "(gradients, gradients of the initial states), over the same segments.",
    "forward_states": "The states that enter this segment of a sequence.",
    "backward_states": "The gradients of the states that leave this segment of a sequence.",
}


def triton_saved(c: Compiled, count: int = 1) -> dict[str, tuple[tuple[str, ...], str]]:
    """The layout of what kernels that take `count` steps of c for each save in any case: the writes, and states at
    checkpoints, as `Backend.saved` has it."""
    times = "" if count == 1 else f"{count} "
    found = {n: (("B", f"{times}T", "H", *dims[3:]), "input") for n, (dims, _) in torch_saved(c).items()}
    for s in c.step.states:
        if s.name in schedule_of(c).given:
            found[f"{s.name} checkpoints"] = ("B", "H", f"{times}T intervals", *(dim_of(a) for a in s.axes)), "input"
    return found


def _joined(c: Compiled, parts: list[Section]) -> Section:
    """The section of a recurrence that is compiled stratum by stratum."""
    backend = parts[0].backend
    beside = [
        torch_section(p.compiled).parts if backend != "torch" and p.compiled.forward is None else () for p in c.strata
    ]
    features = [x.features for x in parts]
    states = backend == "torch" and c.frame is None and all(x.states for x in parts)
    own = joined_parts(c, backend, [x.parts for x in parts], beside, features, states)
    modules = JOINED | (FRAMED if c.frame is not None else {})
    others = []
    if c.frame is not None and (states := c.entries is not None):
        source = {"torch": sequential_torch, "triton": sequential_triton}[backend]
        others = [_over_steps(backend, source, c, ())]
        own = apart([*own, *reached(others[0].parts, [f"{backend}_forward_states", f"{backend}_backward_states"])])
    for x in (*parts, *others):
        for module, names in x.modules.items():
            modules[module] = " ".join(sorted({*modules.get(module, "").split(), *names.split()}))
    reasons = [f"{p.compiled.name}: {x.stepwise}" for p, x in zip(c.strata, parts, strict=True) if x.stepwise]
    return Section(
        backend, own, modules, "; ".join(reasons) or None, joined_features(backend, features), states,
    )  # fmt: skip


@once
def triton_section(
    c: Compiled, exchanges: bool = True, fine: Fine | None = None, unwanted: str | None = None
) -> Section:
    """Kernels over chunks; over steps where the recurrence, or the chunk program that the kernels would need, asks for it."""
    alone = fine is None and unwanted is None
    if c.strata:
        return _joined(c, list(_of_strata(c, lambda x: triton_section(x, False))))
    if alone and scanned(c):
        return Section("triton", triton_form(c).definitions, TRITON_IMPORTS, features=(*_STEPWISE, "finals"), saved={})
    if c.forward is None:
        return _over_steps("triton", sequential_triton, c, _STEPWISE)
    try:
        part, count = in_substeps(c) if alone else (c, 1)
        elsewhere = ["exchange"] if exchanges and cuttable(part) else []
        features = ("packed", "groups", "inference", "finals", "replays", *elsewhere)
        own = triton_form(c, exchanges, fine, unwanted).definitions
        if alone and fused_backward_of(part) is not None:
            features = (*features, "overwrites")
        return Section("triton", own, TRITON_IMPORTS, features=features, saved=triton_saved(part, count))
    except CannotPrint as why:
        return _over_steps("triton", _with_start, c, _STEPWISE, stepwise=str(why))


def _with_start(c: Compiled, begins: str) -> Definitions:
    """Kernels of the recurrent form beside a torch form over chunks, which has no first states."""
    return apart([*starts(c), *sequential_triton(c, begins)], "\n")
