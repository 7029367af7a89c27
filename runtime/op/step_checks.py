"""Checks of a decoding step's arguments beside those of the op."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from chunkform.errors import ArgumentError

from .arguments import check_states, states_of
from .forward_mode import refuse_tangents
from .signature import Signature
from .small_states import SmallPool


def refuse_transforms(name: str, tensors: Sequence[object]) -> None:
    """Refuse what a launch by address, and a state that is written to, know nothing of."""
    refuse_tangents(name, tensors)
    if any(isinstance(x, Tensor) and torch._C._functorch.is_functorch_wrapped_tensor(x) for x in tensors):
        raise ArgumentError(f"{name} takes no transforms of functorch (vmap, grad): use the op itself, on one step")


def check_step_states(
    signature: Signature,
    states: Sequence[object],
    tensors: dict[str, Tensor],
    sizes: dict[str, int],
    pooled: bool = False,
) -> None:
    """The same as of an op's initial states, which are called otherwise. A pool is only looked at: a copy of it takes long."""
    for x in states:
        if isinstance(x, SmallPool):
            raise ArgumentError(
                f"{signature.name}: a SmallPool is taken with state_indices, the row of each batch entry"
            )
    try:
        found = states_of(signature, list(states))
    except ArgumentError as error:
        raise ArgumentError(str(error).replace("initial_state", "state")) from None
    first = "B"
    if pooled and isinstance(found[0], Tensor) and found[0].dim() > 0:
        first, sizes = "P", sizes | {"P": found[0].shape[0]}
    check_states(signature, found, sizes, None, next(iter(tensors.values())), "state", first)


def check_out(
    signature: Signature,
    outs: Sequence[object],
    shapes: list[tuple[int, ...]],
    like: Tensor,
    lead: tuple[str, ...] = ("B", "H"),
) -> None:
    if outs and len(outs) != len(shapes):
        names = ", ".join(n for n, _ in signature.outputs)
        raise ArgumentError(f"{signature.name}: out must hold {len(shapes)} tensors ({names}), got {len(outs)}")
    for x, (name, dims), shape in zip(outs, signature.outputs, shapes, strict=False):
        what = f"{signature.name}: out" + (f" of {name}" if len(shapes) > 1 else "")
        layout = f"[{', '.join((*lead, *dims))}] = {list(shape)}"
        if not isinstance(x, Tensor):
            raise ArgumentError(f"{what} must be a tensor {layout}, got {type(x).__name__}")
        if tuple(x.shape) != shape or x.dtype != like.dtype or x.device != like.device:
            raise ArgumentError(
                f"{what} must be {layout} in {like.dtype} on {like.device}, got {list(x.shape)} in {x.dtype} on {x.device}"
            )


def check_inner(signature: Signature, groups: dict[str, list[Tensor]], lead: int = 2) -> None:
    """The kernel takes states and outputs with any strides over B and H, the `lead` axes, and contiguous within."""
    for what, tensors in groups.items():
        for x in tensors:
            expected = 1
            for n, stride in zip(reversed(x.shape[lead:]), reversed(x.stride()[lead:]), strict=True):
                if n != 1 and stride != expected:
                    raise ArgumentError(
                        f"{signature.name}: {what} must be contiguous in the axes after B and H, got the shape "
                        f"{list(x.shape)} with strides {list(x.stride())}"
                    )
                expected *= n
