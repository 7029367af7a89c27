"""The functions that launch the kernels of a solve by conjugate gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ..ir.code import Binary, Not, Starred
from ..ir.launch_ir import (
    HEADS,
    NONE,
    TILES,
    Alloc,
    Body,
    Code,
    Define,
    Function,
    If,
    Launch,
    Passed,
    Return,
    Set,
    ref,
    stored,
    takes,
)
from ..ir.python_code import (
    FALSE,
    Dictionary,
    Fixed,
    also,
    beside,
    choice,
    dictionary,
    made_by,
    method,
    of,
    said,
    several,
)
from ..ir.python_code import Part as Word
from .solve_kernels import Part, Square

FLOAT32 = "torch.float32"
DTYPE = Fixed("DTYPES")[Fixed("some.dtype")]


@dataclass(frozen=True)
class Solve:
    """What the functions have in common: the state and the names of its size; (name, argument, has it steps) of each tensor that
    is given; the function that makes the matrix in torch; the spec's own first state, if there is one; and `passed`, what a
    launch passes for an argument of a part."""

    state: str
    square: Square
    tensors: tuple[tuple[str, str, bool], ...]
    torch_matrix: str
    initial: Code | None
    fine: bool
    passed: Callable[[Part], tuple[Passed, ...]]

    @property
    def own_sizes(self) -> tuple[tuple[str, Code], ...]:
        size, block = self.square.size, self.square.block
        return ((size, Fixed(size)), (block, made_by("padded", size)))

    def given(self) -> Body:
        return tuple(
            Set(
                (name,),
                made_by("steps", Fixed("given")[own]) if per_step else method(Fixed("given")[own], "contiguous"),
            )
            for name, own, per_step in self.tensors
        )


def matrix_launcher(s: Solve, part: Part) -> Function:
    size = s.square.size
    first = Set(("first",), made_by("whole", s.initial)) if s.initial is not None else None
    words = [
        *s.own_sizes,
        *_words(block_tile="config.tile", C="config.chunk", DT=DTYPE),
    ]
    outs = (
        Passed(ref("first")),
        stored(ref("last"), tiles=True),
        stored(ref("before"), tiles=True),
    )
    return Function(
        "triton_matrix",
        takes("given", "states", "constants", "like"),
        "(what a solve needs of the matrix, last states): the states before each chunk, in the dtype of `like`; in float32 a\n"
        "    product in torch, for the kernels round operands.",
        (
            If(
                also(
                    Binary("not in", Fixed("like.dtype"), several("torch.bfloat16", "torch.float16")),
                    Not(Fixed("INTERPRETED")),
                ),
                (Return(made_by(s.torch_matrix, "given", "states", "constants")),),
            ),
            *s.given(),
            Set(("some",), Fixed("like")),
            Define(("B", "T", "H"), Fixed("some.shape")[:3]),
            Define((size,), Fixed("some.shape")[-1]),
            Define(("config",), made_by("solve_config", "some.dtype", size)),
            Set(("first",), made_by("whole", made_by("states.get", said(s.state)))),
            *((If(ref("first").missing, (first,)),) if first is not None else ()),
            Alloc("last", beside("B", "H", size, size)),
            Alloc("before", beside("B", "H", made_by("cdiv", "T", "config.chunk"), size, size), None),
            Launch(
                "checkpoints",
                Fixed("B") * Fixed("H") * made_by("cdiv", size, "config.tile"),
                (*outs, *s.passed(part)),
                (Fixed("T"), Fixed("H")),
                tuple(words),
                tuple(_words(EXACT=FALSE, num_warps=4, num_stages=2)),
                frozenset({HEADS, TILES}),
            ),
            Return(beside(ref("before"), dictionary([(s.state, ref("last"))]))),
        ),
        frees=False,
    )


def solve_launcher(s: Solve, part: Part) -> Function:
    size, fine = s.square.size, s.fine
    told = "Others go on with x before it is rounded." if fine else "Nobody wants x in float32."
    in_torch = made_by(
        "conjugate_gradients",
        "matrix",
        choice("right", Fixed("sign") > 0, -Fixed("right")),
        "count",
        "tolerance",
        "right",
    )
    words = [
        *_words(SIGN="sign", COUNT=Fixed("count") + 1),
        *s.own_sizes,
        *_words(C="config.chunk", DT=DTYPE),
    ]
    options = _words(EXACT=FALSE, num_warps="config.warps", num_stages="config.stages")
    strides = beside(ref("right"), Starred(made_by("strides3", ref("right"))))
    arguments = (
        Passed(strides),
        *(stored(ref(n)) for n in ("x", "fine", "residual")),
        Passed(ref("matrix")),
        Passed(made_by("float", "tolerance")),
    )
    return Function(
        "triton_solve",
        takes("given", "constants", "matrix", "right", "count", "tolerance", sign=1),
        "(x, residual, x in float32): `count` steps of conjugate gradients for every step of the sequence, with what `matrix` "
        f"has of the\n    matrix and the right side with a sign. {told}",
        (
            If(
                made_by("callable", "matrix"),
                (
                    Set(("x", "residual"), in_torch),
                    Return(beside("x", "residual", made_by("x.float") if fine else NONE)),
                ),
            ),
            *s.given(),
            Set(("right", "some"), beside(made_by("steps", "right"), "matrix")),
            Define(("B", "T", "H"), Fixed("right.shape")[:3]),
            Define((size,), Fixed("right.shape")[-1]),
            Define(("config",), made_by("solve_config", "some.dtype", size)),
            Set(("x",), made_by("some.new_empty", "right.shape")),
            Set(
                ("fine",),
                made_by("torch.empty_like", "x", dtype="torch.float32") if fine else NONE,
            ),
            Alloc("residual", beside("B", "T", "H"), like=ref("right")),
            Launch(
                "solves",
                Fixed("B") * Fixed("H") * made_by("cdiv", "T", "config.chunk"),
                (*arguments, *s.passed(part)),
                (Fixed("T"), Fixed("H")),
                tuple(words),
                tuple(options),
            ),
            Return(beside(*map(ref, ("x", "residual", "fine")))),
        ),
        frees=False,
    )


def sums_launcher(s: Solve, part: Part, tensors: Iterable[tuple[str, Code]], found: dict[str, bool]) -> Function:
    """`found`: the parameters, and whether each runs over the state's dim; `tensors`: what else the kernel loads."""
    size = s.square.size
    sums = [f"{name}_sums" for name in found]
    totals = tuple((name, method(ref(f"{name}_sums"), "sum", several(0, 2))) for name in found)
    words = [*s.own_sizes, *_words(C=64, DT=made_by("DTYPES.get", "some.dtype"), num_warps=4)]
    return Function(
        "triton_parameters",
        takes("given", "constants", "cotangent"),
        f"Gradients of {', '.join(found)}, which only scale what the product adds to a read.",
        (
            Set(("some",), Fixed("cotangent")),
            Define(("B", "T", "H", size), Fixed("some.shape")),
            Define(("chunks",), made_by("cdiv", "T", 64)),
            *(Set((name,), value) for name, value in tensors),
            *(
                Alloc(f"{name}_sums", beside("B", "H", "chunks", *([size] if wide else [])))
                for name, wide in found.items()
            ),
            Launch(
                "parameter_sums",
                Fixed("B") * Fixed("H") * Fixed("chunks"),
                (*(stored(ref(x)) for x in sums), *s.passed(part)),
                (Fixed("T"), Fixed("H")),
                tuple(words),
            ),
            Return(Dictionary(totals, closed=True)),
        ),
        frees=False,
    )


def _words(**words: Word) -> list[tuple[str, Code]]:
    return [(name, of(x)) for name, x in words.items()]
