"""`chunkform explain`: what the compiler knows of a recurrence, for people and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import wrap
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..exact.rewritings import proposals
from ..ir.expr import ZERO, dim_of, leaves, mul
from ..ir.latex_page import Page, formulas
from ..ir.notation import Notation
from .chunkwise.compiled import Compiled
from .chunkwise.cost import CHUNK, Cost, Sizes, sweep_flops
from .chunkwise.plan import Plan, Sweep
from .compiled_cost import backward_cost, forward_cost, launches
from .compiler_fault import blaming_with
from .gates.symbolic_proof import symbolic_proof
from .normal_form.form import StateForm
from .notation.derivation import derivation
from .notation.form_notation import Reader
from .notation.formulas import Section, order_of, stateless_names
from .over_chunks import why_stepwise
from .pipeline import compile_spec
from .predict import as_data, predict
from .smaller_specs import term_text
from .step.column_maps import why_no_map
from .step.entries import EntryMaps
from .triton import fused_backward_of, in_substeps, kernel_plan, scanned, schedule_of, simplified, why_uncut


@blaming_with(compile_spec)
def explanation(c: Compiled, width: int = 64, chunk: int = CHUNK) -> dict[str, Any]:
    """Everything as plain data. `width` is the size of every dim and `chunk` the number of steps that costs are counted for."""
    sizes = Sizes({d: width for d in c.step.dims}, chunk)
    where = c.reason_where
    forward, backward = launches(c)
    part, count = in_substeps(c)
    passes = {
        "forward": _pass(part, part.forward, forward_cost(c, sizes), sizes, forward),
        "backward": _pass(part, part.backward, backward_cost(c, sizes), sizes, backward),
    }
    stepwise = why_stepwise(c)
    predicted = predict(c)
    return {
        "name": c.name,
        "doc": next(iter((c.spec.doc or "").strip().splitlines()), ""),
        "source": c.spec.source,
        "family": c.family,
        "reason": c.reason,
        "proposals": proposed(c),
        "reason_where": None if where is None else {"file": where.file, "line": where.line, "text": where.text},
        "arguments": [
            {"name": v.name, "kind": v.kind, "dims": [dim_of(a) for a in v.axes], "default": v.default}
            for v in c.step.variables
        ],
        "outputs": [{"name": n, "dims": [dim_of(a) for a in axes]} for n, axes in c.step.output_axes.items()],
        "states": [{"name": s.name, "dims": [dim_of(a) for a in s.axes]} for s in c.step.states],
        "decay_shape": {s.name: decay_shape(c, s) for s in _states(c, 1)},
        "writes": writes(c),
        "reads": reads(c),
        **passes,
        "sweeps": [{"pass": name, **s} for name, p in passes.items() for s in p["sweeps"]],
        **{
            key: {name: p[key] for name, p in passes.items()}
            for key in ("launches", "bytes_per_token", "flops_per_token")
        },
        "predicted": None if predicted is None else as_data(predicted),
        "triton": "strata"
        if c.strata
        else "rows"
        if not c.step.states
        else "scans"
        if scanned(c)
        else "steps"
        if c.forward is None or stepwise
        else "chunks",
        "triton_reason": stepwise,
        "segments_reason": segments_reason(c),
        "substeps": count,
        "strata": [
            {
                "states": [s.name for s in p.compiled.step.states],
                "family": p.compiled.family,
                "reason": p.compiled.reason,
                "takes": list(p.takes),
                "hands_on": list(p.hands),
            }
            for p in c.strata
        ],
        "saved_for_backward": saved(c),
        "counted_for": {"dims": sizes.dims, "chunk": sizes.chunk, "input_bytes": sizes.element},
        "gates": [{"name": g.name, "what": g.what, "points": g.points, "error_bound": g.error_bound} for g in c.gates],
        "proof": symbolic_proof(c),
        "derivation": [
            {
                "title": s.title,
                "formulas": [{"plain": f.plain, "latex": f.latex, "is_sentence": f.text} for f in s.formulas],
            }
            for s in derivation(c)
        ],
    }


def segments_reason(c: Compiled) -> str | None:
    """Why kernels over chunks don't cut a sequence into segments; None where they do, or don't go over chunks."""
    if c.strata:
        return next((why for p in c.strata if (why := segments_reason(p.compiled))), None)
    part, _ = in_substeps(c)
    over_chunks = part.forward is not None and why_stepwise(part) is None and not scanned(part)
    return why_uncut(part) if over_chunks and part.step.states else None


# --- the read-write form in words -------------------------------------------------------------------------------------


def _states(c: Compiled, direction: int) -> list[StateForm]:
    form = c.form if direction > 0 else c.adjoint_form
    if form is None:
        return []
    return [s for group in form.groups for s in group if s.direction == direction]


def _notation(c: Compiled) -> Notation:
    return Notation(False, stateless_names(c.step), order=order_of(c))


def decay_shape(c: Compiled, s: StateForm) -> str:
    """none, scalar, or the dim that it runs over; `constant` where it doesn't change with time."""
    if s.decay is None:
        return "none"
    if s.decay is ZERO:
        return "forgets"
    timeless = all(y.attrs[0] in ("decay parameter", "parameter", "constant") for y in leaves(s.decay))
    shape = " and ".join(f"vector over {dim_of(d.axes[0])}" for d in s.decays if d.axes) or "scalar"
    return f"{shape}, constant in time" if timeless else shape


