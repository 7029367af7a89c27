"""Ours and the peers in one process on the same inputs: time, memory, launches, errors; JSON, tables and plots.

    python -m benchmarks.gpu --out OUT [--ops A,B] [--shapes S1,S2] [--quick] [--budget SECONDS]

README.md beside this says what is measured how, and what each column means.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console

import chunkform
import chunkform.generated
from chunkform.codegen.recurrence.predict import predict
from chunkform.errors import ChunkformError
from chunkform.spec.language.load import PUBLISHED as PUBLISHED_SPECS

from . import accuracy, peers, report, timing, tuning
from .calls import forward, forward_backward
from .inputs import DECAYS, LENGTHS, Shape, draw, parse_shape
from .pairs import OURS, lower_bound_milliseconds, median
from .peers import FLA, PUBLISHED, SOFTMAX, Peer, Subject
from .plots import draw_plots

OPS = "lightning_attention,gated_linear_attention,gated_delta_rule,kimi_delta_attention,inverse_attention"
HOST = Shape("S4, T=256", 1, 256, 16, 128)
GRAPH_TOKENS = 2**17  # B T H at most: above it launches cost nothing that a graph could save
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


@dataclass
class Session:
    """What is measured with, and the results so far, written after every step so that a crash loses nothing."""

    device: str
    dtype: torch.dtype
    decay: str
    effort: timing.Effort
    rate: float
    until: float
    out: Path | None
    console: Console
    results: dict[str, Any]
    stopped: str | None = None

    def over(self) -> bool:
        """Is it time to start nothing more?"""
        if self.stopped is None and time.monotonic() > self.until:
            self.stopped = "the time budget was spent"
        return self.stopped is not None

    def skip(self, what: str, why: str | None = None) -> None:
        self.results["skipped"][what] = why or self.stopped or ""
        self.say(f"{what}: left out, {why or self.stopped}")

    def say(self, text: str) -> None:
        self.console.print(f"[{time.strftime('%H:%M:%S')}] {text}", markup=False, highlight=False)

    def write(self) -> None:
        if self.out is not None:
            (self.out / "speed.json").write_text(json.dumps(self.results, indent=1) + "\n")

    def attempt(self, row: dict[str, Any], what: str, step: Callable[[], Any]) -> Any:
        """The step's result; None and a line in the row's `failures` where it fails. A GPU that is lost ends the session."""
        if self.stopped is not None:
            return None
        try:
            return step()
        except Exception as why:  # a peer may raise anything, and the others are still to be measured
            row.setdefault("failures", {})[what] = timing.reason(why)
            self.say(f"{row['op']} {row['shape']} {row['who']}, {what}: {timing.reason(why)}")
        try:
            timing.synchronize(self.device)
            timing.release(self.device)
        except Exception as lost:
            self.stopped = f"the GPU was lost to {row['who']}'s {row['op']} at {row['shape']}: {timing.reason(lost)}"
        return None


def main(
    ops: Annotated[
        str,
        typer.Option(
            help="of the catalogue, or spec files or folders of them, with commas between; 'all', 'published'"
        ),
    ] = OPS,
    shapes: Annotated[
        str, typer.Option(help="S1 to S5, D256, D96, BxTxHxD; 'lengths' for T from 1k to 64k")
    ] = "S1,S2,S4",
    quick: Annotated[bool, typer.Option("--quick", help="a fifth of the repeats")] = False,
    out: Annotated[Path | None, typer.Option(help="write speed.json, speed.md and plots into this folder")] = None,
    with_peers: Annotated[bool, typer.Option("--peers/--no-peers", help="measure the peers as well")] = True,
    peers_from: Annotated[Path | None, typer.Option(help="take peers' rows from an earlier speed.json")] = None,
    peer_tuning: Annotated[
        Path | None, typer.Option(help="peers' tuning of an earlier run (peer_tuning.tar.gz)")
    ] = None,
    budget: Annotated[float, typer.Option(help="seconds after which nothing new is started")] = 3600.0,
    threads: Annotated[int, typer.Option(help="threads that compile what peers tune; 1 for one after the other")] = 0,
    decay: Annotated[str, typer.Option(help=f"how fast decays are: {', '.join(DECAYS)}")] = "usual",
    dtype: Annotated[str, typer.Option(help=f"of the inputs: {', '.join(DTYPES)}")] = "bfloat16",
    device: Annotated[str, typer.Option(help="cuda, or cpu to try this program out")] = "cuda",
    errors: Annotated[bool, typer.Option("--errors/--no-errors", help="compare with float64")] = True,
    reference: Annotated[
        bool, typer.Option("--reference/--no-reference", help="measure torch's own attention as well")
    ] = True,
) -> None:
    """Measure ours and the installed peers."""
    start = time.monotonic()
    console = Console(width=None if sys.stdout.isatty() else 200)
    try:
        chosen = [parse_shape(x) for x in shapes.replace("lengths", ",".join(LENGTHS)).split(",")]
    except ValueError as why:
        raise typer.BadParameter(str(why), param_hint="--shapes") from None
    for value, known, option in ((decay, DECAYS, "--decay"), (dtype, DTYPES, "--dtype")):
        if value not in known:
            raise typer.BadParameter(f"expected one of {', '.join(known)}, got {value!r}", param_hint=option)
    if timing.on_gpu(device) and not torch.cuda.is_available():
        raise typer.BadParameter("torch sees no CUDA device; --device cpu tries the program out", param_hint="--device")
    names = _names(ops)
    earlier = _earlier(peers_from)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
    effort = timing.QUICK if quick else timing.USUAL
    if timing.on_gpu(device):
        tuning.side_by_side(threads or os.cpu_count() or 1, 5, 25)
        if peer_tuning is not None:
            console.print(f"{tuning.restore(peer_tuning)} tuned choices taken from {peer_tuning}")
    rate = timing.copy_rate(device, effort)
    about = _about(device, dtype, decay, effort, rate, threads, peer_tuning)
    results: dict[str, Any] = {"about": about, "rows": [], "errors": [], "host": [], "skipped": {}}
    s = Session(device, DTYPES[dtype], decay, effort, rate, start + budget, out, console, results)
    for name in names:
        _ours(s, name, chosen, errors)
    if timing.on_gpu(device) and reference:
        for shape in chosen:
            _reference(s, shape)
    for name in names if with_peers or earlier else ():
        for peer in (p for p in (*FLA, *PUBLISHED) if p.ours == name):
            left = [x for x in chosen if not _shared(s, name, peer, x) and not _reused(s, name, peer, x, earlier)]
            if with_peers and left:
                _peer(s, name, peer, left, errors)
    about["seconds"] = round(time.monotonic() - start, 1)
    if s.stopped is not None:
        about["notes"].append(f"Not everything was measured: {s.stopped}.")
    _finish(s)


def _names(ops: str) -> list[str]:
    known = dir(chunkform.generated)
    names: list[str] = []
    for name in ops.split(","):
        if name == "all":
            names += known
        elif name in known:
            names.append(name)
        elif (path := PUBLISHED_SPECS if name == "published" else Path(name)).is_dir() or name.endswith(".py"):
            files = sorted(path.glob("[!_]*.py")) if path.is_dir() else [path]
            try:
                names += [x for file in files for x in peers.compiled(file)]
            except ChunkformError as why:
                raise typer.BadParameter(str(why), param_hint="--ops") from None
        else:
            raise typer.BadParameter(
                f"{name!r} isn't a spec file, a folder, or one of {', '.join(known)}", param_hint="--ops"
            )
    return names


def _all(s: Session, op: str, subject: Subject, peer: Peer | None, shapes: list[Shape], errors: bool) -> None:
    """One op at every shape, then its errors at each width, and the host's time."""
    computes = op if peer is None else peer.recurrence
    seen = set()
    for shape in shapes:
        if s.over():
            s.skip(f"{subject.who}'s {op} at {shape.name}")
            continue
        row = _row(op, subject, peer, shape)
        s.results["rows"].append(row)
        _measure(s, row, subject, shape)
        if errors and (shape.heads, shape.width) not in seen and not s.over():
            seen.add((shape.heads, shape.width))
            small = shape.at(1, min(accuracy.STEPS, shape.steps))
            checked = {"op": op, "shape": small.name, "who": subject.who, "computes": computes, "errors": {}}
            s.results["errors"].append(checked)
            found = s.attempt(
                checked, "errors", lambda c=small: accuracy.errors(computes, subject, c, s.device, s.dtype, s.decay)
            )
            checked["errors"] = found or {}
        s.write()
    if timing.on_gpu(s.device) and any((x.heads, x.width) == (HOST.heads, HOST.width) for x in shapes):
        for small in [HOST, *(x for x in shapes if x.tokens <= GRAPH_TOKENS)]:
            if s.over():
                s.skip(f"the host's time for {subject.who}'s {op} at {small.name}")
                continue
            _host(s, op, subject, small)
        s.write()


