"""Kernels printed: the one place where Triton is made of the data in `codegen/ir/kernel_ir.py`, as words."""

from __future__ import annotations

from ..ir.code import Call
from ..ir.kernel_ir import Barrier, Body, Do, For, If, KernelFunction, Let, Note, Return, Statement, Store, TileFunction
from ..ir.words import Bound, Defined, Definition, Said, Words, definition, inset, listed, path
from .formatting import AS_LAID, in_lines

JIT = ("@", *path("triton.jit"))
TRITON, GLUON = "tl", "gl"  # as files call these


def kernel_function_text(k: KernelFunction) -> str:
    """The text of a kernel, without a newline at its end."""
    return kernel_definition(k).text


def kernel_definition(k: KernelFunction) -> Definition:
    """A kernel as a file has it, without a newline at its end."""
    unspecialised = listed((Said(f'"{x}"'),) for x in k.unspecialised)
    return definition(
        [
            (*JIT, "(do_not_specialize=[", *unspecialised, "])"),
            ("def ", Defined(k.name), "("),
            *inset(signature(k)),
            ("):", AS_LAID),
            *inset([_doc(k.doc), *word_lines(k.body)]),
        ]
    )


def tile_definition(f: TileFunction) -> Definition:
    """A function that kernels call, without a newline at its end."""
    head = ("def ", Defined(f.name), "(", *listed((Bound(x),) for x in f.parameters), "):")
    return definition([JIT, head, *inset([_doc(f.doc), *word_lines(f.body)])])


def signature(k: KernelFunction, constant: str = "tl.constexpr") -> list[Words]:
    """The parameters, some to a line: tensors, each with its strides, then integers, then words, which are `constant`."""
    tensors = [[(Bound(p.name),) for p in some] for some in k.parameters]
    integers = [[(Bound(x),) for x in some] for some in (k.integers, k.counts)]
    words = [[(Bound(w), ": ", *path(constant)) for w in some] for some in (*((w,) for w in k.words), *k.more_words)]
    return [*in_lines(tensors), *in_lines(integers), *in_lines(words)]


def lines_of(body: Body) -> list[str]:
    """The lines of a body as text."""
    return ["".join(x) for x in word_lines(body)]


def word_lines(body: Body, library: str = TRITON) -> list[Words]:
    """The lines of a body; what stores, and what a constant is, is the library's."""
    return [line for x in body for line in _lines(x, library)]


def _doc(text: str) -> Words:
    return (Said(f'"""{text}"""'),)


def _lines(x: Statement, library: str) -> list[Words]:
    match x:
        case Let(names=names, value=Call() as value, broken=True):
            return [(*_given(names), " = ", *path(value.function), "("), ("    ", *value.inside), (")",)]
        case Let(names=names, value=value, note=note, constant=True):
            return [(*_given(names), ": ", *path(f"{library}.constexpr"), " = ", *value.words, *_note(note))]
        case Let(names=names, value=value, sign=sign, note=note):
            return [(*_given(names), f" {sign} ", *value.words, *_note(note))]
        case Store(pointer=pointer, value=value, mask=mask, note=note):
            where = () if mask is None else (", mask=", *mask.words)
            return [(*path(f"{library}.store"), "(", *pointer.words, ", ", *value.words, *where, ")", *_note(note))]
        case If(condition=condition, body=body, otherwise=otherwise, note=note):
            lines = [("if ", *condition.words, ":", *_note(note)), *inset(word_lines(body, library))]
            if len(otherwise) == 1 and isinstance(otherwise[0], If):
                first, *rest = _lines(otherwise[0], library)
                return [*lines, ("el", *first), *rest]
            return [*lines, ("else:",), *inset(word_lines(otherwise, library))] if otherwise else lines
        case For(name=name, over=over, body=body, note=note):
            return [("for ", Bound(name), " in ", *over.words, ":", *_note(note)), *inset(word_lines(body, library))]
        case Do(call=call, note=note):
            return [(*call.words, *_note(note))]
        case Note(text=text):
            return [(Said(f"# {text}"),)]
        case Barrier(note=note):
            return [(*path("tl.debug_barrier"), "()", *_note(note))]
        case Return(value=value):
            return [("return",) if value is None else ("return ", *value.words)]


def _given(names: tuple[str, ...]) -> Words:
    return listed((Bound(x),) for x in names)


def _note(note: str) -> Words:
    return ("  ", Said(f"# {note}")) if note else ()