def writes(c: Compiled) -> list[dict[str, Any]]:
    """The rank-one writes of each state: left right^T."""
    if c.form is None:
        return []
    reader, n = Reader(c, c.form), _notation(c)
    out = []
    for s in _states(c, 1):
        for w in s.writes:
            value = reader.symbols.get(w.leaf) if w.leaf is not None else None
            out.append(
                {
                    "state": s.name,
                    "write": n.text(mul(reader.spelled(w.left), value or reader.spelled(w.right)), s.axes),
                    "left": n.text(reader.spelled(w.left)),
                    "right": n.text(value) if value is not None else n.text(reader.spelled(w.right)),
                    "meaning": n.text(reader.spelled(w.right)),
                    "reads_the_state": w.leaf is not None,
                }
            )
    return out


def reads(c: Compiled) -> list[dict[str, Any]]:
    """What the step reads of its states."""
    if c.form is None:
        return []
    reader, n = Reader(c, c.form), _notation(c)
    return [
        {
            "state": r.state,
            "read": n.text(reader.read(x)),
            "vector": n.text(reader.spelled(r.vector)),
            "sees": r.snapshot,
        }
        for x, r in c.form.reads.items()
    ]


def saved(c: Compiled) -> list[str]:
    """Quantities of each step that the forward pass keeps for the backward pass, besides the op's arguments."""
    if c.backward is None or c.form is None:
        return []
    reader, n = Reader(c, c.form), _notation(c)
    return [n.text(reader.spelled(x)) for x in c.backward.saved]


# --- sweeps and costs -------------------------------------------------------------------------------------------------


def _pass(c: Compiled, plan: Plan | None, cost: Cost, sizes: Sizes, started: int) -> dict[str, Any]:
    return {
        "launches": started,
        "bytes_per_token": round(cost.bytes),
        "flops_per_token": round(cost.flops),
        "lower_bound_bytes_per_token": round(cost.lower_bound),
        "floor_bytes_per_token": round(cost.lower_bound),  # its former name, for one version
        "sweeps": [] if plan is None else _sweeps(c, plan, sizes),
    }


def _sweeps(c: Compiled, plan: Plan, sizes: Sizes) -> list[dict[str, Any]]:
    at_boundaries = plan is c.backward and why_stepwise(c) is None and not scanned(c)
    plan = kernel_plan(c, plan) if at_boundaries else plan
    alone = fused_backward_of(c) if at_boundaries else None
    if alone is not None:  # which makes what all sweeps yield
        assert c.backward is not None
        plan = simplified(c.backward)
    sweeps = [alone.first] if alone is not None else schedule_of(c).sweeps if at_boundaries else range(len(plan.stages))
    return [
        _sweep(c, plan, s, sizes) | {"own_kernel": k in sweeps, "walks": k in sweeps}
        for k, s in enumerate(plan.stages)
        if isinstance(s, Sweep)
    ]


def _sweep(c: Compiled, plan: Plan, sweep: Sweep, sizes: Sizes) -> dict[str, Any]:
    reader, n = Reader(c, plan.form), _notation(c)
    values = {x: name for name, x in plan.form.values.items()}
    outputs = []
    for x in sweep.chunk.outputs:
        meaning = n.text(reader.spelled(x))
        outputs.append(f"{values[x]} = {meaning}" if x in values and f"{values[x]}_t" != meaning else meaning)
    axis = sweep.group[0].row if sweep.side == "row" else sweep.group[0].col
    return {
        "direction": "forwards" if sweep.direction > 0 else "backwards",
        "states": list(sweep.states),
        "solves": sweep.solve,
        "contracts": None if axis is None else dim_of(axis),
        "outputs": outputs,
        "last_states": list(sweep.finals),
        "stored": [n.text(reader.spelled(x)) for x in sweep.chunk.outputs],
        "flops_per_token": round(sweep_flops(sweep, sizes)),
    }