def _row(op: str, subject: Subject, peer: Peer | None, shape: Shape) -> dict[str, Any]:
    kind = "ours" if peer is None else "reference" if peer is SOFTMAX else "peer"
    return {
        "op": op,
        "shape": shape.name,
        "sizes": [shape.batch, shape.steps, shape.heads, shape.width],
        "who": subject.who,
        "kind": kind,
        "computes": op if peer is None else peer.recurrence,
        "same": peer is None or peer.same,
        "note": "" if peer is None else peer.note,
        "status": "measured",
    }


def _measure(s: Session, row: dict[str, Any], subject: Subject, shape: Shape) -> None:
    """Fill a row; each part that fails is left out, with the reason."""
    timing.release(s.device)
    drawn = s.attempt(row, "inputs", lambda: _drawn(s, subject, shape))
    if drawn is None:
        row["status"] = "failed"
        return
    given, cotangents = drawn
    runs = {"forward": forward(subject, given), "forward_backward": forward_backward(subject, given, cotangents)}
    element = torch.finfo(s.dtype).bits // 8
    row["floor_ms"] = lower_bound_milliseconds(subject.signature, shape, s.rate, element)
    if row["kind"] == "ours":
        row |= _predicted(s, row, shape, element)
    first: dict[str, float] = {}
    total = 0.0
    for name, run in runs.items():
        spent = s.attempt(row, name, lambda r=run: timing.seconds(r, s.device))
        if spent is None:
            continue
        total += spent
        first[name] = total
        for part, measured in (
            (name, lambda r=run: timing.medians(r, s.device, s.effort)),
            (f"{name}, peak memory", lambda r=run: timing.peak_mebibytes(r, s.device)),
            (f"{name}, launches", lambda r=run: timing.kernels(r, s.device)),
        ):
            value = s.attempt(row, part, measured)
            if part == name:
                row[name] = value
            else:
                row.setdefault("peak_mib" if "memory" in part else "kernels", {})[name] = value
    row["first_call_s"] = first
    if not any(row.get(name) for name in runs):
        row["status"] = "failed"
    said = ", ".join(f"{n} {median(row, n):.3f} ms" for n in runs if median(row, n) is not None)
    s.say(f"{row['op']} {shape.name} {row['who']}: {said or 'failed'} (first call {total:.1f} s)")


