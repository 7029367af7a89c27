"""`chunkform tune`: measure a few configurations of an op's kernels on this GPU, and keep the fastest whose numbers are right.

Numbers first: each configuration runs in a process of its own, as a fault of the compiler may take the process with it, on
lengths with and without a tail and on extreme decays. One whose errors against the float64 oracle are above their bounds, or
well above those of the default, is out. Then those that are left are timed one after the other, forward with backward, on a GPU
that does nothing else.
"""

from __future__ import annotations

import ast
import dataclasses
import math
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.markup import escape
from rich.table import Table

from chunkform.errors import BackendError
from chunkform.runtime.launch import replay
from chunkform.runtime.launch import tuned_configs as tuned
from chunkform.runtime.launch.fingerprint import fingerprint
from chunkform.runtime.launch.launch import Config, candidates, fields_of, padded, use_tables_anew, using
from chunkform.spec.language import Declaration, Recurrence, find

from ..recurrence.check import check_op
from ..recurrence.chunkwise.compiled import Compiled
from ..recurrence.pipeline import compile_spec
from ..recurrence.samples import Case, sample
from .compile import compile_module

DEVICE = "cuda"
WIDTHS = (64, 128, 256)
DTYPES = ("bfloat16", "float16", "float32")
WORSE = 1.5  # times the default's errors that a configuration may have
NOISE = 1e-6  # errors below which none is worse than another
FASTER = 0.99  # of the default's time that another configuration must take at most


@dataclass(frozen=True)
class Job:
    """One configuration of one op at one width. `file` and `name` are where the op's spec is."""

    file: str
    name: str
    dtype: str
    width: int
    config: Config
    shape: tuple[int, int, int]  # sequences, steps, heads


@dataclass(frozen=True)
class Tuned:
    """What was found of a configuration. `problem` is empty where its numbers are right; `errors` are by case and quantity.
    kernels: the hash of what it was found for; calls: the functions of the runtime that those kernels call."""

    job: Job
    kernels: str = ""
    errors: dict[str, float] = dataclasses.field(default_factory=dict)
    ms: float | None = None
    problem: str = ""
    chosen: bool = False
    calls: tuple[str, ...] = ()

    @property
    def place(self) -> tuple[str, str, int]:
        return self.job.name, self.job.dtype, self.job.width

    def json(self) -> dict[str, Any]:
        name, dtype, width = self.place
        data = {"name": name, "dtype": dtype, "width": width, "config": fields_of(self.job.config)}
        error = self.error if self.error is not None and math.isfinite(self.error) else None
        return data | {"error": error, "ms": self.ms, "problem": self.problem, "chosen": self.chosen}

    @property
    def error(self) -> float | None:
        """The largest; NaN where one is."""
        return max(self.errors.values(), key=lambda e: math.inf if math.isnan(e) else e, default=None)


def tune_all(
    specs: Iterable[Declaration],
    widths: Iterable[int] | None = None,
    dtypes: Iterable[str] | None = None,
    shape: tuple[int, int, int] = (8, 4096, 16),
    table: Path | None = None,
    done: Callable[[str], None] = lambda name: None,
) -> tuple[list[Tuned], Path]:
    """Every configuration of each op, dtype and width; and the table that has the choices now: one's own, or `table`.

    Raises:
        BackendError: no GPU, an unknown dtype, or no op with chunk-parallel kernels.
    """
    chosen = tuple(dtypes or DTYPES[:1])
    if unknown := set(chosen) - set(DTYPES):
        raise BackendError(f"the dtype is one of {', '.join(DTYPES)}, got {', '.join(sorted(unknown))}")
    ops = [c for r in specs if isinstance(r, Recurrence) for c in (compile_spec(r),) if c.forward is not None]
    if not ops:
        raise BackendError("none of these has chunk-parallel kernels: there is nothing to tune")
    gpu = gpu_name()
    groups: list[list[Job]] = []
    for c in ops:
        compile_module(c.spec)  # once, for all processes
        groups += [jobs_of(c, dtype, width, shape) for dtype in chosen for width in widths or WIDTHS]
    rows = [r for group in measure(groups, done) for r in chosen_of(group)]
    choices: tuned.Choices = {}
    for r in rows:
        if r.chosen:
            place = tuned.shape_class(getattr(torch, r.job.dtype), padded(r.job.width))
            choices.setdefault(r.kernels, {})[place] = fields_of(r.job.config)
    path = tuned.write(gpu, choices, table, {r.kernels: r.calls for r in rows if r.chosen})
    use_tables_anew()
    return rows, path


