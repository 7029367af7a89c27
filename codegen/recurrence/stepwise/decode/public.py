"""The function that users call for one step: its parameters and what they mean."""

from __future__ import annotations

from ....ir.expr import dim_of
from ....printing.parameters import Parameter, constant, last_states, listed, result, states, step_options, tensor
from ....printing.templates import render
from ...chunkwise.compiled import Compiled
from ...notation.derivation import step_formulas


def public_step(c: Compiled) -> str:
    """Text that defines `name_step`, also known as `name.step`."""
    variables = c.step.variables
    given = ", ".join(f'"{v.name}": {v.argument}' for v in variables)
    return render(
        "recurrence/stepwise/decode/decode_public.py.jinja",
        name=c.name,
        parameters=listed(step_parameters(c)),
        returned=result(len(c.step.outputs), last_states(len(c.step.states))),
        given=f"{{{given}}}",
        docstring=_docstring(c),
    )


def step_parameters(c: Compiled) -> list[Parameter]:
    """What the step takes, in order."""
    variables = c.step.variables
    tensors = [tensor(v.argument) for v in variables if v.kind != "constant"]
    numbers = [constant(v.name, v.default) for v in variables if v.kind == "constant"]
    state = Parameter("state", states(len(c.step.states)))
    return [state, *tensors, *step_options(len(c.step.outputs)), *sorted(numbers, key=lambda p: p.default is not None)]


def _docstring(c: Compiled) -> str:
    p = c.step
    several = len(p.states) > 1
    lines = [f"One step of {c.name}, for generation: one launch, no gradient.", ""]
    lines += [f"    {f.plain}" for f in step_formulas(c)]
    lines += ["", "Args:"]
    states = ", ".join(f"{s.name} {_shape('B', 'H', axes=s.axes)}" for s in p.states)
    lines.append(
        f"    state: {'a tuple of ' if several else ''}{states}, in float32, bfloat16 or float16; None before the first step."
    )
    for v in p.variables:
        if v.kind == "constant":
            lines.append(f"    {v.name}: a number.")
            continue
        shape = _shape(*(("B", "H") if v.per_step else ("H",)), axes=v.axes)
        note = f" The natural logarithm of {v.name}, at most 0; -inf forgets everything." if v.is_decay else ""
        lines.append(f"    {v.argument}: {shape}.{note}")
    lines += [
        "    inplace: update the state where it lies, instead of returning a new one.",
        f"    out: where to put {'the outputs, a tuple' if len(p.outputs) > 1 else 'the output'}; overlaps no other argument.",
        "    state_dtype: of the first state, where state is None; float32 where this is None too.",
        "    backend: 'torch', 'triton', or None for the best one on the tensors' device.",
        "    deterministic: a sequence's bits don't depend on the batch.",
        "",
        "Returns:",
    ]
    outs = ", ".join(f"{n} {_shape('B', 'H', axes=axes)}" for n, axes in p.output_axes.items())
    lines.append(f"    {outs} in the inputs' dtype, and the state after the step{', a tuple' if several else ''}.")
    lines += [
        "",
        "Raises:",
        "    chunkform.errors.ArgumentError: an argument has a wrong shape, dtype, device or value, or requires a gradient.",
    ]
    return "\n    ".join(lines).replace("\n    \n", "\n\n") + "\n    "


def _shape(*lead: str, axes: tuple[str, ...]) -> str:
    return f"[{', '.join((*lead, *map(dim_of, axes)))}]"
