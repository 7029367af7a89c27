"""Random calls of any op: sizes, dtypes, layouts, decays, values and options, each compared with the float64 oracle.

    python -m fuzz --device cuda --cases 40 gated_delta_rule ..      (in tests/) prints causes of failures, and how many ran

A case is a row of choices from one table, so that hypothesis can shrink it, and a seed can draw it where there is no hypothesis.
Calls are made in a process that is replaced when one of them takes it with it, as an illegal access on a GPU does: see `judged`.
"""

import argparse
import dataclasses
import json
import os
import random
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from chunkform.codegen.recurrence.check import EXPLODED
from chunkform.codegen.recurrence.samples import Case
from shared.op_cases import SPECS, Problem, compiled, misses, problem, reference, run

LENGTHS = (None, None, (7,), (0, 3), (5, 0, 0, 12), (1, 64, 1), (16, 17, 0, 33, 2))

TABLE: dict[str, tuple[Any, ...]] = {
    "dtype": ("float32", "float32", "bfloat16", "float16"),
    "batch": (1, 2, 0),
    "steps": (40, 1, 2, 16, 17, 63, 64, 65, 100, 0),
    "heads": (2, 4, 1),
    "sizes": ((4, 4), (1, 3), (8, 5), (5, 16), (20, 9), (33, 7)),
    "layout": ("plain", "heads first", "dims first", "strided", "expanded"),
    "decay": ("usual", "none", "strong", "extreme"),
    "values": ("usual", "zero", "huge", "tiny"),
    "initial": (False, True),
    "lengths": LENGTHS,
    "grouped": (0, 0, 1, 2),  # which arguments have one head: none, the first, all but the first
    "recompute": ("auto", "always", "never"),
    "precision": ("default", "default", "high", "fast"),
    "seed": tuple(range(64)),
}

# On a GPU each kind of call is compiled anew: a few kinds of each op, and many calls of each.
KIND: dict[str, tuple[Any, ...]] = {
    "dtype": ("float32", "bfloat16", "bfloat16", "float16"),
    "sizes": ((16, 16), (48, 80), (20, 33)),
    "layout": ("plain", "heads first", "strided"),
    "heads": (2, 4),
    "initial": (False, True),
    "lengths": (None, *LENGTHS),  # whether there are any
    "grouped": (0, 0, 1, 2),
    "precision": ("default", "default", "default", "high", "fast"),
}
CALL = {n: choices for n, choices in TABLE.items() if n not in KIND} | {
    "steps": (100, 1, 63, 64, 65, 128, 0),
    "lengths": LENGTHS[2:],
}


# Triton kernels hold what is written and read in the inputs' dtype. So where quantities of a call differ in size by orders of
# magnitude, as with strong decays or huge keys, the small ones are only as exact as the large ones allow; and in float16
# nothing on the way may come near 65504.
TRITON_HALF = 2000.0


@dataclass(frozen=True)
class Draw:
    """One row. See TABLE."""

    name: str
    dtype: str = "float32"
    batch: int = 1
    steps: int = 40
    heads: int = 2
    sizes: tuple[int, int] = (4, 4)
    layout: str = "plain"
    decay: str = "usual"
    values: str = "usual"
    initial: bool = False
    lengths: tuple[int, ...] | None = None
    grouped: int = 0
    recompute: str = "auto"
    precision: str = "default"
    seed: int = 0


def kinds(name: str, seed: int, count: int = 4) -> list[dict[str, Any]]:
    """Kinds of calls of an op, other ones for another op."""
    numbers = random.Random(f"{name} {seed}")
    return [{n: numbers.choice(choices) for n, choices in KIND.items()} for _ in range(count)]


def each(
    name: str, some: list[dict[str, Any]], table: dict[str, tuple[Any, ...]], cases: int, seed: int, judge: Callable
) -> None:
    """Call `judge` with so many draws, each of one of some kinds: hypothesis's, or a seed's where it isn't installed."""

    def judged(kind: dict[str, Any], **drawn: Any) -> None:
        if kind and kind["lengths"] is None:
            drawn["lengths"] = None
        judge(Draw(name, **kind | drawn))

    try:
        import hypothesis
        from hypothesis import strategies as st
    except ImportError:
        numbers = random.Random(f"{name} {seed}")
        for _ in range(cases):
            judged(numbers.choice(some), **{n: numbers.choice(choices) for n, choices in table.items()})
        return
    how = hypothesis.settings(
        max_examples=cases, deadline=None, database=None, phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )  # fmt: skip
    drawn = hypothesis.given(kind=st.sampled_from(some), **{n: st.sampled_from(x) for n, x in table.items()})
    hypothesis.seed(f"{name} {seed}")(how(drawn(judged)))()