# --- for the terminal -------------------------------------------------------------------------------------------------


def show(c: Compiled, console: Console, width: int = 64, chunk: int = CHUNK) -> None:
    """Print an explanation."""
    data = explanation(c, width, chunk)
    console.print(Text.assemble((c.name, "bold"), "  ", (c.family, "yellow" if c.family == "sequential" else "green")))
    if data["doc"]:
        console.print(Text(data["doc"], style="italic"))
    if c.reason:
        console.print(reason_text(c))
    for section in derivation(c):
        console.print()
        console.print(section_text(section, console.width))
    for title, table in _tables(data):
        console.print()
        console.print(Text(title, style="bold"))
        console.print(table)


def reason_text(c: Compiled) -> Text:
    """Why a recurrence isn't chunk-parallel, with the line of the spec."""
    text = Text.assemble(("not chunk-parallel: ", "yellow"), c.reason or "")
    if c.reason_where is not None:
        text.append(f"\n  {c.reason_where.place}\n", style="dim")
        text.append(f"    {c.reason_where.text}", style="cyan")
    how = "It runs in recurrent form, with the state in registers, and its derived adjoint."
    if c.family == "sequential" and (why := why_no_map(c.step)):
        how = f"It is affine in its states, but {why}, so that it doesn't run over segments of the sequence. {how}"
    if c.entries is not None:
        each = (
            "Its states are multiplied and added to entry by entry"
            if isinstance(c.entries, EntryMaps)
            else "Each column of its states goes through one matrix a step"
        )
        how = f"{each}: it runs in recurrent form over many segments of the sequence at once, which are joined by their maps."
    if c.strata:
        slow = [s.name for p in c.strata if p.compiled.reason == c.reason for s in p.compiled.step.states]
        how = f"So {', '.join(slow)} runs in recurrent form; the other states don't."
    text.append(f"\n  {how}", style="dim")
    for proposal in proposed(c):
        text.append(f"\n  {proposal}.", style="green")
    return text


def proposed(c: Compiled) -> list[str]:
    """Rewritings that are proved and have a form over chunks, where the spec has a state in recurrent form alone."""
    slow = _slow(c)
    return proposals(c.spec, lambda r: _slow(compile_spec(r)) < slow, term_text) if slow and c.spec.states else []


def _slow(c: Compiled) -> int:
    """How many states have their recurrent form alone."""
    if c.strata:
        return sum(_slow(p.compiled) for p in c.strata)
    return len(c.spec.states) if c.family == "sequential" else 0


def section_text(section: Section, width: int) -> Text:
    """A section of the derivation, in so many columns."""
    lines = [Text(section.title, style="bold")]
    lines += [Text(f"  {f.plain}", style="dim") if f.text else formula_text(f.plain, width) for f in section.formulas]
    return Text("\n").join(lines)


def formula_text(plain: str, width: int) -> Text:
    """A formula, whose further lines stand in more than its first."""
    lines = wrap(plain, max(width, 20), initial_indent=" " * 4, subsequent_indent=" " * 8, break_long_words=False)
    return Text("\n".join(lines), style="cyan")


