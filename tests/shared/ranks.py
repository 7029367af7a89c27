"""What the processes of tests/parallel run: every case on every rank of its group, with what each rank found written to a file.

The processes start once, as many as the largest case has; smaller groups are the first of them.
"""

from __future__ import annotations

import datetime
import faulthandler
import importlib.util
import json
import os
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from chunkform.codegen.checking.accuracy import relative_error
from chunkform.runtime.parallel import links

STEPS = 26
BORDERS = (0, 0, 4, 4, 5, 18, 26, 26)  # sequences: none, several in a segment, one over several segments
PARTS = {  # uneven, some empty, some that end where a sequence does
    2: (17, 9),
    3: (4, 0, 22),
    4: (7, 2, 13, 4),
    8: (3, 2, 0, 7, 2, 6, 1, 5),
    16: (2, 1, 2, 0, 2, 2, 1, 4, 1, 3, 0, 3, 1, 2, 1, 1),
}


@dataclass(frozen=True)
class Rank:
    """Where a case runs: its group, and this process's place there."""

    processes: dist.ProcessGroup
    rank: int
    size: int
    folder: Path


def start(rank: int, port: int, folder: str, cases: list[tuple[str, int]], count: int = 4) -> None:
    """One process: run the cases in order, and stop at the first that fails, since other ranks may wait in it."""
    torch.set_num_threads(1)
    faulthandler.dump_traceback_later(150, exit=True)  # rather than hang
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group("gloo", rank=rank, world_size=count, timeout=datetime.timedelta(seconds=60))
    groups = {n: dist.new_group(list(range(n))) for n in sorted({size for _, size in cases})}
    found: dict[str, Any] = {}
    for name, size in cases:
        if rank >= size:
            continue
        try:
            found[f"{name} {size}"] = run_case(name, Rank(groups[size], rank, size, Path(folder)))
        except Exception:
            found[f"{name} {size}"] = {"failed": traceback.format_exc()}
            break
    Path(folder, f"found {count} {rank}.json").write_text(json.dumps(found))
    os._exit(0)  # other ranks may be waiting still


def run_case(name: str, at: Rank) -> dict[str, float]:
    kind, _, argument = name.partition(" ")
    rooms = map(importlib.import_module, ("shared.ranks", "shared.rank_faults"))
    case = next(getattr(room, f"case_{kind}") for room in rooms if hasattr(room, f"case_{kind}"))
    return case(argument, at) if argument else case(at)


# --- every op ---------------------------------------------------------------------------------------------------------


def operation(name: str, folder: Path) -> Any:
    """The Op of the catalogue, or one that the parent process compiled."""
    path = folder / f"{name}.py"
    module = f"chunkform.generated.{name}"
    if path.exists() and module not in sys.modules:
        spec = importlib.util.spec_from_file_location(module, path)
        assert spec is not None and spec.loader is not None
        sys.modules[module] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[module])
    return importlib.import_module(module).OP


def arguments(op: Any, packed: bool, dtype: torch.dtype = torch.float64) -> tuple[dict[str, Any], list[Tensor]]:
    """Random arguments for the whole sequence, the same in every process, and initial states."""
    torch.manual_seed(0)
    sizes: dict[str, int] = {"B": 1 if packed else 2, "T": STEPS, "H": 2}
    given: dict[str, Any] = {}
    for a in op.signature.arguments:
        if a.kind == "constant":
            given[a.name] = a.default if a.default is not None else 0.7
            continue
        shape = [sizes.setdefault(d, 3 + len(sizes) % 4) for d in a.layout]
        x = 0.5 * torch.randn(shape, dtype=torch.float64)
        given[a.name] = (-0.5 * x.abs() if a.kind.startswith("decay") else x).to(dtype)
    count = len(BORDERS) - 1 if packed else sizes["B"]
    states = [torch.randn(count, 2, *(sizes[d] for d in dims), dtype=torch.float64) for _, dims in op.signature.states]
    return given, states