def _drawn(s: Session, subject: Subject, shape: Shape) -> Any:
    return draw(subject.signature, shape, device=s.device, dtype=s.dtype, unit=subject.unit, decay=s.decay)


def _predicted(s: Session, row: dict[str, Any], shape: Shape, element: int) -> dict[str, Any]:
    """What the compiler's model says of this shape, on the machine that it was fitted to."""

    def model() -> dict[str, Any]:
        sizes = (shape.batch, shape.steps, shape.heads, shape.width)
        p = predict(accuracy.compiled(row["op"]), sizes, element=element)
        if p is None:
            return {}
        forward, both = p.forward, (p.forward, p.backward)
        return {
            "predicted_ms": {"forward": 1e3 * forward.seconds, "forward_backward": 1e3 * sum(x.seconds for x in both)},
            "model_flops": {"forward": forward.flops, "forward_backward": sum(x.flops for x in both)},
            "predicted_for": p.machine.name,
        }

    return s.attempt(row, "prediction", model) or {}


def _host(s: Session, op: str, subject: Subject, shape: Shape) -> None:
    row: dict[str, Any] = {"op": op, "shape": shape.name, "who": subject.who, "host_us": {}, "graph": {}}
    s.results["host"].append(row)
    timing.release(s.device)
    drawn = s.attempt(row, "inputs", lambda: _drawn(s, subject, shape))
    if drawn is None:
        return
    given, cotangents = drawn
    runs = {"forward": forward(subject, given), "forward_backward": forward_backward(subject, given, cotangents)}
    for name, run in runs.items():
        row["host_us"][name] = s.attempt(
            row, f"{name}, host", lambda r=run: timing.host_microseconds(r, s.device, s.effort.host_calls)
        )
    for name, run in runs.items():
        row["graph"][name] = s.attempt(row, f"{name}, graph", lambda r=run: timing.graph(r, s.device, s.effort))


