"""Compile an attention's kernels without a GPU: registers, spills, shared memory, tensor-core instructions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..performance.compile_report import InspectRow, KernelLaunch, module_of, report_row
from .compiled import CompiledAttention
from .emit import emit


def inspect_attention(
    c: CompiledAttention,
    arch: str,
    dtypes: tuple[str, ...],
    widths: tuple[int, ...],
    module: object = None,
    causal: bool = True,
) -> Iterator[InspectRow]:
    """A row for each kernel that a call launches, in each dtype and width, as it is compiled."""
    module = module or module_of(c.name, emit(c, tidy=False))
    for dtype in dtypes:
        for width in widths:
            for launched in launches(c, module, dtype, width, causal):
                yield report_row(launched, arch, dtype, width, 0, beside=True)


def launches(c: CompiledAttention, module: Any, dtype: str, width: int, causal: bool = True) -> list[KernelLaunch]:
    """The launches of a forward and a backward call, on tensors without data."""
    import torch

    from chunkform.runtime.attention import launch as attention_triton
    from chunkform.runtime.attention.arguments import Setting

    kind, batch, count, heads = getattr(torch, dtype), 2, 1024, 4
    found: list[KernelLaunch] = []

    def record(kernel: Any, grid: Any, *args: Any, **options: Any) -> None:
        if kernel.fn.__module__ == module.__name__:  # and not what is around them
            found.append(KernelLaunch(kernel, args, options))

    sizes = {d: width for d in c.lowered.dims}
    at = Setting(
        batch, count, count, heads, sizes, torch.float32, kind, torch.device("meta"), causal and c.spec.nodes is None
    )
    s = c.split
    features: dict[str, Any] = {}

    def wide(n: int = 1) -> Any:
        return torch.empty((batch, count, heads, min(width * n, 256)), dtype=kind, device="meta").transpose(1, 2)

    for name, score in s.numbered.items():
        features |= {x: wide(len(s.scores[name])) for x in (score.query, score.key)}
    features["value"] = wide(len(s.values))
    rows = torch.empty((batch, heads, count), device="meta")
    features |= dict.fromkeys((*s.columns, *s.rows), rows)
    features |= dict.fromkeys(s.scalars, torch.empty((heads,), device="meta"))
    given, constants = _given(module.SIGNATURE, at)
    before = attention_triton.launch
    attention_triton.launch = record
    try:
        if module.OP.maps.kernel_features is not None:
            module.OP.maps.kernel_features(given, constants, at)
        both = module.OP.backends["triton"].forward_and_output
        averages, lse, *_ = (both and both(None, given, features, at, True)) or module.triton_forward(
            None, features, at
        )
        module.triton_backward(None, features, at, averages, lse, averages, rows, frozenset(s.scalars))
    finally:
        attention_triton.launch = before
    return found


def _given(s: Any, at: Any) -> tuple[dict[str, Any], dict[str, float]]:
    """Arguments without data, and constants."""
    import torch

    sizes = at.sizes | {"B": at.batch, "T": at.keys, "S": at.keys, "H": at.heads}
    given = {}
    for a in s.arguments:
        if a.kind != "constant":
            shape = [sizes[d] for d in a.layout]
            given[a.name] = torch.empty(shape, dtype=at.low if a.per_step else at.dtype, device=at.device)
    return given, {a.name: 1.0 for a in s.arguments if a.kind == "constant"}
