"""Sweeps of delta rules that are one kernel with their prologues, whose warps have roles, beside those without, on a GPU of
compute capability 9.0: errors of each head, of gradients as well, against the recurrence in float64, then times beside the memory
lower bound. It takes less than five minutes.

    python -m benchmarks.joined_roles            # compare, time, and put what was found into results/gpu/roles.json

Exit status 1: it was not launched, or has larger errors.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import chunkform.generated as ops
from chunkform.codegen.checking.accuracy import relative_error
from chunkform.codegen.recurrence.oracle import oracle

from . import timing
from .accuracy import compiled
from .inputs import SHAPES, Shape, draw
from .pairs import lower_bound_milliseconds
from .peers import ours
from .roles import Row, Rows, command, larger_errors, meanwhile

NAMES = ("gated_delta_rule", "delta_rule", "inverse_attention")
FORWARD, BACKWARD = "forward_joined_roles", ("backward_joined_1_roles", "backward_joined_2_roles")
LOADED = "backward_sweep_3_roles"  # beside these, which has no prologue
KERNELS = {"forward": (FORWARD,), "both": (FORWARD, *BACKWARD, LOADED)}
DEVICE, BACKEND = "cuda", "triton"


def kernels_of(name: str) -> dict[str, tuple[str, ...]]:
    """Those of these kernels that an op has, by pass."""
    there = importlib.import_module(f"chunkform.generated.{name}")
    return {passes: tuple(n for n in kernels if hasattr(there, n)) for passes, kernels in KERNELS.items()}


@dataclass(frozen=True)
class Case:
    """What errors are compared at. `start`: with an initial state; `shared`: heads that have a q and a k of their own; `lengths`:
    of packed sequences."""

    shape: Shape
    decay: str = "usual"
    start: bool = False
    shared: int = 0
    lengths: tuple[int, ...] = ()

    @property
    def spelled(self) -> str:
        more = [self.decay, *(["initial state"] if self.start else []), *(["packed"] if self.lengths else [])]
        return ", ".join([self.shape.spelled, *more, *([f"{self.shared} heads of q and k"] if self.shared else [])])


CASES = (
    Case(Shape("two chunks", 1, 64, 1, 128)),
    Case(Shape("one step", 2, 1, 3, 128), start=True),
    *(Case(Shape("few", 2, steps, 3, 128), start=True) for steps in (31, 33, 97)),
    *(Case(Shape("tail", 2, 300, 4, 128), decay, start=decay == "usual") for decay in ("usual", "lasting", "fast")),
    Case(Shape("shared", 2, 300, 4, 128), shared=2),
    Case(Shape("packed", 1, 700, 4, 128), start=True, lengths=(100, 1, 200, 399)),
    Case(Shape("long", 8, 1024, 16, 128), "lasting"),
)
TIMED = ((SHAPES["S1"], 16), (SHAPES["S1"], 4))  # and the heads of q and k
# Stages, and registers of a thread of the preparer and the loader, that S1 is timed with as well.
OTHERS = ((3, 152, 24), (2, 136, 40))


def main() -> None:
    command("joined_roles", __doc__, "joined sweeps", measured, lambda found: (table(found), complaints(found)))


def asked_for(there: bool, stages: int = 0, preparer: int = 0, loader: int = 0) -> AbstractContextManager[None]:
    """Calls have the kernel meanwhile, or haven't; with other stages and registers, where these are given."""
    given = {"JOINED_STAGES": stages, "PREPARER": preparer, "JOINED_LOADER": loader}
    return meanwhile(FORCED=there, JOINED=there, **{n: x for n, x in given.items() if x})


def measured() -> tuple[Rows, Rows]:
    rate = timing.copy_rate("cuda", timing.QUICK)
    compared = [told(comparison(name, case)) for name in NAMES for case in CASES]
    timed = [times(name, shape, shared, rate) for name in NAMES for shape, shared in TIMED]
    return compared, timed


