"""What an op takes, with types: printed into its file, and into the stub of the catalogue.

Annotations are made of builtins and torch alone, since no op can be called so: whatever an op is named, they mean what they say.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..ir.code import Code, Literal
from ..ir.python_code import FALSE, said

NONE = Literal(None)
TENSOR = "torch.Tensor"
MAYBE = f"{TENSOR} | None"
OPTIONS = {  # what an op of states takes after its own arguments: name -> type, default
    "initial_state": (MAYBE, NONE),
    "output_final_state": ("bool", FALSE),
    "cu_seqlens": (MAYBE, NONE),
    "context_parallel": ("object", NONE),
    "recompute": ("str", said("auto")),
    "precision": ("str", said("default")),
    "state_dtype": ("torch.dtype | None", NONE),
    "backend": ("str | None", NONE),
    "deterministic": ("bool", FALSE),
}
CHOICES = {  # what strings may be, for those who can say it (a stub)
    "recompute": 'Literal["auto", "always", "never"]',
    "precision": 'Literal["fast", "default", "high"]',
    "backend": 'Literal["torch", "triton"] | None',
}


@dataclass(frozen=True)
class Parameter:
    """A parameter of a function. Without a default it must be given; `named`: by name alone."""

    name: str
    type: str
    default: Code | None = None
    named: bool = False

    def __str__(self) -> str:
        return f"{self.name}: {self.type}" + ("" if self.default is None else f" = {self.default.text}")


def listed(parameters: Iterable[Parameter]) -> str:
    """A function's parameters, as they stand between its parentheses."""
    found = list(parameters)
    before, after = [str(p) for p in found if not p.named], [str(p) for p in found if p.named]
    return ", ".join([*before, *(["*", *after] if after else [])])


def tensor(name: str, default: Code | None = None) -> Parameter:
    return Parameter(name, TENSOR if default is None else MAYBE, default)


def constant(name: str, default: object) -> Parameter:
    """A number of the op, given by name."""
    return Parameter(name, "float", None if default is None else Literal(float(default)), True)  # type: ignore[arg-type]


def states(count: int, single: str = MAYBE) -> str:
    """The type of what an op's states are given as: one, or a tuple of several."""
    return single if count == 1 else f"tuple[{', '.join([MAYBE] * count)}] | None"


def last_states(count: int) -> str:
    """The type of the states after the last step."""
    if not count:
        return "None"
    return TENSOR if count == 1 else f"tuple[{', '.join([TENSOR] * count)}]"


def options(count: int) -> list[Parameter]:
    """The options of an op of so many states; without any, nothing is said of states and of where sequences end."""
    found = [Parameter(n, kind, default) for n, (kind, default) in OPTIONS.items()]
    if not count:
        return [p for p in found if p.name in ("precision", "backend", "deterministic")]
    return [Parameter("initial_state", states(count), NONE), *found[1:]]


def step_options(outputs: int) -> list[Parameter]:
    """The options of an op's decoding step."""
    out = MAYBE if outputs == 1 else f"tuple[{', '.join([TENSOR] * outputs)}] | None"
    others = [Parameter(n, *OPTIONS[n]) for n in ("state_dtype", "backend", "deterministic")]
    return [Parameter("inplace", "bool", FALSE), Parameter("out", out, NONE), *others]


def result(outputs: int, last: str) -> str:
    """The type of what an op returns: its outputs, then the last states."""
    return f"tuple[{', '.join([*[TENSOR] * outputs, last])}]"
