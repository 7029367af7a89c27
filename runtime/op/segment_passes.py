"""Both passes of an op on one segment of a sequence, with what enters it from the segments of other ranks."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import FunctionCtx

from ..launch.replay import layouts, replayed
from ..launch.varlen import Packed
from ..parallel.group import Group
from ..parallel.incoming import Exchange, Segments
from ..parallel.mailboxes import known_of
from ..parallel.shards import Piece
from .autograd import no_second
from .call import Call
from .fits import fitted, made_at, unmarked
from .passes import arguments_of, keeps, run_backward, run_forward, saved_again
from .signature import OVERWRITE, Backend

Tensors = dict[str, Tensor]
Maybe = dict[str, Tensor | None]
Flat = Sequence[Tensor | None]


@dataclass(frozen=True)
class Job:
    """A call on one rank. `pieces` are those of packed sequences in this segment, of `count` in all; None where not packed.

    `inline`: the passes themselves find what enters the segment, on their way. `final`: the final states are asked for.
    `names`: of the `given` arguments, and of the states. `node`: ranks of a node. `replays`: what was seen of calls of this kind,
    or None.
    """

    call: Call
    torch_form: Backend
    pieces: list[Piece] | None
    count: int | None
    inline: bool
    final: bool
    names: tuple[str, ...]
    given: int
    node: int
    replays: dict[Any, Any] | None = None

    @property
    def returned(self) -> int:
        """How many results a call has: outputs and final states, which may be None."""
        return len(self.call.signature.outputs) + len(self.call.signature.states)

    @property
    def plain(self) -> Call:
        """The call for one stretch of steps in the torch form, which finds what enters a segment."""
        return replace(self.call, backend=self.torch_form)

    def states_call(self, kind: str) -> Call:
        """The call whose backend has `forward_states` or `backward_states`: that which computes, or else the torch form's."""
        return self.call if getattr(self.call.backend, kind) is not None else self.plain


