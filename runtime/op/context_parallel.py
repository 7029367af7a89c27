"""An op on a sequence whose segments lie on the ranks of a group: what a call says, and whether all ranks make it."""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from chunkform.errors import ArgumentError, BackendError, ChunkformError

from ..launch.replay import layouts
from ..parallel.agreement import Facts, agreed
from ..parallel.graphs import outside_of_graphs
from ..parallel.group import Group, group_of
from ..parallel.links import ranks_of_a_node
from ..parallel.shards import host_boundaries, pieces_of
from . import debugging
from .arguments import autocast_dtype, checked, checked_states, states_of
from .backend_choice import chosen_backend
from .call import Call, Wants, is_empty
from .segment_passes import Job, Parallel, results_of
from .signature import Backend, Signature, States

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

Tensors = dict[str, Tensor]
Maybe = dict[str, Tensor | None]

KINDS = 256  # of calls, remembered for each group


class SharedOp(Protocol):
    """What is asked of an op."""

    @property
    def signature(self) -> Signature: ...
    @property
    def backends(self) -> dict[str, Backend]: ...


KNOWN: weakref.WeakKeyDictionary[Any, dict[Any, _Seen]] = weakref.WeakKeyDictionary()


def run(
    op: SharedOp,
    given: dict[str, Tensor | float],
    initial_state: States = None,
    output_final_state: bool = False,
    cu_seqlens: Tensor | None = None,
    context_parallel: ProcessGroup | None = None,
    deterministic: bool = False,
) -> tuple[Tensor | tuple[Tensor, ...] | None, ...]:
    """(outputs.., final state) of this rank's segment: [B, T of this segment, H, ...].

    Segments lie in the order of the ranks, and may differ in length. `initial_state` counts on the rank where a sequence
    begins, and the final state is returned on the rank where it ends; elsewhere the one isn't looked at, and the other is
    zeros. Packed: `cu_seqlens` has the boundaries in the whole sequence, the same on all ranks; states are [N, H, ...].

    Raises:
        ArgumentError: an argument is wrong, or differs between ranks; the same error on every rank.
        GroupError: an exchange failed.
    """
    return _run(op, given, initial_state, output_final_state, cu_seqlens, context_parallel, deterministic)


@outside_of_graphs
def _run(
    op: SharedOp,
    given: dict[str, Tensor | float],
    initial_state: States,
    final: bool,
    cu_seqlens: Tensor | None,
    context_parallel: ProcessGroup | None,
    deterministic: bool,
) -> tuple[Tensor | tuple[Tensor, ...] | None, ...]:
    group = group_of(op.signature.name, context_parallel)
    known = KNOWN.setdefault(group.processes, {})
    options = final, deterministic
    kind, tensors = (None, []) if cu_seqlens is not None else _kind(op, given, initial_state, options)
    seen, everything = None if kind is None else known.get(kind), None
    if seen is not None and group.on_host:  # whose ranks say at every call what it is
        said = seen.said
        everything = agreed(group, lambda: said, tensors[0].device, key=seen.key)
        if seen.lengths != (lengths := _lengths(everything)):
            seen = known.get((kind, lengths))
    if seen is None:
        own = tensors
        seen, tensors = _agreed(op, group, given, initial_state, options, cu_seqlens, everything)
        if kind is not None and all(x is y for x, y in zip(own, tensors, strict=True)):
            if len(known) >= KINDS:
                known.clear()
            known[kind] = known[kind, seen.lengths] = seen
    if seen.job.call.needs_backward:
        results = Parallel.apply(seen.job, group, *tensors)
    else:
        results = results_of(seen.job, group, tensors)[0]
    outputs, finals = results[: len(op.signature.outputs)], results[len(op.signature.outputs) :]
    last: Any = None
    if final:
        last = finals[0] if len(finals) == 1 else tuple(finals)
    return (*outputs, last)


def _kind(
    op: SharedOp, given: dict[str, Tensor | float], initial_state: States, options: tuple[bool, bool]
) -> tuple[Hashable, list[Tensor | None]]:
    """What calls have in common that need be looked at only once, and the tensors of this one; None where each is looked at."""
    s = op.signature
    try:
        tensors = [given[a.name] for a in s.tensors]
        tensors += [None] * len(s.states) if initial_state is None else states_of(s, initial_state)
        numbers = [(given[a.name], type(given[a.name])) for a in s.constants] if s.constants else ()
        kind = tensors[0].device.type
        return (op, layouts(tensors), options, autocast_dtype(kind), torch.is_grad_enabled(), *numbers), tensors
    except (AttributeError, TypeError, RuntimeError, ChunkformError):  # something is wrong: the checks say what
        return None, []


def _agreed(
    op: SharedOp,
    group: Group,
    given: dict[str, Tensor | float],
    initial_state: States,
    options: tuple[bool, bool],
    cu_seqlens: Tensor | None,
    everything: list[Facts] | None,
) -> tuple[_Seen, list[Tensor | None]]:
    """A call that all ranks make, and its arguments and states in order. `options`: are final states wanted, and is what is cut
    cut by lengths alone. `everything`: what ranks have said already."""
    prepared: _Prepared | None = None
    error: ChunkformError | None = None
    try:
        prepared = _prepare(op, given, initial_state, cu_seqlens, options[1])
    except ChunkformError as problem:
        error = problem
    said = _facts(op.signature, prepared, group)
    key = None if prepared is None or cu_seqlens is not None else _key(op.signature, prepared)
    if everything is None:
        everything = agreed(group, lambda: said, _device(given), error, key)
    assert prepared is not None
    node = min(x["node"] for x in everything)
    job = prepared.job(op, group, _lengths(everything), node, options[0])
    return _Seen(job, said, key, _lengths(everything)), [*prepared.tensors.values(), *prepared.states.values()]


