"""Speculative decoding: K draft steps in one launch, of which any number are taken over afterwards.

    o, drafts = op.draft(pool, q=q, .., state_indices=rows)     # arguments [B, K, H, ..], as the op's; the pool stays as it is
    pool = op.commit(drafts, accepted)                          # accepted [B]: 0 to K steps of each; the others never were

What the states after each step would be isn't known before some are accepted. Either they are all kept (`copies`), or the
accepted steps' writes are done once more, without outputs, from the arguments (`replay`): whichever moves fewer bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeAlias, TypeVar

import torch
from torch import Tensor

from chunkform.errors import ArgumentError

from . import debugging
from .arguments import check_call, one_of
from .decode import Given, Step, listed
from .forward_mode import is_on
from .pools import as_given, into_rows, pools_of, rows_of_small
from .results import Results, result_type
from .rows import checked_rows, told, write_rows
from .several import Places, Writes, holds, input_bytes, several_steps, state_bytes
from .small_states import SmallPool
from .step_checks import check_inner, check_out, check_step_states, refuse_transforms

Options: TypeAlias = "dict[str, Any]"  # as they were given, before they are checked
OPTIONS = ("state_indices", "out", "keep", "state_dtype", "backend")


Pool = TypeVar("Pool")  # what a commit returns: the states, as they were given


@dataclass(eq=False, repr=False)
class Drafts(Generic[Pool]):
    """Draft steps that aren't taken over yet. Until then their arguments and the states must not be written to.

    keeps: 'replay' or 'copies'. bytes: what each of them moves to keep and take over all steps of one sequence, beside the state
    that is read and written in any case. small: a pool and rows of it, of which `pools` are the widened states.
    """

    keeps: str
    bytes: dict[str, int]
    steps: int
    step: Step
    pools: list[Tensor]
    rows: Tensor | None
    given: dict[str, Tensor | float | None]
    sizes: dict[str, int]
    backend: str | None
    copies: list[Tensor] = field(default_factory=list)
    done: bool = False
    small: tuple[SmallPool, Tensor] | None = None

    def __repr__(self) -> str:
        return f"<{self.steps} drafts of {self.step.whole.name}, kept as {self.keeps}>"


def draft(step: Step, arguments: tuple[object, ...], options: Mapping[str, object]) -> Results:
    """(outputs.., drafts) of K steps from the states, which stay as they are."""
    if torch.compiler.is_compiling():  # launches by address, which a graph can't hold
        return torch.compiler.disable(draft)(step, arguments, options)
    name = f"{step.whole.name}.draft"
    given, found = _bound(name, step, arguments, options)
    rows, keep, backend = found.get("state_indices"), found.get("keep"), found.get("backend")
    if keep is not None:
        one_of(name, "keep", keep, ("replay", "copies"), other="None")
    state = found["state"]
    if isinstance(state, SmallPool):
        return _from_small(step, name, state, found)
    pools: list[Any] = listed(state) or [None] * len(step.whole.states)
    tensors: Any = [given[a.name] for a in step.whole.tensors]
    every = [*tensors, *pools, *listed(found.get("out"))]
    if is_on() or torch._C._are_functorch_transforms_active():
        refuse_transforms(name, every)
    if torch.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in every):
        raise ArgumentError(f"{name} has no gradient, but an argument requires one: call under torch.no_grad()")
    checked = check_call(step.whole, [*tensors, *(None for _ in step.whole.states)], given, None)  # type: ignore[arg-type]
    sizes = {n: int(x) for n, x in checked.sizes.items()}
    if sizes["T"] == 0:
        raise ArgumentError(f"{name}: there must be one step or more, got T = 0")
    if rows is None and any(x is None for x in pools):
        first = {a.name: x[:, 0] if a.per_step else x for a, x in zip(step.whole.tensors, tensors, strict=True)}
        pools = step.first_states(pools, first | checked.constants, found.get("state_dtype"))  # type: ignore[arg-type]
    if rows is not None:
        pools = pools_of(name, "state", step.whole, state)
        rows = checked_rows(name, "state_indices", rows, pools)
        if rows.shape[0] != sizes["B"]:
            raise ArgumentError(f"{name}: state_indices must be [B] = [{sizes['B']}], got {list(rows.shape)}")
    named = dict(zip((a.name for a in step.whole.tensors), tensors, strict=True))
    check_step_states(step.whole, pools, named, sizes if rows is None else sizes | {"B": pools[0].shape[0]})
    if debugging.switched_on and debugging.can_look():
        real = slice(None) if rows is None else rows >= 0
        seen = [x[real] if a.per_step else x for a, x in zip(step.whole.tensors, tensors, strict=True)]
        debugging.look(step.whole, [*seen, *pools] if rows is None else seen, states=step.whole.state_layouts)
    like = named[step.whole.leading.name]
    shapes = [(sizes["B"], sizes["T"], sizes["H"], *(sizes[d] for d in dims)) for _, dims in step.whole.outputs]
    outs = listed(found.get("out"))
    check_out(step.whole, outs, shapes, like, ("B", "T", "H"))
    check_inner(step.signature, {"out": outs}, lead=3)
    if not outs:
        make = torch.empty if rows is None else torch.zeros
        outs = [make(shape, dtype=like.dtype, device=like.device) for shape in shapes]
    of_inputs, of_states = input_bytes(step, given), state_bytes(pools)
    costs = {"replay": sizes["T"] * of_inputs, "copies": (sizes["T"] + 1) * of_states}
    keeps = keep or min(costs, key=lambda n: costs[n])
    if keeps == "replay" and like.is_cuda and not holds(step, sizes):
        keeps = keep or "copies"  # each step is a launch, and would be one again
    copies = [x.new_empty((sizes["B"] * sizes["T"], *x.shape[1:])) for x in pools] if keeps == "copies" else []
    writes = Writes(outputs=True, each=bool(copies))
    several_steps(step, given, pools, copies, outs, sizes, Places(rows=rows), writes, backend)
    drafts = Drafts(keeps, costs, sizes["T"], step, pools, rows, given, sizes, backend, copies)
    return result_type(name, (*(n for n, _ in step.whole.outputs), "drafts"))(*outs, drafts)


def _from_small(step: Step, name: str, pool: SmallPool, found: Options) -> Results:
    """Drafts from rows of a small pool, which are widened, and rounded when some are taken over."""
    if found.get("state_dtype") is not None:
        raise ArgumentError(f"{name}: a SmallPool has its own dtype: state_dtype must be left out")
    rows = rows_of_small(name, step.whole, pool, found.get("state_indices"))
    own = {n: x for n, x in found.items() if n not in ("state_indices", "out", "state")}
    *outputs, drafts = draft(step, (), own | {"state": as_given(pool.read(rows))})
    drafts.small = pool, rows
    return result_type(name, (*(n for n, _ in step.whole.outputs), "drafts"))(
        *into_rows(outputs, rows, found.get("out")), drafts
    )


def commit(step: Step, drafts: object, accepted: object) -> Tensor | tuple[Tensor, ...] | SmallPool:
    """The states, in place, after the accepted steps of each sequence."""
    if torch.compiler.is_compiling():
        return torch.compiler.disable(commit)(step, drafts, accepted)
    name = f"{step.whole.name}.commit"
    if not isinstance(drafts, Drafts) or drafts.step is not step:
        raise ArgumentError(f"{name}: drafts must be what {step.whole.name}.draft returned, got {told(drafts)}")
    if drafts.done:
        raise ArgumentError(f"{name}: these drafts were taken over before")
    count, device = drafts.sizes["B"], drafts.pools[0].device
    if isinstance(accepted, int) and not isinstance(accepted, bool):
        accepted = torch.full((count,), accepted, device=device)
    if not isinstance(accepted, Tensor) or accepted.dtype not in (torch.int32, torch.int64):
        raise ArgumentError(
            f"{name}: accepted must be a number, or a tensor [B] of int32 or int64, got {told(accepted)}"
        )
    if accepted.shape != (count,) or accepted.device != device:
        raise ArgumentError(
            f"{name}: accepted must be [B] = [{count}] on {device}, got {told(accepted)} on {accepted.device}"
        )
    if device.type == "cpu" or (debugging.switched_on and debugging.can_look()):
        for place, n in enumerate(accepted.tolist()):
            if not 0 <= n <= drafts.steps:
                raise ArgumentError(f"{name}: accepted must be 0 to {drafts.steps} steps, got {n} at {place}")
    drafts.done = True
    if drafts.copies:
        every = torch.arange(count, device=device)
        rows = every if drafts.rows is None else drafts.rows
        source = every * drafts.steps + (accepted - 1).clamp(min=0)
        states = [x.index_select(0, source) for x in drafts.copies]
        write_rows(drafts.pools, states, torch.where(accepted > 0, rows.to(accepted.dtype), -1))
    else:
        places = Places(rows=drafts.rows, counts=accepted.contiguous())
        several_steps(step, drafts.given, drafts.pools, [], [], drafts.sizes, places, Writes(last=True), drafts.backend)
    if drafts.small is not None:
        pool, rows = drafts.small
        pool.write(torch.where(accepted > 0, rows, -1), drafts.pools)
        return pool
    return drafts.pools[0] if len(drafts.pools) == 1 else tuple(drafts.pools)


def _bound(name: str, step: Step, arguments: Sequence[object], options: Mapping[str, object]) -> tuple[Given, Options]:
    """The op's arguments by declared names, and the options; the state is in them."""
    keys = ["state", *(a.key for a in step.whole.tensors)]
    constants = {a.key: a.default for a in step.whole.constants}
    if len(arguments) > len(keys):
        raise ArgumentError(f"{name} takes {', '.join(keys)} by position, and its options by name")
    found: dict[str, Any] = dict(zip(keys, arguments, strict=False))
    for n, x in options.items():
        if n in found:
            raise ArgumentError(f"{name}: {n} is given twice, by position and by name")
        if n not in (*keys, *constants, *OPTIONS):
            raise ArgumentError(f"{name} has no argument {n!r}: it takes {', '.join((*keys, *constants, *OPTIONS))}")
        found[n] = x
    missing = [n for n in (*keys, *(n for n, x in constants.items() if x is None)) if n not in found]
    if missing:
        raise ArgumentError(f"{name} needs {', '.join(missing)} as well")
    return {a.name: found.get(a.key) for a in step.whole.arguments}, found
