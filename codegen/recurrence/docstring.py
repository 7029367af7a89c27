"""The docstring of a generated op: the recurrence, shapes, dtypes, units, results, errors, cost, and an example that runs."""

from __future__ import annotations

import inspect

from ..ir.expr import dim_of
from .chunkwise.compiled import Compiled
from .chunkwise.cost import Cost, Sizes
from .compiled_cost import backward_cost, forward_cost
from .notation.derivation import step_formulas

OPTIONS = (
    "output_final_state: also return the states after the last step.",
    "cu_seqlens: int32 or int64 [N + 1] where N sequences are packed in [1, T, H, ..]; states are then [N, H, ..].",
    "context_parallel: the processes that hold a part of the sequence each.",
    "recompute: 'always' saves nothing but the arguments for the backward pass, 'never' all it uses; 'auto' weighs bytes.",
    "precision: 'fast', 'default', or 'high', which is float64 in torch.",
    "state_dtype: the final state's dtype; float32 where None (float64 for float64 arguments).",
    "backend: 'torch', 'triton', or None for the best one on the tensors' device.",
    "deterministic: a sequence's bits depend on nothing else in the call: on no batch, and on no packing.",
)
WIDTHS = (16, 32, 8)  # of the example's dims


def docstring(c: Compiled, printed: Compiled | None = None) -> str:
    """The text between the quotes. `printed`: the same as kernels are printed from it, of which the cost is told."""
    formulas = list(step_formulas(c))
    about = inspect.cleandoc(c.spec.doc or c.name.replace("_", " "))
    lines = [*f"{about.rstrip('.')}.".splitlines(), ""]
    lines += [f"    {f.plain}" for f in formulas]
    lines += ["", "In LaTeX:", ""]
    lines += [f"    {f.latex}" for f in formulas if not f.text]
    lines += ["", "Args:", *(f"    {x}" for x in _arguments(c))]
    lines += ["", "Returns:", f"    {_returns(c)}"]
    lines += [
        "",
        "Raises:",
        "    chunkform.errors.ArgumentError: an argument has a wrong shape, dtype, device or value.",
        "    chunkform.errors.BackendError: the backend that was asked for isn't here, or can't do what was asked.",
        "    chunkform.errors.DoubleBackwardError: a gradient was differentiated.",
        "",
        *_cost(printed or c),
        "",
        "Example:",
        *(f"    {x}" for x in _example(c)),
    ]
    if c.spec.source:
        lines += ["", f"Source: {c.spec.source}"]
    return "\n    ".join(lines).replace("\n    \n", "\n\n") + "\n    "


def _shape(lead: list[str], axes: tuple[str, ...]) -> str:
    return f"[{', '.join([*lead, *map(dim_of, axes)])}]"


def _arguments(c: Compiled) -> list[str]:
    p = c.step
    lines = []
    for v in p.variables:
        if v.kind == "constant":
            told = "" if v.domain is None else f" {_told(*v.bounds)}"
            lines.append(f"{v.name}: a number.{told}")
            continue
        shape = _shape(["B", "T", "H"] if v.per_step else ["H"], v.axes)
        if v.is_decay:
            note = f"float32. The natural logarithm of {v.name}, at most 0; -inf forgets everything."
        elif v.per_step:
            note = "float32, bfloat16, float16, or float64 in torch."
        else:
            note = "float32. Constant in time."
        if v.domain is not None:
            note += f" {_told(*v.bounds)}"
        lines.append(f"{v.argument}: {shape}, {note}")
    fewer = "Any of them may have fewer heads than H, if H is a multiple: each then serves several."
    if not p.states:
        return [*lines, fewer, *(x for x in OPTIONS if x.startswith(("precision", "backend", "deterministic")))]
    within = {s.name: "" if s.domain is None else f" ({_told(*s.bounds)[:-1].lower()})" for s in p.states}
    states = ", ".join(f"{s.name} {_shape(['B', 'H'], s.axes)}{within[s.name]}" for s in p.states)
    many = "a tuple of " if len(p.states) > 1 else ""
    default = "zeros" if all(s.initial is None for s in p.states) else "the spec's own"
    return [*lines, fewer, f"initial_state: {many}{states}; {default} where None.", *OPTIONS]


def _told(low: float | None, high: float | None) -> str:
    """Of a domain, which isn't checked where tensors are given."""
    if low is not None and high is not None:
        return f"Between {low:g} and {high:g}."
    return f"Above {low:g}." if low is not None else f"Below {high:g}."


def _returns(c: Compiled) -> str:
    outs = ", ".join(f"{n} {_shape(['B', 'T', 'H'], axes)}" for n, axes in c.step.output_axes.items())
    last = "None" if not c.step.states else f"the final state{'s' if len(c.step.states) > 1 else ''} or None"
    wide = set(c.step.handed)
    dtype = "float32 at least" if wide == set(c.step.output_axes) else "the inputs' dtype"
    but = f" ({', '.join(sorted(wide))} in float32 at least)" if wide and dtype == "the inputs' dtype" else ""
    return f"{outs} in {dtype}{but}, and {last}."


def _cost(c: Compiled) -> list[str]:
    def told(cost: Cost) -> str:
        return f"{cost.bytes:,.0f} bytes and {cost.flops:,.0f} FLOPs"

    sizes = Sizes()
    return [
        "Cost: in T linear. For each step and head at widths of 64 in two bytes, as planned for a GPU,",
        f"    {told(forward_cost(c, sizes))} forwards, {told(backward_cost(c, sizes))} backwards.",
    ]


def _within(share: str, low: float | None, high: float | None) -> str:
    """Of a domain, by numbers between 0 and 1."""
    if low is not None and high is not None:
        return share if (low, high) == (0, 1) else f"{low:g} + {high - low:g} * {share}"
    return f"{low:g} + {share}" if low is not None else f"{high:g} - {share}"


def _example(c: Compiled) -> list[str]:
    p = c.step
    width = {d: WIDTHS[i % len(WIDTHS)] for i, d in enumerate(p.dims)}
    lead = [1, 100, 2]

    def sizes(first: list[int], axes: tuple[str, ...]) -> str:
        return ", ".join(map(str, [*first, *(width[dim_of(a)] for a in axes)]))

    lines = [">>> import torch"]
    for v in p.variables:
        if v.kind == "constant":
            continue
        own = sizes(lead if v.per_step else lead[2:], v.axes)
        value = f"torch.randn({own})" if v.axes else f"torch.rand({own})"
        if v.is_decay:
            value = f"-torch.rand({own})"
        elif v.domain is not None:
            value = _within(f"torch.rand({own})", *v.bounds)
        elif v.axes:
            value += f" / {width[dim_of(v.axes[0])] ** 0.5:.0f}"
        lines.append(f">>> {v.argument} = {value}")
    given = [v.argument for v in p.variables if v.kind != "constant"]
    given += [f"{v.name}={v.number:g}" for v in p.variables if v.kind == "constant" and v.default is None]
    given += ["output_final_state=True"] if p.states else []
    lines.append(f">>> *outputs, state = {c.name}({', '.join(given)})")
    lines.append(">>> [tuple(x.shape) for x in outputs]")
    outs = [f"({sizes(lead, axes)}{',' if not (lead or axes) else ''})" for axes in p.output_axes.values()]
    lines.append(f"[{', '.join(outs)}]")
    return lines
