"""Sequences in segments on 2, 3 and 4 processes: outputs and all gradients are those of one process, and faults are told to
all."""

from __future__ import annotations

import importlib
import json
import pkgutil
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.multiprocessing as mp
from shared import rank_faults, ranks
from shared.once import made_once
from shared.spec_files import read
from shared.step_calls import torch_text

import chunkform.generated
from chunkform.runtime.op.op import Op

SPECS = Path(__file__).parents[2] / "codegen" / "specs"
STRUCTURES = {  # what the catalogue has no example of
    "stacked": "stacked.py",  # what one state reads is written to another: a collective for each
    "gated_by_a_state": "several.py",  # a decay made of a state
    "steady_writes": "counters.py",  # writes that are the same at each step
    "running_scale": "several.py",  # a state that starts from a number of the spec
    "momentum": "momentum.py",  # states that are added to each other, and feed back
    "ttt_linear": "ttt_linear.py",  # a matrix and a vector that share an error
    "gla2d": "gla2d.py",  # a decay for each row and each column
    "gateloop": "entries.py",  # two states whose entries turn into each other, in parts
    "channel_delta_rule": "channel_delta_rule.py",  # a matrix for each column
    "ssd_signed": "signed.py",  # numbers of either sign
    "mamba3_mimo": "entries.py",  # writes of rank m
    "mamba1": "entries.py",  # a decay for every entry
    "turned_keys": "turned_keys.py",  # angles that are summed in float64, and what they turn
    "log_space": "stabilised.py",  # maps that aren't affine, and compose
    "mlstm_stabilised": "stabilised.py",  # strata: what the first has reached in a part decays in the second
}


def catalogue() -> list[str]:
    """The chunk-parallel recurrences of the catalogue."""
    names = [m.name for m in pkgutil.iter_modules(chunkform.generated.__path__[:1])]
    ops = {n: getattr(importlib.import_module(f"chunkform.generated.{n}"), "OP", None) for n in names}
    return [n for n, op in ops.items() if isinstance(op, Op) and op.backends["torch"].forward_states is not None]


OPS = [*catalogue(), *STRUCTURES]
IMPORTED = [  # by cases: once, before the processes part
    "chunkform.codegen.checking.accuracy",
    "chunkform.runtime.nn",
    "chunkform.runtime.op.context_parallel",
    "chunkform.runtime.attention.ring",
    "torch._dynamo",
    "torch.utils.checkpoint",
    "torch.distributed.fsdp",
    "torch.distributed.tensor.parallel",
]
ATTENTIONS = ["softmax_attention", "rotary_attention", "distance_attention", "kattention_f6"]
EXACT = [("whole", 2), ("packed", 3), ("whole", 4), ("packed", 4)]
FEW = [("whole", 2), ("packed", 4)]
OTHERS = [
    *((f"lasting {name}", 4) for name in ("lightning_attention", "gated_linear_attention", "gated_delta_rule")),
    ("without_a_state", 3),
    ("mesh", 4),
    ("twice", 2),
    ("checkpoint", 2),
    ("compiled", 2),
    ("data_parallel", 4),
    ("tensor_parallel", 4),
    *((f"over_heads {name}", 4) for name in ("gated_delta_rule", "gated_linear_attention", "rotary_attention")),
    ("bytes", 2),
    ("checked_once", 2),
    ("lengths_change", 2),
    ("layer whole", 3),
    ("layer packed", 4),
    ("layer attention", 3),
    ("halo 0", 2),
    ("halo 3", 3),
    ("halo 12", 4),
    *((f"ring {name} {mask}", size) for name in ATTENTIONS for mask, size in (("causal", 3), ("full", 4))),
    ("keys_differ", 3),
    ("shapes_differ", 3),
    ("differ_later", 3),
    ("dtypes_differ", 3),
    ("ops_differ", 3),
    ("gradients_differ", 3),
    ("one_rank_is_wrong", 3),
    ("borders_differ", 3),
    ("borders_end_early", 3),
    ("halos_differ", 3),
    ("recurrent_form", 3),
    ("groups_differ", 4),
]
SCANNED = [
    "lightning_attention",
    "gated_delta_rule",
    "momentum",
    "gated_linear_attention",
    "stacked",
    "channel_delta_rule",
]
CASES = [(f"{kind} {name}", size) for name in OPS for kind, size in EXACT] + OTHERS


def is_case(item: pytest.Function) -> bool:
    return (
        item.path == Path(__file__)
        and {"name", "size"} <= getattr(getattr(item, "callspec", None), "params", {}).keys()
    )