def results(op: Any, given: dict[str, Any], states: list[Tensor], packed: bool, **options: Any) -> dict[str, Tensor]:
    """Outputs, final states and all gradients; the cotangents are those of the steps low..high of the sequence."""
    low, high = options.pop("span", (0, STEPS))
    given = {n: x.detach().clone().requires_grad_() if isinstance(x, Tensor) else x for n, x in given.items()}
    states = [x.detach().clone().requires_grad_() for x in states]
    per_step = {a.name for a in op.signature.arguments if a.per_step}
    parts = {n: x[:, low:high] if n in per_step else x for n, x in given.items()}
    cu_seqlens = torch.tensor(BORDERS) if packed else None
    *outputs, last = op(parts, tuple(states), True, cu_seqlens=cu_seqlens, **options)
    finals = last if isinstance(last, tuple) else (last,)
    torch.manual_seed(1)
    loss = torch.zeros((), dtype=torch.float64)
    for y in outputs:
        loss = loss + (y * torch.randn(y.shape[0], STEPS, *y.shape[2:], dtype=torch.float64)[:, low:high]).sum()
    for y in finals:
        loss = loss + (y * torch.randn(y.shape, dtype=torch.float64)).sum()
    loss.backward()
    out = {f"output {n}": y.detach() for n, y in enumerate(outputs)}
    out |= {f"final {n}": y.detach() for n, y in enumerate(finals)}
    out |= {f"d{n}": x.grad for n, x in given.items() if isinstance(x, Tensor)}
    return out | {f"d initial {n}": x.grad for n, x in enumerate(states)}


def difference(got: Tensor, expected: Tensor, heads: int | None = 2) -> float:
    """The worst head's relative error; of all at once where `heads` is None, as in what no head has for itself."""
    return relative_error(got, expected, heads)


def head_axis(op: Any, quantity: str) -> int:
    """The axis of the heads in what `results` gives."""
    if quantity.startswith("output "):
        return 2
    if quantity.startswith(("final ", "d initial ")):
        return 1
    return next(a.head_axis for a in op.signature.arguments if quantity == f"d{a.name}")


def summed(x: Tensor, at: Rank) -> Tensor:
    """Each rank holds what belongs to its segment, and zeros: the sum is the whole."""
    x = x.clone()
    dist.all_reduce(x, group=at.processes)
    return x


def span(at: Rank) -> tuple[int, int]:
    low = sum(PARTS[at.size][: at.rank])
    return low, low + PARTS[at.size][at.rank]


def compared(op: Any, name: str, at: Rank, packed: bool) -> dict[str, float]:
    given, states = arguments(op, packed)
    return against(op, given, states, at, packed, torch.load(at.folder / f"{name} {packed}.pt"))


def against(
    op: Any, given: dict[str, Any], states: list[Tensor], at: Rank, packed: bool, expected: dict[str, Tensor]
) -> dict[str, float]:
    """How far segments are from what one process found."""
    low, high = span(at)
    got = results(op, given, states, packed, span=(low, high), context_parallel=at.processes)
    out = {}
    for key, y in got.items():
        whole = expected[key]
        heads = head_axis(op, key)
        parts = (y, whole[:, low:high]) if key.startswith("output") else (summed(y, at), whole)
        out[key] = difference(*parts, heads)
    return out


def case_whole(name: str, at: Rank) -> dict[str, float]:
    return compared(operation(name, at.folder), name, at, packed=False)


def case_packed(name: str, at: Rank) -> dict[str, float]:
    return compared(operation(name, at.folder), name, at, packed=True)


def case_scan(argument: str, at: Rank) -> dict[str, float]:
    """Every rank a node of its own: then maps travel in log steps."""
    from chunkform.runtime.parallel.group import Group

    name, _, packed = argument.partition(" ")
    os.environ["LOCAL_WORLD_SIZE"] = "1"
    passed: list[Any] = []
    usual = Group.shift
    Group.shift = lambda *a: passed.append(a) or usual(*a)  # type: ignore[method-assign, assignment, func-returns-value]
    links.LINKS = links.Links(start=0.0, network=1.0)
    try:
        found = compared(operation(name, at.folder), name, at, packed == "packed")
    finally:
        Group.shift, links.LINKS = usual, links.Links()  # type: ignore[method-assign]
        del os.environ["LOCAL_WORLD_SIZE"]
    count = links.rounds(at.size)
    assert len(passed) in (2 * count, 4 * count), len(passed)  # twice where a state is made of what another one reads
    return found


