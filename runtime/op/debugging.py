"""Looking at values: off by default, since on a GPU whoever looks has to wait for it.

with chunkform.debug():        chunkform.debug()             CHUNKFORM_DEBUG=1
    o, _ = op(...)             chunkform.debug(False)
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from chunkform.errors import ArgumentError

from ..launch.varlen import check_values
from .signature import Arguments, Domain

States: TypeAlias = "Sequence[tuple[str, Sequence[str]]]"

switched_on = os.environ.get("CHUNKFORM_DEBUG", "0") not in ("", "0")


class debug:
    """Look at what each op is given, from now on, or within a `with` statement: are log decays at most 0, is everything finite,
    do `cu_seqlens` rise from 0 to T, does what has a domain in the spec lie within it? The first entry that isn't so is named in
    an `ArgumentError`, before any kernel runs. So is the first entry of an output, a last state or a gradient that isn't finite,
    as where the exponential of a parameter overflows, and that of a last state that has left its domain.

    on: False looks no more. Nothing is looked at in a compiled graph or while a CUDA graph is captured, where nobody can wait.
    """

    def __init__(self, on: bool = True) -> None:
        global switched_on
        if not isinstance(on, bool):
            raise ArgumentError(f"debug: on must be True or False, got {on!r}")
        self.before, switched_on = switched_on, on

    def __enter__(self) -> debug:
        return self

    def __exit__(self, *_: object) -> None:
        global switched_on
        switched_on = self.before


def look(signature: Arguments, tensors: Sequence[object], starts: object = None, states: States = ()) -> None:
    """Look at arguments and states in order, which may be anything so far. `states` are those of a recurrence, by name.

    Raises:
        ArgumentError: names an argument, and its first entry that can't be.
    """
    what = signature.name
    if isinstance(starts, Tensor) and starts.dim() == 1 and starts.shape[0] > 1 and (x := _visible(starts)) is not None:
        first = next((x for a, x in zip(signature.tensors, tensors) if a.per_step and isinstance(x, Tensor)), None)
        if first is not None and first.dim() > 1 and not x.is_floating_point():
            check_values(f"{what}: cu_seqlens", x.cpu(), first.shape[1])
    for a, x in zip(signature.tensors, tensors):
        if (x := _visible(x)) is not None:
            RULES[a.values](f"{what}: {a.key}", a.layout, x)
            _within(f"{what}: {a.key}", a.layout, x, a.domain)
    for (n, layout), x in zip(states, tensors[len(signature.tensors) :]):
        if (x := _visible(x)) is not None:
            _finite(f"{what}: the state {n}", layout, x)
            _within(f"{what}: the state {n}", layout, x, signature.domains.get(f"the state {n}"))


def watched(
    signature: Arguments, tensors: Sequence[object], spoilt: list[bool], states: States = ()
) -> list[Tensor | None]:
    """Arguments and states whose gradients are looked at when they come, unless the loss's own were `spoilt`."""

    def seen(what: str, layout: Sequence[str], x: Any) -> Any:
        if _visible(x) is None or not (torch.is_grad_enabled() and x.requires_grad) or _is_wrapped(x):
            return x
        own = x.view_as(x)  # whose hook goes with this call
        own.register_hook(
            lambda g: None if spoilt else _follows(f"{signature.name}: the gradient of {what}", layout, g)
        )
        return own

    named = [*((a.key, a.layout) for a in signature.tensors), *states]
    return [seen(*name, x) for name, x in zip(named, tensors, strict=True)]


def look_at_results(
    signature: Arguments,
    results: Iterable[tuple[str, Sequence[str]]],
    found: Sequence[Tensor | None],
    spoilt: list[bool],
) -> None:
    """Look at results, and at the gradients of a loss by them when these come. `results` says what they are, and their axes.

    Raises:
        ArgumentError: names a result, and its first entry that isn't finite.
    """

    def told(g: Tensor) -> None:
        if not bool(g.isfinite().all()):
            spoilt.append(True)

    for (what, layout), x in zip(results, found):
        if x is not None and (y := _visible(x)) is not None:
            _follows(f"{signature.name}: {what}", layout, y)
            _within(f"{signature.name}: {what}", layout, y, signature.domains.get(what))
            if x.requires_grad and not _is_wrapped(x):
                x.register_hook(told)


