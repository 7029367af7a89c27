"""The ops whose decoding is tested: the catalogue, the recurrences of tests/codegen/specs, and odd step programs."""

from __future__ import annotations

import functools
import importlib.util
import sys
import tempfile
from pathlib import Path
from unittest import mock

import torch

from chunkform.codegen.ir.expr import dim_of
from chunkform.codegen.ir.step_program import StepProgram
from chunkform.codegen.recurrence import emit as emitting
from chunkform.codegen.recurrence import pipeline
from chunkform.codegen.recurrence.backends import torch_section
from chunkform.codegen.recurrence.emit import emit
from chunkform.codegen.recurrence.pipeline import compile_spec
from chunkform.codegen.recurrence.step.lower import lower
from chunkform.spec.language import Recurrence
from shared.recurrent_programs import specs as odd_programs
from shared.spec_files import catalogue, read_all

SIZES = {"d": 5, "e": 3, "m": 3, "n": 5}


@functools.cache
def recurrences() -> dict[str, Recurrence]:
    found = [*catalogue(), *read_all().values()]
    found += [r for r in odd_programs().values() if r.name not in {x.name for x in found}]
    return {r.name: r for r in found}


@functools.cache
def step_of(name: str) -> StepProgram:
    return lower(recurrences()[name])


@functools.cache
def op(name: str):
    """The generated op: the catalogue's own file; or one made for the test, which has the torch form alone."""
    if name in {r.name for r in catalogue()}:
        return getattr(importlib.import_module(f"chunkform.generated.{name}"), name)
    return getattr(imported(f"decoded_{name}", torch_text(recurrences()[name])), name)


def torch_text(r: Recurrence) -> str:
    """The file of a spec without Triton kernels of the whole op, made without gates: other tests are about these."""
    gates = {n: lambda *_, **__: None for n in dir(pipeline) if n.startswith("gate_")}
    with (
        mock.patch.object(emitting, "sections", lambda c: (torch_section(c),)),
        mock.patch.multiple(pipeline, **gates),
    ):
        return emit(compile_spec(r), tidy=False)


def imported(name: str, text: str):
    """A module of this text, in a file of its own: Triton reads a kernel's source there."""
    path = Path(tempfile.mkdtemp(prefix="decode_")) / f"{name}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def arguments(
    name: str, batch: int, steps: int, heads: int, sizes: dict[str, int], dtype=torch.float32, seed: int = 0
) -> tuple[dict[str, torch.Tensor], dict[str, float]]:
    """Random arguments of the op by their public names, [B, T, H, ...], and the constants."""
    torch.manual_seed(seed)
    tensors, constants = {}, {}
    for v in step_of(name).variables:
        if v.kind == "constant":
            constants[v.name] = 0.5
            continue
        own = [sizes.get(dim_of(a), 4) for a in v.axes]
        x = torch.randn(*((batch, steps, heads) if v.per_step else (heads,)), *own)
        if v.is_decay:
            tensors[f"log_{v.name}"] = torch.nn.functional.logsigmoid(x + 1)
        else:
            tensors[v.name] = (0.5 * x / max(1, len(own)) ** 2).to(dtype if v.kind == "input" else torch.float32)
    return tensors, constants


def at(name: str, tensors: dict[str, torch.Tensor], t: int) -> dict[str, torch.Tensor]:
    """The arguments of step t."""
    timeless = {("log_" if v.is_decay else "") + v.name for v in step_of(name).variables if not v.per_step}
    return {n: x if n in timeless else x[:, t] for n, x in tensors.items()}


def part(name: str, tensors: dict[str, torch.Tensor], where: slice) -> dict[str, torch.Tensor]:
    """The arguments of some steps."""
    timeless = {("log_" if v.is_decay else "") + v.name for v in step_of(name).variables if not v.per_step}
    return {n: x if n in timeless else x[:, where] for n, x in tensors.items()}


def grouped(name: str, tensors: dict[str, torch.Tensor], heads: int) -> dict[str, torch.Tensor]:
    """The arguments with fewer heads each, in turn 1, all and half of them, and not contiguous."""
    out = {}
    for i, v in enumerate(x for x in step_of(name).variables if x.kind != "constant"):
        key = ("log_" if v.is_decay else "") + v.name
        count = (heads, 1, heads // 2)[i % 3]
        x = tensors[key]
        out[key] = x[:, :, :count] if v.per_step else x[:count]
    return out
