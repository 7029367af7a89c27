"""What must hold of the kernels of a solve: run over exact numbers, they leave in memory what steps of the spec say.

The sweep keeps the state as it stands before each chunk, and the last one. In each round of a solve a direction is multiplied by
its step's matrix. What the runtime makes of a round has roots and comparisons, and a number is rounded: functions that mix all
that they are given, exactly, stand for these. Parameters get sums over each chunk's steps. Each kernel is run as it is printed,
for two chunks and a tail, and for whole chunks.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache

import numpy as np

from chunkform.errors import GateError

from ..exact.jit_source import NoMeaning
from ..exact.memory import compare
from ..exact.rationals import LN2, Rationals, array, over_ordered
from ..exact.run_kernel import Argument as Given
from ..exact.run_kernel import Tensor, run
from ..exact.runtime_source import module_of
from ..ir.evaluate import Env, evaluate_all
from ..ir.expr import Node
from ..ir.kernel_ir import KernelFunction
from ..ir.step_program import StepProgram, Var
from ..recurrence.gates.run_steps import stored
from ..recurrence.triton.gates.kernel_gate import B, H, strided
from ..recurrence.triton.kernels.arguments import Argument
from .solve_kernels import Part, Square

NUMBERS = Rationals()
SIZE, CHUNK, ROUNDS, SIGN = 3, 2, 2, -1
TOLERANCE = Fraction(1, 2)


def over_root(r, square):  # type: ignore[no-untyped-def]
    return r * 3 + square[:, None]


def conjugate_step(x, r, p, hp, delta, rest):  # type: ignore[no-untyped-def]
    return x + p * 2 + hp * 3, r * 5 + hp * 7, r * 11 + p * 13, delta * 17 + rest


def relative(delta, size):  # type: ignore[no-untyped-def]
    return delta * 19 + size * 23


def narrowed(x, DT):  # type: ignore[no-untyped-def]
    return x * 0.25


def widened(x):  # type: ignore[no-untyped-def]
    return x


STAND_INS = {f.__name__: f for f in (over_root, conjugate_step, relative, narrowed, widened)}


@dataclass(frozen=True)
class SolveCase:
    """How many steps there are, and whether a first state and room for what is found in float32 are given."""

    steps: int
    all_given: bool


CASES = SolveCase(2 * CHUNK + 1, True), SolveCase(2 * CHUNK, False)


@dataclass(frozen=True)
class Solved:
    """A solve whose matrix is what `program` makes of its `vector`, and the nodes of what parameters get at each step."""

    program: StepProgram
    vector: str
    gradients: Mapping[str, Node]


@over_ordered
def gate_solves(
    s: Solved, parts: tuple[Part, Part], squares: tuple[Square, Square], kernels: tuple[KernelFunction, KernelFunction]
) -> None:
    """Raises GateError where the sweep or the solves aren't what the program's steps say."""
    for case in CASES:
        x = _Memory(s, case)
        with _told(kernels[0]):
            x.gate_checkpoints(parts[0], squares[0], kernels[0])
        with _told(kernels[1]):
            x.gate_solves(parts[1], squares[1], kernels[1])


@over_ordered
def gate_sums(s: Solved, part: Part, square: Square, kernel: KernelFunction) -> None:
    """Raises GateError where sums for parameters aren't those of what each step adds."""
    for case in CASES:
        with _told(kernel):
            _Memory(s, case).gate_sums(part, square, kernel)


class _told:
    """What has no exact meaning is said of the kernel."""

    def __init__(self, f: KernelFunction) -> None:
        self.name = f.name

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, why: BaseException | None, trace: object) -> None:
        if isinstance(why, NoMeaning):
            raise GateError(f"{self.name}: there is no exact meaning for {why}") from why


@cache
def _functions(name: str) -> Callable[..., object] | None:
    """What a kernel calls: a stand-in, or the function or number of the runtime."""
    if name in STAND_INS:
        return STAND_INS[name]
    for module in ("chunk_kernels.decays", "chunk_kernels.split_precision", "solves.launch"):
        if (found := getattr(module_of(f"chunkform.runtime.{module}"), name, None)) is not None:
            return getattr(found, "value", found) if type(found).__name__ == "constexpr" else found
    return None


