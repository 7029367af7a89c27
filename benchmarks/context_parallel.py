"""Sequences in segments on several GPUs of one host: speed, memory and errors beside one GPU's, and beside what the planner says.

    python -m benchmarks.context_parallel --gpus 1,2,4 --out out/context_parallel
    python -m benchmarks.context_parallel --device cpu --gpus 1,2 --shapes 1x512x2x16 --quick --out out/tried   # gloo
    python -m benchmarks.context_parallel --report out/context_parallel     # table and plot from its JSON, without a GPU

The processes of each number of GPUs start anew. Times are those of the slowest rank, forward and `torch.autograd.grad` of every
argument, between events: the mean of some calls one after the other, as layers of a model follow each other (LAYERS forward, and
then backward through all of them), and the median of that over repeats; and `alone`, one call after all ranks have met and
their GPUs are idle. Peak memory is what one call allocates above its inputs. NVLink multicast stays off.

Usual decays, sigmoid(normal + 2), forget within 700 steps, so that hardly anything crosses from rank to rank. Of lasting ones,
sigmoid(normal + 9), a part crosses all ranks, and where nothing decays everything does.

Errors are of the worst head, against float64 on the whole sequence, at 16384 steps a rank: in segments, and of one GPU that has
the whole sequence in the same dtype.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import importlib
import json
import os
import socket
import statistics
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from chunkform.codegen.checking.accuracy import relative_error
from chunkform.runtime.launch.parallel_compile import compile_ahead

from .inputs import Shape, draw, parse_shape

OPS = ("lightning_attention", "gated_linear_attention", "gated_delta_rule", "linear_attention", "delta_rule")
SHAPES = ("S5", "1x1048576x8x128")
LAYERS = 4
SPAN = 200.0  # milliseconds of calls that follow each other: each span begins with the host's work ahead of an idle GPU
GOALS = {
    2: {"gated_delta_rule": 1.6, "delta_rule": 1.6},
    4: {"gated_delta_rule": 2.8, "delta_rule": 2.8},
    8: {"gated_delta_rule": 6.0, "delta_rule": 6.0},
}
ERRORS_AT = Shape("errors", 1, 16384, 2, 128)  # of each rank
USUAL = {2: 1.8, 4: 3.3, 8: 6.5}  # times one GPU's speed, where decays are numbers or vectors


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", default="1,2,4")
    parser.add_argument("--ops", default=",".join(OPS))
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--decays", default="usual,lasting", help="as in benchmarks.gpu; one row where an op has none")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument(
        "--backend", default=None, help="nccl on GPUs and gloo on a CPU where left out; also cpu:gloo,cuda:nccl"
    )
    parser.add_argument("--quick", action="store_true", help="half as many repeats")
    parser.add_argument("--span", type=float, default=SPAN, help="milliseconds of calls that follow each other")
    parser.add_argument("--profile", action="store_true", help="also the time of each kernel of a call")
    parser.add_argument("--out", type=Path, default=Path("out/context_parallel"))
    parser.add_argument("--report", type=Path)
    options = parser.parse_args()
    if options.report is not None:
        show(options.report)
        return
    options.out.mkdir(parents=True, exist_ok=True)
    counts = [int(n) for n in options.gpus.split(",")]
    have = torch.cuda.device_count() if options.device == "cuda" else max(counts)
    rows: list[dict[str, Any]] = []
    for count in counts:
        if count > have:
            print(f"{count} GPUs: only {have} are here; left out", flush=True)
            continue
        start = time.monotonic()
        rows += run(count, options)
        results = {"versions": versions(options), "date": f"{datetime.date.today()}", "rows": rows}
        (options.out / "context_parallel.json").write_text(json.dumps(results, indent=1) + "\n")
        print(f"{count} ranks took {time.monotonic() - start:.0f} s", flush=True)
    try:
        show(options.out)
    except ImportError as missing:
        print(f"no report here ({missing}); run --report where chunkform's compiler and matplotlib are", flush=True)


def versions(options: argparse.Namespace) -> dict[str, Any]:
    found = {"torch": torch.__version__, "dtype": options.dtype, "device": "cpu"}
    if options.device == "cuda":
        import triton

        nccl = ".".join(map(str, torch.cuda.nccl.version()))
        found |= {"triton": triton.__version__, "nccl": nccl, "device": torch.cuda.get_device_name()}
    return found


def run(count: int, options: argparse.Namespace) -> list[dict[str, Any]]:
    """The rows of one number of ranks, from processes of their own."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    path = options.out / f"rows_{count}.json"
    path.unlink(missing_ok=True)
    os.environ |= {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"}
    mp.spawn(work, args=(count, port, str(path), options), nprocs=count)
    rows = json.loads(path.read_text())
    path.unlink()
    return rows


def work(rank: int, count: int, port: int, path: str, options: argparse.Namespace) -> None:
    """One rank: every op at every shape."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    cuda = options.device == "cuda"
    if cuda:
        torch.cuda.set_device(rank)
    device = f"cuda:{rank}" if cuda else "cpu"
    backend = options.backend or ("nccl" if cuda else "gloo")
    dist.init_process_group(backend, rank=rank, world_size=count, device_id=torch.device(device) if cuda else None)
    if cuda:
        compile_ahead(lambda: every(rank, count, device, options), 16)
    rows = []
    for name, decay, text in cases(options):
        shape = parse_shape(text)
        sizes = [shape.batch, shape.steps, shape.heads, shape.width]
        row = {"op": name, "decays": decay, "shape": text, "sizes": sizes, "gpus": count}
        try:
            row |= measured(name, decay, shape, rank, count, device, options)
        except torch.cuda.OutOfMemoryError as error:
            row |= {"status": "out of memory", "reason": str(error).splitlines()[0]}
        rows.append(row)
        if rank == 0:
            print(json.dumps(row), flush=True)
            Path(path).write_text(json.dumps(rows))
    dist.barrier()
    dist.destroy_process_group()


def cases(options: argparse.Namespace) -> list[tuple[str, str, str]]:
    """(op, decays, shape); "none" where an op has none."""
    found = []
    for name in options.ops.split(","):
        signature = importlib.import_module(f"chunkform.generated.{name}").SIGNATURE
        decays = any(a.kind.startswith("decay") for a in signature.arguments)
        for decay in options.decays.split(",") if decays else ("none",):
            found += [(name, decay, text) for text in options.shapes.split(",")]
    return found


def every(rank: int, count: int, device: str, options: argparse.Namespace) -> None:
    """All calls once, at the size of the first shape's segments."""
    shape, group = parse_shape(options.shapes.split(",")[0]), dist.group.WORLD if count > 1 else None
    for name in options.ops.split(","):
        part = shape.at(shape.batch, shape.steps // count)
        function, given, cotangents = prepared(name, part, device, getattr(torch, options.dtype), seed=rank)
        leaves = [x.requires_grad_() for x in given.values()]
        with torch.no_grad():
            function(**given, context_parallel=group)
        for final in (False, True):
            outputs = function(**given, output_final_state=final, context_parallel=group)[: len(cotangents)]
            torch.autograd.grad(outputs, leaves, cotangents, allow_unused=True)


def measured(
    name: str, decay: str, shape: Shape, rank: int, count: int, device: str, options: argparse.Namespace
) -> dict[str, Any]:
    cuda = device.startswith("cuda")
    dtype = getattr(torch, options.dtype)
    group = dist.group.WORLD if count > 1 else None
    found: dict[str, Any] = {"status": "measured"}
    if group is not None and shape.name == parse_shape(options.shapes.split(",")[0]).name:
        found["errors"], found["errors_of_one"] = errors(name, decay, shape, rank, count, device, dtype)
    part = shape.at(shape.batch, shape.steps // count)
    function, given, cotangents = prepared(name, part, device, dtype, seed=rank, decay=decay)
    leaves = {key: x.requires_grad_() for key, x in given.items()}

    def forward() -> None:
        with torch.no_grad():
            function(**given, context_parallel=group)

    def both(layers: int = 1) -> Any:
        own = [{key: x.detach().requires_grad_() for key, x in leaves.items()} for _ in range(layers)]
        outputs = [y for a in own for y in function(**a, context_parallel=group)[:-1]]
        inputs = [x for a in own for x in a.values()]
        return torch.autograd.grad(outputs, inputs, cotangents * layers, allow_unused=True)

    repeats = 5 if options.quick else 10
    start = time.perf_counter()
    both()
    wait(cuda)
    found["first_call_s"] = round(time.perf_counter() - start, 2)
    for key, call, layers in (("forward", forward, 1), ("both", both, LAYERS)):
        alone = statistics.median(worst(timed(call, repeats, cuda), device))
        calls = max(1, min(100, int(options.span / alone)) // layers)
        several = functools.partial(call, layers) if layers > 1 else call
        times = [x / layers for x in worst(timed(several, repeats, cuda, calls), device)]
        found |= {f"{key}_alone_ms": alone, f"{key}_calls": calls, f"{key}_ms": statistics.median(times)}
        found[f"{key}_ms_p95"] = sorted(times)[int(0.95 * (len(times) - 1))]
    if cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        both()
        wait(cuda)
        peak = torch.tensor([float(torch.cuda.max_memory_allocated() - before)], device=device)
        dist.all_reduce(peak, op=dist.ReduceOp.MAX)
        found["peak_mib"] = float(peak) / 2**20
    times = []
    for _ in range(5):
        dist.barrier()
        wait(cuda)
        start = time.perf_counter()
        both()
        times.append(1e3 * (time.perf_counter() - start))
    wait(cuda)
    found["host_ms"] = statistics.median(worst(times, device))
    if cuda:
        found |= replayed(both, repeats, device)
        if group is None:
            found["part_graph_ms"] = parts_alone(name, decay, shape, device, repeats, options)
        if options.profile and shape.name == options.shapes.split(",")[0]:
            found["kernels"] = kernels(both)
    if group is not None:
        width = shape.batch * shape.heads * 2 * shape.width**2
        payload = torch.zeros(width, device=device)
        whole = payload.new_empty(count * width)
        gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
        found["gather_ms"] = statistics.median(worst(timed(lambda: gather(whole, payload), repeats, cuda), device))
        found["gather_mib"] = 4 * width / 2**20
    return found


def replayed(call: Any, repeats: int, device: str) -> dict[str, Any]:
    """The time of replays of one call in a CUDA graph, collectives included: what is left where the host isn't waited for."""
    try:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                call()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            kept = call()
        found = {"graph_ms": statistics.median(worst(timed(graph.replay, repeats, True, 5), device))}
        del kept
        return found
    except RuntimeError as error:
        return {"graph": str(error).splitlines()[0]}


def parts_alone(
    name: str, decay: str, shape: Shape, device: str, repeats: int, options: argparse.Namespace
) -> dict[str, Any]:
    """Replays of one GPU's call on a segment of the sequence, by the number of segments: what a call takes that hands nothing
    on."""
    found = {}
    for count in (int(n) for n in options.gpus.split(",")):
        if count > 1:
            part = shape.at(shape.batch, shape.steps // count)
            dtype = getattr(torch, options.dtype)
            function, given, cotangents = prepared(name, part, device, dtype, seed=0, decay=decay)
            leaves = {key: x.requires_grad_() for key, x in given.items()}

            def call(function: Any = function, leaves: Any = leaves, goals: Any = cotangents) -> Any:
                return torch.autograd.grad(function(**leaves)[:-1], list(leaves.values()), goals, allow_unused=True)

            found[str(count)] = replayed(call, repeats, device).get("graph_ms")
    return found


def kernels(call: Any) -> dict[str, Any]:
    """What one call puts on the device, by name: [times started, microseconds]."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as p:
        call()
        torch.cuda.synchronize()
    found: dict[str, list[float]] = {}
    for e in p.events():
        if e.device_type == torch.autograd.DeviceType.CUDA:
            own = found.setdefault(e.name[:60], [0, 0.0])
            own[0] += 1
            own[1] = round(own[1] + e.time_range.elapsed_us(), 1)
    return dict(sorted(found.items(), key=lambda item: -item[1][1]))


def prepared(name: str, shape: Shape, device: str, dtype: torch.dtype, seed: int, decay: str = "usual") -> Any:
    from .peers import UNIT

    function = getattr(importlib.import_module("chunkform.generated"), name)
    signature = importlib.import_module(f"chunkform.generated.{name}").SIGNATURE
    own = {} if decay == "none" else {"decay": decay}
    return function, *draw(signature, shape, device=device, dtype=dtype, unit=UNIT.get(name, ()), seed=seed, **own)


def wait(cuda: bool) -> None:
    if cuda:
        torch.cuda.synchronize()


def timed(call: Any, repeats: int, cuda: bool, calls: int = 1) -> list[float]:
    """Milliseconds on this rank of one of `calls` calls that follow each other, of each repeat, after two to warm up."""
    out = []
    for n in range(repeats + 2):
        dist.barrier()
        wait(cuda)
        if cuda:
            first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            first.record()
            for _ in range(calls):
                call()
            last.record()
            wait(cuda)
            took = first.elapsed_time(last)
        else:
            start = time.perf_counter()
            for _ in range(calls):
                call()
            took = 1e3 * (time.perf_counter() - start)
        if n >= 2:
            out.append(took / calls)
    return out


def worst(times: list[float], device: str) -> list[float]:
    """Of each repeat, the slowest rank's time."""
    x = torch.tensor(times, device=device, dtype=torch.float64)
    dist.all_reduce(x, op=dist.ReduceOp.MAX)
    return x.tolist()


def errors(
    name: str, decay: str, shape: Shape, rank: int, count: int, device: str, dtype: torch.dtype
) -> tuple[dict[str, float], dict[str, float]]:
    """||found - whole|| / ||whole|| of the worst head, of outputs, gradients and the final state: (in segments, on one GPU).

    The whole is computed in float64, by the torch form; each rank's own GPU has the whole sequence too.
    """
    steps = min(ERRORS_AT.steps, shape.steps // count)
    small = Shape("errors", 1, steps * count, min(ERRORS_AT.heads, shape.heads), shape.width)
    function, given, cotangents = prepared(name, small, device, dtype, seed=99, decay=decay)
    low, high = rank * steps, (rank + 1) * steps
    exact = results(function, given, cotangents, torch.float64, backend="torch")
    one = results(function, given, cotangents)
    parts = results(function, given, cotangents, span=(low, high), context_parallel=dist.group.WORLD)
    segments, whole = {}, {}
    for key, (x, axis) in exact.items():
        mine = x[:, low:high] if axis == 2 else x
        found = parts[key][0]
        if axis == 2 and key.startswith("d"):
            found = found[:, low:high]
        elif key.startswith("d"):
            dist.all_reduce(found)
        if not key.startswith("final") or rank == count - 1:
            segments[key] = relative_error(found, mine, axis)
        whole[key] = relative_error(one[key][0], x, axis)
    everything: list[Any] = [None] * count
    dist.all_gather_object(everything, segments)
    names = dict.fromkeys(k for x in everything for k in x)
    return {key: max(x[key] for x in everything if key in x) for key in names}, whole


def results(
    function: Any,
    given: dict[str, torch.Tensor],
    cotangents: list[torch.Tensor],
    dtype: torch.dtype | None = None,
    span: tuple[int, int] | None = None,
    **options: Any,
) -> dict[str, tuple[torch.Tensor, int]]:
    """Outputs, final states and gradients, each with the axis of its heads, of all steps or of a segment's `span`."""
    per_step = {key for key, x in given.items() if x.ndim > 2}
    leaves = {key: x.detach().to(dtype or x.dtype, copy=True).requires_grad_() for key, x in given.items()}
    cut = {key: x[:, slice(*span)] if span and key in per_step else x for key, x in leaves.items()}
    *outputs, last = function(**cut, output_final_state=True, **options)
    goals = [(x[:, slice(*span)] if span else x).to(y.dtype) for x, y in zip(cotangents, outputs, strict=True)]
    torch.autograd.backward(outputs, goals)
    finals = last if isinstance(last, tuple) else (last,)
    found = {f"output {n}": (x.detach(), 2) for n, x in enumerate(outputs)}
    found |= {f"final {n}": (x.detach(), 1) for n, x in enumerate(finals)}
    return found | {f"d{key}": (x.grad, 2 if key in per_step else 0) for key, x in leaves.items()}


# --- the report -------------------------------------------------------------------------------------------------------


def show(folder: Path) -> None:
    """A table for the terminal, context_parallel.md and context_parallel.png, with what the planner says beside each number."""
    from rich.console import Console
    from rich.table import Table

    results = json.loads((folder / "context_parallel.json").read_text())
    rows = [r | {"predicted_ms": predicted(r)} for r in results["rows"]]
    one = {case_of(r): r for r in rows if r["gpus"] == 1 and r["status"] == "measured"}
    columns = (
        "op",
        "decays",
        "shape",
        "GPUs",
        "fwd ms",
        "f+b ms",
        "graph ms",
        "predicted ms",
        "faster",
        "graph faster",
    )
    columns += ("predicted faster", "goal", "peak MiB", "of one GPU", "error", "one GPU's")
    several = len({run_of(r) for r in rows}) > 1
    columns += ("run",) if several else ()
    table = Table(title=", ".join(f"{k} {v}" for k, v in results["versions"].items()), title_justify="left")
    for c in columns:
        table.add_column(c, justify="left" if c in ("op", "decays", "shape") else "right")
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    for r in rows:
        base = one.get(case_of(r))
        cells = [r["op"], r.get("decays", "usual"), r["shape"], str(r["gpus"])]
        if r["status"] != "measured":
            cells += [r["status"], *[""] * (len(columns) - 5 - several)]
        else:
            faster = base and base["both_ms"] / r["both_ms"]
            said = base and base["predicted_ms"] / r["predicted_ms"]
            goal = GOALS.get(r["gpus"], {}).get(r["op"], USUAL.get(r["gpus"]))
            share = base and r.get("peak_mib") and r["peak_mib"] / base["peak_mib"]
            wrong = [max(r.get(key, {"": 0.0}).values()) for key in ("errors", "errors_of_one")]
            replay, alone = r.get("graph_ms"), base and base.get("graph_ms")
            cells += [f"{r['forward_ms']:.3f}", f"{r['both_ms']:.3f}", f"{replay:.3f}" if replay else ""]
            cells += [f"{r['predicted_ms']:.3f}", f"{faster:.2f}" if faster else ""]
            cells += [f"{alone / replay:.2f}" if alone and replay else "", f"{said:.2f}" if said else ""]
            cells += [f"{goal}" if goal else ""]
            cells += [f"{r['peak_mib']:.0f}" if "peak_mib" in r else "", f"{100 * share:.0f}%" if share else ""]
            cells += [f"{x:.1e}" if x else "" for x in wrong]
        cells += [run_of(r)] if several else []
        table.add_row(*cells)
        lines.append("| " + " | ".join(cells) + " |")
    Console(width=220).print(table)
    head = [f"{k}: {v}" for k, v in (results["versions"] | {"date": results.get("date", "")}).items() if v]
    text = ["# Sequences in segments on several GPUs", "", ", ".join(head), ""]
    text += [
        "`python -m benchmarks.context_parallel`. Times are of forward and backward, of calls that follow each other; graph: "
        "replays of a CUDA graph, which wait for no host; predicted: `chunkform plan`, with the time of kernels by the "
        "compiler's model. Goals are of the times faster.",
        "",
        *(f"- {note}" for note in results.get("notes", [])),
        "",
    ]
    costs = handed_on(rows)
    if costs:
        costs = ["", "## What handing on costs", "", *costs]
    (folder / "context_parallel.md").write_text("\n".join([*text, *lines, *costs]) + "\n")
    plot(rows, folder / "context_parallel.png")


def case_of(row: dict[str, Any]) -> tuple[str, ...]:
    """What rows have in common that are compared."""
    return row["op"], row.get("decays", "usual"), row["shape"], run_of(row)


def run_of(row: dict[str, Any]) -> str:
    """Which run a row is of, where a file holds several: times are only compared inside one."""
    return str(row.get("run", ""))


def handed_on(rows: list[dict[str, Any]]) -> list[str]:
    """A table of what is left of a call's time without that of the same kernels on one GPU, beside the planner's number, and how
    far that and the kernels' time together are from what was measured."""
    alone = {(*case_of(r), int(n)): x for r in rows for n, x in r.get("part_graph_ms", {}).items() if x}
    lines = []
    several = len({run_of(r) for r in rows}) > 1
    for r in rows:
        part = alone.get((*case_of(r), r["gpus"]))
        if part and r.get("graph_ms"):
            cells = [
                r["op"],
                r.get("decays", "usual"),
                r["shape"],
                str(r["gpus"]),
                f"{r['graph_ms']:.3f}",
                f"{part:.3f}",
            ]
            more = planned(r)[1]
            cells += [
                f"{r['graph_ms'] - part:.3f}",
                f"{more:.3f}",
                f"{100 * ((part + more) / r['graph_ms'] - 1):+.0f}%",
            ]
            cells += [run_of(r)] if several else []
            lines.append("| " + " | ".join(cells) + " |")
    if not lines:
        return []
    columns = (
        "op",
        "decays",
        "shape",
        "GPUs",
        "graph ms",
        "one GPU, a part alone",
        "handing on",
        "predicted",
        "part and predicted",
    )
    columns += ("run",) if several else ()
    return ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns), *lines]


def predicted(row: dict[str, Any]) -> float:
    """Milliseconds of forward and backward, by the planner."""
    return sum(planned(row))


def planned(row: dict[str, Any]) -> tuple[float, float]:
    """Milliseconds of a segment's kernels, and of handing on, by the planner."""
    from chunkform.codegen.performance.sequence_parallel import link_plan

    step = link_plan(compiled(row["op"]), tuple(row["sizes"]), row["gpus"], lasting=row["decays"] == "lasting")
    return 1e3 * step.compute, 1e3 * (step.communicate + step.compose)


def compiled(name: str, known: dict[str, Any] = {}) -> Any:  # noqa: B006
    from chunkform.codegen.recurrence.pipeline import compile_spec
    from chunkform.spec.language import find

    if name not in known:
        known[name] = compile_spec(find(name)[0])
    return known[name]


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """How many times faster than one GPU: measured, and predicted."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    shapes = list(dict.fromkeys(r["shape"] for r in rows))
    figure, axes = plt.subplots(1, len(shapes), figsize=(6 * len(shapes), 4.5), squeeze=False)
    for axis, shape in zip(axes[0], shapes, strict=True):
        for n, (name, decays, run) in enumerate(dict.fromkeys((*case_of(r)[:2], run_of(r)) for r in rows)):
            label = f"{name} {'' if decays == 'usual' else decays} {run}".strip()
            case = name, decays, shape, run
            own = [r for r in rows if case_of(r) == case and r["status"] == "measured"]
            first = next((r for r in own if r["gpus"] == 1), None)
            if first is None:
                continue
            count = [r["gpus"] for r in own]
            axis.plot(count, [first["both_ms"] / r["both_ms"] for r in own], "-o", color=f"C{n}", label=label)
            axis.plot(count, [first["predicted_ms"] / r["predicted_ms"] for r in own], "--x", color=f"C{n}")
            if all(r.get("graph_ms") for r in own):
                axis.plot(count, [first["graph_ms"] / r["graph_ms"] for r in own], "-.+", color=f"C{n}", alpha=0.5)
        most = max(r["gpus"] for r in rows)
        axis.plot([1, most], [1, most], ":", color="grey")
        axis.set(title=shape, xlabel="GPUs", ylabel="times faster")
        axis.legend(loc="lower right", fontsize="small")
    figure.suptitle("Times faster than one GPU (solid: measured; dash-dotted: in a CUDA graph; dashed: predicted)")
    figure.tight_layout()
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
