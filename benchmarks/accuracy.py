"""Errors of an op's outputs and gradients against the recurrence in float64, step by step."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from chunkform.codegen.checking.accuracy import head_axis, relative_error
from chunkform.codegen.recurrence.chunkwise.compiled import Compiled
from chunkform.codegen.recurrence.oracle import oracle
from chunkform.codegen.recurrence.pipeline import compile_spec
from chunkform.runtime.op.op import Signature
from chunkform.spec.language import find

from .calls import both_passes
from .inputs import Shape, draw
from .peers import OTHERS, Subject

STEPS = 256


@functools.cache
def compiled(name: str) -> Compiled:
    """A recurrence, compiled up to its plans."""
    return compile_spec(OTHERS[name][0] if name in OTHERS else find(name)[0])


@functools.lru_cache(maxsize=8)
def reference(
    name: str,
    signature: Signature,
    unit: tuple[str, ...],
    shape: Shape,
    device: str,
    dtype: torch.dtype,
    decay: str,
) -> dict[str, Tensor]:
    """Outputs and gradients (d<argument>) of a recurrence in float64, at what `draw` gives for these arguments."""
    given, cotangents = draw(signature, shape, device=device, dtype=dtype, unit=unit, decay=decay)
    names = {a.key: a.name for a in signature.arguments}
    keys = {a.name: a.key for a in signature.arguments}
    values, _, gradients, _ = oracle(
        compiled(name),
        {names[key]: x for key, x in given.items()},
        dict.fromkeys(n for n, _ in signature.states),
        {a.name: a.default for a in signature.arguments if a.kind == "constant" and a.default is not None},
        dict(zip((n for n, _ in signature.outputs), cotangents, strict=True)),
    )
    return {**values, **{f"d{keys[n]}": x for n, x in gradients.items()}}


def errors(name: str, subject: Subject, shape: Shape, device: str, dtype: torch.dtype, decay: str) -> dict[str, float]:
    """||value - reference|| / ||reference|| of the worst head of each output, and of each gradient that the op yields.

    `name` is what it computes.
    """
    given, cotangents = draw(subject.signature, shape, device=device, dtype=dtype, unit=subject.unit, decay=decay)
    outputs, gradients = both_passes(subject, given, cotangents)
    exact = reference(name, subject.signature, subject.unit, shape, device, dtype, decay)
    found = dict(zip((n for n, _ in subject.signature.outputs), outputs, strict=True))
    found |= {f"d{key}": x for key, x in gradients.items() if x is not None}
    return {n: relative_error(x, exact[n], head_axis(compiled(name).step, n)) for n, x in found.items()}