class Parallel(torch.autograd.Function):
    """Both passes of an op on one segment of a sequence."""

    @staticmethod
    def forward(ctx: FunctionCtx, job: Job, group: Group, *tensors: Tensor | None) -> tuple[Tensor | None, ...]:
        results, (ctx.call, ctx.entering, ctx.saved) = results_of(job, group, tensors)
        ctx.job, ctx.group, ctx.spent = job, group, False
        ctx.alike = torch._C._autograd._top_saved_tensors_default_hooks(True) is None
        ctx.save_for_backward(*tensors[: job.given], *results[job.returned :])
        ctx.set_materialize_grads(False)
        return tuple(results[: job.returned])

    @staticmethod
    def backward(ctx: FunctionCtx, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        job, wanted, known = ctx.job, ctx.needs_input_grad[2:], ctx.saved_tensors
        count, names = job.given + len(ctx.entering), ctx.saved
        if not ctx.alike:  # whatever hooks have made of it: passes take what they have saved as they have left it
            known = (*known[:count], *(None if x is None else x.contiguous() for x in known[count:]))
        if ctx.spent:  # by an earlier backward pass over the same graph
            names, known = None, known[:count]
        ctx.spent = ctx.saved is not None and "overwrites" in ctx.call.backend.features
        task = _Task(job, ctx.group, ctx.call, ctx.entering, names, wanted, len(known) if ctx.alike else 0)
        if torch.is_grad_enabled():  # create_graph=True
            return None, None, *_Backward.apply(task, *known, *gradients)
        return None, None, *task.gradients((*known, *gradients))


@dataclass(slots=True, eq=False)
class _Task:
    """A backward pass. The names of what entered, and of what was saved, None where the forward pass is computed again. `alike`:
    how many of its tensors are laid out alike in all calls of this kind."""

    job: Job
    group: Group
    call: Call
    entering: tuple[str, ...]
    saved: tuple[str, ...] | None
    wanted: tuple[bool, ...]
    alike: int

    def gradients(self, tensors: Flat) -> list[Tensor | None]:
        """Of arguments and states, from arguments, what entered, what was saved, and cotangents."""
        key = None
        if self.job.replays is not None:
            key = self.saved, self.wanted, layouts(tensors[self.alike :])
        return _exchanging(self.job, self.group, key, tensors, self._run)[0]

    def _run(self, flat: Flat) -> tuple[list[Tensor | None], None]:
        job, rest = self.job, list(flat)
        counts = job.given, len(self.entering), len(self.saved or ())
        given, entering, saved = ([rest.pop(0) for _ in range(n)] for n in counts)
        kept: Tensors | None = None
        if self.saved is not None:
            kept = dict(zip(self.saved, saved, strict=True))
        named = dict(zip(self.entering, entering, strict=True))
        needs = frozenset(name for name, w in zip(job.names, self.wanted, strict=True) if w)
        with torch.no_grad():
            return _backward(job, self.group, self.call, given, named, kept, rest, needs), None


class _Backward(torch.autograd.Function):
    """The backward pass where something may differentiate it, which is refused."""

    @staticmethod
    def forward(ctx: FunctionCtx, task: _Task, *tensors: Tensor | None) -> tuple[Tensor | None, ...]:
        ctx.name = task.job.call.signature.name
        return tuple(task.gradients(tensors))

    @staticmethod
    def backward(ctx: FunctionCtx, *_: object) -> NoReturn:
        raise no_second(ctx.name)


def results_of(job: Job, group: Group, tensors: Flat) -> tuple[list[Tensor | None], Any]:
    """As `_forward`, or a replay of it."""
    return _exchanging(job, group, "forward", tensors, functools.partial(_forward, job, group))


def _exchanging(
    job: Job, group: Group, key: object, tensors: Flat, run: Callable[[Flat], Any]
) -> tuple[list[Tensor | None], Any]:
    """run(tensors), or a replay of it, whose collectives have no message of ours.

    Gradients are none of torch's concern here; its wrappers around collectives take longer than the collectives otherwise.
    """
    boxes = known_of(group)
    if boxes is not None:
        boxes.check(group)
        boxes.in_order()
    if job.replays is None:
        return run(tensors)
    try:
        with torch._C._AutoDispatchBelowAutograd():
            return replayed(job.replays, key, tensors, run)
    except dist.DistError as error:
        raise group.failed(error) from error
    except RuntimeError:
        if boxes is not None:
            boxes.check(group)
        raise


def _forward(job: Job, group: Group, flat: Flat) -> tuple[list[Tensor | None], Any]:
    """Outputs, final states, what entered, and what is kept; then the call of both passes, and names of the last two, None for
    the last where the forward pass is computed again."""
    signature = job.call.signature
    given: Tensors = dict(zip(job.names, flat[: job.given], strict=False))  # type: ignore[arg-type]
    states = dict(zip(job.names[job.given :], flat[job.given :], strict=True))
    first = group.rank == 0
    exchange = Exchange(group, 1, first, node=job.node)
    if job.inline:
        call, entering = job.call, states if first else dict.fromkeys(states)
        outputs, finals, saved = run_forward(replace(call, exchange=exchange), given, entering)
        entering = states if first else dict(exchange.arrived)
    else:
        if job.pieces is None:
            call, entering = job.call, _enter(job, group, given, states, exchange)
        else:
            call, entering = _packed_call(job, given), _enter_pieces(job, group, given, states)
        outputs, finals, saved = run_forward(call, given, entering)
    ends: Maybe = dict(_finals(job, group, finals)) if job.final else dict.fromkeys(finals)
    results = [outputs[n] for n, _ in signature.outputs] + [ends[n] for n, _ in signature.states]
    if not call.needs_backward:
        return results, (call, (), None)
    if not keeps(call, flat, saved):
        return [*results, *entering.values()], (call, tuple(entering), None)
    return [*results, *entering.values(), *saved.values()], (call, tuple(entering), tuple(saved))


def _backward(
    job: Job,
    group: Group,
    call: Call,
    inputs: list[Tensor | None],
    entering: Maybe,
    saved: Tensors | None,
    gradients: Flat,
    needs: frozenset[str],
) -> list[Tensor | None]:
    """The gradients of arguments and states in order, None where they aren't among `needs`. What is `saved` is lost; where it is
    None, it is computed again, from what entered and without the other ranks."""
    signature, count = job.call.signature, len(job.call.signature.outputs)
    given: Tensors = dict(zip(job.names, inputs, strict=False))
    cotangents = dict(zip((n for n, _ in signature.outputs), gradients, strict=False))
    finals = dict(zip((n for n, _ in signature.states), gradients[count:], strict=True))
    if saved is None:
        saved = saved_again(call, given, entering)
    if job.inline:
        last = group.rank == group.size - 1
        call = replace(call, exchange=Exchange(group, -1, last, node=job.node))
        leaving = finals if last else dict.fromkeys(finals)
    elif job.pieces is None:
        leaving = _leave(job, group, given, entering, saved, cotangents, finals)
    else:
        leaving = _leave_pieces(job, group, given, entering, cotangents, finals)
    saved = {**saved, OVERWRITE: None}  # type: ignore[dict-item]
    inner, initial = run_backward(call, given, entering, saved, cotangents, leaving, needs | set(finals))
    found = inner | _initial(job, group, initial, needs & set(finals))
    return [found.get(n) if n in needs else None for n in job.names]


# --- one sequence -----------------------------------------------------------------------------------------------------


def _states(
    job: Job,
    kind: str,
    given: Tensors,
    states: Maybe,
    *rest: object,
    kept: Callable[[Call, int], Mapping[str, Tensor]] | None = None,
) -> Any:
    """`forward_states` or `backward_states` of the backend that computes, or else of the torch form. kept(call, level): what is
    saved of the forward pass."""

    def run(call: Call, level: int) -> Any:
        saved = () if kept is None else (kept(call, level),)
        function = getattr(call.backend, kind)
        return function(arguments_of(call, given), states, call.constants, *saved, *rest)

    return fitted(job.states_call(kind), given, kind.removesuffix("_states"), run)


def _enter(job: Job, group: Group, given: Tensors, states: Maybe, exchange: Exchange) -> Maybe:
    """The states that enter this rank's segment; on the first rank those given, None for the spec's own."""
    first = group.rank == 0
    entering = _states(job, "forward_states", given, states if first else dict.fromkeys(states), exchange)
    return states if first else entering


def _leave(
    job: Job, group: Group, given: Tensors, entering: Maybe, saved: Tensors, cotangents: Maybe, finals: Maybe
) -> Maybe:
    """The gradients of the states that leave this rank's segment; on the last rank those given."""
    last = group.rank == group.size - 1
    exchange = Exchange(group, -1, last, node=job.node)

    def kept(call: Call, level: int) -> Mapping[str, Tensor]:
        if call.backend is not job.call.backend or made_at(saved) != level:
            return _Recomputed(call, given, entering)
        return unmarked(saved)

    leaving = finals if last else dict.fromkeys(finals)
    return _states(job, "backward_states", given, entering, cotangents, leaving, exchange, kept=kept)


def _finals(job: Job, group: Group, finals: Tensors) -> Tensors:
    """The final states of the sequences that end here, and zeros for the others."""
    if job.pieces is None:
        ends = group.rank == group.size - 1
        return finals if ends else {n: torch.zeros_like(x) for n, x in finals.items()}
    assert job.count is not None
    rows = [i for i, p in enumerate(job.pieces) if p.ends]
    own = [job.pieces[i].sequence for i in rows]
    out = {}
    for name, x in finals.items():
        out[name] = x.new_zeros((job.count, *x.shape[1:]))
        out[name][own] = x[rows]
    return out


def _initial(job: Job, group: Group, initial: Tensors, names: set[str] | frozenset[str]) -> Tensors:
    """The gradients of the initial states that count here, and zeros for the others."""
    if job.pieces is None:
        if group.rank == 0:
            return initial
        return {n: torch.zeros_like(x) for n, x in initial.items() if n in names}
    assert job.count is not None
    rows = [i for i, p in enumerate(job.pieces) if p.begins]
    own = [job.pieces[i].sequence for i in rows]
    out = {}
    for name, x in initial.items():
        out[name] = x.new_zeros((job.count, *x.shape[1:]))
        out[name][own] = x[rows]
    return out


# --- packed sequences -------------------------------------------------------------------------------------------------


def _packed_call(job: Job, given: Tensors) -> Call:
    assert job.pieces is not None
    if not job.pieces:
        return job.plain
    some = next(given[a.name] for a in job.call.signature.arguments if a.per_step)
    starts = [*(p.start for p in job.pieces), some.shape[1]]
    packed = Packed(
        torch.tensor(starts, device=some.device), len(job.pieces), max((p.end - p.start for p in job.pieces), default=0)
    )
    return replace(job.call, packed=packed)


def _enter_pieces(job: Job, group: Group, given: Tensors, states: Maybe) -> Maybe:
    """For each piece the states that enter it. The last piece is what goes on, in the next rank's segment, if anything does."""
    assert job.pieces is not None
    last = job.pieces[-1] if job.pieces else None
    exchange = Exchange(group, 1, last is not None and last.begins, packed=True, node=job.node)
    rows = {n: None if x is None or last is None else x[last.sequence, None] for n, x in states.items()}
    _states(job, "forward_states", _steps(job, given, last), rows, exchange)
    default: Tensors = {}
    if any(x is None for x in states.values()):  # as the spec has them: what a segment without steps starts from
        default = _states(job, "forward_states", _steps(job, given, None), dict.fromkeys(states), _echo)
    out: Maybe = {}
    for name, given_states in states.items():
        parts = []
        for p in job.pieces:
            if not p.begins:
                parts.append(exchange.arrived[name])
            else:
                parts.append(default[name] if given_states is None else given_states[p.sequence, None])
        like = exchange.arrived[name]
        out[name] = torch.cat([x.to(like.dtype) for x in parts or [like]])
    return out


def _leave_pieces(job: Job, group: Group, given: Tensors, entering: Maybe, cotangents: Maybe, finals: Maybe) -> Maybe:
    """For each piece the gradients of the states that leave it. The first piece is what goes on in the rank before."""
    assert job.pieces is not None
    first = job.pieces[0] if job.pieces else None
    exchange = Exchange(group, -1, first is not None and first.ends, packed=True, node=job.node)
    own = _steps(job, given, first)
    count = 1 if first is not None else 0
    here = {n: None if x is None or not count else x[:1] for n, x in entering.items()}
    rows = {n: None if x is None or first is None else x[first.sequence, None] for n, x in finals.items()}
    span = (first.start, first.end) if first is not None else (0, 0)
    seen = {n: None if x is None else x[:, span[0] : span[1]] for n, x in cotangents.items()}
    _states(
        job, "backward_states", own, here, seen, rows, exchange, kept=lambda call, level: _Recomputed(call, own, here)
    )
    out: Maybe = {}
    for name, given_finals in finals.items():
        arrived = exchange.arrived[name]
        parts = []
        for p in job.pieces:
            if not p.ends:
                parts.append(arrived)
            elif given_finals is None:
                parts.append(torch.zeros_like(arrived))
            else:
                parts.append(given_finals[p.sequence, None].to(arrived.dtype))
        out[name] = torch.cat(parts or [arrived])
    return out


def _steps(job: Job, given: Tensors, piece: Piece | None) -> Tensors:
    """The arguments over one piece, or over no steps."""
    start, end = (piece.start, piece.end) if piece is not None else (0, 0)
    return {
        a.name: given[a.name][:, start:end] if a.per_step else given[a.name]
        for a in job.call.signature.arguments
        if a.name in given
    }


def _echo(segments: Segments) -> Segments:
    return tuple(s.entering for s in segments)


class _Recomputed(Mapping[str, Tensor]):
    """What the torch form's forward pass saves, computed when it is asked for: few recurrences need any of it here."""

    def __init__(self, call: Call, given: Tensors, entering: Maybe) -> None:
        self.call, self.given, self.entering = call, given, entering
        self.saved: Tensors | None = None

    def _all(self) -> Tensors:
        if self.saved is None:
            self.saved = run_forward(self.call, self.given, self.entering)[2]
        return self.saved

    def __getitem__(self, key: str) -> Tensor:
        return self._all()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())
