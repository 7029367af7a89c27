"""A decoding step in rows of small states, in one launch: the kernel widens what it reads, and rounds what it writes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from triton.runtime.errors import OutOfResources

from chunkform.errors import ArgumentError

from . import debugging
from .decode import Given, Plan, Step, launch_step
from .small_states import Small, SmallPool
from .step_checks import check_inner, check_out

FLOAT8 = (8, 9)  # the first GPUs that know float8


def step_in_kernel(
    step: Step, pool: SmallPool, given: Given, rows: Tensor, outs: list[Tensor], backend: object, deterministic: object
) -> list[Tensor] | None:
    """The outputs of a step, whose states are in their rows then; zeros for padding, or what `outs` had. None where the kernel
    doesn't take it, or where something may be wrong: then torch does it around the step, and says what.

    A program has all of a head whatever the batch is: where nothing is random, `deterministic` changes nothing."""
    tensors = [given[n] for n in step._tensors]
    states = [s.numbers for s in pool.states]
    others = [pool.drawn if pool.stochastic else None, *(s.scales for s in pool.states)]
    every = [*tensors, *states, *outs, rows, *(x for x in others if x is not None)]
    if (
        step.kernel is None
        or backend == "torch"
        or (backend is None and rows.device.type != "cuda")
        or not isinstance(deterministic, bool)
        or torch.compiler.is_compiling()
        or torch._C._are_functorch_transforms_active()
        or (debugging.switched_on and debugging.can_look())
        or not all(isinstance(x, Tensor) for x in every)
        or (torch.is_grad_enabled() and any(x.requires_grad for x in every))
    ):
        return None
    looks = [(x.shape, x.stride(), x.dtype, x.device, x.data_ptr() & 15) for x in every]
    plan = step.plan_of(
        ("small", pool.stochastic, len(outs), backend, *looks), lambda: _plan(step, pool, given, rows, outs)
    )
    if plan.launch is None:
        return None
    if not outs:
        outs = [torch.zeros(shape, dtype=plan.dtype, device=plan.device) for shape in plan.shapes]
    constants: dict[str, Any] = {n: x if given[n] is None else given[n] for n, x in step._constants.items()}
    scales = [s.scales for s in pool.states if s.scales is not None]
    try:
        plan.launch([*tensors, *(x for s in states for x in (s, s)), *outs], constants, (rows, *scales, others[0]))
    except OutOfResources:  # before anything was written
        plan.launch = None
        return None
    return outs


def _plan(step: Step, pool: SmallPool, given: Given, rows: Tensor, outs: list[Tensor]) -> Plan:
    """What to do with arguments like these; without a launch where the kernel doesn't take them."""
    assert step.kernel is not None
    states, s, device = [x.numbers for x in pool.states], step.signature, rows.device
    nothing = Plan(step, 0, [], torch.float32, device)
    try:
        tensors, _, sizes = step._checked(given, states)
        like = tensors[s.leading.name]
        shapes = [(sizes["B"], sizes["H"], *(sizes[d] for d in dims)) for _, dims in s.outputs]
        check_out(s, outs, shapes, like)
        check_inner(s, {"state": states, "out": outs})
    except ArgumentError:
        return nothing
    fit = all(_fits(x, axes, sizes) for x, (_, axes) in zip(pool.states, s.states, strict=True))
    cut = step.kernel.cut_small(sizes, states)
    if cut is None or not fit or rows.shape[0] != sizes["B"] or not _taken(device, [*tensors.values(), *states]):
        return nothing
    plan = Plan(step, sizes["H"], shapes, like.dtype, device)
    plan.launch = launch_step(step, sizes, [given[n] for n in step._tensors], states, outs, True, cut)  # type: ignore[misc]
    return plan


def _fits(x: Small, axes: tuple[str, ...], sizes: dict[str, int]) -> bool:
    """Is a state as the kernel takes it?"""
    shape = (sizes["H"], *(sizes[d] for d in axes))
    if tuple(x.numbers.shape[1:]) != shape:
        return False
    if not axes:
        return x.scales is None
    return x.scales is not None and tuple(x.scales.shape) == (*x.numbers.shape[:-1], 1) and x.scales.is_contiguous()


def _taken(device: torch.device, tensors: Sequence[Tensor]) -> bool:
    """Does the device run the kernel, for these dtypes?"""
    if any(x.dtype == torch.float64 or x.device != device for x in tensors):
        return False
    if device.type != "cuda":
        return os.environ.get("TRITON_INTERPRET") == "1"
    eight = any(x.dtype == torch.float8_e4m3fn for x in tensors)
    return not eight or torch.cuda.get_device_capability(device) >= FLOAT8