def _follows(what: str, layout: Sequence[str], x: Tensor) -> None:
    """What is made of finite numbers is finite, unless some on the way have no float."""
    wrong = ~x.isfinite()
    _first(what, layout, x, wrong, "should be finite", ": all that was given is, and on the way a number overflows")


def _is_wrapped(x: Tensor) -> bool:
    return bool(torch._C._functorch.is_functorch_wrapped_tensor(x))


def _look_at_decay(what: str, layout: Sequence[str], x: Tensor) -> None:
    _first(what, layout, x, x.isnan(), "must be a number")
    if not x.numel() or not bool((wrong := x > 0).any()):
        return
    looks = bool(((x >= 0) & (x <= 1)).all())
    told = ", and looks like a decay: pass its natural logarithm, x.log()" if looks else ""
    _first(what, layout, x, wrong, "is the logarithm of a decay, and must be at most 0", told)


def _finite(what: str, layout: Sequence[str], x: Tensor) -> None:
    _first(what, layout, x, ~x.isfinite(), "must be finite")


def _above_0(what: str, layout: Sequence[str], x: Tensor) -> None:
    _first(what, layout, x, ~(x > 0) | x.isinf(), "must be above 0 and finite")


def _finite_or_masking(what: str, layout: Sequence[str], x: Tensor) -> None:
    _first(what, layout, x, x.isnan() | (x == torch.inf), "must be finite, or -inf")


RULES: dict[str, Callable[[str, Sequence[str], Tensor], None]] = {  # by what may be in an argument
    "finite": _finite,
    "log decay": _look_at_decay,
    "above 0": _above_0,
    "finite or -inf": _finite_or_masking,
}


def _within(what: str, layout: Sequence[str], x: Tensor, domain: Domain | None) -> None:
    """A domain's bounds, as x's dtype has them, are among its values: floats round to them."""
    if domain is None:
        return
    low, high = (None if b is None else float(torch.tensor(b, dtype=x.dtype)) for b in domain)
    told = f"between {low:g} and {high:g}" if low is not None and high is not None else ""
    told = told or (f"at least {low:g}" if low is not None else f"at most {high:g}")
    wrong = torch.zeros_like(x, dtype=torch.bool) if low is None else x < low
    _first(what, layout, x, wrong if high is None else wrong | (x > high), f"must be {told}, as the spec says")


def _first(what: str, layout: Sequence[str], x: Tensor, wrong: Tensor, expected: str, told: str = "") -> None:
    """Complain of the first entry that is wrong."""
    if not x.numel() or not bool(wrong.any()):
        return
    place = tuple(wrong.nonzero()[0].tolist())
    names = f"[{', '.join(layout)}]" if len(layout) == len(place) else "the index"
    count = int(wrong.sum())
    raise ArgumentError(
        f"{what} {expected}, got {float(x[place]):.6g} at {names} = {list(place)}"
        + (f", the first of {count} such entries of {x.numel()}" if count > 1 else "")
        + told
    )


def _visible(x: Any) -> Tensor | None:
    """What can be looked at: a tensor with numbers, out of what transforms have wrapped it in."""
    if not isinstance(x, Tensor):
        return None
    while torch._C._functorch.is_functorch_wrapped_tensor(x):
        x = torch._C._functorch.get_unwrapped(x)
    if type(x) not in (Tensor, torch.nn.Parameter) or x.layout != torch.strided or x.device.type == "meta":
        return None
    return x.detach()


def can_look() -> bool:
    """Is the debugging on, and is there somebody who can wait for the device?"""
    if not switched_on or torch.compiler.is_compiling():
        return False
    return not (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing())