def fuzz(d: Draw, device: str = "cpu", backend: str | None = None) -> dict[str, tuple[float, float]]:
    """What the op gets wrong: quantity -> (error, bound)."""
    p = _tame(d, TRITON_HALF if backend == "triton" and d.dtype == "float16" else EXPLODED)
    options: dict[str, Any] = {"recompute": d.recompute, "precision": d.precision, "backend": backend}
    got = run(_moved(p, d.layout, device), **options)
    if d.precision == "fast" and p.dtype == torch.float32:
        p = dataclasses.replace(p, dtype=torch.bfloat16)  # as which it is judged
    harsh = d.values != "usual" or d.decay in ("strong", "extreme")
    return misses(p, {n: x.cpu() for n, x in got.items()}, beside=harsh and backend == "triton")


def _tame(d: Draw, limit: float) -> Problem:
    """The problem, with fewer steps where its values leave what float32 can multiply."""
    while True:
        p = _problem(d)
        largest = max((float(x.abs().nan_to_num().max()) for x in reference(p).values() if x.numel()), default=0.0)
        if largest < limit:
            return p
        if d.values == "huge":
            d = dataclasses.replace(d, values="usual")
        elif d.lengths:
            d = dataclasses.replace(d, lengths=tuple(n // 2 for n in d.lengths))
        else:
            d = dataclasses.replace(d, steps=d.steps // 2)


def _problem(d: Draw) -> Problem:
    c = compiled(d.name)
    names = [v.name for v in c.step.variables if v.kind != "constant"]
    few = ([], names[:1], names[1:])[d.grouped]
    case = Case(
        batch=d.batch, steps=d.steps, heads=d.heads, dtype=getattr(torch, d.dtype), seed=d.seed, decay=d.decay,
        initial=d.initial,
    )  # fmt: skip
    p = problem(d.name, case, lengths=d.lengths, groups=dict.fromkeys(few, 1), sizes=d.sizes)
    vectors = [v.name for v in c.step.variables if v.kind == "input" and v.axes]
    scale = {"usual": 1.0, "zero": 0.0, "tiny": 2.0**-6, "huge": 16.0 if d.dtype == "float16" else 1024.0}[d.values]
    chosen = vectors[d.seed % len(vectors)] if vectors else None
    return dataclasses.replace(p, given={n: x * scale if n == chosen else x for n, x in p.given.items()})


def _moved(p: Problem, layout: str, device: str) -> Problem:
    """The same numbers on a device, in another layout."""

    def move(x: Tensor | None, per_step: bool = False) -> Tensor | None:
        if x is None:
            return None
        x = x.to(device)
        return _laid_out(x, layout) if per_step else x

    per_step = {v.name: v.per_step for v in compiled(p.name).step.variables}
    return dataclasses.replace(
        p,
        given={n: move(x, per_step[n]) for n, x in p.given.items()},
        states={n: move(x) for n, x in p.states.items()},
        cotangents={n: move(x, True) for n, x in p.cotangents.items()},
        final_cotangents={n: move(x) for n, x in p.final_cotangents.items()},
    )


def _laid_out(x: Tensor, layout: str) -> Tensor:
    """[B, T, H, ...] with other strides."""
    if layout == "heads first":
        return x.transpose(1, 2).contiguous().transpose(1, 2)
    if layout == "dims first":
        return x.movedim(-1, 0).contiguous().movedim(0, -1)
    if layout == "strided":
        wide = x.new_full((*x.shape[:-1], 2 * x.shape[-1]), torch.nan)
        wide[..., : x.shape[-1]] = x
        return wide[..., : x.shape[-1]]
    if layout == "expanded" and x.shape[2] > 1 and torch.equal(x, x[:, :, :1].expand_as(x)):
        return x[:, :, :1].expand_as(x)
    return x


def fill_empty_memory(on: bool) -> None:
    """Fill uninitialised memory with NaN."""
    torch.use_deterministic_algorithms(on, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = True


# --- processes --------------------------------------------------------------------------------------------------------


LOST = 75  # how a process ends that can do nothing more on its GPU
TIMEOUT = 1800  # seconds of a process


@dataclass(frozen=True)
class Failure:
    """A draw that failed, the how-manieth it is, and why."""

    index: int
    draw: str
    why: str

    @property
    def cause(self) -> str:
        """What failures of one cause have in common: no numbers."""
        return re.sub(r"0x[0-9a-f]+|-?\d+(\.\d+)?(e[-+]?\d+)?|\b(nan|inf)\b", "#", self.why.splitlines()[0])


@dataclass(frozen=True)
class Judged:
    """What became of an op's draws."""

    ran: int
    failures: tuple[Failure, ...]

    @property
    def causes(self) -> dict[str, list[Failure]]:
        found: dict[str, list[Failure]] = {}
        for f in self.failures:
            found.setdefault(f.cause, []).append(f)
        return found

    def told(self, name: str) -> list[str]:
        """A line for each cause."""
        return [f"{name}: {len(x)} calls: {x[0].why}; the first: {x[0].draw}" for x in self.causes.values()]


def judged(command: Sequence[str], cases: int, **options: Any) -> Judged:
    """All draws of a command that prints what `child` does, in as many processes as that takes: where one is lost, the draw that
    took it has failed, and another process begins with the next one."""
    failures: list[Failure] = []
    begun, ran = 0, 0
    while begun < cases:
        try:
            done = subprocess.run(
                [*command, "--begin", str(begun)], capture_output=True, text=True, timeout=TIMEOUT, **options
            )
            out, err, ended = done.stdout, done.stderr, f"ended with {done.returncode}"
        except subprocess.TimeoutExpired as late:
            out, err, ended = _text(late.stdout), _text(late.stderr), f"was still at it after {TIMEOUT} s"
        lines = [json.loads(x) for x in out.splitlines() if x.startswith("{")]
        draws = {x["index"]: x["draw"] for x in lines if "draw" in x}
        found = {x["index"]: x["why"] for x in lines if "why" in x}
        failures += [Failure(i, draws[i], why) for i, why in found.items() if why]
        ran += len(found)
        if any("end" in x for x in lines):
            break
        lost = max(draws, default=begun)
        if lost not in found:  # it took the process with it
            said = [x for x in err.strip().splitlines() if x.strip()]
            failures.append(
                Failure(lost, draws.get(lost, f"draw {lost}"), f"its process {ended}: {said[-1] if said else ''}")
            )
            ran += 1
        begun = lost + 1
    return Judged(ran, tuple(failures))


def _text(x: Any) -> str:
    return x.decode() if isinstance(x, bytes) else x or ""


def child(name: str, device: str, backend: str | None, cases: int, seed: int, begin: int) -> None:
    """Judge the draws of an op from `begin` on. A line of JSON says which one begins, and another what came of it; the last one,
    that it was the last."""
    fill_empty_memory(True)
    count = 0

    def judge(d: Draw) -> None:
        nonlocal count
        index, count = count, count + 1
        if index < begin:
            return
        print(json.dumps({"index": index, "draw": str(d)}), flush=True)
        why = ""
        try:
            wrong = fuzz(d, device, backend)
            if wrong:
                why = "wrong numbers: " + ", ".join(f"{n} {e:.1e} (bound {b:.1e})" for n, (e, b) in wrong.items())
        except Exception as error:
            why = f"{type(error).__name__}: {str(error).strip() or 'no message'}"
        print(json.dumps({"index": index, "why": why}), flush=True)
        if why and device != "cpu" and _lost():
            os._exit(LOST)

    on_gpu = device != "cpu"
    each(name, kinds(name, seed) if on_gpu else [{}], CALL if on_gpu else TABLE, cases, seed, judge)
    print(json.dumps({"end": count}), flush=True)


def _lost() -> bool:
    """Does the GPU refuse all that follows?"""
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False


def command(name: str, device: str, backend: str | None, cases: int, seed: int) -> list[str]:
    """The command of `child` for an op."""
    words = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        "shared.fuzz",
        "--child",
        name,
        "--device",
        device,
        "--cases",
        str(cases),
    ]
    return [*words, "--seed", str(seed), *(["--backend", backend] if backend else [])]


def environment() -> dict[str, str]:
    """In which it finds the tests, and the checkout."""
    here = Path(__file__).parents[1]
    return os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": f"{here.parent}{os.pathsep}{here}"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=list(SPECS))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--backend", choices=["torch", "triton"])
    parser.add_argument("--cases", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--begin", type=int, default=0, help=argparse.SUPPRESS)
    a = parser.parse_args()
    if a.child:
        child(a.names[0], a.device, a.backend, a.cases, a.seed, a.begin)
        return
    found = {n: judged(command(n, a.device, a.backend, a.cases, a.seed), a.cases, env=environment()) for n in a.names}
    for name, x in found.items():
        print(*x.told(name), sep="\n", end="\n" * bool(x.failures))
    causes = sum(len(x.causes) for x in found.values())
    print(
        f"{sum(x.ran for x in found.values())} cases, {sum(len(x.failures) for x in found.values())} failed, {causes} causes"
    )
    raise SystemExit(causes > 0)


if __name__ == "__main__":
    main()
