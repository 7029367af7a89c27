"""Attentions beyond the catalogue, each for something that the catalogue doesn't have."""

import functools
from collections.abc import Callable

from sympy import Max, Min, Rational

from chunkform.codegen.attention.compiled import CompiledAttention
from chunkform.codegen.attention.pipeline import compile_attention
from chunkform.spec.language import (
    Attention,
    absolute,
    cos,
    dot,
    exp,
    find,
    frequencies,
    log,
    norm,
    normalize,
    relu,
    rotate,
    sqrt,
    tanh,
)

CATALOGUE = (
    "softmax_attention self_attention kattention kattention_f4 kattention_f5 kattention_f6 relay_nodes ked rotary_attention "
    "distance_attention"
).split()


def qkv(name):
    a = Attention(name)
    d, e = a.dims("D E")
    return a, d, e, a.queries("q", d), a.keys("k", d), a.keys("v", e)


def capped():
    """A function around the score, with a row and a column inside of it, and a distance beside it."""
    a, d, _, q, k, v = qkv("capped")
    r, c = a.queries("r"), a.keys("c")
    slope, cap = a.parameters("slope"), a.constant("cap", 2)
    i, j = a.positions()
    score = dot(rotate(q, i * frequencies(d)), rotate(k, j * frequencies(d))) / sqrt(a.size(d))
    a.softmax(cap * tanh((score + r + c) / cap) - slope * absolute(i - j), a.inverse_temperature("beta", 1))
    a.output("o", a.average(v))
    return a


def masked():
    """A column that may be -inf, with a temperature that multiplies it."""
    a, _, _, q, k, v = qkv("masked")
    m = a.keys("m")
    a.softmax(dot(q, k) + m, a.inverse_temperature("beta"))
    a.output("o", a.average(v))
    return a


def rbf():
    a, _, _, q, k, v = qkv("rbf")
    a.softmax(-dot(q - k, q - k) / 2, a.inverse_temperature("beta"))
    a.output("o", a.average(v))
    return a


def linear():
    a, _, _, q, k, v = qkv("linear")
    a.linear(dot(q, k))
    a.output("o", a.average(v))
    return a


def polynomial():
    """Powers and products of scores, a row and a column that multiply, weights as they are, and their sum."""
    a, _, _, q, k, v = qkv("polynomial")
    r, c = a.queries("r"), a.keys("c")
    a.linear((1 + dot(q, k)) ** 2 + r * c * dot(q, k) + r)
    a.output("o", a.average(v))
    a.output("mass", a.average(1))
    return a


def exponential():
    """Weights without a normaliser, their sum, and a quotient by it."""
    a, _, _, q, k, v = qkv("exponential")
    r = a.queries("r")
    a.exponential(dot(q, k) + r, a.inverse_temperature("beta"))
    a.output("o", a.average(v))
    a.output("mass", a.average(1))
    a.output("p", a.average(v) / (a.average(1) + 1))
    return a


def energy_gradient():
    """dE/dx of f6, averaged: features of the key, terms of the row, and two values at once."""
    a = Attention("energy_gradient")
    e, d = a.dims("E D")
    x, y = a.stream("x", e)
    Q, K = a.parameters("Q K", d, e)
    b, c = a.parameters("b c", d)
    a.softmax(-dot(Q * x - K * y, Q * x - K * y) / 2 + dot(b, K * y) + dot(c, Q * x), a.inverse_temperature("beta"))
    a.output("g", a.average(a.energy_gradient(x)))
    a.output("y", x + a.average(y))
    return a


def two_blocks():
    """Features over two dims in one score, a matrix between, functions of positions, a value with a factor of the row."""
    a, d, e, q, k, v = qkv("two_blocks")
    W = a.parameters("W", d, d)
    p, u = a.queries("p", e), a.keys("u", e)
    i, j = a.positions()
    beta = a.inverse_temperature("beta")
    a.softmax(q.T * W * k + dot(p, u) + cos((i - j) / 7) * exp(-absolute(i - j) / 5), beta)
    a.output("o", a.average(dot(p, v) * u))
    return a


