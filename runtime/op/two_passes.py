"""What an op of any kind hands to what is shared: both passes of a call, and what it takes to connect them to torch.

Recurrences and programs (`passes.py`) and attentions (`runtime/attention/passes.py`) differ in what is computed. How autograd,
functorch and replays see a call (`autograd.py`) is the same for all of them.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    from torch import Tensor

    from ..launch.replay import Replays

Flat: TypeAlias = "Sequence[Tensor | None]"
Saved: TypeAlias = "dict[str, Tensor | None]"


class TwoPasses(Protocol):
    """A call, but for its tensors. These are in order: arguments, then states.

    head_axes, result_head_axes: where heads are in each of them, and in each result. outputs: results that mostly have gradients;
    others follow. starts: a tensor beside, that says where packed sequences start. owner: what passes depend on that launch the
    same kernels, beside tensors. overwrites: may the backward pass put gradients in the place of what was saved? replays: what
    was seen of calls of this kind, None where nothing is replayed.
    """

    @property
    def name(self) -> str: ...
    @property
    def head_axes(self) -> tuple[int, ...]: ...
    @property
    def result_head_axes(self) -> tuple[int, ...]: ...
    @property
    def outputs(self) -> int: ...
    @property
    def starts(self) -> Tensor | None: ...
    @property
    def owner(self) -> tuple[Hashable, ...]: ...
    @property
    def overwrites(self) -> bool: ...
    @property
    def needs_backward(self) -> bool: ...
    @property
    def replays(self) -> Replays | None: ...

    def forward(self, tensors: Flat, keep: bool = True) -> tuple[list[Tensor], Saved | None]:
        """Results, and what is kept for the backward pass: None where that computes the forward pass again, as without `keep`."""

    def backward(
        self, tensors: Flat, saved: Saved | None, cotangents: Flat, wanted: Sequence[bool]
    ) -> list[Tensor | None]:
        """The gradients of tensors, None where not `wanted`. Where `saved` is None, the forward pass is computed again."""

    def batched(self, size: int) -> TwoPasses:
        """The call for `size` times the heads."""

    def starting(self, starts: Tensor) -> TwoPasses:
        """The call with other `starts`."""