def _reference(s: Session, shape: Shape) -> None:
    """torch's own attention, as a line to compare with."""
    subject = peers.load(SOFTMAX)
    if s.over():
        s.skip(f"{subject.who} at {shape.name}")
        return
    row = _row(SOFTMAX.recurrence, subject, SOFTMAX, shape)
    s.results["rows"].append(row)
    _measure(s, row, subject, shape)
    s.write()


def _ours(s: Session, op: str, shapes: list[Shape], errors: bool) -> None:
    row: dict[str, Any] = {"op": op, "shape": "", "who": OURS}
    subject = s.attempt(row, "loading it", lambda: peers.ours(op))
    if subject is None:
        s.results["skipped"][f"our {op}"] = row.get("failures", {}).get("loading it", s.stopped or "")
        return
    _all(s, op, subject, None, shapes, errors)


def _peer(s: Session, op: str, peer: Peer, shapes: list[Shape], errors: bool) -> None:
    """One peer at the shapes; a refusal to load is a row like any other failure."""
    if s.over():
        s.skip(f"{peer.label} beside {op}")
        return
    row: dict[str, Any] = {"op": op, "shape": ",".join(x.name for x in shapes), "who": peer.label}
    subject = s.attempt(row, "loading it", lambda: _loaded(s, peer))
    if subject is None:
        s.results["skipped"][f"{peer.label} beside {op}"] = row.get("failures", {}).get("loading it", s.stopped or "")
        return
    _all(s, op, subject, peer, shapes, errors)


def _shared(s: Session, op: str, peer: Peer, shape: Shape) -> bool:
    """Take the peer's row from beside another op of ours, where it was measured at this shape already."""
    for x in s.results["rows"]:
        if x["kind"] == "peer" and (x["who"], x["computes"], x["shape"]) == (peer.label, peer.recurrence, shape.name):
            s.results["rows"].append({**x, "op": op, "same": peer.same, "note": peer.note})
            return True
    return False


def _loaded(s: Session, peer: Peer) -> Subject:
    subject = peers.load(peer)
    notes = s.results["about"]["notes"]
    if peer.function.startswith("fla.") and peers.lift_guard() and peers.GUARD not in notes:
        notes.append(peers.GUARD)
    return subject


# --- earlier peers ----------------------------------------------------------------------------------------------------


def _earlier(path: Path | None) -> dict[str, Any] | None:
    if path is None:
        return None
    if not path.is_file():
        raise typer.BadParameter(f"there is no file {path}", param_hint="--peers-from")
    return json.loads(path.read_text())