def turned():
    """An output that is the averages by a matrix whose rows are their channels."""
    a, _, e, q, k, v = qkv("turned")
    f = a.dims("F")
    W = a.parameters("W", e, f)
    a.softmax(dot(q, k))
    a.output("o", W.T * a.average(v))
    return a


def clipped_cosine():
    """Features that are normalized, a score and a distance that numbers bound."""
    a, _, _, q, k, v = qkv("clipped_cosine")
    i, j = a.positions()
    a.softmax(3 * Max(dot(normalize(q), normalize(k)), -Rational(1, 2)) - Min(absolute(i - j), 8) / 4)
    a.output("o", a.average(v))
    return a


def shared():
    """Keys that are averaged, and scored beside normalized ones; a stream that is a row and a column; an output of no average."""
    a = Attention("shared")
    d, e = a.dims("D E")
    q, k, p, u, b = a.queries("q", d), a.keys("k", d), a.queries("p", e), a.keys("u", e), a.parameters("b", e)
    c_i, c_j = a.stream("c")
    a.softmax(dot(q, k) + dot(p, normalize(u)) + c_i - c_j)
    a.output("o", a.average(k) - q)
    a.output("z", b)
    return a


def decaying():
    """Weights that are 0 where their derivative is, as a power of it, and that overflow above the diagonal."""
    a, _, _, q, k, v = qkv("decaying")
    i, j = a.positions()
    a.linear(relu(dot(q, k)) ** 1.5 * exp(8 * (j - i)))
    a.output("o", a.average(v))
    return a


def windowed():
    """Functions of positions that have no derivative at 0, and energies of -inf where they are 0."""
    a, _, _, q, k, v = qkv("windowed")
    i, j = a.positions()
    window = a.constant("window", 12.5)
    a.softmax(dot(q, k) - a.parameters("slope") * sqrt(absolute(i - j)) + log(relu(window - i + j)))
    a.output("o", a.average(v))
    return a


def distances():
    """Functions of distances, which are 0 from a position to itself; a vector that is scored as it is, and by a matrix."""
    a = Attention("distances")
    d, e = a.dims("D E")
    x, y = a.stream("x", d)
    v, W, slope = a.keys("v", e), a.parameters("W", d, d), a.parameters("slope")
    far = dot(W * (x - y), W * (x - y))
    a.softmax(-sqrt(dot(x - y, x - y) / 2 + Rational(1, 10)) - slope * log(1 + far), a.inverse_temperature("beta"))
    a.output("o", a.average(v))
    return a


def forgetting():
    """A stream that is a row, inside of a function, and a column, beside features of queries and keys that kernels make."""
    a, _, _, q, k, v = qkv("forgetting")
    c_i, c_j = a.stream("c")
    a.softmax(tanh(dot(normalize(q), normalize(k)) + c_i) - c_j)
    a.output("o", a.average(v))
    return a


def norms():
    """Lengths of differences, whose derivative is infinite next to 0, and taken for 0 there; a quotient by a distance."""
    a = Attention("norms")
    d, e = a.dims("D E")
    x, y = a.stream("x", d)
    v, slope = a.keys("v", e), a.parameters("slope")
    a.softmax(1 / (1 + dot(x - y, x - y)) - exp(slope) * norm(x - y))
    a.output("o", a.average(v))
    return a


MORE: list[Callable[[], Attention]] = [
    *(capped, masked, rbf, linear, polynomial, exponential, energy_gradient, two_blocks, turned, clipped_cosine),
    *(shared, decaying, windowed, distances, forgetting, norms),
]


@functools.cache
def everything() -> tuple[Attention, ...]:
    return (*(find(n)[0] for n in CATALOGUE), *(make() for make in MORE))


@functools.cache
def compiled(name: str) -> CompiledAttention:
    """One of them, compiled: the same to all who ask in a process."""
    return compile_attention(next(a for a in everything() if a.name == name))