def gpu_name() -> str:
    """The model of the GPU that is measured."""
    if not torch.cuda.is_available():
        raise BackendError("chunkform tune measures on a CUDA GPU, and torch sees none")
    return torch.cuda.get_device_name()


def jobs_of(c: Compiled, dtype: str, width: int, shape: tuple[int, int, int]) -> list[Job]:
    """The default first."""
    configs = candidates(getattr(torch, dtype).itemsize, padded(width))
    return [Job(str(c.spec.where.file), c.name, dtype, width, x, shape) for x in configs]


def chosen_of(rows: list[Tuned]) -> list[Tuned]:
    """The rows of one op, dtype and width, the default first, with what is wrong with them, and the fastest chosen."""
    usual = rows[0]
    rows = [usual, *(compared(r, usual) for r in rows[1:])]
    timed = [r for r in rows if r.ms is not None and not r.problem]
    if not timed:
        return rows
    best = min(timed, key=lambda r: r.ms or 0.0)
    if best is not usual and usual in timed and (best.ms or 0.0) > FASTER * (usual.ms or 0.0):
        best = usual
    return [replace(r, chosen=r is best) for r in rows]


def compared(r: Tuned, usual: Tuned) -> Tuned:
    """A row, with a problem where an error is well above the default's."""
    worse = [n for n, e in r.errors.items() if not e <= max(NOISE, WORSE * usual.errors.get(n, 0.0))]
    if r.problem or usual.problem or not worse:
        return r
    n = max(worse, key=lambda n: r.errors[n])
    return replace(r, problem=f"{n}: error {r.errors[n]:.1e}, the default's is {usual.errors.get(n, 0.0):.1e}")


# --- in processes of their own ------------------------------------------------------------------------------------------


def measure(groups: list[list[Job]], done: Callable[[str], None] = lambda name: None) -> list[list[Tuned]]:
    """The errors of each configuration, as many at a time as there are processors, and the times of those of each group whose
    numbers are right; the default is a group's first."""
    found: dict[Job, Tuned] = {}
    jobs = [j for group in groups for j in group]
    for j, r in in_processes(checked, jobs, os.cpu_count() or 1, done).items():
        found[j] = r if isinstance(r, Tuned) else Tuned(j, problem=r)
    right = [tuple(j for j in x if not compared(found[j], found[x[0]]).problem) for x in groups]
    for group, times in in_processes(timed, [x for x in right if x], 1, done).items():
        for n, j in enumerate(group):
            ms = times if isinstance(times, str) else times[n]
            found[j] = replace(found[j], problem=ms) if isinstance(ms, str) else replace(found[j], ms=ms)
    return [[found[j] for j in group] for group in groups]


def in_processes(
    function: Callable[[Any], Any], jobs: list[Any], workers: int, done: Callable[[str], None] = lambda name: None
) -> dict[Any, Any]:
    """What each job comes to in a process of its own, or the text of its error."""
    found: dict[Any, Any] = {}
    context = multiprocessing.get_context("spawn")
    waiting, workers = list(jobs), min(workers, len(jobs))
    while waiting:
        with ProcessPoolExecutor(max(1, workers), context, max_tasks_per_child=1) as pool:
            running = {pool.submit(function, j): j for j in waiting}
            for future in as_completed(running):
                try:
                    found[running[future]] = future.result()
                except BrokenProcessPool:
                    continue
                except Exception as error:  # whatever the compiler or the GPU raises is a problem of this job
                    found[running[future]] = _reason(error)
                done(function.__name__)
        left = [j for j in waiting if j not in found]
        if left and workers == 1:  # the first of them has taken its process with it
            found[left[0]] = "its process died"
            left = left[1:]
        waiting, workers = left, 1
    return found


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:200]