def told(row: Row) -> Row:
    """A row, as it is found: where a kernel never ends, the ones before it are known."""
    each = [", ".join(f"{n} {x:.2e}" for n, x in row[w].items()) for w in ("without", "with roles")]
    print(f"{row['op']:18} {row['case']:50} {each[0]}  with roles: {each[1]}", flush=True)
    return row


def problem(name: str, case: Case) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The arguments of a call, and its options."""
    like = ours(name)
    given, _ = draw(like.signature, case.shape, device=DEVICE, dtype=torch.bfloat16, unit=like.unit, decay=case.decay)
    if case.shared:
        given |= {n: given[n][:, :, : case.shared].contiguous() for n in ("q", "k")}
    options: dict[str, Any] = {"output_final_state": True}
    count = len(case.lengths) or case.shape.batch
    if case.start:
        g = torch.Generator(device=DEVICE).manual_seed(1)
        size = (count, case.shape.heads, case.shape.width, case.shape.width)
        options["initial_state"] = torch.randn(size, generator=g, device=DEVICE)
    if case.lengths:
        starts = [0, *torch.tensor(case.lengths).cumsum(0).tolist()]
        options["cu_seqlens"] = torch.tensor(starts, device=DEVICE, dtype=torch.int32)
    return given, options


def comparison(name: str, case: Case) -> Row:
    """Errors of the worst head of outputs, last states and gradients, without roles and with them."""
    given, options = problem(name, case)
    incoming = incoming_of(case, given)
    exact = reference(name, case, given, options.get("initial_state"), incoming)
    row: Row = {"op": name, "case": case.spelled}
    for what, there in (("without", False), ("with roles", True)):
        with asked_for(there):
            made = both(name, given, options, incoming)
        row[what] = {n: relative_error(x, exact[n], 1 if n in ("S", "dS") else 2) for n, x in made.items()}
    return row


def incoming_of(case: Case, given: dict[str, Tensor]) -> dict[str, Tensor]:
    """Gradients of the output and of the last states."""
    g = torch.Generator(device=DEVICE).manual_seed(2)
    shape, count = case.shape, len(case.lengths) or case.shape.batch
    o = torch.randn((shape.batch, shape.steps, shape.heads, shape.width), generator=g, device=DEVICE)
    S = torch.randn((count, shape.heads, shape.width, shape.width), generator=g, device=DEVICE)
    return {"o": o.to(given["q"].dtype), "S": S}


def both(
    name: str, given: dict[str, Tensor], options: dict[str, Any], incoming: dict[str, Tensor]
) -> dict[str, Tensor]:
    """The output and the last states of a call that records no gradient; and the gradients of all that another is given."""
    with torch.no_grad():
        alone = getattr(ops, name)(**given, **options, backend=BACKEND)
    leaves = {n: x.detach().requires_grad_() for n, x in given.items()}
    own = dict(options)
    if "initial_state" in own:
        own["initial_state"] = own["initial_state"].detach().requires_grad_()
        leaves["S"] = own["initial_state"]
    made = getattr(ops, name)(**{n: x for n, x in leaves.items() if n != "S"}, **own, backend=BACKEND)
    found = torch.autograd.grad(made, list(leaves.values()), [incoming[n] for n in "oS"])
    return dict(zip("oS", alone, strict=True)) | {f"d{n}": x for n, x in zip(leaves, found, strict=True)}


def reference(
    name: str, case: Case, given: dict[str, Tensor], start: Tensor | None, incoming: dict[str, Tensor]
) -> dict[str, Tensor]:
    """The output and the last states of each sequence, and the gradients, in float64."""
    names = {a.key: a.name for a in ours(name).signature.arguments}
    step = compiled(name).step
    (state,), (output,) = [x.name for x in step.states], step.output_axes
    heads = case.shape.heads
    full = {names[n]: x.repeat_interleave(heads // x.shape[2], 2) for n, x in given.items()}
    at, parts = 0, []
    for n, length in enumerate(case.lengths or (case.shape.steps,)):
        own = {key: x[:, at : at + length] for key, x in full.items()}
        mine = slice(n, n + 1) if case.lengths else slice(None)
        first = None if start is None else start[mine]
        values, finals, found, initial = oracle(
            compiled(name),
            own,
            {state: first},
            cotangents={output: incoming["o"][:, at : at + length]},
            final_cotangents={state: incoming["S"][mine]},
        )
        parts.append({"o": values[output], "S": finals[state]} | {f"d{key}": found[names[key]] for key in given})
        parts[-1] |= {} if first is None else {"dS": initial[state]}
        at += length
    joined = {n: torch.cat([x[n] for x in parts], 0 if n in ("S", "dS") else 1) for n in parts[0]}
    for n, x in given.items():
        joined[f"d{n}"] = joined[f"d{n}"].unflatten(2, (x.shape[2], -1)).sum(3)
    return joined


def times(name: str, shape: Shape, shared: int, rate: float) -> Row:
    """Microseconds of the forward pass and of both, twice in turns, and of their kernels alone; of S1 in other configurations as
    well."""
    given, _ = problem(name, Case(shape, shared=shared if shared < shape.heads else 0))
    incoming = incoming_of(Case(shape), given)
    leaves = {n: x.detach().requires_grad_() for n, x in given.items()}

    def run() -> Any:
        with torch.no_grad():
            return getattr(ops, name)(**given)

    def run_both() -> Any:
        made = getattr(ops, name)(**leaves)
        return torch.autograd.grad(made[:1] if isinstance(made, tuple) else made, list(leaves.values()), incoming["o"])

    bounds = lower_bound_milliseconds(ours(name).signature, shape, rate)
    row: Row = {"op": name, "shape": f"{shape.spelled}, {shared} heads of q and k"}
    row["bound"] = {"forward": round(1e3 * bounds["forward"], 1), "both": round(1e3 * max(bounds.values()), 1)}
    for there in (False, True, False, True):
        with asked_for(there):
            each = row.setdefault("with roles" if there else "without", {})
            for passes, call in (("forward", run), ("both", run_both)):
                found = each.setdefault(passes, {"all": [], "kernels": []})
                found["all"].append(replayed(call))
                found["kernels"].append((timing.kernels(call, "cuda") or {}).get("by_name", {}))
    if name == NAMES[0] and shared == shape.heads:
        row["others"] = {}
        for other in OTHERS:
            with asked_for(True, *other):
                row["others"][", ".join(map(str, other))] = [replayed(run), replayed(run_both)]
    return row


def replayed(run: Callable[[], Any]) -> float:
    """Microseconds of a call, replayed by a graph."""
    found = timing.graph(run, "cuda", timing.QUICK)
    return round(1e3 * found["replay"]["median"], 1) if found and found["replay"] else math.nan


def complaints(found: Row) -> list[str]:
    """What stands against the kernel."""
    said = [*larger_errors(found["errors"], ("op", "case"))]
    said += [
        f"{row['op']} {row['shape']}: {kernel} was not launched"
        for row in found["times"]
        for passes, kernels in kernels_of(row["op"]).items()
        for kernel in kernels
        if not all(kernel in each for each in row["with roles"][passes]["kernels"])
    ]
    return said


def table(found: Row) -> str:
    lines = [f"{'op':18} {'shape':36} {'passes':8} {'bound':>8} {'without':>16} {'with roles':>16}   kernels"]
    for row in found["times"]:
        for passes, kernels in kernels_of(row["op"]).items():
            each = [", ".join(f"{x:.1f}" for x in row[w][passes]["all"]) for w in ("without", "with roles")]
            taken = row["with roles"][passes]["kernels"][-1]
            own = ", ".join(f"{taken.get(x, (0, math.nan))[1]:.1f}" for x in kernels)
            start = f"{row['op']:18} {row['shape']:36} {passes:8} {row['bound'][passes]:8.1f}"
            lines.append(f"{start} {each[0]:>16} {each[1]:>16}   {own}")
        for n, x in row.get("others", {}).items():
            lines.append(f"{'':18} stages, registers {n}: {', '.join(f'{y:.1f}' for y in x)}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