def case_lasting(name: str, at: Rank) -> dict[str, float]:
    """Decays of sigmoid(normal + 9), of which most is left after all segments."""
    op = operation(name, at.folder)
    given, states = arguments(op, packed=False)
    for a in op.signature.arguments:
        if a.kind.startswith("decay"):
            given[a.name] = torch.nn.functional.logsigmoid(given[a.name] + 9)
    whole = results(op, given, states, packed=False)
    return against(op, given, states, at, packed=False, expected=whole)


# --- what else an op takes ----------------------------------------------------------------------------------------------


def some_arguments(at: Rank, dtype: torch.dtype = torch.float32, name: str = "gated_delta_rule") -> Any:
    op = operation(name, at.folder)
    given, states = arguments(op, packed=False, dtype=dtype)
    low, high = span(at)
    parts = {a.name: given[a.name][:, low:high] if a.per_step else given[a.name] for a in op.signature.arguments}
    return op, given, states, parts


def case_without_a_state(at: Rank) -> dict[str, float]:
    """No initial state, no final state, inputs in bfloat16 with fewer heads for keys; nothing but the output differs."""
    op, given, _, parts = some_arguments(at, torch.bfloat16)
    low, high = span(at)
    for n in ("q", "k"):
        given[n], parts[n] = given[n][:, :, :1], parts[n][:, :, :1]
    whole, none = op(given)
    got, also_none = op(parts, context_parallel=at.processes)
    assert none is None and also_none is None and got.dtype == torch.bfloat16
    return {"output": difference(got, whole[:, low:high]) * 1e-9}  # to within bfloat16's own rounding


def case_mesh(at: Rank) -> dict[str, float]:
    """A DeviceMesh of one dimension, cut out of a mesh of two: two groups of two that share nothing."""
    mesh = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "cp"))["cp"]
    op, given, states, _ = some_arguments(at, torch.float64)
    cut = (0, 11, STEPS)
    rank = mesh.get_local_rank()
    given = {
        n: x + 0.1 * mesh.get_group().group_name.__len__() * 0 if isinstance(x, Tensor) else x for n, x in given.items()
    }
    parts = {a.name: given[a.name][:, cut[rank] : cut[rank + 1]] for a in op.signature.arguments}
    whole, last = op(given, states[0], True)
    got, final = op(parts, states[0], True, context_parallel=mesh)
    out = {"output": difference(got, whole[:, cut[rank] : cut[rank + 1]])}
    if rank == 1:
        out["final"] = difference(final, last, 1)
    return out


def case_twice(at: Rank) -> dict[str, float]:
    """Two backward passes over one graph, where nothing is kept of what the forward pass saves; none of the gradients."""
    from chunkform.errors import DoubleBackwardError
    from chunkform.runtime.op import segment_passes

    op, given, _, parts = some_arguments(at, torch.float64)
    low, high = span(at)
    whole = {n: x.clone().requires_grad_() for n, x in given.items()}
    op(whole)[0].square().sum().backward()
    own = {n: x.clone().requires_grad_() for n, x in parts.items()}
    kept, segment_passes.keeps = segment_passes.keeps, lambda *_: at.rank == 1
    try:
        y = op(own, context_parallel=at.processes)[0]
        loss = y.square().sum()
        found = [torch.autograd.grad(loss, list(own.values()), retain_graph=True) for _ in range(2)]
        again = torch.autograd.grad(loss, list(own.values()), create_graph=True)
    finally:
        segment_passes.keeps = kept
    try:
        again[0].sum().backward()
        raise AssertionError("a second derivative")
    except DoubleBackwardError:
        pass
    out = {}
    for k, grads in enumerate([*found, again]):
        for n, x in zip(own, grads, strict=True):
            out[f"d{n} {k}"] = difference(x.detach(), whole[n].grad[:, low:high])
    return out


def case_checkpoint(at: Rank) -> dict[str, float]:
    """Under activation checkpointing the forward pass, with its collective, runs once more in the backward pass."""
    from torch.utils.checkpoint import checkpoint

    op, _, _, parts = some_arguments(at, torch.float64)
    found = []
    for wrapped in (False, True):
        own = {n: x.clone().requires_grad_() for n, x in parts.items()}
        names = list(own)

        def call(*tensors: Tensor, names: list[str] = names) -> Tensor:
            return op(dict(zip(names, tensors, strict=True)), context_parallel=at.processes)[0]

        y = checkpoint(call, *own.values(), use_reentrant=False) if wrapped else call(*own.values())
        y.square().sum().backward()
        found.append({n: x.grad for n, x in own.items()})
    return {n: difference(found[1][n], found[0][n]) for n in found[0]}


