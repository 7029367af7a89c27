"""Kernels printed: the one place where Triton text is made of the data in `codegen/ir/kernel_ir.py`."""

from __future__ import annotations

from collections.abc import Iterable

from ..ir.code import Call
from ..ir.kernel_ir import Barrier, Body, Do, For, If, KernelFunction, Let, Note, Return, Statement, Store, TileFunction
from .formatting import AS_LAID, in_lines


def kernel_function_text(k: KernelFunction) -> str:
    """The text of a kernel, without a newline at its end."""
    unspecialised = ", ".join(f'"{x}"' for x in k.unspecialised)
    lines = [
        f"@triton.jit(do_not_specialize=[{unspecialised}])",
        f"def {k.name}(",
        *(f"    {line}" for line in signature(k)),
        f"):{AS_LAID}",
        f'    """{k.doc}"""',
        *indented(lines_of(k.body)),
    ]
    return "\n".join(lines)


def tile_function_text(f: TileFunction) -> str:
    """The text of a function that kernels call, without a newline at its end."""
    head = ["@triton.jit", f"def {f.name}({', '.join(f.parameters)}):", f'    """{f.doc}"""']
    return "\n".join([*head, *indented(lines_of(f.body))])


def signature(k: KernelFunction) -> list[str]:
    """The parameters, some to a line: tensors, each with its strides, then integers, then words."""
    tensors = [[p.name for p in some] for some in k.parameters]
    words = [[f"{w}: tl.constexpr" for w in some] for some in (*((w,) for w in k.words), *k.more_words)]
    return [*in_lines(tensors), *in_lines((k.integers, k.counts)), *in_lines(words)]


def lines_of(body: Body) -> list[str]:
    """The lines of a body."""
    return [line for x in body for line in _lines(x)]


def indented(lines: Iterable[str]) -> list[str]:
    return [f"    {line}" for line in lines]


def _lines(x: Statement) -> list[str]:
    match x:
        case Let(names=names, value=Call() as value, broken=True):
            return [f"{', '.join(names)} = {value.function}(", f"    {value.inside}", ")"]
        case Let(names=(name,), value=value, note=note, constant=True):
            return [f"{name}: tl.constexpr = {value.text}{_note(note)}"]
        case Let(names=names, value=value, sign=sign, note=note):
            return [f"{', '.join(names)} {sign} {value.text}{_note(note)}"]
        case Store(pointer=pointer, value=value, mask=mask, note=note):
            where = "" if mask is None else f", mask={mask.text}"
            return [f"tl.store({pointer.text}, {value.text}{where}){_note(note)}"]
        case If(condition=condition, body=body, otherwise=otherwise, note=note):
            lines = [f"if {condition.text}:{_note(note)}", *indented(lines_of(body))]
            if len(otherwise) == 1 and isinstance(otherwise[0], If):
                first, *rest = _lines(otherwise[0])
                return [*lines, f"el{first}", *rest]
            return [*lines, "else:", *indented(lines_of(otherwise))] if otherwise else lines
        case For(name=name, over=over, body=body, note=note):
            return [f"for {name} in {over.text}:{_note(note)}", *indented(lines_of(body))]
        case Do(call=call, note=note):
            return [f"{call.text}{_note(note)}"]
        case Note(text=text):
            return [f"# {text}"]
        case Barrier(note=note):
            return [f"tl.debug_barrier(){_note(note)}"]
        case Return(value=value):
            return ["return" if value is None else f"return {value.text}"]


def _note(note: str) -> str:
    return f"  # {note}" if note else ""
