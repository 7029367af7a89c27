"""The Triton section of a generated file."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from chunkform.runtime.launch.fingerprint import kernels_key

from ...ir.expr import plain_name
from ...ir.kernel_ir import KernelFunction
from ...ir.launch_ir import Function
from ...ir.placed_tiles import PlacedKernel
from ...ir.warp_schedule import WithRoles
from ...ir.words import Definition, Definitions, Said, apart, joined, text_of
from ...printing.code_passes import after, finished_function, finished_kernel
from ...printing.gluon_text import gluon_definitions
from ...printing.kernel_text import kernel_definition, kernel_function_text
from ...printing.launch_text import launch_definition
from ...printing.placed_text import placed_definition
from ..chunkwise.compiled import Compiled, once
from ..gates.gates import gate_plan
from ..step.adjoint import gradient_name
from .gates.chunk_gate import gate_chunks
from .gates.fused_gate import gate_fused
from .gates.grid_gate import gate_grids
from .gates.kernel_gate import gate_kernel
from .gates.output_gate import gate_outputs
from .gates.segment_gate import gate_segments, makes_ends
from .gates.sweep_gate import gate_sweep
from .kernel_plan import cuttable, kernel_plan
from .kernels.chunk_kernel import Kernel
from .kernels.coupling_weights import TransitionKernel
from .kernels.fused_backward import FusedBackward, fused_backward
from .kernels.per_step import RowKernel
from .kernels.tile_values import Fine
from .launch.elementwise_scan import ScanHost, scanned
from .launch.fused_backward import FusedBackwardHost
from .launch.joined_sweeps import JoinedSweeps, handed_over, joined_if_any
from .launch.launch_plan import HASH, Host, without
from .launch.substeps import SUBSTEP, SubstepsHost
from .placed.gate import gate_placed
from .plan_passes.checkpoint_schedule import CheckpointSchedule, checkpoint_schedule
from .plan_passes.scale_reads import simplified
from .plan_passes.value_placement import fuse
from .warp_roles.gate import gate_fused_schedule, gate_joined_schedule, gate_loaded_schedule, gate_schedule


@dataclass(frozen=True)
class TritonForm:
    """Kernels, and the functions that launch them, in the order in which they stand in a file. `built` are the kernels before all
    passes over them."""

    parts: tuple[KernelFunction | WithRoles | PlacedKernel | Function, ...]
    built: tuple[KernelFunction, ...] = ()

    @property
    def functions(self) -> dict[str, Function]:
        return {x.name: x for x in self.parts if isinstance(x, Function)}

    @property
    def definitions(self) -> Definitions:
        """What a file has of them, with the hash of the kernels."""
        parts = [(isinstance(x, Function), _definitions(x)) for x in self.parts]
        kernels = [text_of(x) for is_function, x in parts if not is_function]
        try:
            key = kernels_key(list(map(plain_name, kernels)))
        except SyntaxError:  # the spec has a name that is no name to Python
            key = kernels_key(kernels)
        return joined((tuple(_keyed(y, key) for y in x) for _, x in parts), "\n\n")

    @property
    def text(self) -> str:
        return text_of(self.definitions)


def triton_form(
    c: Compiled, exchanges: bool = True, fine: Fine | None = None, unwanted: str | None = None
) -> TritonForm:
    """The kernels of a chunk-parallel recurrence, `triton_forward` and `triton_backward`.

    `exchanges`: what enters a segment of a sequence may come from elsewhere, where kernels find it. `fine`: how it stands between
    other ops, if it does. `unwanted`: a variable whose gradient nobody wants.

    Raises `CannotPrint` for a chunk program that no kernel here computes: one triangular system for each channel; `GateError`
    where the plan that kernels sweep isn't the recurrence's adjoint, or a function reads what no launch has stored.
    """
    return _form(c, exchanges, fine, unwanted)


@once
def _form(c: Compiled, exchanges: bool, fine: Fine | None, unwanted: str | None) -> TritonForm:
    return made_form(c, exchanges, fine, unwanted)


def made_form(c: Compiled, exchanges: bool = True, fine: Fine | None = None, unwanted: str | None = None) -> TritonForm:
    """The same, made anew, and gated."""
    if fine is None and unwanted is None and scanned(c):
        return _scans(c)
    if c.substep is not None and fine is None and unwanted is None:
        inside = swept_form(c.substep, exchanges, stem=SUBSTEP)
        around = SubstepsHost(c, exchanges and cuttable(c.substep))
        functions = around.functions()
        parts = (*inside.parts, *(x for k in around.kernels for x in functions_of(k)), *functions)
        return TritonForm(parts, (*inside.built, *built(around.kernels)))
    return swept_form(c, exchanges, fine, unwanted)


def triton_source(c: Compiled, exchanges: bool = True, fine: Fine | None = None, unwanted: str | None = None) -> str:
    """The text of this, for those who look at it."""
    return triton_form(c, exchanges, fine, unwanted).text


def _scans(c: Compiled) -> TritonForm:
    """The functions of a recurrence whose states are scanned, and their kernels."""
    hosts = ScanHost(c, False), ScanHost(c, True)
    functions = [host.function_ir() for host in hosts]
    kernels = [k for host in hosts for k in host.kernels]
    return TritonForm((*(x for k in kernels for x in functions_of(k)), *functions), built(kernels))


def in_substeps(c: Compiled) -> tuple[Compiled, int]:
    """What the kernels of a recurrence are for, one of its substeps, where it has these, or a step; and how many make a step."""
    return (c, 1) if c.substep is None or c.substeps is None else (c.substep, c.substeps.count)


def swept_form(
    c: Compiled, exchanges: bool, fine: Fine | None = None, unwanted: str | None = None, stem: str = "triton"
) -> TritonForm:
    """The kernels and functions of sweeps over chunks; functions are called `stem` and the name of the pass."""
    assert c.forward is not None and c.backward is not None
    whole = kernel_plan(c, c.backward)
    if whole != c.backward:
        gate_plan(c.adjoint, c.forward, whole, of_kernels=True)
    if fine is None and unwanted is None and fused_backward_of(c) is not None:
        gate_plan(c.adjoint, c.forward, simplified(c.backward), of_kernels=True)
    passes = _passes(c, exchanges, fine, unwanted, stem, fine is None and unwanted is None and stem != SUBSTEP)
    if passes is None:
        passes = _passes(c, exchanges, fine, unwanted, stem, False)
        assert passes is not None
    parts: list[KernelFunction | WithRoles | PlacedKernel | Function] = []
    for host, function in passes.each:
        gate_grids(function, [k for k in host.kernels if isinstance(k, Kernel)])
        for k in host.kernels:
            parts += functions_of(k)
            if isinstance(k, Kernel) and k.roles is not None:
                (gate_fused_schedule if k.whole else gate_schedule)(k, k.roles)
                parts.append(WithRoles(k.function, k.roles))
            if isinstance(k, Kernel) and k.placed is not None:
                gate_placed(k, k.placed)
                parts.append(k.placed)
        parts.append(function)
    for made, function in passes.joined:
        parts += _joined(made, function)
    return TritonForm(tuple(parts), built([k for host, _ in passes.each for k in host.kernels]))


@dataclass(frozen=True)
class _Passes:
    """The functions of each pass, with who has made them; `joined` are those that launch sweeps that are one kernel with their
    prologues."""

    each: tuple[tuple[Host, Function], ...]
    joined: tuple[tuple[JoinedSweeps, Function], ...]


def _passes(
    c: Compiled, exchanges: bool, fine: Fine | None, unwanted: str | None, stem: str, joins: bool
) -> _Passes | None:
    """Both passes, not gated yet; None where sweeps that are joined with their prologues go with other kernels than those that
    aren't."""
    assert c.forward is not None and c.backward is not None
    cuts = cuttable(c)
    plan = kernel_plan(c, c.backward)
    if unwanted is not None:  # the same, but for what nobody wants
        plan = kernel_plan(c, without(c.backward, gradient_name(c.step.variable(unwanted))))
    t = fused_backward_of(c) if fine is None and unwanted is None else None
    # sweeps of a fused backward needn't be cut, as one makes all
    hosts = [] if t is None else [FusedBackwardHost(c, simplified(c.backward), cuts, exchanges, t, stem)]
    backward = Host(c, plan, True, cuts, exchanges, fine, whole=t, stem=stem)
    forward = Host(c, c.forward, False, cuts, exchanges, fine, backward, t, stem)
    each: list[tuple[Host, Function]] = []
    joined: list[tuple[JoinedSweeps, Function, Host]] = []
    if joins and (one := joined_if_any(c, c.forward, backward, stem)) is not None:
        joined.append((*one, forward))
        forward.instead = (handed_over(forward, one[0]),)
    for host in (forward, *hosts, backward):
        if host is backward and joins and (other := joined_if_any(c, plan, None, stem, forward.by_head)) is not None:
            joined.append((*other, backward))
            backward.instead = (handed_over(backward, other[0]),)
        each.append((host, host.function_ir()))
        backward.kept_by_head = forward.by_head
    if not all(_has_others(made, host) for made, _, host in joined):
        return None
    return _Passes(tuple(each), tuple((made, function) for made, function, _ in joined))


