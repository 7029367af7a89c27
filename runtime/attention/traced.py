"""What torch's library is told of an attention: its schema, the shapes of what it makes, and its calls.

A softmax has a log-sum-exp. Averages, and what each row's weights are computed with, are saved where gradients will be wanted;
features are made again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ..op.torch_library import Given, Layout
from .arguments import AttentionSignature, Setting, check_positive, setting_of
from .deterministic import goes_apart
from .passes import Attention, Call, output_shape


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

    @cached_property
    def tensors(self) -> tuple[str, ...]:
        return tuple(a.name for a in self.signature.arguments if a.kind != "constant")

    @cached_property
    def constants(self) -> tuple[str, ...]:
        return tuple(a.name for a in self.signature.arguments if a.kind == "constant")

    @cached_property
    def temperatures(self) -> frozenset[str]:
        return frozenset(a.name for a in self.signature.arguments if a.kind == "temperature")

    @cached_property
    def results(self) -> tuple[str, ...]:
        return (*(n for n, *_ in self.signature.outputs), *(["lse"] if self.signature.normaliser == "softmax" else []))

    @property
    def head_axes(self) -> tuple[int, ...]:
        return self.signature.head_axes(self.tensors)

    @property
    def result_head_axes(self) -> tuple[int, ...]:
        return self.signature.result_head_axes(lse=True)

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
        for n, x in zip(self.tensors, given.tensors, strict=True):
            if n in self.temperatures and x.device.type == "cpu":
                check_positive(self.signature, n, x)

    def batched(self, options: Mapping[str, Any], size: int) -> Mapping[str, Any]:
        return options

    def shapes(self, given: Given) -> list[Layout]:
        s, at = self.signature, self._at(given)
        layouts: list[Layout] = [(output_shape(s, whole, dims, at), at.low) for _, whole, dims in s.outputs]
        if s.normaliser == "softmax":
            rows = (at.batch, at.heads, at.queries) if s.nodes else (at.batch, at.queries, at.heads)
            layouts.append((rows, at.dtype))
        return layouts

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