def cases(c: Compiled, job: Job) -> list[Case]:
    """Whole chunks; a tail, and narrower dims of the same class that differ; extreme decays."""
    dtype, narrow = getattr(torch, job.dtype), 3 * job.width // 4 - 8 * (len(c.step.dims) - 1)
    base = Case(batch=1, steps=256, heads=job.shape[2], width=job.width, dtype=dtype, device=DEVICE, same=True)
    return [
        base,
        replace(base, steps=150, width=max(1, narrow), same=False, seed=1),
        replace(base, steps=150, decay="extreme", seed=2),
    ]


def checked(job: Job) -> Tuned:
    """The errors of a configuration, with as many heads as are timed, so that its kernels are compiled for both."""
    c, op = _loaded(job)
    errors: dict[str, float] = {}
    problem = ""
    with using(job.config) as asked:
        for n, case in enumerate(cases(c, job)):
            for row in check_op(c, op, case, "triton"):
                errors[f"case {n + 1}: {row.quantity}"] = row.error
                if not row.ok:
                    problem = problem or f"case {n + 1}: {row.quantity}: error {row.error:.1e} above {row.allowed:.1e}"
    if len(asked) != 1:
        problem = "it has no kernels over chunks"
    key = min(asked, default="")
    calls = calls_of(Path(sys.modules[op.__module__].__file__ or "").read_text(), key)
    return Tuned(job, key, errors, problem=problem, calls=calls)


def calls_of(source: str, kernels: str) -> tuple[str, ...]:
    """The functions of the runtime that kernels of a generated file call, which have this hash."""
    return fingerprint(source, lambda function: mentions(function, kernels)).calls


def mentions(function: ast.FunctionDef, kernels: str) -> bool:
    """Does a function ask for the configuration of the kernels with this hash?"""
    return any(isinstance(x, ast.Constant) and x.value == kernels for x in ast.walk(function))


def timed(jobs: tuple[Job, ...]) -> list[float | str]:
    """Milliseconds of forward and backward, the median, of each of an op's configurations, or what is wrong with it."""
    import triton

    c, op = _loaded(jobs[0])
    run = _both_passes(c, op, jobs[0])
    found: list[float | str] = []
    for job in jobs:
        try:
            with using(job.config):
                graph = _captured(run)
            found.append(float(triton.testing.do_bench(graph.replay, warmup=50, rep=200, return_mode="median")))
        except Exception as error:  # as above
            found.append(_reason(error))
    return found


def _captured(run: Callable[[], Any]) -> torch.cuda.CUDAGraph:
    """run() as a graph, which takes the time of its kernels: the host's would hide it where these are short."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph


def _loaded(job: Job) -> tuple[Compiled, Callable[..., Any]]:
    replay.ON = False  # kernels are what is measured
    (r,) = (r for r in find(job.file) if r.name == job.name)
    return compile_spec(r), getattr(compile_module(r), job.name)


def _both_passes(c: Compiled, op: Callable[..., Any], job: Job) -> Callable[[], Any]:
    batch, steps, heads = job.shape
    base = cases(c, job)[0]
    case = replace(base, batch=batch, steps=steps, heads=heads, initial=False)
    s = sample(c, case)
    keys = {v.name: v.argument for v in c.step.variables}
    given = {keys[n]: x.requires_grad_() for n, x in s.given.items()}
    cotangents = [s.cotangents[n] for n in c.step.outputs]

    def run() -> Any:
        *outputs, _ = op(**given, **s.constants, backend="triton")
        return torch.autograd.grad(outputs, list(given.values()), cotangents, allow_unused=True)

    return run


def tuned_table(rows: Iterable[Tuned]) -> Table:
    """One line for each configuration, the chosen ones marked."""
    table = Table(box=None, padding=(0, 3, 0, 0), header_style="dim")
    for name in ("op", "dtype", "width", "configuration", "ms", "largest error", ""):
        table.add_column(name, justify="right" if name in ("width", "ms", "largest error") else "left")
    for r in rows:
        name, dtype, width = r.place
        config = " ".join(f"{n}={x}" for n, x in fields_of(r.job.config).items())
        ms, error = "" if r.ms is None else f"{r.ms:.3f}", "" if r.error is None else f"{r.error:.1e}"
        mark = "[green]chosen[/]" if r.chosen else f"[red]{escape(r.problem)}[/]" if r.problem else ""
        table.add_row(name, dtype, str(width), config, ms, error, mark)
    return table