def case_compiled(at: Rank) -> dict[str, float]:
    """A module with the op in it, under torch.compile: the op stays outside of the graph."""
    op, _, _, parts = some_arguments(at, torch.float64)

    def model(parts: dict[str, Tensor]) -> Tensor:
        return 2 * op({n: x + 0 for n, x in parts.items()}, context_parallel=at.processes)[0]

    return {"output": difference(torch.compile(model, backend="eager")(parts), model(parts))}


def case_data_parallel(at: Rank) -> dict[str, float]:
    """Two by two: parameters' gradients summed over the segments of a sequence, and averaged over the batch by DDP."""
    from torch.nn.parallel import DistributedDataParallel

    mesh = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "cp"))
    op = operation("lightning_attention", at.folder)

    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(3)
            self.project = torch.nn.Linear(6, 3 * 6, bias=False, dtype=torch.float64)

        def forward(self, x: Tensor, group: Any = None) -> Tensor:
            q, k, v = self.project(x).unflatten(-1, (3, 2, 3)).unbind(2)
            lam = -q.square().mean(-1)
            return op({"q": q, "k": k, "v": v, "lam": lam}, context_parallel=group)[0]

    torch.manual_seed(4)
    x = torch.randn(2, STEPS, 6, dtype=torch.float64)
    whole = Layer()
    (whole(x).square().sum() / 2).backward()
    d, c = mesh["dp"].get_local_rank(), mesh["cp"].get_local_rank()
    layer = DistributedDataParallel(Layer(), process_group=mesh["dp"].get_group())
    cut = (0, 15, STEPS)
    layer(x[d : d + 1, cut[c] : cut[c + 1]], mesh["cp"]).square().sum().backward()
    gradient = layer.module.project.weight.grad.clone()
    dist.all_reduce(gradient, group=mesh["cp"].get_group())
    return {"gradient": difference(gradient, whole.project.weight.grad, None)}


def case_tensor_parallel(at: Rank) -> dict[str, float]:
    """Two by two: each rank has a segment of the sequence, and one head of two, by DTensor's tensor parallelism."""
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("cp", "tp"))
    op = operation("lightning_attention", at.folder)

    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(3)
            self.q, self.k, self.v, self.out = (torch.nn.Linear(6, 6, False, dtype=torch.float64) for _ in range(4))

        def forward(self, x: Tensor, group: Any = None) -> Tensor:
            q, k, v = (layer(x).unflatten(-1, (-1, 3)) for layer in (self.q, self.k, self.v))
            lam = -q.square().mean(-1)
            return self.out(op({"q": q, "k": k, "v": v, "lam": lam}, context_parallel=group)[0].flatten(2))

    torch.manual_seed(4)
    x = torch.randn(2, STEPS, 6, dtype=torch.float64)
    whole = Layer()
    expected = whole(x)
    expected.square().sum().backward()
    styles = {"q": ColwiseParallel(), "k": ColwiseParallel(), "v": ColwiseParallel(), "out": RowwiseParallel()}
    layer = parallelize_module(Layer(), mesh["tp"], styles)
    c = mesh["cp"].get_local_rank()
    low, high = ((0, 15), (15, STEPS))[c]
    got = layer(x[:, low:high], mesh["cp"])
    got.square().sum().backward()
    found = {"output": difference(got, expected[:, low:high], None)}
    for name, own in layer.named_parameters():
        gradient = own.grad.full_tensor()  # type: ignore[union-attr]
        dist.all_reduce(gradient, group=mesh["cp"].get_group())
        found[name] = difference(gradient, whole.get_parameter(name).grad, None)  # type: ignore[arg-type]
    return found


