"""Programs that the tests share, each as a function that declares it anew."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from chunkform.codegen.commands.program_kind import generated_module
from chunkform.codegen.programs.compiled import CompiledProgram
from chunkform.codegen.programs.pipeline import compile_program
from chunkform.spec.language import (
    Attention,
    Program,
    apply,
    cg,
    diag,
    dot,
    eye,
    log,
    neumann,
    sherman_morrison,
    sigmoid,
    silu,
    sqrt,
    tanh,
)


def mesa(method: Any) -> Program:
    p = Program("solved")
    d = p.dims("d")
    q, u = p.inputs("q u", d)
    lam = p.decay("lam")
    lam_0 = p.parameters("lam_0", sign="> 0")
    H = p.state("H", d, d, initial=lam_0 * eye(d))
    p.update(H, lam * H.prev + u * u.T)
    p.output("o", p.solve("x", H.next, q, method))
    return p


def two_solves_of_one_state() -> Program:
    """Two right sides, one of which another op makes; a gate through a sigmoid; a read of the same state."""
    p = Program("two_solves")
    d, e = p.dims("d e")
    q, k = p.inputs("q k", d)
    v = p.inputs("v", e)
    b = p.inputs("b")
    lam = p.decay("lam")
    lamb = p.parameters("lamb", d, sign="> 0")
    scale = p.constant("scale", 0.5)
    H, S = p.state("H", d, d), p.state("S", d, e)
    beta = p.let("beta", sigmoid(b))
    p.update(H, lam * H.prev + beta * k * k.T)
    p.update(S, lam * S.prev + k * v.T)
    x = p.solve("x", H.next + diag(lamb), q, cg(40))
    y = p.solve("y", H.next + diag(lamb), silu(x) + scale * k, cg(40))
    p.output("o", S.next.T * y)
    p.output("z", H.next * x + q)
    return p


def channel_decay() -> Program:
    """A decay for each channel on both sides: X M X^T."""
    p = Program("channel_solve")
    d = p.dims("d")
    q, u = p.inputs("q u", d)
    a = p.decay("a", d)
    lamb = p.parameters("lamb", d, sign="> 0")
    H = p.state("H", d, d)
    p.update(H, diag(a) * H.prev * diag(a) + u * u.T)
    p.output("o", p.solve("x", H.next + diag(lamb), q, cg(40)))
    return p


def layers() -> Program:
    """Recurrences of the catalogue, one after the other, with a map between them."""
    p = Program("two_layers")
    d, e = p.dims("d e")
    q, k = p.inputs("q k", d)
    v = p.inputs("v", e)
    lam = p.decay("lam")
    w = p.parameters("w", e)
    y = p.apply("lightning_attention", q=q, k=k, v=v, lam=lam)
    z = p.let("z", apply(lambda a, b: a * b, y, w))
    p.output("o", p.apply("linear_attention", q=q, k=silu(k), v=z))
    return p


def unrolled_in_the_spec(rounds: int) -> Program:
    p = Program("written_out")
    d = p.dims("d")
    q, u = p.inputs("q u", d)
    lam = p.decay("lam")
    lam_0 = p.parameters("lam_0", sign="> 0")
    H = p.state("H", d, d, initial=lam_0 * eye(d))
    p.update(H, lam * H.prev + u * u.T)
    o = q
    for i in range(2, rounds + 1):
        o = p.let(f"o{i}", q + o - H.next * o)
    p.output("o", o)
    return p


def shared_reads() -> Program:
    """Two reads of one state that don't need each other, and one that needs both."""
    p = Program("shared_reads")
    d, e = p.dims("d e")
    q, r, k = p.inputs("q r k", d)
    v = p.inputs("v", e)
    lam = p.decay("lam")
    S = p.state("S", d, e)
    p.update(S, lam * S.prev + k * v.T)
    a = p.let("a", S.next.T * q)
    b = p.let("b", S.next.T * r)
    p.output("o", S.next.T * (dot(a, b) * q))
    p.output("c", b)
    return p


def forgetting() -> Program:
    """The forgetting transformer: a cumulated gate, then a softmax with that bias."""
    a = Attention("forgetting_attention")
    D, E = a.dims("D E")
    q, k, v = a.queries("q", D), a.keys("k", D), a.keys("v", E)
    c_i, c_j = a.stream("c")
    scale, cap = a.inverse_temperature("scale", default=1 / sqrt(a.size(D))), a.constant("cap", 30)
    score = scale * dot(q, k)
    a.softmax(cap * tanh(score / cap) + c_i - c_j)
    a.output("o", a.average(v))
    p = Program("forgetting")
    d, e = p.dims("d e")
    q, k = p.inputs("q k", d)
    v = p.inputs("v", e)
    f = p.decay("f")
    scale = p.parameters("scale", sign="> 0")
    c = p.state("c")
    p.update(c, c.prev + log(f))
    p.output("o", p.apply(a, q=q, k=k, v=silu(v), c=c.next, scale=scale, cap=20))
    return p


PROGRAMS: dict[str, Callable[[], Program]] = {
    "cg": lambda: mesa(cg(40)),
    "neumann unrolled": lambda: mesa(neumann(3, step=0.25)),
    "neumann simplified": lambda: mesa(neumann(3, step=0.25, backward="simplified", start="right side")),
    "neumann, step 1 / trace": lambda: mesa(neumann(3, step="trace", start="right side")),
    "sherman-morrison": lambda: mesa(sherman_morrison()),
    "two solves": two_solves_of_one_state,
    "channel decay": channel_decay,
    "layers": layers,
    "written out": lambda: unrolled_in_the_spec(4),
    "shared reads": shared_reads,
    "forgetting": forgetting,
}
_made: dict[str, tuple[CompiledProgram, Any]] = {}


def built(name: str) -> tuple[CompiledProgram, Any]:
    """(the compiled program, its op), made once."""
    if name not in _made:
        c = compile_program(PROGRAMS[name]())
        _made[name] = c, getattr(generated_module(c), c.name)
    return _made[name]