def _has_others(host: Host, other: Host) -> bool:
    """Are the kernels that a joined pass launches beside its own those of the pass that isn't joined?"""
    there = {k.name: k.function for k in other.kernels}
    joined = [k for k in host.kernels if isinstance(k, Kernel) and k.roles is not None and k.roles.prepares]
    return all(there.get(k.name) == k.function for k in host.kernels if k not in joined)


def _joined(host: JoinedSweeps, function: Function) -> list[WithRoles | Function]:
    """The kernels that sweeps of a pass are joined to, and the function that launches them."""
    found: list[WithRoles | Function] = []
    for k in host.joined:
        assert k.roles is not None
        (gate_joined_schedule if k.roles.prepares else gate_loaded_schedule)(k, k.roles)
        found.append(WithRoles(k.function, k.roles))
    return [*found, function]


@once
def schedule_of(c: Compiled) -> CheckpointSchedule:
    """What the sweeps of the backward plan do, as kernels sweep it, by what reads checkpointed states."""
    assert c.backward is not None
    plan = kernel_plan(c, c.backward)
    return checkpoint_schedule(plan, fuse(plan), [s.name for s in c.step.states])


@once
def fused_backward_of(c: Compiled) -> FusedBackward | None:
    """The backward pass as a fused backward that makes all of it, where that is faster."""
    assert c.backward is not None
    plan = simplified(c.backward)
    return (
        None if schedule_of(c).from_checkpoints else fused_backward(plan, fuse(plan), [s.name for s in c.step.states])
    )