def case_over_heads(name: str, at: Rank) -> dict[str, float]:
    """Two by two: each rank has a segment of the sequence and half of a layer's heads, as the example cuts them."""
    from chunkform.runtime.nn import Mixer

    sys.path.append(str(Path(__file__).parents[2] / "examples"))
    from over_heads import OverHeads

    mesh = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("cp", "tp"))
    torch.manual_seed(3)
    layers = [Mixer(name, 8, 4, context_parallel=group).double() for group in (None, mesh["cp"])]
    layers[1].load_state_dict(layers[0].state_dict())
    layer = OverHeads(layers[1], mesh["tp"].get_group())
    x = torch.randn(2, STEPS, 8, dtype=torch.float64)
    low, high = ((0, 15), (15, STEPS))[mesh["cp"].get_local_rank()]
    whole, own = (y.clone().requires_grad_() for y in (x, x))
    expected, got = layers[0](whole), layer(own[:, low:high])
    for y in (expected, got):
        y.square().sum().backward()
    found = {"output": difference(got, expected[:, low:high], None)}
    found["dx"] = difference(summed_over(own.grad, mesh["cp"]), whole.grad, None)
    shared = {id(y) for y in layer.shared()}
    for n, y in layer.own.named_parameters():
        g = summed_over(y.grad, mesh["cp"])
        if id(y) in shared:
            found[f"d{n}"] = difference(summed_over(g, mesh["tp"]), layers[0].get_parameter(n).grad, None)
        else:
            found[f"d{n}"] = difference(g, layer.part(layers[0].get_parameter(n).grad, n), None)
    return found


def summed_over(x: Tensor, mesh: Any) -> Tensor:
    x = x.clone()
    dist.all_reduce(x, group=mesh.get_group())
    return x


def case_bytes(at: Rank) -> dict[str, float]:
    """One collective a pass, of a size that doesn't depend on the number of steps."""
    from chunkform.runtime.parallel import group as group_module

    sent: list[int] = []
    original = group_module.Group.gather

    def counting(self: Any, x: Tensor) -> Any:
        if x.dtype != torch.uint8:  # what the ranks say of their calls
            sent.append(x.numel())
        return original(self, x)

    group_module.Group.gather = counting  # type: ignore[method-assign]
    try:
        for name, linear in (("lightning_attention", 1), ("gated_linear_attention", None), ("gated_delta_rule", 0)):
            op, given, _, _ = some_arguments(at, torch.float64, name)
            for steps in (3, 8):
                sent.clear()
                parts = {n: x[:, :steps].clone().requires_grad_() for n, x in given.items()}
                op(parts, context_parallel=at.processes)[0].sum().backward()
                b, h, d = parts["k"].shape[0], parts["k"].shape[2], parts["k"].shape[3]
                e = parts["v"].shape[3]
                width = {1: 1, None: d, 0: d * d}[linear]
                assert sent == [b * h * (d * e + width)] * 2, (name, steps, sent)
    finally:
        group_module.Group.gather = original  # type: ignore[method-assign]
    return {}


# --- pairwise attention ---------------------------------------------------------------------------------------------------


def case_ring(argument: str, at: Rank) -> dict[str, float]:
    """An attention whose keys travel round the ranks, against one process: outputs, lse, and all gradients."""
    name, mask = argument.split()
    causal = mask == "causal"
    op = importlib.import_module(f"chunkform.generated.{name}").OP
    softmax = op.signature.normaliser == "softmax"
    low, high = span(at)
    torch.manual_seed(5)
    sizes: dict[str, int] = {"B": 2, "T": STEPS, "S": STEPS, "H": 2}
    given: dict[str, Any] = {}
    for a in op.signature.arguments:
        x = 0.7 * torch.randn([sizes.setdefault(d, 4 + 2 * (len(sizes) % 3)) for d in a.layout], dtype=torch.float64)
        given[a.name] = x.abs() + 0.3 if a.kind == "temperature" else x
    found = []
    for parts in (False, True):
        own = {n: x.clone().requires_grad_() for n, x in given.items()}
        cut = {
            a.name: own[a.name][:, low:high] if parts and a.per_step else own[a.name] for a in op.signature.arguments
        }
        y = op(cut, causal, softmax, context_parallel=at.processes if parts else None)
        outputs = y if isinstance(y, tuple) else (y,)
        torch.manual_seed(6)
        loss = torch.zeros((), dtype=torch.float64)
        for x in outputs:
            goal = torch.randn(x.shape[0], STEPS, *x.shape[2:], dtype=torch.float64)
            loss = loss + (x * (goal[:, low:high] if parts else goal)).sum()
        loss.backward()
        found.append(([x.detach() for x in outputs], {n: x.grad for n, x in own.items()}))
    (whole, expected), (got, gradients) = found
    out = {f"output {n}": difference(x, y[:, low:high]) for n, (x, y) in enumerate(zip(got, whole, strict=True))}
    heads = {a.name: 2 if a.per_step else 0 for a in op.signature.arguments}
    return out | {f"d{n}": difference(summed(x, at), expected[n], heads[n]) for n, x in gradients.items()}