def _tables(data: dict[str, Any]) -> Iterator[tuple[str, Table | Text]]:
    counted = data["counted_for"]
    if data["decay_shape"]:
        table = _table("state", "decay", "is written", "is read")
        for name, shape in data["decay_shape"].items():
            written = [w["write"] for w in data["writes"] if w["state"] == name]
            read = [r["read"] for r in data["reads"] if r["state"] == name]
            table.add_row(name, shape, "\n".join(written), "\n".join(read))
        yield "In words", table
    yield from _strata(data["strata"])
    sweeps = _table("pass", "goes", "carries", "yields", "FLOPs a token")
    for name in ("forward", "backward"):
        for s in data[name]["sweeps"]:
            end = "n" if s["direction"] == "forwards" else "0"
            yields = [*s["outputs"], *(f"{x}_{end}" for x in s["last_states"])]
            solved = ", solving for its writes" if s["solves"] else ""
            sweeps.add_row(
                name,
                s["direction"] if s["own_kernel"] else "from checkpoints",
                ", ".join(s["states"]) + solved,
                "\n".join(yields),
                f"{s['flops_per_token']:,}",
            )
    if sweeps.row_count:
        yield "Sweeps", sweeps
    costs = _table("pass", "launches", "bytes", "lower bound", "FLOPs")
    for name in ("forward", "backward"):
        p = data[name]
        costs.add_row(
            name,
            str(p["launches"]),
            f"{p['bytes_per_token']:,}",
            f"{p['lower_bound_bytes_per_token']:,}",
            f"{p['flops_per_token']:,}",
        )
    yield from _kernels(data)
    width = next(iter(counted["dims"].values()))
    yield f"Cost per token and head, for dims of {width}, chunks of {counted['chunk']} and 16-bit inputs", costs
    if data["predicted"]:
        p = data["predicted"]
        times = _table("pass", "us", "lower bound", "moving", "computing", "starting", "segments")
        for name in ("forward", "backward"):
            parts = [p[name][f"{x}_us"] for x in ("lower_bound", "moving", "computing", "starting")]
            times.add_row(name, *(f"{x:,.0f}" for x in (p[name]["us"], *parts)), str(p[name]["segments"]))
        shape = ", ".join(f"{dim} = {size}" for dim, size in p["shape"].items())
        yield f"Time that a model predicts on an {p['machine']}, in microseconds, at {shape} and 16-bit inputs", times
    if data["gates"]:
        gates = _table("after", "what was found equal", "points", "chance of an error")
        for g in data["gates"]:
            gates.add_row(g["name"], g["what"], str(g["points"]), f"{g['error_bound']:.0e}")
        yield "Gates that it passed", gates
    yield "A proof in symbols", Text("\n".join(data["proof"]))


def _kernels(data: dict[str, Any]) -> Iterator[tuple[str, Text]]:
    """What is unusual about the Triton kernels."""
    if data["triton_reason"]:
        torch = "Strata" if data["strata"] else "Over chunks"
        yield (
            "Kernels",
            Text(f"{torch} in torch; the Triton kernels run in recurrent form, because {data['triton_reason']}."),
        )
    if data["segments_reason"]:
        yield (
            "Segments",
            Text(
                f"The kernels take a sequence from end to end, however few heads there are: {data['segments_reason']}."
            ),
        )
    if data["triton"] == "rows":
        yield "Kernels", Text("One kernel makes the rows of some steps of a head.")
    if data["triton"] == "scans":
        torch = "Scans" if data["family"] == "scan" else "Over chunks"
        yield "Kernels", Text(f"{torch} in torch; the Triton kernels scan each entry of the states by itself.")
    if data["substeps"] > 1:
        yield (
            "Kernels",
            Text(
                f"A step is {data['substeps']} corrections, one after the other: the Triton kernels sweep over as many substeps "
                "of one each, and so do the sweeps above."
            ),
        )


def _strata(strata: list[dict[str, Any]]) -> Iterator[tuple[str, Table]]:
    table = _table("stratum", "states", "family", "takes", "hands on", "why not in parallel")
    for n, x in enumerate(strata, 1):
        states, takes, hands = (", ".join(x[key]) for key in ("states", "takes", "hands_on"))
        table.add_row(str(n), states, x["family"], takes, hands, x["reason"] or "")
    if strata:
        yield "Strata", table


_NUMBERS = ("bytes", "lower bound", "FLOPs", "FLOPs a token", "us", "moving", "computing", "starting", "segments")


def _table(*columns: str) -> Table:
    table = Table(header_style="dim", box=None, padding=(0, 3, 0, 0))
    for name in columns:
        table.add_column(name, justify="right" if name in _NUMBERS else "left")
    return table


@blaming_with(compile_spec)
def latex_document(c: Compiled) -> str:
    """The derivation as LaTeX: macros, then formulas under headings."""
    page = Page()
    body = latex_sections(c, page)
    return "\n".join([page.preamble(), *body]) + "\n"


def latex_sections(c: Compiled, page: Page) -> list[str]:
    """The sections of a derivation, for a page."""
    parts = []
    for section in derivation(c):
        parts.append(rf"\subsection*{{{section.title}}}")
        block: list[str] = []
        for f in section.formulas:
            if f.text:
                parts += [*formulas(block), f.on(page)]
                block = []
            else:
                block.append(f.on(page))
        parts += formulas(block)
    return parts