def functions_of(k: Kernel | RowKernel | TransitionKernel) -> tuple[KernelFunction, ...]:
    """What stands in a file for a kernel, after all passes, gated."""
    if isinstance(k, Kernel):
        found = tuple(map(finished_kernel, k.functions))
        gate_over_chunks(k, found)
        return found
    f = finished_kernel(k.function)
    gate_kernel(k, f)
    return (f,)


def gate_over_chunks(k: Kernel, functions: tuple[KernelFunction, ...]) -> None:
    """Raises GateError where what passes have made of a kernel over chunks isn't what it is for."""
    if k.whole:
        gate_fused(k, functions[0])
    elif k.sweeps:
        gate_sweep(k, functions[0])
        if makes_ends(k):
            gate_segments(k, functions[0])
    elif k.reads:
        gate_outputs(k, functions)
    else:
        gate_chunks(k, functions)


def built(kernels: Iterable[Kernel | RowKernel | TransitionKernel]) -> tuple[KernelFunction, ...]:
    """The kernels before all passes."""
    return tuple(f for k in kernels for f in (k.functions if isinstance(k, Kernel) else (k.function,)))


def kernels_after(c: Compiled, name: str) -> str:
    """The kernels, printed as they are after the pass of this name, one of `KERNEL_PASSES`."""
    return "\n\n".join(kernel_function_text(after(k, name)) for k in triton_form(c).built)


def _definitions(x: KernelFunction | WithRoles | PlacedKernel | Function) -> Definitions:
    if isinstance(x, WithRoles):
        return apart(gluon_definitions(x), "\n")
    if isinstance(x, PlacedKernel):
        return (placed_definition(x),)
    return (launch_definition(finished_function(x)) if isinstance(x, Function) else kernel_definition(x),)


def _keyed(x: Definition, key: str) -> Definition:
    """A definition that has the key of the kernels, where it had what stands for it."""
    stands = f'"{HASH}"'
    if stands not in x.words:
        return x
    return Definition(tuple(Said(f'"{key}"') if y == stands else y for y in x.words), x.is_function)