def _lengths(everything: list[Facts]) -> tuple[int, ...]:
    """Of the segments, by rank."""
    return tuple([x["T"] for x in everything])


# --- what a call says -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Prepared:
    """The checked arguments of one rank."""

    tensors: Tensors
    constants: dict[str, float]
    sizes: dict[str, int]
    states: Maybe
    boundaries: list[int] | None
    backend: str
    deterministic: bool

    @property
    def needs_backward(self) -> bool:
        everything = (*self.tensors.values(), *self.states.values())
        return torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in everything)

    def job(self, op: SharedOp, group: Group, lengths: tuple[int, ...], node: int, final: bool) -> Job:
        name = op.signature.name
        pieces = None
        if self.boundaries is not None:
            if self.boundaries[0] != 0 or self.boundaries[-1] != sum(lengths):
                raise ArgumentError(
                    f"{name}: cu_seqlens must start with 0 and end with {sum(lengths)}, the number of steps on all ranks of "
                    f"context_parallel together, got {self.boundaries[0]} and {self.boundaries[-1]}"
                )
            pieces = pieces_of(self.boundaries, [*lengths], group.rank)
        torch_form = op.backends["torch"]
        backend = torch_form if is_empty(self.tensors.values()) else op.backends[self.backend]
        wants = Wants(final, self.needs_backward)
        call = Call(op.signature, backend, self.constants, self.sizes["H"], wants=wants, plain=torch_form)
        call.deterministic = self.deterministic
        inline = pieces is None and min(lengths) > 0 and "exchange" in backend.features
        count = None if self.boundaries is None else len(self.boundaries) - 1
        names = (*self.tensors, *self.states)
        replays = {} if inline and "replays" in backend.features else None
        return Job(call, torch_form, pieces, count, inline, final, names, len(self.tensors), node, replays)


def _prepare(
    op: SharedOp,
    given: dict[str, Tensor | float],
    initial_state: States,
    cu_seqlens: Tensor | None,
    deterministic: bool,
) -> _Prepared:

    name = op.signature.name
    if debugging.switched_on and debugging.can_look():
        values = [given[a.name] for a in op.signature.tensors]
        states = states_of(op.signature, initial_state)
        debugging.look(op.signature, [*values, *states], states=op.signature.state_layouts)
    if op.backends["torch"].forward_states is None:
        raise ArgumentError(
            f"{name}: context_parallel needs a recurrence that is affine in its state; this one runs in recurrent form"
        )
    tensors, constants, sizes = checked(op.signature, given)
    boundaries = None if cu_seqlens is None else host_boundaries(name, cu_seqlens, sizes["B"])
    states = checked_states(
        op.signature, initial_state, tensors, sizes, None if boundaries is None else len(boundaries) - 1
    )
    backend = chosen_backend(op, None, tensors)
    if boundaries is not None and "packed" not in op.backends[backend].features:
        raise BackendError(f"{name}: cu_seqlens: the {backend} backend of this op takes no packed sequences yet")
    if boundaries is not None and "own start" in op.backends["torch"].features and None in states.values():
        raise ArgumentError(
            f"{name}: initial_state must be given with cu_seqlens and context_parallel: it is made of parameters here"
        )
    return _Prepared(tensors, constants, sizes, states, boundaries, backend, deterministic)


def _key(signature: Signature, p: _Prepared) -> tuple[Hashable, ...]:
    """What `_facts` are made of, beside boundaries."""
    tensors = tuple((x.shape, x.dtype, x.requires_grad) for x in p.tensors.values())
    states = any(x is not None and x.requires_grad for x in p.states.values())
    device = next(iter(p.tensors.values())).device.type
    called = signature.name, signature.names, p.deterministic, *p.constants.items()
    return called, tensors, states, torch.is_grad_enabled(), device


def _facts(signature: Signature, p: _Prepared | None, group: Group) -> tuple[Facts, Facts]:
    """What must be the same on all ranks, and what this rank has."""
    same: dict[str, Any] = {"the op": signature.name, "the size of the group": group.size}
    if p is None:
        return same, {}
    for a in signature.arguments:
        if a.name in p.tensors:
            x = p.tensors[a.name]
            shape = ["T" if dim == "T" else n for dim, n in zip(a.layout, x.shape, strict=True)]
            same[f"the shape of {a.key}"] = f"[{', '.join(map(str, shape))}]"
            same[f"the dtype of {a.key}"] = str(x.dtype).removeprefix("torch.")
            same[f"whether {a.key} needs a gradient"] = x.requires_grad and torch.is_grad_enabled()
        else:
            same[f"the constant {a.key}"] = p.constants[a.name]
    same["the option deterministic"] = p.deterministic
    same["whether anything needs a gradient"] = p.needs_backward
    same["the kind of device"] = next(iter(p.tensors.values())).device.type
    if p.boundaries is not None:
        digest = hashlib.blake2b(repr(p.boundaries).encode(), digest_size=8).hexdigest()
        same["cu_seqlens"] = f"{len(p.boundaries) - 1} sequences, {p.boundaries[-1]} steps (hash {digest})"
    return same, {"T": p.sizes["T"], "node": ranks_of_a_node()}


def _device(given: Mapping[str, object]) -> torch.device:
    return next((x.device for x in given.values() if isinstance(x, Tensor)), torch.device("cpu"))


@dataclass(frozen=True)
class _Seen:
    """A kind of call: what is done, what this rank says of it, a key of that, and how long the ranks' segments are."""

    job: Job
    said: tuple[Facts, Facts]
    key: Any
    lengths: tuple[int, ...]