def _reused(s: Session, op: str, peer: Peer, shape: Shape, earlier: dict[str, Any] | None) -> bool:
    """Take a peer's row of an earlier run, of the same GPU, shape and versions of peer and dtype; did it have one?"""
    if earlier is None:
        return False
    about, now = earlier["about"], s.results["about"]
    if any(about.get(key) != now[key] for key in ("gpu", "dtype", "decay")):
        return False
    rows = [x for x in earlier["rows"] if (x["op"], x["shape"], x["who"]) == (op, shape.name, peer.label)]
    if not rows or rows[0]["status"] != "measured":
        return False
    mark = f"{about['date']}, fla-core {about['fla-core']}, torch {about['torch']}, Triton {about['triton']}"
    note = f"Peers marked 'an earlier run' were measured on {mark}, on a machine of the same kind."
    if note not in now["notes"]:
        now["notes"].append(note)
    now["fla-core"] = now["fla-core"] or about["fla-core"]
    s.results["rows"].append({**rows[0], "earlier": mark})
    for part in ("errors", "host"):
        have = [x for x in s.results[part] if (x["op"], x["who"]) == (op, peer.label)]
        if not have:
            s.results[part] += [
                {**x, "earlier": mark} for x in earlier[part] if (x["op"], x["who"]) == (op, peer.label)
            ]
    return True


# --- what it was measured with ----------------------------------------------------------------------------------------


def _about(
    device: str, dtype: str, decay: str, effort: timing.Effort, rate: float, threads: int, tuned: Path | None
) -> dict[str, Any]:
    gpu = torch.cuda.get_device_name() if timing.on_gpu(device) else platform.processor() or platform.machine()
    versions = {name: peers.version(name) for name in ("triton", "fla-core")}
    versions |= {"torch": torch.__version__, "chunkform": chunkform.__version__}
    about: dict[str, Any] = {"gpu": gpu, "date": date.today().isoformat(), **versions, "cuda": torch.version.cuda}
    about |= {"dtype": dtype, "decay": decay, "copy_rate": rate, "repeat_ms": effort.repeat}
    about["said"] = (
        f"{gpu}, torch {versions['torch']}, Triton {versions['triton']}, CUDA {torch.version.cuda}, "
        f"fla-core {versions['fla-core'] or 'of an earlier run'}, {about['date']}; {dtype} inputs, float32 log decays ({decay}: "
        f"sigmoid(normal + {DECAYS[decay]:g})), gradients of every argument. A copy ran at {rate / 1e12:.2f} TB/s, read and "
        "written; the memory lower bound is at that rate."
    )
    about["notes"] = [
        "Medians of triton.testing.do_bench: between events, after warm-up, with the L2 cache emptied before each repeat. "
        "Forward is without autograd; forward + backward goes through autograd.grad. Ours and the peers ran in one process on "
        "the same inputs, ours first.",
    ]
    if timing.on_gpu(device):
        about["notes"].append(
            "Peers tune themselves over all of their own configurations; these were compiled in "
            f"{threads or os.cpu_count()} threads at once and timed for 25 ms each, so that their first-call times are shorter "
            "than a user's."
            + (
                " The choices of an earlier run on the same kind of machine were kept, so that little was tuned."
                if tuned
                else ""
            )
        )
    return about


def _finish(s: Session) -> None:
    s.write()
    report.show(s.results, s.console)
    for note in s.results["about"]["notes"]:
        s.console.print(f"- {note}", markup=False, highlight=False)
    if s.out is None:
        return
    (s.out / "speed.md").write_text(report.markdown(s.results))
    paths = draw_plots(s.results, s.out)
    if timing.on_gpu(s.device):
        s.say(f"{tuning.keep(s.out / 'peer_tuning.tar.gz')} tuned choices kept")
    s.say(f"written to {s.out}: speed.json, speed.md, {', '.join(p.name for p in paths)}")


if __name__ == "__main__":
    typer.run(main)