def case_checked_once(at: Rank) -> dict[str, float]:
    """Over a group that can't exchange what lies on the hosts, the same call is checked once; another one again."""
    from chunkform.runtime.parallel import group as group_module

    said: list[int] = []
    original, on_host = group_module.Group.gather, group_module.Group.on_host

    def counting(self: Any, x: Tensor) -> Any:
        said.append(x.dtype == torch.uint8)
        return original(self, x)

    group_module.Group.gather = counting  # type: ignore[method-assign]
    group_module.Group.on_host = property(lambda self: False)  # type: ignore[assignment, method-assign]
    try:
        op, given, _, parts = some_arguments(at, torch.float64)
        checks = []
        for own in (parts, parts, {n: x[:, :, :1] for n, x in parts.items()}, parts):
            said.clear()
            got = op(own, context_parallel=at.processes)[0]
            checks.append(sum(said))
        assert checks == [1, 0, 1, 0], checks
    finally:
        group_module.Group.gather, group_module.Group.on_host = original, on_host  # type: ignore[method-assign]
    low, high = span(at)
    return {"output": difference(got, op(given)[0][:, low:high])}


# --- halo ---------------------------------------------------------------------------------------------------------------


def case_halo(argument: str, at: Rank) -> dict[str, float]:
    """A causal convolution over segments, against the same over the whole sequence; segments may be shorter than the filter."""
    from chunkform.runtime.parallel import halo

    width = int(argument)
    torch.manual_seed(2)
    x = torch.randn(2, STEPS, 3, dtype=torch.float64)
    weight = torch.randn(width + 1, 3, dtype=torch.float64)
    goal = torch.randn(2, STEPS, 3, dtype=torch.float64)
    low, high = span(at)
    found = []
    for parts in (False, True):
        own = x.clone().requires_grad_()
        part = own[:, low:high] if parts else own
        wide = halo(part, width, at.processes) if parts else torch.nn.functional.pad(own, (0, 0, width, 0))
        y = sum((wide[:, n : n + part.shape[1]] * w for n, w in enumerate(weight)), start=torch.zeros_like(part))
        (y * (goal[:, low:high] if parts else goal)).sum().backward()
        found.append((y.detach(), own.grad))
    return {
        "output": difference(found[1][0], found[0][0][:, low:high], None),
        "gradient": difference(summed(found[1][1], at), found[0][1], None),
    }


def case_layer(argument: str, at: Rank) -> dict[str, float]:
    """A layer with a short convolution, over segments, also packed, also with an attention: outputs, and all gradients."""
    from chunkform.runtime.nn import Mixer

    packed = argument == "packed"
    borders = torch.tensor(BORDERS) if packed else None
    low, high = span(at)
    torch.manual_seed(7)
    x = torch.randn(1 if packed else 2, STEPS, 8, dtype=torch.float64)
    goal = torch.randn_like(x)
    found = []
    for parts in (False, True):
        torch.manual_seed(8)
        op = "rotary_attention" if argument == "attention" else "gated_delta_rule"
        layer = Mixer(op, 8, 2, context_parallel=at.processes if parts else None).double()
        own = x.clone().requires_grad_()
        y = layer(own[:, low:high] if parts else own, cu_seqlens=borders)
        (y * (goal[:, low:high] if parts else goal)).sum().backward()
        gradients = {n: p.grad for n, p in layer.named_parameters()}
        found.append((y.detach(), {"x": own.grad, **gradients}))
    (whole, expected), (got, gradients) = found
    out = {f"d{n}": difference(summed(g, at), expected[n], None) for n, g in gradients.items()}
    return out | {"output": difference(got, whole[:, low:high], None)}
