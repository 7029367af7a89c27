"""Three processes whose Triton kernels run in Triton's interpreter, which must be chosen before Triton is imported.

python interpret.py FOLDER NAME..     # writes FOLDER/0.json to FOLDER/2.json: differences from the torch form in float64

"NAME lasting" is with decays that forget little of the whole sequence, "NAME scanned" with maps that travel in log steps, and
"NAME in memory" with maps that each rank writes into memory of the others.
"""

from __future__ import annotations

import importlib
import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

AGAIN = ("gated_delta_rule", "lightning_attention")  # called until their passes are replayed
ON_HOST = ("lightning_attention",)  # whose ranks say at every call what it is
SPECS = Path(__file__).parents[2] / "codegen" / "specs"
CUT = (0, 130, 205, 330)  # two segments of the kernels' own in each


def work(rank: int, port: int, folder: str, names: list[str]) -> None:
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group("gloo", rank=rank, world_size=len(CUT) - 1)
    found = {name: differences(name, rank) for name in names}
    Path(folder, f"{rank}.json").write_text(json.dumps(found))
    os._exit(0)


def generated(name: str) -> Any:
    """The module of an op of the catalogue, or of the tests' specs."""
    from chunkform.codegen.commands.compile import compile_module
    from chunkform.spec.language import load

    path = SPECS / f"{name}.py"
    return compile_module(load(path)[0]) if path.exists() else importlib.import_module(f"chunkform.generated.{name}")


class Files:
    """Memory that all ranks see: files that each of them maps."""

    made = 0

    def __init__(self, group: Any, size: int, device: torch.device) -> None:
        name = f"{sys.argv[1]}/memory_{Files.made}_"
        Files.made += 1
        Path(f"{name}{group.rank}").write_bytes(bytes(-(-size // 8) * 8))
        dist.barrier()
        self.mapped = [
            torch.from_file(f"{name}{r}", shared=True, size=-(-size // 8), dtype=torch.int64) for r in range(group.size)
        ]
        self.addresses = [x.data_ptr() for x in self.mapped]


def differences(name: str, rank: int) -> dict[str, float]:
    from chunkform.codegen.checking.accuracy import relative_error
    from chunkform.runtime.launch.recorder import Operation, Quick
    from chunkform.runtime.launch.replay import Interpreted, Recorded
    from chunkform.runtime.op import op as op_module
    from chunkform.runtime.parallel import links, mailboxes
    from chunkform.runtime.parallel.group import Group, group_of
    from chunkform.runtime.parallel.meeting import meet

    name, _, case = name.partition(" ")
    lasting = case == "lasting"
    links.way = lambda *_: "scan" if case == "scanned" else "gather"
    run_module = importlib.import_module("chunkform.runtime.op.context_parallel")
    run_module.KNOWN.clear()  # what another case has recorded goes another way
    own_group = group_of(name, dist.group.WORLD)
    meet(own_group)
    mailboxes.OF_GROUPS.clear()
    mailboxes.BLOCK, mailboxes.PROGRAMS = 64, 3
    if case == "in memory":
        failed = torch.zeros(1, dtype=torch.int64)
        mailboxes.OF_GROUPS[own_group.processes] = mailboxes.Mailboxes(Files, torch.device("cpu"), 10**7, failed)
    Group.on_host = property(lambda self: name in ON_HOST)  # type: ignore[assignment, method-assign]
    module = generated(name)
    module.segments_for = lambda places, programs: 2
    torch.manual_seed(0)
    sizes = {"B": 1, "T": CUT[-1], "H": 1}
    given = {}
    for a in module.OP.signature.arguments:
        x = 0.3 * torch.randn([sizes.setdefault(d, 16) for d in a.layout])
        if a.kind.startswith("decay"):
            x = torch.nn.functional.logsigmoid(x + 9) if lasting else -0.3 * x.abs()
        given[a.name] = x
    heads = {a.name: a.head_axis for a in module.OP.signature.arguments} | {"initial": 1}
    state = torch.randn(1, 1, 16, 16)
    low, high = CUT[rank], CUT[rank + 1]
    results = []
    for shared in (False, *[True] * (3 if name in AGAIN else 1)):
        chosen = "triton" if shared else "torch"
        op_module.chosen_backend = run_module.chosen_backend = lambda *_, chosen=chosen, **__: chosen
        dtype = torch.float32 if shared else torch.float64
        own = {n: x.to(dtype, copy=True).requires_grad_() for n, x in {**given, "initial": state}.items()}
        parts = {n: x[:, low:high] if shared else x for n, x in own.items() if n != "initial"}
        group = dist.group.WORLD if shared else None
        o, final = module.OP(parts, own["initial"], True, context_parallel=group)
        torch.manual_seed(1)
        goal, end = torch.randn(1, CUT[-1], 1, 16), torch.randn(1, 1, 16, 16)
        ((o * (goal[:, low:high] if shared else goal)).sum() + (final * end).sum()).backward()
        results.append((o.detach(), final.detach(), {n: x.grad for n, x in own.items()}))
    (whole, last, expected), (got, final, gradients) = results[0], results[-1]
    if name in AGAIN:
        seen = [x for known in run_module.KNOWN.values() for kind, x in known.items() if kind[0] is module.OP]
        recorded = [y for x in seen for y in x.job.replays.values()]
        assert [type(x) for x in recorded] == [Recorded, Recorded]
        names = [[x.function.__name__ for x in y.steps if isinstance(x, Operation | Quick)] for y in recorded]
        forward, backward = ([x for x in own if x in ("at_once", "begin", "wait")] for own in names)
        if case == "in memory":
            assert forward == backward == []
            kernels = [
                [y.kernel.fn.__name__ for x in own.steps if isinstance(x, Interpreted) for y in x.launches]
                for own in recorded
            ]
            sent, received = ([f"{way}_kernel" in own for own in kernels] for way in ("send", "receive"))
            assert sent == received[::-1] == [rank < len(CUT) - 2, rank > 0]
        elif case != "scanned":
            assert forward == ["at_once"] and backward in (["at_once"], ["begin", "wait"])  # with kernels in between
        else:
            assert set(forward) == set(backward) == {"begin", "wait"} and "at_once" not in names[0]
    out = {"output": relative_error(got, whole[:, low:high], 2), "final": relative_error(summed(final), last, 1)}
    return out | {f"d{n}": relative_error(summed(x), expected[n], heads[n]) for n, x in gradients.items()}


def summed(x: torch.Tensor) -> torch.Tensor:
    x = x.double()
    dist.all_reduce(x)
    return x


if __name__ == "__main__":
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    mp.spawn(work, args=(port, sys.argv[1], sys.argv[2:]), nprocs=len(CUT) - 1)