def case_of(given: dict[str, Any]) -> tuple[str, int]:
    return " ".join([*([given["kind"]] if "kind" in given else []), given["name"]]), given["size"]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """What one process makes of each op, and what every rank of a group found in each case that a test asks for. The processes
    start once, also where tests run in several workers."""
    asked = {case_of(x.callspec.params) for x in request.session.items if isinstance(x, pytest.Function) and is_case(x)}

    def make(folder: Path) -> None:
        prepare(folder)
        together(ranks.start, 4, str(folder), [x for x in CASES if x in asked])

    return made_once(tmp_path_factory, "parallel", make)


@pytest.fixture(scope="session")
def found(folder: Path) -> dict[str, list[dict]]:
    """For each case what every rank of its group found."""
    return told(folder, CASES)


def told(folder: Path, cases: list[tuple[str, int]]) -> dict[str, list[dict]]:
    """For each case what every rank of its group found."""
    count = max(size for _, size in cases)
    by_rank = [json.loads((folder / f"found {count} {r}.json").read_text()) for r in range(count)]
    return {
        f"{name} {size}": [by_rank[r].get(f"{name} {size}", {"failed": "it wasn't run"}) for r in range(size)]
        for name, size in cases
    }


def prepare(folder: Path) -> None:
    """What one process makes of each op, and the text of those that aren't in the catalogue."""
    for name, file in STRUCTURES.items():
        (folder / f"{name}.py").write_text(torch_text(next(r for r in read(SPECS / file) if r.name == name)))
    for name in OPS:
        op = ranks.operation(name, folder)
        for packed in (False, True):
            given, states = ranks.arguments(op, packed)
            torch.save(ranks.results(op, given, states, packed), folder / f"{name} {packed}.pt")


def together(function: Callable[..., None], count: int, *arguments: object) -> None:
    """Run a function in new processes, forked from one that has imported everything already."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    context = mp.get_context("forkserver")
    context.set_forkserver_preload([*(f"chunkform.generated.{n}" for n in (*catalogue(), *ATTENTIONS)), *IMPORTED])
    processes = [context.Process(target=function, args=(r, port, *arguments)) for r in range(count)]
    for p in processes:
        p.start()
    for p in processes:
        p.join(300)
        assert not p.is_alive(), "a process hangs"


def agrees(everything: list[dict], bound: float = 1e-12) -> None:
    for rank, quantities in enumerate(everything):
        assert "failed" not in quantities, f"rank {rank}: {quantities['failed']}"
        wrong = {n: x for n, x in quantities.items() if not x < bound}
        assert not wrong, f"rank {rank}: {wrong}"


@pytest.mark.parametrize(
    "kind, size", [x if x in FEW else pytest.param(*x, marks=pytest.mark.long) for x in EXACT], ids=str
)
@pytest.mark.parametrize("name", OPS)
def test_parts_of_a_sequence_give_what_the_whole_gives(found: dict, name: str, kind: str, size: int) -> None:
    agrees(found[f"{kind} {name} {size}"])


@pytest.mark.parametrize("name, size", OTHERS, ids=[n.replace(" ", "_") for n, _ in OTHERS])
def test_on_several_processes(found: dict, name: str, size: int) -> None:
    agrees(found[f"{name} {size}"])


@pytest.mark.parametrize("size, count", [(8, 3), pytest.param(16, len(SCANNED), marks=pytest.mark.long)])
def test_maps_that_travel_in_log_steps_give_what_one_process_gives(size: int, count: int, folder: Path) -> None:
    """Outputs and all gradients, whole and packed, where every process is a node of its own."""
    cases = [(f"scan {name} {kind}", size) for name in SCANNED[:count] for kind in ("whole", "packed")]
    together(ranks.start, size, str(folder), cases, size)
    for everything in told(folder, cases).values():
        agrees(everything)


def test_every_chunk_parallel_op_of_the_catalogue_is_there() -> None:
    assert {"lightning_attention", "gated_linear_attention", "gated_delta_rule", "kimi_delta_attention"} <= set(OPS)
    assert len(OPS) >= 18


def test_a_rank_that_dies_is_an_error_on_the_others(tmp_path: Path) -> None:
    start = time.monotonic()
    together(rank_faults.die, 2, str(tmp_path))
    text = (tmp_path / "dead.txt").read_text()
    assert text.startswith("GroupError: gated_delta_rule: context_parallel: an exchange among the 2 ranks"), text
    assert time.monotonic() - start < 60


def test_a_rank_that_hangs_is_an_error_on_the_others_after_the_timeout_of_the_group(tmp_path: Path) -> None:
    together(rank_faults.hang, 3, str(tmp_path))
    for rank in (0, 2):
        told = json.loads((tmp_path / f"hung {rank}.json").read_text())
        expected = "GroupError: gated_delta_rule: context_parallel: an exchange among the 3 ranks"
        assert told["text"].startswith(expected), told["text"]
        assert told["seconds"] < rank_faults.HANGS + 10
