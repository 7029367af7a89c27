"""Sequences in segments on two and four GPUs: what one GPU gives, for every chunk-parallel op; packed; rings; graphs.

Four processes do it on one or two GPUs as well, where they see each other's memory. On one GPU the segments are also computed one
after the other, each with what those before it have sent.
"""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import socket
import traceback
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor

from chunkform.codegen.checking.accuracy import relative_error
from chunkform.runtime.launch.parallel_compile import compile_ahead
from chunkform.runtime.parallel import incoming, mailboxes
from chunkform.runtime.parallel.group import Group, group_of

STEPS = 1100  # of a rank, on average: several segments of the kernels' own
NO_MULTICAST = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"}
BOUNDS = {"float32": 2e-4, "bfloat16": 2e-2}  # kernels cut sequences elsewhere, so that rounding differs


def catalogue() -> list[str]:
    import chunkform.generated as generated
    from chunkform.runtime.op.op import Op

    found = [m.name for m in pkgutil.iter_modules(generated.__path__[:1])]
    ops = {n: getattr(importlib.import_module(f"chunkform.generated.{n}"), "OP", None) for n in found}
    names = [n for n, op in ops.items() if isinstance(op, Op) and op.backends["torch"].forward_states is not None]
    return [n for n in names if n != "inverse_attention_unstable"]  # it explodes at such lengths, on one GPU too


def cases() -> list[tuple[str, str]]:
    return [(n, dtype) for n in catalogue() for dtype in BOUNDS]


def takes_parts(op: Any) -> bool:
    return "exchange" in op.backends.get("triton", op.backends["torch"]).features


def compile_case(case: tuple[str, str]) -> int:
    """In a process of its own, for the cache that all share: how many kernels."""
    op = importlib.import_module(f"chunkform.generated.{case[0]}").OP
    if not takes_parts(op):
        return 0
    given = drawn(op.signature, cuts(4)[-1], getattr(torch, case[1]))
    goal = torch.zeros((1, cuts(4)[-1], 4, 64), device="cuda")
    with pytest.MonkeyPatch.context() as patch:
        return compile_ahead(lambda: [in_turn(op, given, goal, cut, patch) for cut in ([0, cuts(4)[-1]], cuts(4))], 4)


@pytest.fixture(scope="module")
def compiled() -> None:
    """Compiled by processes side by side: one after the other takes minutes."""
    with ProcessPoolExecutor(min(64, os.cpu_count() or 1), mp_context=mp.get_context("spawn")) as pool:
        assert sum(pool.map(compile_case, cases())) > 0


def rank_main(rank: int, count: int, port: int, folder: str, backend: str) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), **NO_MULTICAST}
    shared = backend == "gloo"  # NCCL refuses several ranks on a GPU
    os.environ |= {mailboxes.SHARED: "1"} if shared else {}
    device = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    dist.init_process_group(
        backend, rank=rank, world_size=count, device_id=None if shared else device, timeout=timedelta(seconds=120)
    )
    found: dict[str, Any] = {}
    try:
        for name, dtype in cases():
            found[f"{name} {dtype}"] = parts(name, dtype, rank, count, packed=False)
        for name in ("lightning_attention", "gated_delta_rule"):
            found[f"packed {name} float32"] = parts(name, "float32", rank, count, packed=True)
        for causal in () if shared else (False, True):
            found[f"ring {causal} bfloat16"] = ring(causal, rank, count)
        if backend == "nccl":
            found["graph float32"] = graph(rank, count)
        if backend != "cpu:gloo,cuda:nccl":
            graphs = [mailboxes.MEMORY] if shared else [mailboxes.GATHER, mailboxes.MEMORY]  # gloo can't be captured
            found["bits that differ between ways float32"] = ways(rank, count, graphs)
    except Exception:
        found["failed"] = traceback.format_exc()
    Path(folder, f"{rank}.json").write_text(json.dumps(found))
    if "failed" not in found:
        dist.barrier()
        dist.destroy_process_group()
    os._exit(0)


