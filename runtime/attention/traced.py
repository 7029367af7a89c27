"""What torch's library is told of an attention: its schema, the shapes of what it makes, and its calls.

A softmax has a log-sum-exp. Averages, and what each row's weights are computed with, are saved where gradients will be wanted;
features are made again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from ..op.torch_library import Given, Layout, Option
from .arguments import AttentionSignature, Setting, check_positive, setting_of
from .deterministic import goes_apart
from .passes import Attention, Call


@dataclass(frozen=True, eq=False)
class InLibrary:
    """An attention, as `torch_library.Kind` has it."""

    op: Attention

    packed = False
    states: tuple[str, ...] = ()
    options = ("bool causal", "str backend", "bool free", "bool deterministic", "bool keep")

    @property
    def signature(self) -> AttentionSignature:
        return self.op.signature

    @property
    def name(self) -> str:
        return self.signature.name

    @property
    def tensors(self) -> tuple[str, ...]:
        return self.signature.names

    @cached_property
    def constants(self) -> tuple[str, ...]:
        return tuple(a.name for a in self.signature.constants)

    @cached_property
    def results(self) -> tuple[str, ...]:
        return tuple(n for n, _ in self.signature.results)

    @property
    def head_axes(self) -> tuple[int, ...]:
        return self.signature.head_axes

    @property
    def result_head_axes(self) -> tuple[int, ...]:
        return self.signature.result_head_axes

    def call(self, given: Given) -> Call:
        x = given.options
        at = self._at(given)
        call = Call(self.op, x["backend"], at, self.tensors, given.constants, x["free"], needs_backward=x["keep"])
        call.deterministic = x["deterministic"]
        if call.backend == "triton" and not goes_apart(call):  # whose work depends on layouts only
            call.replays = {}
        return call

    def look(self, given: Given) -> None:
        """Temperatures above 0, where nobody has to wait for them."""
        for n in self.signature.temperatures:
            if (x := given.tensors[n]).device.type == "cpu":
                check_positive(self.signature, self.tensors[n], x)

    def batched(self, options: Mapping[str, Option], size: int) -> Mapping[str, Option]:
        return options

    def shapes(self, given: Given) -> list[Layout]:
        s, at = self.signature, self._at(given)
        sizes = at.sizes | {"T": at.queries}
        shapes = [tuple(sizes[d] for d in layout) for _, layout in s.results]
        return [(shape, at.low if n < len(s.outputs) else at.dtype) for n, shape in enumerate(shapes)]

    def saved(self, given: Given) -> dict[str, Layout] | None:
        s, at = self.signature, self._at(given)
        if not given.options["keep"] or goes_apart(self.call(given)):
            return None
        width = sum(math.prod(at.sizes[d] for d in dims) for _, dims in s.values)
        rows = (at.batch, at.heads, at.queries), at.dtype
        softmax = s.normaliser == "softmax"
        kept: dict[str, Layout] = {"averages": ((at.batch, at.queries, at.heads, width), at.low)}
        kept |= {"lse": rows} if softmax else {}
        return kept | ({} if softmax and not s.mass else {"mass": rows})

    def _at(self, given: Given) -> Setting:
        tensors = dict(zip(self.tensors, given.tensors, strict=True))
        return setting_of(self.signature, tensors, given.options["causal"])
