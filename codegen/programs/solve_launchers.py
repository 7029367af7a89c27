"""The functions that launch the kernels of a solve by conjugate gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ..ir.launch_ir import (
    HEADS,
    TILES,
    Alloc,
    Body,
    Define,
    Expr,
    Function,
    If,
    Launch,
    Passed,
    Return,
    Set,
    joined,
    py,
    ref,
    stored,
)
from .solve_kernels import Part, Square

FLOAT32 = "torch.float32"


@dataclass(frozen=True)
class Solve:
    """What the functions have in common: the state and the names of its size; (name, argument, has it steps) of each tensor that
    is given; the function that makes the matrix in torch; the spec's own first state, if there is one; and `passed`, what a
    launch passes for an argument of a part."""

    state: str
    square: Square
    tensors: tuple[tuple[str, str, bool], ...]
    torch_matrix: str
    initial: Expr | None
    fine: bool
    passed: Callable[[Part], tuple[Passed, ...]]

    @property
    def own_sizes(self) -> tuple[tuple[str, Expr], ...]:
        size, block = self.square.size, self.square.block
        return ((size, Expr(size)), (block, Expr(f"padded({size})")))

    def given(self) -> Body:
        return tuple(
            Set(
                (name,),
                Expr(f'steps(given["{own}"])' if per_step else f'given["{own}"].contiguous()'),
            )
            for name, own, per_step in self.tensors
        )


def matrix_launcher(s: Solve, part: Part) -> Function:
    size = s.square.size
    first = Set(("first",), py("whole({})", s.initial)) if s.initial is not None else None
    words = [
        *s.own_sizes,
        *_words(block_tile="config.tile", C="config.chunk", DT="DTYPES[some.dtype]"),
    ]
    outs = (
        Passed(ref("first")),
        stored(ref("last"), tiles=True),
        stored(ref("before"), tiles=True),
    )
    return Function(
        "triton_matrix",
        "(given, states, constants, like)",
        "(what a solve needs of the matrix, last states): the states before each chunk, in the dtype of `like`; in float32 a\n"
        "    product in torch, for the kernels round operands.",
        (
            If(
                Expr("like.dtype not in (torch.bfloat16, torch.float16) and not INTERPRETED"),
                (Return(Expr(f"{s.torch_matrix}(given, states, constants)")),),
            ),
            *s.given(),
            Set(("some",), Expr("like")),
            Define(("B", "T", "H"), Expr("some.shape[:3]")),
            Define((size,), Expr("some.shape[-1]")),
            Define(("config",), Expr(f"solve_config(some.dtype, {size})")),
            Set(("first",), Expr(f'whole(states.get("{s.state}"))')),
            *((If(py("{} is None", ref("first")), (first,)),) if first is not None else ()),
            Alloc("last", Expr(f"B, H, {size}, {size}")),
            Alloc("before", Expr(f"B, H, cdiv(T, config.chunk), {size}, {size}"), None),
            Launch(
                "checkpoints",
                Expr(f"B * H * cdiv({size}, config.tile)"),
                (*outs, *s.passed(part)),
                (Expr("T"), Expr("H")),
                tuple(words),
                tuple(_words(EXACT="False", num_warps="4", num_stages="2")),
                frozenset({HEADS, TILES}),
            ),
            Return(py('{}, {{"{}": {}}}', ref("before"), s.state, ref("last"))),
        ),
        frees=False,
    )


def solve_launcher(s: Solve, part: Part) -> Function:
    size, fine = s.square.size, s.fine
    told = "Others go on with x before it is rounded." if fine else "Nobody wants x in float32."
    in_torch = Expr("conjugate_gradients(matrix, right if sign > 0 else -right, count, tolerance, right)")
    words = [
        *_words(SIGN="sign", COUNT="count + 1"),
        *s.own_sizes,
        *_words(C="config.chunk", DT="DTYPES[some.dtype]"),
    ]
    options = _words(EXACT="False", num_warps="config.warps", num_stages="config.stages")
    strides = py("{}, *strides3({})", ref("right"), ref("right"))
    arguments = (
        Passed(strides),
        *(stored(ref(n)) for n in ("x", "fine", "residual")),
        Passed(ref("matrix")),
        Passed(Expr("float(tolerance)")),
    )
    return Function(
        "triton_solve",
        "(given, constants, matrix, right, count, tolerance, sign=1)",
        "(x, residual, x in float32): `count` steps of conjugate gradients for every step of the sequence, with what `matrix` "
        f"has of the\n    matrix and the right side with a sign. {told}",
        (
            If(
                Expr("callable(matrix)"),
                (
                    Set(("x", "residual"), in_torch),
                    Return(Expr(f"x, residual, {'x.float()' if fine else 'None'}")),
                ),
            ),
            *s.given(),
            Set(("right", "some"), Expr("steps(right), matrix")),
            Define(("B", "T", "H"), Expr("right.shape[:3]")),
            Define((size,), Expr("right.shape[-1]")),
            Define(("config",), Expr(f"solve_config(some.dtype, {size})")),
            Set(("x",), Expr("some.new_empty(right.shape)")),
            Set(
                ("fine",),
                Expr("torch.empty_like(x, dtype=torch.float32)" if fine else "None"),
            ),
            Alloc("residual", Expr("B, T, H"), like=ref("right")),
            Launch(
                "solves",
                Expr("B * H * cdiv(T, config.chunk)"),
                (*arguments, *s.passed(part)),
                (Expr("T"), Expr("H")),
                tuple(words),
                tuple(options),
            ),
            Return(joined(map(ref, ("x", "residual", "fine")))),
        ),
        frees=False,
    )


def sums_launcher(s: Solve, part: Part, tensors: Iterable[tuple[str, str]], found: dict[str, bool]) -> Function:
    """`found`: the parameters, and whether each runs over the state's dim; `tensors`: what else the kernel loads."""
    size = s.square.size
    sums = [f"{name}_sums" for name in found]
    totals = joined(py('"{}": {}.sum((0, 2))', name, ref(f"{name}_sums")) for name in found)
    words = [*s.own_sizes, *_words(C="64", DT="DTYPES.get(some.dtype)", num_warps="4")]
    return Function(
        "triton_parameters",
        "(given, constants, cotangent)",
        f"Gradients of {', '.join(found)}, which only scale what the product adds to a read.",
        (
            Set(("some",), Expr("cotangent")),
            Define(("B", "T", "H", size), Expr("some.shape")),
            Define(("chunks",), Expr("cdiv(T, 64)")),
            *(Set((name,), Expr(text)) for name, text in tensors),
            *(
                Alloc(f"{name}_sums", Expr(f"B, H, chunks{f', {size}' if wide else ''}"))
                for name, wide in found.items()
            ),
            Launch(
                "parameter_sums",
                Expr("B * H * chunks"),
                (*(stored(ref(x)) for x in sums), *s.passed(part)),
                (Expr("T"), Expr("H")),
                tuple(words),
            ),
            Return(py("{{{},}}", totals)),
        ),
        frees=False,
    )


def _words(**words: str) -> list[tuple[str, Expr]]:
    return [(name, Expr(text)) for name, text in words.items()]