def drawn(signature: Any, steps: int, dtype: torch.dtype) -> dict[str, Any]:
    g = torch.Generator(device="cuda").manual_seed(0)
    sizes: dict[str, int] = {"B": 1, "T": steps, "H": 4}
    given: dict[str, Any] = {}
    for a in signature.arguments:
        if a.kind == "constant":
            given[a.name] = a.default
            continue
        x = torch.randn([sizes.setdefault(d, 64) for d in a.layout], generator=g, device="cuda")
        if a.kind.startswith("decay"):
            given[a.name] = torch.nn.functional.logsigmoid(x + 2)
        elif a.dims:
            given[a.name] = torch.nn.functional.normalize(x, dim=-1).to(dtype)
        else:
            given[a.name] = (0.5 * torch.sigmoid(x)).to(dtype)
    return given


def cuts(count: int) -> list[int]:
    """Uneven segments."""
    total = STEPS * count
    return [0, *(total * n // count + (37 if n % 2 else -11) for n in range(1, count)), total]


def parts(name: str, dtype: str, rank: int, count: int, packed: bool) -> dict[str, float]:
    op = importlib.import_module(f"chunkform.generated.{name}").OP
    cut = cuts(count)
    low, high, total = cut[rank], cut[rank + 1], cut[-1]
    given = drawn(op.signature, total, getattr(torch, dtype))
    borders = torch.tensor([0, 100, 100, 731, total], device="cuda") if packed else None
    per_step = {a.name for a in op.signature.arguments if a.per_step}
    heads = {a.name: a.head_axis for a in op.signature.arguments}
    results = []
    for shared in (False, True):
        own = {n: x.clone().requires_grad_() if isinstance(x, Tensor) else x for n, x in given.items()}
        cut_ = {n: x[:, low:high] if shared and n in per_step else x for n, x in own.items()}
        group = dist.group.WORLD if shared else None
        *outputs, last = op(cut_, None, True, cu_seqlens=borders, context_parallel=group)
        finals = last if isinstance(last, tuple) else (last,)
        g = torch.Generator(device="cuda").manual_seed(1)
        goals = [torch.randn((y.shape[0], total, *y.shape[2:]), generator=g, device="cuda") for y in outputs]
        ends = [torch.randn(y.shape, generator=g, device="cuda") for y in finals]
        loss = sum((y.float() * (w[:, low:high] if shared else w)).sum() for y, w in zip(outputs, goals, strict=True))
        (loss + sum((y.float() * w).sum() for y, w in zip(finals, ends, strict=True))).backward()
        results.append((outputs, finals, {n: x.grad for n, x in own.items() if isinstance(x, Tensor)}))
    (whole, wanted, expected), (got, finals, gradients) = results
    out = {f"output {n}": relative_error(x, y[:, low:high], 2) for n, (x, y) in enumerate(zip(got, whole, strict=True))}
    for n, (x, y) in enumerate(zip(finals, wanted, strict=True)):
        out[f"final {n}"] = relative_error(summed(x.detach()), y, 1)
    return out | {f"d{n}": relative_error(summed(x), expected[n], heads[n]) for n, x in gradients.items()}


def ring(causal: bool, rank: int, count: int) -> dict[str, float]:
    from chunkform.generated.softmax_attention import OP
    from chunkform.runtime.attention.ring import ring_attention

    cut = cuts(count)
    low, high = cut[rank], cut[rank + 1]
    g = torch.Generator(device="cuda").manual_seed(0)
    q, k, v, goal = (torch.randn(1, cut[-1], 4, 64, generator=g, device="cuda", dtype=torch.bfloat16) for _ in range(4))
    results = []
    for shared in (False, True):
        own = [x.clone().requires_grad_() for x in (q, k, v)]
        cut_ = [x[:, low:high] if shared else x for x in own]
        given = dict(zip("qkv", cut_, strict=True)) | {"scale": None}
        o = ring_attention(OP, given, dist.group.WORLD, causal) if shared else OP(given, causal)
        (o.float() * (goal[:, low:high] if shared else goal).float()).sum().backward()
        results.append((o.detach(), [x.grad for x in own]))
    (whole, expected), (got, gradients) = results
    out = {f"d{n}": relative_error(summed(x), y, 2) for n, x, y in zip("qkv", gradients, expected, strict=True)}
    return out | {"o": relative_error(got, whole[:, low:high], 2)}


def graph(rank: int, count: int) -> dict[str, float]:
    """One forward and backward in a CUDA graph, collectives included: replays give what the call gave."""
    from chunkform.generated.gated_delta_rule import OP

    cut = cuts(count)
    given = drawn(OP.signature, cut[-1], torch.float32)
    own = {n: x[:, cut[rank] : cut[rank + 1]].clone().requires_grad_() for n, x in given.items()}

    def call() -> tuple[Tensor, ...]:
        o = OP(own, context_parallel=dist.group.WORLD)[0]
        return (o, *torch.autograd.grad(o, list(own.values()), torch.ones_like(o)))

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            expected = [x.clone() for x in call()]
    torch.cuda.current_stream().wait_stream(side)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        got = call()
    captured.replay()
    torch.cuda.synchronize()
    return {str(n): relative_error(x, y, 2) for n, (x, y) in enumerate(zip(got, expected, strict=True))}


def ways(rank: int, count: int, graphs: list[str]) -> dict[str, int]:
    """Of how many tensors a bit differs where maps are gathered, and where GPUs write them into each other's memory: with
    other numbers in each call, and eager calls between replays of CUDA graphs of these ways."""
    low, high = cuts(count)[rank : rank + 2]
    groups = {}
    for way in (mailboxes.GATHER, mailboxes.MEMORY):
        os.environ[mailboxes.VARIABLE] = way
        groups[way] = dist.new_group(list(range(count)))
        boxes = mailboxes.mailboxes_of(group_of("test", groups[way]), torch.device("cuda", torch.cuda.current_device()))
        assert (boxes is not None) == (way == mailboxes.MEMORY)
    found = {}
    for name in ("lightning_attention", "gated_linear_attention", "gated_delta_rule"):
        op = importlib.import_module(f"chunkform.generated.{name}").OP
        given = drawn(op.signature, cuts(count)[-1], torch.float32)
        own = {n: x[:, low:high].clone().requires_grad_() for n, x in given.items()}

        def call(way: str, op: Any = op, own: Any = own) -> list[Tensor]:
            o, _ = op(own, None, True, context_parallel=groups[way])
            grads = torch.autograd.grad(o, list(own.values()), torch.ones_like(o))
            return [o.detach(), *grads]  # a graph that stayed would tie a captured pass to this one's stream

        wrong, kept = 0, {}
        for turn in range(6):
            with torch.no_grad():
                own["v"].normal_()
            results = [call(way) for way in groups]
            wrong += sum(not torch.equal(x, y) for x, y in zip(*results, strict=True))
            if turn == 2:
                captured = {way: torch.cuda.CUDAGraph() for way in graphs}
                for way, x in captured.items():
                    with torch.cuda.graph(x):
                        kept[way] = call(way)
            if turn >= 2:
                for x in captured.values():
                    x.replay()
                for way in graphs:
                    wrong += sum(not torch.equal(x, y) for x, y in zip(kept[way], results[0], strict=True))
        found[name] = wrong
    return found


def summed(x: Tensor) -> Tensor:
    x = x.float().clone()
    dist.all_reduce(x)
    return x


@dataclass(frozen=True)
class Told(Group):
    """A rank's group where ranks take turns: `heard` is what those before it have sent."""

    heard: dict[int, Tensor]

    @property
    def on_host(self) -> bool:
        return True

    def gather(self, x: Tensor) -> Any:
        self.heard[self.rank] = x
        rows = torch.stack([self.heard.get(n, torch.full_like(x, float("nan"))) for n in range(self.size)])
        return SimpleNamespace(wait=lambda: rows)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", catalogue())
def test_parts_one_after_the_other_give_what_the_whole_gives(
    name: str, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    op = importlib.import_module(f"chunkform.generated.{name}").OP
    if not takes_parts(op):
        pytest.skip("its kernels take whole sequences")
    cut = cuts(3)
    given = drawn(op.signature, cut[-1], getattr(torch, dtype))
    g = torch.Generator(device="cuda").manual_seed(1)
    goal = torch.randn((1, cut[-1], 4, 64), generator=g, device="cuda")
    whole = in_turn(op, given, goal, [0, cut[-1]], monkeypatch)
    parts = in_turn(op, given, goal, cut, monkeypatch)
    heads = {"o": 2, "final": 1} | {a.name: a.head_axis for a in op.signature.arguments}
    apart = {n: relative_error(x, whole[n], heads[n]) for n, x in parts.items()}
    assert {n: e for n, e in apart.items() if not e < BOUNDS[dtype]} == {}
    if dtype == "float32":
        return
    wide = {n: x.float() if isinstance(x, Tensor) else x for n, x in given.items()}
    exact = in_turn(op, wide, goal, [0, cut[-1]], monkeypatch)
    errors = {n: [relative_error(y, exact[n], heads[n]) for y in (x, whole[n])] for n, x in parts.items()}
    assert {n: both for n, both in errors.items() if not both[0] < 1.3 * both[1] + 5e-3} == {}


def in_turn(
    op: Any, given: dict[str, Any], goal: Tensor, cut: list[int], monkeypatch: pytest.MonkeyPatch
) -> dict[str, Tensor]:
    """Output, final state and gradients; the segments take turns where there are several."""
    count, heard, found, losses = len(cut) - 1, {}, [], []
    run_module = importlib.import_module("chunkform.runtime.op.context_parallel")
    lengths = [{"T": b - a, "node": 8} for a, b in pairwise(cut)]
    monkeypatch.setattr(run_module, "group_of", lambda name, given: given)
    monkeypatch.setattr(run_module, "agreed", lambda *_: lengths)
    monkeypatch.setattr(incoming, "mailboxes_of", lambda *_: None)
    per_step = {a.name for a in op.signature.arguments if a.per_step}
    own = {n: x.clone().requires_grad_() if isinstance(x, Tensor) else x for n, x in given.items()}
    for rank, (low, high) in enumerate(pairwise(cut)):
        part = {n: x[:, low:high] if n in per_step else x for n, x in own.items()}
        group = Told("op", frozenset({"processes"}), rank, count, heard) if count > 1 else None  # type: ignore[arg-type]
        (o, *_, final) = op(part, None, True, context_parallel=group)
        found.append(o)
        losses.append((o.float() * goal[:, low:high]).sum() + (final.float().sum() if rank == count - 1 else 0.0))
    assert len(heard) in (0, count)
    heard.clear()
    for loss in reversed(losses):
        loss.backward()
    gradients = {n: x.grad for n, x in own.items() if isinstance(x, Tensor)}
    return {"o": torch.cat(found, 1), "final": final, **gradients}


SEVERAL = [
    (2, "nccl"), (2, "cpu:gloo,cuda:nccl"), (4, "nccl"), pytest.param(4, "gloo", marks=pytest.mark.alone),
]  # fmt: skip


@pytest.mark.parametrize("count, backend", SEVERAL)  # ranks that share a GPU wait for each other's turns
def test_parts_on_several_gpus_give_what_one_gives(
    count: int, backend: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if torch.cuda.device_count() < count and backend != "gloo":
        pytest.skip(f"needs {count} GPUs")
    request.getfixturevalue("compiled")
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    mp.spawn(rank_main, args=(count, port, str(tmp_path), backend), nprocs=count)
    wrong: dict[str, Any] = {}
    said = {rank: json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(count)}
    assert not {rank: found["failed"] for rank, found in said.items() if "failed" in found}
    for rank, found in said.items():
        for case, quantities in found.items():
            bound = BOUNDS[case.split()[-1]]
            wrong |= {f"rank {rank}: {case}: {n}": x for n, x in quantities.items() if not x < bound}
    assert not wrong
