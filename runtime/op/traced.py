"""What torch's library is told of a recurrence, or of a program: its schema, the shapes of what it makes, and its calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import torch
from torch import Tensor

from ..launch.varlen import Packed, check_values, interval_count
from .call import Wants, computed_in, make_call, result_types
from .passes import Passes
from .signature import Backend, Signature
from .torch_library import Given, Layout, Option


@dataclass(frozen=True, eq=False)
class InLibrary:
    """A recurrence or a program, as `torch_library.Kind` has it."""

    signature: Signature
    backends: dict[str, Backend]

    packed = True
    options = ("SymInt heads", "str backend", "str precision", "bool keep", "bool deterministic")

    @property
    def name(self) -> str:
        return self.signature.name

    @cached_property
    def tensors(self) -> tuple[str, ...]:
        return tuple(a.name for a in self.signature.tensors)

    @cached_property
    def states(self) -> tuple[str, ...]:
        return tuple(n for n, _ in self.signature.states)

    @cached_property
    def constants(self) -> tuple[str, ...]:
        return tuple(a.name for a in self.signature.constants)

    @cached_property
    def results(self) -> tuple[str, ...]:
        return (*(n for n, _ in self.signature.outputs), *self.states)

    @property
    def head_axes(self) -> tuple[int, ...]:
        return self.signature.head_axes

    @property
    def result_head_axes(self) -> tuple[int, ...]:
        return self.signature.result_head_axes

    def call(self, given: Given) -> Passes:
        x = given.options
        packed = None
        if given.starts is not None:
            packed = Packed(given.starts, given.starts.shape[0] - 1, given.tensors[0].shape[1])
        called = given.constants, x["heads"], packed, x["precision"], given.tensors, x["deterministic"]
        wants = Wants(True, x["keep"], "never" if x["keep"] else "always", announced=True)
        call = make_call(self.signature, self.backends, x["backend"], *called, wants)
        if "replays" in call.backend.features:
            call.replays = {}
        return Passes(call)

    def look(self, given: Given) -> None:
        if given.starts is not None:
            check_values(f"{self.name}: cu_seqlens", given.starts, given.tensors[0].shape[1])

    def batched(self, options: Mapping[str, Option], size: int) -> Mapping[str, Option]:
        return {**options, "heads": cast("int", options["heads"]) * max(size, 1)}

    def shapes(self, given: Given) -> list[Layout]:
        s, sizes = self.signature, self._sizes(given)
        sizes["N"] = sizes["B"] if given.starts is None else given.starts.shape[0] - 1
        kind, wide = self._types(given.tensors)
        layouts = [(("B", "T", "H", *dims), wide if name in s.wide else kind) for name, dims in s.outputs]
        layouts += [(("N", "H", *dims), wide) for _, dims in s.states]
        return [(tuple(sizes[d] for d in layout), dtype) for layout, dtype in layouts]

    def saved(self, given: Given) -> dict[str, Layout] | None:
        x, starts = given.options, given.starts
        backend = self.backends[x["backend"]]
        if x["deterministic"] and x["backend"] == "torch":  # which goes one by one
            return None
        if not x["keep"] or backend.saved is None or (starts is not None and not backend.saved_packed):
            return None
        sizes = self._sizes(given)
        sequences = None if starts is None else starts.shape[0] - 1
        computed = computed_in(self.signature, x["backend"], x["precision"], given.tensors)
        kind = self._types(given.tensors)[0] if computed is None else computed
        kinds = {"input": kind, "wide": torch.promote_types(kind, torch.float32)}
        return {
            n: (tuple(saved_size(d, sizes, sequences) for d in dims), kinds[which])
            for n, (dims, which) in backend.saved.items()
        }

    def _types(self, tensors: Sequence[Tensor]) -> tuple[torch.dtype, torch.dtype]:
        return result_types(self.signature, {a.name: x for a, x in zip(self.signature.tensors, tensors)})

    def _sizes(self, given: Given) -> dict[str, int]:
        sizes: dict[str, Any] = {}
        for a, x in zip(self.signature.tensors, given.tensors, strict=False):
            sizes |= dict(zip(a.layout, x.shape, strict=True))
        return sizes | {"H": given.options["heads"]}


def saved_size(dim: str, sizes: Mapping[str, int], sequences: int | None) -> int:
    """The size of a dim of what is saved, as `Backend.saved` has it."""
    if "T" not in dim.split():
        return sizes[dim]
    times, _, intervals = dim.rpartition("T")
    steps = int(times or 1) * sizes["T"]
    return interval_count(steps, sequences) if intervals else steps