@dataclass
class _Memory:
    """What the kernels are given, and what steps say of it: of each step [B, T, H, ..], of each head [H, ..]."""

    s: Solved
    case: SolveCase
    given: dict[str, np.ndarray] = field(default_factory=dict)  # of a decay, its logarithm to base two
    before: list[list[np.ndarray]] = field(
        default_factory=list
    )  # the state before each step, and the last one, by batch

    def __post_init__(self) -> None:
        self.random, p = random.Random(self.case.steps), self.s.program
        self.sizes = dict.fromkeys(p.dims, SIZE)
        for v in p.variables:
            if v.name != self.s.vector:
                shape = tuple(SIZE for _ in v.axes)
                lead = (B, self.case.steps, H) if v.per_step else () if v.kind == "constant" else (H,)
                self.given[v.name] = self.draw((*lead, *shape), v.is_decay)
        (self.state,) = p.states
        self.first = self.draw((B, H, SIZE, SIZE))
        if not self.case.all_given:
            self.first = self.first * 0
        self.right = self.draw((B, self.case.steps, H, SIZE))
        self.incoming = self.draw((B, self.case.steps, H, SIZE))
        for b in range(B):
            states = [NUMBERS.taken(self.first[b])]
            for t in range(self.case.steps):
                node = p.updates[self.state.name]
                (made,) = evaluate_all([node], self.env(b, t, states[-1], self.right[b, t]), NUMBERS, self.sizes)
                made = stored(made, node.axes, self.state.axes)
                states.append(np.broadcast_to(made, states[0].shape))
            self.before.append(states)

    def draw(self, shape: tuple[int, ...], is_log: bool = False) -> np.ndarray:
        few = range(-2, 1) if is_log else range(-9, 10)
        return array([Fraction(self.random.choice(few)) for _ in range(int(np.prod(shape)))]).reshape(shape)

    def env(self, b: int, t: int, state: np.ndarray, vector: np.ndarray) -> Env:
        """The values of leaves at a step, of all heads."""
        env: Env = {("state", self.state.name): state, ("input", self.s.vector): NUMBERS.taken(vector)}
        for v in self.s.program.variables:
            if v.name in self.given:
                value = self.given[v.name][b, t] if v.per_step else self.given[v.name]
                env[v.kind, v.name] = NUMBERS.fn("exp2", value) if v.is_decay else NUMBERS.taken(value)
        return env

    # --- arguments

    def arguments(self, part: Part, square: Square) -> dict[str, Given]:
        c = self.case
        found: dict[str, Given] = {
            square.size: SIZE,
            square.block: 4,
            "block_tile": 2,
            "C": CHUNK,
            "T": c.steps,
            "H": H,
        }
        found |= {"DT": "tl.float32"}  # type: ignore[dict-item]
        found |= {"EXACT": False, "SIGN": SIGN, "COUNT": ROUNDS, "tolerance": TOLERANCE}
        for a in part.arguments:
            found |= self.passed(a)
        return found

    def passed(self, a: Argument) -> dict[str, Given]:
        assert a.source is not None
        kind, name, _ = a.source.attrs
        if kind == "cotangent":
            return strided(a.base, self.incoming)
        values = self.right if name == self.s.vector else self.given[name]
        if self.variable(name).is_decay:
            values = array(values * LN2)
        if a.layout == "number":
            return {a.name: values.item()}
        return strided(a.base, values) if a.layout == "step" else {a.name: Tensor(a.name, values.ravel())}

    def variable(self, name: str) -> Var:
        return next(v for v in self.s.program.variables if v.name == name)

    @property
    def chunks(self) -> int:
        return -(-self.case.steps // CHUNK)

    def kept(self) -> np.ndarray:
        """The states before each chunk, [B, H, chunks, ..]."""
        return np.stack([np.stack(states[:-1:CHUNK], 1) for states in self.before])

    # --- running

    def gate_checkpoints(self, part: Part, square: Square, f: KernelFunction) -> None:
        kept, last = self.kept(), np.stack([x[-1] for x in self.before])
        out, end = Tensor.room("checkpoints", kept.size), Tensor.room("last", last.size)
        given = {"first": Tensor("first", self.first.ravel()) if self.case.all_given else None}
        given |= {"checkpoints_out": out, "last_out": end}
        run(f, B * H * -(-SIZE // 2), self.arguments(part, square) | given, _functions)
        compare(f.name, "states before chunks", out.cells.reshape(kept.shape), kept)
        compare(f.name, "last states", end.cells.reshape(last.shape), last)

    def gate_solves(self, part: Part, square: Square, f: KernelFunction) -> None:
        shape = (B, self.case.steps, H)
        count = int(np.prod(shape))
        x, fine = (Tensor.room(n, count * SIZE) for n in ("x", "fine"))
        left = Tensor.room("residual", count)
        given = {"checkpoints_p": Tensor("checkpoints", self.kept().ravel()), **strided("right", self.right)}
        given |= {"x_out": x, "fine_out": fine if self.case.all_given else None, "residual_out": left}
        run(f, B * H * self.chunks, self.arguments(part, square) | given, _functions)
        expected = [self.solved(b, t) for b in range(B) for t in range(self.case.steps)]
        found, residual = (np.stack(x).reshape((*shape, -1)) for x in zip(*expected, strict=True))
        compare(f.name, "what is found", x.cells.reshape(found.shape), found / 4)
        if self.case.all_given:
            compare(
                f.name, "what is found in float32", fine.cells.reshape(found.shape), found / 4 + (found - found / 4) / 4
            )
        compare(f.name, "what is left", left.cells.reshape(residual.shape), residual)

    def solved(self, b: int, t: int) -> tuple[np.ndarray, np.ndarray]:
        """What rounds by the stand-ins find at a step, of all heads, and what they leave."""
        ((node),) = self.s.program.outputs.values()
        (axes,) = self.s.program.output_axes.values()
        r = NUMBERS.taken(self.right[b, t]) * SIGN
        x, delta = r * 0, (r * r).sum(1)
        size, along = delta, over_root(r, delta)
        for _ in range(ROUNDS):
            p = along / 4
            (hp,) = evaluate_all([node], self.env(b, t, self.before[b][t], p), NUMBERS, self.sizes)
            x, r, along, delta = conjugate_step(x, r, p, stored(hp, node.axes, axes), delta, TOLERANCE**2 * size)
        return x, relative(delta, size)

    def gate_sums(self, part: Part, square: Square, f: KernelFunction) -> None:
        rooms = {
            n: Tensor.room(n, B * H * self.chunks * (SIZE if node.axes else 1)) for n, node in self.s.gradients.items()
        }
        given = {f"{n}_sums": x for n, x in rooms.items()}
        run(f, B * H * self.chunks, self.arguments(part, square) | given, _functions)
        for n, node in self.s.gradients.items():
            expected = np.stack([np.stack([self.added(node, b, c) for c in range(self.chunks)], 1) for b in range(B)])
            compare(f.name, f"what {n} gets", rooms[n].cells.reshape(expected.shape), expected)

    def added(self, node: Node, b: int, c: int) -> np.ndarray:
        """What a chunk's steps add, of all heads."""
        found = []
        for t in range(c * CHUNK, min((c + 1) * CHUNK, self.case.steps)):
            env = self.env(b, t, self.before[b][t], self.right[b, t])
            env |= {("cotangent", f"d{n}"): NUMBERS.taken(self.incoming[b, t]) for n in self.s.program.outputs}
            (made,) = evaluate_all([node], env, NUMBERS, self.sizes)
            found.append(np.broadcast_to(made, (H, *(SIZE for _ in node.axes))))
        return array(sum(found))
